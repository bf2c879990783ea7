"""The process that forks Spark's Python workers: its loaded modules, and when it ends."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cdc_platform.spark.worker_daemon import IDLE_VARIABLE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.processes


def start_daemon(folder: Path, idle_seconds: float) -> tuple[subprocess.Popen[bytes], Path]:
    """Start the process as Spark does; return it and the socket at which it receives requests for workers."""
    environment = {
        **os.environ,
        IDLE_VARIABLE: str(idle_seconds),
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",
        "PYTHON_WORKER_FACTORY_SOCK_DIR": str(folder),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "cdc_platform.spark.worker_daemon", "pyspark.worker"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    length = int.from_bytes(process.stdout.read(4), "big")
    return process, Path(process.stdout.read(length).decode())


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="cdc-") as folder:
        yield Path(folder)


def test_daemon_ends_without_workers(folder: Path) -> None:
    """It ends by itself and removes its socket."""
    process, socket_path = start_daemon(folder, 0.4)
    assert socket_path.parent == folder
    process.wait(60)
    assert list(folder.iterdir()) == []


def test_daemon_stays_with_a_worker(folder: Path) -> None:
    """It ends after the worker has ended."""
    process, socket_path = start_daemon(folder, 0.4)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(socket_path))
        worker = int.from_bytes(connection.recv(4), "big")
        assert Path(f"/proc/{worker}").exists() or sys.platform != "linux"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2)
    process.wait(60)


def test_daemon_ends_with_spark(folder: Path) -> None:
    """Spark closes its standard input."""
    process, _ = start_daemon(folder, 600)
    assert process.stdin is not None
    process.stdin.close()
    process.wait(60)
    assert list(folder.iterdir()) == []


@pytest.mark.spark
def test_workers_start_with_modules_for_tasks(spark: SparkSession) -> None:
    """The daemon loads them once before the fork, so all workers share the objects."""

    def report(batches):  # noqa: ANN001 sent to a worker, where annotations are only weight
        import pyarrow as pa

        loaded = sorted(
            {"cdc_platform.delta.task_writer", "deltalake", "pandera.pandas", "pyarrow.parquet"} & set(sys.modules)
        )
        models = sys.modules.get("cdc_platform.checks.models")
        if models is not None and models.StreamModel.__schema__ is not None:
            loaded.append("the model of streams")
        for _ in batches:
            yield pa.record_batch([pa.array([loaded])], names=["loaded"])

    row = spark.range(0, 1, 1, 1).mapInArrow(report, "loaded array<string>").collect()[0]
    expected = [
        "cdc_platform.delta.task_writer",
        "deltalake",
        "pandera.pandas",
        "pyarrow.parquet",
        "the model of streams",
    ]
    assert row["loaded"] == expected
