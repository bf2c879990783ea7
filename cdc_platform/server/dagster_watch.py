"""Alert people when Dagster's storage or its daemon is gone.

Dagster's own sensors cannot: each tick needs both. A thread of the code server looks at the daemon's heartbeats, which
stop if the daemon has ended, if the database does not answer, and if its disk is full.
"""

from __future__ import annotations

import logging
import shlex
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from cdc_platform.alerts import Alert, deliver_alerts, sync_alerts
from cdc_platform.clock import Clock
from cdc_platform.errors import PlatformError, to_one_line
from cdc_platform.home_location import HomeLocation, open_home_location

if TYPE_CHECKING:
    from dagster import DagsterInstance

_PREFIX = "dagster/"
"""What the keys of these alerts begin with."""
_CHECK_SECONDS = 30.0
STORAGE_SECONDS = 60.0
"""How long Dagster's storage may not answer before it is an alert. Restarts of a database take less."""
DAEMON_SECONDS = 300.0
"""The greatest age of the newest heartbeat of the daemon's sensors. A heartbeat is due every 30 s."""
_SENSOR_DAEMON = "SENSOR"
_logger = logging.getLogger(__name__)


class DagsterWatch:
    """Compares the state of Dagster's storage and daemon with the open alerts of a home.

    `open_instance` opens the storage, `monotonic` returns seconds, and `wall` returns the Unix time in seconds, with
    which Dagster stamps heartbeats.
    """

    def __init__(
        self,
        home: HomeLocation,
        open_instance: Callable[[], DagsterInstance],
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._home, self._open_instance = home, open_instance
        self._monotonic, self._wall = monotonic, wall
        self._started = wall()
        self._answered = monotonic()
        self._may_be_open = True  # an earlier process may have left alerts

    def check(self) -> list[Alert]:
        """Open and resolve the alerts, deliver what destinations have not received, and return what is wrong."""
        alerts = self._find_alerts()
        if alerts or self._may_be_open:
            with suppress(PlatformError):  # without its settings of today, by those that were read last
                self._home = open_home_location(self._home.name, create=False)
            sync_alerts(self._home, Clock(), _PREFIX, alerts)
            deliver_alerts(self._home, _logger.warning)
        self._may_be_open = bool(alerts)
        return alerts

    def _find_alerts(self) -> list[Alert]:
        try:
            with self._open_instance() as instance:
                heartbeat = instance.get_daemon_heartbeats().get(_SENSOR_DAEMON)
        except Exception as error:  # noqa: BLE001 any error of Dagster, its database or its disk
            silent = self._monotonic() - self._answered
            if silent < STORAGE_SECONDS:
                return []
            return [self._alert("storage", f"has not answered for {silent:.0f} s: {_describe_cause(error)}")]
        self._answered = self._monotonic()
        newest = max(self._started, heartbeat.timestamp if heartbeat is not None else 0.0)
        age = self._wall() - newest
        if age < DAEMON_SECONDS:
            return []
        return [self._alert("daemon", f"has sent no heartbeat for {age:.0f} s: it has ended, or its disk is full")]

    def _alert(self, part: str, problem: str) -> Alert:
        message = f"Dagster's {part} {problem}; no sensor, schedule or queued run starts until it is back"
        command = shlex.join(["cdc-platform", "doctor", "--home", self._home.name])
        return Alert(f"{_PREFIX}{part}", "error", message, command)


def _describe_cause(error: BaseException) -> str:
    """Return the message of the database's own error, without the statement that SQLAlchemy appends."""
    while error.__cause__ is not None:
        error = error.__cause__
    return " ".join(to_one_line(str(error)).split()) or type(error).__name__


def watch_dagster(home: HomeLocation, folder: Path) -> None:
    """Check every 30 seconds, in a thread that ends with the process. `folder` is DAGSTER_HOME."""
    from dagster import DagsterInstance

    watch = DagsterWatch(home, lambda: DagsterInstance.from_config(str(folder)))

    def run() -> None:
        while True:
            time.sleep(_CHECK_SECONDS)
            try:
                watch.check()
            except Exception as error:  # noqa: BLE001 the thread must outlive whatever is gone
                _logger.warning("Dagster could not be watched: %s", to_one_line(str(error)))

    threading.Thread(target=run, name="dagster-watch", daemon=True).start()
