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
"""A file to keep what the JVM prints; unset, it is in a temporary folder and goes with the process."""
NO_PERF_DATA_OPTIONS = ("-XX:-UsePerfData",)
"""JVM options: without them every JVM leaves a file in the machine's temporary folder when it is killed."""

# Between the JVM and Python. A call of numpy costs much the same for 2,048 short rows as for 32,768: giving writes
# their streams takes half the time in the larger batches. A bound of bytes is another matter: to keep it, Spark adds a
# batch up anew for every row, a fifth of all that the JVM does. Where rows may be long, `limit_batch_bytes` sets one.
MAX_BATCH_ROWS = 1 << 15
MAX_BATCH_BYTES = 1 << 23
_BYTES_SETTING = "spark.sql.execution.arrow.maxBytesPerBatch"
_NO_BOUND = str(2**31 - 1)
# Streams never pass through the JVM: a generation of 16 million takes no more of its memory than one of a thousand.
_DEFAULT_DRIVER_MEMORY = "1536m"
_SESSION_LOCK = threading.Lock()
"""A process has one context of Spark; two threads that ask for the first session would make two."""
_SERVER_SECONDS = 180
"""How long a part of `cdc-platform up` waits for the server that this one starts."""
_POLL_SECONDS = 0.2
# What a path of a Unix domain socket may have everywhere, less what Spark puts behind the folder's (a dot, a UUID and
# an ending).
LONGEST_SOCKET_FOLDER = 103 - 46


def get_spark_session(
    app_name: str = "cdc-platform", *, heavy: bool = False, extra_conf: Mapping[str, str] | None = None
) -> SparkSession:
    """The session of this process; made on first use.

    With `SPARK_REMOTE` set it is one on that Connect server; a part of `cdc-platform up` waits for the one that is
    started for it. Else the master is `$CDC_PLATFORM_SPARK_MASTER` or `local[*]`. `heavy` is for volume: the full
    compiler, for some seconds more at the start. `$CDC_PLATFORM_DRIVER_MEMORY` overrides the driver's memory.

    Raises:
        EnvironmentProblem: no Java, no JARs, or the JVM or the server does not answer.
    """
    if is_remote_session():
        return _connect_to_server(app_name, extra_conf or {})
    with _SESSION_LOCK:
        return _get_running_session() or _start_embedded(app_name, heavy, extra_conf or {})


def _get_running_session() -> SparkSession | None:
    """The embedded session that this process has, whichever of its threads asks.

    Not `SparkSession.getActiveSession`: what is active there is so for one thread of the JVM alone. Another thread of
    Python has another, and so has this one when its connection to the JVM was lost and made anew.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context: Any = SparkContext
    return None if context._active_spark_context is None else SparkSession.builder.getOrCreate()


def get_task_runner() -> TaskRunner:
    """Who works on this process's rows: itself while they are few, then its session."""
    # `up`, which has no rows, starts Spark and stays for weeks: it has a third of the memory without Arrow.
    from cdc_platform.delta import TaskRunner

    return TaskRunner(get_spark_session)


def get_master() -> str:
    """The master of a driver that is started here: the environment's, or this machine."""
    return os.environ.get(MASTER_VARIABLE) or "local[*]"


def is_remote_session() -> bool:
    """Whether sessions of this process are on a Connect server."""
    return bool(os.environ.get(SERVER_VARIABLE) or os.environ.get(REMOTE_VARIABLE))


def get_sql_conf() -> dict[str, str]:
    """Settings that any session may set for itself, a Connect session too."""
    return {
        "spark.sql.session.timeZone": "UTC",
        # Spark replaces ${env:NAME} and the like in every statement by what is in the environment of its process.
        "spark.sql.variable.substitute": "false",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(MAX_BATCH_ROWS),
        _BYTES_SETTING: _NO_BOUND,
        "spark.sql.parquet.compression.codec": "zstd",
        # Many Delta readers lack deletion vectors; Delta turns them on for tables that it creates.
        "spark.databricks.delta.properties.defaults.enableDeletionVectors": "false",
    }


@contextmanager
def limit_batch_bytes(session: SparkSession) -> Iterator[None]:
    """Let no batch between the JVM and Python grow much beyond `MAX_BATCH_BYTES` in what is run inside."""
    before = session.conf.get(_BYTES_SETTING) or _NO_BOUND
    session.conf.set(_BYTES_SETTING, str(MAX_BATCH_BYTES))
    try:
        yield
    finally:
        session.conf.set(_BYTES_SETTING, before)


def get_delta_conf() -> dict[str, str]:
    """What makes a Spark a Delta Spark, with `get_sql_conf`: for embedded sessions and the Connect server."""
    return {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.catalogImplementation": "in-memory",
        **get_sql_conf(),
    }


def get_local_sql_conf() -> dict[str, str]:
    """Settings of sessions whose only executor is one machine: a cluster has its own measure."""
    return {
        "spark.sql.shuffle.partitions": str(min(4, max(2, os.cpu_count() or 2))),
        "spark.databricks.delta.snapshotPartitions": "1",
    }


def get_driver_conf(master: str, folder: Path, sockets: Path | None = None, *, heavy: bool) -> dict[str, str]:
    """Settings of a driver by its master, one that is its own executor or one of a cluster's."""
    where = get_local_conf(folder, sockets) if is_local_master(master) else get_cluster_conf(master, folder)
    options = {"spark.driver.extraJavaOptions": get_java_options(folder, heavy=heavy)}
    memory = {"spark.driver.memory": os.environ.get(MEMORY_VARIABLE) or _DEFAULT_DRIVER_MEMORY}
    return get_delta_conf() | memory | options | where


def get_local_conf(folder: Path, sockets: Path | None = None) -> dict[str, str]:
    """Settings of a driver on this machine that is its own executor; nothing of it is written outside `folder`.

    `sockets` is another, shorter name for `folder`: paths of sockets have a bound.
    """
    sockets = folder if sockets is None else sockets
    return get_local_sql_conf() | {
        # Every stage would be a job of its own, and there is nothing to adapt to on one machine.
        "spark.sql.adaptive.enabled": "false",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # The ports that its parts meet at: on one machine Spark draws the secret itself, and tells nobody.
        "spark.authenticate": "true",
        "spark.driver.memory": os.environ.get(MEMORY_VARIABLE) or _DEFAULT_DRIVER_MEMORY,
        "spark.driver.extraClassPath": os.pathsep.join(str(path) for path in get_jars()),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        "spark.sql.artifact.isolation.enabled": "false",
        # Between the JVM and its Python: over TCP a task waits 40 ms for an acknowledgement that is held back.
        # Whoever can open a socket is served; the folder is its owner's alone.
        "spark.python.unix.domain.socket.enabled": str(len(str(sockets)) <= LONGEST_SOCKET_FOLDER).lower(),
        "spark.python.unix.domain.socket.dir": str(sockets),
        "spark.python.daemon.module": "cdc_platform.spark.worker_daemon",
    }


def get_java_options(folder: Path, *, heavy: bool) -> str:
    """JVM options of a driver on this machine, quoted as Spark's launcher reads them."""
    options = [
        f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}",
        f"-Djava.io.tmpdir={folder}",
        *NO_PERF_DATA_OPTIONS,
    ]
    if not heavy:
        # A short command ends before the second compiler and the parallel collector have paid for themselves.
        options += ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    return " ".join(f'"{option}"' for option in options)


def get_worker_environment(master: str, *, server: bool = False) -> dict[str, str]:
    """Variables of a JVM whose workers must be of this pyspark and this interpreter, whatever Spark the shell knows.

    On other machines the interpreter is the one that is sent there; `server`: for the sessions of a Connect server.
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
    """A temporary folder of this process for what Spark leaves around; gone when the process ends."""
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
    # By default a client hopes for ten minutes, at its own end too, that a server which has gone comes back.
    cast("Any", session).client.set_retry_policies([DefaultPolicy(max_retries=8, max_backoff=5000)])
    return session


def _wait_for_server() -> str:
    """The address of a server that listens. That of a `cdc-platform up` is waited for while it is started or wakes.

    Raises:
        OSError: nobody listens there, or the `up` whose server it was has ended.
        ValueError: it is no address.
    """
    path = os.environ.get(SERVER_VARIABLE)
    file = ServerFile(Path(path)) if path else None
    deadline = time.monotonic() + (_SERVER_SECONDS if file else 0)
    while True:
        try:
            if file is not None:
                file.want()
                os.environ.update(file.read())
            remote = _use_localhost_name(os.environ[REMOTE_VARIABLE])
            assert_listening(remote)
        except OSError as error:
            # The file of an `up` is there from before its parts start until it ends.
            if time.monotonic() > deadline or isinstance(error, FileNotFoundError):
                raise
            time.sleep(_POLL_SECONDS)
        else:
            return remote


def _use_localhost_name(remote: str) -> str:
    """The address by this machine's name: of any other a client that has a token wants TLS, and waits for it."""
    if not os.environ.get(TOKEN_VARIABLE) or "use_ssl=true" in remote.lower():
        return remote
    return re.sub(r"^sc://(127\.0\.0\.1|\[::1\])(?=[:/]|$)", "sc://localhost", remote)


def assert_listening(remote: str) -> None:
    """See whether anybody listens there at all, which a Connect client would find out after ten minutes."""
    place = urlsplit(remote)
    if place.scheme != "sc" or not place.hostname:
        raise ValueError("an address is written sc://HOST:PORT")
    with socket.create_connection((place.hostname, place.port or 15002), timeout=10):
        pass


def _silence_pyspark() -> None:
    """Keep pyspark from printing each error of a query as JSON with its stack, before it raises it."""
    from pyspark.logger import PySparkLogger

    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)


_gateways: list[JavaGateway] = []
_jvm_processes: list[subprocess.Popen[bytes]] = []
"""The process of the JVM that this one has started: from before it is forked on, so that none is lost sight of."""


def end_jvm() -> None:
    """Kill the JVM that this process has started, and what that has started, as after Ctrl-C; none is no error.

    One that is still starting would not notice that nobody is there any more.
    """
    while _jvm_processes:
        process = _jvm_processes.pop()
        if getattr(process, "pid", None) is not None and process.returncode is None:
            kill_process_tree(process.pid)
            process.wait()


def _get_gateway(conf: SparkConf) -> JavaGateway:
    """The JVM of this process. pyspark keeps one for good: a second session, after a stop, is in the first one's."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    if not _gateways:
        log = Path(os.environ.get(LOG_VARIABLE) or get_work_folder() / "spark.log")
        try:
            # What a JVM prints would break the one JSON document on our standard output.
            with log.open("ab") as output, _track_jvm():
                _gateways.append(launch_gateway(conf, {"stdout": output, "stderr": subprocess.STDOUT}))
        except PySparkRuntimeError:
            told = extract_jvm_reason(log.read_text(encoding="utf-8", errors="replace"))
            raise EnvironmentProblem(
                f"the JVM for Spark did not start ({told}); check free memory, {MASTER_VARIABLE} and "
                f"{MEMORY_VARIABLE}, or run cdc-platform doctor"
            ) from None
    return _gateways[0]


@contextmanager
def _keep_interrupt_handler() -> Iterator[None]:
    """Keep pyspark from handling Ctrl-C: it asks the JVM to cancel jobs, perhaps in the middle of another request."""
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
    """Keep hold of the process that pyspark starts in a block, and end it if the block does not come to its end."""
    from pyspark import java_gateway

    class InSight(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            _jvm_processes.append(self)
            with defer_interrupt():  # between the fork and the note of its ID
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
    """The line of a JVM's output, or of an error of Py4J, that says what went wrong."""
    lines = [line.strip(" :\t") for line in output.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(("at ", "WARNING", "Setting default log level"))]
    telling = [line for line in lines if re.search(r"(Exception|Error|error|Invalid)\b.*: ", line) or "Invalid" in line]
    return re.sub(
        r"^(Exception in thread \S+ )?[\w.]+(Exception|Error): ", "", (telling or lines or ["it said nothing"])[0]
    )[:300]
