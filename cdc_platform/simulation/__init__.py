"""Simulation of generation switches: the project's node code in a seeded world of faults, and a judge of the history.

The same plan and seed give the same history, byte for byte. Everything runs in one thread and in simulated time.
"""

from __future__ import annotations

from cdc_platform.exports import lazy_exports

__getattr__ = lazy_exports(
    __name__,
    {
        "assumptions": (
            "Assumptions",
            "draw_plan",
        ),
        "judge": ("Property",),
        "judged": (
            "JudgedHistory",
            "judge_plan",
        ),
        "node_set": ("NodeSet",),
        "plan": (
            "HistoryPlan",
            "Outage",
            "OutageKind",
            "Rules",
        ),
        "request": (
            "SimulationRequest",
            "parse_duration",
            "parse_read_outage",
        ),
        "run": ("Parts",),
        "search": (
            "SearchedSetting",
            "SmallestValue",
            "find_smallest",
        ),
        "shrink": ("shrink_plan",),
        "summary": (
            "SimulationSummary",
            "simulate",
        ),
        "timelines": ("get_node_timelines",),
        "trace": (
            "describe_history",
            "format_offset",
        ),
    },
)
