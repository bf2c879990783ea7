"""A step of a join: what it runs, what is judged of it, and whose verdicts it relies on.

It knows how any step is taken and judged; which steps there are is declared in `formats`. Both doors, the command line
and Dagster, take and judge steps here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cdc_platform.clock import Clock
from cdc_platform.errors import AuditFailed, StateError
from cdc_platform.invariants import Finding, audit_lake
from cdc_platform.invariants.families import Invariant
from cdc_platform.invariants.judge import Judgement, judge
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import Table
from cdc_platform.lake.volume import Workers
from cdc_platform.lifecycle.join import verdicts
from cdc_platform.lifecycle.join.verdicts import Book, Slices, Verdict
from cdc_platform.settings import Settings


@dataclass(frozen=True)
class Joining:
    """What a step works with: the generation, where it is, and who asks.

    `hands` are those who work on rows; None: this door has nobody, and cannot judge itself. `book` takes down the
    verdicts of a run of several steps; without one each is kept as it is given.
    """

    lake: Lake
    clock: Clock
    settings: Settings
    generation_id: str
    hands: Workers | None
    door: str
    book: Book | None = None

    @property
    def workers(self) -> Workers:
        """Who works on rows.

        Raises:
            StateError: this door has none.
        """
        if self.hands is None:
            raise StateError(f"{self.door} has no Spark; run: cdc-platform bootstrap FILE --run")
        return self.hands

    def last_verdict(self, step: str) -> Verdict | None:
        """The last verdict on a step of this generation."""
        if self.book is not None:
            return self.book.last(self.generation_id, step)
        return verdicts.last(self.lake, self.generation_id, step)

    def keep(self, verdict: Verdict) -> None:
        """Keep a verdict, or have it kept with others of this run."""
        if self.book is not None:
            self.book.enter(verdict)
        else:
            verdicts.keep(self.lake, self.clock, verdict)


def _whole_lake(lake: Lake, workers: Workers) -> Sequence[Finding]:
    return audit_lake(workers, lake)


@dataclass(frozen=True, eq=False)
class Audit:
    """What is asked of a step: `invariants`, answered by `findings`, of the rows in `slices`.

    `of_all` answers, with others, for every generation at once; it gets the lake and who works on rows.
    """

    invariants: tuple[Invariant, ...]
    findings: Callable[[Joining], Sequence[Finding]]
    slices: Callable[[Joining], Slices]
    of_all: Callable[[Lake, Workers], Sequence[Finding]] = _whole_lake


@dataclass(frozen=True, eq=False)
class Step:
    """One step. It is named by the table that it fills, in either format; `run` answers with what it made.

    `relies_on` are the tables of the steps before it that it builds on: their verdicts have to be good.
    """

    table: Table
    run: Callable[[Joining], Any]
    relies_on: tuple[Table, ...] = ()
    audit: Audit | None = None

    @property
    def name(self) -> str:
        """The name of its table."""
        return self.table.name


Steps = tuple[Step, ...]


def step_of(steps: Steps, table: Table) -> Step:
    """The step that fills a table."""
    return next(step for step in steps if step.table is table)


def take(joining: Joining, steps: Steps, step: Step) -> Any:
    """Run a step on what it relies on; answers with what it made.

    Raises:
        StateError: what it relies on is not there, or does not hold.
    """
    with joining.lake.open_tables.looked_at_once():
        for table in step.relies_on:
            before = step_of(steps, table)
            if before.audit is not None:
                _rely_on(joining, before, before.audit)
        return step.run(joining)


def judged(joining: Joining, step: Step) -> list[Judgement]:
    """Judge what a step has left, an invariant a line, and keep the verdict."""
    assert step.audit is not None
    with joining.lake.open_tables.looked_at_once():
        return _judged(joining, step, step.audit)[0]


def insist(joining: Joining, step: Step, judgements: Sequence[Judgement]) -> None:
    """Go on only if everything that was judged of a step holds.

    Raises:
        AuditFailed: names the first invariant that does not hold, with how often and an example.
    """
    said = _first_wrong(judgements)
    if said:
        raise AuditFailed(
            f"{step.name} of generation {joining.generation_id}: {said}; nothing after it was written; "
            "look at: cdc-platform check"
        )


def _judged(joining: Joining, step: Step, audit: Audit) -> tuple[list[Judgement], Verdict]:
    lake, slices = joining.lake, audit.slices(joining)
    content = verdicts.content_of(lake, slices)
    judgements = judge(list(audit.findings(joining)), audit.invariants)
    said = _first_wrong(judgements)
    verdict = Verdict(joining.generation_id, step.name, content, audit.invariants, not said, said, joining.door)
    # Who wrote in between may have been seen in part: a verdict on neither is of no use to anybody.
    lake.open_tables.look_anew(*(lake.path(table) for table, _ in slices))
    if verdicts.content_of(lake, audit.slices(joining)) == content:
        joining.keep(verdict)
    return judgements, verdict


def _first_wrong(judgements: Sequence[Judgement]) -> str:
    return next((f"{line.invariant} does not hold: {line.said}" for line in judgements if not line.passed), "")


def _rely_on(joining: Joining, before: Step, audit: Audit) -> None:
    generation_id = joining.generation_id
    content = verdicts.content_of(joining.lake, audit.slices(joining))
    if not content:
        raise StateError(f"generation {generation_id} has no rows in {before.name}; materialise {before.name} first")
    verdict = joining.last_verdict(before.name)
    if verdict is None or verdict.content != content or verdict.invariants != audit.invariants:
        if joining.hands is None:
            raise StateError(
                f"generation {generation_id}: {before.name} was not judged as it is now; run its checks, or: "
                "cdc-platform bootstrap FILE --run"
            )
        verdict = _judged(joining, before, audit)[1]
    if not verdict.passed:
        raise StateError(
            f"generation {generation_id}: {before.name} is not to be relied on, as {verdict.door} has found: "
            f"{verdict.said}; materialise {before.name} again, or run the whole join again"
        )
