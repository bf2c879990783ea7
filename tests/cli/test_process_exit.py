"""The end of a command's process: at once after its output, whatever threads of libraries still do."""

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
"""Starts to read files; when Arrow has the first, its threads open the next ones through Python."""
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
    """A folder of twenty files of one row."""
    folder = tmp_path_factory.mktemp("files")
    for number in range(20):
        pa.parquet.write_table(pa.table({"place": [number]}), folder / f"{number:02}.parquet")
    return folder


def _run_code(code: str, *arguments: object) -> tuple[int, str, str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return result.returncode, result.stdout, result.stderr


def test_threads_that_read_ahead_do_not_kill_a_command(files: Path) -> None:
    """Such threads kill a process that Python shuts down; a command exits with its own code and output."""
    assert any(_run_code(_READ_AHEAD, files)[0] < 0 for _ in range(5))  # 25 of 25 attempts
    assert _run_code(_READ_AHEAD + _LEAVES, files, "--version") == _run_code(_LEAVES, "--version")
    code, _, error = _run_code(_READ_AHEAD + _LEAVES, files, "nonsense")
    assert (code, error.count("\n"), error.startswith("error: no such command")) == (2, 1, True)


def test_exit_handlers_run_first() -> None:
    """Libraries clean up as usual, and their output is written."""
    assert _run_code(_SPEAKS_AT_EXIT) == (1, "goes\n", "")


def test_output_lost_at_exit_is_a_failure() -> None:
    """As in Python, the exit code is 120 unless the command itself failed."""
    for own_code, code in ((0, 120), (1, 1)):
        command = [sys.executable, "-c", _SPEAKS_AT_EXIT.replace("SystemExit(1)", f"SystemExit({own_code})")]
        with Path("/dev/full").open("w", encoding="utf-8") as full:
            result = subprocess.run(command, stdout=full, env=os.environ | {"PYTHONUNBUFFERED": ""}, check=False)
        assert result.returncode == code
