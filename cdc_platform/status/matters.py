"""The matters that somebody has to see to: each with a code that stays, and the page that explains it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

PROGRAM = "cdc-platform "
_PAGE = "docs/status.md"

CODES: Mapping[str, bool] = MappingProxyType(
    {
        "table-unreadable": True,
        "nothing-operates": True,
        "no-generation": False,
        "not-retrievable": True,
        "not-exported": False,
        "not-described": False,
        "join-stuck": True,
        "join-interrupted": False,
        "join-waiting": False,
        "step-not-good": True,
        "switch-overdue": True,
        "switch-open": False,
        "repair-due": True,
        "repair-blocked": False,
        "topology-changing": False,
        "left-out": True,
        "only-observed": False,
        "check-failed": True,
        "check-older": False,
        "never-checked": False,
        "reads-removed": True,
        "nodes-behind": True,
        "nodes-unknown": False,
        "rows-dying": True,
        "rows-lost": True,
        "lag-near-ttl": False,
        "lag-half-ttl": False,
        "log-gap": False,
        "expiry-due": False,
        "unknown-past": False,
        "no-tables": False,
        "empty-home": False,
    }
)
"""Every code, and whether what it stands for is wrong; what is not wrong is to be done, or to be known."""


@dataclass(frozen=True)
class Matter:
    """One finding: a sentence (`said`) and what resolves it (`do`).

    `do` is either one command, complete and safe to paste, or a sentence for a person who has to decide or to bring
    something. A command that states a fact or discards something stands only inside a sentence.
    """

    code: str
    said: str
    do: str | None = None

    @property
    def is_command(self) -> bool:
        """Whether `do` is one command that can be run as it stands."""
        return self.do is not None and self.do.startswith(PROGRAM)

    @property
    def wrong(self) -> bool:
        """Whether something is wrong, and not only left to do."""
        return CODES[self.code]

    def facts(self) -> dict[str, object]:
        """It in plain values."""
        page = f"{_PAGE}#{self.code}"
        return {
            "code": self.code,
            "wrong": self.wrong,
            "said": self.said,
            "do": self.do,
            "is_command": self.is_command,
            "page": page,
        }
