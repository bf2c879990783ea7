"""Dagster's services as separate processes, without `cdc-platform up`, as docs/examples/services runs them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from cdc_platform.home_location import HOME_VARIABLE
from cdc_platform.server import CODE_LOCATION, LOOPBACK, listen_on_loopback

TOKEN = "a-token-of-these-services"
_LOCATION = ["-m", "cdc_platform.definitions", "-a", "defs", "--location-name", CODE_LOCATION]


class Services:
    """The services of one home. `run` is a folder whose path is short enough for a socket."""

    def __init__(self, home: Path, run: Path, environment: Mapping[str, str]) -> None:
        self.home, self._run = home, run
        self._environment = {**os.environ, **environment, HOME_VARIABLE: str(home), "DAGSTER_HOME": f"{home}/dagster"}
        self._environment.pop("SPARK_REMOTE", None)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._socket, self._workspace, self._token = run / "code.sock", run / "workspace.yaml", run / "ui.token"
        location = {"grpc_server": {"socket": str(self._socket), "location_name": CODE_LOCATION}}
        self._workspace.write_text(json.dumps({"load_from": [location]}), encoding="utf-8")
        self._token.write_text(TOKEN, encoding="utf-8")

    def start_code_server(self) -> None:
        """Start the code location."""
        self._start("code", "code_server", "--socket", str(self._socket), *_LOCATION, "--lazy-load-user-code")

    def start_daemon(self) -> None:
        """Start the daemon, which waits for the code location."""
        self._start("daemon", "daemon", "run", "-w", str(self._workspace))

    def start_ui(self, name: str) -> int:
        """Start a webserver, and return its port."""
        with listen_on_loopback(0) as bound:
            self._start_ui(name, bound)
            return int(bound.getsockname()[1])

    def _start_ui(self, name: str, bound: socket.socket) -> None:
        options = ["--listening", str(bound.fileno()), "--workspace", str(self._workspace)]
        self._start(name, "ui", *options, "--token-file", str(self._token), pass_fds=[bound.fileno()])

    def _start(self, name: str, module: str, *arguments: str, pass_fds: list[int] | None = None) -> None:
        with self.log(name).open("ab") as log:
            self._running[name] = subprocess.Popen(
                [sys.executable, "-m", f"cdc_platform.server.{module}", *arguments],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=pass_fds or [],
            )

    def log(self, name: str) -> Path:
        """Return the log of a service."""
        return self._run / f"{name}.log"

    def restart_ended(self) -> None:
        """Start the daemon again if it has ended, as its unit does."""
        if self._running["daemon"].poll() is not None:
            self.start_daemon()

    def kill(self, name: str) -> None:
        """Kill a service with its children."""
        process = self._running.pop(name)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)

    def stop(self) -> None:
        """End all services."""
        for name in reversed(list(self._running)):
            self.kill(name)


def request(port: int, path: str, query: str | None = None) -> tuple[int, Any]:
    """Return the status and the document that a webserver answers with; status 0 if it does not answer."""
    connection = HTTPConnection(LOOPBACK, port, timeout=60)
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    body = None if query is None else json.dumps({"query": query})
    try:
        connection.request("GET" if query is None else "POST", path, body, headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    except OSError:
        return 0, None
    finally:
        connection.close()
