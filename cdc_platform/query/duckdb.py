"""Queries with DuckDB in this process over Arrow datasets of the tables that a query names. No JVM.

Each query has its own engine and catalog, which access no files except spill files, and a read-only transaction.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cdc_platform.delta import Lake, quote_column
from cdc_platform.errors import EnvironmentProblem, InputError, PlatformError, StateError
from cdc_platform.query.duckdb_guard import CheckedQuery, check_duckdb_query, engine_message, qualify_system_names
from cdc_platform.query.names import QuerySource, TableNames, TimeTravel
from cdc_platform.query.result import ROWS_PER_BATCH, QueryResult
from cdc_platform.storage import atomic
from cdc_platform.tables import Table

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

_NOW = TimeTravel()
_CATALOG = "cdc_platform"
_WIDE_INTEGER_TYPES = frozenset({"HUGEINT", "UHUGEINT"})
# Types that Arrow lacks, or whose values pyarrow cannot represent.
_TEXT_TYPES = frozenset({"BIT", "BIGNUM", "GEOMETRY", "TIME WITH TIME ZONE", "UNION", "VARIANT"})


@contextmanager
def run_duckdb_query(
    lake: Lake, text: str, *, at: TimeTravel = _NOW, limit: int | None = None, memory: str | None = None
) -> Iterator[QueryResult]:
    """Yield the result of a query, at most `limit` rows; the rows are computed as the block reads them.

    A declared table that does not exist has no rows. `memory` (as in `2GB`) is the engine's limit before it spills to
    the temporary folder; the default is four fifths of the machine's memory.

    Raises:
        InputError: the text is no query, names an unknown table or column, or would change something.
        NotFound: the requested past is not available.
        StateError: a file of a table is missing or damaged, or a table needs features that this reader lacks.
        EnvironmentProblem: neither memory nor disk suffice.
    """
    with atomic.temporary_folder("cdc-platform-sql") as spill, _engine(spill, memory) as engine:
        names = TableNames(lake)
        known = {(table.keyspace.lower(), table.name.lower()) for table in names.tables}
        query = check_duckdb_query(engine, qualify_system_names(text, _CATALOG, known))
        sources = _sources(names, query, at)
        ordered = [names.as_defined(source) for source in sources] if query.in_order else sources
        listed = _listed_sources(names, sources) if query.everything else []
        _create_views(engine, ordered, listed, spill, in_order=query.in_order)
        with _translated_errors(sources):
            relation = _with_text_columns(engine.sql(query.statement))
            whole = frozenset(index for index, kind in enumerate(relation.types) if str(kind) in _WIDE_INTEGER_TYPES)
            if limit is not None:
                relation = relation.limit(limit)
            reader = relation.to_arrow_reader(ROWS_PER_BATCH)
        try:
            yield QueryResult(reader.schema, _batches(reader, sources), whole)
        finally:
            reader.close()
            del reader, relation


def _sources(names: TableNames, query: CheckedQuery, at: TimeTravel) -> list[QuerySource]:
    """Return the tables of a query at `at`, hidden and possible names included if they match a table."""
    tables: dict[str, Table] = {}
    for reference in query.tables:
        table = names.find(reference)
        if table is None:
            raise InputError(f"there is no table {reference} in this home{names.close_to(reference)}")
        tables[table.full_name] = table
    hidden = (reference for reference in query.hidden if len(names.like(reference)) == 1)
    for reference in (*query.perhaps, *hidden):
        table = names.find(reference)
        if table is not None:
            tables[table.full_name] = table
    return names.sources(tables.values(), at)


def _listed_sources(names: TableNames, sources: Sequence[QuerySource]) -> list[QuerySource]:
    """Return all other tables, for queries that list tables; those need the columns alone.

    Of tables whose names differ in case only, one is returned.
    """
    taken = {source.table.full_name.lower() for source in sources}
    others = {table.full_name.lower(): table for table in names.tables}
    wanted = [table for name, table in others.items() if name not in taken]
    declared = [QuerySource(table, None) for table in wanted if table.schema.names]
    return declared + names.sources((table for table in wanted if not table.schema.names), _NOW)


@contextmanager
def _engine(spill: Path, memory: str | None) -> Iterator[DuckDBPyConnection]:
    import duckdb

    settings: dict[str, Any] = {
        "temp_directory": str(spill),
        "python_enable_replacements": False,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    if memory is not None:
        settings["memory_limit"] = memory
    engine = duckdb.connect(":memory:", config=settings)
    try:
        engine.execute("SET TimeZone = 'UTC'")
        yield engine
    finally:
        engine.close()


def _create_views(
    engine: DuckDBPyConnection,
    sources: Sequence[QuerySource],
    listed: Sequence[QuerySource],
    spill: Path,
    *,
    in_order: bool,
) -> None:
    """Create a view per table, and then lock the engine: no later statement can attach, open or set anything.

    The rows of views of changes are joined now, into `spill`. With `in_order` rows are in the order that CQL declares
    for them.
    """
    _refuse_case_collisions(sources)
    # Use a catalog with its own name: the engine's are memory, system and temp, which can be keyspaces too.
    engine.execute(f"ATTACH ':memory:' AS {_CATALOG}")
    engine.execute(f"USE {_CATALOG}")
    for keyspace in {source.table.keyspace.lower(): source.table.keyspace for source in (*sources, *listed)}.values():
        engine.execute(f"CREATE SCHEMA IF NOT EXISTS {_CATALOG}.{quote_column(keyspace)}")
    for number, source in enumerate(sources):
        raw = _raw_rows(source, spill / str(number))
        engine.register(f"raw_{number}", raw)
        order = _cql_order(source.table) if in_order else ""
        engine.execute(f"CREATE VIEW {_view_name(source.table)} AS SELECT * FROM raw_{number}{order}")
    for source in listed:
        engine.register("listed", _empty_table(source))
        engine.execute(f"CREATE TABLE {_view_name(source.table)} AS SELECT * FROM listed")
        engine.unregister("listed")
    keyspaces = sorted({source.table.keyspace for source in (*sources, *listed)})
    if keyspaces:
        path = ",".join(f"{_CATALOG}.{quote_column(keyspace)}" for keyspace in keyspaces)
        engine.execute(f"SET search_path = {_literal(path)}")
    engine.execute("SET enable_external_access = false")
    engine.execute("SET lock_configuration = true")
    engine.execute("BEGIN TRANSACTION READ ONLY")


def _raw_rows(source: QuerySource, spill: Path) -> Any:
    """Return the rows of a source in a form that DuckDB scans any number of times."""
    if source.snapshot is None:
        return _empty_table(source)
    if source.view is None:
        return source.snapshot.dataset()
    from cdc_platform.query.change_views import write_view_dataset

    spill.mkdir()
    with _translated_errors([source]):
        return write_view_dataset(source, spill)


def _cql_order(table: Table) -> str:
    """Return an ORDER BY clause for CQL's order of a table: by partition, then by the clustering columns.

    CQL orders partitions by token, which means nothing to people; this clause orders them by key.
    """
    clustering = dict(table.clustering)
    columns = [name for name in table.keys if name not in clustering] if clustering else []
    parts = [quote_column(name) for name in columns]
    for name, descending in clustering.items():
        if name == "stream_id":
            # Stream sets are ordered by token, a signed number.
            parts.append(f"{quote_column(name)} >= '\\x80'::BLOB DESC")
        parts.append(f"{quote_column(name)}{' DESC' if descending else ''}")
    return f" ORDER BY {', '.join(parts)}" if parts else ""


def _refuse_case_collisions(sources: Sequence[QuerySource]) -> None:
    taken: dict[str, Table] = {}
    for source in sources:
        other = taken.setdefault(source.table.full_name.lower(), source.table)
        if other is not source.table:
            raise InputError(
                f"{other.full_name} and {source.table.full_name} differ in capitals alone, which this engine cannot "
                f"distinguish in one query; query one at a time"
            )


def _view_name(table: Table) -> str:
    return f"{_CATALOG}.{quote_column(table.keyspace)}.{quote_column(table.name)}"


def _empty_table(source: QuerySource) -> pa.Table:
    return pa.Table.from_batches([], source.schema)


def _with_text_columns(relation: DuckDBPyRelation) -> DuckDBPyRelation:
    """Cast columns of types that Arrow lacks to text."""
    kinds = [str(kind).split("(")[0] for kind in relation.types]
    if not _TEXT_TYPES.intersection(kinds):
        return relation
    columns = [
        f"CAST(#{number} AS VARCHAR) AS {quote_column(name)}"
        if kind in _TEXT_TYPES
        else f"#{number} AS {quote_column(name)}"
        for number, (name, kind) in enumerate(zip(relation.columns, kinds, strict=True), 1)
    ]
    return relation.project(", ".join(columns))


def _batches(reader: pa.RecordBatchReader, sources: Sequence[QuerySource]) -> Iterator[pa.RecordBatch]:
    with _translated_errors(sources):
        yield from reader


@contextmanager
def _translated_errors(sources: Iterable[QuerySource]) -> Iterator[None]:
    """Translate the engine's errors in the block to the platform's.

    The engine and Arrow report a bad file in many ways, so the tables' files are checked when either fails.
    """
    import duckdb

    try:
        yield
    except PlatformError:
        raise
    except (duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException) as error:
        raise InputError(f"the query: {engine_message(error)}") from None
    except (duckdb.OutOfMemoryException, MemoryError) as error:
        raise EnvironmentProblem(
            f"the query needs more memory, or disk space to spill in {tempfile.gettempdir()}, than there is: "
            f"{engine_message(error)};"
            " narrow it, point TMPDIR at a larger disk, or run it with --spark"
        ) from None
    except RuntimeError as error:
        if str(error) != "Query interrupted":  # the engine's error after Ctrl-C
            raise
        raise KeyboardInterrupt from None
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        damaged = next(filter(None, (source.snapshot and source.snapshot.find_damage() for source in sources)), None)
        if damaged is not None:
            raise StateError(f"{damaged}; restore it, or read an older version with --at") from None
        raise InputError(f"the query: {engine_message(error)}") from None


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
