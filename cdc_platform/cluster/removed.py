"""Generations that a cluster has taken out of its tables: when that may be, and that its home lets go of them too.

The rule by which no log can hold a row of one any more is the purge plan's, as in every home.
"""

from __future__ import annotations

from collections.abc import Collection

from cdc_platform.clock import Clock, Milliseconds
from cdc_platform.errors import ClockRefused, NotAsCommitted
from cdc_platform.lake.lake import Lake
from cdc_platform.lifecycle.expiry import purge_plan, removal
from cdc_platform.lifecycle.expiry.purge_plan import Action
from cdc_platform.records import descriptions
from cdc_platform.settings import Settings


def may_be_gone(lake: Lake, clock: Clock, settings: Settings) -> frozenset[Milliseconds]:
    """The times (ms) of generations that no log can hold a row of by now, whoever still reads them here.

    A TTL that is not known is no sign that a generation was made up here: it is taken for the one that was seen next.
    """
    now_ms, plan = clock.now_ms(), purge_plan.plan(lake, clock, settings, as_seen=True)
    return frozenset(each.time_ms for each in plan if each.expired_ms is not None and each.expired_ms <= now_ms)


def follow(lake: Lake, clock: Clock, settings: Settings, listed: Collection[Milliseconds]) -> str | None:
    """Mark what has expired, and remove what the cluster does not list (`listed`, ms) and an earlier look marked.

    Returns why nothing was marked and removed, None where that was not refused. A look that was killed is followed by
    one that ends it, as of `expire`.
    """
    here = descriptions.listed_times(lake)
    missing = here - set(listed)
    plan = purge_plan.plan(lake, clock, settings)
    if not missing and not removal.unfinished(lake) and not any(map(removal.is_to_be_marked, plan)):
        return None
    try:
        lake, plan = removal.verified_plan(lake, clock, settings)
        removal.mark(lake, clock, plan)
        gone = [each for each in plan if each.time_ms in missing and each.action is Action.REMOVE]
        begun = removal.begin_removals(lake, clock, gone)
        for table in removal.SHRINKING:
            removal.remove_from(lake, table, begun)
    except (NotAsCommitted, ClockRefused) as error:
        return f"what has expired is neither marked nor removed here: {error}"
    return None
