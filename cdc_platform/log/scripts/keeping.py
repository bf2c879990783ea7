"""Runs a script of CQL statements and keeps what it writes: tables, tablets, and the rows of their logs.

A script is noted before anything of it is written, with all that it depends on; one that was interrupted is finished by
whoever keeps the next, and ends where it would have ended.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa

from cdc_platform import failpoints
from cdc_platform.clock import Clock, Microseconds, format_us, from_datetime, ms_of, to_datetime
from cdc_platform.cql import statements as s
from cdc_platform.cql.catalog import Catalog
from cdc_platform.cql.definitions import define
from cdc_platform.cql.parser import parse
from cdc_platform.cql.schema import TableSchema
from cdc_platform.cql.written import ddl_of
from cdc_platform.errors import ConflictError, EnvironmentProblem, InputError, NotFound, PlatformError, StateError
from cdc_platform.generations.tablets import uniform_ends
from cdc_platform.lake.appended import stored_schema
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import CDC_TABLE_CHANGES, KEPT_SCRIPTS, Table
from cdc_platform.lake.turns import SCRIPTS, turn
from cdc_platform.lifecycle.tablets import changes
from cdc_platform.log.ddl import known_tables
from cdc_platform.log.ddl import noted as noted_in
from cdc_platform.log.gaps import history_of
from cdc_platform.log.log_table import log_table
from cdc_platform.log.log_values import rows_table, table_rows
from cdc_platform.log.scripts.noted_text import packed, unpacked
from cdc_platform.log.scripts.outcomes import Outcome, Result, Tell
from cdc_platform.log.scripts.script import Defined, Kept, Script, statements_of
from cdc_platform.log.scripts.written import ROWS_A_BLOCK, Written
from cdc_platform.log.state.kept import keep_state, kept_state
from cdc_platform.log.stored_names import EXACT
from cdc_platform.log.volume import ROWS_A_FILE, append_parts, replace_table
from cdc_platform.records import cdc_tables
from cdc_platform.settings import Settings

_APPLICATION = "cdc-platform/kept-scripts"
_HISTORY = CDC_TABLE_CHANGES.name  # no table has this full name


@dataclass(frozen=True)
class _Noted:
    """A script as `platform.kept_scripts` has it."""

    number: int
    text: str
    at_us: Microseconds
    definitions: str
    log_versions: dict[str, int]
    """The version of each kept table's log, and by `_HISTORY` that of what had been said of the tables."""


def kept_tables(lake: Lake) -> Kept:
    """The tables whose definition the lake knows, with the rows that their logs have now."""
    catalog = Catalog()
    known_tables(catalog, cdc_tables.cdc_tables(lake))
    return Kept(
        catalog,
        lambda schema: kept_state(lake, schema, lake.version(log_table(schema))),
        lambda schema: history_of(cdc_tables.changes(lake), schema),
    )


def rehearse_on_kept(
    text: str,
    lake: Lake,
    clock: Clock,
    settings: Settings,
    *,
    strict: bool = False,
    values: str | None = None,
    tell: Tell | None = None,
) -> Result:
    """Run a script on the tables that the lake has, which stays as it is; see `Script.run`.

    Raises:
        InputError: as `statements_of`.
    """
    statements = statements_of(text, strict=strict, values=values)
    return Script(lake, settings, clock.now_us(), kept_tables(lake)).run(statements, tell)


def keep(
    text: str,
    lake: Lake,
    clock: Clock,
    settings: Settings,
    *,
    strict: bool = False,
    values: str | None = None,
    tell: Tell | None = None,
) -> Result:
    """Run a script on the tables that the lake has, and keep what it does; see `Script.run`.

    Where a statement is wrong nothing is kept at all; a write that is refused is left out, and the others are kept.
    Who keeps takes turns, so that a script that is not finished is one whose process died: the same one again is that
    one, finished as it was begun.

    Raises:
        InputError: as `statements_of`.
        ConflictError: another process has been keeping a script for too long.
    """
    statements = statements_of(text, strict=strict, values=values)
    if values is not None:
        # What is noted says the values itself, so that whoever finishes it needs nothing beside.
        text = "".join(f"{statement.text};\n" for statement in statements)
    with turn(lake, SCRIPTS):
        return _kept(statements, text, lake, clock, settings, tell)


def _kept(
    statements: Iterable[s.Statement], text: str, lake: Lake, clock: Clock, settings: Settings, tell: Tell | None
) -> Result:
    left, finished = list[str](), None
    for noted in _unfinished(lake):
        done = _finished(lake, settings, noted, _unheard if tell is not None or noted.text != text else None)
        if isinstance(done, str):
            left.append(done)
        elif noted.text != text:
            finished = None
        else:
            # It has the same outcomes again, which are told now that it is finished.
            finished = done if tell is None else _run(lake, settings, noted, statements_of(text), tell)[1]
    if finished is not None:
        return replace(finished, left=left)
    tables = kept_tables(lake)
    noted = _Noted(_last_number(lake) + 1, text, clock.now_us(), _definitions(tables.catalog), _versions(lake, tables))
    script, result = _run(lake, settings, noted, statements, tell)
    if result.wrong is None:
        _note(lake, noted)
        failpoints.reached(failpoints.AFTER_SCRIPT_NOTED)
        _write(lake, settings, noted, script)
    return replace(result, left=left)


def _unheard(_: Outcome) -> None:
    """What is told of the statements of a script that nobody asked for."""


def _finished(lake: Lake, settings: Settings, noted: _Noted, tell: Tell | None) -> Result | str:
    """Finish a script that was interrupted; what is told of one that never can be, which is left as it is."""
    try:
        script, result = _run(lake, settings, noted, statements_of(noted.text), tell)
        if result.wrong is not None and result.wrong.error is not None:
            # It was right when it was noted: what it goes on from is not there any more.
            raise result.wrong.error
        _write(lake, settings, noted, script)
    except (EnvironmentProblem, ConflictError):
        raise
    except PlatformError as error:
        _note(lake, noted, finished=True)
        return (
            f"the script that was to be kept at {format_us(noted.at_us)} cannot be finished: {error}; what it had"
            " written stays, the rest of it is left out: look at its tables and run that again"
        )
    return result


def _run(
    lake: Lake, settings: Settings, noted: _Noted, statements: Iterable[s.Statement], tell: Tell | None
) -> tuple[Script, Result]:
    """The script in the process, on the tables that it found when it was noted: always with the same outcome."""
    catalog = _catalog(noted.definitions)
    kept = Kept(
        catalog,
        lambda schema: kept_state(lake, schema, noted.log_versions.get(schema.full_name)),
        lambda schema: history_of(cdc_tables.changes(lake, noted.log_versions.get(_HISTORY)), schema),
    )
    script = Script(lake, settings, noted.at_us, kept)
    return script, script.run(statements, tell)


def _catalog(definitions: str) -> Catalog:
    """The catalog that the statements make; when tables were made is told in front of each."""
    catalog = Catalog()
    for created_at_us, statements in json.loads(definitions):
        for statement in parse(statements):
            if isinstance(statement.body, s.Definition):
                define(catalog, statement.body, created_at_us)
                if isinstance(statement.body, s.CreateTable):
                    catalog.put(noted_in(catalog.table(statement.body.name), statements))
    return catalog


def _definitions(catalog: Catalog) -> str:
    return json.dumps([(schema.created_at_us, ddl_of(catalog, schema)) for schema in catalog.tables()])


def _versions(lake: Lake, kept: Kept) -> dict[str, int]:
    found = {schema.full_name: lake.version(log_table(schema)) for schema in kept.catalog.tables()}
    found[_HISTORY] = lake.version(CDC_TABLE_CHANGES)
    return {name: version for name, version in found.items() if version is not None}


def _unfinished(lake: Lake) -> list[_Noted]:
    noted = lake.read(KEPT_SCRIPTS, ["number", "finished_at"]).to_pylist()
    numbers = [row["number"] for row in noted if row["finished_at"] is None]
    if not numbers:
        return []
    rows = lake.read(KEPT_SCRIPTS, filters=[("number", "in", numbers)]).to_pylist()
    return [
        _Noted(
            row["number"],
            unpacked(row["text"]),
            from_datetime(row["at"]),
            row["definitions"],
            json.loads(row["log_versions"]),
        )
        for row in sorted(rows, key=lambda row: row["number"])
    ]


def _last_number(lake: Lake) -> int:
    return max(lake.read(KEPT_SCRIPTS, ["number"])["number"].to_pylist(), default=0)


def _note(lake: Lake, noted: _Noted, *, finished: bool = False) -> None:
    row = {
        "number": noted.number,
        "text": packed(noted.text),
        "at": to_datetime(noted.at_us),
        "definitions": noted.definitions,
        "log_versions": json.dumps(noted.log_versions, sort_keys=True),
        "finished_at": to_datetime(noted.at_us) if finished else None,
    }
    merged = lake.merge(KEPT_SCRIPTS, pa.Table.from_pylist([row], schema=KEPT_SCRIPTS.schema), update=finished)
    if not finished and not merged.inserted:
        raise ConflictError("another script was kept at the same moment; nothing of this one was: run it again")


def _write(lake: Lake, settings: Settings, noted: _Noted, script: Script) -> None:
    """Everything that a script does, each step of which may have been done before."""
    after, clock = script.catalog, Clock(noted.at_us)
    for schema in script.dropped:
        _let_go(lake, clock, schema)
    _tell(lake, settings, noted, script)
    failpoints.reached(failpoints.AFTER_SCRIPT_TABLES)
    for schema in (*script.dropped, *script.emptied):
        _empty(lake, noted, schema, after)
    before = {schema.full_name: schema for schema in _catalog(noted.definitions).tables()}
    for schema in after.tables():
        _rename(lake, noted, schema, script.renamed.get(schema.full_name, {}))
        rows = script.written.get(schema.full_name)
        if schema.full_name in before and before[schema.full_name].columns != schema.columns:
            # A column that is dropped takes its values with it, also where it comes back later.
            _reshape(lake, noted, schema)
        if rows:
            _append(lake, noted, schema, rows)
            failpoints.reached(failpoints.AFTER_SCRIPT_ROWS)
    for schema in {each.full_name: each for each in (*script.dropped, *script.touched)}.values():
        if lake.exists(log_table(schema)):
            # What cannot be kept of it is read from the log, which says what is wrong.
            with suppress(InputError, StateError):
                keep_state(lake, schema)
    failpoints.reached(failpoints.AFTER_SCRIPT_STATE)
    _note(lake, noted, finished=True)


def _let_go(lake: Lake, clock: Clock, schema: TableSchema) -> None:
    """Note that a table was dropped, unless that, and perhaps its making anew, is noted already."""
    with suppress(NotFound):
        known = cdc_tables.find(lake, schema.keyspace, schema.name)
        if known.oldest_ms == ms_of(schema.created_at_us):
            changes.drop(lake, clock, schema.keyspace, schema.name)


def _tell(lake: Lake, settings: Settings, noted: _Noted, script: Script) -> None:
    """Make what the platform knows of the tables what they are; one that never had a log is not known."""
    after, clock = script.catalog, Clock(noted.at_us)
    there = {table.full_name for table in cdc_tables.cdc_tables(lake)}
    known = [each for each in after.tables() if each.full_name in there or _was_on(script, each) or each.has_old_log]
    sayings = [
        saying
        for schema in known
        for saying in _sayings(lake, noted, script, schema, is_new=schema.full_name not in there)
    ]
    cdc_tables.say(lake, sayings, {_APPLICATION: noted.number})
    for schema in known:
        count = after.keyspace(schema.keyspace).tablets
        was_on = _was_on(script, schema)
        if count is not None and (schema.cdc.enabled or was_on):
            name = (schema.keyspace, schema.name)
            changes.create(lake, clock, settings, *name, uniform_ends(count), was_on=was_on)
        # Of a log that was there before nothing is here: an empty one would look whole.
        if (was_on or not schema.has_old_log) and not lake.exists(log_table(schema)):
            lake.ensure(log_table(schema))


def _was_on(script: Script, schema: TableSchema) -> bool:
    return any(made.options.enabled for made in script.defined[schema.full_name])


def _sayings(
    lake: Lake, noted: _Noted, script: Script, schema: TableSchema, *, is_new: bool
) -> Iterator[cdc_tables.Saying]:
    """What a script says of a table: each change of its CDC options, for what was written between two of them."""
    name, ddl = (schema.keyspace, schema.name), ddl_of(script.catalog, schema)
    steps = script.defined[schema.full_name] or [Defined(noted.at_us, schema.cdc, ddl, 0)]
    for place, step in enumerate([*steps[:-1], steps[-1]._replace(ddl=ddl)]):
        clock = Clock(step.at_us)
        options = {"ttl_seconds": step.options.ttl, "enabled": step.options.enabled, "ddl": step.ddl}
        if is_new and not place and schema.has_old_log:
            created_ms = None if schema.old_log_ms is None else min(schema.old_log_ms, clock.now_ms())
            yield cdc_tables.addition(lake, clock, *name, created_at_ms=created_ms, seen=True, **options)
        elif is_new and not place:
            created_ms = ms_of(schema.created_at_us)
            yield cdc_tables.addition(lake, clock, *name, created_at_ms=created_ms, **options)
        else:
            yield cdc_tables.alteration(lake, clock, *name, **options)


def _empty(lake: Lake, noted: _Noted, schema: TableSchema, after: Catalog) -> None:
    """Empty the log of a table that was dropped, and give it the columns of the table that has its name now."""
    now = {other.full_name: other for other in after.tables()}.get(schema.full_name, schema)
    if lake.exists(log_table(now)):
        _overwrite(lake, noted, now, rows_table(now, []), "empty")


def _rename(lake: Lake, noted: _Noted, schema: TableSchema, old_names: dict[str, str]) -> None:
    """Give the key columns of a log their new names, in all of its rows and by one commit."""
    version = noted.log_versions.get(schema.full_name)
    if not old_names or version is None:
        return
    columns = tuple(replace(each, name=old_names.get(each.name, each.name)) for each in schema.columns)
    stored = lake.read_version(log_table(schema), version)
    new_names = {old: new for new, old in old_names.items()}
    rows = [
        {new_names.get(column, column): value for column, value in row.items()}
        for row in table_rows(replace(schema, columns=columns), stored)
    ]
    whole = rows_table(schema, rows, exact=EXACT in stored.column_names)
    _overwrite(lake, noted, schema, whole, "rename")


def _append(lake: Lake, noted: _Noted, schema: TableSchema, rows: Written) -> None:
    _reshape(lake, noted, schema)
    has_exact = EXACT in stored_schema(lake, log_table(schema)).names
    exact = has_exact or any(EXACT in rows.table(schema, number).column_names for number in range(rows.blocks))
    if exact and not has_exact:
        lake.widen(log_table(schema, exact=True))
    blocks = ROWS_A_FILE // ROWS_A_BLOCK

    def part(number: int) -> pa.Table:
        last = min((number + 1) * blocks, rows.blocks)
        tables = [rows.table(schema, each) for each in range(number * blocks, last)]
        return pa.concat_tables(tables, promote_options="default")

    parts = -(-rows.blocks // blocks)
    append_parts(lake, schema, parts, part, (_APPLICATION, noted.number), exact=exact)


def _reshape(lake: Lake, noted: _Noted, schema: TableSchema) -> None:
    """Give a log the columns that ALTER gave its base table, before the first rows that have them."""
    table = log_table(schema)
    version = lake.version(table)
    if version is None:
        return
    columns = stored_schema(lake, table)
    exact = EXACT in columns.names
    if columns.equals(_plain(log_table(schema, exact=exact))):
        return
    rows = rows_table(schema, list(table_rows(schema, lake.read_version(table, version))), exact=exact)
    _overwrite(lake, noted, schema, rows, "shape")


def _plain(table: Table) -> pa.Schema:
    return table.schema.remove_metadata()


def _overwrite(lake: Lake, noted: _Noted, schema: TableSchema, rows: pa.Table, why: str) -> None:
    """Put these rows, in the columns of the schema's log, in place of all; at most once a script."""
    replace_table(lake, schema, rows, (f"{_APPLICATION}/{why}", noted.number))
