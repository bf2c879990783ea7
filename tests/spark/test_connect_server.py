"""A real Connect server runs the code that runs embedded, and leaves nothing behind.

As a script, this file is a client of the server that SPARK_REMOTE names.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support.spark.core import core
from support.substitutions import VARIABLES

from cdc_platform.delta import Lake
from cdc_platform.errors import EnvironmentProblem, StateError
from cdc_platform.processes import get_death_signal_setter
from cdc_platform.spark import ConnectServer, get_spark_session
from cdc_platform.spark.connect import _list_session_processes
from cdc_platform.tables import STREAMS_DESCRIPTIONS_V2

AS_A_SCRIPT = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}


def test_core_runs_on_connect(server: ConnectServer, lake: Lake) -> None:
    """Another process runs it without a JVM, and leaves nothing in its working folder."""
    folder = lake.root.parent / "cwd"
    folder.mkdir()
    client = subprocess.run(
        [sys.executable, __file__, str(lake.root)],
        env={**AS_A_SCRIPT, **server.environment, "JAVA_HOME": "/nowhere"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (client.returncode, client.stdout) == (0, "core ran on Connect\n"), client.stderr
    assert list(folder.iterdir()) == []
    assert lake.read(STREAMS_DESCRIPTIONS_V2).num_rows == 5


def test_session_on_connect_substitutes_nothing(server: ConnectServer) -> None:
    """Every kind of variable is an ordinary text there, too."""
    client = subprocess.run(
        [sys.executable, __file__, "--variables"],
        env={**AS_A_SCRIPT, **server.environment, "JAVA_HOME": "/nowhere"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (client.returncode, client.stdout) == (0, f"{len(VARIABLES)} stayed\n"), client.stderr


@pytest.mark.parametrize("token", [None, "wrong"])
def test_client_without_the_token_is_refused(server: ConnectServer, token: str | None) -> None:
    """One line says what is missing, and where it is."""
    environment = {**os.environ, **server.environment}
    environment.pop("SPARK_CONNECT_AUTHENTICATE_TOKEN")
    environment |= {"SPARK_CONNECT_AUTHENTICATE_TOKEN": token} if token else {}
    code = "from cdc_platform.spark.session import get_spark_session; get_spark_session()"
    client = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert client.returncode == 1
    message = client.stderr.strip().splitlines()[-1]
    assert "wants its token in SPARK_CONNECT_AUTHENTICATE_TOKEN" in message
    assert server.environment["SPARK_CONNECT_AUTHENTICATE_TOKEN"] not in client.stderr


def test_server_ends_with_its_child_processes(server: ConnectServer) -> None:
    """JVM, Python workers and folder are gone when `stop` returns; a second `stop` does nothing."""
    pid, folder = server.pid, server._folder
    assert pid is not None
    assert folder is not None
    assert pid in _list_session_processes(pid)
    with pytest.raises(StateError, match="runs already"):
        server.start()
    server.stop()
    assert _list_session_processes(pid) == []
    assert not folder.exists()
    assert server.pid is None
    server.stop()


def test_taken_port_is_named() -> None:
    """The refusal comes before any process starts."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(EnvironmentProblem, match=f"port {port} of 127.0.0.1 is taken"):
            ConnectServer(port).start()


@pytest.mark.spark
def test_failed_start_has_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the end of the JVM's output, and no process is left."""
    monkeypatch.setenv("CDC_PLATFORM_DRIVER_MEMORY", "lots")
    server = ConnectServer()
    with pytest.raises(EnvironmentProblem, match=r"did not start \(.*lots"):
        server.start()
    assert server.pid is None


@pytest.mark.spark
@pytest.mark.long("the start of a JVM of its own")
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_server_ends_with_a_killed_parent() -> None:
    """A killed parent cannot clean up, so the system does."""
    parent = subprocess.Popen(
        [sys.executable, __file__, "--parent"],
        env=AS_A_SCRIPT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    ended = os.pidfd_open(child)
    parent.kill()
    parent.wait()
    assert select.select([ended], [], [], 60)[0], "the child is still there"


@pytest.mark.spark
@pytest.mark.long("the start of a JVM of its own")
def test_interrupted_start_ends() -> None:
    """After Ctrl-C during the first query, the server and its client end before the command does."""
    command = [sys.executable, __file__, "--broken-off"]
    done = subprocess.run(command, env=AS_A_SCRIPT, capture_output=True, text=True, check=False, timeout=90)
    assert done.returncode == 0, done.stderr
    seconds = float(done.stdout.splitlines()[-1])
    assert time.time() - seconds < 30


def _interrupt_start() -> None:
    """Start a server, interrupt it as soon as it has a client, and print when it has ended."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    server = ConnectServer(heavy=False)

    def interrupt() -> None:
        while not server.clients:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        server.start()
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
    print(time.time())


def _read_variables() -> None:
    """Put each variable into a text, as the platform's own statements could, and read it back."""
    session = get_spark_session()
    assert session.conf.get("spark.sql.variable.substitute") == "false"
    unchanged = [text for text in VARIABLES if session.sql(f"SELECT '{text}' AS a").collect()[0][0] == text]
    print(len(unchanged), "stayed")


def _run_as_parent() -> None:
    """Start a process as the server is started, print its ID and wait to be killed."""
    child = subprocess.Popen(["sleep", "600"], preexec_fn=get_death_signal_setter(), start_new_session=True)
    print(child.pid, flush=True)
    signal.pause()


if __name__ == "__main__":
    if sys.argv[1] == "--parent":
        _run_as_parent()
    if sys.argv[1] == "--variables":
        _read_variables()
        sys.exit()
    if sys.argv[1] == "--broken-off":
        _interrupt_start()
        sys.exit()
    core(get_spark_session(), Lake(Path(sys.argv[1])))
    print("core ran on Connect")
