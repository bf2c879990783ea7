"""The audit of a rewrite: nothing live is left behind once a node says it is done, and what was rewritten is V1's.

Which generations are live is `lifecycle.rewrite`'s to decide, how rows are compared `first_format`'s. No Spark.
"""

from __future__ import annotations

import numpy as np

from cdc_platform.clock import Clock, format_ms
from cdc_platform.invariants.findings import LIVE_GENERATIONS_REWRITTEN, REWRITTEN_EQUALS_V1, Finding, Tally, finding
from cdc_platform.invariants.first_format import compared_with_published
from cdc_platform.lake.lake import Lake
from cdc_platform.lifecycle.upgrade import rewrite
from cdc_platform.records import cdc_local, descriptions, generation_data
from cdc_platform.settings import Settings


def audit_rewrite(lake: Lake, clock: Clock, settings: Settings) -> list[Finding]:
    """Audit the V1 tables against the tables that took their place; a line only for what there is to look at."""
    return [*audit_live_generations(lake, clock, settings), *_with_population(_rewritten_rows(lake))]


def audit_live_generations(lake: Lake, clock: Clock, settings: Settings) -> list[Finding]:
    """The one line that `audit.audit_lake` does not have, of times alone: it compares rewritten rows with V1 itself."""
    return _with_population(_live_generations(lake, clock, settings))


def _with_population(line: Finding) -> list[Finding]:
    return [line] if line.population else []


def _live_generations(lake: Lake, clock: Clock, settings: Settings) -> Finding:
    """Once a node is marked after a rewrite, every V1 generation that can hold live rows is in the new table.

    The marker of a rewrite names the newest time. One without a time says that the node had nothing to rewrite,
    which holds of that node alone: it has just joined, or no table had CDC enabled.
    """
    nothing = "no node has rewritten"
    if not cdc_local.has_rewritten(lake):
        return finding(LIVE_GENERATIONS_REWRITTEN, [], nothing)
    live = [each for each in rewrite.decide(lake, clock, settings) if each.action != "skip-too-old"]
    left = [each for each in live if each.action != "skip-present"]
    sample = f"V1 generation {format_ms(left[0].time_ms)} is not in the new table: {left[0].reason}" if left else ""
    tally = Tally(LIVE_GENERATIONS_REWRITTEN, len(live), len(left), 0, sample)
    return finding(LIVE_GENERATIONS_REWRITTEN, [("", tally)], "every V1 generation is too old")


def _rewritten_rows(lake: Lake) -> Finding:
    """Rows of a time that has a V1 description are that description's: every stream, in shard order."""
    times = np.intersect1d(
        generation_data.described_times(lake), np.array(sorted(descriptions.listed_times(lake)), dtype=np.int64)
    )
    parts = ((format_ms(time_ms), compared_with_published(lake, time_ms)) for time_ms in times.tolist())
    return finding(REWRITTEN_EQUALS_V1, parts, "no V1 generation is published")
