"""What an invariant is: its name, its meaning, and the family of those that one audit answers together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cdc_platform.invariants.findings import Finding


@dataclass(frozen=True)
class InRange:
    """What a range's facts say of an invariant: the column `wrong` counts what breaks it, of what `among` counts.

    `unjudged` counts what it is asked of and cannot be judged, where that may be.
    """

    wrong: str
    among: str
    unjudged: str | None = None


class Invariant(str):
    """An invariant: it is its name, and knows its `meaning` and its `family`. To Spark's workers only the name goes.

    Where the facts of each range tell it, `in_range` says how; the others, and these as well, are told by the summary.
    """

    meaning: str
    family: Family
    in_range: InRange | None

    def __new__(cls, name: str, meaning: str, family: Family, in_range: InRange | None = None) -> Invariant:
        """One that `Family.asks` declares."""
        made = super().__new__(cls, name)
        made.meaning, made.family, made.in_range = meaning, family, in_range
        return made

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)


@dataclass(frozen=True, eq=False)
class Family:
    """Invariants that one audit answers together, of the same things.

    `of` what they are asked, `judged` in which way, `page` explains them. `blocking`: a violation stops what comes
    after. `nothing` says why it is well that there is nothing to judge; empty: then nothing was proven. `alone`: that
    may be so for one of them while others are judged.
    """

    of: str
    judged: str
    page: str
    blocking: bool
    nothing: str = ""
    alone: bool = False
    _members: list[Invariant] = field(default_factory=list)

    def asks(self, name: str, meaning: str, in_range: InRange | None = None) -> Invariant:
        """Declare the next invariant of the family."""
        made = Invariant(name, meaning, self, in_range)
        self._members.append(made)
        return made

    @property
    def invariants(self) -> tuple[Invariant, ...]:
        """Its members, in the order in which summaries list them."""
        return tuple(self._members)

    def due(self, findings: Sequence[Finding]) -> tuple[Invariant, ...]:
        """Which of its members a summary has to have, as there is something to judge, or as nothing would be proven."""
        there = {line.invariant for line in findings}
        if not self.nothing or (not self.alone and there & set(self._members)):
            return self.invariants
        return tuple(each for each in self._members if each in there)
