"""Run a user's program for each alert, or for each change of a cluster: in order and in bounded time.

A failing or hanging program is one warning and never stops the watcher. For the sensor of live clusters, progress is
stored beside the cluster's home after each run of the program: a kill in between repeats one change and loses none.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

from pydantic import BaseModel, ConfigDict, ValidationError

from cdc_platform.clock import Clock, Milliseconds, seconds_from_ms, system_time_us
from cdc_platform.delta import Lake, lake_lock
from cdc_platform.errors import InputError, PlatformError
from cdc_platform.home_location import HomeLocation
from cdc_platform.metastore import cluster_changes
from cdc_platform.processes import get_death_signal_setter
from cdc_platform.retries import retry_pause_us
from cdc_platform.scylla import (
    PREEXISTING,
    MetadataSnapshot,
    ScyllaCluster,
    WatchedChange,
    diff_states,
    down_nodes,
    problems_after_failure,
    registry,
    with_ingest_lags,
)
from cdc_platform.storage import atomic

MAX_WAITING_ALERTS = 1000
"""The most changes that wait while the program runs; further changes are dropped with a warning."""


@dataclass(frozen=True)
class HookFailure:
    """Why one run of the program failed; `hung` is True if it exceeded its time limit and was killed."""

    line: str
    hung: bool = False


@dataclass(frozen=True)
class Hook:
    """A program's path, its time limit (s) for one change, and the environment that it gets.

    The environment is this process's environment without the variables that hold users and passwords of clusters.
    """

    program: str
    seconds: float
    environment: Mapping[str, str]

    @classmethod
    def find(cls, home: HomeLocation, program: str, within_ms: Milliseconds) -> Hook:
        """Return the hook for a program given by path, or by name on the PATH.

        Raises:
            InputError: no such program exists, or it is not executable.
        """
        executable = shutil.which(program) if program.isprintable() else None
        if executable is None:
            exists = os.path.lexists(program)
            problem = "it is no executable file; run chmod +x on it" if exists else "there is no such program"
            raise InputError(f"hook {program!r}: {problem}, or name another")
        secret = {
            name
            for cluster in registry.list_clusters(home)
            for name in (cluster.connection.user_env, cluster.connection.password_env)
            if name is not None
        }
        environment = {name: value for name, value in os.environ.items() if name not in secret}
        return cls(str(Path(executable).absolute()), seconds_from_ms(within_ms), environment)

    def run(self, change: Mapping[str, str]) -> HookFailure | None:
        """Run the program with a change on its standard input; return the failure, or None if it succeeded."""
        return self.pipe(change, f"hook {self.program}, change of {change['who']}")

    def pipe(self, document: Mapping[str, object], label: str) -> HookFailure | None:
        """Run the program with a JSON line on its standard input; `label` begins the line of a failure."""
        try:
            running = subprocess.Popen(
                [self.program],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=dict(self.environment),
                start_new_session=True,
                preexec_fn=get_death_signal_setter(),
            )
        except OSError as error:
            return HookFailure(f"{label}: cannot be run: {error.strerror}")
        with running:
            try:
                running.communicate(f"{json.dumps(document)}\n".encode(), timeout=self.seconds)
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(running.pid, signal.SIGKILL)
                return HookFailure(f"{label}: killed after {self.seconds:g} s", hung=True)
        if running.returncode < 0:
            return HookFailure(f"{label}: killed by signal {-running.returncode}")
        return HookFailure(f"{label}: exit code {running.returncode}") if running.returncode else None


class AlertQueue:
    """Runs a hook for changes in order, on a thread of its own; `warn` gets a line for each failure.

    On a normal exit the context waits for the queued changes, until one run hangs. After an error it waits only for the
    run in progress.
    """

    def __init__(self, hook: Hook, warn: Callable[[str], None]) -> None:
        self._hook, self._warn = hook, warn
        self._waiting: queue.Queue[Mapping[str, str] | None] = queue.Queue(MAX_WAITING_ALERTS)
        self._ending, self._given_up = threading.Event(), threading.Event()
        self._dropped = 0
        self._thread = threading.Thread(target=self._run, daemon=True, name="hook")

    def put(self, new_changes: Sequence[Mapping[str, str]]) -> None:
        """Queue changes behind those that wait; warn about changes that exceed the queue's capacity and drop them."""
        for number, change in enumerate(new_changes):
            try:
                self._waiting.put_nowait(change)
            except queue.Full:
                self._warn(f"hook {self._hook.program}: dropped {len(new_changes) - number} changes, too many wait")
                return

    def __enter__(self) -> AlertQueue:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        if kind is not None:
            self._given_up.set()
        self._waiting.put(None)
        self._thread.join()
        if self._dropped:
            self._warn(f"hook {self._hook.program}: dropped {self._dropped} changes at the end")

    def _run(self) -> None:
        for change in iter(self._waiting.get, None):
            if self._given_up.is_set():
                self._dropped += 1
                continue
            failure = self._hook.run(change)
            if failure is not None:
                self._warn(failure.line)
                # Do not delay the exit for a program that hangs.
                if failure.hung and self._ending.is_set():
                    self._given_up.set()


_FILE, _LOCK = "alerted.json", "alerts"
MAX_HOOK_ATTEMPTS = 8
"""How often a hook that fails gets one change: over about an hour."""
ALERT_TICK_SECONDS = 20.0
"""A tick starts no run of the hook after this time, and no run takes longer; the next tick sends the remaining alerts.
"""


class _SentAlerts(BaseModel):
    """What was sent: the number of the last recorded change, and the open problems as (subject, aspect, text).

    `failures` counts the consecutive failures of the hook for the next change, which is sent again at `retry_at_us`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    number: int
    problems: tuple[tuple[str, str, str], ...] = ()
    failures: int = 0
    retry_at_us: int = 0


def forget_alerts(cluster: ScyllaCluster) -> None:
    """Forget which alerts were sent; a hook set later receives only changes recorded from then on."""
    Path(cluster.home, _FILE).unlink(missing_ok=True)


def send_alerts(
    cluster: ScyllaCluster,
    hook: Hook,
    clock: Clock,
    seen: MetadataSnapshot | PlatformError,
    on_message: Callable[[str], None],
    begun: float | None = None,
) -> None:
    """Alert the hook to changes recorded since the last alert, to problems with nodes, and to logs read too slowly.

    Problems are that the cluster or a node cannot be reached. A log is alerted to at each level of its ingest's lag.

    `seen` is this tick's snapshot of the cluster, or the error that prevented it. `begun` is when the tick started, by
    `time.monotonic`. The first call sends nothing that was recorded before it. If the hook fails, later ticks repeat
    the change with growing pauses; after `MAX_HOOK_ATTEMPTS` it is dropped.
    """
    begun = time.monotonic() if begun is None else begun
    hook = replace(hook, seconds=min(hook.seconds, ALERT_TICK_SECONDS))
    lake = Lake(cluster.open_home().lake)
    with lake_lock(lake, _LOCK):
        before = _read_sent(cluster) or _begin_after_newest(cluster, lake)
        if before.retry_at_us > system_time_us():
            return
        for sent, change in _pending_alerts(before, cluster.name, lake, clock, seen, on_message):
            if time.monotonic() - begun > ALERT_TICK_SECONDS:
                on_message(f"{cluster.name}: the next tick runs hook {hook.program} for the remaining changes")
                return
            failure = hook.run(change.document())
            if failure is not None:
                on_message(failure.line)
                failures = before.failures + 1
                if failures < MAX_HOOK_ATTEMPTS:
                    retry_at_us = system_time_us() + retry_pause_us(failures)
                    _write_sent(cluster, before.model_copy(update={"failures": failures, "retry_at_us": retry_at_us}))
                    return
                on_message(f"{cluster.name}: dropped the change of {change.who} after {failures} failures of the hook")
            _write_sent(cluster, sent)
            before = sent


def _begin_after_newest(cluster: ScyllaCluster, lake: Lake) -> _SentAlerts:
    """Store that everything recorded so far was sent, and return that state."""
    noted = cluster_changes.read_cluster_changes(lake, -1)
    sent = _SentAlerts(number=noted[-1].number if noted else -1)
    _write_sent(cluster, sent)
    return sent


def _pending_alerts(
    sent: _SentAlerts,
    name: str,
    lake: Lake,
    clock: Clock,
    seen: MetadataSnapshot | PlatformError,
    on_message: Callable[[str], None],
) -> Iterator[tuple[_SentAlerts, WatchedChange]]:
    """Yield the changes of a cluster to send, each with the state to store once it is sent."""
    noted = cluster_changes.read_cluster_changes(lake, sent.number)
    sent = sent.model_copy(update={"failures": 0, "retry_at_us": 0})
    if len(noted) > MAX_WAITING_ALERTS:
        on_message(f"{name}: dropped {len(noted) - MAX_WAITING_ALERTS} changes for the hook, too many wait")
    for recorded in noted[-MAX_WAITING_ALERTS:]:
        if recorded.change.what == PREEXISTING:
            continue
        sent = sent.model_copy(update={"number": recorded.number})
        yield sent, WatchedChange(recorded.at_us, name, recorded.change.who, recorded.change.what)
    standing = {(who, aspect): line for who, aspect, line in sent.problems}
    after = down_nodes(seen.down) if isinstance(seen, MetadataSnapshot) else problems_after_failure(standing, seen)
    after = with_ingest_lags(after, lake, clock.now_us())
    for recorded in diff_states(standing, after, clock.now_us()):
        standing.pop((recorded.who, recorded.aspect), None)
        if recorded.state is not None:
            standing[recorded.who, recorded.aspect] = recorded.state
        sent = sent.model_copy(update={"problems": tuple((*key, line) for key, line in standing.items())})
        yield sent, WatchedChange(clock.now_us(), name, recorded.who, recorded.what)


def _read_sent(cluster: ScyllaCluster) -> _SentAlerts | None:
    try:
        return _SentAlerts.model_validate_json(Path(cluster.home, _FILE).read_bytes())
    except (OSError, ValidationError):
        return None


def _write_sent(cluster: ScyllaCluster, sent: _SentAlerts) -> None:
    atomic.write_text_atomically(cluster.home / _FILE, sent.model_dump_json())
