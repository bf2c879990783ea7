"""The Spark session: embedded by default, on a Connect server with `SPARK_REMOTE`, or on any configured master."""

from __future__ import annotations

import atexit
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from cdc_platform.errors import EnvironmentProblem
from cdc_platform.processes import defer_interrupt, kill_process_tree
from cdc_platform.spark.executors import get_cluster_conf, get_worker_python, is_local_master, send_program_file
from cdc_platform.spark.jars import find_java, get_jars, get_spark_home
from cdc_platform.spark.worker_archive import ARCHIVE_PYTHON, SERVER_ARCHIVE_PYTHON
from cdc_platform.spark_server import (
    REMOTE_VARIABLE,
    SERVER_VARIABLE,
    TOKEN_VARIABLE,
    ServerFile,
    list_variables_to_unset,
)
from cdc_platform.storage import atomic

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    from cdc_platform.delta import TaskRunner


MASTER_VARIABLE = "CDC_PLATFORM_SPARK_MASTER"
MEMORY_VARIABLE = "CDC_PLATFORM_DRIVER_MEMORY"
LOG_VARIABLE = "CDC_PLATFORM_SPARK_LOG"
"""The path of a file for the JVM's output; unset, the output is in a temporary folder of the process."""
NO_PERF_DATA_OPTIONS = ("-XX:-UsePerfData",)
"""JVM options: without them a JVM that is killed leaves a file in the machine's temporary folder."""

# Limits of batches between the JVM and Python. A numpy call costs much the same for 2,048 short rows as for 32,768, so
# assigning streams to writes takes half the time in the larger batches. No byte limit is set by default: to enforce
# one, Spark sums up the batch for every row, a fifth of the JVM's work. `limit_batch_bytes` sets one for long rows.
MAX_BATCH_ROWS = 1 << 15
MAX_BATCH_BYTES = 1 << 23
_BYTES_SETTING = "spark.sql.execution.arrow.maxBytesPerBatch"
_NO_BOUND = str(2**31 - 1)
# Streams never pass through the JVM: a generation of 16 million needs no more JVM memory than one of a thousand.
_DEFAULT_DRIVER_MEMORY = "1536m"
_SESSION_LOCK = threading.Lock()
"""A process has one Spark context; without the lock two threads could create two."""
_SERVER_SECONDS = 180
"""How long (s) a part of `cdc-platform up` waits for the server that `up` starts."""
_POLL_SECONDS = 0.2
# The portable length limit of a Unix domain socket's path, less what Spark appends to the folder's path (a dot, a UUID
# and an ending).
LONGEST_SOCKET_FOLDER = 103 - 46


def get_spark_session(
    app_name: str = "cdc-platform", *, heavy: bool = False, extra_conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Return the Spark session of this process; create it on first use.

    With `SPARK_REMOTE` the session is on that Connect server; a part of `cdc-platform up` waits for the server that
    `up` starts. Otherwise the master is `$CDC_PLATFORM_SPARK_MASTER` or `local[*]`. `heavy` is for large volumes: it
    enables the full compiler, which adds some seconds to the start. `$CDC_PLATFORM_DRIVER_MEMORY` overrides the
    driver's memory.

    Raises:
        EnvironmentProblem: no Java, no JARs, or the JVM or the server does not answer.
    """
    if is_remote_session():
        return _connect_to_server(app_name, extra_conf or {})
    with _SESSION_LOCK:
        return _get_running_session() or _start_embedded(app_name, heavy, extra_conf or {})


def _get_running_session() -> SparkSession | None:
    """Return the embedded session of this process in any of its threads; None if there is none.

    `SparkSession.getActiveSession` is no substitute: a session is active for one thread of the JVM only. Each Python
    thread has its own JVM thread, and gets another one after it has lost its connection to the JVM.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context: Any = SparkContext
    return None if context._active_spark_context is None else SparkSession.builder.getOrCreate()


def get_task_runner() -> TaskRunner:
    """Return the runner of this process's tasks: the process itself for few rows, else its session."""
    # Imported late: `up` starts Spark, has no rows and runs for weeks; without Arrow it needs a third of the memory.
    from cdc_platform.delta import TaskRunner

    return TaskRunner(get_spark_session)


def get_master() -> str:
    """Return the master of a driver that starts here: `$CDC_PLATFORM_SPARK_MASTER`, or this machine."""
    return os.environ.get(MASTER_VARIABLE) or "local[*]"


def is_remote_session() -> bool:
    """Return True if this process has its sessions on a Connect server."""
    return bool(os.environ.get(SERVER_VARIABLE) or os.environ.get(REMOTE_VARIABLE))


def get_sql_conf() -> dict[str, str]:
    """Return the settings that any session may set for itself, Connect sessions included."""
    return {
        "spark.sql.session.timeZone": "UTC",
        # If enabled, Spark replaces ${env:NAME} and the like in every statement from its process's environment.
        "spark.sql.variable.substitute": "false",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(MAX_BATCH_ROWS),
        _BYTES_SETTING: _NO_BOUND,
        "spark.sql.parquet.compression.codec": "zstd",
        # Many Delta readers lack deletion vectors; Delta turns them on for tables that it creates.
        "spark.databricks.delta.properties.defaults.enableDeletionVectors": "false",
    }


@contextmanager
def limit_batch_bytes(session: SparkSession) -> Iterator[None]:
    """Limit batches between the JVM and Python to about `MAX_BATCH_BYTES` for queries run in the block."""
    before = session.conf.get(_BYTES_SETTING) or _NO_BOUND
    session.conf.set(_BYTES_SETTING, str(MAX_BATCH_BYTES))
    try:
        yield
    finally:
        session.conf.set(_BYTES_SETTING, before)


def get_delta_conf() -> dict[str, str]:
    """Return the settings that add Delta to Spark, with `get_sql_conf`, for embedded sessions and Connect servers."""
    return {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.catalogImplementation": "in-memory",
        **get_sql_conf(),
    }


def get_local_sql_conf() -> dict[str, str]:
    """Return the settings of sessions whose only executor is this machine; a cluster sets its own."""
    return {
        "spark.sql.shuffle.partitions": str(min(4, max(2, os.cpu_count() or 2))),
        "spark.databricks.delta.snapshotPartitions": "1",
    }


def get_driver_conf(master: str, folder: Path, sockets: Path | None = None, *, heavy: bool) -> dict[str, str]:
    """Return the settings of a driver by its master: its own executor, or a cluster's driver."""
    where = get_local_conf(folder, sockets) if is_local_master(master) else get_cluster_conf(master, folder)
    options = {"spark.driver.extraJavaOptions": get_java_options(folder, heavy=heavy)}
    memory = {"spark.driver.memory": os.environ.get(MEMORY_VARIABLE) or _DEFAULT_DRIVER_MEMORY}
    return get_delta_conf() | memory | options | where


def get_local_conf(folder: Path, sockets: Path | None = None) -> dict[str, str]:
    """Return the settings of a driver that is its own executor; it writes nothing outside `folder`.

    `sockets` is another, shorter name for `folder`, because the length of socket paths is limited.
    """
    sockets = folder if sockets is None else sockets
    return get_local_sql_conf() | {
        # Adaptive execution would run every stage as its own job, and one machine gives it nothing to adapt to.
        "spark.sql.adaptive.enabled": "false",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # Protect the ports between Spark's parts; on one machine Spark generates the secret itself.
        "spark.authenticate": "true",
        "spark.driver.memory": os.environ.get(MEMORY_VARIABLE) or _DEFAULT_DRIVER_MEMORY,
        "spark.driver.extraClassPath": os.pathsep.join(str(path) for path in get_jars()),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        "spark.sql.artifact.isolation.enabled": "false",
        # Connect the JVM and Python by a Unix socket: over TCP a task waits 40 ms for a delayed acknowledgement.
        # The socket serves any process that can open it, but only the owner can enter the folder.
        "spark.python.unix.domain.socket.enabled": str(len(str(sockets)) <= LONGEST_SOCKET_FOLDER).lower(),
        "spark.python.unix.domain.socket.dir": str(sockets),
        "spark.python.daemon.module": "cdc_platform.spark.worker_daemon",
    }


def get_java_options(folder: Path, *, heavy: bool) -> str:
    """Return the JVM options of a driver on this machine, quoted for Spark's launcher."""
    options = [
        f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}",
        f"-Djava.io.tmpdir={folder}",
        *NO_PERF_DATA_OPTIONS,
    ]
    if not heavy:
        # A short command ends before the second compiler and the parallel collector pay off.
        options += ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    return " ".join(f'"{option}"' for option in options)


def get_worker_environment(master: str, *, server: bool = False) -> dict[str, str]:
    """Return the variables of a JVM whose workers must use this pyspark and this interpreter.

    They override any Spark of the shell's environment. Workers on other machines use the interpreter that is sent
    there; `server` selects its path in the sessions of a Connect server.
    """
    python, sent = (
        os.environ.get("PYSPARK_PYTHON") or sys.executable,
        SERVER_ARCHIVE_PYTHON if server else ARCHIVE_PYTHON,
    )
    project = str(Path(__file__).parents[2])
    inherited = os.environ.get("PYTHONPATH", "")
    here = project if not inherited else os.pathsep.join([project, inherited])
    return {
        "SPARK_HOME": str(get_spark_home()),
        "PYSPARK_PYTHON": python if is_local_master(master) else get_worker_python() or sent,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": inherited if project in inherited.split(os.pathsep) else here,
    }


@cache
def get_work_folder() -> Path:
    """Return a temporary folder for Spark's files; the process removes it when it ends."""
    folder = atomic.make_draft_folder(Path(tempfile.gettempdir()), "cdc-platform", mode=0o700)
    owner = os.getpid()
    atexit.register(lambda: atomic.discard_draft(folder) if os.getpid() == owner else None)
    return folder


def _start_embedded(app_name: str, heavy: bool, extra_conf: Mapping[str, str]) -> SparkSession:
    from py4j.protocol import Py4JError
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    find_java()
    _silence_pyspark()
    folder = get_work_folder()
    master = get_master()
    settings = get_driver_conf(master, folder, heavy=heavy) | dict(extra_conf)
    os.environ.update(get_worker_environment(master))
    conf = SparkConf(loadDefaults=False).setMaster(master).setAppName(app_name).setAll(list(settings.items()))
    try:
        with _keep_interrupt_handler():
            SparkContext(conf=conf, gateway=_get_gateway(conf))
        session = SparkSession.builder.getOrCreate()
        if not is_local_master(master):
            send_program_file(session)
        return session
    except Py4JError as error:
        raise EnvironmentProblem(
            f"Spark did not start on {master} ({extract_jvm_reason(str(error))}); check {MASTER_VARIABLE} "
            f"and {MEMORY_VARIABLE}"
        ) from error


def _connect_to_server(app_name: str, extra_conf: Mapping[str, str]) -> SparkSession:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.client.retries import DefaultPolicy

    _silence_pyspark()
    remote = ""
    try:
        remote = _wait_for_server()
        builder = SparkSession.builder.remote(remote).appName(app_name)
        session = builder.config(map={**get_sql_conf(), **extra_conf}).getOrCreate()
        if is_local_master(session.conf.get("spark.master") or ""):
            for name, value in get_local_sql_conf().items():
                session.conf.set(name, extra_conf.get(name, value))
        else:
            send_program_file(session)
    except (OSError, ValueError, PySparkException) as error:
        where = remote or os.environ.get(REMOTE_VARIABLE) or "unknown, it was never started"
        if "UNAUTHENTICATED" in str(error):
            raise EnvironmentProblem(
                f"the Spark Connect server at SPARK_REMOTE={where} wants its token in {TOKEN_VARIABLE}; of one that "
                "cdc-platform up has started it is in <home>/up/spark.env"
            ) from error
        raise EnvironmentProblem(
            f"the Spark Connect server at SPARK_REMOTE={where} does not answer "
            f"({extract_jvm_reason(str(error))}); start it, "
            f"or unset {list_variables_to_unset()} for an embedded session"
        ) from error
    # By default a client retries a lost server for ten minutes, even while the client itself exits.
    cast("Any", session).client.set_retry_policies([DefaultPolicy(max_retries=8, max_backoff=5000)])
    return session


def _wait_for_server() -> str:
    """Return the address of a server that listens; wait for the server of an `up` while it starts or wakes.

    Raises:
        OSError: nothing listens there, or the `up` of that server has ended.
        ValueError: the address is malformed.
    """
    path = os.environ.get(SERVER_VARIABLE)
    file = ServerFile(Path(path)) if path else None
    deadline = time.monotonic() + (_SERVER_SECONDS if file else 0)
    while True:
        try:
            if file is not None:
                file.request()
                os.environ.update(file.read())
            remote = _use_localhost_name(os.environ[REMOTE_VARIABLE])
            assert_listening(remote)
        except OSError as error:
            # The server file of an `up` exists from before its parts start until it ends.
            if time.monotonic() > deadline or isinstance(error, FileNotFoundError):
                raise
            time.sleep(_POLL_SECONDS)
        else:
            return remote


def _use_localhost_name(remote: str) -> str:
    """Replace a loopback address by `localhost`: for others a client with a token waits for TLS."""
    if not os.environ.get(TOKEN_VARIABLE) or "use_ssl=true" in remote.lower():
        return remote
    return re.sub(r"^sc://(127\.0\.0\.1|\[::1\])(?=[:/]|$)", "sc://localhost", remote)


def assert_listening(remote: str) -> None:
    """Raise unless something listens at an address; a Connect client would find out after ten minutes.

    Raises:
        OSError: nothing listens there.
        ValueError: the address is malformed.
    """
    address = urlsplit(remote)
    if address.scheme != "sc" or not address.hostname:
        raise ValueError("an address is written sc://HOST:PORT")
    with socket.create_connection((address.hostname, address.port or 15002), timeout=10):
        pass


def _silence_pyspark() -> None:
    """Stop pyspark from printing each query error as JSON with its stack before it raises the error."""
    from pyspark.logger import PySparkLogger

    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)


_gateways: list[JavaGateway] = []
_jvm_processes: list[subprocess.Popen[bytes]] = []
"""The JVM process that this process has started, registered before the fork so that none is missed."""


def end_jvm() -> None:
    """Kill the JVM that this process has started and the JVM's children, as after Ctrl-C; do nothing without one.

    A JVM that is still starting would not notice that its parent has ended.
    """
    while _jvm_processes:
        process = _jvm_processes.pop()
        if getattr(process, "pid", None) is not None and process.returncode is None:
            kill_process_tree(process.pid)
            process.wait()


def _get_gateway(conf: SparkConf) -> JavaGateway:
    """Return the gateway to this process's JVM; pyspark reuses it for a second session after a stop."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    if not _gateways:
        log = Path(os.environ.get(LOG_VARIABLE) or get_work_folder() / "spark.log")
        try:
            # The JVM's output would break the single JSON document on standard output.
            with log.open("ab") as output, _track_jvm():
                _gateways.append(launch_gateway(conf, {"stdout": output, "stderr": subprocess.STDOUT}))
        except PySparkRuntimeError:
            reason = extract_jvm_reason(log.read_text(encoding="utf-8", errors="replace"))
            raise EnvironmentProblem(
                f"the JVM for Spark did not start ({reason}); check free memory, {MASTER_VARIABLE} and "
                f"{MEMORY_VARIABLE}, or run cdc-platform doctor"
            ) from None
    return _gateways[0]


@contextmanager
def _keep_interrupt_handler() -> Iterator[None]:
    """Stop pyspark from handling Ctrl-C in the block.

    Its handler asks the JVM to cancel jobs, perhaps in the middle of another request.
    """
    from pyspark.core import context

    module: Any = context
    before = module.signal
    module.signal = SimpleNamespace(SIGINT=signal.SIGINT, signal=lambda *_: None)
    try:
        yield
    finally:
        module.signal = before


@contextmanager
def _track_jvm() -> Iterator[None]:
    """Record the process that pyspark starts in the block, and end it if the block raises."""
    from pyspark import java_gateway

    class InSight(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            _jvm_processes.append(self)
            with defer_interrupt():  # between the fork and the assignment of its ID
                super().__init__(*arguments, **options)

    module: Any = java_gateway
    before = module.Popen
    module.Popen = InSight
    try:
        yield
    except BaseException:
        end_jvm()
        raise
    finally:
        module.Popen = before


def extract_jvm_reason(output: str) -> str:
    """Return the line of a JVM's output, or of a Py4J error, that states the reason of a failure."""
    lines = [line.strip(" :\t") for line in output.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(("at ", "WARNING", "Setting default log level"))]
    telling = [line for line in lines if re.search(r"(Exception|Error|error|Invalid)\b.*: ", line) or "Invalid" in line]
    return re.sub(r"^(Exception in thread \S+ )?[\w.]+(Exception|Error): ", "", (telling or lines or ["no output"])[0])[
        :300
    ]
