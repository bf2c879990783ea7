"""Commands that die before a file operation and run again must leave the same result as an undisturbed run.

Each run draws some operations by its seed; CDC_PLATFORM_KILLS=N draws N for each command, CDC_PLATFORM_KILLS=all tests
all.
"""

from __future__ import annotations

import random
import re
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from support.drawing import KILLS, SEED
from support.processes.nursery import Ended, Nursery

from cdc_platform.delta import Lake, list_stored_tables
from cdc_platform.storage import atomic

# A verdict names the data files that it judged, and these have random names.
_OF_FILES = frozenset({"content"})


@dataclass(frozen=True)
class Case:
    """A command and its initial state.

    `prepare` creates the home and everything else that the command needs beside it; `{beside}` in `command` is that
    folder, and `@name` the content of a file there.
    `refused`: the permitted error when the command runs again after it had completed before it died. `without`:
    columns with random values. `more`: what is compared besides the rows.
    """

    prepare: Callable[[Path], object]
    command: tuple[str, ...]
    clock: str = "2026-01-01T00:00:00Z"
    refused: str | None = None
    without: Collection[str] = frozenset()
    environment: Mapping[str, str] = field(default_factory=dict)
    more: Callable[[Path], object] = lambda home: None


def everything(home: Path, without: Collection[str] = frozenset()) -> dict[str, list[str]]:
    """Return every row of every table that has any, declared or not, including homes below, sorted."""
    left_out = _OF_FILES | set(without)
    rows_by_table: dict[str, list[str]] = {}
    for at in (home, *sorted(home.glob("clusters/*"))):
        lake = Lake(at / "lake")
        for keyspace, name in list_stored_tables(lake):
            rows: list[dict[str, Any]] = DeltaTable(lake.root / keyspace / name).to_pyarrow_table().to_pylist()
            compared = sorted(repr(sorted((k, v) for k, v in row.items() if k not in left_out)) for row in rows)
            if compared:
                rows_by_table[str((at / f"{keyspace}.{name}").relative_to(home))] = compared
    return rows_by_table


def killed_and_run_again(nursery: Nursery, case: Case, folder: Path, *, some: int = 2) -> int:
    """Kill the command of a case before some or all operations, each time on a new home; return the number of kills."""
    if nursery.refusal:
        pytest.skip(nursery.refusal)
    before = folder / "before" / "home"
    before.parent.mkdir()
    case.prepare(before)
    twin = _copied(before, folder / "undisturbed")
    undisturbed = nursery.traced(_command(case, twin), twin, environment=case.environment)
    assert undisturbed.exit_code == 0, undisturbed
    expected = everything(twin, case.without)
    count = len(undisturbed.operations)
    assert count, "a command that changes no file needs no test"
    chosen = list(range(count))
    if KILLS != "all":
        chosen = random.Random(SEED).sample(chosen, min(count, int(KILLS or some)))
    for number in chosen:
        home = _copied(before, folder / f"killed-{number}")
        died = nursery.traced(_command(case, home), home, number, environment=case.environment)
        assert died.exit_code in (-signal.SIGKILL, 0), died
        was_done = case.refused is not None and _has_rows(home, case.without, expected)
        (again,) = nursery.race([_command(case, home)], environment=case.environment)
        context = f"killed before operation {number} of {count}: {died.operations[-1:]}\n{again.stderr}"
        assert _is_done(case, again, was_done), context
        if differences := _differences(everything(home, case.without), expected):
            raise AssertionError("\n".join([context, *map(repr, differences)]))
        assert case.more(home) == case.more(twin), context
        _assert_nobody_holds_a_draft(home)
        shutil.rmtree(home.parent)
    return len(chosen)


def _has_rows(home: Path, without: Collection[str], expected: dict[str, list[str]]) -> bool:
    """Return True if every table has the expected rows; a table that the command repairs may be unreadable."""
    try:
        return everything(home, without) == expected
    except DeltaError:
        return False


def _differences(actual: dict[str, list[str]], expected: dict[str, list[str]]) -> list[tuple[str, str, str]]:
    """Return every row that only one side has: table, side, row."""
    return [
        (table, whose, row)
        for table in sorted(actual.keys() | expected.keys())
        for whose, rows, others in (("found", actual, expected), ("due", expected, actual))
        for row in (Counter(rows.get(table, ())) - Counter(others.get(table, ()))).elements()
    ]


def _is_done(case: Case, again: Ended, was_done: bool) -> bool:
    if again.exit_code == 0:
        return True
    return was_done and bool(re.search(case.refused or "", again.stderr))


def _assert_nobody_holds_a_draft(home: Path) -> None:
    """Assert that each draft can be removed; Spark tasks may outlive their driver briefly and use theirs."""
    deadline = time.monotonic() + 20
    while drafts := list(home.rglob("*.draft")):
        for draft in drafts:
            atomic.sweep_drafts(draft.parent)
        assert time.monotonic() < deadline, drafts


def _copied(before: Path, beside: Path) -> Path:
    """Copy a home and everything beside it into a new folder."""
    shutil.copytree(before.parent, beside)
    return beside / "home"


def _command(case: Case, home: Path) -> list[str]:
    if case.command[0] == "-c":
        return ["-c", case.command[1], str(home)]
    return ["--home", str(home), "--clock", case.clock, *(_word(word, home.parent) for word in case.command)]


def _word(word: str, beside: Path) -> str:
    return (beside / word[1:]).read_text(encoding="utf-8") if word.startswith("@") else word.format(beside=beside)
