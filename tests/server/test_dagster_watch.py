"""Alerts about Dagster itself, which its own sensors cannot raise."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from dagster import DagsterInstance
from dagster._daemon.types import DaemonHeartbeat
from support.files.small_disk import small_disk
from support.receiver import receiving

from cdc_platform.home_location import HomeLocation, open_home_location
from cdc_platform.server.dagster_watch import DAEMON_SECONDS, STORAGE_SECONDS, DagsterWatch

pytestmark = pytest.mark.dagster


class Clocks:
    """Both clocks of a watch, which a test advances."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def home_with_webhook(folder: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> HomeLocation:
    """A home whose alerts are posted to a receiver."""
    monkeypatch.setenv("HOOK_URL", url)
    home = open_home_location(folder)
    (home.path / "settings.toml").write_text('[alerts]\nwebhook_env = "HOOK_URL"\n', encoding="utf-8")
    return open_home_location(folder)


def watch_of(home: HomeLocation, folder: Path, clocks: Clocks) -> DagsterWatch:
    """A watch of Dagster's storage in a folder."""
    return DagsterWatch(home, lambda: DagsterInstance.from_config(str(folder)), monotonic=clocks, wall=clocks)


def beat(folder: Path, at: float) -> None:
    """Store a heartbeat of the daemon's sensors."""
    with DagsterInstance.from_config(str(folder)) as instance:
        instance.add_daemon_heartbeat(DaemonHeartbeat(at, "SENSOR", "a-daemon", []))


def test_a_daemon_without_heartbeats_is_an_alert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The alert opens once, without a first heartbeat or after the last one, and the next heartbeat resolves it."""
    (tmp_path / "dagster").mkdir()
    (tmp_path / "dagster" / "dagster.yaml").touch()
    with receiving() as receiver:
        home, clocks = home_with_webhook(tmp_path / "home", receiver.url, monkeypatch), Clocks()
        watch = watch_of(home, tmp_path / "dagster", clocks)
        assert watch.check() == []
        for _ in range(2):
            clocks.now += DAEMON_SECONDS
            (alert,) = watch.check()
        assert alert.message.startswith("Dagster's daemon has sent no heartbeat for 600 s: ")
        assert alert.command == f"cdc-platform doctor --home {home.name}"
        beat(tmp_path / "dagster", clocks.now)
        assert watch.check() == []
        clocks.now += DAEMON_SECONDS - 1
        assert watch.check() == []
        clocks.now += 1
        assert [alert.key for alert in watch.check()] == ["dagster/daemon"]
        assert watch_of(home, tmp_path / "dagster", clocks).check() == []  # a new process resolves what it finds
    assert [(message["key"], message["status"]) for message in receiver.posted] == [
        ("dagster/daemon", "open"),
        ("dagster/daemon", "resolved"),
    ] * 2


def test_an_unreadable_storage_is_an_alert_also_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The alert is sent once after a minute, although the home can store no state, and resolved after the outage."""
    folder = tmp_path / "dagster"
    folder.mkdir()
    (folder / "dagster.yaml").touch()
    with receiving() as receiver, small_disk(tmp_path / "disk", 1 << 20) as disk:
        home, clocks = home_with_webhook(disk / "home", receiver.url, monkeypatch), Clocks()
        watch = watch_of(home, folder, clocks)
        assert watch.check() == []
        (folder / "dagster.yaml").write_text("no: such: thing", encoding="utf-8")
        room = os.statvfs(disk)
        (disk / "filler").write_bytes(b"\0" * (room.f_bavail * room.f_frsize))
        clocks.now += STORAGE_SECONDS - 1
        assert watch.check() == []
        for _ in range(3):
            clocks.now += STORAGE_SECONDS
            (alert,) = watch.check()
        assert alert.message.startswith("Dagster's storage has not answered for 239 s: ")
        assert not (home.path / "alerts.json").exists()
        (folder / "dagster.yaml").write_text("", encoding="utf-8")
        beat(folder, clocks.now)
        assert watch.check() == []
    assert [message["status"] for message in receiver.posted] == ["open", "resolved"]
    assert receiver.posted[0]["message"].startswith("Dagster's storage has not answered for 119 s: ")
