"""The alert channel sends each alert to each destination once, also across kills and outages of the receiver."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.receiver import Receiver, receiving

from cdc_platform import failpoints
from cdc_platform.alerts import (
    Alert,
    deliver_alerts,
    raise_alert,
    read_open_alerts,
    resolve_alert,
    sync_alerts,
)
from cdc_platform.clock import SECOND_US, Clock, Microseconds, system_time_us
from cdc_platform.errors import InputError
from cdc_platform.home_location import HomeLocation, open_home_location
from cdc_platform.retries import FIRST_PAUSE_US, LONGEST_PAUSE_US, retry_pause_us
from cdc_platform.settings import AlertSettings

SECRET = "geheim-5f0c3c5e"
PROBLEM = Alert("run/join/a", "error", "run 7 failed: no space left", "cdc-platform status")
CLOCK = Clock(Microseconds(1_800_000_000_000_000))


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """Start a server that records posted messages."""
    with receiving() as started:
        yield started


@pytest.fixture(autouse=True)
def variables(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the addresses, each with a secret in it."""
    host = receiver.url.removeprefix("http://")
    monkeypatch.setenv("HOOK_URL", f"{receiver.url}/{SECRET}?key={SECRET}")
    monkeypatch.setenv("APPRISE_URL", f"json://{host}/{SECRET}")


def home_with(folder: Path, settings: str) -> HomeLocation:
    """Create a home with these lines below [alerts]."""
    home = open_home_location(folder / "home")
    (home.path / "settings.toml").write_text(f"[alerts]\n{settings}\n", encoding="utf-8")
    return open_home_location(home.path)


def deliver(home: HomeLocation, after_us: Microseconds = Microseconds(0)) -> tuple[int, list[str]]:
    """Deliver at a time after now; return the number of messages and the warnings."""
    warnings: list[str] = []
    return deliver_alerts(home, warnings.append, now_us=lambda: system_time_us() + after_us), warnings


def test_an_alert_arrives_once_and_then_its_resolution(tmp_path: Path, receiver: Receiver) -> None:
    """Repeated raising and delivering sends one message, which names the command that helps."""
    home = home_with(tmp_path, 'webhook_env = "HOOK_URL"')
    assert [raise_alert(home, CLOCK, PROBLEM) for _ in range(3)] == [True, False, False]
    assert [deliver(home) for _ in range(3)] == [(1, []), (0, []), (0, [])]
    assert receiver.posted == [
        {
            "id": "run/join/a#1/error",
            "key": "run/join/a",
            "status": "open",
            "level": "error",
            "message": "run 7 failed: no space left",
            "command": "cdc-platform status",
            "home": home.name,
            "raised_at": "2027-01-15T08:00:00.000Z",
            "resolved_at": None,
        }
    ]
    assert read_open_alerts(home) == receiver.posted
    later = Clock(Microseconds(1_800_000_060_000_000))
    assert [resolve_alert(home, later, PROBLEM.key) for _ in range(2)] == [True, False]
    assert [deliver(home) for _ in range(2)] == [(1, []), (0, [])]
    last = receiver.posted[-1]
    assert (last["id"], last["status"], last["resolved_at"]) == (
        "run/join/a#1/resolved",
        "resolved",
        "2027-01-15T08:01:00.000Z",
    )
    assert json.loads((home.path / "alerts.json").read_text(encoding="utf-8"))["alerts"] == {}
    assert raise_alert(home, later, PROBLEM)
    deliver(home)
    assert receiver.posted[-1]["id"] == "run/join/a#2/error"


def test_a_changed_level_is_sent_again(tmp_path: Path, receiver: Receiver) -> None:
    """A rise from warning to error is sent; levels below the threshold are not."""
    home = home_with(tmp_path, 'webhook_env = "HOOK_URL"\nlevel = "warning"')
    for level in ("notice", "warning", "error"):
        assert raise_alert(home, CLOCK, Alert("head", level, f"at {level}"))
        deliver(home)
    assert [(message["level"], message["message"]) for message in receiver.posted] == [
        ("warning", "at warning"),
        ("error", "at error"),
    ]


@pytest.mark.parametrize("failure", [500, 404, 302, "down"])
def test_an_outage_of_the_receiver_loses_nothing(
    failure: int | str, tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delivery is retried with growing pauses; a change meanwhile arrives in its current state."""
    home = home_with(tmp_path, 'webhook_env = "HOOK_URL"')
    working = os.environ["HOOK_URL"]
    if failure == "down":
        with receiving() as stopped:
            monkeypatch.setenv("HOOK_URL", f"{stopped.url}/{SECRET}")
    else:
        receiver.statuses += [int(failure)] * 2
    raise_alert(home, CLOCK, PROBLEM)
    raise_alert(home, CLOCK, Alert("other", "warning", "something else"))
    sent, (warning,) = deliver(home)
    assert sent == 0
    assert warning.startswith("alerts: webhook: the receiver ")
    assert SECRET not in warning
    assert deliver(home, FIRST_PAUSE_US // 2) == (0, []), "it is in its pause"
    sent, (warning,) = deliver(home, FIRST_PAUSE_US + SECOND_US)
    assert sent == 0
    assert deliver(home, FIRST_PAUSE_US * 2) == (0, []), "its second pause is longer"
    monkeypatch.setenv("HOOK_URL", working)
    resolve_alert(home, CLOCK, "other")
    assert deliver(home, FIRST_PAUSE_US * 4) == (2, [])
    assert [(message["key"], message["status"]) for message in receiver.posted] == [
        ("run/join/a", "open"),
        ("other", "resolved"),
    ]


def test_pauses_grow_and_are_bounded() -> None:
    """Pauses start at 30 s, double, and are bounded by half an hour."""
    pauses = [retry_pause_us(failures) for failures in range(40)]
    assert pauses[:4] == [0, FIRST_PAUSE_US, 2 * FIRST_PAUSE_US, 4 * FIRST_PAUSE_US]
    assert pauses == sorted(pauses)
    assert set(pauses[7:]) == {LONGEST_PAUSE_US}


def test_a_new_destination_gets_open_alerts(tmp_path: Path, receiver: Receiver) -> None:
    """A home without a destination stores its open alerts for status; one added later gets them."""
    home = home_with(tmp_path, "")
    raise_alert(home, CLOCK, PROBLEM)
    raise_alert(home, CLOCK, Alert("gone", "error", "it was"))
    resolve_alert(home, CLOCK, "gone")
    assert deliver(home) == (0, [])
    assert [alert["key"] for alert in read_open_alerts(home)] == [PROBLEM.key]
    home = home_with(tmp_path, 'webhook_env = "HOOK_URL"')
    assert deliver(home) == (1, [])
    assert [message["key"] for message in receiver.posted] == [PROBLEM.key]


def test_syncing_resolves_ended_alerts(tmp_path: Path) -> None:
    """Keys with another prefix stay; a key with a wrong prefix is refused; unchanged alerts write no file."""
    home = home_with(tmp_path, "")
    raise_alert(home, CLOCK, Alert("run/x", "error", "failed"))
    sync_alerts(home, CLOCK, "status/", [Alert("status/a", "error", "a"), Alert("status/b", "warning", "b")])
    before = (home.path / "alerts.json").stat().st_mtime_ns
    sync_alerts(home, CLOCK, "status/", [Alert("status/b", "warning", "b2"), Alert("status/a", "error", "a2")])
    assert (home.path / "alerts.json").stat().st_mtime_ns == before
    sync_alerts(home, CLOCK, "status/", [Alert("status/b", "error", "b")])
    assert [(a["key"], a["level"]) for a in read_open_alerts(home)] == [("run/x", "error"), ("status/b", "error")]
    with pytest.raises(InputError, match="does not begin"):
        sync_alerts(home, CLOCK, "status/", [Alert("run/y", "error", "y")])
    with pytest.raises(InputError, match="not printable"):
        raise_alert(home, CLOCK, Alert("a\nb", "error", "y"))


def test_every_destination_gets_each_message(tmp_path: Path, receiver: Receiver) -> None:
    """A program, a webhook and an Apprise service each get the message once; one that fails delays no other."""
    program = tmp_path / "alert.sh"
    program.write_text(f"#!/bin/sh\ncat >> '{tmp_path}/received'; exit $(cat '{tmp_path}/code')\n", encoding="utf-8")
    program.chmod(0o700)
    (tmp_path / "code").write_text("3", encoding="utf-8")
    home = home_with(tmp_path, f'command = "{program}"\nwebhook_env = "HOOK_URL"\napprise_env = "APPRISE_URL"')
    raise_alert(home, CLOCK, PROBLEM)
    sent, (warning,) = deliver(home)
    assert (sent, "exit code 3" in warning) == (2, True)
    (tmp_path / "code").write_text("0", encoding="utf-8")
    (tmp_path / "received").unlink()
    assert deliver(home, FIRST_PAUSE_US + SECOND_US) == (1, [])
    assert json.loads((tmp_path / "received").read_text(encoding="utf-8"))["key"] == PROBLEM.key
    posted, service = receiver.posted
    assert posted["key"] == PROBLEM.key
    assert (service["title"], service["type"]) == ("cdc-platform error: run/join/a", "failure")
    assert service["message"] == f"{PROBLEM.message}\nHome: {home.name}\nRun: {PROBLEM.command}"


def test_slack_and_pagerduty_get_their_own_formats(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slack gets a text, PagerDuty an incident whose key the resolution names. The test replaces only their hosts."""
    from apprise.plugins import pagerduty, slack

    monkeypatch.setattr(slack.NotifySlack, "webhook_url", f"{receiver.url}/services")
    monkeypatch.setattr(pagerduty, "PAGERDUTY_API_LOOKUP", {"us": f"{receiver.url}/v2/enqueue"})
    for plugin in (slack.NotifySlack, pagerduty.NotifyPagerDuty):
        monkeypatch.setattr(plugin, "request_rate_per_sec", 0)
    addresses = tmp_path / "addresses"
    addresses.write_text(
        "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/#ops\n\npagerduty://key123@apikey456\n", encoding="utf-8"
    )
    addresses.chmod(0o600)
    home = home_with(tmp_path, f'apprise_file = "{addresses}"')
    raise_alert(home, CLOCK, PROBLEM)
    assert deliver(home) == (1, [])
    by_path = dict(zip(receiver.paths, receiver.posted, strict=True))
    text = json.dumps(by_path["/services/T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ"])
    assert PROBLEM.message in text
    assert PROBLEM.command in text
    incident = by_path["/v2/enqueue"]
    assert (incident["event_action"], incident["routing_key"]) == ("trigger", "key123")
    assert PROBLEM.message in incident["payload"]["summary"]
    resolve_alert(home, CLOCK, PROBLEM.key)
    assert deliver(home) == (1, [])
    resolved = next(message for message in receiver.posted[2:] if "event_action" in message)
    assert (resolved["event_action"], resolved["dedup_key"]) == ("resolve", incident["dedup_key"])


WRONG_ADDRESSES = {
    "an unset variable": ('webhook_env = "NOT_SET"', "environment variable NOT_SET holds no address"),
    "a missing file": ('webhook_file = "{folder}/none"', "none: No such file or directory"),
    "a file of others": ('webhook_file = "{folder}/open"', "chmod 0600"),
    "an empty file": ('apprise_file = "{folder}/empty"', "holds no address"),
    "no web address": ('webhook_env = "FTP_URL"', "has no http:// or https:// address"),
    "an unknown service": ('apprise_env = "FTP_URL"', "has an address that Apprise does not know"),
    "no program": ('command = "{folder}/none"', "there is no such program"),
}


@pytest.mark.parametrize("case", WRONG_ADDRESSES)
def test_a_wrong_address_causes_a_warning_without_it(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning names what to fix and never contains the address; the alert stays open."""
    settings, reason = WRONG_ADDRESSES[case]
    monkeypatch.setenv("FTP_URL", f"ftp://{SECRET}@host/{SECRET}")
    for name, text, mode in (("open", f"http://{SECRET}", 0o644), ("empty", "\n", 0o600)):
        (tmp_path / name).write_text(text, encoding="utf-8")
        (tmp_path / name).chmod(mode)
    home = home_with(tmp_path, settings.format(folder=tmp_path))
    raise_alert(home, CLOCK, PROBLEM)
    with caplog.at_level(logging.DEBUG):
        sent, (warning,) = deliver(home)
    assert sent == 0
    assert reason in warning
    assert SECRET not in warning + caplog.text
    assert len(read_open_alerts(home)) == 1


@pytest.mark.parametrize("destination", ['webhook_env = "HOOK_URL"', 'apprise_env = "APPRISE_URL"'])
@pytest.mark.parametrize("fails", [False, True])
def test_no_log_and_no_state_has_a_secret(
    fails: bool, destination: str, tmp_path: Path, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the address nor a secret in a message is logged or stored, even at the level DEBUG."""
    home = home_with(tmp_path, destination)
    receiver.statuses += [500] * fails
    message = f"cannot reach s3://user:{SECRET}@host with password={SECRET}"
    with caplog.at_level(logging.DEBUG):
        raise_alert(home, CLOCK, Alert("store", "error", message))
        _, warnings = deliver(home)
    assert bool(warnings) == fails
    stored = (home.path / "alerts.json").read_text(encoding="utf-8")
    assert SECRET not in caplog.text + stored + "".join(warnings) + json.dumps(receiver.posted)
    assert (home.path / "alerts.json").stat().st_mode & 0o077 == 0


_STEPS = """
import sys
from cdc_platform.alerts import Alert, deliver_alerts, raise_alert, resolve_alert
from cdc_platform.clock import Clock
from cdc_platform.home_location import open_home_location

home, step = open_home_location(sys.argv[1]), sys.argv[2]
if step == "raise":
    raise_alert(home, Clock(), Alert("disk", "error", "full"))
elif step == "resolve":
    resolve_alert(home, Clock(), "disk")
deliver_alerts(home, print)
"""


@pytest.mark.parametrize("point", failpoints.ALERT_POINTS)
@pytest.mark.parametrize("killed", ["raise", "resolve"])
def test_a_kill_loses_no_alert(killed: str, point: str, tmp_path: Path, receiver: Receiver) -> None:
    """After a kill at any step and another run, both messages arrive; only a kill after sending repeats one."""
    home = home_with(tmp_path, 'webhook_env = "HOOK_URL"')
    for step in ("raise", "resolve"):
        kill = {failpoints.KILL_AT_VARIABLE: point} if step == killed else {}
        command = [sys.executable, "-c", _STEPS, str(home.path), step]
        completed = subprocess.run(command, env=os.environ | kill, timeout=120, check=False)
        assert completed.returncode == (-signal.SIGKILL if kill else 0)
        if kill:
            subprocess.run(command, env=os.environ, timeout=120, check=True)
    ids = [message["id"] for message in receiver.posted]
    assert list(dict.fromkeys(ids)) == ["disk#1/error", "disk#1/resolved"]
    repeated = {"raise": "disk#1/error", "resolve": "disk#1/resolved"}[killed]
    expected = 2 if point == failpoints.AFTER_ALERT_SENT else 1
    assert [ids.count(message_id) for message_id in dict.fromkeys(ids)] == [
        expected if message_id == repeated else 1 for message_id in dict.fromkeys(ids)
    ]


def test_concurrent_deliveries_send_each_message_once(tmp_path: Path, receiver: Receiver) -> None:
    """Four processes that deliver twenty alerts send each one once."""
    home = home_with(tmp_path, 'webhook_env = "HOOK_URL"')
    for number in range(20):
        raise_alert(home, CLOCK, Alert(f"a/{number}", "error", "x"))
    command = [sys.executable, "-c", _STEPS, str(home.path), "deliver"]
    running = [subprocess.Popen(command, env=os.environ) for _ in range(4)]
    assert [process.wait(120) for process in running] == [0] * 4
    assert sorted(message["key"] for message in receiver.posted) == sorted(f"a/{number}" for number in range(20))


def test_a_damaged_state_counts_as_empty(tmp_path: Path) -> None:
    """A damaged state has no alerts; the next one raised is stored."""
    home = home_with(tmp_path, "")
    (home.path / "alerts.json").write_text("{not json", encoding="utf-8")
    assert read_open_alerts(home) == []
    assert raise_alert(home, CLOCK, PROBLEM)
    assert len(read_open_alerts(home)) == 1


def test_settings_of_alerts_are_checked(tmp_path: Path) -> None:
    """The error names a misspelt key, a value out of bounds and a wrong level."""
    assert home_with(tmp_path, "").settings.alerts == AlertSettings()
    for line, name in (
        ('hook = "x"', "alerts.hook"),
        ("timeout_ms = 1", "alerts.timeout_ms"),
        ('level = "loud"', "alerts.level"),
        ('webhook_env = "http://x"', "alerts.webhook_env"),
    ):
        with pytest.raises(InputError, match=name):
            _ = home_with(tmp_path, line).settings
