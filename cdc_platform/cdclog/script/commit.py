"""Commit a script's effects to the lake: tables, tablets, and the rows of their logs.

A script is recorded before anything of it is written, with all that it depends on. The next commit finishes an
interrupted script, with the same result. A long text is stored compressed in a CQL comment.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa

from cdc_platform import failpoints
from cdc_platform.cdclog.dataframe import ROWS_PER_FILE, append_log_parts, replace_log
from cdc_platform.cdclog.ddl import load_table_schemas
from cdc_platform.cdclog.ddl import with_comment_options as noted_in
from cdc_platform.cdclog.gaps import options_history
from cdc_platform.cdclog.schema import EXACT, log_table
from cdc_platform.cdclog.script.run import (
    ROWS_PER_BLOCK,
    DefinedTable,
    OnOutcome,
    Script,
    ScriptResult,
    SpooledLogRows,
    StatementOutcome,
    StoredTables,
    iter_script_statements,
)
from cdc_platform.cdclog.state.store import read_state, store_state
from cdc_platform.cdclog.values import log_rows_from_arrow, log_rows_to_arrow
from cdc_platform.clock import Clock, Microseconds, datetime_from_us, format_us, ms_from_us, us_from_datetime
from cdc_platform.cql import Catalog, TableSchema, apply_definition, format_ddl, parse_statements
from cdc_platform.cql import ast as s
from cdc_platform.delta import SCRIPTS_LOCK, Lake, lake_lock, read_stored_schema
from cdc_platform.errors import ConflictError, EnvironmentProblem, InputError, NotFound, PlatformError, StateError
from cdc_platform.generations import uniform_tablet_ends
from cdc_platform.lifecycle import tablets
from cdc_platform.metastore import cdc_tables
from cdc_platform.settings import Settings
from cdc_platform.tables import CDC_TABLE_CHANGES, KEPT_SCRIPTS, Table

_COMPRESSED_PREFIX = "-- compressed, by zlib and base85: "
_COMPRESS_FROM = 1 << 18


def compress_text(text: str) -> str:
    """A script as it is noted."""
    if len(text) < _COMPRESS_FROM and not text.startswith(_COMPRESSED_PREFIX):
        return text
    return _COMPRESSED_PREFIX + base64.b85encode(zlib.compress(text.encode(), 1)).decode()


def decompress_text(noted: str) -> str:
    """A script as it was; raises InputError for one that was not noted by `compress_text`."""
    if not noted.startswith(_COMPRESSED_PREFIX):
        return noted
    try:
        return zlib.decompress(base64.b85decode(noted.removeprefix(_COMPRESSED_PREFIX))).decode()
    except (ValueError, zlib.error):
        raise InputError("the text of a script in platform.kept_scripts is damaged; restore the table") from None


_APPLICATION = "cdc-platform/kept-scripts"
_HISTORY = CDC_TABLE_CHANGES.name  # no table has this full name


@dataclass(frozen=True)
class _RecordedScript:
    """A script as `platform.kept_scripts` has it."""

    number: int
    text: str
    at_us: Microseconds
    definitions: str
    log_versions: dict[str, int]
    """The version of each kept table's log, and by `_HISTORY` that of what had been said of the tables."""


def load_stored_tables(lake: Lake) -> StoredTables:
    """The tables whose definition the lake knows, with the rows that their logs have now."""
    catalog = Catalog()
    load_table_schemas(catalog, cdc_tables.read_cdc_tables(lake))
    return StoredTables(
        catalog,
        lambda schema: read_state(lake, schema, lake.version(log_table(schema))),
        lambda schema: options_history(cdc_tables.read_table_changes(lake), schema),
    )


def dry_run_on_stored_tables(
    text: str,
    lake: Lake,
    clock: Clock,
    settings: Settings,
    *,
    strict: bool = False,
    values: str | None = None,
    tell: OnOutcome | None = None,
) -> ScriptResult:
    """Run a script on the tables that the lake has, which stays as it is; see `Script.run`.

    Raises:
        InputError: as `iter_script_statements`.
    """
    statements = iter_script_statements(text, strict=strict, values=values)
    return Script(lake, settings, clock.now_us(), load_stored_tables(lake)).run(statements, tell)


def commit_script(
    text: str,
    lake: Lake,
    clock: Clock,
    settings: Settings,
    *,
    strict: bool = False,
    values: str | None = None,
    tell: OnOutcome | None = None,
) -> ScriptResult:
    """Run a script on the tables that the lake has, and keep what it does; see `Script.run`.

    Where a statement is wrong nothing is kept at all; a write that is refused is left out, and the others are kept.
    Who keeps takes turns, so that a script that is not finished is one whose process died: the same one again is that
    one, finished as it was begun.

    Raises:
        InputError: as `iter_script_statements`.
        ConflictError: another process has been keeping a script for too long.
    """
    statements = iter_script_statements(text, strict=strict, values=values)
    if values is not None:
        # What is noted says the values itself, so that whoever finishes it needs nothing beside.
        text = "".join(f"{statement.text};\n" for statement in statements)
    with lake_lock(lake, SCRIPTS_LOCK):
        return _commit_locked(statements, text, lake, clock, settings, tell)


def _commit_locked(
    statements: Iterable[s.Statement], text: str, lake: Lake, clock: Clock, settings: Settings, tell: OnOutcome | None
) -> ScriptResult:
    left, finished = list[str](), None
    for noted in _unfinished_scripts(lake):
        done = _finish_script(
            lake, settings, noted, _ignore_outcome if tell is not None or noted.text != text else None
        )
        if isinstance(done, str):
            left.append(done)
        elif noted.text != text:
            finished = None
        else:
            # It has the same outcomes again, which are told now that it is finished.
            finished = (
                done if tell is None else _run_recorded(lake, settings, noted, iter_script_statements(text), tell)[1]
            )
    if finished is not None:
        return replace(finished, left=left)
    tables = load_stored_tables(lake)
    noted = _RecordedScript(
        _last_number(lake) + 1, text, clock.now_us(), _dump_definitions(tables.catalog), _log_versions(lake, tables)
    )
    script, result = _run_recorded(lake, settings, noted, statements, tell)
    if result.wrong is None:
        _record_script(lake, noted)
        failpoints.kill_if_selected(failpoints.AFTER_SCRIPT_NOTED)
        _apply_effects(lake, settings, noted, script)
    return replace(result, left=left)


def _ignore_outcome(_: StatementOutcome) -> None:
    """What is told of the statements of a script that nobody asked for."""


def _finish_script(
    lake: Lake, settings: Settings, noted: _RecordedScript, tell: OnOutcome | None
) -> ScriptResult | str:
    """Finish a script that was interrupted; what is told of one that never can be, which is left as it is."""
    try:
        script, result = _run_recorded(lake, settings, noted, iter_script_statements(noted.text), tell)
        if result.wrong is not None and result.wrong.error is not None:
            # It was right when it was noted: what it goes on from is not there any more.
            raise result.wrong.error
        _apply_effects(lake, settings, noted, script)
    except (EnvironmentProblem, ConflictError):
        raise
    except PlatformError as error:
        _record_script(lake, noted, finished=True)
        return (
            f"the script that was to be kept at {format_us(noted.at_us)} cannot be finished: {error}; what it had"
            " written stays, the rest of it is left out: look at its tables and run that again"
        )
    return result


def _run_recorded(
    lake: Lake, settings: Settings, noted: _RecordedScript, statements: Iterable[s.Statement], tell: OnOutcome | None
) -> tuple[Script, ScriptResult]:
    """The script in the process, on the tables that it found when it was noted: always with the same outcome."""
    catalog = _load_catalog(noted.definitions)
    kept = StoredTables(
        catalog,
        lambda schema: read_state(lake, schema, noted.log_versions.get(schema.full_name)),
        lambda schema: options_history(cdc_tables.read_table_changes(lake, noted.log_versions.get(_HISTORY)), schema),
    )
    script = Script(lake, settings, noted.at_us, kept)
    return script, script.run(statements, tell)


def _load_catalog(definitions: str) -> Catalog:
    """The catalog that the statements make; when tables were made is told in front of each."""
    catalog = Catalog()
    for created_at_us, statements in json.loads(definitions):
        for statement in parse_statements(statements):
            if isinstance(statement.body, s.DefinitionStatement):
                apply_definition(catalog, statement.body, created_at_us)
                if isinstance(statement.body, s.CreateTable):
                    catalog.put(noted_in(catalog.table(statement.body.name), statements))
    return catalog


def _dump_definitions(catalog: Catalog) -> str:
    return json.dumps([(schema.created_at_us, format_ddl(catalog, schema)) for schema in catalog.tables()])


def _log_versions(lake: Lake, kept: StoredTables) -> dict[str, int]:
    found = {schema.full_name: lake.version(log_table(schema)) for schema in kept.catalog.tables()}
    found[_HISTORY] = lake.version(CDC_TABLE_CHANGES)
    return {name: version for name, version in found.items() if version is not None}


def _unfinished_scripts(lake: Lake) -> list[_RecordedScript]:
    noted = lake.read(KEPT_SCRIPTS, ["number", "finished_at"]).to_pylist()
    numbers = [row["number"] for row in noted if row["finished_at"] is None]
    if not numbers:
        return []
    rows = lake.read(KEPT_SCRIPTS, filters=[("number", "in", numbers)]).to_pylist()
    return [
        _RecordedScript(
            row["number"],
            decompress_text(row["text"]),
            us_from_datetime(row["at"]),
            row["definitions"],
            json.loads(row["log_versions"]),
        )
        for row in sorted(rows, key=lambda row: row["number"])
    ]


def _last_number(lake: Lake) -> int:
    return max(lake.read(KEPT_SCRIPTS, ["number"])["number"].to_pylist(), default=0)


def _record_script(lake: Lake, noted: _RecordedScript, *, finished: bool = False) -> None:
    row = {
        "number": noted.number,
        "text": compress_text(noted.text),
        "at": datetime_from_us(noted.at_us),
        "definitions": noted.definitions,
        "log_versions": json.dumps(noted.log_versions, sort_keys=True),
        "finished_at": datetime_from_us(noted.at_us) if finished else None,
    }
    merged = lake.merge(KEPT_SCRIPTS, pa.Table.from_pylist([row], schema=KEPT_SCRIPTS.schema), update=finished)
    if not finished and not merged.inserted:
        raise ConflictError("another script was kept at the same moment; nothing of this one was: run it again")


def _apply_effects(lake: Lake, settings: Settings, noted: _RecordedScript, script: Script) -> None:
    """Everything that a script does, each step of which may have been done before."""
    after, clock = script.catalog, Clock(noted.at_us)
    for schema in script.dropped:
        _record_drop(lake, clock, schema)
    _record_tables(lake, settings, noted, script)
    failpoints.kill_if_selected(failpoints.AFTER_SCRIPT_TABLES)
    for schema in (*script.dropped, *script.emptied):
        _empty_log(lake, noted, schema, after)
    before = {schema.full_name: schema for schema in _load_catalog(noted.definitions).tables()}
    for schema in after.tables():
        _rename_log_columns(lake, noted, schema, script.renamed.get(schema.full_name, {}))
        rows = script.written.get(schema.full_name)
        if schema.full_name in before and before[schema.full_name].columns != schema.columns:
            # A column that is dropped takes its values with it, also where it comes back later.
            _migrate_log_columns(lake, noted, schema)
        if rows:
            _append_rows(lake, noted, schema, rows)
            failpoints.kill_if_selected(failpoints.AFTER_SCRIPT_ROWS)
    for schema in {each.full_name: each for each in (*script.dropped, *script.touched)}.values():
        if lake.exists(log_table(schema)):
            # What cannot be kept of it is read from the log, which says what is wrong.
            with suppress(InputError, StateError):
                store_state(lake, schema)
    failpoints.kill_if_selected(failpoints.AFTER_SCRIPT_STATE)
    _record_script(lake, noted, finished=True)


def _record_drop(lake: Lake, clock: Clock, schema: TableSchema) -> None:
    """Note that a table was dropped, unless that, and perhaps its making anew, is noted already."""
    with suppress(NotFound):
        known = cdc_tables.find_cdc_table(lake, schema.keyspace, schema.name)
        if known.oldest_ms == ms_from_us(schema.created_at_us):
            tablets.drop_table_log(lake, clock, schema.keyspace, schema.name)


def _record_tables(lake: Lake, settings: Settings, noted: _RecordedScript, script: Script) -> None:
    """Make what the platform knows of the tables what they are; one that never had a log is not known."""
    after, clock = script.catalog, Clock(noted.at_us)
    there = {table.full_name for table in cdc_tables.read_cdc_tables(lake)}
    known = [each for each in after.tables() if each.full_name in there or _had_cdc(script, each) or each.has_old_log]
    sayings = [
        saying
        for schema in known
        for saying in _table_changes(lake, noted, script, schema, is_new=schema.full_name not in there)
    ]
    cdc_tables.record_table_changes(lake, sayings, {_APPLICATION: noted.number})
    for schema in known:
        count = after.keyspace(schema.keyspace).tablets
        was_on = _had_cdc(script, schema)
        if count is not None and (schema.cdc.enabled or was_on):
            name = (schema.keyspace, schema.name)
            tablets.create_tablets(lake, clock, settings, *name, uniform_tablet_ends(count), was_on=was_on)
        # Of a log that was there before nothing is here: an empty one would look whole.
        if (was_on or not schema.has_old_log) and not lake.exists(log_table(schema)):
            lake.ensure(log_table(schema))


def _had_cdc(script: Script, schema: TableSchema) -> bool:
    return any(made.options.enabled for made in script.defined[schema.full_name])


def _table_changes(
    lake: Lake, noted: _RecordedScript, script: Script, schema: TableSchema, *, is_new: bool
) -> Iterator[cdc_tables.TableChangeRequest]:
    """What a script says of a table: each change of its CDC options, for what was written between two of them."""
    name, ddl = (schema.keyspace, schema.name), format_ddl(script.catalog, schema)
    steps = script.defined[schema.full_name] or [DefinedTable(noted.at_us, schema.cdc, ddl, 0)]
    for place, step in enumerate([*steps[:-1], steps[-1]._replace(ddl=ddl)]):
        clock = Clock(step.at_us)
        options = {"ttl_seconds": step.options.ttl, "enabled": step.options.enabled, "ddl": step.ddl}
        if is_new and not place and schema.has_old_log:
            created_ms = None if schema.old_log_ms is None else min(schema.old_log_ms, clock.now_ms())
            yield cdc_tables.request_addition(lake, clock, *name, created_at_ms=created_ms, seen=True, **options)
        elif is_new and not place:
            created_ms = ms_from_us(schema.created_at_us)
            yield cdc_tables.request_addition(lake, clock, *name, created_at_ms=created_ms, **options)
        else:
            yield cdc_tables.request_alteration(lake, clock, *name, **options)


def _empty_log(lake: Lake, noted: _RecordedScript, schema: TableSchema, after: Catalog) -> None:
    """Empty the log of a table that was dropped, and give it the columns of the table that has its name now."""
    now = {other.full_name: other for other in after.tables()}.get(schema.full_name, schema)
    if lake.exists(log_table(now)):
        _overwrite_log(lake, noted, now, log_rows_to_arrow(now, []), "empty")


def _rename_log_columns(lake: Lake, noted: _RecordedScript, schema: TableSchema, old_names: dict[str, str]) -> None:
    """Give the key columns of a log their new names, in all of its rows and by one commit."""
    version = noted.log_versions.get(schema.full_name)
    if not old_names or version is None:
        return
    columns = tuple(replace(each, name=old_names.get(each.name, each.name)) for each in schema.columns)
    stored = lake.read_version(log_table(schema), version)
    new_names = {old: new for new, old in old_names.items()}
    rows = [
        {new_names.get(column, column): value for column, value in row.items()}
        for row in log_rows_from_arrow(replace(schema, columns=columns), stored)
    ]
    whole = log_rows_to_arrow(schema, rows, exact=EXACT in stored.column_names)
    _overwrite_log(lake, noted, schema, whole, "rename")


def _append_rows(lake: Lake, noted: _RecordedScript, schema: TableSchema, rows: SpooledLogRows) -> None:
    _migrate_log_columns(lake, noted, schema)
    has_exact = EXACT in read_stored_schema(lake, log_table(schema)).names
    exact = has_exact or any(EXACT in rows.table(schema, number).column_names for number in range(rows.blocks))
    if exact and not has_exact:
        lake.widen(log_table(schema, exact=True))
    blocks = ROWS_PER_FILE // ROWS_PER_BLOCK

    def part(number: int) -> pa.Table:
        last = min((number + 1) * blocks, rows.blocks)
        tables = [rows.table(schema, each) for each in range(number * blocks, last)]
        return pa.concat_tables(tables, promote_options="default")

    parts = -(-rows.blocks // blocks)
    append_log_parts(lake, schema, parts, part, (_APPLICATION, noted.number), exact=exact)


def _migrate_log_columns(lake: Lake, noted: _RecordedScript, schema: TableSchema) -> None:
    """Give a log the columns that ALTER gave its base table, before the first rows that have them."""
    table = log_table(schema)
    version = lake.version(table)
    if version is None:
        return
    columns = read_stored_schema(lake, table)
    exact = EXACT in columns.names
    if columns.equals(_without_metadata(log_table(schema, exact=exact))):
        return
    rows = log_rows_to_arrow(schema, list(log_rows_from_arrow(schema, lake.read_version(table, version))), exact=exact)
    _overwrite_log(lake, noted, schema, rows, "shape")


def _without_metadata(table: Table) -> pa.Schema:
    return table.schema.remove_metadata()


def _overwrite_log(lake: Lake, noted: _RecordedScript, schema: TableSchema, rows: pa.Table, why: str) -> None:
    """Put these rows, in the columns of the schema's log, in place of all; at most once a script."""
    replace_log(lake, schema, rows, (f"{_APPLICATION}/{why}", noted.number))
