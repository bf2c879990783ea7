"""`cdc-platform check`: judge every invariant of one generation or all, and suggest remedies.

A command is suggested only if it would change something; otherwise the documentation page is named.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

import click

from cdc_platform.checks import (
    COMMITS_KNOWN,
    FILES_WHOLE,
    GENERATION_FAMILY,
    INVARIANT_FAMILIES,
    LOG_GAPS_ACCEPTED,
    OBSERVED_WHOLE,
    PUBLISHED_EQUALS_DESCRIPTION,
    REPAIR_FAMILY,
    ROWS_AS_COMMITTED,
    TIMESTAMP_COMPLETE,
    is_judged,
)
from cdc_platform.cli.next_steps import NextStep, build_next_step, build_observe_step
from cdc_platform.cli.output import json_option, warn, write_facts
from cdc_platform.cli.params import GENERATION
from cdc_platform.cli.render import View, show_rows, write_result
from cdc_platform.cli.session import CliSession, pass_session
from cdc_platform.cli.write_rules import WritingCommand
from cdc_platform.clock import Milliseconds, format_us
from cdc_platform.errors import InputError

if TYPE_CHECKING:
    from cdc_platform.checks import CheckResult
    from cdc_platform.delta import Lake
    from cdc_platform.home import CheckReport
    from cdc_platform.lifecycle import DamagedGenerations, RepairCheck


FILE_INVARIANTS = (FILES_WHOLE, ROWS_AS_COMMITTED)
PUBLISHED_INVARIANTS = (PUBLISHED_EQUALS_DESCRIPTION, TIMESTAMP_COMPLETE)


def suggest_remedies(lake: Lake, failed: Iterable[CheckResult]) -> tuple[list[NextStep], list[str]]:
    """Return the commands that help against failed invariants, and a sentence for each docs page that needs a person.

    Damage of files comes first. Invariants that were not judged because of it need no remedy of their own.
    """
    failed = sorted(failed, key=lambda line: line.invariant not in FILE_INVARIANTS)
    if failed and failed[0].invariant in FILE_INVARIANTS:
        failed = [line for line in failed if is_judged(line)]
    checkup, damaged = cache(lambda: _check_repair(lake)), cache(lambda: _find_damaged(lake))
    commands: dict[str, NextStep] = {}
    people: dict[str, list[str]] = {}
    for line in failed:
        command = _suggest_command(lake, line, checkup, damaged)
        if command is not None:
            commands.setdefault(command.command, command)
        else:
            people.setdefault(get_docs_page(line.invariant) or "docs/generations.md", []).append(line.invariant)
    sentences = [
        f"{', '.join(names)}: no command resolves this by itself, see {page}{_commit_hint(names)}"
        for page, names in people.items()
    ]
    return list(commands.values()), sentences


def _commit_hint(invariants: Collection[str]) -> str:
    """Return a person's options for a foreign commit, or an empty text if no invariant is about one."""
    if COMMITS_KNOWN not in invariants:
        return ""
    return ": check --undo TABLE@VERSION takes a foreign commit back, check --accept TABLE@VERSION lets it stay"


def get_docs_page(invariant: str) -> str | None:
    """Return the page of the docs that explains an invariant, whose name is its code."""
    return next((family.page for family in INVARIANT_FAMILIES if invariant in family.invariants), None)


def _suggest_command(
    lake: Lake,
    line: CheckResult,
    checkup: Callable[[], RepairCheck | None],
    damaged: Callable[[], DamagedGenerations | None],
) -> NextStep | None:
    why = f"{line.invariant}: {get_docs_page(line.invariant)}"
    if line.invariant == LOG_GAPS_ACCEPTED:
        return build_next_step("consumers", "gaps", why=why)
    if line.invariant == OBSERVED_WHOLE:
        return build_observe_step(lake, why)
    if line.invariant in (*FILE_INVARIANTS, *PUBLISHED_INVARIANTS):
        damage = damaged()
        # For files, `repair` also reports what to do about each one that it cannot restore.
        if damage is not None and (damage.restorable or line.invariant in FILE_INVARIANTS):
            return build_next_step("repair", "--from-description", "--dry-run", why=why)
    if line.invariant not in (*REPAIR_FAMILY.invariants, *GENERATION_FAMILY.invariants):
        return None
    repair_check = checkup()
    if repair_check is None or not (repair_check.reasons or repair_check.warnings):
        return None
    return build_next_step("repair", "--dry-run", *([] if repair_check.reasons else ["--strict"]), why=why)


def _check_repair(lake: Lake) -> RepairCheck | None:
    """Return what `repair` would find, or None if it cannot tell."""
    from cdc_platform.lifecycle import repair

    try:
        return repair.check_newest_generation(lake)
    except Exception:  # noqa: BLE001 the home is damaged, and the invariants report its rows
        return None


def _find_damaged(lake: Lake) -> DamagedGenerations | None:
    """Return what `repair --from-description` would find, or None if it refuses."""
    from cdc_platform.lifecycle import restore

    try:
        return restore.find_damaged_generations(lake)
    except Exception:  # noqa: BLE001 as above
        return None


_MAX_VERSION_DIGITS = 18


@click.command(cls=WritingCommand, writes=("platform.judgements", "platform.only_observed", "platform.table_checks"))
@click.argument("generation", type=GENERATION, required=False)
@click.option("--deep", is_flag=True, help="Read every row of every table, however large it is.")
@click.option("--accept", metavar="TABLE@VERSION", help="Accept a foreign commit and its rows.")
@click.option("--undo", metavar="TABLE@VERSION", help="Take back a foreign commit and all later ones.")
@click.option("--reason", metavar="TEXT", help="Why it is accepted or taken back; recorded.")
@json_option
@pass_session
@click.pass_context
def check(
    ctx: click.Context,
    session: CliSession,
    generation: str | Milliseconds | None,
    deep: bool,
    accept: str | None,
    undo: str | None,
    reason: str | None,
    as_json: bool,
) -> None:
    """Check every invariant of GENERATION (its UUID or its time), or of all generations and all tables.

    Failures come first; -v lists the passed checks, too. The exit code is 1 when a check fails, when there is nothing
    to check, or when a check could not cover everything (`unchecked`). Checks that need tables which were never
    exported from the cluster are skipped and do not fail. Results are stored for `status`.

    --accept TABLE@VERSION --reason TEXT accepts a foreign commit and its rows. The table's log records who accepted it
    and why, and later checks show that. --undo takes a foreign commit back, unless the platform has written to the
    table since.

    \b
    Example:
      cdc-platform check
      cdc-platform check 2026-01-31T12:00:00.000Z --json
      cdc-platform check --accept platform.nodes@7 --reason "rack was renamed by hand, ticket 4711"
    """
    if accept is not None or undo is not None or reason is not None:
        if generation is not None or deep or (accept is None) == (undo is None):
            raise InputError(
                "--reason TEXT goes with --accept TABLE@VERSION or --undo TABLE@VERSION, and without anything to judge"
            )
        if accept is not None:
            _accept_commit(session, accept, reason or "", as_json)
        else:
            _undo_commit(session, undo or "", reason or "", as_json)
        return
    from cdc_platform.delta import cache_file_reads

    ctx.with_resource(cache_file_reads())
    report = session.open_home().check(generation, deep=deep, entry_point="cdc-platform check")
    name, judgements, failed = report.generation, report.results, report.failed
    _write_warnings(report)
    next_steps, people = suggest_remedies(session.lake(), failed)
    for sentence in people:
        warn(sentence, code="needs-a-person")
    document = {
        "generation": name,
        "checks": len(judgements),
        "failed": len(failed),
        "unchecked": sum(line.unknown for line in judgements),
        "results": [_result_document(line) for line in judgements],
    }
    verbose = ctx.find_root().params["verbose"]
    write_result(document, as_json=as_json, show=lambda: _show_results(document, verbose), next_steps=next_steps)
    if not report.passed:
        ctx.exit(1)


def _result_document(line: CheckResult) -> dict[str, object]:
    return {
        "invariant": line.invariant,
        "passed": None if line.unknown else line.passed,
        "checked": line.population,
        "violations": line.violations,
        "unchecked": line.unjudged,
        "sample": line.sample,
        "page": get_docs_page(line.invariant),
    }


def _show_results(document: dict[str, Any], verbose: bool) -> None:
    """Print the failures, then how many checks passed. With `verbose` print all results."""
    checks, failed, unchecked = document["checks"], document["failed"], document["unchecked"]
    passed = checks - failed - unchecked
    of = f" of generation {document['generation']}" if document["generation"] else ""
    if failed:
        click.secho(f"{failed} of {checks} checks{of} failed", fg="red", bold=True)
        write_facts(
            (row["invariant"], f"{row['violations']:,} of {row['checked']:,}: {row['sample']}")
            for row in document["results"]
            if row["passed"] is False
        )
    elif passed:
        click.secho(f"all {passed} checks{of} passed", fg="green")
    else:
        click.secho(f"no check{of} could run: there is no data to check", fg="red", bold=True)
    if failed and passed and not verbose:
        click.echo(f"{passed} passed (-v lists them)")
    if verbose and passed:
        rows = [row for row in document["results"] if row["passed"]]
        show_rows(rows, View("invariant checked", f"{passed} passed"))
    if unchecked:
        names = ", ".join(row["invariant"] for row in document["results"] if row["passed"] is None)
        click.echo(f"{unchecked} not checked, because the tables that they need were not imported: {names}")


def _write_warnings(report: CheckReport) -> None:
    """Warn if the results could not be recorded, of gaps in logs, and that the home is or was only observed."""
    if report.unrecorded is not None:
        warn(f"the results could not be stored, so status will not show them: {report.unrecorded}", code="not-kept")
    for line in report.log_gaps:
        warn(line, code="log-gap")
    if report.observed_mark_lifted:
        warn("everything is whole now: this home is no longer only observed", code="whole-again")
    if report.observed is not None:
        since = format_us(report.observed.since_us)
        warn(
            f"this home is only observed since {since}: nothing is built on it until it is clean", code="only-observed"
        )


def _accept_commit(session: CliSession, accepted: str, reason: str, as_json: bool) -> None:
    from cdc_platform.delta import accept_commit

    done = accept_commit(session.lake(), *_parse_commit("--accept", accepted), reason)
    document = {
        "table": done.table,
        "version": done.version,
        "recorded_in_version": done.recorded_in,
        "accepted": "now" if done.is_new else "before",
        "partitions": list(done.partitions),
    }
    write_result(document, as_json=as_json, next_steps=[build_next_step("check", why="with the accepted commit")])


def _undo_commit(session: CliSession, undone: str, reason: str, as_json: bool) -> None:
    from cdc_platform.delta import undo_commit

    done = undo_commit(session.lake(), *_parse_commit("--undo", undone), reason)
    document = {
        "table": done.table,
        "version": done.version,
        "restored_version": done.restored,
        "recorded_in_version": done.recorded_in,
        "moved": list(done.moved),
    }
    write_result(document, as_json=as_json, next_steps=[build_next_step("check", why="with the restored table")])


def _parse_commit(option: str, named: str) -> tuple[str, int]:
    """Return the table and the version that TABLE@VERSION names. Raises InputError."""
    table, _, version = named.rpartition("@")
    if not table or not (version.isascii() and version.isdigit() and len(version) <= _MAX_VERSION_DIGITS):
        raise InputError(f"{option} {named!r}: it is written TABLE@VERSION, as in platform.nodes@7")
    return table, int(version)
