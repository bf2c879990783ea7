"""A hook is a program that runs once for each change, in order; its failures stop nothing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from support.command_line import run
from support.homes.ingested import POSITION_US, ReadLog, ingested_home, read_up_to
from support.standin.cluster import FIRST_MS, PASSWORD, USER, StandIn, description
from support.standin.world import OBSERVER, time_uuid
from support.waiting import await_true

from cdc_platform.alerts import AlertQueue, Hook, forget_alerts, hooks, send_alerts
from cdc_platform.clock import SECOND_US, Clock, Microseconds, Milliseconds
from cdc_platform.delta import Lake
from cdc_platform.errors import InputError
from cdc_platform.home_location import HomeLocation, open_home_location
from cdc_platform.metastore import cluster_changes
from cdc_platform.scylla import (
    Connection,
    MetadataSnapshot,
    ScyllaCluster,
    Unreachable,
    registry,
    run_observation,
)
from cdc_platform.scylla.registry import ClusterIdentity
from cdc_platform.scylla.watch import ClusterView, diff_views, read_cluster_view

SECOND_MS = FIRST_MS + Milliseconds(3_600_000)
CHANGE = {"at": "2026-11-22T12:00:00.000000Z", "cluster": "prod", "who": "cluster", "what": "answers again"}
GLANCE = MetadataSnapshot(ClusterIdentity(cluster_name="production", host_ids=()), "as it was")
TEN_SECONDS = Milliseconds(10_000)


def script(folder: Path, text: str) -> Path:
    """Write an executable shell script."""
    path = folder / "hook.sh"
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o700)
    return path


def read_alerts(folder: Path) -> list[dict[str, str]]:
    """Return the alerts that the hook `writing` received, in order."""
    file = folder / "told"
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


@pytest.fixture
def writing(tmp_path: Path) -> Path:
    """A hook that appends its standard input to a file, and prints a lot."""
    return script(tmp_path, f"cat >> '{tmp_path}/told'; echo noise; echo noise >&2")


@pytest.fixture
def home(tmp_path: Path) -> HomeLocation:
    """A home with a registered cluster whose secrets are in two variables."""
    location = open_home_location(tmp_path / "home")
    registry.add_cluster(
        location, "other", Connection(contacts=("127.0.0.1:1",), user_env="OTHER_USER", password_env="OTHER_SECRET")
    )
    return location


@pytest.mark.long("a program that is started for each change")
def test_hook_runs_for_each_change_in_order(
    writing: Path, home: HomeLocation, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Changes wait while a hook runs, and at the end it runs for those that remain. Its output is discarded."""
    warnings: list[str] = []
    changes = [CHANGE | {"what": str(number)} for number in range(20)]
    with AlertQueue(Hook.find(home, str(writing), TEN_SECONDS), warnings.append) as alerts:
        for change in changes:
            alerts.put([change])
    assert (read_alerts(tmp_path), warnings) == (changes, [])
    assert capfd.readouterr() == ("", "")


def test_hook_gets_no_secret_of_a_cluster(home: HomeLocation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hook's environment has all variables except those with secrets of the home's clusters."""
    for name in ("OTHER_USER", "OTHER_SECRET", "MY_PAGER"):
        monkeypatch.setenv(name, "hunter2")
    hook = Hook.find(home, str(script(tmp_path, f"env > '{tmp_path}/env'")), TEN_SECONDS)
    assert hook.run(CHANGE) is None
    lines = (tmp_path / "env").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if "hunter2" in line] == ["MY_PAGER=hunter2"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("exit 3", "exit code 3"),
        ("kill -9 $$", "killed by signal 9"),
        ("cat > /dev/null; exit 1", "exit code 1"),
    ],
    ids=["does not read", "is killed", "reads and fails"],
)
def test_failure_of_a_hook_is_one_line_per_change(text: str, says: str, home: HomeLocation, tmp_path: Path) -> None:
    """The line has the program, the change's subject and how the hook ended; the next change runs it again."""
    warnings: list[str] = []
    program = script(tmp_path, f"echo >> '{tmp_path}/runs'; {text}")
    with AlertQueue(Hook.find(home, str(program), TEN_SECONDS), warnings.append) as alerts:
        alerts.put([CHANGE, CHANGE])
    assert len(warnings) == 2
    assert all(says in line and str(program) in line and "of cluster" in line for line in warnings)
    assert len((tmp_path / "runs").read_text(encoding="utf-8").splitlines()) == 2


def test_hanging_hook_is_killed_with_its_children(home: HomeLocation, tmp_path: Path) -> None:
    """At the end the queue does not wait a second time; a message counts the dropped changes."""
    warnings: list[str] = []
    program = script(tmp_path, f"sleep 600 & echo $! >> '{tmp_path}/pids'; wait")
    with AlertQueue(Hook.find(home, str(program), Milliseconds(400)), warnings.append) as alerts:
        alerts.put([CHANGE] * 5)
    assert "killed after 0.4 s" in warnings[0]
    dropped = 5 - (len(warnings) - 1)
    assert warnings[-1].endswith(f"dropped {dropped} changes at the end")
    for pid in (tmp_path / "pids").read_text(encoding="utf-8").split():
        await_true(lambda pid=pid: not _runs(int(pid)), 30, "the end of a hook's child")


def test_excess_changes_are_dropped(
    home: HomeLocation, writing: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message counts the changes beyond the limit; the hook receives the others in order."""
    monkeypatch.setattr(hooks, "MAX_WAITING_ALERTS", 3)
    warnings: list[str] = []
    alerts = AlertQueue(Hook.find(home, str(writing), TEN_SECONDS), warnings.append)
    changes = [CHANGE | {"what": str(number)} for number in range(5)]
    alerts.put(changes)
    with alerts:
        pass
    assert read_alerts(tmp_path) == changes[:3]
    assert warnings == [f"hook {writing}: dropped 2 changes, too many wait"]


@pytest.mark.parametrize("name", ["is not there", "may not be executed", "is a folder", "has an escape"])
def test_hook_that_cannot_run_is_refused_before_the_watch(name: str, home: HomeLocation, tmp_path: Path) -> None:
    """One line refuses the hook before a connection is made; this home's cluster does not exist."""
    file = tmp_path / "hook"
    if name == "may not be executed":
        file.write_text("#!/bin/sh\n", encoding="utf-8")
    if name == "is a folder":
        file.mkdir()
    program = f"{file}\x1b[2J" if name == "has an escape" else str(file)
    answer = run("--home", home.path, "watch", "other", "--polls", "1", "--hook", program)
    assert (answer.exit_code, answer.stdout) == (2, "")
    (line,) = answer.stderr.splitlines()
    assert line.startswith("error: hook ")
    assert line.endswith("[input]")
    assert "\x1b" not in line


def test_hook_that_disappears_during_a_watch_is_a_message(home: HomeLocation, writing: Path) -> None:
    """A hook that was deleted or is no longer executable code fails with one line."""
    hook = Hook.find(home, str(writing), TEN_SECONDS)
    writing.unlink()
    failure = hook.run(CHANGE)
    assert failure is not None
    assert "cannot be run: No such file" in failure.line
    writing.write_bytes(b"\x7fELF and no more")
    writing.chmod(0o700)
    failure = hook.run(CHANGE)
    assert failure is not None
    assert "cannot be run: Exec format error" in failure.line


@pytest.mark.cassandra
def test_hook_receives_the_lines_that_a_watch_prints(
    standin: StandIn, cluster: ScyllaCluster, writing: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Hook and output have the same lines in the same order, outages included."""
    # A restarted watch runs the hook only for new changes.
    home = str(cluster.home.parent.parent)
    watching = [
        *(sys.executable, "-m", "cdc_platform", "--home", home, "watch", "prod"),
        *("--interval", "0.2", "--json", "--hook", str(writing)),
    ]
    with _running(watching) as watch:
        assert watch.stdout is not None
        await_true(lambda: len(read_alerts(tmp_path)) >= 6, 120, "the first look")
        standin.world.generation(SECOND_MS, time_uuid(SECOND_MS), description(time_uuid(SECOND_MS)))
        await_true(lambda: "generation 2026-09-21T15:13:20.000Z" in _subjects(tmp_path), 120, "the second generation")
        for node in range(3):
            standin.proxy.kill(node)
        await_true(lambda: "cluster" in _subjects(tmp_path), 120, "the outage")
        standin.proxy.faults.down.clear()
        await_true(lambda: read_alerts(tmp_path)[-1]["what"] == "answers again", 120, "the cluster")
        watch.terminate()
        printed = [json.loads(line) for line in watch.stdout.read().splitlines()]
    assert printed[: len(read_alerts(tmp_path))] == read_alerts(tmp_path)
    assert {line["cluster"] for line in printed} == {"prod"}
    (tmp_path / "told").unlink()
    answer = run("--home", home, "watch", "prod", "--polls", "1", "--json", "--hook", str(writing))
    assert (answer.exit_code, answer.stderr, read_alerts(tmp_path)) == (0, "", [])
    assert len(answer.stdout.splitlines()) >= 7


@pytest.mark.cassandra
def test_watch_continues_with_a_hanging_hook(standin: StandIn, cluster: ScyllaCluster, tmp_path: Path) -> None:
    """The home's setting limits the hook's time; failures are warnings."""
    # The watch prints each change, and the hook gets no password.
    home = cluster.home.parent.parent
    (home / "settings.toml").write_text("cluster_hook_ms = 300\n", encoding="utf-8")
    program = script(tmp_path, f"env >> '{tmp_path}/env'; sleep 600")
    answer = run("--home", home, "watch", "prod", "--polls", "1", "--json", "--hook", str(program))
    assert answer.exit_code == 0
    assert len(answer.stdout.splitlines()) == 6
    assert all(line.endswith("[hook-failed]") for line in answer.stderr.splitlines())
    assert "killed after 0.3 s" in answer.stderr
    environment = (tmp_path / "env").read_text(encoding="utf-8")
    assert "PATH=" in environment
    assert not any(word in environment for word in (USER, PASSWORD, OBSERVER[1]))


@pytest.mark.cassandra
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_ended_watch_leaves_no_running_hook(
    number: signal.Signals, standin: StandIn, cluster: ScyllaCluster, tmp_path: Path
) -> None:
    """A hanging hook ends with the watch, or after Ctrl-C within its timeout."""
    # After Ctrl-C a message counts the dropped changes.
    home = cluster.home.parent.parent
    seconds = 1 if number == signal.SIGINT else 300
    (home / "settings.toml").write_text(f"cluster_hook_ms = {seconds}000\n", encoding="utf-8")
    program = script(tmp_path, f"echo $$ >> '{tmp_path}/pids'; exec sleep 600")
    watching = [
        *(sys.executable, "-m", "cdc_platform", "--home", str(home), "watch", "prod"),
        *("--interval", "0.2", "--json", "--hook", str(program)),
    ]
    pids = tmp_path / "pids"
    with _running(watching) as watch:
        await_true(lambda: pids.exists() and pids.read_text(encoding="utf-8").endswith("\n"), 120, "the hook")
        watch.send_signal(number)
        watch.wait(60)
        assert watch.stderr is not None
        stderr = watch.stderr.read()
    assert ("changes at the end [hook-failed]" in stderr) == (number == signal.SIGINT)
    for pid in pids.read_text(encoding="utf-8").split():
        await_true(lambda pid=pid: not _runs(int(pid)), 30, "the end of the hook")


@pytest.mark.cassandra
def test_recorded_changes_are_sent_once(
    standin: StandIn, cluster: ScyllaCluster, writing: Path, tmp_path: Path
) -> None:
    """Alerts begin with the first call, and outages of the cluster or a node are sent at start and end."""
    # After `forget_alerts` they begin again.
    home, warnings = open_home_location(cluster.home.parent.parent), list[str]()
    hook = Hook.find(home, str(writing), TEN_SECONDS)

    def tick(snapshot: MetadataSnapshot | Unreachable = GLANCE) -> list[tuple[str, str]]:
        (tmp_path / "told").unlink(missing_ok=True)
        for _ in range(2):
            send_alerts(cluster, hook, Clock(), snapshot, warnings.append)
        return [(entry["who"], entry["what"]) for entry in read_alerts(tmp_path)]

    assert tick() == []
    run_observation(cluster, Clock())
    recorded = cluster_changes.read_cluster_changes(Lake(cluster.open_home().lake))
    assert len(recorded) == 6
    assert tick() == [(entry.change.who, entry.change.what) for entry in recorded]
    assert tick() == []
    assert tick(Unreachable("prod: no node is up")) == [("cluster", "prod: no node is up")]
    assert tick(Unreachable("prod: no answer in time")) == []
    one_down = replace(GLANCE, down=("127.0.0.3",))
    assert tick(one_down) == [("node 127.0.0.3", "is down"), ("cluster", "answers again")]
    assert tick(one_down) == []
    assert tick() == [("node 127.0.0.3", "is up again")]
    forget_alerts(cluster)
    assert (tick(), warnings) == ([], [])


def test_lag_of_an_ingest_is_one_alert_per_level(writing: Path, tmp_path: Path) -> None:
    """The levels are half, three quarters and all of the TTL, also during an outage."""
    # The last alert says that the ingest has caught up.
    home, cluster = ingested_home(tmp_path / "mirror", [ReadLog("t"), ReadLog("forever", 0), ReadLog("new", 400, None)])
    hook, warnings = Hook.find(home, str(writing), TEN_SECONDS), list[str]()

    def tick(after_s: int, snapshot: MetadataSnapshot | Unreachable = GLANCE) -> list[tuple[str, str]]:
        (tmp_path / "told").unlink(missing_ok=True)
        clock = Clock(Microseconds(POSITION_US + 1 + after_s * SECOND_US))
        for _ in range(2):
            send_alerts(cluster, hook, clock, snapshot, warnings.append)
        return [(alert["who"], alert["what"]) for alert in read_alerts(tmp_path)]

    assert tick(199) == []
    assert tick(200) == [("table shop.t", "notice: half of the TTL of its unread log rows has passed")]
    assert tick(299) == []
    down = Unreachable("prod: no node is up")
    assert tick(300, down) == [
        ("table shop.t", "warning: three quarters of the TTL of its unread log rows have passed"),
        ("cluster", "prod: no node is up"),
    ]
    assert tick(400, down) == [("table shop.t", "error: rows of its log may have expired unread")]
    read_up_to(Lake(cluster.open_home().lake), [ReadLog("t", position_us=POSITION_US + 400 * SECOND_US)])
    assert tick(400, down) == [("table shop.t", "the ingest of its log has caught up")]
    assert warnings == []


def test_watch_reports_each_level_of_lag_as_a_change(tmp_path: Path) -> None:
    """Only a lag that reaches another level since the previous poll is a change."""
    _, cluster = ingested_home(tmp_path / "home", [ReadLog("t"), ReadLog("new", windows=None)])
    lake = Lake(cluster.open_home().lake)

    def view(after_s: int, before: ClusterView | None = None) -> ClusterView:
        now_us = Microseconds(POSITION_US + 1 + after_s * SECOND_US)
        return read_cluster_view(lake, now_us, {} if before is None else dict(before.problems))

    fine = view(199)
    half = view(200, fine)
    whole = view(400, half)
    assert [change.what for change in diff_views("prod", fine, half)] == [
        "notice: half of the TTL of its unread log rows has passed"
    ]
    assert diff_views("prod", half, view(299, half)) == []
    assert [(change.who, change.what) for change in diff_views("prod", half, whole)] == [
        ("table shop.t", "error: rows of its log may have expired unread")
    ]
    assert [change.what for change in diff_views("prod", whole, view(0, whole))] == [
        "the ingest of its log has caught up"
    ]


@pytest.mark.cassandra
def test_home_without_a_table_of_changes_sends_only_later_changes(
    standin: StandIn, cluster: ScyllaCluster, writing: Path, tmp_path: Path
) -> None:
    """A home of an earlier version has no table of changes; its history states so for what it already had."""
    home = open_home_location(cluster.home.parent.parent)
    run_observation(cluster, Clock())
    shutil.rmtree(cluster.home / "lake" / "platform" / "cluster_changes")
    hook, lake = Hook.find(home, str(writing), TEN_SECONDS), Lake(cluster.open_home().lake)
    send_alerts(cluster, hook, Clock(), GLANCE, print)
    standin.world.generation(SECOND_MS, time_uuid(SECOND_MS), description(time_uuid(SECOND_MS)))
    run_observation(cluster, Clock())
    send_alerts(cluster, hook, Clock(), GLANCE, print)
    assert [entry["who"] for entry in read_alerts(tmp_path)] == ["generation 2026-09-21T15:13:20.000Z"]
    recorded = [entry.change.what for entry in cluster_changes.read_cluster_changes(lake)]
    assert recorded == [*["was there before changes were noted"] * 6, recorded[-1]]


def test_hook_without_a_folder_is_found_on_the_path(
    home: HomeLocation, writing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The platform finds a hook as the shell does, and refuses one that is not on the path."""
    monkeypatch.setenv("PATH", f"{writing.parent}{os.pathsep}{os.environ['PATH']}")
    assert Hook.find(home, "hook.sh", TEN_SECONDS).program == str(writing)
    with pytest.raises(InputError, match="there is no such program"):
        Hook.find(home, "no-such-hook.sh", TEN_SECONDS)


def _subjects(folder: Path) -> set[str]:
    return {alert["who"] for alert in read_alerts(folder)}


def _runs(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"


@contextmanager
def _running(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Run a program that is killed when the block exits."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()
