"""Result of one prerequisite check, of this machine (`doctor`) or of a live cluster (`cluster test`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PreflightResult:
    """One thing that was looked at: what was found and, where it must be mended, how."""

    check: str
    ok: bool
    found: str
    mend: str | None = None
