"""Texts of any size and depth are refused before parsing, or parsed in a bounded part of memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.command_line import run
from support.files.export_files import cql_time, timestamps_csv

from cdc_platform.clock import Milliseconds
from cdc_platform.errors import InputError
from cdc_platform.importing import get_memory_bytes, parse_join_request, parse_rehearsal, parse_ring_snapshot
from cdc_platform.importing import sources as importing_sources
from cdc_platform.importing.formats import strict_json
from cdc_platform.importing.formats.strict_json import MAX_JSON_BYTES, MEMORY_FACTOR, max_export_bytes, parse_json
from cdc_platform.storage import read_user_text

TERABYTE = 1 << 40


def create_sparse_file(path: Path, size: int = TERABYTE) -> Path:
    """Create a file of zeros that takes no disk space."""
    path.touch()
    os.truncate(path, size)
    return path


@pytest.mark.parametrize(
    "command",
    [
        ("bootstrap", "{file}"),
        ("rehearse", "{file}"),
        ("import", "{file}"),
        ("cql", "run", "{file}"),
        ("tablets", "create", "ks.t", "--last-tokens", "{file}"),
    ],
    ids=lambda command: command[0],
)
@pytest.mark.parametrize("name", ["huge.json", "huge.csv", "/dev/zero"])
def test_endless_file_is_refused_at_once(tmp_path: Path, command: tuple[str, ...], name: str) -> None:
    """Every command that reads a file refuses it in one line with the limit; a device has no known size."""
    if command[0] == "import" and name == "/dev/zero" and max_export_bytes() > MAX_JSON_BYTES * 4:
        pytest.skip("it would read a tenth of this machine's memory")
    file = name if name.startswith("/") else create_sparse_file(tmp_path / name)
    run("--home", tmp_path / "home", "ring")
    answer = run("--home", tmp_path / "home", *(part.format(file=file) for part in command))
    assert answer.exit_code == 2
    assert "has more than" in answer.stderr
    assert answer.stderr.count("\n") == 1


def nested(deep: int, form: str) -> str:
    """Return a number nested in as many lists or objects."""
    return form * deep + "1" + {"[": "]"}.get(form, "}") * deep


@pytest.mark.parametrize("read", [parse_join_request, parse_ring_snapshot, parse_rehearsal])
@pytest.mark.parametrize("deep", [33, 200, *range(900, 1000, 5), 100_000])
def test_depth_is_refused_at_any_place(read: Callable[[str], object], deep: int) -> None:
    """This includes depths just below Python's limit, which could be read but not printed."""
    for inner in (nested(deep, "["), nested(deep, '{"a":')):
        for text in (inner, f'{{"tokens": {inner}}}', f'[{{"rack": {inner}}}]'):
            with pytest.raises(InputError, match="nested more than 32 deep"):
                read(text)


@pytest.mark.parametrize("command", ["bootstrap", "import", "rehearse"])
def test_deep_file_is_one_line(tmp_path: Path, command: str) -> None:
    """No command prints a stack of the parser."""
    (tmp_path / "deep.json").write_text(nested(960, "["))
    answer = run("--home", tmp_path / "home", command, tmp_path / "deep.json")
    assert answer.exit_code == 2
    assert "nested more than 32 deep" in answer.stderr


def test_maximum_depth_is_read() -> None:
    """It is 32 nested lists."""
    assert parse_json("[" * 32 + "]" * 32, "text") is not None
    with pytest.raises(InputError, match="nested more than 32 deep"):
        parse_json("[" * 33 + "]" * 33, "text")


HOSTILE = {
    "lists": ("[", "[],", 21_000_000, "[]]"),
    "objects": ("[", '{"a":1},', 8_000_000, "{}]"),
    "texts": ("[", '"ab",', 13_000_000, '"ab"]'),
    "numbers": ("[", "300,", 16_000_000, "300]"),
    "spaces": ("", " ", MAX_JSON_BYTES + 5, ""),
}
"""The beginning of each text, its repeated part, the number of repetitions, and its end.

A test builds its text when it writes it; otherwise every process of the tests, and each of its forks, would have all of
them.
"""


@pytest.mark.parametrize("kind", HOSTILE)
def test_largest_text_takes_bounded_memory(tmp_path: Path, kind: str) -> None:
    """Texts just below the limit with the most costly content take a process less than 2 GiB."""
    file = tmp_path / "hostile.json"
    before, repeated, times, after = HOSTILE[kind]
    file.write_text(before + repeated * times + after)
    program = (
        "import resource, sys\nfrom pathlib import Path\nfrom cdc_platform.errors import InputError\n"
        "from cdc_platform.importing.formats.json_inputs import read_join_request\n"
        "try:\n    read_join_request(Path(sys.argv[1]))\nexcept InputError as error:\n    print(str(error)[:80])\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(file)], capture_output=True, text=True, check=True, timeout=120
    )
    message, kibibytes = done.stdout.splitlines()
    assert message
    assert int(kibibytes) < 2 * 1024**2


def test_import_is_bounded_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that fit separately but not together are refused without a write."""
    texts = [timestamps_csv({1_000 * (number * 1000 + row + 1): None for row in range(1000)}) for number in range(3)]
    paths = [tmp_path / f"{number}.csv" for number, _ in enumerate(texts)]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text, newline="")
    monkeypatch.setattr(importing_sources, "max_export_bytes", lambda: len(texts[0]) + len(texts[1]) + 500)
    answer = run("--home", tmp_path / "home", "import", *paths)
    assert answer.exit_code == 2
    assert f"{paths[2]}, together with the other files, has more than" in answer.stderr
    assert not (tmp_path / "home" / "lake").exists()
    assert run("--home", tmp_path / "home", "import", *paths[:2]).exit_code == 0


@pytest.mark.long("files as large as may be taken in")
def test_rows_of_exports_take_no_more_memory_than_estimated(tmp_path: Path) -> None:
    """The table with the shortest rows takes less memory than `MEMORY_FACTOR` times its file."""
    file = tmp_path / "streams.csv"
    size = 400_000
    with file.open("w", newline="") as output:
        output.write("time,range_end,streams\r\n")
        output.writelines(f"{cql_time(Milliseconds(1000))},{number},{{0x{number:032x}}}\r\n" for number in range(size))
    program = (
        "import resource, sys\nfrom cdc_platform.errors import InputError\n"
        "from cdc_platform.importing.formats.exports import parse_exports\n"
        "from cdc_platform.storage.user_files import read_user_text\n"
        "from pathlib import Path\nbefore = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "text = read_user_text(Path(sys.argv[1]), 1 << 30)\n"
        "try:\n    parse_exports([('a.csv', text)])\nexcept InputError as error:\n    print(str(error)[:80])\n"
        "else:\n    print('read')\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(file)], capture_output=True, text=True, check=True, timeout=120
    )
    memory_bytes = int(done.stdout.splitlines()[-1])
    assert memory_bytes < MEMORY_FACTOR * file.stat().st_size


def test_limit_is_a_tenth_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the machine does not report its memory, the limit uses a guess."""
    assert max_export_bytes() == (get_memory_bytes() or 0) // MEMORY_FACTOR
    monkeypatch.setattr(strict_json, "get_memory_bytes", lambda: None)
    assert max_export_bytes() == 8 * 1024**3 // MEMORY_FACTOR


def test_line_ends_of_all_kinds_are_read(tmp_path: Path) -> None:
    """They stay unchanged, and quoted ones stay in their field."""
    file = tmp_path / "a.json"
    for text in ('{"a":\r\n1}', '{"a":\r1}'):
        file.write_text(text, newline="")
        assert json.loads(read_user_text(file)) == {"a": 1}
        assert read_user_text(file) == text
