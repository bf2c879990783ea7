"""Start, await and stop a Spark Connect server on this machine's loopback.

Clients need its token. The token is in the environment of server and clients and never on a command line, because
every user of the machine can read command lines.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from cdc_platform.errors import EnvironmentProblem, StateError
from cdc_platform.json_logs import await_service_log, open_service_log, to_text_line
from cdc_platform.processes import get_death_signal_setter
from cdc_platform.spark.executors import SPARK_CONF_VARIABLE, is_local_master, read_conf_file
from cdc_platform.spark.jars import get_spark_home
from cdc_platform.spark.session import (
    LOG_VARIABLE,
    LONGEST_SOCKET_FOLDER,
    MEMORY_VARIABLE,
    NO_PERF_DATA_OPTIONS,
    extract_jvm_reason,
    get_driver_conf,
    get_master,
    get_worker_environment,
)
from cdc_platform.spark_server import REMOTE_VARIABLE, TOKEN_VARIABLE

_CONNECT_HOST = "127.0.0.1"
# A client with a token requires TLS unless the server has exactly this name.
_CONNECT_HOST_NAME = "localhost"
_CONNECTIONS, _ESTABLISHED = ("/proc/net/tcp", "/proc/net/tcp6"), "01"
_START_SECONDS = 180
_STOP_SECONDS = 20
_POLL_SECONDS = 0.1


class ConnectServer:
    """A Connect server in its own process session; `with ConnectServer() as server:` starts and ends it.

    `port` 0 selects any free port. `heavy` is the option of `session.get_spark_session`, right for a long-lived
    server. The server writes its files into its own folder below `below`, by default the machine's temporary folder.
    It inherits the file descriptors `keeps_open`. On Linux the server ends with the thread that started it, however
    that thread ends.
    """

    def __init__(
        self, port: int = 0, *, heavy: bool = True, below: Path | None = None, inherited_fds: Sequence[int] = ()
    ) -> None:
        self._master = get_master()
        self._wanted = port
        self._port = port
        self._heavy = heavy
        self._below = below
        self._inherited_fds = tuple(inherited_fds)
        self._token = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None
        self._opened: int | None = None

    @property
    def remote(self) -> str:
        """The URL for `SPARK_REMOTE`; clients also need the token."""
        return f"sc://{_CONNECT_HOST_NAME}:{self._port}"

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables of a client: the URL, and the token of this start of the server."""
        return {REMOTE_VARIABLE: self.remote, TOKEN_VARIABLE: self._token}

    @property
    def pid(self) -> int | None:
        """The ID of the server's process and of its process session; None while it does not run."""
        running = self._process is not None and self._process.poll() is None
        return self._process.pid if running and self._process is not None else None

    @property
    def clients(self) -> int | None:
        """The number of open connections to the server; None if the system does not report them."""
        tables = [table for table in map(Path, _CONNECTIONS) if table.exists()]
        if not tables:
            return None
        ours = f":{self._port:04X}"
        lines = [line.split() for table in tables for line in table.read_text(encoding="ascii").splitlines()[1:]]
        return sum(fields[1].endswith(ours) and fields[3] == _ESTABLISHED for fields in lines)

    def start(self) -> ConnectServer:
        """Start the server and wait until it answers a query; a server that has ended by itself can be started again.

        Raises:
            EnvironmentProblem: the server does not start: no Java, the port is taken, too little memory.
        """
        if self.pid is not None:
            raise StateError(f"the Spark Connect server at {self.remote} runs already")
        self.stop()
        if self._wanted == 0:
            self._port = self._port if self._port and _is_port_free(self._port) else _find_free_port()
        elif not _is_port_free(self._port):
            raise EnvironmentProblem(f"port {self._port} of {_CONNECT_HOST} is taken; name another, or 0 for any")
        # Each start has a new token: a client may have sent the old one to another process on a dead server's port.
        self._token = secrets.token_urlsafe(32)
        self._folder = Path(tempfile.mkdtemp(prefix="cdc-platform-connect-", dir=self._below))
        try:
            self._launch(self._folder)
            self._wait()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End the server and every process that it started; do nothing if it does not run."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            _end_session(process.pid)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        if self._opened is not None:
            os.close(self._opened)
            self._opened = None

    def __enter__(self) -> ConnectServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _launch(self, folder: Path) -> None:
        settings = {
            **get_driver_conf(self._master, folder, self._sockets(folder), heavy=self._heavy),
            "spark.master": self._master,
            "spark.app.name": "cdc-platform connect",
            "spark.connect.grpc.binding.address": _CONNECT_HOST,
            "spark.connect.grpc.binding.port": str(self._port),
        }
        command = [str(get_spark_home() / "bin" / "spark-submit")]
        command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
        # The user's settings file overrides the rest and may hold secrets, so the command line has only its name.
        given = {} if is_local_master(self._master) else read_conf_file()
        if given:
            command += ["--properties-file", os.environ[SPARK_CONF_VARIABLE]]
        for name, value in settings.items():
            command += [] if name in given else ["--conf", f"{name}={value}"]
        environment = {
            **os.environ,
            **get_worker_environment(self._master, server=True),
            TOKEN_VARIABLE: self._token,
            "TMPDIR": str(folder),
        }
        environment["SPARK_LAUNCHER_OPTS"] = " ".join(NO_PERF_DATA_OPTIONS)
        # With these variables Spark would take the server for a client.
        for name in (REMOTE_VARIABLE, "SPARK_CONNECT_MODE_ENABLED", "SPARK_API_MODE"):
            environment.pop(name, None)
        with open_service_log(self._log(folder), "the Spark Connect server", append=True) as log:
            self._process = subprocess.Popen(
                [*command, "spark-internal"],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=self._inherited_fds,
                preexec_fn=get_death_signal_setter(),
            )

    def _sockets(self, folder: Path) -> Path:
        """Return the folder under a name that is short enough for socket paths, if the system offers one."""
        if len(str(folder)) <= LONGEST_SOCKET_FOLDER or not Path("/proc/self/fd").exists():
            return folder
        self._opened = os.open(folder, os.O_RDONLY)
        return Path(f"/proc/{os.getpid()}/fd/{self._opened}")

    def _wait(self) -> None:
        """Wait until the server answers a probe process, which imports the client while the server starts."""
        command = [sys.executable, "-m", "cdc_platform.spark.connect_probe"]
        environment = {**os.environ, **get_worker_environment(self._master), **self.environment}
        deadline = time.monotonic() + _START_SECONDS
        with subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as probe:
            try:
                while probe.poll() is None:
                    if self.pid is None or time.monotonic() > deadline:
                        raise self._start_error()
                    time.sleep(_POLL_SECONDS)
            finally:
                probe.kill()
        if probe.returncode:
            raise self._start_error()

    def _start_error(self) -> EnvironmentProblem:
        assert self._folder is not None
        log = self._log(self._folder)
        await_service_log(log)
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        reason = extract_jvm_reason("\n".join(map(to_text_line, lines)))
        return EnvironmentProblem(
            f"the Spark Connect server at {self.remote} did not start ({reason}); check free memory and "
            f"{MEMORY_VARIABLE}, or run cdc-platform doctor"
        )

    @staticmethod
    def _log(folder: Path) -> Path:
        return Path(os.environ.get(LOG_VARIABLE) or folder / "connect.log")


def _find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_CONNECT_HOST, 0))
        return int(probe.getsockname()[1])


def _is_port_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((_CONNECT_HOST, port)) != 0


def _end_session(session: int) -> None:
    """Wait for the Python workers of a dead server, which end when they notice, and kill those that do not."""
    deadline = time.monotonic() + _STOP_SECONDS
    while members := _list_session_processes(session):
        if time.monotonic() > deadline:
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return
        time.sleep(0.05)


def _list_session_processes(session: int) -> list[int]:
    """Return the processes of a session that /proc lists, without zombies."""
    pids = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, its_session = (
                status.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[:4]
            )
            if int(its_session) == session and state != "Z":
                pids.append(int(status.parent.name))
    return pids
