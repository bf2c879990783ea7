"""Times have units: the type checker refuses to mix them, and only the clock module converts them."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from cdc_platform.clock import Microseconds, Milliseconds

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("cdc_platform", "assets", "resources", "bench")
CLOCK = Path("cdc_platform/clock.py")
SECOND_IN_UNITS = (10**3, 10**6, 10**9)
CONVERSIONS = {
    seconds * units for seconds in (1, 60, 3_600, 86_400) for units in SECOND_IN_UNITS if seconds * units != 60 * 10**9
} | {3_600, 86_400}
COUNTS = {
    "reader.MAX_ROWS_IN_MEMORY": "rows that a window reads at once",
    "session._EVERY_NODE": "nodes that one answer can hold",
    "expiry._GENERATIONS_A_COMMIT": "range ends in one predicate",
    "sync.MAX_PARTITIONS": "partitions that a tick adds",
    "object_store._PAGE_SIZE": "files that a store names at once",
    "hooks.MAX_WAITING_ALERTS": "changes that wait for a program",
    "inbox.MAX_NEW_PARTITIONS": "partitions that one evaluation adds",
    "settings.rewrite_attempts": "attempts",
    "plots._BYTE_UNITS": "bytes of a unit on an axis",
    "life.peak": "bytes",
    "rehearsal.used": "bytes",
    "rehearsal._ALLOWED_BYTES": "bytes",
    "scripts._QUICK_STATEMENTS": "statements of a benchmark",
    "live._LOGGED_ROWS": "rows of a benchmark",
    "log._FULL": "writes of a benchmark",
    "session.growth": "generations of a benchmark",
    "backlog._GB": "bytes",
    "simulation._LARGE_NODES": "nodes of a benchmark",
    "assumptions._MAX_NODES": "nodes",
    "assumptions._MAX_WRITES": "writes",
    "assumptions._MAX_FAULTS": "outages, partitions or crashes of a history",
    "clocks.PARTS_PER_MILLION": "parts of a whole",
    "judge._MOST_RINGS": "rings in memory",
    "simulate.MAX_NODES": "nodes",
    "simulate._MAX_SEEDS": "histories of a run",
    "rebuild._MAX_TIED": "keys of a comparison",
    "write_batches.MAX_BAD_WRITES": "writes in a refusal",
    "write_model._MAX_SEARCHED": "rows that are searched",
    "collector.MAX_LOGS": "logs of a scrape",
    "changed_keys.FEWEST_ROWS_FOR_COPY": "rows that are read one by one",
}
"""Numbers as large as a conversion that count something else, by module and by the name that they define or divide."""


@dataclass(frozen=True)
class Found:
    """A number that converts times, in a file."""

    path: Path
    line: int
    value: float


def number_of(node: ast.AST) -> float | None:
    """Return the number that an expression writes: a literal, or a power of literals."""
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return value
        case ast.BinOp(left=ast.Constant(value=int() as base), op=ast.Pow(), right=ast.Constant(value=int() as power)):
            return base**power
    return None


def conversions(path: Path, source: str) -> list[Found]:
    """Return the numbers of a source that convert times, without counts by a name of `COUNTS`."""
    numbers: list[Found] = []

    def look(node: ast.AST, named: frozenset[str]) -> None:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                named |= {name}
            case ast.keyword(arg=str() as name):
                named |= {name}
            case ast.BinOp(left=ast.Name(id=name) | ast.Attribute(attr=name)):
                named |= {name}
        value = number_of(node)
        if value is not None:
            if value in CONVERSIONS and not {f"{path.stem}.{name}" for name in named} & COUNTS.keys():
                numbers.append(Found(path, getattr(node, "lineno", 0), value))
            return
        for child in ast.iter_child_nodes(node):
            look(child, named)

    look(ast.parse(source), frozenset())
    return numbers


def rejected_lines(folder: Path, lines: str) -> list[str]:
    """Return the lines of `lines` that the type checker rejects, after an import of both units."""
    snippet = folder / "snippet.py"
    head = "from cdc_platform.clock import Clock, HOUR_MS, Microseconds, Milliseconds, SECOND_US\n"
    head += "from cdc_platform.clock import ms_from_us, us_from_ms\n\n"
    setup = "ms = Milliseconds(1)\nus = Microseconds(1)\n\n"
    snippet.write_text(head + setup + lines, encoding="utf-8")
    options = ["--config", str(ROOT / "pyproject.toml"), "--output-format", "json"]
    command = [sys.executable, "-m", "pyrefly", "check", *options, str(snippet)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=240, check=False)
    offset = (head + setup).count("\n")
    errors = json.loads(done.stdout)["errors"]
    return sorted({lines.splitlines()[error["line"] - 1 - offset] for error in errors if error["severity"] == "error"})


def test_times_are_converted_in_the_clock_alone() -> None:
    """Only the clock module uses a thousand, a million or the seconds of a day to convert one unit to another."""
    numbers = [
        number
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.relative_to(ROOT) != CLOCK
        for number in conversions(path.relative_to(ROOT), path.read_text(encoding="utf-8"))
    ]
    assert [f"{number.path}:{number.line}: {number.value}" for number in numbers] == []


@pytest.mark.parametrize(
    "line",
    [
        "us = ms * 1000",
        "ms = us // 1_000",
        "wait(us / 1e6)",
        "HOUR_US = 3_600_000_000",
        "retry(every_ms=3_600_000)",
        "ttl = 20 * 365 * 86_400",
        "ns = seconds * 10**9",
        "rest = us % 1000",
    ],
)
def test_conversion_elsewhere_is_found(line: str) -> None:
    """A conversion is found with any operator and any spelling of the number."""
    assert len(conversions(Path("anywhere.py"), line)) == 1


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("reader.py", "MAX_ROWS_IN_MEMORY = 1_000_000"),
        ("settings.py", "rewrite_attempts: int = Field(le=1000)"),
        ("anywhere.py", "year = 2000"),
    ],
)
def test_count_is_no_conversion(path: str, line: str) -> None:
    """Counts of rows and attempts may be a thousand."""
    assert conversions(Path(path), line) == []


def test_every_count_is_in_use() -> None:
    """Every listed count exists in the code."""
    texts = [
        (path.stem, path.read_text(encoding="utf-8")) for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")
    ]
    used = {
        name for name in COUNTS for stem, text in texts if name.startswith(f"{stem}.") and name[len(stem) + 1 :] in text
    }
    assert used == COUNTS.keys()


def test_type_checker_refuses_mixed_units(tmp_path: Path) -> None:
    """Adding, subtracting, comparing and passing the other unit are type errors; other operations are not."""
    refused = [
        "ms + us",
        "us - ms",
        "ms < us",
        "ms == us",
        "max(ms, us) + ms",
        "Clock(ms)",
        "Clock(5)",
        "ms_from_us(ms)",
        "us_from_ms(us)",
        "later: Milliseconds = us",
        "later: Milliseconds = ms * 1000 + us",
        "sooner: Milliseconds = 3 + ms",
        "ms += us",
    ]
    allowed = [
        "Clock(us)",
        "Clock(us_from_ms(ms) + SECOND_US * 3 - us)",
        "sum_ms: Milliseconds = ms + HOUR_MS * 2 - ms_from_us(us)",
        "hours: int = ms // HOUR_MS",
        "days: Milliseconds = HOUR_MS * 24 // 7 % 3",
        "plain: int = ms",
        "by_time: dict[Milliseconds, str] = {ms: 'a'}",
        "ms > 0",
    ]
    assert rejected_lines(tmp_path, "\n".join(refused + allowed) + "\n") == sorted(refused)


def test_times_are_plain_numbers_at_run_time() -> None:
    """Times are ints for JSON and Arrow, and pydantic reads their annotations as ints."""
    assert (Milliseconds, Microseconds) == (int, int)
    assert json.dumps(Milliseconds(5)) == "5"
    assert TypeAdapter(Milliseconds).validate_python(5, strict=True) == 5
