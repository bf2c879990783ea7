"""A history as a picture shows it: by node, which generation it can write to, and its outages and writes over time."""

from __future__ import annotations

from cdc_platform.clock import us_from_ms
from cdc_platform.plots import NodeTimeline, SimulationMarks
from cdc_platform.simulation.judged import JudgedHistory
from cdc_platform.simulation.observations import AcceptedRow, Committed, Learned, Noted, RefusedWrite
from cdc_platform.simulation.world import START_US


def get_node_timelines(judged: JudgedHistory) -> tuple[list[NodeTimeline], SimulationMarks]:
    """Return the timeline of each node, and the times that concern all; in seconds since the start."""
    plan = judged.plan
    nodes = {number: NodeTimeline(f"node {number}") for number in range(plan.node_total)}
    begins: list[tuple[float, int]] = []
    known: dict[int, int] = dict.fromkeys(range(plan.nodes), 0)
    for number in range(plan.nodes):
        nodes[number].readable.append((0.0, 0))
    for observation in judged.history.observations:
        at = (observation.at_us - START_US) / 1e6
        match observation:
            case Committed(_, _, generation) if generation.number:
                begins.append(((us_from_ms(generation.time_ms) - START_US) / 1e6, generation.number))
            case Learned(_, node, generation, True) if generation > known.get(node, -1):
                known[node] = generation
                nodes[node].readable.append((at, generation))
            case AcceptedRow():
                nodes[observation.node].accepted.append(at)
            case RefusedWrite():
                nodes[observation.node].refused.append(at)
            case Noted(_, node, "crashes"):
                nodes[node].outages.append((at, None))
            case Noted(_, node, "restarts") if nodes[node].outages:
                nodes[node].outages[-1] = (nodes[node].outages[-1][0], at)
            case _:
                pass
    for outage in plan.outages:
        begin = outage.at_us / 1e6
        nodes[outage.node].outages.append((begin, begin + outage.duration_us / 1e6))
    violations = [
        ((violation.at_us - START_US) / 1e6, violation.node, violation.property.value)
        for violation in judged.verdict.violations
    ]
    end = (plan.duration_us + plan.settle_us) / 1e6
    return list(nodes.values()), SimulationMarks(end, begins, violations)
