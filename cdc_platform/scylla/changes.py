"""The state of a live cluster by its home, aspect by aspect, and descriptions of what changed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

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

REACH, LOOK, UP, STREAM_SET = "reach", "look", "up", "stream set "
"""Aspects: whether the cluster can be reached and looked at, whether a node is up, and one of a
table's stream sets.
"""
PREEXISTING = "was there before changes were noted"
"""What is noted of all that a home had before, which is no change."""
GENERATION = "generation "
PUBLISHED, COMMITTED = "published", "committed"
"""States of a generation: clients can read it, or nodes know it and clients cannot read it yet."""
_RESOLVED = {
    (CLUSTER_SUBJECT, TOPOLOGY_ASPECT): "the topology has settled",
    (CLUSTER_SUBJECT, REACH): "answers again",
    (CLUSTER_SUBJECT, LOOK): "can be looked at again",
}
_MAX_LINES = 6
_ALTERED_PREFIX = "altered last at "
_OPTIONS = re.compile(r"\) WITH cdc = \{(?P<options>.*?)\}")
_SHOWN_APART = ("'enabled'", "'ttl'")


def describe_pending_topology(transition: str) -> str:
    """What is said of a topology that is changing."""
    return f"the topology is changing ({transition}): nodes are as before, and are taken in when it has settled"


def read_cluster_state(lake: Lake) -> dict[AspectKey, str]:
    """What is in a cluster's home now: nodes, tables with a log, stream sets, published generations."""
    found: dict[AspectKey, str] = {}
    for node in ring.read_nodes(lake):
        found[f"node {node.address or node.host_id}", ""] = _describe_node(node)
    for table in cdc_tables.read_cdc_tables(lake):
        found[f"table {table.full_name}", ""] = _describe_table(table)
    for name, time_ms in tablets.read_listed_stream_sets(lake):
        found[f"table {'.'.join(name)}", f"{STREAM_SET}{format_ms(time_ms)}"] = "listed"
    generations = Timeline.read(lake).known
    newest_ms = max((each.time_ms for each in generations if each.published), default=-1)
    for each in generations:
        if each.published:
            found[f"{GENERATION}{format_ms(each.time_ms)}", ""] = PUBLISHED
        elif each.time_ms > newest_ms and (each.entered or each.kept) and not each.published_v1:
            found[f"{GENERATION}{format_ms(each.time_ms)}", ""] = COMMITTED
    return found


def current_problems(
    left_out: Iterable[SkippedItem], changing: str | None, not_read: Iterable[SkippedItem] = ()
) -> dict[AspectKey, str]:
    """What stands in the way of taking in more, as an observation has found it.

    `not_read` are the nodes whose `cdc_local` could not be read.
    """
    found = {(each.who, OMITTED_ASPECT): each.line for each in left_out}
    found |= {(each.who, CDC_LOCAL_ASPECT): each.line for each in not_read}
    return found if changing is None else {**found, (CLUSTER_SUBJECT, TOPOLOGY_ASPECT): changing}


def down_nodes(addresses: Iterable[str]) -> dict[AspectKey, str]:
    """What stands in the way where nodes do not answer."""
    return {(f"node {address}", UP): "is down" for address in addresses}


def record_initial_state(lake: Lake, clock: Clock) -> None:
    """Note what is in a home already, where nothing was ever noted in it: what comes now is what is new.

    That nothing was there is kept too: who is killed before a first look ends is followed by one that finds some of it.
    """
    if lake.exists(CLUSTER_CHANGES):
        return
    there = read_cluster_state(lake)

    def judge(before: ClusterState) -> list[ClusterChange]:
        return (
            [] if before else [ClusterChange(*key, there[key], PREEXISTING) for key in sorted(there, key=_change_order)]
        )

    if there:
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
    """Note what became other since it was noted last."""

    def judge(before: ClusterState) -> list[ClusterChange]:
        # Read after what was noted: what another has taken in and noted by then is in it.
        return diff_states(
            before, read_cluster_state(lake) | current_problems(left_out, changing, not_read), clock.now_us()
        )

    return cluster_changes.record_cluster_changes(lake, clock, judge)


def diff_states(before: ClusterState, after: ClusterState, now_us: Microseconds) -> list[ClusterChange]:
    """What became other, nodes first. Of what stands in the way it counts that it does: one failure has many words."""
    found = []
    for key in sorted(before.keys() | after.keys(), key=_change_order):
        old, new = before.get(key), after.get(key)
        if old != new and not (old and new and _is_problem(key)):
            found.append(ClusterChange(*key, new, _describe_change(key, old, new, now_us)))
    return found


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
    said = [f"is now: {_first_line(new)}"] if _first_line(old) != _first_line(new) else []
    before, after = _definition_lines(old), _definition_lines(new)
    lines = [f"- {line}" for line in before if line not in after] + [
        f"+ {line}" for line in after if line not in before
    ]
    if lines:
        more = f" and {len(lines) - _MAX_LINES} more" if len(lines) > _MAX_LINES else ""
        said.append(f"its definition is another: {', '.join(lines[:_MAX_LINES])}{more}")
    return "; ".join(said) or _describe_unchanged(old, new)


def _definition_lines(text: str) -> list[str]:
    return [line for line in text.splitlines()[1:] if not line.startswith(_ALTERED_PREFIX)]


def _describe_unchanged(old: str, new: str) -> str:
    """What is said of a table that is shown as before; homes of earlier releases do not know when it was altered."""
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
    """TTL and state in the first line, then the definition, a line a column and option, then when it was altered."""
    first = f"TTL {table.ttl_seconds} s, CDC {'on' if table.enabled else 'off'}"
    lines = [line.strip().rstrip(",") for line in strip_comments(table.ddl or "").splitlines()]
    found = []
    for line in lines:
        options = _OPTIONS.match(line)
        if options is None:
            found.append(line)
            continue
        listed = sorted(each.strip() for each in options["options"].split(","))
        found += [f"cdc {each}" for each in listed if each and not each.startswith(_SHOWN_APART)]
        rest = line[options.end() :].strip(" ;")
        found += [rest] if rest else []
    noted = parse_alteration(table.ddl)
    found += [] if noted is None else [f"{_ALTERED_PREFIX}{format_us(noted.at_us)}"]
    return "\n".join([first, *filter(None, found)])
