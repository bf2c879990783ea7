"""How far each event of the inbox has got, from what its join has left so far. Small tables and Delta's log; no Spark.

A join that was killed stands where it was killed: nobody has to remember that it ran.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from cdc_platform.clock import Microseconds, Milliseconds, from_datetime, ms_from_datetime
from cdc_platform.generations.switch import Phase
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import (
    BOOTSTRAP_EVENTS,
    GENERATION_DESCRIPTIONS_V2,
    GENERATIONS,
    TOPOLOGY_DESCRIPTIONS,
    Table,
)
from cdc_platform.records import descriptions, generation_data, inbox, switches
from cdc_platform.records.ring import NORMAL, statuses


class Reached(StrEnum):
    """The last step that left something behind, in the order of the steps."""

    QUEUED = "queued"
    DESCRIBED = "described"
    INSERTED = "inserted"
    SWITCHING = "nodes are switching"
    ABORTED = "its switch was aborted"
    TIMED = "has its timestamp"
    IN_RING = "in the ring"
    STREAMS_SHOWN = "streams published"
    LISTED = "timestamp published"
    FINISHED = "finished"
    WITHDRAWN = "withdrawn"


AFTER_TIMESTAMP = frozenset({Reached.TIMED, Reached.IN_RING, Reached.STREAMS_SHOWN, Reached.LISTED})
"""Where a join cannot be taken back any more, and is not finished."""


@dataclass(frozen=True)
class Progress:
    """An event of the inbox and how far it has got.

    `queued_at_us` (µs); `time_ms`: the timestamp (ms) that its generation was given, `timed_at_ms` when; None before.
    `is_next`: it is the first that is not finished, so that nothing waits before it.
    """

    event_id: str
    kind: str
    host_id: str
    generation_id: str
    queued_at_us: Microseconds
    reached: Reached
    time_ms: Milliseconds | None
    timed_at_ms: Milliseconds | None
    is_next: bool

    @property
    def is_open(self) -> bool:
        """Whether something of it is left to do."""
        return self.reached not in (Reached.FINISHED, Reached.WITHDRAWN)

    @property
    def do(self) -> str | None:
        """The command that ends it; None where nothing is left to do."""
        return f"cdc-platform {' '.join(self.ends)}" if self.is_open else None

    @property
    def ends(self) -> tuple[str, ...]:
        """The words of the command that ends it: what cannot be finished is taken back."""
        return ("bootstrap", "--withdraw" if self.reached is Reached.ABORTED else "--finish", self.event_id)


def progress(lake: Lake) -> list[Progress]:
    """Every event of the inbox, oldest first, the finished and the withdrawn ones among them."""
    columns = ["event_id", "kind", "host_id", "generation_id", "created_at"]
    events = lake.read(BOOTSTRAP_EVENTS, columns).sort_by([("created_at", "ascending"), ("event_id", "ascending")])
    rows = events.to_pylist()
    withdrawn = {row["generation_id"] for row in rows if row["kind"] == inbox.WITHDRAW}
    left = _Left(lake)
    found: list[Progress] = []
    ahead = False
    for row in (row for row in rows if row["kind"] in inbox.MAKING):
        each = left.of(row, withdrawn=row["generation_id"] in withdrawn, is_next=not ahead)
        ahead = ahead or each.is_open
        found.append(each)
    return found


class _Left:
    """What joins have left in each table."""

    def __init__(self, lake: Lake) -> None:
        self._ledger = {row["generation_id"]: row for row in lake.read(GENERATIONS).to_pylist()}
        self._described = _keys(lake, TOPOLOGY_DESCRIPTIONS)
        self._inserted = _keys(lake, GENERATION_DESCRIPTIONS_V2)
        self._cells = set(generation_data.described_times(lake).tolist())
        self._switching = {each.generation_id for each in switches.unfinished(lake)}
        self._aborted = {each.generation_id for each in switches.switches(lake) if each.phase is Phase.ABORTED}
        self._statuses = statuses(lake)
        self._shown, self._listed = descriptions.published_times(lake), descriptions.listed_times(lake)

    def of(self, event: dict[str, Any], *, withdrawn: bool, is_next: bool) -> Progress:
        """How far an event has got."""
        entered = self._ledger.get(event["generation_id"])
        # Of the first format the time comes before the data; no node knows of it before that.
        timed = entered is not None and (
            entered["format"] != "v1" or ms_from_datetime(entered["time"]) in {*self._cells, *self._listed}
        )
        reached = Reached.WITHDRAWN if withdrawn else self._reached(event, entered if timed else None)
        return Progress(
            event["event_id"],
            event["kind"],
            event["host_id"],
            event["generation_id"],
            from_datetime(event["created_at"]),
            reached,
            None if entered is None else ms_from_datetime(entered["time"]),
            None if entered is None else ms_from_datetime(entered["created_at"]),
            is_next and reached not in (Reached.FINISHED, Reached.WITHDRAWN),
        )

    def _reached(self, event: dict[str, Any], entered: dict[str, Any] | None) -> Reached:
        id_ = event["generation_id"]
        if entered is None:
            if id_ in self._aborted:
                return Reached.ABORTED
            if id_ in self._switching:
                return Reached.SWITCHING
            return Reached.INSERTED if id_ in self._inserted else self._before(id_)
        time_ms = ms_from_datetime(entered["time"])
        if entered["published_at"] is not None:
            return Reached.FINISHED
        if time_ms in self._listed:
            return Reached.LISTED
        if time_ms in self._shown:
            return Reached.STREAMS_SHOWN
        joined = event["kind"] == inbox.JOIN and self._statuses.get(event["host_id"]) == NORMAL
        return Reached.IN_RING if joined else Reached.TIMED

    def _before(self, id_: str) -> Reached:
        return Reached.DESCRIBED if id_ in self._described else Reached.QUEUED


def _keys(lake: Lake, table: Table) -> set[object]:
    return {part.key[0] for part in lake.slices(table) if part.rows}
