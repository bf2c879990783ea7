"""A hook: a real program that is told of each change once, in order, and that stops nothing whatever it does."""

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
    """A program of the shell that can be executed."""
    path = folder / "hook.sh"
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o700)
    return path


def told(folder: Path) -> list[dict[str, str]]:
    """What the hook of `writing` was told, in order."""
    file = folder / "told"
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


@pytest.fixture
def writing(tmp_path: Path) -> Path:
    """A hook that appends its standard input to a file, and prints a lot."""
    return script(tmp_path, f"cat >> '{tmp_path}/told'; echo noise; echo noise >&2")


@pytest.fixture
def home(tmp_path: Path) -> HomeLocation:
    """A home that knows a cluster whose secrets are in two variables."""
    found = open_home_location(tmp_path / "home")
    registry.add_cluster(
        found, "other", Connection(contacts=("127.0.0.1:1",), user_env="OTHER_USER", password_env="OTHER_SECRET")
    )
    return found


@pytest.mark.long("a program that is started for each change")
def test_each_is_told_in_order_and_what_it_prints_goes_nowhere(
    writing: Path, home: HomeLocation, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Changes that come while it runs wait for it; at the end it is told of all that is left."""
    warnings: list[str] = []
    several = [CHANGE | {"what": str(number)} for number in range(20)]
    with AlertQueue(Hook.find(home, str(writing), TEN_SECONDS), warnings.append) as alerts:
        for each in several:
            alerts.put([each])
    assert (told(tmp_path), warnings) == (several, [])
    assert capfd.readouterr() == ("", "")


def test_no_secret_of_a_cluster_passes(home: HomeLocation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables of every cluster of the home are kept from it; the others it has."""
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
def test_one_that_fails_is_one_line_each(text: str, says: str, home: HomeLocation, tmp_path: Path) -> None:
    """It names the program, of whom it was told, and how it ended; the next change is told all the same."""
    warnings: list[str] = []
    program = script(tmp_path, f"echo >> '{tmp_path}/runs'; {text}")
    with AlertQueue(Hook.find(home, str(program), TEN_SECONDS), warnings.append) as alerts:
        alerts.put([CHANGE, CHANGE])
    assert len(warnings) == 2
    assert all(says in line and str(program) in line and "of cluster" in line for line in warnings)
    assert len((tmp_path / "runs").read_text(encoding="utf-8").splitlines()) == 2


def test_one_that_hangs_is_ended_with_its_children(home: HomeLocation, tmp_path: Path) -> None:
    """At the end nobody waits for it a second time: what it was not told of is counted."""
    warnings: list[str] = []
    program = script(tmp_path, f"sleep 600 & echo $! >> '{tmp_path}/pids'; wait")
    with AlertQueue(Hook.find(home, str(program), Milliseconds(400)), warnings.append) as alerts:
        alerts.put([CHANGE] * 5)
    assert "killed after 0.4 s" in warnings[0]
    untold = 5 - (len(warnings) - 1)
    assert warnings[-1].endswith(f"dropped {untold} changes at the end")
    for pid in (tmp_path / "pids").read_text(encoding="utf-8").split():
        await_true(lambda pid=pid: not _runs(int(pid)), 30, "the end of a hook's child")


def test_no_more_than_so_many_wait(
    home: HomeLocation, writing: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those beyond are said to be left out, and the others are told in order."""
    monkeypatch.setattr(hooks, "MAX_WAITING_ALERTS", 3)
    warnings: list[str] = []
    alerts = AlertQueue(Hook.find(home, str(writing), TEN_SECONDS), warnings.append)
    several = [CHANGE | {"what": str(number)} for number in range(5)]
    alerts.put(several)
    with alerts:
        pass
    assert told(tmp_path) == several[:3]
    assert warnings == [f"hook {writing}: dropped 2 changes, too many wait"]


@pytest.mark.parametrize("name", ["is not there", "may not be executed", "is a folder", "has an escape"])
def test_one_that_cannot_be_run_is_refused_before_the_watch(name: str, home: HomeLocation, tmp_path: Path) -> None:
    """In one line, and nothing was connected to: the cluster of this home is none."""
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


def test_one_that_goes_while_it_is_watched_is_a_line(home: HomeLocation, writing: Path) -> None:
    """A program that was there as the watch began, and one that is no program after all."""
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
def test_a_watch_tells_what_it_prints(
    standin: StandIn, cluster: ScyllaCluster, writing: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The same lines in the same order, of an outage too; a watch that begins again tells only what is new."""
    home = str(cluster.home.parent.parent)
    watching = [
        *(sys.executable, "-m", "cdc_platform", "--home", home, "watch", "prod"),
        *("--interval", "0.2", "--json", "--hook", str(writing)),
    ]
    with _running(watching) as started:
        assert started.stdout is not None
        await_true(lambda: len(told(tmp_path)) >= 6, 120, "the first look")
        standin.world.generation(SECOND_MS, time_uuid(SECOND_MS), description(time_uuid(SECOND_MS)))
        await_true(lambda: "generation 2026-09-21T15:13:20.000Z" in _whos(tmp_path), 120, "the second generation")
        for node in range(3):
            standin.proxy.kill(node)
        await_true(lambda: "cluster" in _whos(tmp_path), 120, "the outage")
        standin.proxy.faults.down.clear()
        await_true(lambda: told(tmp_path)[-1]["what"] == "answers again", 120, "the cluster")
        started.terminate()
        printed = [json.loads(line) for line in started.stdout.read().splitlines()]
    assert printed[: len(told(tmp_path))] == told(tmp_path)
    assert {each["cluster"] for each in printed} == {"prod"}
    (tmp_path / "told").unlink()
    again = run("--home", home, "watch", "prod", "--polls", "1", "--json", "--hook", str(writing))
    assert (again.exit_code, again.stderr, told(tmp_path)) == (0, "", [])
    assert len(again.stdout.splitlines()) >= 7


@pytest.mark.cassandra
def test_a_watch_goes_on_whatever_its_hook_does(standin: StandIn, cluster: ScyllaCluster, tmp_path: Path) -> None:
    """One that hangs by the home's setting, and shows no password: warnings, and every change is printed."""
    home = cluster.home.parent.parent
    (home / "settings.toml").write_text("cluster_hook_ms = 300\n", encoding="utf-8")
    program = script(tmp_path, f"env >> '{tmp_path}/env'; sleep 600")
    answer = run("--home", home, "watch", "prod", "--polls", "1", "--json", "--hook", str(program))
    assert answer.exit_code == 0
    assert len(answer.stdout.splitlines()) == 6
    assert all(line.endswith("[hook-failed]") for line in answer.stderr.splitlines())
    assert "killed after 0.3 s" in answer.stderr
    seen = (tmp_path / "env").read_text(encoding="utf-8")
    assert "PATH=" in seen
    assert not any(word in seen for word in (USER, PASSWORD, OBSERVER[1]))


@pytest.mark.cassandra
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_watch_that_is_ended_leaves_no_hook_behind(
    number: signal.Signals, standin: StandIn, cluster: ScyllaCluster, tmp_path: Path
) -> None:
    """One that hangs goes with it, or after Ctrl-C with its own time; the rest is counted there and not told."""
    home = cluster.home.parent.parent
    seconds = 1 if number == signal.SIGINT else 300
    (home / "settings.toml").write_text(f"cluster_hook_ms = {seconds}000\n", encoding="utf-8")
    program = script(tmp_path, f"echo $$ >> '{tmp_path}/pids'; exec sleep 600")
    watching = [
        *(sys.executable, "-m", "cdc_platform", "--home", str(home), "watch", "prod"),
        *("--interval", "0.2", "--json", "--hook", str(program)),
    ]
    pids = tmp_path / "pids"
    with _running(watching) as started:
        await_true(lambda: pids.exists() and pids.read_text(encoding="utf-8").endswith("\n"), 120, "the hook")
        started.send_signal(number)
        started.wait(60)
        assert started.stderr is not None
        told_last = started.stderr.read()
    assert ("changes at the end [hook-failed]" in told_last) == (number == signal.SIGINT)
    for pid in pids.read_text(encoding="utf-8").split():
        await_true(lambda pid=pid: not _runs(int(pid)), 30, "the end of the hook")


@pytest.mark.cassandra
def test_what_was_noted_is_told_once_however_often_it_is_asked(
    standin: StandIn, cluster: ScyllaCluster, writing: Path, tmp_path: Path
) -> None:
    """From the first time on; an outage, of all or of a node, as it comes and as it goes; one set anew begins anew."""
    home, warnings = open_home_location(cluster.home.parent.parent), list[str]()
    hook = Hook.find(home, str(writing), TEN_SECONDS)

    def tick(seen: MetadataSnapshot | Unreachable = GLANCE) -> list[tuple[str, str]]:
        (tmp_path / "told").unlink(missing_ok=True)
        for _ in range(2):
            send_alerts(cluster, hook, Clock(), seen, warnings.append)
        return [(each["who"], each["what"]) for each in told(tmp_path)]

    assert tick() == []
    run_observation(cluster, Clock())
    noted = cluster_changes.read_cluster_changes(Lake(cluster.open_home().lake))
    assert len(noted) == 6
    assert tick() == [(each.change.who, each.change.what) for each in noted]
    assert tick() == []
    assert tick(Unreachable("prod: no node is up")) == [("cluster", "prod: no node is up")]
    assert tick(Unreachable("prod: no answer in time")) == []
    one_down = replace(GLANCE, down=("127.0.0.3",))
    assert tick(one_down) == [("node 127.0.0.3", "is down"), ("cluster", "answers again")]
    assert tick(one_down) == []
    assert tick() == [("node 127.0.0.3", "is up again")]
    forget_alerts(cluster)
    assert (tick(), warnings) == ([], [])


def test_an_ingest_that_falls_behind_is_one_alert_a_level(writing: Path, tmp_path: Path) -> None:
    """Half of the TTL, three quarters, all of it, also while the cluster is down; then that it has caught up."""
    home, cluster = ingested_home(tmp_path / "mirror", [ReadLog("t"), ReadLog("forever", 0), ReadLog("new", 400, None)])
    hook, warnings = Hook.find(home, str(writing), TEN_SECONDS), list[str]()

    def tick(after_s: int, seen: MetadataSnapshot | Unreachable = GLANCE) -> list[tuple[str, str]]:
        (tmp_path / "told").unlink(missing_ok=True)
        clock = Clock(Microseconds(POSITION_US + 1 + after_s * SECOND_US))
        for _ in range(2):
            send_alerts(cluster, hook, clock, seen, warnings.append)
        return [(each["who"], each["what"]) for each in told(tmp_path)]

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


def test_a_watch_shows_each_level_of_lag_as_a_change(tmp_path: Path) -> None:
    """From one look to the next; a lag that stays at its level is no change, and neither is one of an earlier look."""
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
def test_what_a_home_had_before_changes_were_noted_is_no_change(
    standin: StandIn, cluster: ScyllaCluster, writing: Path, tmp_path: Path
) -> None:
    """One of an earlier version has no table of changes: it is told of what comes, and its history says so."""
    home = open_home_location(cluster.home.parent.parent)
    run_observation(cluster, Clock())
    shutil.rmtree(cluster.home / "lake" / "platform" / "cluster_changes")
    hook, lake = Hook.find(home, str(writing), TEN_SECONDS), Lake(cluster.open_home().lake)
    send_alerts(cluster, hook, Clock(), GLANCE, print)
    standin.world.generation(SECOND_MS, time_uuid(SECOND_MS), description(time_uuid(SECOND_MS)))
    run_observation(cluster, Clock())
    send_alerts(cluster, hook, Clock(), GLANCE, print)
    assert [each["who"] for each in told(tmp_path)] == ["generation 2026-09-21T15:13:20.000Z"]
    noted = [each.change.what for each in cluster_changes.read_cluster_changes(lake)]
    assert noted == [*["was there before changes were noted"] * 6, noted[-1]]


def test_a_hook_of_a_name_is_looked_for_on_the_path(
    home: HomeLocation, writing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the shell finds it; what is not on it is refused."""
    monkeypatch.setenv("PATH", f"{writing.parent}{os.pathsep}{os.environ['PATH']}")
    assert Hook.find(home, "hook.sh", TEN_SECONDS).program == str(writing)
    with pytest.raises(InputError, match="there is no such program"):
        Hook.find(home, "no-such-hook.sh", TEN_SECONDS)


def _whos(folder: Path) -> set[str]:
    return {each["who"] for each in told(folder)}


def _runs(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"


@contextmanager
def _running(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A program that ends with the block."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        try:
            yield started
        finally:
            started.kill()
