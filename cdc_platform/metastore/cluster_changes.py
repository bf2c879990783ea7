"""Changes of a live cluster since the observation before, and what the last observation left out as incomplete.

The state of a cluster is stored as text, one row per subject and aspect. The observer words the changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from cdc_platform.clock import Clock, Microseconds, datetime_from_us, format_us, us_from_datetime
from cdc_platform.delta import Lake, new_commit_info
from cdc_platform.tables import CLUSTER_CHANGES, LEFT_OUT

CLUSTER_SUBJECT, TOPOLOGY_ASPECT = "cluster", "topology"
"""Who and what it is of which a changing topology is told."""
OMITTED_ASPECT = "left out"
"""The aspect of what the last observation listed and did not take in."""
CDC_LOCAL_ASPECT = "cdc_local"
"""The aspect of a node whose `cdc_local` could not be read."""
AspectKey = tuple[str, str]
"""Who, and what of it; empty: itself."""
ClusterState = Mapping[AspectKey, str]
"""What a cluster is like."""


@dataclass(frozen=True)
class ClusterChange:
    """What became other: `who` is a node, a table, a generation or the cluster, and `what` says it in words.

    `state` is how its `aspect` is from then on; None: there is none any more.
    """

    who: str
    aspect: str
    state: str | None
    what: str


@dataclass(frozen=True)
class RecordedClusterChange:
    """A change as it was noted: the changes before it, when it was seen (µs), by which user, door and run."""

    number: int
    at_us: Microseconds
    change: ClusterChange
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
class TopologyTransition:
    """Since when (µs) the topology of a cluster is known to be changing, and what was going on then."""

    since_us: Microseconds
    transition: str

    def __str__(self) -> str:
        return f"the topology is changing since {format_us(self.since_us)} ({self.transition})"


def read_cluster_changes(lake: Lake, after: int = -1) -> list[RecordedClusterChange]:
    """The changes behind the one with this number, oldest first. A home of no cluster has none."""
    if not lake.exists(CLUSTER_CHANGES):
        return []
    return _changes_from_rows(lake.read(CLUSTER_CHANGES, filters=[("number", ">", after)]))


def read_cluster_state(lake: Lake) -> ClusterState:
    """Return what the cluster was like at the last observation. A home of no cluster has nothing."""
    return _state_after(read_cluster_changes(lake))


def read_topology_transition(lake: Lake) -> TopologyTransition | None:
    """Whether the topology was changing when the cluster was observed last: its nodes are those of before."""
    told = [
        each
        for each in read_cluster_changes(lake)
        if (each.change.who, each.change.aspect) == (CLUSTER_SUBJECT, TOPOLOGY_ASPECT)
    ]
    if not told or told[-1].change.state is None:
        return None
    return TopologyTransition(told[-1].at_us, told[-1].change.state)


def read_unreadable_cdc_local(lake: Lake) -> dict[str, str]:
    """Return why the `cdc_local` of nodes, by address or host ID, could not be read when they were observed last."""
    state = _state_after(read_cluster_changes(lake))
    return {who.removeprefix("node "): why for (who, aspect), why in state.items() if aspect == CDC_LOCAL_ASPECT}


def record_cluster_changes(
    lake: Lake, clock: Clock, judge: Callable[[ClusterState], Sequence[ClusterChange]]
) -> list[RecordedClusterChange]:
    """Note what `judge` finds changed since the state that was noted last, in one commit; nothing where it is nothing.

    Read, judged and noted in one step: of observers at the same moment one alone notes a change.
    """
    made: list[RecordedClusterChange] = []

    def rule(rows: pa.Table) -> pa.Table | None:
        made.clear()
        before = _changes_from_rows(rows)
        number = before[-1].number + 1 if before else 0
        # Times of changes never go back, whatever the clock does.
        at_us = max([clock.now_us(), *(each.at_us for each in before[-1:])])
        seal = new_commit_info()
        door = " ".join(filter(None, (seal.speaker.door, seal.speaker.command)))
        found = judge(_state_after(before))
        made.extend(
            RecordedClusterChange(number + place, at_us, change, seal.user, door, seal.speaker.run or None)
            for place, change in enumerate(found)
        )
        return (
            pa.Table.from_pylist([_change_row(each) for each in made], schema=CLUSTER_CHANGES.schema) if made else None
        )

    lake.transact(CLUSTER_CHANGES, rule)
    return made


def _state_after(before: Sequence[RecordedClusterChange]) -> ClusterState:
    found: dict[AspectKey, str] = {}
    for each in before:
        key = each.change.who, each.change.aspect
        if each.change.state is None:
            found.pop(key, None)
        else:
            found[key] = each.change.state
    return found


def _changes_from_rows(rows: pa.Table) -> list[RecordedClusterChange]:
    return sorted(
        (
            RecordedClusterChange(
                row["number"],
                us_from_datetime(row["at"]),
                ClusterChange(row["who"], row["aspect"], row["state"], row["what"]),
                row["seen_by"],
                row["door"],
                row["run"],
            )
            for row in rows.to_pylist()
        ),
        key=lambda each: each.number,
    )


def _change_row(each: RecordedClusterChange) -> dict[str, object]:
    return {
        "number": each.number,
        "at": datetime_from_us(each.at_us),
        **vars(each.change),
        "seen_by": each.seen_by,
        "door": each.door,
        "run": each.run,
    }


@dataclass(frozen=True)
class OmittedItem:
    """One thing in words, and since when (µs) looks leave it out."""

    said: str
    since_us: Microseconds


def read_omitted_items(lake: Lake) -> list[OmittedItem]:
    """All of it, what was left out first at the head."""
    rows = lake.read(LEFT_OUT).to_pylist()
    found = (OmittedItem(row["said"], us_from_datetime(row["since"])) for row in rows)
    return sorted(found, key=lambda each: (each.since_us, each.said))


def store_omitted_items(lake: Lake, clock: Clock, lines: Sequence[str]) -> None:
    """Keep what a look left out, a line each, in the place of what the one before did; the same is no commit."""

    def rule(before: pa.Table) -> pa.Table | None:
        since = {row["said"]: row["since"] for row in before.to_pylist()}
        if since.keys() == set(lines):
            return None
        now = datetime_from_us(clock.now_us())
        rows = [{"said": line, "since": since.get(line, now)} for line in dict.fromkeys(lines)]
        return pa.Table.from_pylist(rows, schema=LEFT_OUT.schema)

    lake.transact(LEFT_OUT, rule, whole=True)
