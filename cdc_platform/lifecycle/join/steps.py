"""The steps of a join: how each is run and judged, the steps of both formats, and a whole join in one run.

The steps are declared once. The command line runs them in this order; Dagster makes an asset and its checks of each.
A step is named by the table that it fills, in either format.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from cdc_platform.checks import (
    ACROSS_INVARIANTS,
    DESCRIPTION_INVARIANTS,
    INSERTED_INVARIANTS,
    PUBLISHED_INVARIANTS,
    TIMESTAMP_INVARIANTS,
    CheckResult,
    Finding,
    Invariant,
    audit_across,
    audit_description,
    audit_inserted,
    audit_lake,
    audit_published,
    audit_timestamps,
    judge_findings,
    uniqueness,
    v1,
)
from cdc_platform.clock import Clock, Milliseconds, datetime_from_ms, format_ms
from cdc_platform.delta import Lake, TaskRunner
from cdc_platform.errors import AuditFailed, StateError
from cdc_platform.lifecycle.join import bootstrap, publish, verdicts
from cdc_platform.lifecycle.join.verdicts import StepVerdict, TableParts, VerdictBook
from cdc_platform.metastore import generations, inbox
from cdc_platform.settings import Settings
from cdc_platform.tables import (
    CDC_LOCAL,
    GENERATION_DESCRIPTIONS,
    GENERATION_DESCRIPTIONS_V2,
    GENERATION_TIMESTAMPS,
    NODES,
    STREAMS_DESCRIPTIONS_V2,
    TOPOLOGY_DESCRIPTIONS,
    Table,
)


@dataclass(frozen=True)
class JoinContext:
    """What a step works with: the generation, where it is, and who asks.

    `hands` are those who work on rows; None: this door has nobody, and cannot judge itself. `book` takes down the
    verdicts of a run of several steps; without one each is kept as it is given.
    """

    lake: Lake
    clock: Clock
    settings: Settings
    generation_id: str
    hands: TaskRunner | None
    door: str
    book: VerdictBook | None = None

    @property
    def workers(self) -> TaskRunner:
        """Who works on rows.

        Raises:
            StateError: this door has none.
        """
        if self.hands is None:
            raise StateError(f"{self.door} has no Spark; run: cdc-platform bootstrap FILE --run")
        return self.hands

    def last_verdict(self, step: str) -> StepVerdict | None:
        """The last verdict on a step of this generation."""
        if self.book is not None:
            return self.book.last(self.generation_id, step)
        return verdicts.read_last_verdict(self.lake, self.generation_id, step)

    def keep(self, verdict: StepVerdict) -> None:
        """Keep a verdict, or have it kept with others of this run."""
        if self.book is not None:
            self.book.enter(verdict)
        else:
            verdicts.store_verdict(self.lake, self.clock, verdict)


def _whole_lake(lake: Lake, workers: TaskRunner) -> Sequence[Finding]:
    return audit_lake(workers, lake)


@dataclass(frozen=True, eq=False)
class StepAudit:
    """What is asked of a step: `invariants`, answered by `findings`, of the rows in `slices`.

    `of_all` answers, with others, for every generation at once; it gets the lake and who works on rows.
    """

    invariants: tuple[Invariant, ...]
    findings: Callable[[JoinContext], Sequence[Finding]]
    slices: Callable[[JoinContext], TableParts]
    of_all: Callable[[Lake, TaskRunner], Sequence[Finding]] = _whole_lake


@dataclass(frozen=True, eq=False)
class JoinStep:
    """One step. It is named by the table that it fills, in either format; `run` answers with what it made.

    `relies_on` are the tables of the steps before it that it builds on: their verdicts have to be good.
    """

    table: Table
    run: Callable[[JoinContext], Any]
    relies_on: tuple[Table, ...] = ()
    audit: StepAudit | None = None

    @property
    def name(self) -> str:
        """The name of its table."""
        return self.table.name


JoinSteps = tuple[JoinStep, ...]


def find_step(steps: JoinSteps, table: Table) -> JoinStep:
    """The step that fills a table."""
    return next(step for step in steps if step.table is table)


def run_step(joining: JoinContext, steps: JoinSteps, step: JoinStep) -> Any:
    """Run a step on what it relies on; answers with what it made.

    Raises:
        StateError: what it relies on is not there, or does not hold.
    """
    with joining.lake.open_tables.looked_at_once():
        for table in step.relies_on:
            before = find_step(steps, table)
            if before.audit is not None:
                _require_verdict(joining, before, before.audit)
        return step.run(joining)


def judge_step(joining: JoinContext, step: JoinStep) -> list[CheckResult]:
    """Judge what a step has left, an invariant a line, and keep the verdict."""
    assert step.audit is not None
    with joining.lake.open_tables.looked_at_once():
        return _judge_and_store(joining, step, step.audit)[0]


def require_passed(joining: JoinContext, step: JoinStep, judgements: Sequence[CheckResult]) -> None:
    """Go on only if everything that was judged of a step holds.

    Raises:
        AuditFailed: names the first invariant that does not hold, with how often and an example.
    """
    said = _first_failure(judgements)
    if said:
        raise AuditFailed(
            f"{step.name} of generation {joining.generation_id}: {said}; nothing after it was written; "
            "look at: cdc-platform check"
        )


def _judge_and_store(joining: JoinContext, step: JoinStep, audit: StepAudit) -> tuple[list[CheckResult], StepVerdict]:
    lake, slices = joining.lake, audit.slices(joining)
    content = verdicts.content_name(lake, slices)
    judgements = judge_findings(list(audit.findings(joining)), audit.invariants)
    said = _first_failure(judgements)
    verdict = StepVerdict(joining.generation_id, step.name, content, audit.invariants, not said, said, joining.door)
    # Who wrote in between may have been seen in part: a verdict on neither is of no use to anybody.
    lake.open_tables.look_anew(*(lake.path(table) for table, _ in slices))
    if verdicts.content_name(lake, audit.slices(joining)) == content:
        joining.keep(verdict)
    return judgements, verdict


def _first_failure(judgements: Sequence[CheckResult]) -> str:
    return next((f"{line.invariant} does not hold: {line.said}" for line in judgements if not line.passed), "")


def _require_verdict(joining: JoinContext, before: JoinStep, audit: StepAudit) -> None:
    generation_id = joining.generation_id
    content = verdicts.content_name(joining.lake, audit.slices(joining))
    if not content:
        raise StateError(f"generation {generation_id} has no rows in {before.name}; materialise {before.name} first")
    verdict = joining.last_verdict(before.name)
    if verdict is None or verdict.content != content or verdict.invariants != audit.invariants:
        if joining.hands is None:
            raise StateError(
                f"generation {generation_id}: {before.name} was not judged as it is now; run its checks, or: "
                "cdc-platform bootstrap FILE --run"
            )
        verdict = _judge_and_store(joining, before, audit)[1]
    if not verdict.passed:
        raise StateError(
            f"generation {generation_id}: {before.name} is not to be relied on, as {verdict.door} has found: "
            f"{verdict.said}; materialise {before.name} again, or run the whole join again"
        )


@dataclass(frozen=True)
class InsertResult:
    """What an insert left: `rows` rows in a table of this `version`, and what there is to tell."""

    version: int | None
    rows: int
    told: dict[str, str]


def select_steps(lake: Lake, generation_id: str) -> JoinSteps:
    """The steps of a generation's join, in the format that it has, or would get now.

    Raises:
        NotFound: no bootstrap event introduces this generation.
    """
    return V1_STEPS if bootstrap.is_v1_generation(lake, generation_id) else V2_STEPS


def _insert_v2(joining: JoinContext) -> InsertResult:
    version = bootstrap.insert_descriptions(joining.workers, joining.lake, joining.generation_id)
    rows = generations.read_v2_range_ends(joining.lake, joining.generation_id).size
    return InsertResult(version, rows, {"format": "v2"})


def _insert_v1(joining: JoinContext) -> InsertResult:
    lake = joining.lake
    time_ms = bootstrap.insert_v1_description(lake, joining.clock, joining.settings, joining.generation_id)
    told = {"format": "v1", "time": format_ms(time_ms), "table": GENERATION_DESCRIPTIONS.full_name}
    return InsertResult(lake.version(GENERATION_DESCRIPTIONS), 1, told)


def _audit_description(joining: JoinContext) -> list[Finding]:
    before, after = bootstrap.read_rings(joining.lake, joining.generation_id)
    lake, generation_id = joining.lake, joining.generation_id
    described = audit_description(joining.workers, lake, generation_id, before, after)
    holds = not any(finding.violations for finding in described)
    across = audit_across(
        joining.workers, lake, generation_id, partial(verdicts.generations_in_order, lake), described=holds
    )
    # Where many others were read, the next to join is held against what is kept of them.
    uniqueness.store_fingerprints(lake, besides=generation_id)
    return [*described, *across]


def _description_parts(joining: JoinContext) -> TableParts:
    return [(TOPOLOGY_DESCRIPTIONS, [("generation_id", "=", joining.generation_id)])]


def _v2_parts(joining: JoinContext) -> TableParts:
    return [(GENERATION_DESCRIPTIONS_V2, [("id", "=", joining.generation_id)])]


def _v1_parts(joining: JoinContext) -> TableParts:
    # The table has no partitions: whoever inserts another generation there has this one judged again, in milliseconds.
    return [(GENERATION_DESCRIPTIONS, [])]


def _published_parts(joining: JoinContext) -> TableParts:
    time_ms = generations.read_generation_time_ms(joining.lake, joining.generation_id)
    return [] if time_ms is None else [(STREAMS_DESCRIPTIONS_V2, [("time", "=", datetime_from_ms(time_ms))])]


_DESCRIPTION_AUDIT = StepAudit((*DESCRIPTION_INVARIANTS, *ACROSS_INVARIANTS), _audit_description, _description_parts)
_ADMIT_STEP = JoinStep(
    NODES,
    run=lambda joining: bootstrap.admit_node(joining.lake, joining.generation_id),
    relies_on=(CDC_LOCAL,),
)
_TIMESTAMP_STEP = JoinStep(
    GENERATION_TIMESTAMPS,
    run=lambda joining: publish.publish_generation_timestamp(joining.lake, joining.clock, joining.generation_id),
    relies_on=(STREAMS_DESCRIPTIONS_V2, NODES),
    audit=StepAudit(
        TIMESTAMP_INVARIANTS,
        lambda joining: audit_timestamps(joining.lake, joining.generation_id),
        lambda joining: [(GENERATION_TIMESTAMPS, []), *_published_parts(joining)],
        of_all=lambda lake, _: audit_timestamps(lake),
    ),
)

V2_STEPS: JoinSteps = (
    JoinStep(
        TOPOLOGY_DESCRIPTIONS,
        run=lambda joining: bootstrap.describe_generation(joining.workers, joining.lake, joining.generation_id),
        audit=_DESCRIPTION_AUDIT,
    ),
    JoinStep(
        GENERATION_DESCRIPTIONS_V2,
        run=_insert_v2,
        relies_on=(TOPOLOGY_DESCRIPTIONS,),
        audit=StepAudit(
            INSERTED_INVARIANTS,
            lambda joining: audit_inserted(joining.workers, joining.lake, joining.generation_id),
            lambda joining: [*_v2_parts(joining), *_description_parts(joining)],
        ),
    ),
    JoinStep(
        CDC_LOCAL,
        run=lambda joining: bootstrap.introduce_generation(
            joining.lake, joining.clock, joining.settings, joining.generation_id
        ),
        relies_on=(GENERATION_DESCRIPTIONS_V2,),
    ),
    _ADMIT_STEP,
    JoinStep(
        STREAMS_DESCRIPTIONS_V2,
        run=lambda joining: publish.publish_generation_streams(joining.workers, joining.lake, joining.generation_id),
        relies_on=(GENERATION_DESCRIPTIONS_V2, CDC_LOCAL),
        audit=StepAudit(
            PUBLISHED_INVARIANTS,
            lambda joining: audit_published(joining.workers, joining.lake, joining.generation_id),
            lambda joining: [*_published_parts(joining), *_v2_parts(joining)],
        ),
    ),
    _TIMESTAMP_STEP,
)
"""A join in the second format: the description is inserted, and only then is the timestamp chosen."""

V1_STEPS: JoinSteps = (
    JoinStep(
        TOPOLOGY_DESCRIPTIONS,
        run=lambda joining: bootstrap.describe_v1_generation(joining.workers, joining.lake, joining.generation_id),
        audit=_DESCRIPTION_AUDIT,
    ),
    JoinStep(
        GENERATION_DESCRIPTIONS_V2,
        run=_insert_v1,
        relies_on=(TOPOLOGY_DESCRIPTIONS,),
        audit=StepAudit(
            INSERTED_INVARIANTS,
            lambda joining: v1.audit_inserted_v1(joining.lake, joining.generation_id, INSERTED_INVARIANTS),
            lambda joining: [*_v1_parts(joining), *_description_parts(joining)],
        ),
    ),
    JoinStep(
        CDC_LOCAL,
        run=lambda joining: bootstrap.introduce_v1_generation(joining.lake, joining.generation_id),
        relies_on=(GENERATION_DESCRIPTIONS_V2,),
    ),
    _ADMIT_STEP,
    JoinStep(
        STREAMS_DESCRIPTIONS_V2,
        run=lambda joining: publish.publish_v1_generation_streams(joining.lake, joining.generation_id),
        relies_on=(GENERATION_DESCRIPTIONS_V2, CDC_LOCAL),
        audit=StepAudit(
            PUBLISHED_INVARIANTS,
            lambda joining: v1.audit_published_v1(joining.lake, joining.generation_id, PUBLISHED_INVARIANTS),
            lambda joining: [*_published_parts(joining), *_v1_parts(joining)],
        ),
    ),
    _TIMESTAMP_STEP,
)
"""A join in the first format: the timestamp is chosen first, for the description is inserted under it."""


@dataclass(frozen=True)
class JoinResult:
    """A finished join: the generation with its timestamp (ms), and how large it is."""

    generation_id: str
    time_ms: Milliseconds
    num_ranges: int
    num_streams: int


def run_join(
    workers: TaskRunner,
    lake: Lake,
    clock: Clock,
    settings: Settings,
    generation_id: str,
    *,
    door: str = "a program",
) -> JoinResult:
    """Take a waiting join from its description to its published timestamp. Started again it goes on where it was.

    `door` is noted with the verdicts: who asked.

    Raises:
        NotFound: no bootstrap event introduces this generation.
        StateError: an earlier join is unfinished.
        InputError: the node cannot join the ring as it stands.
        AuditFailed: an invariant is violated; nothing after it was written.
    """
    with lake.open_tables.looked_at_once():
        steps = select_steps(lake, generation_id)
    made = {}
    with verdicts.collect_verdicts(lake, clock) as book:
        joining = JoinContext(lake, clock, settings, generation_id, workers, door, book)
        for step in steps:
            if step.audit is None:
                # It is nodes that learn of the generation: whoever goes on from here, by any door, finds the verdicts.
                book.keep()
            made[step.table] = run_step(joining, steps, step)
            # Looked at anew: what others have written behind the step is judged with it.
            if step.audit is not None:
                require_passed(joining, step, judge_step(joining, step))
    described = made[TOPOLOGY_DESCRIPTIONS]
    return JoinResult(generation_id, made[GENERATION_TIMESTAMPS], described.num_ranges, described.num_streams)


def find_unjudged_event(lake: Lake, time_ms: Milliseconds) -> inbox.BootstrapEvent | None:
    """The event of the generation of that time (ms), if it is finished but for the verdict on its last step.

    Its process died in between: every row is there, and no later step asks for the verdict. `run_join` gives it.
    None for a generation that was judged, or that no event has made.
    """
    made = next((entry.generation_id for entry in generations.read_ledger(lake) if entry.time_ms == time_ms), None)
    if made is None:
        return None
    last = [step for step in select_steps(lake, made) if step.audit is not None][-1]
    return (
        inbox.find_event(lake, generation_id=made)
        if verdicts.read_last_verdict(lake, made, last.name) is None
        else None
    )


def run_introduce_step(joining: JoinContext) -> int:
    """Take the one step that gives an inserted generation its timestamp (ms): what a committed switch sets in motion.

    Raises:
        StateError: what was inserted does not hold.
    """
    steps = select_steps(joining.lake, joining.generation_id)
    return run_step(joining, steps, find_step(steps, CDC_LOCAL))
