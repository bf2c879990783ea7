"""The life cycle of a generation: join, publish, switch, expiry, tablets, rewrite and repair."""

from __future__ import annotations

from cdc_platform.exports import lazy_exports

__getattr__ = lazy_exports(
    __name__,
    {
        "audits": (
            "audit_expiry",
            "audit_live_generations",
            "audit_rewrite",
            "audit_newest_fit",
            "audit_ring_fit",
            "find_misfits",
        ),
        "expiry": (
            "ExpiryAction",
            "ExpiryAssumption",
            "ExpiryResult",
            "PlannedGeneration",
            "generate_purge_statements",
            "needs_mark",
            "plan_assumptions",
            "plan_expiry",
        ),
        "forecast": ("GrowthStep",),
        "join": (
            "restore",
            "steps",
            "verdicts",
        ),
        "join.bootstrap": (
            "DescribedGeneration",
            "join_zero_token_node",
            "read_rings",
        ),
        "join.restore": ("DamagedGenerations",),
        "join.steps": (
            "InsertResult",
            "JoinContext",
            "JoinStep",
            "StepAudit",
            "V2_STEPS",
            "find_step",
            "judge_step",
            "require_passed",
            "run_introduce_step",
            "run_join",
            "run_step",
            "select_steps",
        ),
        "join.verdicts": ("StepVerdict",),
        "node_knowledge": (
            "NodeKnowledge",
            "read_node_knowledge",
        ),
        "rehearsal": (
            "RehearsalStart",
            "StepEffect",
            "start_from_lake",
            "start_from_ring",
            "start_with_ttls",
        ),
        "repair": ("RepairCheck",),
        "rewrite": (
            "RewriteDecision",
            "RewriteResult",
        ),
        "tablets": ("TabletCollection",),
    },
)
