"""What the lake says of foreign errors: what may pass by itself has a class of its own, apart from what is damaged."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake.exceptions import DeltaError
from pyspark.errors import PythonException

from cdc_platform.delta import Lake, translate_errors
from cdc_platform.delta.errors import translate_error
from cdc_platform.delta.paths import ForeignPath, decode_path
from cdc_platform.errors import (
    EnvironmentProblem,
    InputError,
    NotLetIn,
    PlatformError,
    StateError,
    StoreFailure,
    Unavailable,
)
from cdc_platform.tables import GENERATION_TIMESTAMPS


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("Generic LocalFileSystem error: Unable to open file: Permission denied (os error 13)", Unavailable),
        ("error sending request: operation timed out", Unavailable),
        ("Connection reset by peer (os error 104)", Unavailable),
        ("Too many open files (os error 24)", Unavailable),
        ("Object at location /homes/timeout/a.parquet not found: No such file (os error 2)", StoreFailure),
        ("Parquet error: Invalid Parquet file. Corrupt footer", StoreFailure),
    ],
)
@pytest.mark.parametrize("foreign", [DeltaError, Exception])
def test_what_may_pass_is_told_from_damage(said: str, kind: type[Exception], foreign: type[Exception]) -> None:
    """By the words of the file system, which is all that deltalake hands on; folders with such names do not count."""
    told = translate_error(foreign(said), "reading a.b")
    assert type(told) is kind
    assert str(told) == f"reading a.b: {said}"


def test_an_error_of_deltalakes_file_systems_is_one_about_the_table() -> None:
    """It comes as an OSError without number, with a tree in colours; one of another library is no such error."""
    drawn = "Kernel error -> Generic LocalFileSystem error\n  \x1b[31m↳\x1b[0m Unable to open file /x\n Not a directory"
    told = translate_error(OSError(drawn), "opening a.b")
    assert type(told) is StoreFailure
    assert str(told).startswith("opening a.b: Kernel error -> Generic LocalFileSystem error Unable to open file /x")
    assert str(told).isprintable()
    assert translate_error(OSError("Corrupt snappy compressed data."), "opening a.b") is None


@pytest.mark.parametrize("kind", [InputError, StateError, Unavailable, NotLetIn, EnvironmentProblem])
def test_what_a_task_raised_keeps_its_class(kind: type[PlatformError]) -> None:
    """Of the text of a task's stack the last line says it, and of a refused write that it is the state's."""
    stack = "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n  File ...\n"
    before = "cdc_platform.errors.StoreFailure: another\n\nDuring handling of the above exception\n"
    told = translate_error(
        PythonException(f"{stack}{before}cdc_platform.errors.{kind.__name__}: s3://b is closed\n\n"), "it"
    )
    assert (type(told), str(told)) == (kind, "it: s3://b is closed")
    told = translate_error(PythonException(f"{stack}cdc_platform.errors.WriteRefused: too late\n"), "it")
    assert (type(told), str(told)) == (StateError, "it: too late")
    assert translate_error(PythonException(f"{stack}KeyError: 'x'\n"), "it") is None


def test_the_machine_is_not_the_data(tmp_path: Path) -> None:
    """What Python's own files are refused is the machine's; it is an environment's problem, and damage is a state's."""
    with pytest.raises(Unavailable, match="check its permissions and free space"), translate_errors("looking"):
        (tmp_path / "nowhere").read_bytes()
    assert issubclass(Unavailable, EnvironmentProblem)
    assert issubclass(StoreFailure, StateError)


def test_a_file_that_is_gone_is_a_failure_of_the_store(tmp_path: Path) -> None:
    """A read whose file somebody removed: one line of this class, the next read may find it again."""
    lake = Lake(tmp_path / "lake")
    row = {"key": "timestamps", "time": datetime(2026, 1, 1, tzinfo=UTC)}
    lake.merge(GENERATION_TIMESTAMPS, pa.Table.from_pylist([row]), update=False)
    Path(lake.data_files(GENERATION_TIMESTAMPS)[0].path).unlink()
    with pytest.raises(StoreFailure, match=r"reading system_distributed\.cdc_generation_timestamps"):
        lake.read(GENERATION_TIMESTAMPS)


def test_no_message_has_a_librarys_backtrace() -> None:
    """Frames with and without a file, behind any kind of text; numbered text that is no frame stays."""
    frames = "\n   0: <unknown>\n   1: <unknown>\n  12: start_thread\n             at ./nptl/pthread_create.c:442:8\n"
    said = f"Kernel error: Json error: Encountered non-UTF-8 data{frames}"
    for error in (
        DeltaError(said),
        Exception(f"External error: {said}"),
        DeltaError(f"{said}\nstack backtrace:{frames}"),
    ):
        told = translate_error(error, "opening ks.t")
        assert told is not None
        assert "non-UTF-8 data" in str(told)
        assert not any(word in str(told) for word in ("unknown", "start_thread", "nptl", "backtrace"))
    assert str(StateError(f"it failed{frames}")) == "it failed"
    assert str(StateError("steps:\n 1: one\n 2: two")) == "steps: 1: one 2: two"


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "file:///etc/passwd", "s3://b/x", "../x", "a/%2e%2e/%2e%2e/x", "", "a\0b"]
)
def test_a_path_that_leads_out_of_the_table_is_refused(path: str) -> None:
    """Whoever asks for a file that Delta's log names gets one in the table's folder, or none."""
    with pytest.raises(ForeignPath):
        decode_path(path)


@pytest.mark.parametrize(("path", "plain"), [("part-0.parquet", "part-0.parquet"), ("t=1%3A2/..x", "t=1:2/..x")])
def test_a_path_in_the_table_is_as_the_file_system_has_it(path: str, plain: str) -> None:
    """Quoted characters are resolved once; two dots in a name are a name."""
    assert decode_path(path) == plain
