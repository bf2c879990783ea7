"""Audits of lifecycle work: the rewrite, expiry, and the fit of the newest generation to the ring. No Spark.

Each audit applies the rules of the work itself, so that both give the same answer.
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
    STATUS_LEFT,
    STATUS_NORMAL,
    JoinStage,
    cdc_local,
    generations,
    read_current_ring,
    read_host_ids,
    read_join_progress,
    read_node_statuses,
)
from cdc_platform.metastore import generations as metastore_generations
from cdc_platform.settings import Settings
from cdc_platform.timeline import Generation, GenerationState, Timeline


def audit_rewrite(lake: Lake, clock: Clock, settings: Settings) -> list[Finding]:
    """Audit the V1 tables against the tables that replaced them; findings without a population are omitted."""
    return [*audit_live_generations(lake, clock, settings), *_unless_empty(_rewritten_rows(lake))]


def audit_live_generations(lake: Lake, clock: Clock, settings: Settings) -> list[Finding]:
    """Return the finding, from times alone, that `checks.audit_lake` lacks; that audit compares the rewritten rows."""
    return _unless_empty(_live_generations(lake, clock, settings))


def _unless_empty(line: Finding) -> list[Finding]:
    return [line] if line.population else []


def _live_generations(lake: Lake, clock: Clock, settings: Settings) -> Finding:
    """Check that, after a rewrite, the new table has every V1 generation that can hold live rows.

    The marker of a rewrite names the newest time. A marker without one says that the node had nothing to rewrite, which
    is true of that node alone: it has just joined, or no table had CDC enabled.
    """
    nothing = "no node has rewritten"
    if not cdc_local.has_dated_rewrite_marker(lake):
        return finding_from_tallies(LIVE_GENERATIONS_REWRITTEN, [], nothing)
    live = [decision for decision in rewrite.plan_rewrite(lake, clock, settings) if decision.action != "skip-too-old"]
    missing = [decision for decision in live if decision.action != "skip-present"]
    sample = (
        f"V1 generation {format_ms(missing[0].time_ms)} is not in the new table: {missing[0].reason}" if missing else ""
    )
    tally = InvariantTally(LIVE_GENERATIONS_REWRITTEN, len(live), len(missing), 0, sample)
    return finding_from_tallies(LIVE_GENERATIONS_REWRITTEN, [("", tally)], "every V1 generation is too old")


def _rewritten_rows(lake: Lake) -> Finding:
    """Check that rows of a time with a V1 description equal that description: every stream, in shard order."""
    times = np.intersect1d(
        generations.read_v1_times(lake), np.array(sorted(generations.read_listed_times(lake)), dtype=np.int64)
    )
    parts = ((format_ms(time_ms), compare_v1_with_published(lake, time_ms)) for time_ms in times.tolist())
    return finding_from_tallies(REWRITTEN_EQUALS_V1, parts, "no V1 generation is published")


def audit_expiry(lake: Lake, clock: Clock, settings: Settings) -> list[Finding]:
    """Return the finding of every expiry invariant.

    The list is empty if there never was a generation. The invariant of nodes is omitted if no node has stored an ID.
    """
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
    """Check that no table, reader or node needs a generation that is marked as expired."""
    plan = [generation for generation in expiry.plan_expiry(lake, clock, settings) if generation.listed]
    now_ms = clock.now_ms()
    blocked = [
        generation
        for generation in plan
        if generation.marked_ms is not None and generation.marked_ms <= now_ms and generation.blocked_by
    ]
    sample = ""
    if blocked:
        sample = f"generation {format_ms(blocked[0].time_ms)} is marked as expired, but {blocked[0].reasons[0]}"
    return Finding(EXPIRED_NOT_HELD, max(len(plan), 1), len(blocked), sample)


def _check_none_half_removed(lake: Lake, generations: Sequence[Generation]) -> Finding:
    """Check that no listed generation lacks its streams, and that removed generations have no rows left."""
    streams = metastore_generations.read_published_times(lake)
    bare = [generation for generation in generations if generation.published and generation.time_ms not in streams]
    unfinished = expiry.read_unfinished_removals(lake)
    sample = ""
    if bare:
        sample = f"generation {format_ms(bare[0].time_ms)} is listed without any streams rows"
    elif unfinished:
        do = choose_remedy(lake, "run: cdc-platform expire")
        sample = f"the removal of generation {format_ms(unfinished[0].time_ms)} is not finished; {do}"
    return Finding(NONE_HALF_REMOVED, len(generations), len(bare) + len(unfinished), sample)


def _check_nodes_informed(lake: Lake, clock: Clock, settings: Settings) -> list[Finding]:
    """Check that every node knows the newest published, operating generation; the state of some may be unknown.

    Returns no finding if the state of every node is unknown; `status` reports that.
    """
    knowledge = read_node_knowledge(lake, clock, settings)
    judged = 0 if knowledge is None else len(knowledge.informed) + len(knowledge.behind)
    if knowledge is None or not judged:
        return []
    if knowledge.behind:
        return [Finding(NODES_KNOW_GENERATION, judged, len(knowledge.behind), str(knowledge))]
    if not knowledge.unknown:
        return [Finding(NODES_KNOW_GENERATION, judged, 0)]
    host, why = next(iter(knowledge.unknown.items()))
    sample = f"{len(knowledge.unknown)} of {judged + len(knowledge.unknown)} nodes are unknown, such as {host}: {why}"
    return [Finding(NODES_KNOW_GENERATION, judged, 0, sample)]


def _check_nodes_name_existing(lake: Lake, timeline: Timeline) -> list[Finding]:
    """Check that no node's `cdc_local` names a removed generation, except of nodes that have left."""
    former = set(read_host_ids(lake, STATUS_LEFT))
    ids = cdc_local.read_node_generation_ids(lake)
    stored_times = [(host, id_.time_ms) for host, id_ in ids.items() if host not in former]
    if not stored_times:
        return []
    removed_times = {removed.time_ms for removed in timeline.removed}
    wrong = [(host, time_ms) for host, time_ms in sorted(stored_times) if time_ms in removed_times]
    sample = f"node {wrong[0][0]} names generation {format_ms(wrong[0][1])}, which was removed" if wrong else ""
    return [Finding(NODE_GENERATION_NOT_REMOVED, len(stored_times), len(wrong), sample)]


_NO_DATA_CONDITIONS = (DamageKind.NO_GENERATION, DamageKind.MISSING_DATA, DamageKind.UNREADABLE)


def audit_ring_fit(lake: Lake) -> list[Finding]:
    """Check that every known generation can be read, and that the newest one fits the ring.

    The second finding is omitted if it cannot be determined: without a ring, while a node has a generation but is not
    in the ring yet, or if the required tables were never imported.
    """
    timeline = Timeline.read(lake)
    if not timeline.known:
        return []
    repair_check = _repair_check(lake)
    unread = [generation for generation in timeline.known if generation.state is GenerationState.NOT_RETRIEVABLE]
    reasons = () if repair_check is None else repair_check.reasons
    missing = [damage for damage in reasons if damage.condition in _NO_DATA_CONDITIONS]
    if missing and timeline.known[-1] not in unread:
        unread.append(timeline.known[-1])
    sample = ""
    if unread:
        first = unread[0]
        sample = f"generation {first.name} ({format_ms(first.time_ms)}) is known, and its description cannot be read"
    findings = [Finding(GENERATIONS_RETRIEVABLE, len(timeline.known), len(unread), sample)]
    return [*findings, *_find_misfits(lake, repair_check)]


def audit_newest_fit(lake: Lake) -> list[Finding]:
    """Return the second finding of `audit_ring_fit` alone, without looking at older generations."""
    return [] if Timeline.read(lake).newest is None else _find_misfits(lake, _repair_check(lake))


def _find_misfits(lake: Lake, check: repair.RepairCheck | None) -> list[Finding]:
    """Return the finding on the fit of the newest generation to the ring; none if its data is unknown or missing."""
    if check is None or any(damage.condition in _NO_DATA_CONDITIONS for damage in check.reasons):
        return []
    misfits = find_misfits(check)
    sample = "; ".join(f"{damage.condition.value}: {damage.detail}" for damage in misfits)
    nodes = sum(status == STATUS_NORMAL for status in read_node_statuses(lake).values())
    return [Finding(STREAMS_FIT_THE_RING, nodes, len(misfits), sample)]


def find_misfits(check: repair.RepairCheck) -> list[GenerationDamage]:
    """Return the damage of the newest generation itself.

    The V1 format is a reason for a new generation but no misfit, because its streams lie in the right place.
    """
    return [damage for damage in (*check.reasons, *check.warnings) if damage.condition is not DamageKind.V1_FORMAT]


def _repair_check(lake: Lake) -> repair.RepairCheck | None:
    """Return the result of `repair`'s check; None if it cannot judge, or not yet."""
    if not read_current_ring(lake).has_tokens or _is_joining(lake):
        return None
    check = repair.check_newest_generation(lake)
    return None if check.undetermined else check


def _is_joining(lake: Lake) -> bool:
    """Return True if nodes know the generation of a node that is not in the ring yet.

    They know it from the decision of its switch on, which precedes the ledger row.
    """
    newest = Timeline.read(lake).newest
    known = None if newest is None else newest.id
    return any(
        progress.reached is JoinStage.TIMED
        or (progress.reached is JoinStage.SWITCHING and progress.generation_id == known)
        for progress in read_join_progress(lake)
    )
