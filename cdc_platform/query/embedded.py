"""Queries in this process, without a JVM: DuckDB over Arrow datasets of the tables that a query names.

The engine has a catalog of its own that goes with the query, reaches no file but those that it spills to, and its
transaction is read-only.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cdc_platform import drafts
from cdc_platform.errors import EnvironmentProblem, InputError, PlatformError, StateError
from cdc_platform.lake.filters import quoted
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import Table
from cdc_platform.query.names import At, Names, Source
from cdc_platform.query.read_only import Query, judged, said, unambiguous
from cdc_platform.query.rows import ROWS_A_BATCH, Rows

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

_NOW = At()
_CATALOG = "cdc_platform"
_WHOLE = frozenset({"HUGEINT", "UHUGEINT"})
# What Arrow has no type for, or pyarrow no value.
_AS_TEXT = frozenset({"BIT", "BIGNUM", "GEOMETRY", "TIME WITH TIME ZONE", "UNION", "VARIANT"})


@contextmanager
def answer(
    lake: Lake, text: str, *, at: At = _NOW, limit: int | None = None, memory: str | None = None
) -> Iterator[Rows]:
    """The rows that a query answers with, at most `limit`; they are made as they are read, inside the block.

    A table that does not exist is one without rows. `memory` (as in `2GB`) is what the engine may take before it
    spills to the temporary folder; by default four fifths of the machine's.

    Raises:
        InputError: the query is none, names what is not there, or would do more than answer.
        NotFound: the past that it asks for is not known.
        StateError: a file of a table is missing or damaged, or a table takes more than this reader knows.
        EnvironmentProblem: neither memory nor disk suffice.
    """
    with drafts.temporary_folder("cdc-platform-sql") as spill, _engine(spill, memory) as engine:
        names = Names(lake)
        known = {(table.keyspace.lower(), table.name.lower()) for table in names.tables}
        query = judged(engine, unambiguous(text, _CATALOG, known))
        sources = _sources(names, query, at)
        ordered = [names.as_defined(source) for source in sources] if query.in_order else sources
        _name(engine, ordered, _listed(names, sources) if query.everything else [], in_order=query.in_order)
        with _told(sources):
            relation = _fitting(engine.sql(query.statement))
            whole = frozenset(place for place, kind in enumerate(relation.types) if str(kind) in _WHOLE)
            if limit is not None:
                relation = relation.limit(limit)
            reader = relation.to_arrow_reader(ROWS_A_BATCH)
        try:
            yield Rows(reader.schema, _batches(reader, sources), whole)
        finally:
            reader.close()
            del reader, relation


def _sources(names: Names, query: Query, at: At) -> list[Source]:
    """The tables of a query; without rows those that it only lists."""
    found: dict[str, Table] = {}
    for reference in query.tables:
        table = names.find(reference)
        if table is None:
            raise InputError(f"there is no table {reference} in this home{names.close_to(reference)}")
        found[table.full_name] = table
    hidden = (reference for reference in query.hidden if len(names.like(reference)) == 1)
    for reference in (*query.perhaps, *hidden):
        table = names.find(reference)
        if table is not None:
            found[table.full_name] = table
    return names.sources(found.values(), at)


def _listed(names: Names, sources: Sequence[Source]) -> list[Source]:
    """All other tables, of which a list of what there is needs the columns alone; one where capitals alone differ."""
    taken = {source.table.full_name.lower() for source in sources}
    others = {table.full_name.lower(): table for table in names.tables}
    wanted = [table for name, table in others.items() if name not in taken]
    declared = [Source(table, None) for table in wanted if table.schema.names]
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


def _name(engine: DuckDBPyConnection, sources: Sequence[Source], listed: Sequence[Source], *, in_order: bool) -> None:
    """Give the tables their names, and close all doors: from here on nothing can be named, opened or set.

    With `in_order` their rows are in the order that CQL declares for them.
    """
    _refuse_alike(sources)
    # In a catalog of its own name: the engine's are called memory, system and temp, as keyspaces can be.
    engine.execute(f"ATTACH ':memory:' AS {_CATALOG}")
    engine.execute(f"USE {_CATALOG}")
    for keyspace in {source.table.keyspace.lower(): source.table.keyspace for source in (*sources, *listed)}.values():
        engine.execute(f"CREATE SCHEMA IF NOT EXISTS {_CATALOG}.{quoted(keyspace)}")
    for number, source in enumerate(sources):
        raw: Any = _empty(source) if source.snapshot is None else source.snapshot.dataset()
        engine.register(f"raw_{number}", raw)
        order = _cql_order(source.table) if in_order else ""
        engine.execute(f"CREATE VIEW {_place(source.table)} AS SELECT * FROM raw_{number}{order}")
    for source in listed:
        engine.register("listed", _empty(source))
        engine.execute(f"CREATE TABLE {_place(source.table)} AS SELECT * FROM listed")
        engine.unregister("listed")
    keyspaces = sorted({source.table.keyspace for source in (*sources, *listed)})
    if keyspaces:
        path = ",".join(f"{_CATALOG}.{quoted(keyspace)}" for keyspace in keyspaces)
        engine.execute(f"SET search_path = {_literal(path)}")
    engine.execute("SET enable_external_access = false")
    engine.execute("SET lock_configuration = true")
    engine.execute("BEGIN TRANSACTION READ ONLY")


def _cql_order(table: Table) -> str:
    """The order of a table's rows in CQL as a clause: by partition, and in each as its clustering columns say.

    CQL orders partitions by token, which says nothing to people; they are in the order of their keys.
    """
    clustering = dict(table.clustering)
    columns = [name for name in table.keys if name not in clustering] if clustering else []
    parts = [quoted(name) for name in columns]
    for name, descending in clustering.items():
        if name == "stream_id":
            parts.append(f"{quoted(name)} >= '\\x80'::BLOB DESC")  # a stream set is listed by token, a signed number
        parts.append(f"{quoted(name)}{' DESC' if descending else ''}")
    return f" ORDER BY {', '.join(parts)}" if parts else ""


def _refuse_alike(sources: Sequence[Source]) -> None:
    taken: dict[str, Table] = {}
    for source in sources:
        other = taken.setdefault(source.table.full_name.lower(), source.table)
        if other is not source.table:
            raise InputError(
                f"{other.full_name} and {source.table.full_name} differ in capitals alone, which this engine does not"
                " tell apart in one query; ask for one at a time"
            )


def _place(table: Table) -> str:
    return f"{_CATALOG}.{quoted(table.keyspace)}.{quoted(table.name)}"


def _empty(source: Source) -> pa.Table:
    return pa.Table.from_batches([], source.schema)


def _fitting(relation: DuckDBPyRelation) -> DuckDBPyRelation:
    """The same rows, as text what Arrow has no type for."""
    kinds = [str(kind).split("(")[0] for kind in relation.types]
    if not _AS_TEXT.intersection(kinds):
        return relation
    columns = [
        f"CAST(#{place} AS VARCHAR) AS {quoted(name)}" if kind in _AS_TEXT else f"#{place} AS {quoted(name)}"
        for place, (name, kind) in enumerate(zip(relation.columns, kinds, strict=True), 1)
    ]
    return relation.project(", ".join(columns))


def _batches(reader: pa.RecordBatchReader, sources: Sequence[Source]) -> Iterator[pa.RecordBatch]:
    with _told(sources):
        yield from reader


@contextmanager
def _told(sources: Iterable[Source]) -> Iterator[None]:
    """Run a part of a query; what the engine raises leaves it as the platform's error.

    Where a file is to blame the engine, or Arrow, says so in many ways: the files are looked at then.
    """
    import duckdb

    try:
        yield
    except PlatformError:
        raise
    except (duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException) as error:
        raise InputError(f"the query: {said(error)}") from None
    except (duckdb.OutOfMemoryException, MemoryError) as error:
        raise EnvironmentProblem(
            f"the query needs more memory, or room to spill in {tempfile.gettempdir()}, than there is: {said(error)};"
            " narrow it, point TMPDIR at a larger disk, or run it with --spark"
        ) from None
    except RuntimeError as error:
        if str(error) != "Query interrupted":  # how the engine hands on Ctrl-C
            raise
        raise KeyboardInterrupt from None
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        damaged = next(filter(None, (source.snapshot and source.snapshot.damage() for source in sources)), None)
        if damaged is not None:
            raise StateError(f"{damaged}; restore it, or read an older version with --at") from None
        raise InputError(f"the query: {said(error)}") from None


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
