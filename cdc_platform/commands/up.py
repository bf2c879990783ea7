"""`cdc-platform up`: a warm Spark Connect server, the Dagster UI and its daemon on loopback, until Ctrl-C.

It knows what the three are and when they answer; keeping them together is `supervisor`'s.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

import click

from cdc_platform.clock import format_us
from cdc_platform.commands.output import json_option, write_facts, write_json
from cdc_platform.commands.session import Session, pass_session
from cdc_platform.errors import InputError, StateError
from cdc_platform.home import VARIABLE, Home
from cdc_platform.supervisor import Service, ServiceDied, Supervisor, until_the_end

LOOPBACK = "127.0.0.1"
DEFAULT_PORT = 3000
START_SECONDS = 180
_WORKSPACE = "{ workspaceOrError { ... on Workspace { locationEntries { locationOrLoadError { __typename \
... on PythonError { message } } } } ... on PythonError { message } } }"
_DAEMONS = "{ instance { daemonHealth { allDaemonStatuses { daemonType required healthy lastHeartbeatTime } } } }"


@dataclass(frozen=True)
class Addresses:
    """Where the parts answer."""

    url: str
    spark: str
    home: Path
    logs: Path


@click.command()
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Port of the UI, 0 for any. [default: 3000, or any if it is taken]"
)
@json_option
@pass_session
def up(session: Session, port: int | None, as_json: bool) -> None:
    """Start a warm Spark Connect server, the Dagster UI and its daemon; Ctrl-C ends all three.

    Prints the address of the UI when all of them answer. If one of them dies the others end too, with exit code 1.
    Everything listens on 127.0.0.1 only.

    \b
    Example:
      cdc-platform up
      cdc-platform --home /tmp/rehearsal up --port 0
    """
    home = session.open_home(create=True)
    with _alone(home) as lock, until_the_end() as supervisor:
        addresses = _start(supervisor, session, home, lock, _port(port), quiet=as_json)
        _note(lock, supervisor)
        if as_json:
            write_json({"url": addresses.url, "spark": addresses.spark, "home": home.path, "logs": addresses.logs})
        else:
            write_facts(_facts(addresses))
        supervisor.await_end()
    if not as_json:
        click.echo("all ended")


def _start(supervisor: Supervisor, session: Session, home: Home, lock: TextIO, port: int, *, quiet: bool) -> Addresses:
    """Start all three and wait until they answer."""
    from cdc_platform.dagster_home import dagster_home
    from cdc_platform.lake.connect import ConnectServer
    from cdc_platform.lake.jars import jars
    from cdc_platform.lake.java import find_java
    from cdc_platform.lake.session import LOG_VARIABLE

    find_java()
    jars()
    if not quiet:
        click.echo("starting Spark, the Dagster UI and its daemon ...")
    server = ConnectServer(free_port())
    addresses = Addresses(f"http://{LOOPBACK}:{port}", server.remote, home.path, home.path / "logs")
    make_ready(dagster_home(home))
    for service in _services(session, home, addresses, port):
        supervisor.start(replace(service, keeps_open=[lock.fileno()]))
    log = addresses.logs / "spark.log"
    log.unlink(missing_ok=True)
    os.environ[LOG_VARIABLE] = str(log)
    # Spark last: it waits for itself, and the others come up meanwhile.
    supervisor.adopt("the Spark Connect server", log, server, server.start)
    supervisor.await_answers(START_SECONDS)
    return addresses


def make_ready(folder: Path) -> None:
    """Let Dagster make its databases, and end what an earlier `up` has left unfinished.

    On a new home the UI and the daemon would both make the databases at once, and one would fail. A run whose process
    was killed together with its `up` stands as started for good, and its join would never be asked for again; under
    the home's lock no run can be alive.
    """
    from dagster import DagsterInstance, DagsterRunStatus, RunsFilter

    alive = [DagsterRunStatus.STARTING, DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING]
    with DagsterInstance.from_config(str(folder)) as instance:
        instance.all_instigator_state()
        for run in instance.get_runs(RunsFilter(statuses=alive)):
            instance.report_run_failed(run, "its process ended together with an earlier cdc-platform up")


def _services(session: Session, home: Home, addresses: Addresses, port: int) -> Iterator[Service]:
    from cdc_platform.dagster_home import WORKSPACE_FILE, dagster_home, project_file

    environment = _environment(session, home, addresses.spark, dagster_home(home))
    workspace = ["-w", str(project_file(WORKSPACE_FILE))]
    started = time.time()
    yield Service(
        "the Dagster UI",
        [sys.executable, "-m", "dagster_webserver", "-h", LOOPBACK, "-p", str(port), *workspace],
        environment,
        addresses.logs / "dagster-ui.log",
        lambda: _serves(addresses.url),
    )
    yield Service(
        "the Dagster daemon",
        [sys.executable, "-m", "dagster._daemon", "run", *workspace],
        environment,
        addresses.logs / "dagster-daemon.log",
        lambda: _beats(addresses.url, started),
    )


def _environment(session: Session, home: Home, remote: str, dagster_home: Path) -> dict[str, str]:
    from cdc_platform.dagster_home import CLOCK_VARIABLE

    environment = {
        **os.environ,
        VARIABLE: str(home.path),
        "DAGSTER_HOME": str(dagster_home),
        "SPARK_REMOTE": remote,
        "PYTHONUNBUFFERED": "1",
    }
    # Nothing on loopback goes through a proxy, whatever the shell has set for the rest of the world.
    for name in ("NO_PROXY", "no_proxy"):
        environment[name] = ",".join(filter(None, [environment.get(name), LOOPBACK, "localhost"]))
    if session.clock.stopped_at_us is not None:
        environment[CLOCK_VARIABLE] = format_us(session.clock.stopped_at_us)
    return environment


def _serves(url: str) -> bool:
    """Whether the UI answers and has loaded the code location.

    Raises:
        ServiceDied: the code location does not load.
    """
    workspace = _ask(url, _WORKSPACE)["workspaceOrError"]
    entries = [entry["locationOrLoadError"] for entry in workspace.get("locationEntries", [])]
    for told in [workspace, *(entry for entry in entries if entry)]:
        if "message" in told:
            raise ServiceDied(f"the Dagster UI cannot load the code location: {told['message'].strip()[:500]}")
    return bool(entries) and all(entry and entry["__typename"] == "RepositoryLocation" for entry in entries)


def _beats(url: str, since: float) -> bool:
    """Whether every daemon that is needed has given a sign of life since this one was started."""
    statuses = _ask(url, _DAEMONS)["instance"]["daemonHealth"]["allDaemonStatuses"]
    needed = [status for status in statuses if status["required"]]
    return bool(needed) and all(status["healthy"] and (status["lastHeartbeatTime"] or 0) > since for status in needed)


def _ask(url: str, query: str) -> Mapping[str, Any]:
    request = urllib.request.Request(
        f"{url}/graphql", json.dumps({"query": query}).encode(), {"Content-Type": "application/json"}
    )
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(request, timeout=30) as answer:
        return json.load(answer)["data"]


def _facts(addresses: Addresses) -> list[tuple[str, object]]:
    return [
        ("Dagster UI", addresses.url),
        ("Spark Connect", addresses.spark),
        ("home", str(addresses.home)),
        ("logs", str(addresses.logs)),
        ("", "Ctrl-C ends all of it"),
    ]


def _port(wanted: int | None) -> int:
    """The port that is asked for; without one the default, or any where that is taken.

    Raises:
        InputError: the port that is asked for is taken.
    """
    if wanted == 0 or (wanted is None and not _is_free(DEFAULT_PORT)):
        return free_port()
    if wanted is not None and not _is_free(wanted):
        raise InputError(f"port {wanted} of {LOOPBACK} is taken; name another with --port, or 0 for any")
    return wanted or DEFAULT_PORT


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


@contextmanager
def _alone(home: Home) -> Iterator[TextIO]:
    """Hold the home's lock: two daemons on one home would start every join twice.

    Raises:
        StateError: another `up` serves this home, or has left processes behind that still do.
    """
    with (home.path / "up.lock").open("a+", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            raise StateError(
                f"home {home.path} is up already (processes {lock.read().strip() or 'unknown'}); end that one, "
                "or choose another home"
            ) from None
        lock.truncate(0)
        yield lock


def _note(lock: TextIO, supervisor: Supervisor) -> None:
    """Write down who holds the lock: whoever finds it held can end them."""
    lock.write(" ".join(str(pid) for pid in (os.getpid(), *supervisor.pids)))
    lock.flush()
