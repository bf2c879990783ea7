"""The state of a live cluster by its home, aspect by aspect, and descriptions of what changed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from cdc_platform.cdclog import TtlLag, read_ingest_lags
from cdc_platform.clock import Clock, Microseconds, format_ms, format_us, parse_time_ms, us_from_ms
from cdc_platform.cql import strip_comments
from cdc_platform.delta import Lake
from cdc_platform.metastore import (
    CDC_LOCAL_ASPECT,
    CLUSTER_SUBJECT,
    OMITTED_ASPECT,
    TOPOLOGY_ASPECT,
    AspectKey,
    CdcTable,
    ClusterChange,
    ClusterState,
    RecordedClusterChange,
    cdc_tables,
    cluster_changes,
    parse_alteration,
    ring,
    tablets,
)
from cdc_platform.ring import Node
from cdc_platform.scylla.generations import SkippedItem
from cdc_platform.tables import CLUSTER_CHANGES
from cdc_platform.timeline import Timeline

REACH, LOOK, UP, STREAM_SET, LAG = "reach", "look", "up", "stream set ", "lag"
"""Aspects: the cluster is reachable, the cluster is observable, a node is up, one of a table's stream sets, and how far
the ingest of its log is behind.
"""
PREEXISTING = "was there before changes were noted"
"""Marks the initial state of a home in the record of changes; it is no change."""
GENERATION = "generation "
PUBLISHED, COMMITTED = "published", "committed"
"""States of a generation: clients can read it, or nodes know it and clients cannot read it yet."""
_RESOLVED = {
    (CLUSTER_SUBJECT, TOPOLOGY_ASPECT): "the topology has settled",
    (CLUSTER_SUBJECT, REACH): "answers again",
    (CLUSTER_SUBJECT, LOOK): "can be looked at again",
}
_LAG_STATES = {
    TtlLag.HALF: "notice: half of the TTL of its unread log rows has passed",
    TtlLag.MOST: "warning: three quarters of the TTL of its unread log rows have passed",
    TtlLag.DYING: "error: rows of its log may have expired unread",
}
"""The state of a table whose ingest is behind. It names no time, so that each level is one change."""
_MAX_LINES = 6
_ALTERED_PREFIX = "altered last at "
_OPTIONS = re.compile(r"\) WITH cdc = \{(?P<options>.*?)\}")
_SHOWN_APART = ("'enabled'", "'ttl'")


def describe_pending_topology(transition: str) -> str:
    """Describe a topology change in progress."""
    return f"the topology is changing ({transition}): nodes are as before, and are taken in when it has settled"


def read_cluster_state(lake: Lake) -> dict[AspectKey, str]:
    """Return the current state of a cluster's home: nodes, tables with a log, stream sets, generations."""
    state: dict[AspectKey, str] = {}
    for node in ring.read_nodes(lake):
        state[f"node {node.address or node.host_id}", ""] = _describe_node(node)
    for table in cdc_tables.read_cdc_tables(lake):
        state[f"table {table.full_name}", ""] = _describe_table(table)
    for name, time_ms in tablets.read_listed_stream_sets(lake):
        state[f"table {'.'.join(name)}", f"{STREAM_SET}{format_ms(time_ms)}"] = "listed"
    generations = Timeline.read(lake).known
    newest_ms = max((generation.time_ms for generation in generations if generation.published), default=-1)
    for generation in generations:
        if generation.published:
            state[f"{GENERATION}{format_ms(generation.time_ms)}", ""] = PUBLISHED
        elif (
            generation.time_ms > newest_ms
            and (generation.entered or generation.node_id)
            and not generation.published_v1
        ):
            state[f"{GENERATION}{format_ms(generation.time_ms)}", ""] = COMMITTED
    return state


def current_problems(
    left_out: Iterable[SkippedItem], changing: str | None, not_read: Iterable[SkippedItem] = ()
) -> dict[AspectKey, str]:
    """Return the problems that an observation found and that keep it from importing more.

    `not_read` are the nodes whose `cdc_local` could not be read.
    """
    problems = {(item.who, OMITTED_ASPECT): item.line for item in left_out}
    problems |= {(item.who, CDC_LOCAL_ASPECT): item.line for item in not_read}
    return problems if changing is None else {**problems, (CLUSTER_SUBJECT, TOPOLOGY_ASPECT): changing}


def down_nodes(addresses: Iterable[str]) -> dict[AspectKey, str]:
    """Return the problem entries of nodes that do not answer."""
    return {(f"node {address}", UP): "is down" for address in addresses}


def with_ingest_lags(problems: ClusterState, lake: Lake, now_us: Microseconds) -> dict[AspectKey, str]:
    """Return problems with the logs whose ingest is behind now, against the TTL of their rows."""
    lags = {
        (f"table {lag.full_name}", LAG): _LAG_STATES[lag.status.lag]
        for lag in read_ingest_lags(lake, now_us)
        if lag.status.lag in _LAG_STATES
    }
    return {key: line for key, line in problems.items() if key[1] != LAG} | lags


def record_initial_state(lake: Lake, clock: Clock) -> None:
    """Record what is already in a home, if nothing was ever recorded in it; later records show only what is new.

    An empty state is recorded too. If the first observation is killed, the next one finds a part of its work, and must
    not take that part for the initial state.
    """
    if lake.exists(CLUSTER_CHANGES):
        return
    initial = read_cluster_state(lake)

    def judge(before: ClusterState) -> list[ClusterChange]:
        return (
            []
            if before
            else [ClusterChange(*key, initial[key], PREEXISTING) for key in sorted(initial, key=_change_order)]
        )

    if initial:
        cluster_changes.record_cluster_changes(lake, clock, judge)
    else:
        lake.ensure(CLUSTER_CHANGES)


def record_changes(
    lake: Lake,
    clock: Clock,
    left_out: Sequence[SkippedItem],
    changing: str | None,
    not_read: Sequence[SkippedItem] = (),
) -> list[RecordedClusterChange]:
    """Record what changed since the last record."""

    def judge(before: ClusterState) -> list[ClusterChange]:
        # Read after the recorded state, so that this includes what another process has imported and recorded by then.
        return diff_states(
            before, read_cluster_state(lake) | current_problems(left_out, changing, not_read), clock.now_us()
        )

    return cluster_changes.record_cluster_changes(lake, clock, judge)


def diff_states(before: ClusterState, after: ClusterState, now_us: Microseconds) -> list[ClusterChange]:
    """Return what changed, nodes first. A problem whose text alone changed is no change: one failure has many texts."""
    changes = []
    for key in sorted(before.keys() | after.keys(), key=_change_order):
        old, new = before.get(key), after.get(key)
        if old != new and not (old and new and _is_problem(key)):
            changes.append(ClusterChange(*key, new, _describe_change(key, old, new, now_us)))
    return changes


def _is_problem(key: AspectKey) -> bool:
    return key in _RESOLVED or key[1] in (OMITTED_ASPECT, UP, CDC_LOCAL_ASPECT)


def _change_order(key: AspectKey) -> tuple[int, AspectKey]:
    kind = key[0].partition(" ")[0]
    return ("node", "table", "generation").index(kind) if kind != CLUSTER_SUBJECT else 3, key


def _describe_change(key: AspectKey, old: str | None, new: str | None, now_us: Microseconds) -> str:
    who, aspect = key
    if key in _RESOLVED:
        return _RESOLVED[key] if new is None else describe_pending_topology(new) if aspect == TOPOLOGY_ASPECT else new
    if aspect == OMITTED_ASPECT:
        return "is no longer left out" if new is None else f"is left out: {new}"
    if aspect == CDC_LOCAL_ASPECT:
        return "its cdc_local is read again" if new is None else f"its cdc_local is not known: {new}"
    if aspect == LAG:
        return "the ingest of its log has caught up" if new is None else new
    if aspect == UP:
        return "is up again" if new is None else new
    if aspect.startswith(STREAM_SET):
        time = aspect.removeprefix(STREAM_SET)
        return f"no longer lists its stream set of {time}" if new is None else f"has a stream set from {time} on"
    if who.startswith(GENERATION):
        starts = _describe_start(who.removeprefix(GENERATION), now_us)
        if new == COMMITTED:
            return f"was committed and is not published yet, {starts}"
        if new is None:
            return "was superseded before it was published" if old == COMMITTED else "is no longer published"
        return f"was published, {starts}"
    if new is None:
        return "went"
    return f"came: {_first_line(new)}" if old is None else _describe_alteration(old, new)


def _describe_start(time: str, now_us: Microseconds) -> str:
    return f"{'starts' if us_from_ms(parse_time_ms(time)) > now_us else 'started'} {time}"


def _describe_alteration(old: str, new: str) -> str:
    parts = [f"is now: {_first_line(new)}"] if _first_line(old) != _first_line(new) else []
    before, after = _definition_lines(old), _definition_lines(new)
    lines = [f"- {line}" for line in before if line not in after] + [
        f"+ {line}" for line in after if line not in before
    ]
    if lines:
        more = f" and {len(lines) - _MAX_LINES} more" if len(lines) > _MAX_LINES else ""
        parts.append(f"its definition is another: {', '.join(lines[:_MAX_LINES])}{more}")
    return "; ".join(parts) or _describe_unchanged(old, new)


def _definition_lines(text: str) -> list[str]:
    return [line for line in text.splitlines()[1:] if not line.startswith(_ALTERED_PREFIX)]


def _describe_unchanged(old: str, new: str) -> str:
    """Describe a table whose definition reads as before; homes of earlier releases lack its alteration time."""
    before, last = ([line for line in text.splitlines() if line.startswith(_ALTERED_PREFIX)] for text in (old, new))
    if not last:
        return "its definition is in another order"
    return f"was {last[0]}, and looks as before" if before else f"is known by now to have been {last[0]}"


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def _describe_node(node: Node) -> str:
    shards = f"{len(node.tokens)} tokens, {node.shard_count} shards, ignore_msb {node.ignore_msb}"
    return f"{shards}, {node.status}, host {node.host_id}"


def _describe_table(table: CdcTable) -> str:
    """Return TTL and state on the first line, then the definition by line, then when the table was altered."""
    first = f"TTL {table.ttl_seconds} s, CDC {'on' if table.enabled else 'off'}"
    lines = [line.strip().rstrip(",") for line in strip_comments(table.ddl or "").splitlines()]
    details = []
    for line in lines:
        options = _OPTIONS.match(line)
        if options is None:
            details.append(line)
            continue
        listed = sorted(option.strip() for option in options["options"].split(","))
        details += [f"cdc {option}" for option in listed if option and not option.startswith(_SHOWN_APART)]
        rest = line[options.end() :].strip(" ;")
        details += [rest] if rest else []
    noted = parse_alteration(table.ddl)
    details += [] if noted is None else [f"{_ALTERED_PREFIX}{format_us(noted.at_us)}"]
    return "\n".join([first, *filter(None, details)])
