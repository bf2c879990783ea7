"""How a table of the platform stands in Dagster: its key, owners, pool, columns and where they come from.

The tables themselves are declared once, in `cdc_platform.lake.tables`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from warnings import catch_warnings, simplefilter

import pyarrow as pa
import pyarrow.types as pat
from dagster import (
    AssetDep,
    AssetKey,
    AssetsDefinition,
    AssetSpec,
    BackfillPolicy,
    BetaWarning,
    PartitionsDefinition,
    TableColumn,
    TableColumnConstraints,
    TableColumnDep,
    TableColumnLineage,
    TableSchema,
    asset,
    with_source_code_references,
)

from assets.code import code_version
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
    sources: Sources | None = None,
    code: Sequence[str] = (),
) -> Callable[[Callable[..., Any]], AssetsDefinition]:
    """Dagster's `@asset` for a table. `spark`: whether materialising it needs a session.

    `code` names the modules that compute it: its code version is theirs. Several partitions are one run's work.
    """
    make = in_silence(asset)(
        key=key(table),
        group_name=group,
        owners=OWNERS,
        kinds={"deltalake", "pyspark"} if spark else {"deltalake"},
        pool=pool(table),
        retry_policy=RETRIES,
        description=f"{table.comment}.\n\n{description}",
        metadata=described(table, sources),
        tags={"keyspace": table.keyspace},
        deps=deps,
        partitions_def=partitions,
        code_version=code_version(*code) if code else None,
        backfill_policy=None if partitions is None else BackfillPolicy.single_run(),
    )

    def made(materialise: Callable[..., Any]) -> AssetsDefinition:
        (defined,) = in_silence(with_source_code_references)([in_silence(make)(materialise)])
        assert isinstance(defined, AssetsDefinition)
        return defined

    return made


def in_silence(make: Callable[..., Any]) -> Callable[..., Any]:
    """Use what this release of Dagster calls beta: pinned as it is, nobody needs to hear of it at every start."""

    def made(*args: Any, **named: Any) -> Any:
        with catch_warnings():
            simplefilter("ignore", BetaWarning)
            return make(*args, **named)

    return made


def table_spec(
    table: Table, *, group: str, description: str, partitions: PartitionsDefinition | None = None
) -> AssetSpec:
    """A table that assets read and none of them makes, as Dagster shows it."""
    return AssetSpec(
        key=key(table),
        group_name=group,
        owners=OWNERS,
        kinds={"deltalake"},
        description=f"{table.comment}.\n\n{description}",
        metadata=described(table, None),
        tags={"keyspace": table.keyspace},
        partitions_def=partitions,
    )


def described(table: Table, sources: Sources | None) -> dict[str, Any]:
    """What is known of a table before anything is made: its columns, where they come from, and its name."""
    lineage = {} if sources is None else {"dagster/column_lineage": column_lineage(sources)}
    return {"dagster/column_schema": column_schema(table), "dagster/table_name": table.full_name, **lineage}


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
    if pat.is_list(kind):
        return f"array<{_type_name(kind.value_type)}>"
    if pat.is_struct(kind):
        return f"struct<{', '.join(f'{field.name} {_type_name(field.type)}' for field in kind)}>"
    if pat.is_timestamp(kind):
        return "timestamp"
    names = {"int64": "bigint", "int32": "int", "int8": "tinyint", "bool": "boolean"}
    return names.get(str(kind), str(kind))
