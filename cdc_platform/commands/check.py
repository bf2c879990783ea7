"""`cdc-platform check`: every invariant over one generation or all of them, with counts and samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING, TypeVar

import click

from cdc_platform.clock import Milliseconds, format_ms, format_us
from cdc_platform.commands.arguments import GENERATION
from cdc_platform.commands.next_steps import following, write_result
from cdc_platform.commands.output import json_option, warn, write_facts, write_table
from cdc_platform.commands.remedies import page_of, remedies
from cdc_platform.commands.session import Session, pass_session
from cdc_platform.errors import InputError

if TYPE_CHECKING:
    from cdc_platform.invariants.families import Family
    from cdc_platform.invariants.findings import Finding
    from cdc_platform.invariants.judge import Judgement
    from cdc_platform.lake.lake import Lake
    from cdc_platform.records.judgements import Judging

    Audit = tuple[Family, Callable[[], list[Finding] | None]]

_Read = TypeVar("_Read")
_LONGEST_VERSION = 18


@click.command()
@click.argument("generation", type=GENERATION, required=False)
@click.option("--deep", is_flag=True, help="Read every row of every table, however large it is.")
@click.option("--accept", metavar="TABLE@VERSION", help="Take what a foreign commit has left as it is; judge nothing.")
@click.option("--undo", metavar="TABLE@VERSION", help="Take a foreign commit back, and all behind it; judge nothing.")
@click.option("--because", metavar="TEXT", help="Why it is accepted or taken back: recorded, and shown from then on.")
@json_option
@pass_session
@click.pass_context
def check(
    ctx: click.Context,
    session: Session,
    generation: str | Milliseconds | None,
    deep: bool,
    accept: str | None,
    undo: str | None,
    because: str | None,
    as_json: bool,
) -> None:
    """Judge every invariant of GENERATION (its UUID or its time), or of all generations and all tables.

    The exit code is 1 when one does not hold, when there was nothing to check, or when a part of it could not be judged
    (`unjudged`). What takes tables that were never exported from a cluster is not judged, which is neither. What was
    judged is kept, for status.

    A foreign commit that is meant to stay is accepted with --accept and --because: that is kept beside it in the
    table's log, with who and when, and shown by check from then on. Its rows are taken as they are now. One that is
    not meant to stay is taken back with --undo, unless the platform has written to the table since.

    \b
    Example:
      cdc-platform check
      cdc-platform check 2026-01-31T12:00:00.000Z --json
      cdc-platform check --accept platform.nodes@7 --because "rack was renamed by hand, ticket 4711"
    """
    if accept is not None or undo is not None or because is not None:
        if generation is not None or deep or (accept is None) == (undo is None):
            raise InputError(
                "--because TEXT goes with --accept TABLE@VERSION or --undo TABLE@VERSION, and without anything to judge"
            )
        if accept is not None:
            _accept(session, accept, because or "", as_json)
        else:
            _undo(session, undo or "", because or "", as_json)
        return
    from cdc_platform.lake.small_files import reading_once
    from cdc_platform.records.judgements import EVERYTHING, Judging

    ctx.with_resource(reading_once())
    generation = None if generation is None else session.named(generation)
    name = None if generation is None else generation if isinstance(generation, str) else format_ms(generation)
    judging = Judging.begin(session.lake(), session.clock, "cdc-platform check", name or EVERYTHING)
    judgements = _judged(session, generation, name, deep=deep)
    failed = [line for line in judgements if line.failed]
    _keep(judging, judgements)
    if name is None:
        _tell_gaps(session, good=not failed)
        _tell_observed(session, good=all(line.passed for line in judgements))
    columns = ("invariant", ">checked", ">violations", "passed", "sample")
    rows = [
        (line.invariant, line.population, line.violations, "not judged" if line.unknown else line.passed, line.sample)
        for line in judgements
    ]
    title = f"Invariants of {'all generations' if name is None else name}"
    left, people = remedies(session.lake(), failed)
    for sentence in people:
        warn(sentence, code="needs-a-person")
    told = [_told(line) for line in judgements]
    write_result(told, lambda: write_table(title, columns, rows), left, as_json=as_json)
    if failed or not any(line.passed for line in judgements):
        ctx.exit(1)


def _told(line: Judgement) -> dict[str, object]:
    return {
        "invariant": line.invariant,
        "population": line.population,
        "violations": line.violations,
        "unjudged": line.unjudged,
        "sample": line.sample,
        "passed": None if line.unknown else line.passed,
        "page": page_of(line.invariant),
    }


def _keep(judging: Judging, judgements: list[Judgement]) -> None:
    """Leave what was found for `status`. A home that cannot be written to was judged all the same."""
    from cdc_platform.errors import PlatformError
    from cdc_platform.records.judgements import EVERYTHING, keep

    try:
        judged = [line for line in judgements if not line.unknown]
        keep(judging, judged, all_of_them=judging.asked_of == EVERYTHING)
    except (PlatformError, OSError) as error:
        warn(f"what was judged is not kept, so status will not know of it: {error}", code="not-kept")


def _accept(session: Session, accepted: str, because: str, as_json: bool) -> None:
    from cdc_platform.lake.acceptance import accept

    done = accept(session.lake(), *_named_commit("--accept", accepted), because)
    facts = {
        "table": done.table,
        "version": done.version,
        "said_in_version": done.said_in,
        "accepted": "now" if done.is_new else "before",
        "slices": list(done.slices),
    }
    left = [following("check", why="judged by what is accepted now")]
    write_result(facts, lambda: write_facts(facts.items()), left, as_json=as_json)


def _undo(session: Session, undone: str, because: str, as_json: bool) -> None:
    from cdc_platform.lake.acceptance import undo

    done = undo(session.lake(), *_named_commit("--undo", undone), because)
    facts = {
        "table": done.table,
        "version": done.version,
        "restored_version": done.restored,
        "said_in_version": done.said_in,
        "moved": list(done.moved),
    }
    left = [following("check", why="judged by what the table holds again")]
    write_result(facts, lambda: write_facts(facts.items()), left, as_json=as_json)


def _named_commit(option: str, named: str) -> tuple[str, int]:
    """The table and the version that TABLE@VERSION names."""
    table, _, version = named.rpartition("@")
    if not table or not (version.isascii() and version.isdigit() and len(version) <= _LONGEST_VERSION):
        raise InputError(f"{option} {named!r}: it is written TABLE@VERSION, as in platform.nodes@7")
    return table, int(version)


def _read(read: Callable[[], _Read], nothing: _Read, *, good: bool) -> _Read:
    """Read what is only shown beside the judgements; `nothing` where it cannot be read, which they say themselves."""
    try:
        return read()
    except Exception:
        if good:
            raise
        return nothing


def _tell_gaps(session: Session, *, good: bool) -> None:
    from cdc_platform.log.gaps import told

    for line in _read(lambda: told(session.lake()), [], good=good):
        warn(line, code="log-gap")


def _tell_observed(session: Session, *, good: bool) -> None:
    """Say that a home is only observed; one in which everything is good is so no longer."""
    from cdc_platform.lake.only_observed import lift, standing

    found = _read(lambda: standing(session.lake()), None, good=good)
    if found is None:
        return
    if good and lift(session.lake(), session.clock):
        warn("everything is whole now: this home is no longer only observed", code="whole-again")
    else:
        since = format_us(found.since_us)
        warn(
            f"this home is only observed since {since}: nothing is built on it until it is clean", code="only-observed"
        )


def _judged(
    session: Session, generation: str | Milliseconds | None, name: str | None, *, deep: bool
) -> list[Judgement]:
    """What is judged, family by family; whether tables can be read is looked at before anything else."""
    lake = session.lake()
    from cdc_platform.invariants.findings import STORED
    from cdc_platform.invariants.judge import judge
    from cdc_platform.invariants.stored import audit_stored, findings_of
    from cdc_platform.lake.reads import recording_reads
    from cdc_platform.lake.tables import TABLES
    from cdc_platform.lake.verification import verify

    found = verify(lake, deep=deep, names=None if name is None else set(TABLES))
    damaged = {each.name for each in found if each.damage}
    audits = _everything(session, lake, damaged) if name is None else _one(lake, generation, name, damaged)
    judgements: list[Judgement] = []
    with recording_reads() as read:
        for family, audit in audits:
            findings = findings_of(family, audit, found)
            judgements += [] if findings is None else judge(findings, family.due(findings))
    if name is not None:  # of one generation the tables matter that it is judged by, where something is wrong
        found = [each for each in found if each.name in read and each.damage]
    stored = audit_stored(found)
    return [*judgements, *judge(stored, STORED.due(stored))]


def _one(lake: Lake, generation: str | Milliseconds | None, name: str, damaged: set[str]) -> Iterator[Audit]:
    from cdc_platform.invariants import audit_lake, inventory
    from cdc_platform.invariants import findings as families
    from cdc_platform.invariants.stored import not_judged
    from cdc_platform.lake.session import workers
    from cdc_platform.lifecycle.repair.audit import audit_fit
    from cdc_platform.timeline import Timeline

    assert generation is not None
    named = generation

    def audit() -> list[Finding]:
        Timeline.read(lake).assert_not_removed(named)
        held = inventory.generations(lake)
        if of_generations:  # a task of Spark that meets a damaged file ends in a page of its stack
            return not_judged(families.GENERATIONS, of_generations)
        inventory.find(held, name)  # before anything is read for it
        return audit_lake(workers(), lake, name)

    of_generations = damaged & {table.full_name for table in inventory.READ}
    yield families.GENERATIONS, audit

    def fit() -> list[Finding] | None:
        newest = Timeline.read(lake).newest
        if newest is None or name not in (newest.id, format_ms(newest.time_ms)):
            return None
        return [line for line in audit_fit(lake) if line.invariant == families.STREAMS_FIT_THE_RING]

    yield families.FIT, fit


def _everything(session: Session, lake: Lake, damaged: set[str]) -> Iterator[Audit]:
    """The audits of all families but that of tables as they are stored."""
    from cdc_platform.errors import NotFound
    from cdc_platform.invariants import audit_lake, inventory
    from cdc_platform.invariants import findings as families
    from cdc_platform.invariants.following import audit_following
    from cdc_platform.invariants.observed import audit_observed
    from cdc_platform.invariants.stored import not_judged
    from cdc_platform.invariants.switches import audit_switches
    from cdc_platform.invariants.tablets import audit_tablets
    from cdc_platform.lake.session import workers
    from cdc_platform.lifecycle.expiry.audit import audit_expiry
    from cdc_platform.lifecycle.repair.audit import audit_fit
    from cdc_platform.lifecycle.upgrade.audit import audit_live_generations
    from cdc_platform.log.audit.hours import audit_hours
    from cdc_platform.log.audit.ingested import audit_ingested
    from cdc_platform.log.audit.logs import audit_logs
    from cdc_platform.log.audit.passed import audit_passed
    from cdc_platform.log.audit.states import audit_states
    from cdc_platform.timeline import Timeline

    clock, settings = session.clock, session.open_home().settings

    tablets = cache(lambda: audit_tablets(lake))

    def generations() -> list[Finding] | None:
        try:
            return audit_lake(workers(), lake)
        except NotFound:
            if tablets() or Timeline.read(lake).known:
                return None  # all tables are tablet-based, or what is known has no rows: other families judge that
            raise

    of_generations = damaged & {table.full_name for table in inventory.READ}
    if of_generations:  # a task of Spark that meets a damaged file ends in a page of its stack
        yield families.GENERATIONS, lambda: not_judged(families.GENERATIONS, of_generations)
    else:
        yield families.GENERATIONS, generations
    yield families.FIRST_FORMAT, lambda: audit_live_generations(lake, clock, settings)
    yield families.TABLETS, tablets
    yield families.SWITCHES, lambda: audit_switches(lake)
    yield families.EXPIRY, lambda: audit_expiry(lake, clock, settings)
    yield families.FIT, lambda: audit_fit(lake)
    yield families.OBSERVED, lambda: audit_observed(lake)
    yield families.LOGS, lambda: audit_logs(lake, workers())
    yield families.STATES, lambda: audit_states(lake)
    yield families.HOURS, lambda: audit_hours(lake)
    yield families.PASSED, lambda: audit_passed(lake)
    yield families.INGESTED, lambda: audit_ingested(lake)
    yield families.FOLLOWING, lambda: audit_following(lake)
