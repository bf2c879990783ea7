"""How a table of the platform stands in Dagster: its key, owners, pool, columns and where they come from.

The tables themselves are declared once, in `cdc_platform.lake.tables`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from dagster import (
    AssetDep,
    AssetKey,
    AssetsDefinition,
    PartitionsDefinition,
    TableColumn,
    TableColumnConstraints,
    TableColumnDep,
    TableColumnLineage,
    TableSchema,
    asset,
)

from assets.failures import RETRIES
from cdc_platform.lake.tables import Table

OWNERS = ["team:cdc"]

Sources = Mapping[str, Sequence[tuple[Table, str]]]
"""For a column the columns it is made from, as (table, column)."""


def key(table: Table) -> AssetKey:
    """The asset key of a table: its keyspace and its name, as ScyllaDB calls them."""
    return AssetKey([table.keyspace, table.name])


def pool(table: Table) -> str:
    """The pool that lets one step at a time write to a table."""
    return f"{table.keyspace}/{table.name}"


def table_asset(
    table: Table,
    *,
    group: str,
    description: str,
    spark: bool,
    deps: Sequence[AssetKey | AssetDep] = (),
    partitions: PartitionsDefinition | None = None,
) -> Callable[[Callable[..., Any]], AssetsDefinition]:
    """Dagster's `@asset` for a table. `spark`: whether materialising it needs a session."""
    return asset(
        key=key(table),
        group_name=group,
        owners=OWNERS,
        kinds={"deltalake", "pyspark"} if spark else {"deltalake"},
        pool=pool(table),
        retry_policy=RETRIES,
        description=f"{table.comment}.\n\n{description}",
        metadata={"dagster/column_schema": column_schema(table), "dagster/table_name": table.full_name},
        deps=deps,
        partitions_def=partitions,
    )


def column_schema(table: Table) -> TableSchema:
    """The columns of a table with their comments, types and what may be null."""
    return TableSchema(
        columns=[
            TableColumn(
                name=field.name,
                type=_type_name(field.type),
                description=(field.metadata or {}).get(b"comment", b"").decode(),
                constraints=TableColumnConstraints(nullable=field.nullable, unique=table.keys == (field.name,)),
            )
            for field in table.schema
        ]
    )


def column_lineage(sources: Sources) -> TableColumnLineage:
    """Where the columns of a table come from."""
    return TableColumnLineage(
        deps_by_column={
            column: [TableColumnDep(asset_key=key(table), column_name=name) for table, name in origins]
            for column, origins in sources.items()
        }
    )


def _type_name(kind: pa.DataType) -> str:
    """A type as Spark SQL and CQL users know it."""
    if pa.types.is_list(kind):
        return f"array<{_type_name(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{field.name} {_type_name(field.type)}' for field in kind)}>"
    if pa.types.is_timestamp(kind):
        return "timestamp"
    names = {"int64": "bigint", "int32": "int", "int8": "tinyint", "bool": "boolean"}
    return names.get(str(kind), str(kind))
