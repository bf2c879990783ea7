"""A history as a picture shows it: by node, which generation it can write to, and its outages and writes over time."""

from __future__ import annotations

from cdc_platform.clock import Microseconds, seconds_from_us, us_from_ms
from cdc_platform.plots import NodeTimeline, SimulationMarks
from cdc_platform.simulation.judged import JudgedHistory
from cdc_platform.simulation.observations import AcceptedRow, Committed, Learned, Noted, RefusedWrite
from cdc_platform.simulation.world import START_US


def get_node_timelines(judged: JudgedHistory) -> tuple[list[NodeTimeline], SimulationMarks]:
    """Return the timeline of each node that exists, and the times that concern all; in seconds since the start."""
    plan = judged.plan
    nodes = {number: NodeTimeline(f"node {number}") for number in range(plan.node_total)}
    begins: list[tuple[float, int]] = []
    known: dict[int, int] = dict.fromkeys(range(plan.nodes), 0)
    for number in range(plan.nodes):
        nodes[number].readable.append((0.0, 0))
    for observation in judged.history.observations:
        at = _offset_seconds(observation.at_us)
        match observation:
            case Committed(_, _, generation) if generation.number:
                begins.append((_offset_seconds(us_from_ms(generation.time_ms)), generation.number))
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
        begin = seconds_from_us(outage.at_us)
        nodes[outage.node].outages.append((begin, begin + seconds_from_us(outage.duration_us)))
    shown = [number for number, node in nodes.items() if number < plan.nodes or node != NodeTimeline(node.name)]
    rows = {number: row for row, number in enumerate(shown)}
    violations = [
        (
            _offset_seconds(violation.at_us),
            None if violation.node is None else rows.get(violation.node),
            violation.property.value,
        )
        for violation in judged.verdict.violations
    ]
    end = seconds_from_us(Microseconds(plan.duration_us + plan.settle_us))
    noun = "stream set" if plan.rules.protocol == "tablets" else "generation"
    return [nodes[number] for number in shown], SimulationMarks(end, begins, violations, noun)


def _offset_seconds(time_us: Microseconds) -> float:
    """Return the seconds from the start of a history to a time."""
    return seconds_from_us(Microseconds(time_us - START_US))
