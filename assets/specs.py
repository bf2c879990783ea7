"""Asset specs of the platform's tables: keys, owners, pools, columns, lineage and code versions.

The tables are declared once, in the package of table declarations. A code version is a hash of the modules' code
without comments, docstrings and layout.
"""

from __future__ import annotations

import ast
import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from warnings import catch_warnings, simplefilter

import pyarrow as pa
import pyarrow.types as pat
from dagster import (
    AssetCheckSpec,
    AssetDep,
    AssetKey,
    AssetsDefinition,
    AssetSpec,
    BackfillPolicy,
    BetaWarning,
    FreshnessPolicy,
    PartitionsDefinition,
    SpecificPartitionsPartitionMapping,
    TableColumn,
    TableColumnConstraints,
    TableColumnDep,
    TableColumnLineage,
    TableSchema,
    asset,
    with_source_code_references,
)

from cdc_platform.dagster_home import OWNERS_VARIABLE
from cdc_platform.errors import PlatformError
from cdc_platform.home_location import locate_home
from cdc_platform.settings import Settings, load_settings
from cdc_platform.tables import TIMESTAMP, Table, column
from cdc_platform_assets.failures import RETRY_POLICY

_log = logging.getLogger(__name__)

JOIN_CODE_MODULES = ("cdc_platform.ring", "cdc_platform.generations", "cdc_platform.lifecycle.join")
"""The modules that compute a generation and its rows."""


@cache
def compute_code_version(*modules: str) -> str:
    """Return the version of these modules' and packages' code, independent of their location and formatting.

    Comments, docstrings and blank lines do not change it; a changed statement does.
    """
    digest = hashlib.sha256()
    for module in modules:
        for file in _source_files(module):
            digest.update(f"{module}/{file.name}\n{_normalized_code(file)}\n".encode())
    return digest.hexdigest()[:16]


def _source_files(module: str) -> list[Path]:
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise ValueError(f"{module} is no module with a file")
    origin = Path(spec.origin)
    return sorted(origin.parent.rglob("*.py")) if spec.submodule_search_locations else [origin]


@cache
def _normalized_code(file: Path) -> str:
    tree = ast.parse(file.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and _is_docstring(
            node.body
        ):
            del node.body[0]
    return ast.dump(tree)


def _is_docstring(body: list[ast.stmt]) -> bool:
    first = body[0] if body else None
    return isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)


@cache
def read_owners() -> list[str]:
    """Return the owners of all assets: the setting `owners` of the home that Dagster is started for.

    Services of `up` get them from it (`OWNERS_VARIABLE`). If the settings cannot be read, these are the default owners.
    Each run reports what is wrong with the settings.
    """
    if OWNERS_VARIABLE in os.environ:
        return list(json.loads(os.environ[OWNERS_VARIABLE]))
    try:
        return list(load_settings(locate_home() / "settings.toml").owners)
    except PlatformError as error:
        _log.warning("assets have the default owners: %s", error)
        return list(Settings().owners)


REWRITE_DECISIONS = Table(
    "platform",
    "rewrite_decisions",
    pa.schema(
        [
            column("time", TIMESTAMP, "timestamp of a V1 generation"),
            column("action", pa.string(), "rewrite, skip-too-old, skip-present or missing-data"),
            column("reason", pa.string(), "why the rewrite decided so"),
        ]
    ),
    keys=("time",),
    comment="What the rewrite decided about each V1 generation",
)
"""Stands for the decisions, which no table stores: the rewrite between the V1 and the V2 tables."""

ColumnSources = Mapping[str, Sequence[tuple[Table, str]]]
"""The source columns of each column, as (table, column)."""


def asset_key_from_table(table: Table) -> AssetKey:
    """Return the asset key of a table: its keyspace and name, as in ScyllaDB."""
    return AssetKey([table.keyspace, table.name])


def lineage_edge(table: Table) -> AssetDep:
    """Return a dependency on a partitioned table that the asset graph shows and that makes no partition stale.

    For inputs whose changes mostly leave existing partitions as they are: a new generation changes no row of an older
    one. The mapping names no partition of the input, so Dagster compares no versions along the edge.
    """
    return AssetDep(asset_key_from_table(table), partition_mapping=SpecificPartitionsPartitionMapping([]))


def pool_from_table(table: Table) -> str:
    """Return the pool that lets one step at a time write to a table."""
    return f"{table.keyspace}/{table.name}"


def table_asset(
    table: Table,
    *,
    group: str,
    description: str,
    spark: bool,
    deps: Sequence[AssetKey | AssetDep] = (),
    partitions: PartitionsDefinition | None = None,
    sources: ColumnSources | None = None,
    code: Sequence[str] = (),
    reads: str | None = None,
    freshness: FreshnessPolicy | None = None,
    checks: Sequence[AssetCheckSpec] = (),
    stored: bool = True,
) -> Callable[[Callable[..., Any]], AssetsDefinition]:
    """Return Dagster's `@asset` for a table. `spark`: True if materializing it can need a session.

    `code` names the modules that compute the table and so determine its code version. `reads` is the kind of the
    system outside the home that a materialization reads. `freshness` is for assets that are materialized regularly.
    `checks` are those that a materialization judges itself. `stored`: the table exists in the lake.
    One run handles several partitions.
    """
    make = without_beta_warnings(asset)(
        key=asset_key_from_table(table),
        group_name=group,
        owners=read_owners(),
        kinds={"spark" if spark else "python", *(["deltalake"] if stored else []), *([reads] if reads else [])},
        pool=pool_from_table(table),
        retry_policy=RETRY_POLICY,
        description=f"{table.comment}.\n\n{description}",
        metadata=build_table_metadata(table, sources),
        tags={"keyspace": table.keyspace},
        deps=deps,
        partitions_def=partitions,
        code_version=compute_code_version(*code) if code else None,
        backfill_policy=None if partitions is None else BackfillPolicy.single_run(),
        freshness_policy=freshness,
        check_specs=checks,
    )

    def made(materialize: Callable[..., Any]) -> AssetsDefinition:
        (defined,) = without_beta_warnings(with_source_code_references)([without_beta_warnings(make)(materialize)])
        assert isinstance(defined, AssetsDefinition)
        return defined

    return made


def without_beta_warnings(make: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `make` so that Dagster's beta warnings do not clutter every start. The release of Dagster is pinned."""

    def made(*args: Any, **named: Any) -> Any:
        with catch_warnings():
            simplefilter("ignore", BetaWarning)
            return make(*args, **named)

    return made


def build_table_spec(
    table: Table,
    *,
    group: str,
    description: str,
    deps: Sequence[AssetKey | AssetDep] = (),
    partitions: PartitionsDefinition | None = None,
) -> AssetSpec:
    """Build the spec of a table that assets read but none of them writes."""
    return AssetSpec(
        key=asset_key_from_table(table),
        group_name=group,
        owners=read_owners(),
        kinds={"deltalake"},
        description=f"{table.comment}.\n\n{description}",
        metadata=build_table_metadata(table, None),
        tags={"keyspace": table.keyspace},
        deps=deps,
        partitions_def=partitions,
    )


def build_table_metadata(table: Table, sources: ColumnSources | None) -> dict[str, Any]:
    """Return the metadata known before a table is made: its columns, their lineage and its name."""
    lineage = {} if sources is None else {"dagster/column_lineage": build_column_lineage(sources)}
    return {"dagster/column_schema": build_column_schema(table), "dagster/table_name": table.full_name, **lineage}


def build_column_schema(table: Table) -> TableSchema:
    """Return the columns of a table with their comments, types and nullability."""
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


def build_column_lineage(sources: ColumnSources) -> TableColumnLineage:
    """Return the source columns of a table's columns."""
    return TableColumnLineage(
        deps_by_column={
            column: [TableColumnDep(asset_key=asset_key_from_table(table), column_name=name) for table, name in origins]
            for column, origins in sources.items()
        }
    )


def _type_name(kind: pa.DataType) -> str:
    """Return a type's name as Spark SQL and CQL users know it."""
    if pat.is_list(kind):
        return f"array<{_type_name(kind.value_type)}>"
    if pat.is_struct(kind):
        return f"struct<{', '.join(f'{field.name} {_type_name(field.type)}' for field in kind)}>"
    if pat.is_timestamp(kind):
        return "timestamp"
    names = {"int64": "bigint", "int32": "int", "int8": "tinyint", "bool": "boolean"}
    return names.get(str(kind), str(kind))
