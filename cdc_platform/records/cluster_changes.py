"""The owner of `platform.cluster_changes`: what became other in a live cluster, when, and who saw it.

What a cluster is like is kept aspect by aspect as text; what the words of a change are is the observer's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from cdc_platform.clock import Clock, Microseconds, format_us, from_datetime, to_datetime
from cdc_platform.lake.envelope import sealed
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import CLUSTER_CHANGES

CLUSTER, TOPOLOGY = "cluster", "topology"
"""Who and what it is of which a changing topology is told."""
LEFT_OUT = "left out"
"""The aspect of what the last observation listed and did not take in."""
KEPT = "cdc_local"
"""The aspect of a node whose `cdc_local` could not be read."""
Key = tuple[str, str]
"""Who, and what of it; empty: itself."""
State = Mapping[Key, str]
"""What a cluster is like."""


@dataclass(frozen=True)
class Change:
    """What became other: `who` is a node, a table, a generation or the cluster, and `what` says it in words.

    `state` is how its `aspect` is from then on; None: there is none any more.
    """

    who: str
    aspect: str
    state: str | None
    what: str


@dataclass(frozen=True)
class Noted:
    """A change as it was noted: the changes before it, when it was seen (µs), by which user, door and run."""

    number: int
    at_us: Microseconds
    change: Change
    seen_by: str
    door: str
    run: str | None

    def document(self) -> dict[str, str]:
        """The change as JSON has it."""
        return {"at": format_us(self.at_us), "who": self.change.who, "what": self.change.what}

    def facts(self) -> dict[str, object]:
        """All of it in plain values."""
        return {"number": self.number, **self.document(), "seen_by": self.seen_by, "by": self.door, "run": self.run}


@dataclass(frozen=True)
class Changing:
    """Since when (µs) the topology of a cluster is known to be changing, and what was going on then."""

    since_us: Microseconds
    transition: str

    def __str__(self) -> str:
        return f"the topology is changing since {format_us(self.since_us)} ({self.transition})"


def noted(lake: Lake, after: int = -1) -> list[Noted]:
    """The changes behind the one with this number, oldest first. A home of no cluster has none."""
    if not lake.exists(CLUSTER_CHANGES):
        return []
    return _of_rows(lake.read(CLUSTER_CHANGES, filters=[("number", ">", after)]))


def standing(lake: Lake) -> State:
    """Return what the cluster was like at the last observation. A home of no cluster has nothing."""
    return _state(noted(lake))


def changing(lake: Lake) -> Changing | None:
    """Whether the topology was changing when the cluster was observed last: its nodes are those of before."""
    told = [each for each in noted(lake) if (each.change.who, each.change.aspect) == (CLUSTER, TOPOLOGY)]
    if not told or told[-1].change.state is None:
        return None
    return Changing(told[-1].at_us, told[-1].change.state)


def not_read(lake: Lake) -> dict[str, str]:
    """Return why the `cdc_local` of nodes, by address or host ID, could not be read when they were observed last."""
    state = _state(noted(lake))
    return {who.removeprefix("node "): why for (who, aspect), why in state.items() if aspect == KEPT}


def note(lake: Lake, clock: Clock, judge: Callable[[State], Sequence[Change]]) -> list[Noted]:
    """Note what `judge` finds changed since the state that was noted last, in one commit; nothing where it is nothing.

    Read, judged and noted in one step: of observers at the same moment one alone notes a change.
    """
    made: list[Noted] = []

    def rule(rows: pa.Table) -> pa.Table | None:
        made.clear()
        before = _of_rows(rows)
        number = before[-1].number + 1 if before else 0
        # Times of changes never go back, whatever the clock does.
        at_us = max([clock.now_us(), *(each.at_us for each in before[-1:])])
        seal = sealed()
        door = " ".join(filter(None, (seal.speaker.door, seal.speaker.command)))
        found = judge(_state(before))
        made.extend(
            Noted(number + place, at_us, change, seal.user, door, seal.speaker.run or None)
            for place, change in enumerate(found)
        )
        return pa.Table.from_pylist([_row(each) for each in made], schema=CLUSTER_CHANGES.schema) if made else None

    lake.transact(CLUSTER_CHANGES, rule)
    return made


def _state(before: Sequence[Noted]) -> State:
    found: dict[Key, str] = {}
    for each in before:
        key = each.change.who, each.change.aspect
        if each.change.state is None:
            found.pop(key, None)
        else:
            found[key] = each.change.state
    return found


def _of_rows(rows: pa.Table) -> list[Noted]:
    return sorted(
        (
            Noted(
                row["number"],
                from_datetime(row["at"]),
                Change(row["who"], row["aspect"], row["state"], row["what"]),
                row["seen_by"],
                row["door"],
                row["run"],
            )
            for row in rows.to_pylist()
        ),
        key=lambda each: each.number,
    )


def _row(each: Noted) -> dict[str, object]:
    return {
        "number": each.number,
        "at": to_datetime(each.at_us),
        **vars(each.change),
        "seen_by": each.seen_by,
        "door": each.door,
        "run": each.run,
    }
