"""Issues in a cluster's metadata: refused, or recorded with `import --allow-incomplete`.

A truncated file is not such an issue: it is a fault of the copy, not of the cluster.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cdc_platform.errors import InputError


@dataclass
class ImportIssues:
    """The issues of one import, one line each. Unless `as_is`, the first issue refuses the import.

    `mend` is appended to the refusal. `marks`: True if a home that accepts issues becomes read-only (observed).
    """

    as_is: bool = False
    mend: str = "; if the cluster is so, take it in to be looked at with: cdc-platform import --allow-incomplete"
    marks: bool = True
    told: list[str] = field(default_factory=list)

    def tell(self, said: str) -> None:
        """Record an issue.

        Raises:
            InputError: the import does not accept issues.
        """
        if not self.as_is:
            raise InputError(f"{said}{self.mend}")
        if said not in self.told:
            self.told.append(said)


def refuse_issues() -> ImportIssues:
    """Return an `ImportIssues` that refuses every issue and suggests no option, for input that is not a file."""
    return ImportIssues(mend="")
