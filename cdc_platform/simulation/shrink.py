"""Shrink a plan that violates a property: fewest faults, operations, writes and nodes that still do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from cdc_platform.clock import Microseconds
from cdc_platform.simulation.judge import Property
from cdc_platform.simulation.judged import JudgedHistory, judge_plan
from cdc_platform.simulation.node_set import NodeSet
from cdc_platform.simulation.plan import HistoryPlan, PlannedWrite

_LISTS = ("writes", "outages", "partitions", "crashes", "operations", "clocks")
_MOST_RUNS = 600


def shrink_plan(plan: HistoryPlan, property: Property, nodes: NodeSet | None = None) -> JudgedHistory:
    """Return the history of a smaller plan that violates the same property.

    It removes ever smaller parts of each list while the violation remains, then nodes that nothing refers to; at most
    600 histories are tried.
    """
    runs = 0

    def fails(candidate: HistoryPlan) -> bool:
        nonlocal runs
        runs += 1
        return runs <= _MOST_RUNS and property in judge_plan(candidate, nodes).verdict.broken

    shrunk = plan
    before = None
    while before != shrunk and runs < _MOST_RUNS:
        before = shrunk
        for name in _LISTS:
            shrunk = _shrink_list(shrunk, name, fails)
        shrunk = _shrink_numbers(shrunk, fails)
    return judge_plan(shrunk, nodes)


def _shrink_list(plan: HistoryPlan, name: str, fails: Callable[[HistoryPlan], bool]) -> HistoryPlan:
    """Remove parts of a list, first halves, in the end single items."""
    size = len(getattr(plan, name))
    while size:
        size = (size + 1) // 2 if size > 1 else 1
        start = 0
        while start < len(items := getattr(plan, name)):
            candidate = replace(plan, **{name: items[:start] + items[start + size :]})
            if fails(candidate):
                plan = candidate
            else:
                start += size
        if size == 1:
            break
    return plan


def _shrink_numbers(plan: HistoryPlan, fails: Callable[[HistoryPlan], bool]) -> HistoryPlan:
    """Drop a node, late publication, loss, and twins of writes, where the violation needs none."""
    candidates = (
        replace(plan, nodes=max(plan.nodes - 1, 1)),
        replace(plan, late_publication_us=Microseconds(0)),
        replace(plan, network=replace(plan.network, loss=0.0)),
        replace(plan, writes=tuple(_without_twin(write) for write in plan.writes)),
    )
    for candidate in candidates:
        if candidate != plan and fails(candidate):
            return candidate
    return plan


def _without_twin(write: PlannedWrite) -> PlannedWrite:
    return replace(write, twin=None)
