"""The joins of the demo as its acts and its report tell of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cdc_platform.clock import Microseconds, Milliseconds, us_of
from cdc_platform.errors import StateError

if TYPE_CHECKING:
    from cdc_platform.lake.lake import Lake
    from cdc_platform.records.inbox import BootstrapEvent


@dataclass(frozen=True)
class Join:
    """One join of the demo. `checks` says for each invariant how much was looked at; empty where nothing had to run."""

    event: BootstrapEvent
    seconds: float | None = None
    checks: Mapping[str, int] = field(default_factory=dict)


def log_switch_us(lake: Lake, joins: Sequence[Join]) -> Microseconds:
    """The switch (µs) around which the demo writes to a table: the one that takes keys to the second node."""
    return us_of(time_ms_of(lake, joins[1]))


def time_ms_of(lake: Lake, join: Join) -> Milliseconds:
    """The timestamp of a finished join's generation."""
    from cdc_platform.records import ledger

    time_ms = ledger.introduced_at_ms(lake, join.event.generation_id)
    if time_ms is None:
        raise StateError(f"the join of {join.event.node.address} is not finished; run the demo again")
    return time_ms
