"""Result of one prerequisite check, of this machine (`doctor`) or of a live cluster (`cluster test`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PreflightResult:
    """One checked prerequisite: what the check found and, if something must be fixed, how."""

    check: str
    ok: bool
    message: str
    remedy: str | None = None
