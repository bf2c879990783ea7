"""The steps of a join: how each is run and judged, the steps of both formats, and a whole join in one run.

The steps are declared once. The command line runs them in this order; Dagster makes an asset with checks of each. Each
step is named after the table that it fills, in both formats.
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
    audit_published,
    audit_timestamps,
    judge_findings,
    uniqueness,
    v1,
)
from cdc_platform.clock import Clock, Milliseconds, datetime_from_ms, format_ms
from cdc_platform.delta import ALL_PARTS, Filter, Lake, TaskRunner, row_hash, verify_tables
from cdc_platform.errors import AuditFailed, PlatformError, StateError
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
    """The inputs of a step: the generation, the lake, and the entry point (`entry_point`).

    `task_runner` runs work on rows; None means that this entry point has no task runner and cannot judge. `book`
    collects the verdicts of a run of several steps; without it, each verdict is stored at once.
    """

    lake: Lake
    clock: Clock
    settings: Settings
    generation_id: str
    task_runner: TaskRunner | None
    entry_point: str
    book: VerdictBook | None = None

    @property
    def workers(self) -> TaskRunner:
        """Return the task runner.

        Raises:
            StateError: this entry point has none.
        """
        if self.task_runner is None:
            raise StateError(f"{self.entry_point} has no Spark; run: cdc-platform bootstrap FILE --run")
        return self.task_runner

    def last_verdict(self, step: str) -> StepVerdict | None:
        """Return the last verdict on a step of this generation."""
        if self.book is not None:
            return self.book.last(self.generation_id, step)
        return verdicts.read_last_verdict(self.lake, self.generation_id, step)

    def record_verdict(self, verdict: StepVerdict) -> None:
        """Store a verdict, or add it to the book of this run."""
        if self.book is not None:
            self.book.add(verdict)
        else:
            verdicts.store_verdict(self.lake, self.clock, verdict)


@dataclass(frozen=True, eq=False)
class StepAudit:
    """The audit of a step: `findings` answers its `invariants` for the rows in `parts`."""

    invariants: tuple[Invariant, ...]
    findings: Callable[[JoinContext], Sequence[Finding]]
    parts: Callable[[JoinContext], TableParts]


@dataclass(frozen=True, eq=False)
class JoinStep:
    """One step, named after the table that it fills in both formats; `run` returns its result.

    `relies_on` are the tables of the earlier steps on which it builds; their verdicts must have passed.
    """

    table: Table
    run: Callable[[JoinContext], Any]
    relies_on: tuple[Table, ...] = ()
    audit: StepAudit | None = None

    @property
    def name(self) -> str:
        """Return the name of its table."""
        return self.table.name


JoinSteps = tuple[JoinStep, ...]


def find_step(steps: JoinSteps, table: Table) -> JoinStep:
    """Return the step that fills a table."""
    return next(step for step in steps if step.table is table)


def run_step(joining: JoinContext, steps: JoinSteps, step: JoinStep) -> Any:
    """Run a step after checking the steps on which it relies; return its result.

    Raises:
        StateError: rows on which it relies are missing or failed their audit.
    """
    with joining.lake.table_cache.pin_versions():
        for table in step.relies_on:
            before = find_step(steps, table)
            if before.audit is not None:
                _require_verdict(joining, before, before.audit)
        return step.run(joining)


def judge_step(joining: JoinContext, step: JoinStep) -> list[CheckResult]:
    """Judge the rows of a step, one result per invariant, and store the verdict.

    A result is unknown, and there is no verdict, if the rows of the step are as committed but rows with which they are
    compared are not.
    """
    assert step.audit is not None
    with joining.lake.table_cache.pin_versions():
        return _judge_and_store(joining, step, step.audit)[0]


def require_passed(joining: JoinContext, step: JoinStep, results: Sequence[CheckResult]) -> None:
    """Raise an error unless every result for a step passed.

    Raises:
        AuditFailed: names the first violated invariant, with the count and an example.
    """
    failure = _first_failure(results)
    if failure:
        raise AuditFailed(
            f"{step.name} of generation {joining.generation_id}: {failure}; nothing after it was written; "
            "look at: cdc-platform check"
        )


def _judge_and_store(joining: JoinContext, step: JoinStep, audit: StepAudit) -> tuple[list[CheckResult], StepVerdict]:
    lake, slices = joining.lake, audit.parts(joining)
    content = verdicts.content_name(lake, slices)
    judgements = _judge_unless_inputs_are_broken(joining, audit, slices)
    failure = _first_failure(judgements)
    verdict = StepVerdict(
        *(joining.generation_id, step.name, content, audit.invariants, not failure, failure, joining.entry_point),
        findings=tuple(judgements),
    )
    # A concurrent write may have been read in part, so store the verdict only if the content is still the same.
    lake.table_cache.revalidate(*(lake.path(table) for table, _ in slices))
    is_judged = not any(result.unknown for result in judgements)
    if is_judged and verdicts.content_name(lake, audit.parts(joining)) == content:
        joining.record_verdict(verdict)
    return judgements, verdict


def _judge_unless_inputs_are_broken(joining: JoinContext, audit: StepAudit, parts: TableParts) -> list[CheckResult]:
    try:
        results = judge_findings(list(audit.findings(joining)), audit.invariants)
    except PlatformError as error:
        reason = _describe_broken_input(joining.lake, parts)
        if not reason:
            raise
        return [_unknown_result(invariant, f"{reason} ({error})") for invariant in audit.invariants]
    reason = "" if all(result.passed for result in results) else _describe_broken_input(joining.lake, parts)
    return [_unknown_result(result.invariant, reason) if reason and not result.passed else result for result in results]


def _unknown_result(invariant: str, reason: str) -> CheckResult:
    return CheckResult(invariant, 0, 0, f"not judged: {reason}", unknown=True)


def _describe_broken_input(lake: Lake, parts: TableParts) -> str:
    """Return which rows a step is compared with that are not as committed; empty unless its own rows are."""
    if not parts or _find_complaints(lake, *parts[0]):
        return ""
    for table, filters in parts[1:]:
        complaints = _find_complaints(lake, table, filters)
        if complaints:
            return f"depends on {complaints[0]}"
    return ""


def _find_complaints(lake: Lake, table: Table, filters: Sequence[Filter]) -> list[str]:
    """Return the damage and the unexpected rows of a part of a table."""
    where = {name: value for name, _, value in filters}
    partitions = [row_hash.partition_name_from_values(table.partition_by, where)] if where else None
    (verified,) = verify_tables(lake, deep=True, names={table.full_name}, partitions=partitions) or (None,)
    wanted = {ALL_PARTS, *(partitions or ())}
    complaints = [] if verified is None else verified.complaints
    return [
        complaint.message
        for complaint in complaints
        if complaint.kind != "foreign" and (partitions is None or complaint.part in wanted)
    ]


def _first_failure(results: Sequence[CheckResult]) -> str:
    return next((f"{line.invariant} does not hold: {line.message}" for line in results if not line.passed), "")


def _require_verdict(joining: JoinContext, before: JoinStep, audit: StepAudit) -> None:
    generation_id = joining.generation_id
    content = verdicts.content_name(joining.lake, audit.parts(joining))
    if not content:
        raise StateError(f"generation {generation_id} has no rows in {before.name}; materialise {before.name} first")
    verdict = joining.last_verdict(before.name)
    if verdict is None or verdict.content != content or verdict.invariants != audit.invariants:
        if joining.task_runner is None:
            raise StateError(
                f"generation {generation_id}: {before.name} changed after its last audit; run its checks, or: "
                "cdc-platform bootstrap FILE --run"
            )
        verdict = _judge_and_store(joining, before, audit)[1]
    if not verdict.passed:
        raise StateError(
            f"generation {generation_id}: {before.name} failed its audit by {verdict.entry_point}: "
            f"{verdict.message}; materialise {before.name} again, or run the whole join again"
        )


@dataclass(frozen=True)
class InsertResult:
    """The result of an insert: `rows` rows in a table of this `version`, and metadata to report."""

    version: int | None
    rows: int
    metadata: dict[str, str]


def select_steps(lake: Lake, generation_id: str) -> JoinSteps:
    """Return the steps of a generation's join in its current or, before it has a timestamp, prospective format.

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
    metadata = {"format": "v1", "time": format_ms(time_ms), "table": GENERATION_DESCRIPTIONS.full_name}
    return InsertResult(lake.version(GENERATION_DESCRIPTIONS), 1, metadata)


def _audit_description(joining: JoinContext) -> list[Finding]:
    before, after = bootstrap.read_rings(joining.lake, joining.generation_id)
    lake, generation_id = joining.lake, joining.generation_id
    described = audit_description(joining.workers, lake, generation_id, before, after)
    holds = not any(finding.violations for finding in described)
    across = audit_across(
        joining.workers, lake, generation_id, partial(verdicts.generations_in_order, lake), described=holds
    )
    # If many other generations were read, store their fingerprints, against which the next join is compared.
    uniqueness.store_fingerprints(lake, besides=generation_id)
    return [*described, *across]


def _description_parts(joining: JoinContext) -> TableParts:
    return [(TOPOLOGY_DESCRIPTIONS, [("generation_id", "=", joining.generation_id)])]


def _v2_parts(joining: JoinContext) -> TableParts:
    return [(GENERATION_DESCRIPTIONS_V2, [("id", "=", joining.generation_id)])]


def _v1_parts(joining: JoinContext) -> TableParts:
    # The table has no partitions, so an insert of another generation causes this one to be judged again (milliseconds).
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
"""A join in the V2 format: it inserts the description, and only then chooses the timestamp."""

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
"""A join in the V1 format: it chooses the timestamp first, because it inserts the description under it."""


@dataclass(frozen=True)
class JoinResult:
    """A finished join: the generation with its timestamp (ms) and its size."""

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
    entry_point: str = "a program",
) -> JoinResult:
    """Run a pending join from its description to its published timestamp, or resume it.

    `entry_point` is the entry point that is stored with the verdicts.

    Raises:
        NotFound: no bootstrap event introduces this generation.
        StateError: an earlier join is unfinished.
        InputError: the node cannot join the current ring.
        AuditFailed: an invariant is violated; nothing after it was written.
    """
    with lake.table_cache.pin_versions():
        steps = select_steps(lake, generation_id)
    results = {}
    with verdicts.collect_verdicts(lake, clock) as book:
        joining = JoinContext(lake, clock, settings, generation_id, workers, entry_point, book)
        for step in steps:
            if step.audit is None:
                # This step informs nodes. Store the verdicts first, so that any entry point that resumes here finds
                # them.
                book.flush()
            results[step.table] = run_step(joining, steps, step)
            # Read again, so that concurrent writes after the step are judged too.
            if step.audit is not None:
                require_passed(joining, step, judge_step(joining, step))
    described = results[TOPOLOGY_DESCRIPTIONS]
    return JoinResult(generation_id, results[GENERATION_TIMESTAMPS], described.num_ranges, described.num_streams)


def find_unjudged_event(lake: Lake, time_ms: Milliseconds) -> inbox.BootstrapEvent | None:
    """Return the event of the generation at that time (ms) if only the verdict on its last step is missing.

    Its process died before the verdict: every row exists, and no later step requires the verdict. `run_join` stores it.
    Returns None for a judged generation, or for one without an event.
    """
    generation_id = next(
        (entry.generation_id for entry in generations.read_ledger(lake) if entry.time_ms == time_ms), None
    )
    if generation_id is None:
        return None
    last = [step for step in select_steps(lake, generation_id) if step.audit is not None][-1]
    return (
        inbox.find_event(lake, generation_id=generation_id)
        if verdicts.read_last_verdict(lake, generation_id, last.name) is None
        else None
    )


def run_introduce_step(joining: JoinContext) -> int:
    """Run the step that gives an inserted generation its timestamp (ms), as a committed switch requires.

    Raises:
        StateError: the inserted rows failed their audit.
    """
    steps = select_steps(joining.lake, joining.generation_id)
    return run_step(joining, steps, find_step(steps, CDC_LOCAL))
