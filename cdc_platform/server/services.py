"""The services of `cdc-platform up`: commands, environment, secrets and readiness checks.

Secrets travel in files and in the environment, which only the owner can read. Every user can read command lines.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cdc_platform import instance_lock
from cdc_platform.clock import Clock, format_us
from cdc_platform.dagster_home import CLOCK_VARIABLE, OWNERS_VARIABLE, PACKAGES_FOLDER, prepare_dagster_home
from cdc_platform.home_location import HOME_VARIABLE, HomeLocation, make_private_folder
from cdc_platform.instance_lock import InstanceLock
from cdc_platform.plots import UI_PREFIX_VARIABLE
from cdc_platform.processes import Service, ServiceDied
from cdc_platform.server.addresses import LOOPBACK, UiAddresses
from cdc_platform.server.idle import IdleMonitor
from cdc_platform.spark import ConnectServer
from cdc_platform.spark_server import REMOTE_VARIABLE, SERVER_VARIABLE, TOKEN_VARIABLE, ServerFile

CODE_LOCATION = "cdc_platform"
"""The code location's name, as in workspace.yaml. Dagster stores the state of sensors and schedules under it."""
_MAX_SOCKET_PATH = 103
_LISTENER_NAME_LENGTH = len("/pymp-12345678/listener-12345678")
"""The length of a socket path below TMPDIR, of the process from which runs are forked."""
_WORKSPACE_QUERY = "{ workspaceOrError { ... on Workspace { locationEntries { locationOrLoadError { __typename \
... on PythonError { message } } } } ... on PythonError { message } } }"
_DAEMON_HEALTH_QUERY = (
    "{ instance { daemonHealth { allDaemonStatuses { daemonType required healthy lastHeartbeatTime } } } }"
)


@dataclass(frozen=True)
class UpServices:
    """The services that `up` starts in a home, and their addresses. `token` is the UI's."""

    home: HomeLocation
    held: InstanceLock
    clock: Clock
    names: UiAddresses
    read_only: bool
    token: str

    @property
    def logs(self) -> Path:
        """Return the folder of the services' logs."""
        return self.home.path / "logs"

    @property
    def token_file(self) -> Path:
        """Return the file with the UI's token, for programs."""
        return self.held.folder / "ui.token"

    @property
    def spark_file(self) -> ServerFile:
        """Return the file with the Connect server's address and token, as shell variables."""
        return ServerFile(self.held.folder / "spark.env")

    @property
    def link(self) -> str:
        """Return the address that logs a browser in."""
        return f"{self.names.url}/?token={self.token}"

    def services(self, listening: socket.socket) -> Iterator[Service]:
        """Yield the processes of Dagster, in the order in which they are started."""
        environment = self._environment()
        workspace = self._workspace()
        started = time.time()
        yield self._service("the Dagster code server", "code_server", self._code_arguments(), environment)
        public = ["--public-url", self.names.public.url] if self.names.public else []
        arguments = ["--listening", str(listening.fileno()), "--workspace", str(workspace)]
        header = self.home.settings.user_header
        public += ["--user-header", header] if header else []
        arguments += ["--token-file", str(self.token_file), *public, *(["--read-only"] if self.read_only else [])]
        ui = self._service("the Dagster UI", "ui", arguments, environment, listening.fileno())
        yield replace(ui, answers=self._serves)
        daemon = self._service("the Dagster daemon", "daemon", ["run", "-w", str(workspace)], environment)
        yield replace(daemon, answers=lambda: self._beats(started))

    def start_spark(self, server: ConnectServer) -> None:
        """Start the Connect server, or restart it after it has died, and publish its address once it answers."""
        self.spark_file.withdraw()
        server.start()
        self.spark_file.publish(server.environment)

    def sleeping(self, server: ConnectServer) -> IdleMonitor:
        """Return a monitor that decides whether Spark is needed, by the home's settings."""
        after_ms = self.home.settings.spark_sleep_ms
        return IdleMonitor(self.spark_file, server, after_ms, lambda: self.spark_file.publish(server.environment))

    def connect_server(self) -> ConnectServer:
        """Create the Spark Connect server without starting it. The home stays locked as long as the server runs."""
        folder = make_private_folder(self.held.folder / "spark")
        return ConnectServer(below=folder, inherited_fds=[self.held.parts.fileno()])

    def _service(
        self, name: str, module: str, arguments: list[str], environment: Mapping[str, str], *keeps_open: int
    ) -> Service:
        return Service(
            name,
            [sys.executable, "-m", f"cdc_platform.server.{module}", *arguments],
            environment,
            self.logs / f"dagster-{module.removesuffix('_server')}.log",
            lambda: True,
            [self.held.parts.fileno(), *keeps_open],
        )

    def _code_arguments(self) -> list[str]:
        location = [
            "-m",
            "cdc_platform.definitions",
            "-a",
            "defs",
            "-d",
            str(PACKAGES_FOLDER),
            "--location-name",
            CODE_LOCATION,
        ]
        # The UI shows a failure to load, and `_serves` raises it.
        return ["--socket", str(self._socket), *location, "--lazy-load-user-code"]

    @property
    def _socket(self) -> Path:
        """Return the code server's socket, in a folder private to the owner: the server runs any code it gets."""
        return self._short("code.sock")

    def _short(self, name: str, room: int = 0) -> Path:
        """Return the path of an entry of the lock's folder, by a short name if it is too long for a socket.

        `room` is the number of characters that are appended to the path later.
        """
        path = self.held.folder / name
        short = Path(f"/proc/{os.getpid()}/fd/{self.held.opened}") / name
        return short if len(str(path)) + room > _MAX_SOCKET_PATH and short.parent.exists() else path

    def _workspace(self) -> Path:
        """Write the workspace file of the UI and the daemon, which names the one code server, and return its path."""
        workspace = self.held.folder / "workspace.yaml"
        location = {"grpc_server": {"socket": str(self._socket), "location_name": CODE_LOCATION}}
        workspace.write_text(json.dumps({"load_from": [location]}), encoding="utf-8")
        return workspace

    def _environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if name not in (REMOTE_VARIABLE, TOKEN_VARIABLE)}
        environment = {
            **inherited,
            HOME_VARIABLE: self.home.name,
            OWNERS_VARIABLE: json.dumps(self.home.settings.owners),
            instance_lock.UP_VARIABLE: str(self.held.alive),
            SERVER_VARIABLE: str(self.spark_file.path),
            "DAGSTER_HOME": str(prepare_dagster_home(self.home)),
            "TMPDIR": str(self._short(make_private_folder(self.held.folder / "tmp").name, _LISTENER_NAME_LENGTH)),
            UI_PREFIX_VARIABLE: self.names.prefix,
            "PYTHONUNBUFFERED": "1",
        }
        # Nothing on loopback may go through a proxy, whatever the shell sets for other addresses.
        for name in ("NO_PROXY", "no_proxy"):
            environment[name] = ",".join(filter(None, [environment.get(name), LOOPBACK, "localhost"]))
        if self.clock.stopped_at_us is not None:
            environment[CLOCK_VARIABLE] = format_us(self.clock.stopped_at_us)
        return environment

    def _serves(self) -> bool:
        """Return True if the UI answers and has loaded the code location.

        Raises:
            ServiceDied: the code location does not load.
        """
        workspace = self._ask(_WORKSPACE_QUERY)["workspaceOrError"]
        entries = [entry["locationOrLoadError"] for entry in workspace.get("locationEntries", [])]
        for result in [workspace, *(entry for entry in entries if entry)]:
            if "message" in result:
                raise ServiceDied(f"the Dagster UI cannot load the code location: {result['message'].strip()[:500]}")
        return bool(entries) and all(entry and entry["__typename"] == "RepositoryLocation" for entry in entries)

    def _beats(self, since: float) -> bool:
        """Return True if every required daemon has sent a heartbeat since this one was started."""
        statuses = self._ask(_DAEMON_HEALTH_QUERY)["instance"]["daemonHealth"]["allDaemonStatuses"]
        needed = [status for status in statuses if status["required"]]
        return bool(needed) and all(s["healthy"] and (s["lastHeartbeatTime"] or 0) > since for s in needed)

    def _ask(self, query: str) -> Mapping[str, Any]:
        request = urllib.request.Request(
            f"{self.names.local_url}/graphql",
            json.dumps({"query": query}).encode(),
            {"Content-Type": "application/json", "Authorization": f"Bearer {self.token}"},
        )
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(request, timeout=30) as answer:
            return json.load(answer)["data"]


def generate_token() -> str:
    """Generate a secret token that is safe in a URL and a header."""
    return secrets.token_urlsafe(32)
