"""Invariants of generations: one-pass audits that count what breaks them, and the pandera model of the counts."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

__all__ = [
    "ACROSS_INVARIANTS",
    "DESCRIPTION_INVARIANTS",
    "INSERTED_INVARIANTS",
    "INVARIANTS",
    "PUBLISHED_INVARIANTS",
    "TIMESTAMP_INVARIANTS",
    "Finding",
    "audit_across",
    "audit_description",
    "audit_inserted",
    "audit_lake",
    "audit_published",
    "audit_timestamps",
]

_OF_FINDINGS = ("INVARIANTS", "Finding")


def __getattr__(name: str) -> Any:
    """A name out of its module, imported when it is asked for: who names an invariant has no use for the audits."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{'findings' if name in _OF_FINDINGS else 'audit'}"), name)
