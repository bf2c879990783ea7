"""Judge every invariant of a home or of one generation, and record the results for its status."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from cdc_platform.cdclog import (
    audit_hours,
    audit_ingest,
    audit_logs,
    audit_skipped_sets,
    audit_states,
    describe_gaps,
)
from cdc_platform.checks import (
    STORAGE_FAMILY,
    CheckResult,
    Finding,
    InvariantFamily,
    audit_derived_tables,
    audit_lake,
    audit_observation,
    audit_stored,
    audit_switches,
    audit_tablets,
    invariants,
    inventory,
    judge_findings,
    not_judged_findings,
    record_verifications,
    run_family_audit,
    uniqueness,
)
from cdc_platform.clock import Clock, Milliseconds, format_ms
from cdc_platform.delta import (
    Lake,
    MaintenanceTask,
    ObservedStatus,
    TableVerification,
    cache_file_reads,
    get_home_mode,
    lift_observed_mark,
    record_maintenance,
    verify_table_parts,
    verify_tables,
)
from cdc_platform.errors import NotFound, PlatformError
from cdc_platform.lifecycle import audit_expiry, audit_live_generations, audit_newest_fit, audit_ring_fit
from cdc_platform.metastore import WHOLE_HOME, CheckRun, read_table_checks, store_check_results
from cdc_platform.settings import Settings
from cdc_platform.spark import get_task_runner
from cdc_platform.tables import (
    CDC_LOCAL,
    CLUSTER_CHANGES,
    COMMITTED_GENERATIONS,
    GENERATION_DESCRIPTIONS,
    GENERATION_SWITCHES,
    REMOVED_GENERATIONS,
    STREAM_FINGERPRINTS,
    STREAMS_DESCRIPTIONS,
    SWITCH_PROMISES,
)
from cdc_platform.timeline import Timeline

GENERATION_AUDIT_TABLES = (
    *inventory.INVENTORY_TABLES,
    CDC_LOCAL,
    CLUSTER_CHANGES,
    COMMITTED_GENERATIONS,
    GENERATION_DESCRIPTIONS,
    GENERATION_SWITCHES,
    REMOVED_GENERATIONS,
    STREAMS_DESCRIPTIONS,
    STREAM_FINGERPRINTS,
    SWITCH_PROMISES,
)
"""The tables that the audits of one generation read."""

_Audit = tuple[InvariantFamily, Callable[[], list[Finding] | None]]
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class CheckReport:
    """The results of a check, one per invariant, in the order of the documentation.

    `generation` is the checked generation, None for the whole home. `log_gaps` describes the gaps in CDC logs, one line
    each. `observed` is set while the home is only observed. `observed_mark_lifted`: it was, and this check lifted the
    mark because every invariant passed. `unrecorded` says why the results could not be recorded, None if they were or
    were not to be.
    """

    generation: str | None
    results: tuple[CheckResult, ...]
    log_gaps: tuple[str, ...] = ()
    observed: ObservedStatus | None = None
    observed_mark_lifted: bool = False
    unrecorded: str | None = None

    @property
    def failed(self) -> tuple[CheckResult, ...]:
        """Return the results of invariants that are violated or could not be checked completely."""
        return tuple(result for result in self.results if result.failed)

    @property
    def passed(self) -> bool:
        """Return True if no invariant failed and at least one was checked."""
        return not self.failed and any(result.passed for result in self.results)


def check_home(
    lake: Lake,
    clock: Clock,
    settings: Settings,
    generation: str | Milliseconds | None,
    *,
    deep: bool,
    record_as: str | None,
) -> CheckReport:
    """Judge every invariant of a generation (its UUID or time in ms), or of everything.

    `deep` reads every row of every table, however large it is; for one generation, every row that its audit depends on.
    `record_as` is the entry point under which the results are recorded; None records nothing and writes nothing.

    Raises:
        NotFound: the generation is unknown or removed, or there is nothing to check.
    """
    name = format_ms(generation) if isinstance(generation, int) else generation
    with cache_file_reads():
        run = CheckRun.begin(lake, clock, record_as or "", name or WHOLE_HOME)
        # Verify before all else that the tables can be read.
        if generation is not None:
            return _check_generation(run, generation, name or "", deep=deep, record=record_as is not None)
        verified = verify_tables(lake, deep=deep)
        results = _judge_home(lake, clock, settings, verified)
        unrecorded = None if record_as is None else _record_results(run, results, verified)
        if record_as is not None and unrecorded is None:
            unrecorded = _record_time(lake, clock)
        sound = not any(result.failed for result in results)
        gaps = _read_or_default(lambda: describe_gaps(lake), [], strict=sound)
        whole = all(result.passed for result in results)
        observed = _read_or_default(lambda: get_home_mode(lake).observed, None, strict=whole)
        is_lifted = record_as is not None and whole and observed is not None and lift_observed_mark(lake, clock)
        return CheckReport(None, results, tuple(gaps), None if is_lifted else observed, is_lifted, unrecorded)


def _read_or_default(read: Callable[[], _Value], default: _Value, *, strict: bool) -> _Value:
    """Return `read()`. If it fails and `strict` is False, return `default`, since the results report the damage."""
    try:
        return read()
    except Exception:
        if strict:
            raise
        return default


def _record_results(
    run: CheckRun, results: tuple[CheckResult, ...], verified: Sequence[TableVerification]
) -> str | None:
    """Record the results for the status and the UI. Return why that failed: the results themselves are complete."""
    try:
        judged = [result for result in results if not result.unknown]
        store_check_results(run, judged, all_of_them=run.scope == WHOLE_HOME)
    except (PlatformError, OSError) as error:
        return str(error)
    return record_verifications(run, verified)


def _record_time(lake: Lake, clock: Clock) -> str | None:
    """Record that the whole home was checked. Return why that failed."""
    try:
        record_maintenance(lake, clock, [MaintenanceTask.CHECK])
    except (PlatformError, OSError) as error:
        return str(error)
    return None


def _judge_home(
    lake: Lake, clock: Clock, settings: Settings, verified: Sequence[TableVerification]
) -> tuple[CheckResult, ...]:
    """Return the results of all invariants, family by family."""
    damaged = {table.name for table in verified if table.damage}
    results = [
        result
        for family, audit in _iter_home_audits(lake, clock, settings, damaged)
        for result in _judge_family(family, run_family_audit(family, audit, verified))
    ]
    return (*results, *_judge_family(STORAGE_FAMILY, audit_stored(verified)))


def _check_generation(
    run: CheckRun, generation: str | Milliseconds, name: str, *, deep: bool, record: bool
) -> CheckReport:
    """Judge one generation from its own rows, and from what it is compared with."""
    lake = run.lake
    with lake.table_cache.pin_versions():  # what is verified is what is judged
        index = _read_verified_index(lake, name)
        verified, whole, others = _verify_for_generation(lake, name, index, deep=deep)
        results = _judge_generation(lake, generation, name, verified, index)
    unrecorded = None
    if record:
        unrecorded = _record_results(run, results, [table for table in verified if table.name in whole])
        if _are_sound(verified) and others >= uniqueness.MIN_GENERATIONS_A_COMMIT:
            with suppress(PlatformError, OSError):  # it only makes the next check faster
                uniqueness.store_fingerprints(lake)
    return CheckReport(name, results, unrecorded=unrecorded)


def _are_sound(verified: Sequence[TableVerification]) -> bool:
    """Return True if no table has a damaged file, rows that its commits do not record, or a foreign commit."""
    return not any(table.damage or table.unexpected or table.foreign for table in verified)


def _read_verified_index(lake: Lake, name: str) -> uniqueness.FingerprintIndex:
    """Return the stored fingerprints of all generations but one.

    Return none if their table is not as it was committed, or cannot be read.
    """
    verified = verify_tables(lake, deep=True, names={STREAM_FINGERPRINTS.full_name})
    if not _are_sound(verified):
        return uniqueness.EMPTY_INDEX
    try:
        own = inventory.find_generation(Timeline.read(lake), name)
        return uniqueness.read_fingerprint_index(lake, None if own is None else own.id)
    except Exception:  # noqa: BLE001 the tables of generations are damaged, and are verified as a whole
        return uniqueness.EMPTY_INDEX


def _verify_for_generation(
    lake: Lake, name: str, index: uniqueness.FingerprintIndex, *, deep: bool
) -> tuple[list[TableVerification], set[str], int]:
    """Verify what the audits of a generation depend on.

    Of a table with partitions, only those that are read are verified, unless they or an earlier check have complaints.
    Return the tables, the names of those verified as a whole, and the number of partitions that were read of the table
    that has most.
    """
    most = 0
    parts: dict[str, Collection[str] | None] = dict.fromkeys(table.full_name for table in GENERATION_AUDIT_TABLES)
    with suppress(Exception):  # a damaged log, or rows that cannot be read: verify all partitions
        earlier = {check.table for check in read_table_checks(lake).values() if check.complaints}
        chosen = inventory.list_partitions_to_read(lake, name, index.generations)
        most = max(map(len, chosen.values()))
        parts |= {table.full_name: names for table, names in chosen.items() if table.full_name not in earlier}
    verified = verify_table_parts(lake, parts, deep=deep)
    whole = {table.name for table in verified if parts[table.name] is None or table.complaints}
    to_complete = {name for name in whole if parts[name] is not None}
    verified = [
        *(table for table in verified if table.name not in to_complete),
        *(verify_tables(lake, deep=deep, names=to_complete) if to_complete else ()),
    ]
    return sorted(verified, key=lambda table: table.name), whole, most


def _judge_generation(
    lake: Lake,
    generation: str | Milliseconds,
    name: str,
    verified: Sequence[TableVerification],
    index: uniqueness.FingerprintIndex,
) -> tuple[CheckResult, ...]:
    """Return the results for one generation, with those of the damaged tables among those that its audits read."""
    damaged = {table.name for table in verified if table.damage}
    results = [
        result
        for family, audit in _iter_generation_audits(lake, generation, name, damaged, index)
        for result in _judge_family(family, run_family_audit(family, audit, verified))
    ]
    stored = audit_stored([table for table in verified if table.damage])
    return (*results, *_judge_family(STORAGE_FAMILY, stored))


def _judge_family(family: InvariantFamily, findings: list[Finding] | None) -> list[CheckResult]:
    return [] if findings is None else judge_findings(findings, family.due(findings))


def _iter_generation_audits(
    lake: Lake, generation: str | Milliseconds, name: str, damaged: set[str], index: uniqueness.FingerprintIndex
) -> Iterator[_Audit]:
    damaged = damaged & {table.full_name for table in inventory.INVENTORY_TABLES}

    def audit_generation() -> list[Finding]:
        Timeline.read(lake).assert_not_removed(generation)
        if damaged:  # a Spark task that meets a damaged file fails with a page of stack trace
            return not_judged_findings(invariants.GENERATION_FAMILY, damaged)
        return audit_lake(get_task_runner(), lake, name, index)

    def audit_fit() -> list[Finding] | None:
        newest = Timeline.read(lake).newest
        if newest is None or name not in (newest.id, format_ms(newest.time_ms)):
            return None
        return audit_newest_fit(lake)

    yield invariants.GENERATION_FAMILY, audit_generation
    yield invariants.REPAIR_FAMILY, audit_fit


def _iter_home_audits(lake: Lake, clock: Clock, settings: Settings, damaged: set[str]) -> Iterator[_Audit]:
    """Yield the audits of all families except that of the stored tables."""
    audit_tablets_once = cache(lambda: audit_tablets(lake))
    damaged = damaged & {table.full_name for table in inventory.INVENTORY_TABLES}

    def audit_generations() -> list[Finding] | None:
        if damaged:  # a Spark task that meets a damaged file fails with a page of stack trace
            return not_judged_findings(invariants.GENERATION_FAMILY, damaged)
        try:
            return audit_lake(get_task_runner(), lake)
        except NotFound:
            if audit_tablets_once() or Timeline.read(lake).known:
                return None  # only tablets, or known generations have no rows: other families judge that
            raise

    yield invariants.GENERATION_FAMILY, audit_generations
    yield invariants.V1_FAMILY, lambda: audit_live_generations(lake, clock, settings)
    yield invariants.TABLET_FAMILY, audit_tablets_once
    yield invariants.SWITCH_FAMILY, lambda: audit_switches(lake)
    yield invariants.EXPIRY_FAMILY, lambda: audit_expiry(lake, clock, settings)
    yield invariants.REPAIR_FAMILY, lambda: audit_ring_fit(lake)
    yield invariants.OBSERVATION_FAMILY, lambda: audit_observation(lake)
    yield invariants.LOG_FAMILY, lambda: audit_logs(lake, get_task_runner())
    yield invariants.STATE_FAMILY, lambda: audit_states(lake)
    yield invariants.HOUR_FAMILY, lambda: audit_hours(lake)
    yield invariants.SKIPPED_SET_FAMILY, lambda: audit_skipped_sets(lake)
    yield invariants.INGEST_FAMILY, lambda: audit_ingest(lake)
    yield invariants.DERIVED_TABLE_FAMILY, lambda: audit_derived_tables(lake)
