"""One change of an opened Delta table by the keys of rows, as deltalake makes it; who tries again is `lake`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, QueryBuilder, WriterProperties

from cdc_platform.lake.filters import quoted
from cdc_platform.lake.rows import conform, refuse_repeated_keys
from cdc_platform.lake.tables import Table

# Stream IDs are half random, but those of one range share their first bytes: of 1,638,400 of them zstd leaves 60 % of
# the bytes for a fifth more time than no compression takes, snappy 72 %. Spark writes the same (session.sql_conf).
WRITER_PROPERTIES = WriterProperties(compression="ZSTD", compression_level=1)


@dataclass(frozen=True)
class Merged:
    """What a merge did. `version` is the table's version in which all of the rows are."""

    inserted: int
    updated: int
    version: int


def alone() -> CommitProperties:
    """Of a commit that is the version after the one that was read, or none: deltalake's own retries are off."""
    return CommitProperties(max_commit_retries=0)


def rows_of(opened: DeltaTable, schema: pa.Schema, where: str = "") -> pa.Table:
    """The rows that SQL's `where` lets through, in the columns and types of a schema, in no order."""
    # Not deltalake's pyarrow dataset: its file statistics are of a string type that pyarrow cannot compare.
    query = f"SELECT {', '.join(map(quoted, schema.names))} FROM t WHERE {where or 'true'}"
    return pa.table(QueryBuilder().register("t", opened).execute(query).read_all()).cast(schema)


def transact(
    opened: DeltaTable, table: Table, rule: Callable[[pa.Table], pa.Table | None], *, update: bool, whole: bool
) -> None:
    """Merge what a rule makes of all rows; only as the version after the one that they were read from."""
    rows = rows_of(opened, table.schema)
    made = rule(rows)
    if made is None:
        return
    source = conform(table, made)
    refuse_repeated_keys(table, source)
    order = [(key, "ascending") for key in table.keys]
    if whole and source.sort_by(order).equals(rows.sort_by(order)):
        return
    merge(opened, table, source, update, properties=alone(), whole=whole)


def merge_judged(opened: DeltaTable, table: Table, judge: Callable[[], pa.Table | None], update: bool) -> Merged | None:
    """Merge what is made of the newest rows, whoever reads them; only as the version after the one that is opened."""
    made = judge()
    if made is None:
        return None
    source = conform(table, made)
    refuse_repeated_keys(table, source)
    return merge(opened, table, source, update, properties=alone())


def merge(
    opened: DeltaTable,
    table: Table,
    rows: pa.Table,
    update: bool,
    only: str | None = None,
    properties: CommitProperties | None = None,
    whole: bool = False,
) -> Merged:
    """Merge by key. `only`: rows that are there are replaced where this holds of them, and none is inserted.

    `whole`: rows whose key is not among the given ones go.
    """
    if not rows.num_rows and not whole:
        return Merged(0, 0, opened.version())
    on_keys = " AND ".join(f"t.{quoted(key)} = s.{quoted(key)}" for key in table.keys)
    # streamed_exec would keep deltalake from skipping the partitions and files that hold none of the keys.
    merger = opened.merge(
        rows,
        on_keys,
        source_alias="s",
        target_alias="t",
        streamed_exec=False,
        writer_properties=WRITER_PROPERTIES,
        commit_properties=properties,
    )
    others = [name for name in table.schema.names if name not in table.keys]
    if only is not None:
        metrics = merger.when_matched_update_all(predicate=only).execute()
        return Merged(0, metrics["num_target_rows_updated"], opened.version())
    if update and others:
        differs = " OR ".join(f"(t.{quoted(name)} IS DISTINCT FROM s.{quoted(name)})" for name in others)
        merger = merger.when_matched_update_all(predicate=differs)
    if whole:
        merger = merger.when_not_matched_by_source_delete()
    metrics = merger.when_not_matched_insert_all().execute()
    return Merged(metrics["num_target_rows_inserted"], metrics["num_target_rows_updated"], opened.version())
