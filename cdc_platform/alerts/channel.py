"""Raise and resolve alerts, and send each once to every destination of the settings.

An alert is open from the time it is raised until it is resolved. Delivery compares what is open with what each
destination has received: a new destination gets all open alerts, and one that was unreachable gets the current state.
On a full disk the state lives in the memory of the process, so that the disk's own alert is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from cdc_platform.alerts.destinations import Destination, list_destinations
from cdc_platform.clock import Clock, Microseconds, format_us, seconds_from_us, system_time_us
from cdc_platform.errors import InputError, PlatformError, to_one_line
from cdc_platform.failpoints import AFTER_ALERT_SENT, AFTER_ALERT_STORED, kill_if_selected
from cdc_platform.home_location import HomeLocation
from cdc_platform.redaction import redact_secrets
from cdc_platform.retries import retry_pause_us
from cdc_platform.settings import AlertThreshold
from cdc_platform.storage import FileLock, atomic

STATE_FILE = "alerts.json"
_STATE_LOCK, _DELIVERY_LOCK = "alerts.lock", "alerts.delivery.lock"
DELIVERY_SECONDS = 20.0
"""A delivery starts no message after this time; the next one sends the rest."""
_MAX_MESSAGE = 2000
_LEVELS: tuple[AlertThreshold, ...] = get_args(AlertThreshold)


@dataclass(frozen=True)
class Alert:
    """A problem: `key` identifies it, `message` says what is wrong, and `command` helps (empty: no command does)."""

    key: str
    level: AlertThreshold
    message: str
    command: str = ""


class _StoredAlert(BaseModel):
    """An open alert, or a resolved one that a destination has not heard of yet.

    `number` counts the times that any alert was raised, so that a problem that returns is a new one. `sent` has the
    state that each destination has received.
    """

    model_config = ConfigDict(frozen=True)

    key: str
    number: int
    level: AlertThreshold
    message: str
    command: str = ""
    raised_us: int
    resolved_us: int | None = None
    sent: dict[str, str] = {}

    @property
    def state(self) -> str:
        """Return what a destination must have received: the number with the level, or that it is resolved."""
        return f"{self.number}/{self.level if self.resolved_us is None else 'resolved'}"

    def document(self, home: str) -> dict[str, str | None]:
        """Return the message as destinations get it. Its `id` is equal if the message is repeated."""
        return {
            "id": f"{self.key}#{self.state}",
            "key": self.key,
            "status": "open" if self.resolved_us is None else "resolved",
            "level": self.level,
            "message": self.message,
            "command": self.command or None,
            "home": home,
            "raised_at": format_us(Microseconds(self.raised_us)),
            "resolved_at": None if self.resolved_us is None else format_us(Microseconds(self.resolved_us)),
        }


class _Pause(BaseModel):
    """The consecutive failures of a destination, and when it is tried again (µs)."""

    model_config = ConfigDict(frozen=True)

    failures: int
    retry_at_us: int


class _State(BaseModel):
    """The content of `alerts.json`."""

    number: int = 0
    alerts: dict[str, _StoredAlert] = {}
    pauses: dict[str, _Pause] = {}


_unstored: dict[Path, tuple[_State, int]] = {}
"""The states that could not be written, by file, each with the time (ns) at which the file had changed last."""


def raise_alert(home: HomeLocation, clock: Clock, alert: Alert) -> bool:
    """Open an alert, or change the level of an open one; return False if it is open with this level already.

    This only stores the alert; `deliver_alerts` sends it. An alert of the same level keeps its first message.

    Raises:
        InputError: the key is empty or not printable.
    """
    with _changing(home) as state:
        return _open(state, clock, alert)


def resolve_alert(home: HomeLocation, clock: Clock, key: str) -> bool:
    """Resolve an alert; return False if none of this key is open. `deliver_alerts` sends the message."""
    stored = _read(home).alerts.get(key)
    if stored is None or stored.resolved_us is not None:
        return False
    with _changing(home) as state:
        return _resolve(state, clock, key)


def sync_alerts(home: HomeLocation, clock: Clock, prefix: str, alerts: Iterable[Alert]) -> None:
    """Open these alerts, and resolve all others whose keys begin with `prefix`.

    Raises:
        InputError: a key does not begin with the prefix.
    """
    current = {alert.key: alert for alert in alerts}
    for key in current:
        if not key.startswith(prefix):
            raise InputError(f"alert key {key!r} does not begin with {prefix!r}")
    stored = _read(home).alerts
    unchanged = {key for key, alert in stored.items() if key in current and _is_open(alert, current[key])}
    obsolete = [
        key for key, alert in stored.items() if key.startswith(prefix) and key not in current and not alert.resolved_us
    ]
    if unchanged == current.keys() and not obsolete:
        return
    with _changing(home) as state:
        for alert in current.values():
            _open(state, clock, alert)
        for key in obsolete:
            _resolve(state, clock, key)


def read_open_alerts(home: HomeLocation) -> list[dict[str, str | None]]:
    """Return the open alerts as destinations get them, the oldest first."""
    alerts = [alert for alert in _read(home).alerts.values() if alert.resolved_us is None]
    return [alert.document(home.name) for alert in sorted(alerts, key=lambda alert: alert.number)]


def deliver_alerts(
    home: HomeLocation,
    on_failure: Callable[[str], None],
    *,
    now_us: Callable[[], Microseconds] = system_time_us,
) -> int:
    """Send what destinations have not received yet, oldest first; return the number of messages sent.

    A destination that fails is reported to `on_failure`, and is tried again with growing pauses. One process delivers
    at a time; the others return at once. No report contains an address.
    """
    lock = FileLock(home.path / _DELIVERY_LOCK)
    with suppress(OSError):  # its file cannot be created: a message that arrives twice is better than none
        if not lock.try_acquire():
            return 0
    try:
        return _deliver(home, on_failure, now_us)
    finally:
        lock.release()


def _deliver(home: HomeLocation, on_failure: Callable[[str], None], now_us: Callable[[], Microseconds]) -> int:
    state = _read(home)
    if not state.alerts:
        return 0
    destinations = list_destinations(home)
    begun, sent = now_us(), 0
    for name, alert in _find_unsent(state, home.settings.alerts.level, [one.name for one in destinations]):
        now = now_us()
        if seconds_from_us(now - begun) > DELIVERY_SECONDS:
            break
        pause = _read(home).pauses.get(name)
        if pause is not None and pause.retry_at_us > now:
            continue
        failure = _send(next(one for one in destinations if one.name == name), alert.document(home.name))
        if failure is None:
            kill_if_selected(AFTER_ALERT_SENT)
            sent += 1
        else:
            on_failure(f"alerts: {name}: {failure}; it is tried again")
        _note_result(home, name, alert, failure is None, now)
    _forget_received(home, [one.name for one in destinations])
    return sent


def _send(destination: Destination, document: Mapping[str, str | None]) -> str | None:
    """Send a message; return why it failed, or None."""
    try:
        return destination.send(document)
    except PlatformError as error:
        return str(error)


def _find_unsent(
    state: _State, threshold: AlertThreshold, destinations: Iterable[str]
) -> Iterator[tuple[str, _StoredAlert]]:
    """Yield the messages to send: (destination, alert)."""
    for name in destinations:
        for alert in sorted(state.alerts.values(), key=lambda alert: alert.number):
            if _is_sent_at(alert, threshold) and alert.sent.get(name) != alert.state:
                yield name, alert


def _is_sent_at(alert: _StoredAlert, threshold: AlertThreshold) -> bool:
    return _LEVELS.index(alert.level) <= _LEVELS.index(threshold)


def _note_result(home: HomeLocation, name: str, alert: _StoredAlert, sent: bool, now: Microseconds) -> None:
    """Store that a destination has received an alert, or when it is tried again."""
    with _changing(home) as state:
        if sent:
            state.pauses.pop(name, None)
            current = state.alerts.get(alert.key)
            if current is not None:
                # The alert may have changed meanwhile; then this destination still lacks its new state.
                state.alerts[alert.key] = current.model_copy(update={"sent": {**current.sent, name: alert.state}})
            return
        failures = 1 + (state.pauses[name].failures if name in state.pauses else 0)
        state.pauses[name] = _Pause(failures=failures, retry_at_us=now + retry_pause_us(failures))


def _forget_received(home: HomeLocation, destinations: Iterable[str]) -> None:
    """Remove resolved alerts that every destination has received."""
    threshold = home.settings.alerts.level

    def is_received(alert: _StoredAlert) -> bool:
        names = destinations if _is_sent_at(alert, threshold) else ()
        return alert.resolved_us is not None and all(alert.sent.get(name) == alert.state for name in names)

    if any(is_received(alert) for alert in _read(home).alerts.values()):
        with _changing(home) as state:
            state.alerts = {key: alert for key, alert in state.alerts.items() if not is_received(alert)}


def _open(state: _State, clock: Clock, alert: Alert) -> bool:
    if not alert.key or not alert.key.isprintable():
        raise InputError(f"alert key {alert.key!r} is empty or not printable")
    existing = state.alerts.get(alert.key)
    if existing is not None and _is_open(existing, alert):
        return False
    message = redact_secrets(to_one_line(alert.message))[:_MAX_MESSAGE]
    if existing is not None and existing.resolved_us is None:
        changed = {"level": alert.level, "message": message, "command": alert.command}
        state.alerts[alert.key] = existing.model_copy(update=changed)
        return True
    state.number += 1
    state.alerts[alert.key] = _StoredAlert(
        key=alert.key,
        number=state.number,
        level=alert.level,
        message=message,
        command=alert.command,
        raised_us=clock.now_us(),
    )
    return True


def _is_open(stored: _StoredAlert, alert: Alert) -> bool:
    """Return True if an alert is open with the level that `alert` has."""
    return stored.resolved_us is None and stored.level == alert.level


def _resolve(state: _State, clock: Clock, key: str) -> bool:
    existing = state.alerts.get(key)
    if existing is None or existing.resolved_us is not None:
        return False
    state.alerts[key] = existing.model_copy(update={"resolved_us": clock.now_us()})
    return True


@contextmanager
def _changing(home: HomeLocation) -> Iterator[_State]:
    """Lock the state, yield it to be changed, and store it at once if the block raises nothing.

    A state that cannot be written stays in memory until a later one can, or another process writes the file.
    """
    lock, path = FileLock(home.path / _STATE_LOCK), _state_path(home)
    with suppress(OSError):
        lock.acquire()
    try:
        state = _read(home)
        yield state
        try:
            atomic.write_text_atomically(path, state.model_dump_json(), mode=0o600)
        except OSError:
            _unstored[path] = state, _modified_ns(path)
            return
        _unstored.pop(path, None)
        kill_if_selected(AFTER_ALERT_STORED)
    finally:
        lock.release()


def _state_path(home: HomeLocation) -> Path:
    return home.path / STATE_FILE


def _read(home: HomeLocation) -> _State:
    """Return the current state; a missing or damaged file is an empty one, and its alerts are raised again."""
    path = _state_path(home)
    state, modified_ns = _unstored.get(path, (None, 0))
    if state is not None and modified_ns == _modified_ns(path):
        return state.model_copy(deep=True)
    try:
        return _State.model_validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return _State()


def _modified_ns(path: Path) -> int:
    """Return when a file has changed last; 0 if it does not exist."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0
