"""Issues in what a cluster has: refused, or recorded if the import accepts it as is.

A truncated file is not an issue of this kind: it says something about the copy, not about the cluster.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cdc_platform.errors import InputError


@dataclass
class ImportIssues:
    """The flaws of one import, a line each; without `as_is` the first is a refusal. `mend` is said with it.

    `marks`: whether a lake that takes them in is only observed from then on.
    """

    as_is: bool = False
    mend: str = "; if the cluster is so, take it in to be looked at with: cdc-platform import --as-is"
    marks: bool = True
    told: list[str] = field(default_factory=list)

    def tell(self, said: str) -> None:
        """Note that something is not whole.

        Raises:
            InputError: what is not whole is not taken in.
        """
        if not self.as_is:
            raise InputError(f"{said}{self.mend}")
        if said not in self.told:
            self.told.append(said)


def refuse_issues() -> ImportIssues:
    """Flaws of what is no file: refused, and nothing said of how to take it in."""
    return ImportIssues(mend="")
