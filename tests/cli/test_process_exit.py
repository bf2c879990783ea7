"""How a command's process ends: at once, when all is done and said, whatever threads of libraries still do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

_READ_AHEAD = """
import sys, time
import pyarrow.dataset
from fsspec.implementations.local import LocalFileSystem

class Slow(LocalFileSystem):
    def open(self, *arguments, **options):
        time.sleep(0.05)
        return super().open(*arguments, **options)

scanned = pyarrow.dataset.dataset(sys.argv.pop(1), filesystem=Slow(), format="parquet").scanner().to_reader()
scanned.read_next_batch()
"""
"""Begins to read files; threads of Arrow open the next ones by Python when it has the first."""
_LEAVES = "import sys\nsys.argv[0] = 'cdc-platform'\nfrom cdc_platform.__main__ import main\nmain()\n"
_SPEAKS_AT_EXIT = """
import atexit
import cdc_platform.__main__ as door
from cdc_platform.cli.main import program

def command(**_):
    atexit.register(print, "goes")
    raise SystemExit(1)

program.main = command
door.main()
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of twenty files of a row."""
    folder = tmp_path_factory.mktemp("files")
    for place in range(20):
        pa.parquet.write_table(pa.table({"place": [place]}), folder / f"{place:02}.parquet")
    return folder


def _ended(code: str, *arguments: object) -> tuple[int, str, str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_threads_that_read_ahead_do_not_kill_a_command(files: Path) -> None:
    """They do kill a process that Python takes apart; a command leaves with its own code, and says what it says."""
    assert any(_ended(_READ_AHEAD, files)[0] < 0 for _ in range(5))  # 25 of 25 times where it was tried
    assert _ended(_READ_AHEAD + _LEAVES, files, "--version") == _ended(_LEAVES, "--version")
    code, _, said = _ended(_READ_AHEAD + _LEAVES, files, "nonsense")
    assert (code, said.count("\n"), said.startswith("error: no such command")) == (2, 1, True)


def test_what_is_due_at_exit_is_done_first() -> None:
    """Libraries clean up as ever; what they say is written."""
    assert _ended(_SPEAKS_AT_EXIT) == (1, "goes\n", "")


def test_last_words_that_cannot_be_written_are_a_failure() -> None:
    """As Python has it, if the command itself has not failed."""
    for own, code in ((0, 120), (1, 1)):
        command = [sys.executable, "-c", _SPEAKS_AT_EXIT.replace("SystemExit(1)", f"SystemExit({own})")]
        with Path("/dev/full").open("w", encoding="utf-8") as full:
            done = subprocess.run(command, stdout=full, env=os.environ | {"PYTHONUNBUFFERED": ""}, check=False)
        assert done.returncode == code
