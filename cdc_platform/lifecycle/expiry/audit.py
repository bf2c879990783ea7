"""The invariants of expiry: what is marked is not held, what is removed is gone, no node names what is gone.

No Spark: times, names and Delta's log are all that is looked at. What holds a generation the purge plan tells.
"""

from __future__ import annotations

from collections.abc import Sequence

from cdc_platform.clock import Clock, format_ms
from cdc_platform.invariants.findings import (
    EXPIRED_NOT_HELD,
    NODE_GENERATION_NOT_REMOVED,
    NODES_KNOW_GENERATION,
    NONE_HALF_REMOVED,
    Finding,
)
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.mirrors import mend
from cdc_platform.lifecycle.expiry import purge_plan, removal
from cdc_platform.lifecycle.expiry.nodes import node_knowledge
from cdc_platform.records import cdc_local, descriptions
from cdc_platform.settings import Settings
from cdc_platform.timeline import Generation, Timeline


def audit_expiry(lake: Lake, clock: Clock, settings: Settings) -> list[Finding]:
    """Every invariant of expiry; none where there never was a generation, that of nodes only where one keeps an ID."""
    timeline = Timeline.read(lake)
    if not timeline.generations:
        return []
    return [
        _not_held(lake, clock, settings),
        _not_half(lake, timeline.generations),
        *_named(lake, timeline),
        *_informed(lake, clock, settings),
    ]


def _not_held(lake: Lake, clock: Clock, settings: Settings) -> Finding:
    """No generation that has expired, as its mark says, is needed by a table, a reader or a node."""
    plan = [each for each in purge_plan.plan(lake, clock, settings) if each.listed]
    now_ms = clock.now_ms()
    held = [each for each in plan if each.marked_ms is not None and each.marked_ms <= now_ms and each.blocked_by]
    sample = ""
    if held:
        sample = f"generation {format_ms(held[0].time_ms)} is marked as expired, but {held[0].reasons[0]}"
    return Finding(EXPIRED_NOT_HELD, max(len(plan), 1), len(held), sample)


def _not_half(lake: Lake, generations: Sequence[Generation]) -> Finding:
    """No generation that readers see lacks its streams, and of a removed one nothing is left."""
    streams = descriptions.published_times(lake)
    bare = [each for each in generations if each.published and each.time_ms not in streams]
    left = removal.unfinished(lake)
    sample = ""
    if bare:
        sample = f"generation {format_ms(bare[0].time_ms)} is listed without any streams rows"
    elif left:
        do = mend(lake, "run: cdc-platform expire")
        sample = f"the removal of generation {format_ms(left[0].time_ms)} is not finished; {do}"
    return Finding(NONE_HALF_REMOVED, len(generations), len(bare) + len(left), sample)


def _informed(lake: Lake, clock: Clock, settings: Settings) -> list[Finding]:
    """Every node knows the newest generation that is published and operates; of some nothing may be known.

    Where nothing is known of any node there is nothing to judge: `status` says so.
    """
    found = node_knowledge(lake, clock, settings)
    judged = 0 if found is None else len(found.informed) + len(found.behind)
    if found is None or not judged:
        return []
    if found.behind:
        return [Finding(NODES_KNOW_GENERATION, judged, len(found.behind), str(found))]
    if not found.unknown:
        return [Finding(NODES_KNOW_GENERATION, judged, 0)]
    host, why = next(iter(found.unknown.items()))
    sample = f"{len(found.unknown)} of {judged + len(found.unknown)} nodes are not known, such as {host}: {why}"
    return [Finding(NODES_KNOW_GENERATION, judged, 0, sample)]


def _named(lake: Lake, timeline: Timeline) -> list[Finding]:
    """No node's `cdc_local` names a removed generation."""
    kept = [(host, id_.time_ms) for host, id_ in cdc_local.kept_ids(lake).items()]
    if not kept:
        return []
    gone = {each.time_ms for each in timeline.removed}
    wrong = [(host, time_ms) for host, time_ms in sorted(kept) if time_ms in gone]
    sample = f"node {wrong[0][0]} names generation {format_ms(wrong[0][1])}, which was removed" if wrong else ""
    return [Finding(NODE_GENERATION_NOT_REMOVED, len(kept), len(wrong), sample)]
