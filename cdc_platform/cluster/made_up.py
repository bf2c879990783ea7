"""Times that a home publishes and its cluster does not: readers would look where nobody writes, in silence."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from cdc_platform.clock import Clock, Milliseconds, format_ms, ms_from_datetime
from cdc_platform.cluster.glance import Glance, Name
from cdc_platform.errors import StateError
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import GENERATION_TIMESTAMPS
from cdc_platform.records import tablet_rows


@dataclass(frozen=True)
class Published:
    """What a home publishes, in ms: generations that have not expired, and the stream sets of each table."""

    times_ms: tuple[Milliseconds, ...]
    sets: tuple[tuple[Name, Milliseconds], ...]


def published(lake: Lake, clock: Clock) -> Published:
    """What a home publishes now. It is asked before the cluster is, since another process may take in more."""
    now_ms = clock.now_ms()
    rows = lake.read(GENERATION_TIMESTAMPS, ["time", "expired"]).to_pylist()
    held = (row["time"] for row in rows if row["expired"] is None or ms_from_datetime(row["expired"]) > now_ms)
    return Published(tuple(sorted(map(ms_from_datetime, held))), tuple(sorted(tablet_rows.listed_sets(lake))))


def assert_none(
    name: str,
    here: Published,
    there: Glance,
    may_be_gone: Callable[[], Collection[Milliseconds]] = frozenset,
) -> None:
    """Hold that the home of the cluster `name` publishes nothing but what the cluster lists.

    What has expired may have gone from there, and so may stream sets before the first that is left. `may_be_gone` is
    asked for more times (ms) of generations that may, where one has.

    Raises:
        StateError: it does.
    """
    lacking = [time_ms for time_ms in here.times_ms if time_ms not in there.times_ms]
    allowed = may_be_gone() if lacking else ()
    for time_ms in lacking:
        if time_ms not in allowed:
            raise _made_up(name, f"generation {format_ms(time_ms)}")
    for table, time_ms in here.sets:
        listed = there.sets.get(table, ())
        if listed and time_ms > min(listed) and time_ms not in listed:
            raise _made_up(name, f"stream set {format_ms(time_ms)} of {'.'.join(table)}")


def _made_up(name: str, what: str) -> StateError:
    return StateError(
        f"the home of {name} publishes {what}, which the cluster does not list: it was made here, or the cluster was "
        "restored, and rows would be looked for where nobody writes them; begin anew with: cdc-platform cluster renew "
        f"{name}; what was read before is kept aside"
    )
