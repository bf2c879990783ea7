"""What an idle platform looks at less often than Dagster and uvicorn do by themselves, and that it ends as soon."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from threading import Event
from typing import Any

import pytest
from dagster._grpc import server_watcher
from dagster._grpc.client import DagsterGrpcClient

from cdc_platform.definitions import defs
from cdc_platform.serving.resting import FRESHNESS, WATCH_SECONDS, watch_seldom

_SERVES = """
import socket, sys
import uvicorn
from cdc_platform.serving import page_server

page_server.TICK_SECONDS = float(sys.argv[2])

async def page(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"here"})

listening = socket.socket(fileno=int(sys.argv[1]))
page_server.PageServer(uvicorn.Config(page, log_level="warning", lifespan="off")).run(sockets=[listening])
"""


_ASKED = ("get_location_entry", "refresh_code_location", "on_disconnect", "on_reconnected", "on_updated", "on_error")


@contextmanager
def _serving(tick_seconds: float) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A page server that looks so often, as a process, and its address."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        command = [sys.executable, "-c", _SERVES, str(listening.fileno()), str(tick_seconds)]
        process = subprocess.Popen(command, pass_fds=[listening.fileno()], stdout=subprocess.PIPE)
        try:
            yield process, f"http://127.0.0.1:{listening.getsockname()[1]}/"
        finally:
            process.kill()
            process.communicate()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_page_server_ends_when_it_is_asked(how: signal.Signals) -> None:
    """It looks by itself once an hour here, and is asked as soon as it has answered."""
    with _serving(3600) as (process, address):
        with urllib.request.urlopen(address, timeout=60) as answer:
            assert (answer.read(), parsedate_to_datetime(answer.headers["Date"]) is not None) == (b"here", True)
        process.send_signal(how)
        told, _ = process.communicate(timeout=60)
        # uvicorn raises the signal again when all is done: that is how it ends.
        assert (told, process.returncode) == (b"", -how)


def test_dates_of_answers_go_on() -> None:
    """The date is another one as soon as a tick has come."""
    dates = set[str]()
    with _serving(0.01) as (_, address):
        while len(dates) < 2:
            with urllib.request.urlopen(address, timeout=60) as answer:
                dates.add(answer.headers["Date"])


def test_the_code_server_is_watched_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dagster's own watching waits so long between two looks."""
    monkeypatch.setattr(server_watcher, "WATCH_INTERVAL", server_watcher.WATCH_INTERVAL)
    watch_seldom()
    waited = list[float]()

    class Ends(Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            waited.append(timeout)
            self.set()
            return True

    client: Any = object.__new__(DagsterGrpcClient)
    monkeypatch.setattr(DagsterGrpcClient, "get_server_id", lambda _self, timeout: f"one in {timeout} s")
    told: dict[str, Any] = dict.fromkeys(_ASKED, lambda *_: None)
    server_watcher.watch_grpc_server_thread("here", client, Ends(), **told)
    assert waited == [WATCH_SECONDS]


@pytest.mark.long("the code location is imported, and Dagster's daemon by a process of its own")
def test_no_asset_is_asked_for_its_freshness() -> None:
    """Dagster's daemon hears how seldom, and loses nothing by it: no asset has a policy."""
    asks = "from dagster._daemon.freshness import FreshnessDaemon; print(FreshnessDaemon().interval_seconds)"
    done = subprocess.run(
        [sys.executable, "-c", asks], env=os.environ | FRESHNESS, capture_output=True, text=True, check=True
    )
    assert [done.stdout.strip()] == list(FRESHNESS.values())
    specs = list(defs.resolve_all_asset_specs())
    assert (len(specs) > 10, [spec.key for spec in specs if spec.freshness_policy]) == (True, [])
