"""Audits of lifecycle work: the rewrite, expiry, and the fit of the newest generation to the ring. No Spark.

Each applies the rules that the work itself uses, so that both give one answer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cdc_platform.checks import (
    EXPIRED_NOT_HELD,
    GENERATIONS_RETRIEVABLE,
    LIVE_GENERATIONS_REWRITTEN,
    NODE_GENERATION_NOT_REMOVED,
    NODES_KNOW_GENERATION,
    NONE_HALF_REMOVED,
    REWRITTEN_EQUALS_V1,
    STREAMS_FIT_THE_RING,
    Finding,
    InvariantTally,
    compare_v1_with_published,
    finding_from_tallies,
)
from cdc_platform.clock import Clock, format_ms
from cdc_platform.delta import Lake, choose_remedy
from cdc_platform.generations import DamageKind, GenerationDamage
from cdc_platform.lifecycle import expiry, repair, rewrite
from cdc_platform.lifecycle.node_knowledge import read_node_knowledge
from cdc_platform.metastore import (
    STATUS_NORMAL,
    JoinStage,
    cdc_local,
    generations,
    read_current_ring,
    read_join_progress,
    read_node_statuses,
)
from cdc_platform.metastore import generations as metastore_generations
from cdc_platform.settings import Settings
from cdc_platform.timeline import Generation, GenerationState, Timeline


def audit_rewrite(lake: Lake, clock: Clock, settings: Settings) -> list[Finding]:
    """Audit the V1 tables against the tables that took their place; a line only for what there is to look at."""
    return [*audit_live_generations(lake, clock, settings), *_unless_empty(_rewritten_rows(lake))]


def audit_live_generations(lake: Lake, clock: Clock, settings: Settings) -> list[Finding]:
    """The one line that `audit.audit_lake` does not have, of times alone: it compares rewritten rows with V1 itself."""
    return _unless_empty(_live_generations(lake, clock, settings))


def _unless_empty(line: Finding) -> list[Finding]:
    return [line] if line.population else []


def _live_generations(lake: Lake, clock: Clock, settings: Settings) -> Finding:
    """Once a node is marked after a rewrite, every V1 generation that can hold live rows is in the new table.

    The marker of a rewrite names the newest time. One without a time says that the node had nothing to rewrite,
    which holds of that node alone: it has just joined, or no table had CDC enabled.
    """
    nothing = "no node has rewritten"
    if not cdc_local.has_dated_rewrite_marker(lake):
        return finding_from_tallies(LIVE_GENERATIONS_REWRITTEN, [], nothing)
    live = [each for each in rewrite.plan_rewrite(lake, clock, settings) if each.action != "skip-too-old"]
    left = [each for each in live if each.action != "skip-present"]
    sample = f"V1 generation {format_ms(left[0].time_ms)} is not in the new table: {left[0].reason}" if left else ""
    tally = InvariantTally(LIVE_GENERATIONS_REWRITTEN, len(live), len(left), 0, sample)
    return finding_from_tallies(LIVE_GENERATIONS_REWRITTEN, [("", tally)], "every V1 generation is too old")


def _rewritten_rows(lake: Lake) -> Finding:
    """Rows of a time that has a V1 description are that description's: every stream, in shard order."""
    times = np.intersect1d(
        generations.read_v1_times(lake), np.array(sorted(generations.read_listed_times(lake)), dtype=np.int64)
    )
    parts = ((format_ms(time_ms), compare_v1_with_published(lake, time_ms)) for time_ms in times.tolist())
    return finding_from_tallies(REWRITTEN_EQUALS_V1, parts, "no V1 generation is published")


def audit_expiry(lake: Lake, clock: Clock, settings: Settings) -> list[Finding]:
    """Every invariant of expiry; none where there never was a generation, that of nodes only where one keeps an ID."""
    timeline = Timeline.read(lake)
    if not timeline.generations:
        return []
    return [
        _check_expired_not_held(lake, clock, settings),
        _check_none_half_removed(lake, timeline.generations),
        *_check_nodes_name_existing(lake, timeline),
        *_check_nodes_informed(lake, clock, settings),
    ]


def _check_expired_not_held(lake: Lake, clock: Clock, settings: Settings) -> Finding:
    """No generation that has expired, as its mark says, is needed by a table, a reader or a node."""
    plan = [each for each in expiry.plan_expiry(lake, clock, settings) if each.listed]
    now_ms = clock.now_ms()
    held = [each for each in plan if each.marked_ms is not None and each.marked_ms <= now_ms and each.blocked_by]
    sample = ""
    if held:
        sample = f"generation {format_ms(held[0].time_ms)} is marked as expired, but {held[0].reasons[0]}"
    return Finding(EXPIRED_NOT_HELD, max(len(plan), 1), len(held), sample)


def _check_none_half_removed(lake: Lake, generations: Sequence[Generation]) -> Finding:
    """No generation that readers see lacks its streams, and of a removed one nothing is left."""
    streams = metastore_generations.read_published_times(lake)
    bare = [each for each in generations if each.published and each.time_ms not in streams]
    left = expiry.read_unfinished_removals(lake)
    sample = ""
    if bare:
        sample = f"generation {format_ms(bare[0].time_ms)} is listed without any streams rows"
    elif left:
        do = choose_remedy(lake, "run: cdc-platform expire")
        sample = f"the removal of generation {format_ms(left[0].time_ms)} is not finished; {do}"
    return Finding(NONE_HALF_REMOVED, len(generations), len(bare) + len(left), sample)


def _check_nodes_informed(lake: Lake, clock: Clock, settings: Settings) -> list[Finding]:
    """Every node knows the newest generation that is published and operates; of some nothing may be known.

    Where nothing is known of any node there is nothing to judge: `status` says so.
    """
    found = read_node_knowledge(lake, clock, settings)
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


def _check_nodes_name_existing(lake: Lake, timeline: Timeline) -> list[Finding]:
    """No node's `cdc_local` names a removed generation."""
    kept = [(host, id_.time_ms) for host, id_ in cdc_local.read_node_generation_ids(lake).items()]
    if not kept:
        return []
    gone = {each.time_ms for each in timeline.removed}
    wrong = [(host, time_ms) for host, time_ms in sorted(kept) if time_ms in gone]
    sample = f"node {wrong[0][0]} names generation {format_ms(wrong[0][1])}, which was removed" if wrong else ""
    return [Finding(NODE_GENERATION_NOT_REMOVED, len(kept), len(wrong), sample)]


_NO_DATA_CONDITIONS = (DamageKind.NO_GENERATION, DamageKind.MISSING_DATA, DamageKind.UNREADABLE)


def audit_ring_fit(lake: Lake) -> list[Finding]:
    """Whether every generation that somebody names can be read, and whether the newest one fits the ring.

    The second is left out where it cannot be told: without a ring, while a node's generation is there and the node is
    not in the ring yet, and where the tables that say it were never brought here.
    """
    timeline = Timeline.read(lake)
    if not timeline.known:
        return []
    judged = _repair_check(lake)
    unread = [each for each in timeline.known if each.state is GenerationState.NOT_RETRIEVABLE]
    reasons = () if judged is None else judged.reasons
    lacking = [each for each in reasons if each.condition in _NO_DATA_CONDITIONS]
    if lacking and timeline.known[-1] not in unread:
        unread.append(timeline.known[-1])
    sample = ""
    if unread:
        first = unread[0]
        sample = f"generation {first.name} ({format_ms(first.time_ms)}) is known, and its description cannot be read"
    found = [Finding(GENERATIONS_RETRIEVABLE, len(timeline.known), len(unread), sample)]
    if judged is None or lacking:
        return found
    amiss = find_misfits(judged)
    sample = "; ".join(f"{each.condition.value}: {each.detail}" for each in amiss)
    nodes = sum(status == STATUS_NORMAL for status in read_node_statuses(lake).values())
    return [*found, Finding(STREAMS_FIT_THE_RING, nodes, len(amiss), sample)]


def find_misfits(found: repair.RepairCheck) -> list[GenerationDamage]:
    """What is amiss with the newest generation itself. The first format is a reason for a new one, and no misfit: its
    streams lie where they have to.
    """
    return [each for each in (*found.reasons, *found.warnings) if each.condition is not DamageKind.V1_FORMAT]


def _repair_check(lake: Lake) -> repair.RepairCheck | None:
    """What `repair` says; None where it cannot say anything, or not yet."""
    if not read_current_ring(lake).has_tokens or _is_joining(lake):
        return None
    found = repair.check_newest_generation(lake)
    return None if found.cannot_tell else found


def _is_joining(lake: Lake) -> bool:
    """Return whether nodes know the generation of a node that is not in the ring yet.

    They do from the decision of its switch on, which comes before the ledger has it.
    """
    newest = Timeline.read(lake).newest
    known = None if newest is None else newest.id
    return any(
        each.reached is JoinStage.TIMED or (each.reached is JoinStage.SWITCHING and each.generation_id == known)
        for each in read_join_progress(lake)
    )
