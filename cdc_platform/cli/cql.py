"""`cdc-platform cql run`: run CQL statements and show acceptance, log rows and resulting tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cdc_platform.cli.next_steps import NextStep, build_next_step
from cdc_platform.cli.output import SpooledList, escape_unprintable, json_option, to_json_value, warn, write_table
from cdc_platform.cli.render import write_result
from cdc_platform.cli.session import CliSession, pass_session
from cdc_platform.cli.write_rules import CDC_LOG, CDC_TABLE_TABLES, WritingCommand
from cdc_platform.errors import InputError

if TYPE_CHECKING:
    from cdc_platform.cdclog import ScriptResult, StatementOutcome, TouchedTable

_MAX_ROWS = 100
_MAX_STATEMENTS = 1_024
_STDIN = Path("-")


@click.group()
def cql() -> None:
    """Run CQL statements against the generations and stored tables of this home.

    \b
    Example:
      cdc-platform cql run statements.cql
      cdc-platform cql run statements.cql --apply
    """


@cql.command(
    "run", cls=WritingCommand, writes=(CDC_LOG, "platform.kept_scripts", *CDC_TABLE_TABLES), only_with="is_applied"
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--apply", "is_applied", is_flag=True, help="Store the tables and write their log rows.")
@click.option("--values", type=click.Path(path_type=Path), metavar="FILE", help="JSON: the values of bind markers.")
@click.option("--strict", is_flag=True, help="Refuse the file if it has a statement that would be skipped.")
@json_option
@pass_session
@click.pass_context
def run(
    ctx: click.Context,
    session: CliSession,
    file: Path,
    is_applied: bool,
    values: Path | None,
    strict: bool,
    as_json: bool,
) -> None:
    """Run the CQL statements of FILE and show their log rows.

    FILE contains definitions and writes; - reads standard input. By default this is a dry run against the
    generations and stored tables of this home: nothing is written. With --apply, the tables and their log rows are
    written, unless a statement is wrong. No JVM is started.

    Statements that cannot change a table with CDC are skipped: indexes, views, roles, cqlsh's own commands. The exit
    code is 1 if a statement was skipped or a write was refused, and 2 if a statement is wrong. Later statements run in
    any case.

    Statements with bind markers run once for each row of values. --values FILE has an entry for each such statement:
    an array of executions, which are arrays of values for ? or objects of values for :name.

    \b
    Example:
      cdc-platform cql run statements.cql
      cdc-platform cql run prepared.cql --values values.json
      cdc-platform --clock 2026-01-31T12:00:00Z cql run statements.cql --json
      cdc-platform cql run statements.cql --apply
    """
    if file == values == _STDIN:
        raise click.UsageError("standard input is one file: name FILE or --values")
    text = _read_script(file)
    given = None if values is None else _read_script(values)
    home = session.open_location()
    from cdc_platform.cdclog import commit_script, dry_run_on_stored_tables
    from cdc_platform.delta import Lake

    execute = commit_script if is_applied else dry_run_on_stored_tables
    outcomes = _OutcomeSpool() if as_json else _OutcomePreview()
    result = execute(
        text, Lake(home.lake), session.clock, home.settings, strict=strict, values=given, on_outcome=outcomes.add
    )
    notes = _ttl_notes(result)
    for line in result.left:
        warn(line, code="left-out")
    for line in result.warnings:
        warn(line, code="cdc-turned-off")
    for line in notes:
        warn(line, code="row-ttl")
    next_steps = _next_steps(result, file, values, strict, is_applied)
    if isinstance(outcomes, _OutcomeSpool):
        document = {
            "statements": outcomes,
            "tables": _table_documents(result),
            "summary": result.summary,
            "notes": [*notes, *result.warnings],
        }
        write_result(document, as_json=True, next_steps=next_steps)
    elif result.wrong is None:
        write_result({}, as_json=False, show=lambda: _show_result(outcomes, result), next_steps=next_steps)
    _exit_by_result(ctx, result, _file_name(file))


def _next_steps(
    result: ScriptResult, file: Path, values: Path | None, strict: bool, is_applied: bool
) -> list[NextStep]:
    """Return the command that explains a refusal, or after a successful dry run the one that commits it."""
    from cdc_platform.errors import WriteRefused
    from cdc_platform.generations import WriteVerdict

    if result.wrong is not None:
        return []
    if result.refused is not None:
        error = result.refused.error
        waits = isinstance(error, WriteRefused) and error.verdict is WriteVerdict.UNDECIDED
        return [
            build_next_step("switch", "show") if waits else build_next_step("generations", why="which operates when")
        ]
    if is_applied or _STDIN in (file, values):
        return []
    options = ["--values", values] if values is not None else []
    return [
        build_next_step(
            "cql", "run", file, *options, *(["--strict"] if strict else []), "--apply", why="nothing is written yet"
        )
    ]


def _ttl_notes(result: ScriptResult) -> list[str]:
    """Return notes on rows that expire without a log row.

    ScyllaDB logs nothing when a TTL passes (scylladb#7141, #8380). Rows of a table with a TTL column are deleted with
    log rows, but no script states their times.
    """
    count = result.tally.expiring_rows
    cells = (
        f"{count} log {'row has' if count == 1 else 'rows have'} a TTL: the written values expire without a log entry; "
        "consumers must honour cdc$ttl"
    )
    rows = [
        f"rows of {table.name} expire by its column {table.row_ttl}: ScyllaDB deletes them later, with log rows of "
        "cdc$operation -3 or -4, which a script cannot produce"
        for table in result.tables
        if table.row_ttl is not None
    ]
    return [*([cells] if count else []), *rows]


def _read_script(file: Path) -> str:
    from cdc_platform.storage import read_standard_input, read_user_text

    return read_standard_input() if file == _STDIN else read_user_text(file)


def _file_name(file: Path) -> str:
    return "standard input" if file == _STDIN else str(file)


def _outcome_document(outcome: StatementOutcome) -> dict[str, object]:
    facts: dict[str, object] = {
        "statement": outcome.statement.text,
        "kind": outcome.statement.kind,
        "line": outcome.statement.line,
        "outcome": outcome.became,
        "accepted": outcome.accepted,
        "reason": outcome.reason,
        "rows": outcome.rows,
    }
    if outcome.is_definition:
        facts["log_columns"] = _log_columns(outcome)
    if outcome.answer is not None:
        facts["result"] = outcome.answer.json()
    return facts


def _log_columns(outcome: StatementOutcome) -> dict[str, str] | None:
    from cdc_platform.cql import get_log_columns

    schema = outcome.schema
    if schema is None or not schema.cdc.enabled:
        return None
    return {column.name: column.type.cql for column in get_log_columns(schema)}


def _table_documents(result: ScriptResult) -> dict[str, object]:
    return {
        table.name: {
            "base": table.base,
            "replayed": table.replayed,
            "missing": [gap.json() for gap in table.missing],
        }
        for table in result.tables
    }


def _exit_by_result(ctx: click.Context, result: ScriptResult, name: str) -> None:
    """Exit with code 1 if a write was refused or a statement passed over.

    Raises:
        InputError: a statement is wrong; the message names the first one.
    """
    if result.wrong is not None and result.wrong.error is not None:
        number, line = result.tally.first["wrong"][0], result.wrong.statement.line
        refused = InputError(f"{name}: statement {number} (line {line}): {result.wrong.error}")
        refused.code = result.wrong.error.code
        raise refused
    if result.refused is not None or result.passed_over is not None:
        ctx.exit(1)


class _OutcomeSpool(SpooledList):
    """The `--json` document of each statement, spooled to a file so that memory does not grow with a script."""

    def add(self, outcome: StatementOutcome) -> None:
        """Append the next statement."""
        self.append(_outcome_document(outcome))


class _OutcomePreview:
    """The statements that people see: the first `_MAX_STATEMENTS`, and then some of those that were not done."""

    def __init__(self) -> None:
        self.outcomes: list[tuple[int, StatementOutcome]] = []
        self.count = 0

    def add(self, outcome: StatementOutcome) -> None:
        """Add the next statement if the preview has space for it."""
        self.count += 1
        most = _MAX_STATEMENTS if outcome.became == "done" else 2 * _MAX_STATEMENTS
        if self.count <= _MAX_STATEMENTS or len(self.outcomes) < most:
            self.outcomes.append((self.count, outcome))


def _show_result(preview: _OutcomePreview, result: ScriptResult) -> None:
    for number, outcome in preview.outcomes:
        click.echo(escape_unprintable(f"{number}  {_shorten(outcome.statement.text)}"))
        if outcome.reason is not None:
            click.echo(escape_unprintable(f"   {outcome.became}: {outcome.reason}"))
        if outcome.answer is not None:
            rows = outcome.answer.json()
            _show_answer(rows)
        if outcome.rows:
            _show_rows("", outcome.rows)
    if preview.count > len(preview.outcomes):
        hidden = preview.count - len(preview.outcomes)
        warn(f"{hidden} more statements are not shown; --json has them all", code="more-rows")
    for table in result.tables:
        _show_table(table)
    _show_summary(result)


def _show_summary(result: ScriptResult) -> None:
    """Print how many statements of each kind had which outcome, unless all of them were done."""
    if result.summary.keys() - {"done"}:
        rows = [[kind, became, count] for became, kinds in result.summary.items() for kind, count in kinds.items()]
        write_table("Statements", ["kind", "outcome", ">count"], rows)


def _show_answer(rows: list[dict[str, object]]) -> None:
    """Print the rows that the client of a lightweight transaction receives."""
    write_table("", list(rows[0]), [[to_json_value(value) for value in row.values()] for row in rows[:_MAX_ROWS]])


def _show_table(table: TouchedTable) -> None:
    if table.base:
        _show_rows(table.name, table.base)
    else:
        click.echo(escape_unprintable(f"{table.name}: no rows"))
    if table.replayed is not None:
        same = "the same" if table.replayed == table.base else f"other rows: {len(table.replayed)}"
        click.echo(f"   rebuilt from its log: {same}\n")
    for gap in table.missing:
        click.echo(f"   missing in its log: {gap}")


def _show_rows(title: str, rows: list[dict[str, object]]) -> None:
    """Print rows as a table, without the columns that are empty in every row."""
    columns = [name for name in rows[0] if any(row[name] is not None for row in rows)]
    write_table(title, columns, [[to_json_value(row[name]) for name in columns] for row in rows[:_MAX_ROWS]])
    if len(rows) > _MAX_ROWS:
        warn(f"{len(rows) - _MAX_ROWS} more rows are not shown; --json has them all", code="more-rows")


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 150 else f"{line[:147]}..."
