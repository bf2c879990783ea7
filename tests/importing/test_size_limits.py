"""Texts of any size and depth: refused before they are read, or read in a bounded part of memory."""

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


def hollow(path: Path, size: int = TERABYTE) -> Path:
    """A file of a size that takes no disk: all zeros."""
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
def test_a_file_without_end_is_refused_at_once(tmp_path: Path, command: tuple[str, ...], name: str) -> None:
    """By every command that reads one, in one line that says how much is read; a device has no size to look at."""
    if command[0] == "import" and name == "/dev/zero" and max_export_bytes() > MAX_JSON_BYTES * 4:
        pytest.skip("it would read a tenth of this machine's memory")
    file = name if name.startswith("/") else hollow(tmp_path / name)
    run("--home", tmp_path / "home", "ring")
    answer = run("--home", tmp_path / "home", *(part.format(file=file) for part in command))
    assert answer.exit_code == 2
    assert "has more than" in answer.stderr
    assert answer.stderr.count("\n") == 1


def nested(deep: int, form: str) -> str:
    """A number in as many lists or objects."""
    return form * deep + "1" + {"[": "]"}.get(form, "}") * deep


@pytest.mark.parametrize("read", [parse_join_request, parse_ring_snapshot, parse_rehearsal])
@pytest.mark.parametrize("deep", [33, 200, *range(900, 1000, 5), 100_000])
def test_depth_is_refused_wherever_it_is(read: Callable[[str], object], deep: int) -> None:
    """Also just below Python's own limit, where reading it would work and showing it would not."""
    for inner in (nested(deep, "["), nested(deep, '{"a":')):
        for text in (inner, f'{{"tokens": {inner}}}', f'[{{"rack": {inner}}}]'):
            with pytest.raises(InputError, match="nested more than 32 deep"):
                read(text)


@pytest.mark.parametrize("command", ["bootstrap", "import", "rehearse"])
def test_a_deep_file_is_one_line(tmp_path: Path, command: str) -> None:
    """No stack of the parser, whatever reads it."""
    (tmp_path / "deep.json").write_text(nested(960, "["))
    answer = run("--home", tmp_path / "home", command, tmp_path / "deep.json")
    assert answer.exit_code == 2
    assert "nested more than 32 deep" in answer.stderr


def test_what_is_as_deep_as_may_be_is_read() -> None:
    """32 lists in each other."""
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
"""What texts begin with, what they have again and again, how often, and what they end with.

Each is made where it is written: all of them would be in every process of the tests, and in all that those fork.
"""


@pytest.mark.parametrize("kind", HOSTILE)
def test_the_most_that_fits_takes_bounded_memory(tmp_path: Path, kind: str) -> None:
    """Texts just below the limit, of what takes the most memory: a process that reads them stays below 2 GiB."""
    file = tmp_path / "hostile.json"
    before, again, times, after = HOSTILE[kind]
    file.write_text(before + again * times + after)
    program = (
        "import resource, sys\nfrom pathlib import Path\nfrom cdc_platform.errors import InputError\n"
        "from cdc_platform.importing.formats.json_inputs import read_join_request\n"
        "try:\n    read_join_request(Path(sys.argv[1]))\nexcept InputError as error:\n    print(str(error)[:80])\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(file)], capture_output=True, text=True, check=True, timeout=120
    )
    said, kibibytes = done.stdout.splitlines()
    assert said
    assert int(kibibytes) < 2 * 1024**2


def test_an_import_is_bounded_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that fit each and not together are refused; nothing is written; those that fit go in."""
    texts = [timestamps_csv({1_000 * (number * 1000 + each + 1): None for each in range(1000)}) for number in range(3)]
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
def test_rows_of_exports_take_no_more_than_is_reckoned(tmp_path: Path) -> None:
    """The kind with the shortest rows: what a process holds of them is less than `MEMORY_FACTOR` the file."""
    file = tmp_path / "streams.csv"
    size = 400_000
    with file.open("w", newline="") as opened:
        opened.write("time,range_end,streams\r\n")
        opened.writelines(f"{cql_time(Milliseconds(1000))},{number},{{0x{number:032x}}}\r\n" for number in range(size))
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
    held = int(done.stdout.splitlines()[-1])
    assert held < MEMORY_FACTOR * file.stat().st_size


def test_a_tenth_of_the_memory_is_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a machine that says how much it has; of others a guess."""
    assert max_export_bytes() == (get_memory_bytes() or 0) // MEMORY_FACTOR
    monkeypatch.setattr(strict_json, "get_memory_bytes", lambda: None)
    assert max_export_bytes() == 8 * 1024**3 // MEMORY_FACTOR


def test_line_ends_of_all_kinds_are_read(tmp_path: Path) -> None:
    """As they are in the file: none is changed, and what lies in quotes stays in one field."""
    file = tmp_path / "a.json"
    for text in ('{"a":\r\n1}', '{"a":\r1}'):
        file.write_text(text, newline="")
        assert json.loads(read_user_text(file)) == {"a": 1}
        assert read_user_text(file) == text
