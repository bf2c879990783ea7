"""`cdc-platform log`: CQL statements as they would go: accepted or not, their log rows, the tables at the end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cdc_platform.commands.next_steps import Next, following, write_result
from cdc_platform.commands.output import escaped, json_option, plain, warn, write_table
from cdc_platform.commands.session import Session, pass_session
from cdc_platform.commands.spooled import Spooled
from cdc_platform.errors import InputError

if TYPE_CHECKING:
    from cdc_platform.log.scripts.outcomes import Outcome, Result, TouchedTable

_MOST_SHOWN = 100
_MOST_STATEMENTS = 1_024
_STDIN = Path("-")


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--keep", "is_kept", is_flag=True, help="Keep the tables and write the log rows.")
@click.option("--values", type=click.Path(path_type=Path), metavar="FILE", help="JSON: the values of bind markers.")
@click.option("--strict", is_flag=True, help="Refuse the file if a statement of it is not one that is done.")
@json_option
@pass_session
@click.pass_context
def log(
    ctx: click.Context,
    session: Session,
    file: Path,
    is_kept: bool,
    values: Path | None,
    strict: bool,
    as_json: bool,
) -> None:
    """Run the CQL statements of FILE, or with - of standard input: definitions and writes, each with its log rows.

    It is a rehearsal against the generations and the kept tables of this home: nothing is written, and no JVM is
    started. With --keep it is for good: unless a statement is wrong, the tables and the rows of their logs are written.

    Statements that cannot change a table with CDC are passed over: indexes, views, roles, cqlsh's own commands. The
    exit code is 1 when one was, or when a write is refused; 2 when a statement is wrong. None stops those behind it.

    Statements with bind markers are executed once for each of their rows of values. --values FILE has an entry for each
    such statement: an array of executions, which are arrays of values for ? or objects of values for :name.

    \b
    Example:
      cdc-platform log statements.cql
      cdc-platform log prepared.cql --values values.json
      cdc-platform --clock 2026-01-31T12:00:00Z log statements.cql --json
      cdc-platform log statements.cql --keep
    """
    if file == values == _STDIN:
        raise click.UsageError("standard input is one file: name FILE or --values")
    text = _text_of(file)
    given = None if values is None else _text_of(values)
    home = session.open_home()
    from cdc_platform.lake.lake import Lake
    from cdc_platform.log.scripts.keeping import keep, rehearse_on_kept

    run = keep if is_kept else rehearse_on_kept
    told = _Spool() if as_json else _Shown()
    result = run(text, Lake(home.lake), session.clock, home.settings, strict=strict, values=given, tell=told.add)
    notes = _notes(result)
    for line in result.left:
        warn(line, code="left-out")
    for line in result.warnings:
        warn(line, code="cdc-turned-off")
    for line in notes:
        warn(line, code="row-ttl")
    left = _left(result, file, values, strict, is_kept)
    if isinstance(told, _Spool):
        document = {
            "statements": told,
            "tables": _tables(result),
            "summary": result.summary,
            "notes": [*notes, *result.warnings],
        }
        write_result(document, lambda: None, left, as_json=True)
    elif result.wrong is None:
        write_result(None, lambda: _show(told, result), left, as_json=False)
    _finish(ctx, result, _name(file))


def _left(result: Result, file: Path, values: Path | None, strict: bool, is_kept: bool) -> list[Next]:
    """Why a write was refused is seen in the generations, or in a switch; what was rehearsed is kept next."""
    from cdc_platform.errors import WriteRefused
    from cdc_platform.generations.metadata import Verdict

    if result.wrong is not None:
        return []
    if result.refused is not None:
        error = result.refused.error
        waits = isinstance(error, WriteRefused) and error.verdict is Verdict.UNDECIDED
        return [following("switch", "show") if waits else following("generations", why="which operates when")]
    if is_kept or _STDIN in (file, values):
        return []
    asked = ["--values", values] if values is not None else []
    return [following("log", file, *asked, *(["--strict"] if strict else []), "--keep", why="nothing is written yet")]


def _notes(result: Result) -> list[str]:
    """What the log will not tell: nothing is written to it when a TTL passes (scylladb#7141, #8380).

    Rows that go by a TTL column are deleted with log rows, whose times no script says.
    """
    count = result.tally.expiring_rows
    cells = (
        f"{count} log rows have a cdc$ttl: what they wrote leaves the table when that has passed, and no log row tells "
        "of it; whoever rebuilds the table has to go by cdc$ttl"
    )
    rows = [
        f"rows of {table.name} expire by its column {table.row_ttl}: ScyllaDB deletes them some time after that, with "
        "log rows of cdc$operation -3 or -4, of which there are none here"
        for table in result.tables
        if table.row_ttl is not None
    ]
    return [*([cells] if count else []), *rows]


def _text_of(file: Path) -> str:
    from cdc_platform.user_files import read_standard_input, read_text

    return read_standard_input() if file == _STDIN else read_text(file)


def _name(file: Path) -> str:
    return "standard input" if file == _STDIN else str(file)


def _facts(outcome: Outcome) -> dict[str, object]:
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


def _log_columns(outcome: Outcome) -> dict[str, str] | None:
    from cdc_platform.cql.schema import log_columns

    schema = outcome.schema
    if schema is None or not schema.cdc.enabled:
        return None
    return {column.name: column.type.cql for column in log_columns(schema)}


def _tables(result: Result) -> dict[str, object]:
    return {
        table.name: {
            "base": table.base,
            "replayed": table.replayed,
            "missing": [gap.json() for gap in table.missing],
        }
        for table in result.tables
    }


def _finish(ctx: click.Context, result: Result, name: str) -> None:
    """The exit code, with one line about the first statement that asks for it."""
    if result.wrong is not None and result.wrong.error is not None:
        number, line = result.tally.first["wrong"][0], result.wrong.statement.line
        refused = InputError(f"{name}: statement {number} (line {line}): {result.wrong.error}")
        refused.code = result.wrong.error.code
        raise refused
    if result.refused is not None or result.passed_over is not None:
        ctx.exit(1)


class _Spool(Spooled):
    """What `--json` tells of each statement: a line of a file, so that memory does not grow with a script."""

    def add(self, outcome: Outcome) -> None:
        """Take the next statement."""
        self.append(_facts(outcome))


class _Shown:
    """The statements that people are shown: the first ones, and behind those such as were not done."""

    def __init__(self) -> None:
        self.outcomes: list[tuple[int, Outcome]] = []
        self.count = 0

    def add(self, outcome: Outcome) -> None:
        """Take the next statement."""
        self.count += 1
        most = _MOST_STATEMENTS if outcome.became == "done" else 2 * _MOST_STATEMENTS
        if self.count <= _MOST_STATEMENTS or len(self.outcomes) < most:
            self.outcomes.append((self.count, outcome))


def _show(told: _Shown, result: Result) -> None:
    for number, outcome in told.outcomes:
        click.echo(escaped(f"{number}  {_short(outcome.statement.text)}"))
        if outcome.reason is not None:
            click.echo(escaped(f"   {outcome.became}: {outcome.reason}"))
        if outcome.answer is not None:
            rows = outcome.answer.json()
            _show_answer(rows)
        if outcome.rows:
            _show_rows("", outcome.rows)
    if told.count > len(told.outcomes):
        warn(f"{told.count - len(told.outcomes)} more statements are not shown; --json has them all", code="more-rows")
    for table in result.tables:
        _show_table(table)
    _show_summary(result)


def _show_summary(result: Result) -> None:
    """How many statements of each kind became what; nothing where all of them were done."""
    if result.summary.keys() - {"done"}:
        rows = [[kind, became, count] for became, kinds in result.summary.items() for kind, count in kinds.items()]
        write_table("Statements", ["kind", "outcome", ">count"], rows)


def _show_answer(rows: list[dict[str, object]]) -> None:
    """What the client of a lightweight transaction gets."""
    write_table("", list(rows[0]), [[plain(value) for value in row.values()] for row in rows[:_MOST_SHOWN]])


def _show_table(table: TouchedTable) -> None:
    if table.base:
        _show_rows(table.name, table.base)
    else:
        click.echo(escaped(f"{table.name}: no rows"))
    if table.replayed is not None:
        same = "the same" if table.replayed == table.base else f"other rows: {len(table.replayed)}"
        click.echo(f"   rebuilt from its log: {same}\n")
    for gap in table.missing:
        click.echo(f"   missing in its log: {gap}")


def _show_rows(title: str, rows: list[dict[str, object]]) -> None:
    """Rows as a table; columns in which no row has anything are left out."""
    columns = [name for name in rows[0] if any(row[name] is not None for row in rows)]
    write_table(title, columns, [[plain(row[name]) for name in columns] for row in rows[:_MOST_SHOWN]])
    if len(rows) > _MOST_SHOWN:
        warn(f"{len(rows) - _MOST_SHOWN} more rows are not shown; --json has them all", code="more-rows")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 150 else f"{line[:147]}..."
