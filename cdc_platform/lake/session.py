"""The Spark session: embedded by default, a Connect server with `SPARK_REMOTE`, any master by configuration.

What is set here is Spark's and Delta's; which rows are read and written is up to `frames` and lifecycle.
"""

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

from cdc_platform import drafts
from cdc_platform.errors import EnvironmentProblem
from cdc_platform.lake.executors import cluster_conf, is_local, send_program, workers_own_python
from cdc_platform.lake.jars import jars, spark_home
from cdc_platform.lake.java import find_java, java_version
from cdc_platform.lake.server_file import REMOTE_VARIABLE, SERVER_VARIABLE, TOKEN_VARIABLE, ServerFile, what_to_unset
from cdc_platform.lake.worker_archive import PYTHON, PYTHON_OF_SERVER
from cdc_platform.supervisor import interrupted_later, kill_with_children

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    from cdc_platform.lake.volume import Workers

__all__ = [
    "bounded_batches",
    "delta_conf",
    "java_options",
    "java_version",
    "spark_session",
    "sql_conf",
    "work_folder",
    "workers",
]

MASTER_VARIABLE = "CDC_PLATFORM_SPARK_MASTER"
MEMORY_VARIABLE = "CDC_PLATFORM_DRIVER_MEMORY"
LOG_VARIABLE = "CDC_PLATFORM_SPARK_LOG"
"""A file to keep what the JVM prints; unset, it is in a temporary folder and goes with the process."""
NO_TRACES = ("-XX:-UsePerfData",)
"""JVM options: without them every JVM leaves a file in the machine's temporary folder when it is killed."""

# Between the JVM and Python. A call of numpy costs much the same for 2,048 short rows as for 32,768: giving writes
# their streams takes half the time in the larger batches. A bound of bytes is another matter: to keep it, Spark adds a
# batch up anew for every row, a fifth of all that the JVM does. Where rows may be long, `bounded_batches` sets one.
ROWS_PER_BATCH = 1 << 15
BYTES_PER_BATCH = 1 << 23
_BYTES_SETTING = "spark.sql.execution.arrow.maxBytesPerBatch"
_NO_BOUND = str(2**31 - 1)
# Streams never pass through the JVM: a generation of 16 million takes no more of its memory than one of a thousand.
MEMORY = "1536m"
_MAKING = threading.Lock()
"""A process has one context of Spark; two threads that ask for the first session would make two."""
SERVER_SECONDS = 180
"""How long a part of `cdc-platform up` waits for the server that this one starts."""
_LOOK_SECONDS = 0.2
# What a path of a Unix domain socket may have everywhere, less what Spark puts behind the folder's (a dot, a UUID and
# an ending).
LONGEST_SOCKET_FOLDER = 103 - 46


def spark_session(
    app_name: str = "cdc-platform", *, heavy: bool = False, extra_conf: Mapping[str, str] | None = None
) -> SparkSession:
    """The session of this process; made on first use.

    With `SPARK_REMOTE` set it is one on that Connect server; a part of `cdc-platform up` waits for the one that is
    started for it. Else the master is `$CDC_PLATFORM_SPARK_MASTER` or `local[*]`. `heavy` is for volume: the full
    compiler, for some seconds more at the start. `$CDC_PLATFORM_DRIVER_MEMORY` overrides the driver's memory.

    Raises:
        EnvironmentProblem: no Java, no JARs, or the JVM or the server does not answer.
    """
    if is_remote():
        return _connect(app_name, extra_conf or {})
    with _MAKING:
        return _running() or _embedded(app_name, heavy, extra_conf or {})


def _running() -> SparkSession | None:
    """The embedded session that this process has, whichever of its threads asks.

    Not `SparkSession.getActiveSession`: what is active there is so for one thread of the JVM alone. Another thread of
    Python has another, and so has this one when its connection to the JVM was lost and made anew.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context: Any = SparkContext
    return None if context._active_spark_context is None else SparkSession.builder.getOrCreate()


def workers() -> Workers:
    """Who works on this process's rows: itself while they are few, then its session."""
    # `up`, which has no rows, starts Spark and stays for weeks: it has a third of the memory without Arrow.
    from cdc_platform.lake.volume import Workers

    return Workers(spark_session)


def chosen_master() -> str:
    """The master of a driver that is started here: the environment's, or this machine."""
    return os.environ.get(MASTER_VARIABLE) or "local[*]"


def is_remote() -> bool:
    """Whether sessions of this process are on a Connect server."""
    return bool(os.environ.get(SERVER_VARIABLE) or os.environ.get(REMOTE_VARIABLE))


def sql_conf() -> dict[str, str]:
    """Settings that any session may set for itself, a Connect session too."""
    return {
        "spark.sql.session.timeZone": "UTC",
        # Spark replaces ${env:NAME} and the like in every statement by what is in the environment of its process.
        "spark.sql.variable.substitute": "false",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(ROWS_PER_BATCH),
        _BYTES_SETTING: _NO_BOUND,
        "spark.sql.parquet.compression.codec": "zstd",
        # Many Delta readers lack deletion vectors; Delta turns them on for tables that it creates.
        "spark.databricks.delta.properties.defaults.enableDeletionVectors": "false",
    }


@contextmanager
def bounded_batches(session: SparkSession) -> Iterator[None]:
    """Let no batch between the JVM and Python grow much beyond `BYTES_PER_BATCH` in what is run inside."""
    before = session.conf.get(_BYTES_SETTING) or _NO_BOUND
    session.conf.set(_BYTES_SETTING, str(BYTES_PER_BATCH))
    try:
        yield
    finally:
        session.conf.set(_BYTES_SETTING, before)


def delta_conf() -> dict[str, str]:
    """What makes a Spark a Delta Spark, with `sql_conf`: for embedded sessions and the Connect server."""
    return {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.catalogImplementation": "in-memory",
        **sql_conf(),
    }


def machine_sql_conf() -> dict[str, str]:
    """Settings of sessions whose only executor is one machine: a cluster has its own measure."""
    return {
        "spark.sql.shuffle.partitions": str(min(4, max(2, os.cpu_count() or 2))),
        "spark.databricks.delta.snapshotPartitions": "1",
    }


def driver_conf(master: str, folder: Path, sockets: Path | None = None, *, heavy: bool) -> dict[str, str]:
    """Settings of a driver by its master, one that is its own executor or one of a cluster's."""
    where = local_conf(folder, sockets) if is_local(master) else cluster_conf(master, folder)
    options = {"spark.driver.extraJavaOptions": java_options(folder, heavy=heavy)}
    memory = {"spark.driver.memory": os.environ.get(MEMORY_VARIABLE) or MEMORY}
    return delta_conf() | memory | options | where


def local_conf(folder: Path, sockets: Path | None = None) -> dict[str, str]:
    """Settings of a driver on this machine that is its own executor; nothing of it is written outside `folder`.

    `sockets` is another, shorter name for `folder`: paths of sockets have a bound.
    """
    sockets = folder if sockets is None else sockets
    return machine_sql_conf() | {
        # Every stage would be a job of its own, and there is nothing to adapt to on one machine.
        "spark.sql.adaptive.enabled": "false",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # The ports that its parts meet at: on one machine Spark draws the secret itself, and tells nobody.
        "spark.authenticate": "true",
        "spark.driver.memory": os.environ.get(MEMORY_VARIABLE) or MEMORY,
        "spark.driver.extraClassPath": os.pathsep.join(str(path) for path in jars()),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        "spark.sql.artifact.isolation.enabled": "false",
        # Between the JVM and its Python: over TCP a task waits 40 ms for an acknowledgement that is held back.
        # Whoever can open a socket is served; the folder is its owner's alone.
        "spark.python.unix.domain.socket.enabled": str(len(str(sockets)) <= LONGEST_SOCKET_FOLDER).lower(),
        "spark.python.unix.domain.socket.dir": str(sockets),
        "spark.python.daemon.module": "cdc_platform.lake.worker_daemon",
    }


def java_options(folder: Path, *, heavy: bool) -> str:
    """JVM options of a driver on this machine, quoted as Spark's launcher reads them."""
    options = [
        f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}",
        f"-Djava.io.tmpdir={folder}",
        *NO_TRACES,
    ]
    if not heavy:
        # A short command ends before the second compiler and the parallel collector have paid for themselves.
        options += ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    return " ".join(f'"{option}"' for option in options)


def worker_environment(master: str, *, server: bool = False) -> dict[str, str]:
    """Variables of a JVM whose workers must be of this pyspark and this interpreter, whatever Spark the shell knows.

    On other machines the interpreter is the one that is sent there; `server`: for the sessions of a Connect server.
    """
    python, sent = os.environ.get("PYSPARK_PYTHON") or sys.executable, PYTHON_OF_SERVER if server else PYTHON
    project = str(Path(__file__).parents[2])
    inherited = os.environ.get("PYTHONPATH", "")
    here = project if not inherited else os.pathsep.join([project, inherited])
    return {
        "SPARK_HOME": str(spark_home()),
        "PYSPARK_PYTHON": python if is_local(master) else workers_own_python() or sent,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": inherited if project in inherited.split(os.pathsep) else here,
    }


@cache
def work_folder() -> Path:
    """A temporary folder of this process for what Spark leaves around; gone when the process ends."""
    folder = drafts.make_folder(Path(tempfile.gettempdir()), "cdc-platform", mode=0o700)
    owner = os.getpid()
    atexit.register(lambda: drafts.discard(folder) if os.getpid() == owner else None)
    return folder


def _embedded(app_name: str, heavy: bool, extra_conf: Mapping[str, str]) -> SparkSession:
    from py4j.protocol import Py4JError
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    find_java()
    _quiet_python()
    folder = work_folder()
    master = chosen_master()
    settings = driver_conf(master, folder, heavy=heavy) | dict(extra_conf)
    os.environ.update(worker_environment(master))
    conf = SparkConf(loadDefaults=False).setMaster(master).setAppName(app_name).setAll(list(settings.items()))
    try:
        with _own_interrupts():
            SparkContext(conf=conf, gateway=_gateway(conf))
        session = SparkSession.builder.getOrCreate()
        if not is_local(master):
            send_program(session)
        return session
    except Py4JError as error:
        raise EnvironmentProblem(
            f"Spark did not start on {master} ({reason(str(error))}); check {MASTER_VARIABLE} and {MEMORY_VARIABLE}"
        ) from error


def _connect(app_name: str, extra_conf: Mapping[str, str]) -> SparkSession:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.client.retries import DefaultPolicy

    _quiet_python()
    remote = ""
    try:
        remote = _found()
        builder = SparkSession.builder.remote(remote).appName(app_name)
        session = builder.config(map={**sql_conf(), **extra_conf}).getOrCreate()
        if is_local(session.conf.get("spark.master") or ""):
            for name, value in machine_sql_conf().items():
                session.conf.set(name, extra_conf.get(name, value))
        else:
            send_program(session)
    except (OSError, ValueError, PySparkException) as error:
        where = remote or os.environ.get(REMOTE_VARIABLE) or "unknown, it was never started"
        if "UNAUTHENTICATED" in str(error):
            raise EnvironmentProblem(
                f"the Spark Connect server at SPARK_REMOTE={where} wants its token in {TOKEN_VARIABLE}; of one that "
                "cdc-platform up has started it is in <home>/up/spark.env"
            ) from error
        raise EnvironmentProblem(
            f"the Spark Connect server at SPARK_REMOTE={where} does not answer ({reason(str(error))}); start it, "
            f"or unset {what_to_unset()} for an embedded session"
        ) from error
    # By default a client hopes for ten minutes, at its own end too, that a server which has gone comes back.
    cast("Any", session).client.set_retry_policies([DefaultPolicy(max_retries=8, max_backoff=5000)])
    return session


def _found() -> str:
    """The address of a server that listens. That of a `cdc-platform up` is waited for while it is started or wakes.

    Raises:
        OSError: nobody listens there, or the `up` whose server it was has ended.
        ValueError: it is no address.
    """
    path = os.environ.get(SERVER_VARIABLE)
    file = ServerFile(Path(path)) if path else None
    deadline = time.monotonic() + (SERVER_SECONDS if file else 0)
    while True:
        try:
            if file is not None:
                file.want()
                os.environ.update(file.read())
            remote = _by_name(os.environ[REMOTE_VARIABLE])
            reach(remote)
        except OSError as error:
            # The file of an `up` is there from before its parts start until it ends.
            if time.monotonic() > deadline or isinstance(error, FileNotFoundError):
                raise
            time.sleep(_LOOK_SECONDS)
        else:
            return remote


def _by_name(remote: str) -> str:
    """The address by this machine's name: of any other a client that has a token wants TLS, and waits for it."""
    if not os.environ.get(TOKEN_VARIABLE) or "use_ssl=true" in remote.lower():
        return remote
    return re.sub(r"^sc://(127\.0\.0\.1|\[::1\])(?=[:/]|$)", "sc://localhost", remote)


def reach(remote: str) -> None:
    """See whether anybody listens there at all, which a Connect client would find out after ten minutes."""
    place = urlsplit(remote)
    if place.scheme != "sc" or not place.hostname:
        raise ValueError("an address is written sc://HOST:PORT")
    with socket.create_connection((place.hostname, place.port or 15002), timeout=10):
        pass


def _quiet_python() -> None:
    """Keep pyspark from printing each error of a query as JSON with its stack, before it raises it."""
    from pyspark.logger import PySparkLogger

    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)


_launched: list[JavaGateway] = []
_jvm: list[subprocess.Popen[bytes]] = []
"""The process of the JVM that this one has started: from before it is forked on, so that none is lost sight of."""


def end_jvm() -> None:
    """Kill the JVM that this process has started, and what that has started, as after Ctrl-C; none is no error.

    One that is still starting would not notice that nobody is there any more.
    """
    while _jvm:
        process = _jvm.pop()
        if getattr(process, "pid", None) is not None and process.returncode is None:
            kill_with_children(process.pid)
            process.wait()


def _gateway(conf: SparkConf) -> JavaGateway:
    """The JVM of this process. pyspark keeps one for good: a second session, after a stop, is in the first one's."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    if not _launched:
        log = Path(os.environ.get(LOG_VARIABLE) or work_folder() / "spark.log")
        try:
            # What a JVM prints would break the one JSON document on our standard output.
            with log.open("ab") as output, _jvm_in_sight():
                _launched.append(launch_gateway(conf, {"stdout": output, "stderr": subprocess.STDOUT}))
        except PySparkRuntimeError:
            told = reason(log.read_text(encoding="utf-8", errors="replace"))
            raise EnvironmentProblem(
                f"the JVM for Spark did not start ({told}); check free memory, {MASTER_VARIABLE} and "
                f"{MEMORY_VARIABLE}, or run cdc-platform doctor"
            ) from None
    return _launched[0]


@contextmanager
def _own_interrupts() -> Iterator[None]:
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
def _jvm_in_sight() -> Iterator[None]:
    """Keep hold of the process that pyspark starts in a block, and end it if the block does not come to its end."""
    from pyspark import java_gateway

    class InSight(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            _jvm.append(self)
            with interrupted_later():  # between the fork and the note of its ID
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


def reason(output: str) -> str:
    """The line of a JVM's output, or of an error of Py4J, that says what went wrong."""
    lines = [line.strip(" :\t") for line in output.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(("at ", "WARNING", "Setting default log level"))]
    telling = [line for line in lines if re.search(r"(Exception|Error|error|Invalid)\b.*: ", line) or "Invalid" in line]
    return re.sub(
        r"^(Exception in thread \S+ )?[\w.]+(Exception|Error): ", "", (telling or lines or ["it said nothing"])[0]
    )[:300]
