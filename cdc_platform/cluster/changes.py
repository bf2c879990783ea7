"""What a live cluster is like by its home, aspect by aspect, and what became other: the words of every change."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from cdc_platform.clock import Clock, Microseconds, format_ms, format_us, parse_time_ms, us_of
from cdc_platform.cluster.generations import LeftOut
from cdc_platform.cql.written import without_notes
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import CLUSTER_CHANGES
from cdc_platform.records import cdc_tables, cluster_changes, ring, tablet_rows
from cdc_platform.records.alterations import altered
from cdc_platform.records.cluster_changes import CLUSTER, KEPT, LEFT_OUT, TOPOLOGY, Change, Key, Noted, State
from cdc_platform.records.table_history import CdcTable
from cdc_platform.ring import Node
from cdc_platform.timeline.timeline import Timeline

REACH, LOOK, UP, STREAM_SET = "reach", "look", "up", "stream set "
"""Aspects: whether the cluster can be reached and looked at, whether a node is up, and one of a
table's stream sets.
"""
WAS_THERE = "was there before changes were noted"
"""What is noted of all that a home had before, which is no change."""
GENERATION = "generation "
PUBLISHED, COMMITTED = "published", "committed"
"""States of a generation: clients can read it, or nodes know it and clients cannot read it yet."""
_GONE = {
    (CLUSTER, TOPOLOGY): "the topology has settled",
    (CLUSTER, REACH): "answers again",
    (CLUSTER, LOOK): "can be looked at again",
}
_MOST_LINES = 6
_ALTERED = "altered last at "
_OPTIONS = re.compile(r"\) WITH cdc = \{(?P<options>.*?)\}")
_SHOWN_APART = ("'enabled'", "'ttl'")


def as_before(transition: str) -> str:
    """What is said of a topology that is changing."""
    return f"the topology is changing ({transition}): nodes are as before, and are taken in when it has settled"


def state_of(lake: Lake) -> dict[Key, str]:
    """What is in a cluster's home now: nodes, tables with a log, stream sets, published generations."""
    found: dict[Key, str] = {}
    for node in ring.members(lake):
        found[f"node {node.address or node.host_id}", ""] = _node(node)
    for table in cdc_tables.cdc_tables(lake):
        found[f"table {table.full_name}", ""] = _table(table)
    for name, time_ms in tablet_rows.listed_sets(lake):
        found[f"table {'.'.join(name)}", f"{STREAM_SET}{format_ms(time_ms)}"] = "listed"
    generations = Timeline.read(lake).known
    newest_ms = max((each.time_ms for each in generations if each.published), default=-1)
    for each in generations:
        if each.published:
            found[f"{GENERATION}{format_ms(each.time_ms)}", ""] = PUBLISHED
        elif each.time_ms > newest_ms and (each.entered or each.kept) and not each.published_v1:
            found[f"{GENERATION}{format_ms(each.time_ms)}", ""] = COMMITTED
    return found


def standing(left_out: Iterable[LeftOut], changing: str | None, not_read: Iterable[LeftOut] = ()) -> dict[Key, str]:
    """What stands in the way of taking in more, as an observation has found it.

    `not_read` are the nodes whose `cdc_local` could not be read.
    """
    found = {(each.who, LEFT_OUT): each.line for each in left_out}
    found |= {(each.who, KEPT): each.line for each in not_read}
    return found if changing is None else {**found, (CLUSTER, TOPOLOGY): changing}


def down(addresses: Iterable[str]) -> dict[Key, str]:
    """What stands in the way where nodes do not answer."""
    return {(f"node {address}", UP): "is down" for address in addresses}


def begin(lake: Lake, clock: Clock) -> None:
    """Note what is in a home already, where nothing was ever noted in it: what comes now is what is new.

    That nothing was there is kept too: who is killed before a first look ends is followed by one that finds some of it.
    """
    if lake.exists(CLUSTER_CHANGES):
        return
    there = state_of(lake)

    def judge(before: State) -> list[Change]:
        return [] if before else [Change(*key, there[key], WAS_THERE) for key in sorted(there, key=_order)]

    if there:
        cluster_changes.note(lake, clock, judge)
    else:
        lake.ensure(CLUSTER_CHANGES)


def note(
    lake: Lake,
    clock: Clock,
    left_out: Sequence[LeftOut],
    changing: str | None,
    not_read: Sequence[LeftOut] = (),
) -> list[Noted]:
    """Note what became other since it was noted last."""

    def judge(before: State) -> list[Change]:
        # Read after what was noted: what another has taken in and noted by then is in it.
        return changes(before, state_of(lake) | standing(left_out, changing, not_read), clock.now_us())

    return cluster_changes.note(lake, clock, judge)


def changes(before: State, after: State, now_us: Microseconds) -> list[Change]:
    """What became other, nodes first. Of what stands in the way it counts that it does: one failure has many words."""
    found = []
    for key in sorted(before.keys() | after.keys(), key=_order):
        old, new = before.get(key), after.get(key)
        if old != new and not (old and new and _is_in_the_way(key)):
            found.append(Change(*key, new, _said(key, old, new, now_us)))
    return found


def _is_in_the_way(key: Key) -> bool:
    return key in _GONE or key[1] in (LEFT_OUT, UP, KEPT)


def _order(key: Key) -> tuple[int, Key]:
    kind = key[0].partition(" ")[0]
    return ("node", "table", "generation").index(kind) if kind != CLUSTER else 3, key


def _said(key: Key, old: str | None, new: str | None, now_us: Microseconds) -> str:
    who, aspect = key
    if key in _GONE:
        return _GONE[key] if new is None else as_before(new) if aspect == TOPOLOGY else new
    if aspect == LEFT_OUT:
        return "is no longer left out" if new is None else f"is left out: {new}"
    if aspect == KEPT:
        return "its cdc_local is read again" if new is None else f"its cdc_local is not known: {new}"
    if aspect == UP:
        return "is up again" if new is None else new
    if aspect.startswith(STREAM_SET):
        time = aspect.removeprefix(STREAM_SET)
        return f"no longer lists its stream set of {time}" if new is None else f"has a stream set from {time} on"
    if who.startswith(GENERATION):
        starts = _starts(who.removeprefix(GENERATION), now_us)
        if new == COMMITTED:
            return f"was committed and is not published yet, {starts}"
        if new is None:
            return "was superseded before it was published" if old == COMMITTED else "is no longer published"
        return f"was published, {starts}"
    if new is None:
        return "went"
    return f"came: {_first(new)}" if old is None else _altered(old, new)


def _starts(time: str, now_us: Microseconds) -> str:
    return f"{'starts' if us_of(parse_time_ms(time)) > now_us else 'started'} {time}"


def _altered(old: str, new: str) -> str:
    said = [f"is now: {_first(new)}"] if _first(old) != _first(new) else []
    before, after = _shown(old), _shown(new)
    lines = [f"- {line}" for line in before if line not in after] + [
        f"+ {line}" for line in after if line not in before
    ]
    if lines:
        more = f" and {len(lines) - _MOST_LINES} more" if len(lines) > _MOST_LINES else ""
        said.append(f"its definition is another: {', '.join(lines[:_MOST_LINES])}{more}")
    return "; ".join(said) or _as_before(old, new)


def _shown(text: str) -> list[str]:
    return [line for line in text.splitlines()[1:] if not line.startswith(_ALTERED)]


def _as_before(old: str, new: str) -> str:
    """What is said of a table that is shown as before; homes of earlier releases do not know when it was altered."""
    before, last = ([line for line in text.splitlines() if line.startswith(_ALTERED)] for text in (old, new))
    if not last:
        return "its definition is in another order"
    return f"was {last[0]}, and looks as before" if before else f"is known by now to have been {last[0]}"


def _first(text: str) -> str:
    return text.partition("\n")[0]


def _node(node: Node) -> str:
    shards = f"{len(node.tokens)} tokens, {node.shard_count} shards, ignore_msb {node.ignore_msb}"
    return f"{shards}, {node.status}, host {node.host_id}"


def _table(table: CdcTable) -> str:
    """TTL and state in the first line, then the definition, a line a column and option, then when it was altered."""
    first = f"TTL {table.ttl_seconds} s, CDC {'on' if table.enabled else 'off'}"
    lines = [line.strip().rstrip(",") for line in without_notes(table.ddl or "").splitlines()]
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
    noted = altered(table.ddl)
    found += [] if noted is None else [f"{_ALTERED}{format_us(noted.at_us)}"]
    return "\n".join([first, *filter(None, found)])
