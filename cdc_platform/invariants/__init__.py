"""Invariants of generations: one-pass audits that count what breaks them, and the pandera model of the counts."""

from cdc_platform.invariants.audit import (
    ACROSS_INVARIANTS,
    DESCRIPTION_INVARIANTS,
    INSERTED_INVARIANTS,
    PUBLISHED_INVARIANTS,
    TIMESTAMP_INVARIANTS,
    audit_across,
    audit_description,
    audit_inserted,
    audit_lake,
    audit_published,
    audit_timestamps,
)
from cdc_platform.invariants.findings import INVARIANTS, Finding
from cdc_platform.invariants.judge import Judgement, judge

__all__ = [
    "ACROSS_INVARIANTS",
    "DESCRIPTION_INVARIANTS",
    "INSERTED_INVARIANTS",
    "INVARIANTS",
    "PUBLISHED_INVARIANTS",
    "TIMESTAMP_INVARIANTS",
    "Finding",
    "Judgement",
    "audit_across",
    "audit_description",
    "audit_inserted",
    "audit_lake",
    "audit_published",
    "audit_timestamps",
    "judge",
]
