"""Translation of foreign errors: transient failures have a class of their own, apart from damage."""

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
def test_transient_failures_have_their_own_class(said: str, kind: type[Exception], foreign: type[Exception]) -> None:
    """The file system's words decide, since deltalake passes on nothing else; folder names with such words do not."""
    error = translate_error(foreign(said), "reading a.b")
    assert type(error) is kind
    assert str(error) == f"reading a.b: {said}"


def test_a_file_system_error_of_deltalake_is_a_store_failure() -> None:
    """deltalake raises an OSError without errno, with a coloured tree; other libraries' errors are not translated."""
    message = (
        "Kernel error -> Generic LocalFileSystem error\n  \x1b[31m↳\x1b[0m Unable to open file /x\n Not a directory"
    )
    error = translate_error(OSError(message), "opening a.b")
    assert type(error) is StoreFailure
    assert str(error).startswith("opening a.b: Kernel error -> Generic LocalFileSystem error Unable to open file /x")
    assert str(error).isprintable()
    assert translate_error(OSError("Corrupt snappy compressed data."), "opening a.b") is None


@pytest.mark.parametrize("kind", [InputError, StateError, Unavailable, NotLetIn, EnvironmentProblem])
def test_an_error_raised_in_a_task_retains_its_class(kind: type[PlatformError]) -> None:
    """The last line of a task's stack trace decides the class; a refused write becomes a StateError."""
    stack = "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n  File ...\n"
    earlier = "cdc_platform.errors.StoreFailure: another\n\nDuring handling of the above exception\n"
    error = translate_error(
        PythonException(f"{stack}{earlier}cdc_platform.errors.{kind.__name__}: s3://b is closed\n\n"), "it"
    )
    assert (type(error), str(error)) == (kind, "it: s3://b is closed")
    error = translate_error(PythonException(f"{stack}cdc_platform.errors.WriteRefused: too late\n"), "it")
    assert (type(error), str(error)) == (StateError, "it: too late")
    assert translate_error(PythonException(f"{stack}KeyError: 'x'\n"), "it") is None


def test_the_machines_errors_differ_from_damage(tmp_path: Path) -> None:
    """A refusal by Python's own file access is an environment problem; damage is a state error."""
    with pytest.raises(Unavailable, match="check its permissions and free space"), translate_errors("looking"):
        (tmp_path / "nowhere").read_bytes()
    assert issubclass(Unavailable, EnvironmentProblem)
    assert issubclass(StoreFailure, StateError)


def test_a_missing_data_file_is_a_store_failure(tmp_path: Path) -> None:
    """A read whose data file was removed raises a StoreFailure in one line; the next read may find the file again."""
    lake = Lake(tmp_path / "lake")
    row = {"key": "timestamps", "time": datetime(2026, 1, 1, tzinfo=UTC)}
    lake.merge(GENERATION_TIMESTAMPS, pa.Table.from_pylist([row]), update=False)
    Path(lake.data_files(GENERATION_TIMESTAMPS)[0].path).unlink()
    with pytest.raises(StoreFailure, match=r"reading system_distributed\.cdc_generation_timestamps"):
        lake.read(GENERATION_TIMESTAMPS)


def test_no_message_has_a_library_backtrace() -> None:
    """Remove backtrace frames with and without a file after any text; retain numbered lines that are no frames."""
    frames = "\n   0: <unknown>\n   1: <unknown>\n  12: start_thread\n             at ./nptl/pthread_create.c:442:8\n"
    text = f"Kernel error: Json error: Encountered non-UTF-8 data{frames}"
    for error in (
        DeltaError(text),
        Exception(f"External error: {text}"),
        DeltaError(f"{text}\nstack backtrace:{frames}"),
    ):
        translated = translate_error(error, "opening ks.t")
        assert translated is not None
        assert "non-UTF-8 data" in str(translated)
        assert not any(word in str(translated) for word in ("unknown", "start_thread", "nptl", "backtrace"))
    assert str(StateError(f"it failed{frames}")) == "it failed"
    assert str(StateError("steps:\n 1: one\n 2: two")) == "steps: 1: one 2: two"


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "file:///etc/passwd", "s3://b/x", "../x", "a/%2e%2e/%2e%2e/x", "", "a\0b"]
)
def test_a_path_outside_the_table_is_refused(path: str) -> None:
    """A path from Delta's log resolves to a file in the table's folder or raises ForeignPath."""
    with pytest.raises(ForeignPath):
        decode_path(path)


@pytest.mark.parametrize(("path", "plain"), [("part-0.parquet", "part-0.parquet"), ("t=1%3A2/..x", "t=1:2/..x")])
def test_a_path_in_the_table_is_decoded_once(path: str, plain: str) -> None:
    """Percent-encoded characters are decoded once; two dots in a file name are part of the name."""
    assert decode_path(path) == plain
