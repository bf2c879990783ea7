"""One thing that was tried: of what this machine has, by `doctor`, or of a live cluster, by `cluster test`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Trial:
    """One thing that was looked at: what was found and, where it must be mended, how."""

    check: str
    ok: bool
    found: str
    mend: str | None = None
