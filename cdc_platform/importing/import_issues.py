"""Issues in a cluster's metadata: refused, or recorded with `import --allow-incomplete`.

A truncated file is not such an issue: it is a fault of the copy, not of the cluster.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cdc_platform.errors import InputError


@dataclass
class ImportIssues:
    """The issues of one import, one line each. Unless `allow_incomplete`, the first issue refuses the import.

    `remedy` is appended to the refusal. `makes_read_only`: a home that accepts issues becomes read-only (observed).
    """

    allow_incomplete: bool = False
    remedy: str = "; if the cluster is like this, import it for inspection with: cdc-platform import --allow-incomplete"
    makes_read_only: bool = True
    messages: list[str] = field(default_factory=list)

    def report(self, message: str) -> None:
        """Record an issue.

        Raises:
            InputError: the import does not accept issues.
        """
        if not self.allow_incomplete:
            raise InputError(f"{message}{self.remedy}")
        if message not in self.messages:
            self.messages.append(message)


def refuse_issues() -> ImportIssues:
    """Return an `ImportIssues` that refuses every issue and suggests no option, for input that is not a file."""
    return ImportIssues(remedy="")
