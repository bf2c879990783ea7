"""The `Table` declaration, and the columns and constraints that several tables share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import pyarrow as pa

TIMESTAMP = pa.timestamp("us", "UTC")
"""Times of generations (whole milliseconds) and of writes (microseconds), always UTC."""

ALLOWED_FEATURES = frozenset({"appendOnly", "checkConstraints", "invariants"})
"""The only Delta features that a table may require, from writers only; every Delta reader can read it."""

CHECKPOINT_EVERY = 10
"""The number of commits between checkpoints."""

# Delta on Spark would enable deletion vectors for new tables by default, and many readers do not support them.
_DEFAULT_PROPERTIES: Mapping[str, str] = MappingProxyType(
    {
        "delta.enableDeletionVectors": "false",
        # Opening a table reads the commits since its last checkpoint one by one: 80 ms for a hundred.
        "delta.checkpointInterval": str(CHECKPOINT_EVERY),
    }
)
APPEND_ONLY_PROPERTIES: Mapping[str, str] = MappingProxyType({**_DEFAULT_PROPERTIES, "delta.appendOnly": "true"})
"""The properties of an append-only table."""


@dataclass(frozen=True, eq=False)
class Table:
    """The declaration of a Delta table. Its files are in `<lake>/<keyspace>/<name>`.

    `schema` has a `comment` for every column and its nullability. `keys` identify a row. `constraints` are CHECKs in
    the SQL that DataFusion (deltalake) and Spark both parse; a NULL violates them. `generation_column` is the column
    that names the generation of a row, by UUID or by time, if rows belong to generations. `follows_from` names the
    tables from which its rows are derived; a table without any is a source, and only its own commits explain its rows.
    `about_readers` marks tables about readers and checks, which hold no fact of the cluster. `clustering` are the
    clustering columns of the table in ScyllaDB, each with True if CQL orders it descending. `part_by` names the columns
    that tell the parts of a table without Delta partitions apart: one generation, node, table or hour is one part.
    """

    keyspace: str
    name: str
    schema: pa.Schema
    keys: tuple[str, ...]
    comment: str
    partition_by: tuple[str, ...] = ()
    constraints: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=lambda: _DEFAULT_PROPERTIES)
    generation_column: str | None = None
    follows_from: tuple[str, ...] = ()
    about_readers: bool = False
    clustering: tuple[tuple[str, bool], ...] = ()
    part_by: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        named = () if self.generation_column is None else (self.generation_column,)
        unknown = {*self.keys, *self.partition_by, *self.part_by, *named} - set(self.schema.names)
        if unknown:
            raise ValueError(f"{self.full_name}: keys or partitions {sorted(unknown)} are no columns")

    @property
    def is_append_only(self) -> bool:
        """True if rows are never changed or removed."""
        return self.properties.get("delta.appendOnly") == "true"

    @property
    def part_columns(self) -> tuple[str, ...]:
        """The columns whose values name a part of the table: its Delta partition, or its part by declaration."""
        return self.partition_by or self.part_by

    @property
    def full_name(self) -> str:
        """`keyspace.name`, as in CQL and in Spark SQL."""
        return f"{self.keyspace}.{self.name}"

    def __repr__(self) -> str:
        return f"Table({self.full_name})"


def array_type(element: pa.DataType) -> pa.ListType:
    """Return a list type whose element has the name that Spark and deltalake both use.

    Elements are never null, but the type doesn't declare it: Delta on Spark would not enforce it, and deltalake could
    then not read a null that Spark let through.
    """
    return pa.list_(pa.field("element", element))


STREAMS_TYPE = array_type(pa.binary())
"""Stream IDs of 16 bytes in shard order: position j is shard j. Never sorted."""


def column(name: str, kind: pa.DataType, comment: str, *, null: bool = False) -> pa.Field:
    """Return a column with its comment, NOT NULL unless `null` is set."""
    return pa.field(name, kind, nullable=null, metadata={"comment": comment})


IGNORE_MSB_CHECK = "ignore_msb >= 0 AND ignore_msb <= 31"
STREAMS_CHECK = "cardinality(streams) >= 1"


def whole_milliseconds_check(name: str) -> str:
    """Return the CHECK that a time column has whole milliseconds."""
    return f"date_trunc('millisecond', {name}) = {name}"


RANGE_END_COLUMN = column(
    "range_end", pa.int64(), "last token of the range, included; the range starts after the preceding range end"
)
STREAMS_COLUMN = column("streams", STREAMS_TYPE, "stream IDs, 16 bytes each, in shard order: position j is shard j")
IGNORE_MSB_COLUMN = column(
    "ignore_msb", pa.int8(), "most significant bits of a token that the owner's sharding ignores"
)
TIME_COLUMN = column("time", TIMESTAMP, "time at which the generation starts to operate, in whole milliseconds")
EXPIRED_COLUMN = column(
    "expired", TIMESTAMP, "time from which on no CDC log can hold its rows; null while one can", null=True
)
