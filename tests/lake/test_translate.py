"""What the lake says of foreign errors: what may pass by itself has a class of its own, apart from what is damaged."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake.exceptions import DeltaError
from pyspark.errors import PythonException

from cdc_platform.errors import (
    EnvironmentProblem,
    InputError,
    NotLetIn,
    PlatformError,
    StateError,
    StoreFailure,
    Unavailable,
)
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import GENERATION_TIMESTAMPS
from cdc_platform.lake.translate import translate, translated


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
    told = translate(foreign(said), "reading a.b")
    assert type(told) is kind
    assert str(told) == f"reading a.b: {said}"


@pytest.mark.parametrize("kind", [InputError, StateError, Unavailable, NotLetIn, EnvironmentProblem])
def test_what_a_task_raised_keeps_its_class(kind: type[PlatformError]) -> None:
    """Of the text of a task's stack the last line says it, and of a refused write that it is the state's."""
    stack = "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n  File ...\n"
    before = "cdc_platform.errors.StoreFailure: another\n\nDuring handling of the above exception\n"
    told = translate(PythonException(f"{stack}{before}cdc_platform.errors.{kind.__name__}: s3://b is closed\n\n"), "it")
    assert (type(told), str(told)) == (kind, "it: s3://b is closed")
    told = translate(PythonException(f"{stack}cdc_platform.errors.WriteRefused: too late\n"), "it")
    assert (type(told), str(told)) == (StateError, "it: too late")
    assert translate(PythonException(f"{stack}KeyError: 'x'\n"), "it") is None


def test_the_machine_is_not_the_data(tmp_path: Path) -> None:
    """What Python's own files are refused is the machine's; it is an environment's problem, and damage is a state's."""
    with pytest.raises(Unavailable, match="check its permissions and free space"), translated("looking"):
        (tmp_path / "nowhere").read_bytes()
    assert issubclass(Unavailable, EnvironmentProblem)
    assert issubclass(StoreFailure, StateError)


def test_a_file_that_is_gone_is_a_failure_of_the_store(tmp_path: Path) -> None:
    """A read whose file somebody removed: one line of this class, the next read may find it again."""
    lake = Lake(tmp_path / "lake")
    row = {"key": "timestamps", "time": datetime(2026, 1, 1, tzinfo=UTC)}
    lake.merge(GENERATION_TIMESTAMPS, pa.Table.from_pylist([row]), update=False)
    Path(lake.files(GENERATION_TIMESTAMPS, [])[0]).unlink()
    with pytest.raises(StoreFailure, match=r"reading system_distributed\.cdc_generation_timestamps"):
        lake.read(GENERATION_TIMESTAMPS)
