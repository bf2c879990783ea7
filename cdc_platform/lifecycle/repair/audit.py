"""The invariants of the newest generation, held against what is known of it and against the ring as it stands.

What is asked is what `repair` asks, by the same rules, so that both give one answer. No Spark.
"""

from __future__ import annotations

from cdc_platform.clock import format_ms
from cdc_platform.generations.damage import Condition, Damage
from cdc_platform.invariants.findings import GENERATIONS_RETRIEVABLE, STREAMS_FIT_THE_RING, Finding
from cdc_platform.lake.lake import Lake
from cdc_platform.lifecycle.repair import checkup
from cdc_platform.records.join_progress import Reached, progress
from cdc_platform.records.ring import NORMAL, current_ring, statuses
from cdc_platform.timeline import State, Timeline

_NO_DATA = (Condition.NO_GENERATION, Condition.MISSING_DATA, Condition.UNREADABLE)


def audit_fit(lake: Lake) -> list[Finding]:
    """Whether every generation that somebody names can be read, and whether the newest one fits the ring.

    The second is left out where it cannot be told: without a ring, while a node's generation is there and the node is
    not in the ring yet, and where the tables that say it were never brought here.
    """
    timeline = Timeline.read(lake)
    if not timeline.known:
        return []
    judged = _judged(lake)
    unread = [each for each in timeline.known if each.state is State.NOT_RETRIEVABLE]
    reasons = () if judged is None else judged.reasons
    lacking = [each for each in reasons if each.condition in _NO_DATA]
    if lacking and timeline.known[-1] not in unread:
        unread.append(timeline.known[-1])
    sample = ""
    if unread:
        first = unread[0]
        sample = f"generation {first.name} ({format_ms(first.time_ms)}) is known, and its description cannot be read"
    found = [Finding(GENERATIONS_RETRIEVABLE, len(timeline.known), len(unread), sample)]
    if judged is None or lacking:
        return found
    amiss = misfits(judged)
    sample = "; ".join(f"{each.condition.value}: {each.detail}" for each in amiss)
    nodes = sum(status == NORMAL for status in statuses(lake).values())
    return [*found, Finding(STREAMS_FIT_THE_RING, nodes, len(amiss), sample)]


def misfits(found: checkup.Checkup) -> list[Damage]:
    """What is amiss with the newest generation itself. The first format is a reason for a new one, and no misfit: its
    streams lie where they have to.
    """
    return [each for each in (*found.reasons, *found.warnings) if each.condition is not Condition.V1_FORMAT]


def _judged(lake: Lake) -> checkup.Checkup | None:
    """What `repair` says; None where it cannot say anything, or not yet."""
    if not current_ring(lake).has_tokens or _is_joining(lake):
        return None
    found = checkup.check(lake)
    return None if found.cannot_tell else found


def _is_joining(lake: Lake) -> bool:
    """Return whether nodes know the generation of a node that is not in the ring yet.

    They do from the decision of its switch on, which comes before the ledger has it.
    """
    newest = Timeline.read(lake).newest
    known = None if newest is None else newest.id
    return any(
        each.reached is Reached.TIMED or (each.reached is Reached.SWITCHING and each.generation_id == known)
        for each in progress(lake)
    )
