"""Commit a script's effects to the lake: tables, tablets, and the rows of their logs.

The script and everything it depends on are recorded before any effect is written. The next commit finishes an
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
from cdc_platform.cql import Catalog, TableSchema, apply_definition, format_ddl, parse_definitions
from cdc_platform.cql import ast as s
from cdc_platform.delta import SCRIPTS_LOCK, Lake, lake_lock, read_newest_versions
from cdc_platform.errors import ConflictError, EnvironmentProblem, InputError, NotFound, PlatformError, StateError
from cdc_platform.generations import uniform_tablet_ends
from cdc_platform.lifecycle import tablets
from cdc_platform.metastore import cdc_tables
from cdc_platform.settings import Settings
from cdc_platform.tables import CDC_TABLE_CHANGES, KEPT_SCRIPTS, Table

_COMPRESSED_PREFIX = "-- compressed, by zlib and base85: "
_COMPRESS_FROM = 1 << 18


def compress_text(text: str) -> str:
    """Return the text of a script as it is stored."""
    if len(text) < _COMPRESS_FROM and not text.startswith(_COMPRESSED_PREFIX):
        return text
    return _COMPRESSED_PREFIX + base64.b85encode(zlib.compress(text.encode(), 1)).decode()


def decompress_text(noted: str) -> str:
    """Return the original text of a stored script; raise InputError if it is damaged."""
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
    """A script as stored in `platform.kept_scripts`."""

    number: int
    text: str
    at_us: Microseconds
    definitions: str
    log_versions: dict[str, int]
    """The version of each stored table's log, and under `_HISTORY` that of the table changes."""


def load_stored_tables(lake: Lake) -> StoredTables:
    """Load the tables whose definition is stored in the lake, with the current rows of their logs."""
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
    on_outcome: OnOutcome | None = None,
) -> ScriptResult:
    """Run a script on the tables of the lake without writing anything; see `Script.run`.

    Raises:
        InputError: as `iter_script_statements`.
    """
    statements = iter_script_statements(text, strict=strict, values=values)
    return Script(lake, settings, clock.now_us(), load_stored_tables(lake)).run(statements, on_outcome)


def commit_script(
    text: str,
    lake: Lake,
    clock: Clock,
    settings: Settings,
    *,
    strict: bool = False,
    values: str | None = None,
    on_outcome: OnOutcome | None = None,
) -> ScriptResult:
    """Run a script on the tables of the lake and store its effects; see `Script.run`.

    If a statement is wrong, nothing is stored. A refused write is skipped and the others are stored. Commits hold a
    lock, so an unfinished script belongs to a process that died. Committing the same text again finishes that script as
    it was begun.

    Raises:
        InputError: as `iter_script_statements`.
        ConflictError: another process has held the lock for too long.
    """
    statements = iter_script_statements(text, strict=strict, values=values)
    if values is not None:
        # Record the text with its values, so that it can be finished without the values file.
        text = "".join(f"{statement.text};\n" for statement in statements)
    with lake_lock(lake, SCRIPTS_LOCK):
        return _commit_locked(statements, text, lake, clock, settings, on_outcome)


def _commit_locked(
    statements: Iterable[s.Statement],
    text: str,
    lake: Lake,
    clock: Clock,
    settings: Settings,
    on_outcome: OnOutcome | None,
) -> ScriptResult:
    unfinishable, finished = list[str](), None
    for recorded in _unfinished_scripts(lake):
        outcome = _finish_script(
            lake, settings, recorded, _ignore_outcome if on_outcome is not None or recorded.text != text else None
        )
        if isinstance(outcome, str):
            unfinishable.append(outcome)
        elif recorded.text != text:
            finished = None
        else:
            # Run it again to report its outcomes, which are the same, now that it is finished.
            finished = (
                outcome
                if on_outcome is None
                else _run_recorded(lake, settings, recorded, iter_script_statements(text), on_outcome).result
            )
    if finished is not None:
        return replace(finished, left=unfinishable)
    tables = load_stored_tables(lake)
    recorded = _RecordedScript(
        _last_number(lake) + 1, text, clock.now_us(), _dump_definitions(tables.catalog), _log_versions(lake, tables)
    )
    run = _run_recorded(lake, settings, recorded, statements, on_outcome)
    if run.result.wrong is None:
        _record_script(lake, recorded)
        failpoints.kill_if_selected(failpoints.AFTER_SCRIPT_NOTED)
        _apply_effects(lake, settings, recorded, run)
    return replace(run.result, left=unfinishable)


def _ignore_outcome(_: StatementOutcome) -> None:
    """Ignore the outcomes of an interrupted script, since the caller did not submit it."""


def _finish_script(
    lake: Lake, settings: Settings, noted: _RecordedScript, on_outcome: OnOutcome | None
) -> ScriptResult | str:
    """Finish an interrupted script; return a message if that is impossible, and leave its effects as they are."""
    try:
        run = _run_recorded(lake, settings, noted, iter_script_statements(noted.text), on_outcome)
        if run.result.wrong is not None and run.result.wrong.error is not None:
            # The script was valid when it was recorded, so its starting point is gone.
            raise run.result.wrong.error
        _apply_effects(lake, settings, noted, run)
    except (EnvironmentProblem, ConflictError):
        raise
    except PlatformError as error:
        _record_script(lake, noted, finished=True)
        return (
            f"the script applied at {format_us(noted.at_us)} cannot be finished: {error}; its writes so far"
            " stay, the rest is skipped: check its tables and run the rest again"
        )
    return run.result


@dataclass(frozen=True)
class _ScriptRun:
    """A script that has run, the tables by name before it, and its result."""

    script: Script
    before: dict[str, TableSchema]
    result: ScriptResult


def _run_recorded(
    lake: Lake,
    settings: Settings,
    noted: _RecordedScript,
    statements: Iterable[s.Statement],
    on_outcome: OnOutcome | None,
) -> _ScriptRun:
    """Run a recorded script on the tables as they were when it was recorded; the outcome is always the same."""
    catalog = _load_catalog(noted.definitions)
    stored = StoredTables(
        catalog,
        lambda schema: read_state(lake, schema, noted.log_versions.get(schema.full_name)),
        lambda schema: options_history(cdc_tables.read_table_changes(lake, noted.log_versions.get(_HISTORY)), schema),
    )
    before = {schema.full_name: schema for schema in catalog.tables()}
    script = Script(lake, settings, noted.at_us, stored)
    return _ScriptRun(script, before, script.run(statements, on_outcome))


def _load_catalog(definitions: str) -> Catalog:
    """Build the catalog from stored definitions, each with the creation time of its table."""
    catalog = Catalog()
    for created_at_us, statements in json.loads(definitions):
        for statement in parse_definitions(statements):
            if isinstance(statement.body, s.DefinitionStatement):
                apply_definition(catalog, statement.body, created_at_us)
                if isinstance(statement.body, s.CreateTable):
                    catalog.put(noted_in(catalog.table(statement.body.name), statements))
    return catalog


def _dump_definitions(catalog: Catalog) -> str:
    return json.dumps([(schema.created_at_us, format_ddl(catalog, schema)) for schema in catalog.tables()])


def _log_versions(lake: Lake, stored: StoredTables) -> dict[str, int]:
    newest = read_newest_versions(lake)
    tables = {schema.full_name: log_table(schema) for schema in stored.catalog.tables()} | {_HISTORY: CDC_TABLE_CHANGES}
    return {name: newest[table.full_name] for name, table in tables.items() if table.full_name in newest}


def _unfinished_scripts(lake: Lake) -> list[_RecordedScript]:
    recorded = lake.read(KEPT_SCRIPTS, ["number", "finished_at"]).to_pylist()
    numbers = [row["number"] for row in recorded if row["finished_at"] is None]
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
        raise ConflictError("another script was applied at the same time, and this one was not: run it again")


def _apply_effects(lake: Lake, settings: Settings, noted: _RecordedScript, run: _ScriptRun) -> None:
    """Apply all effects of a script; each step is idempotent."""
    script = run.script
    after, clock = script.catalog, Clock(noted.at_us)
    for schema in script.dropped:
        _record_drop(lake, clock, schema)
    _record_tables(lake, settings, noted, run)
    failpoints.kill_if_selected(failpoints.AFTER_SCRIPT_TABLES)
    for schema in (*script.dropped, *script.emptied):
        _empty_log(lake, noted, schema, after)
    for schema in after.tables():
        _rename_log_columns(lake, noted, schema, script.renamed.get(schema.full_name, {}))
        rows = script.written.get(schema.full_name)
        if schema.full_name in run.before and run.before[schema.full_name].columns != schema.columns:
            # Dropping a column drops its values, even if the column is added again.
            _migrate_log_columns(lake, noted, schema)
        if rows:
            _append_rows(lake, noted, schema, rows)
            failpoints.kill_if_selected(failpoints.AFTER_SCRIPT_ROWS)
    for schema in {table.full_name: table for table in (*script.dropped, *script.touched)}.values():
        if lake.exists(log_table(schema)):
            # Without a stored state readers use the log and report its errors.
            with suppress(InputError, StateError):
                store_state(lake, schema)
    failpoints.kill_if_selected(failpoints.AFTER_SCRIPT_STATE)
    _record_script(lake, noted, finished=True)


def _record_drop(lake: Lake, clock: Clock, schema: TableSchema) -> None:
    """Record that a table was dropped, unless the drop, and possibly a new table, is already recorded."""
    with suppress(NotFound):
        known = cdc_tables.find_cdc_table(lake, schema.keyspace, schema.name)
        if known.oldest_ms == ms_from_us(schema.created_at_us):
            tablets.drop_table_log(lake, clock, schema.keyspace, schema.name)


def _record_tables(lake: Lake, settings: Settings, noted: _RecordedScript, run: _ScriptRun) -> None:
    """Record the tables that the script defined or changed; a table that never had a log is not recorded."""
    script = run.script
    after, clock = script.catalog, Clock(noted.at_us)
    existing = {table.full_name for table in cdc_tables.read_cdc_tables(lake)}
    tables_to_record = [
        table for table in after.tables() if table.full_name in existing or _had_cdc(script, table) or table.has_old_log
    ]
    requests = [
        request
        for schema in tables_to_record
        if schema.full_name not in existing
        or schema != run.before.get(schema.full_name)
        or script.defined[schema.full_name]
        for request in _table_changes(lake, noted, script, schema, is_new=schema.full_name not in existing)
    ]
    cdc_tables.record_table_changes(lake, requests, {_APPLICATION: noted.number})
    for schema in tables_to_record:
        count = after.keyspace(schema.keyspace).tablets
        was_on = _had_cdc(script, schema)
        if count is not None and (schema.cdc.enabled or was_on):
            name = (schema.keyspace, schema.name)
            tablets.create_tablets(lake, clock, settings, *name, uniform_tablet_ends(count), was_on=was_on)
        # A log that existed before its table was defined here has no rows here; an empty log would look complete.
        if (was_on or not schema.has_old_log) and not lake.exists(log_table(schema)):
            lake.ensure(log_table(schema))


def _had_cdc(script: Script, schema: TableSchema) -> bool:
    return any(definition.options.enabled for definition in script.defined[schema.full_name])


def _table_changes(
    lake: Lake, noted: _RecordedScript, script: Script, schema: TableSchema, *, is_new: bool
) -> Iterator[cdc_tables.TableChangeRequest]:
    """Yield each change of a table's CDC options in a script, so that each applies to the writes after it."""
    name, ddl = (schema.keyspace, schema.name), format_ddl(script.catalog, schema)
    steps = script.defined[schema.full_name] or [DefinedTable(noted.at_us, schema.cdc, ddl, 0)]
    for index, step in enumerate([*steps[:-1], steps[-1]._replace(ddl=ddl)]):
        clock = Clock(step.at_us)
        options = {"ttl_seconds": step.options.ttl, "enabled": step.options.enabled, "ddl": step.ddl}
        if is_new and not index and schema.has_old_log:
            created_ms = None if schema.old_log_ms is None else min(schema.old_log_ms, clock.now_ms())
            yield cdc_tables.request_addition(lake, clock, *name, created_at_ms=created_ms, observed=True, **options)
        elif is_new and not index:
            created_ms = ms_from_us(schema.created_at_us)
            yield cdc_tables.request_addition(lake, clock, *name, created_at_ms=created_ms, **options)
        else:
            yield cdc_tables.request_alteration(lake, clock, *name, **options)


def _empty_log(lake: Lake, noted: _RecordedScript, schema: TableSchema, after: Catalog) -> None:
    """Empty the log of a dropped table, and give it the columns of the table that now has the name."""
    current = {other.full_name: other for other in after.tables()}.get(schema.full_name, schema)
    if lake.exists(log_table(current)):
        _overwrite_log(lake, noted, current, log_rows_to_arrow(current, []), "empty")


def _rename_log_columns(lake: Lake, noted: _RecordedScript, schema: TableSchema, old_names: dict[str, str]) -> None:
    """Rename the key columns of a log in all of its rows, in one commit."""
    version = noted.log_versions.get(schema.full_name)
    if not old_names or version is None:
        return
    columns = tuple(
        replace(base_column, name=old_names.get(base_column.name, base_column.name)) for base_column in schema.columns
    )
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
    has_exact = EXACT in lake.stored_schema(log_table(schema)).names
    exact = has_exact or any(EXACT in rows.table(schema, number).column_names for number in range(rows.blocks))
    if exact and not has_exact:
        lake.widen(log_table(schema, exact=True))
    blocks = ROWS_PER_FILE // ROWS_PER_BLOCK

    def part(number: int) -> pa.Table:
        last = min((number + 1) * blocks, rows.blocks)
        tables = [rows.table(schema, block) for block in range(number * blocks, last)]
        return pa.concat_tables(tables, promote_options="default")

    parts = -(-rows.blocks // blocks)
    append_log_parts(lake, schema, parts, part, (_APPLICATION, noted.number), exact=exact)


def _migrate_log_columns(lake: Lake, noted: _RecordedScript, schema: TableSchema) -> None:
    """Give a log the columns that ALTER added to its base table, before appending rows with them."""
    table = log_table(schema)
    version = lake.version(table)
    if version is None:
        return
    columns = lake.stored_schema(table)
    exact = EXACT in columns.names
    if columns.equals(_without_metadata(log_table(schema, exact=exact))):
        return
    rows = log_rows_to_arrow(schema, list(log_rows_from_arrow(schema, lake.read_version(table, version))), exact=exact)
    _overwrite_log(lake, noted, schema, rows, "shape")


def _without_metadata(table: Table) -> pa.Schema:
    return table.schema.remove_metadata()


def _overwrite_log(lake: Lake, noted: _RecordedScript, schema: TableSchema, rows: pa.Table, why: str) -> None:
    """Replace all rows and columns of a log with those of the schema; at most once per script and reason."""
    replace_log(lake, schema, rows, (f"{_APPLICATION}/{why}", noted.number))
