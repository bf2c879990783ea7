"""Changes of a live cluster since the previous observation, and the items that the last observation omitted.

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
"""The subject and the aspect of a topology transition."""
OMITTED_ASPECT = "left out"
"""The aspect of items that the last observation listed but did not import."""
CDC_LOCAL_ASPECT = "cdc_local"
"""The aspect of a node whose `cdc_local` could not be read."""
AspectKey = tuple[str, str]
"""The subject and its aspect; an empty aspect is the subject itself."""
ClusterState = Mapping[AspectKey, str]
"""The state of a cluster by subject and aspect."""


@dataclass(frozen=True)
class ClusterChange:
    """A change of a cluster: `who` is a node, a table, a generation or the cluster, and `what` describes it in words.

    `state` is the state of its `aspect` from then on, None if the aspect no longer exists.
    """

    who: str
    aspect: str
    state: str | None
    what: str


@dataclass(frozen=True)
class RecordedClusterChange:
    """A recorded change: its number in sequence, when it was seen (µs), and by which user, entry point and run."""

    number: int
    at_us: Microseconds
    change: ClusterChange
    seen_by: str
    entry_point: str
    run: str | None

    def document(self) -> dict[str, str]:
        """Return the change in the form of JSON output."""
        return {"at": format_us(self.at_us), "who": self.change.who, "what": self.change.what}

    def facts(self) -> dict[str, object]:
        """Return all fields as plain values."""
        return {
            "number": self.number,
            **self.document(),
            "seen_by": self.seen_by,
            "by": self.entry_point,
            "run": self.run,
        }


@dataclass(frozen=True)
class TopologyTransition:
    """A transition of the cluster's topology, and since when (µs) it is known to be in progress."""

    since_us: Microseconds
    transition: str

    def __str__(self) -> str:
        return f"the topology is changing since {format_us(self.since_us)} ({self.transition})"


def read_cluster_changes(lake: Lake, after: int = -1) -> list[RecordedClusterChange]:
    """Return the changes with a number greater than `after`, oldest first. A home without a cluster has none."""
    if not lake.exists(CLUSTER_CHANGES):
        return []
    return _changes_from_rows(lake.read(CLUSTER_CHANGES, filters=[("number", ">", after)]))


def read_cluster_state(lake: Lake) -> ClusterState:
    """Return the state of the cluster at the last observation. A home without a cluster has none."""
    return _state_after(read_cluster_changes(lake))


def read_topology_transition(lake: Lake) -> TopologyTransition | None:
    """Return the topology transition in progress at the last observation; the observed nodes predate it."""
    changes = [
        change
        for change in read_cluster_changes(lake)
        if (change.change.who, change.change.aspect) == (CLUSTER_SUBJECT, TOPOLOGY_ASPECT)
    ]
    if not changes or changes[-1].change.state is None:
        return None
    return TopologyTransition(changes[-1].at_us, changes[-1].change.state)


def read_unreadable_cdc_local(lake: Lake) -> dict[str, str]:
    """Return the reason for each node, by address or host ID, whose `cdc_local` the last observation could not read."""
    state = _state_after(read_cluster_changes(lake))
    return {who.removeprefix("node "): why for (who, aspect), why in state.items() if aspect == CDC_LOCAL_ASPECT}


def record_cluster_changes(
    lake: Lake, clock: Clock, judge: Callable[[ClusterState], Sequence[ClusterChange]]
) -> list[RecordedClusterChange]:
    """Record the changes that `judge` derives from the last recorded state, in one commit; no commit if there are none.

    One transaction reads, judges and writes, so that of concurrent observers only one records a change.
    """
    recorded: list[RecordedClusterChange] = []

    def rule(rows: pa.Table) -> pa.Table | None:
        recorded.clear()
        before = _changes_from_rows(rows)
        number = before[-1].number + 1 if before else 0
        # The times of changes never go back, even if the clock does.
        at_us = max([clock.now_us(), *(change_before.at_us for change_before in before[-1:])])
        commit_info = new_commit_info()
        entry_point = " ".join(filter(None, (commit_info.author.entry_point, commit_info.author.command)))
        changes = judge(_state_after(before))
        recorded.extend(
            RecordedClusterChange(
                number + index, at_us, change, commit_info.user, entry_point, commit_info.author.run or None
            )
            for index, change in enumerate(changes)
        )
        return (
            pa.Table.from_pylist(
                [_change_row(change_before) for change_before in recorded], schema=CLUSTER_CHANGES.schema
            )
            if recorded
            else None
        )

    lake.transact(CLUSTER_CHANGES, rule)
    return recorded


def _state_after(before: Sequence[RecordedClusterChange]) -> ClusterState:
    state: dict[AspectKey, str] = {}
    for recorded in before:
        key = recorded.change.who, recorded.change.aspect
        if recorded.change.state is None:
            state.pop(key, None)
        else:
            state[key] = recorded.change.state
    return state


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
        "door": each.entry_point,
        "run": each.run,
    }


@dataclass(frozen=True)
class OmittedItem:
    """An omitted item in words, and since when (µs) observations omit it."""

    message: str
    since_us: Microseconds


def read_omitted_items(lake: Lake) -> list[OmittedItem]:
    """Return all omitted items, the longest omitted first."""
    rows = lake.read(LEFT_OUT).to_pylist()
    items = (OmittedItem(row["said"], us_from_datetime(row["since"])) for row in rows)
    return sorted(items, key=lambda item: (item.since_us, item.message))


def store_omitted_items(lake: Lake, clock: Clock, lines: Sequence[str]) -> None:
    """Store the items that an observation omitted, one per line, and delete all others.

    Commits only if the set of items changed.
    """

    def rule(before: pa.Table) -> pa.Table | None:
        since = {row["said"]: row["since"] for row in before.to_pylist()}
        if since.keys() == set(lines):
            return None
        now = datetime_from_us(clock.now_us())
        rows = [{"said": line, "since": since.get(line, now)} for line in dict.fromkeys(lines)]
        return pa.Table.from_pylist(rows, schema=LEFT_OUT.schema)

    lake.transact(LEFT_OUT, rule, whole=True)
