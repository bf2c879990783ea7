"""One judged history: run a plan with a judge as its observer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from cdc_platform.clock import MINUTE_US
from cdc_platform.simulation.judge import Judge, Nodes, Verdict
from cdc_platform.simulation.node_set import NodeSet, drawn_nodes
from cdc_platform.simulation.observations import History, SimulatedGeneration
from cdc_platform.simulation.plan import HistoryPlan
from cdc_platform.simulation.replicas import REPLICAS
from cdc_platform.simulation.run import DEFAULT_PARTS, Parts, Simulation
from cdc_platform.simulation.tablet_sets import tablet_streams


@dataclass(frozen=True)
class JudgedHistory:
    """A plan, what was observed, and the verdict. `steps` is the number of events."""

    plan: HistoryPlan
    history: History
    verdict: Verdict
    steps: int


def judge_plan(plan: HistoryPlan, nodes: NodeSet | None = None, parts: Parts = DEFAULT_PARTS) -> JudgedHistory:
    """Run a plan and judge its history; `nodes` are the real nodes of the plan's numbers, None: drawn ones."""
    cluster = drawn_nodes(plan.node_total, plan.shards) if nodes is None else nodes
    judge = Judge(
        _judged_nodes(cluster, plan.rules.format == "v1", plan.rules.protocol == "tablets"),
        min(REPLICAS, plan.nodes),
        plan.rules.ttl_us,
        plan.rules.window_us + MINUTE_US,
    )
    simulation = Simulation(plan, cluster, parts, judge.observe)
    history = simulation.run()
    up = [machine.number for machine in simulation.world.machines if machine.up and machine.joined]
    undecided = plan.rules.protocol == "two-phase" and simulation.register.undecided is not None
    verdict = judge.finish(simulation.world.now_us, up, undecided)
    return JudgedHistory(plan, history, verdict, simulation.world.scheduler.steps)


@lru_cache(maxsize=64)
def _judged_nodes(nodes: NodeSet, v1: bool, tablets: bool) -> Nodes:
    def streams(generation: SimulatedGeneration) -> frozenset[bytes]:
        if tablets:
            return tablet_streams(generation.time_ms, generation.tablets)
        return nodes.streams(generation.members, generation.uuid, v1)

    return Nodes([node.tokens for node in nodes.nodes], streams, tablets)
