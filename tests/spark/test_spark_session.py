"""The Spark session: its settings, no output, and no files left behind."""

from __future__ import annotations

import os
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.spark.core import core

from cdc_platform.delta import Lake
from cdc_platform.errors import EnvironmentProblem
from cdc_platform.spark import get_spark_session, limit_batch_bytes
from cdc_platform.spark.session import (
    MAX_BATCH_BYTES,
    _use_localhost_name,
    _wait_for_server,
    get_java_options,
    get_local_conf,
    get_work_folder,
)
from cdc_platform.spark_server import ServerFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_process_has_one_session(spark: SparkSession) -> None:
    """Every call returns the same session."""
    assert get_spark_session("another name", heavy=True) is spark


def test_every_thread_has_that_session(spark: SparkSession) -> None:
    """Spark's active session belongs to one JVM thread, and another Python thread has another there."""
    with ThreadPoolExecutor(4) as pool:
        sessions = list(pool.map(lambda _: get_spark_session(), range(8)))
    assert all(session is spark for session in sessions)


def test_session_survives_a_lost_connection_to_the_jvm(spark: SparkSession) -> None:
    """A thread that reconnects is another thread of the JVM."""
    gateway: Any = spark.sparkContext._gateway
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: get_spark_session().range(1).count()).result()
        pool.submit(lambda: gateway._gateway_client.get_thread_connection().close()).result()
        assert pool.submit(lambda: get_spark_session() is spark and get_spark_session().range(3).count()).result() == 3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.sql.session.timeZone", "UTC"),
        ("spark.sql.ansi.enabled", "true"),
        ("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension"),
        ("spark.databricks.delta.properties.defaults.enableDeletionVectors", "false"),
        ("spark.sql.catalogImplementation", "in-memory"),
    ],
)
def test_settings_that_results_depend_on(spark: SparkSession, name: str, value: str) -> None:
    """Times are UTC, arithmetic overflow is an error, and tables are Delta's."""
    assert spark.conf.get(name) == value


def test_core_runs_embedded(spark: SparkSession, lake: Lake) -> None:
    """The same function runs on a Connect server."""
    core(spark, lake)


def test_python_workers_are_this_python(spark: SparkSession) -> None:
    """Another Python would have no numpy, or another one."""

    def report(batches):  # noqa: ANN001 sent to a worker, where annotations are only weight
        import pyarrow as pa

        for _ in batches:
            yield pa.record_batch([pa.array([sys.executable])], names=["python"])

    assert spark.range(0, 1, 1, 1).mapInArrow(report, "python string").collect()[0]["python"] == sys.executable


def test_nothing_is_left_in_the_working_folder(spark: SparkSession) -> None:
    """Metastore, warehouse, artifacts and temporary files are in a folder that the process removes."""
    spark.range(3).createOrReplaceTempView("three")
    spark.sql("CREATE TABLE left_behind USING delta AS SELECT * FROM three")
    leftovers = {path.name for path in Path.cwd().iterdir()} & {
        "metastore_db",
        "spark-warehouse",
        "artifacts",
        "derby.log",
    }
    assert not leftovers
    assert (get_work_folder() / "warehouse" / "left_behind").is_dir()
    spark.sql("DROP TABLE left_behind")
    spark.catalog.dropTempView("three")


def test_jvm_does_not_print(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    """Standard output belongs to the one JSON document of a command."""
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        spark.sql("SELECT 1/0").collect()
    assert capfd.readouterr() == ("", "")


def test_memory_can_be_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable sets it; the default is enough for any generation."""
    assert get_local_conf(tmp_path)["spark.driver.memory"] == "1536m"
    monkeypatch.setenv("CDC_PLATFORM_DRIVER_MEMORY", "5g")
    assert get_local_conf(tmp_path)["spark.driver.memory"] == "5g"


def test_sockets_are_files_if_their_paths_fit(tmp_path: Path) -> None:
    """A Unix domain socket's path has at most 103 bytes; with a longer one JVM and Python use TCP."""
    setting = "spark.python.unix.domain.socket.enabled"
    assert get_local_conf(Path("/tmp/cdc-platform-12345678"))[setting] == "true"
    long = Path("/tmp") / ("a" * 60)
    assert get_local_conf(long)[setting] == "false"
    assert get_local_conf(long, Path("/proc/1/fd/2"))[setting] == "true"
    assert get_local_conf(tmp_path)["spark.python.unix.domain.socket.dir"] == str(tmp_path)


def test_jvm_and_python_use_a_socket_in_the_working_folder(spark: SparkSession) -> None:
    """Over TCP every task would wait for an acknowledgement."""
    assert spark.range(0, 1, 1, 1).mapInArrow(lambda batches: batches, "id bigint").count() == 1
    assert list(get_work_folder().glob("*.sock"))


def test_limited_batches_of_long_rows_are_small(spark: SparkSession) -> None:
    """Otherwise only the number of rows limits a batch."""
    from pyspark.sql import functions as F

    def rows_a_batch(batches):  # noqa: ANN001 sent to a worker, where annotations are only weight
        import pyarrow as pa

        for batch in batches:
            yield pa.record_batch([pa.array([batch.num_rows])], names=["rows"])

    long = spark.range(0, 300, 1, 1).select(F.repeat(F.lit("x"), 1 << 18).alias("text"))
    counted = long.mapInArrow(rows_a_batch, "rows bigint")
    assert [row["rows"] for row in counted.collect()] == [300]
    with limit_batch_bytes(spark):
        with limit_batch_bytes(spark):  # the inner limit ends with the inner block
            pass
        assert max(row["rows"] for row in counted.collect()) <= 2 * MAX_BATCH_BYTES >> 18
    assert [row["rows"] for row in counted.collect()] == [300]


def test_only_short_commands_omit_the_second_compiler(tmp_path: Path) -> None:
    """Large volumes need it more than a fast start."""
    assert "TieredStopAtLevel=1" in get_java_options(tmp_path, heavy=False)
    assert "TieredStopAtLevel" not in get_java_options(tmp_path, heavy=True)


@pytest.mark.parametrize(
    ("remote", "told"),
    [
        ("sc://127.0.0.1:1", r"SPARK_REMOTE=sc://127.0.0.1:1 does not answer .*refused"),
        ("127.0.0.1:15002", "written sc://HOST:PORT"),
        ("sc://127.0.0.1:99999", "does not answer"),
    ],
)
def test_missing_server_is_named_at_once(monkeypatch: pytest.MonkeyPatch, remote: str, told: str) -> None:
    """A Connect client by itself would retry for ten minutes."""
    monkeypatch.setenv("SPARK_REMOTE", remote)
    with pytest.raises(EnvironmentProblem, match=told):
        get_spark_session()


def test_server_with_a_token_is_addressed_as_localhost(monkeypatch: pytest.MonkeyPatch) -> None:
    """For any other name a client with a token requires TLS, and waits for it forever."""
    monkeypatch.delenv("SPARK_CONNECT_AUTHENTICATE_TOKEN", raising=False)
    assert _use_localhost_name("sc://127.0.0.1:15002") == "sc://127.0.0.1:15002"
    monkeypatch.setenv("SPARK_CONNECT_AUTHENTICATE_TOKEN", "secret")
    assert _use_localhost_name("sc://127.0.0.1:15002/;user_id=a") == "sc://localhost:15002/;user_id=a"
    assert _use_localhost_name("sc://[::1]:15002") == "sc://localhost:15002"
    for other in ("sc://127.0.0.1:15002/;use_ssl=true", "sc://spark.example.com:15002", "sc://127.0.0.1.example.com"):
        assert _use_localhost_name(other) == other


def test_restarting_server_is_awaited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file has the address once the server is up; the last address may be invalid."""
    file = tmp_path / "spark.env"
    ServerFile(file).withdraw()
    monkeypatch.setenv("CDC_PLATFORM_SPARK_SERVER", str(file))
    monkeypatch.setenv("SPARK_REMOTE", "sc://localhost:1")
    monkeypatch.setenv("SPARK_CONNECT_AUTHENTICATE_TOKEN", "of the last one")
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        remote = f"sc://localhost:{server.getsockname()[1]}"
        text = f"SPARK_REMOTE={remote}\nSPARK_CONNECT_AUTHENTICATE_TOKEN=of-this=one\n"
        timer = threading.Timer(0.5, lambda: file.write_text(text, encoding="utf-8"))
        timer.start()
        assert _wait_for_server() == remote
        timer.join()
    assert os.environ["SPARK_CONNECT_AUTHENTICATE_TOKEN"] == "of-this=one"


def test_ended_up_is_not_awaited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell with the variables of its server fails at once with the variables to unset."""
    monkeypatch.setenv("SPARK_REMOTE", "sc://localhost:1")
    for folder in (tmp_path, tmp_path / "gone"):
        monkeypatch.setenv("CDC_PLATFORM_SPARK_SERVER", str(folder / "spark.env"))
        with pytest.raises(
            EnvironmentProblem, match="unset SPARK_REMOTE and CDC_PLATFORM_SPARK_SERVER for an embedded"
        ):
            get_spark_session()


def test_parts_of_spark_authenticate_with_a_secret(spark: SparkSession) -> None:
    """An embedded session does so, too, because every user of the machine can reach its ports."""
    assert spark.conf.get("spark.authenticate") == "true"
