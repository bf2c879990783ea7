"""The `Table` declaration, and the columns and constraints that several tables share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import pyarrow as pa

TIMESTAMP = pa.timestamp("us", "UTC")
"""Times of generations (whole milliseconds) and of writes (microseconds), always UTC."""

ALLOWED_FEATURES = frozenset({"appendOnly", "checkConstraints", "invariants"})
"""The only Delta features that a table may need of its writers, none of its readers; every Delta reader has them."""

CHECKPOINT_EVERY = 10
"""Commits from one checkpoint to the next."""

# Deletion vectors are what Delta on Spark would turn on by itself for new tables, and many readers lack them.
_DEFAULT_PROPERTIES: Mapping[str, str] = MappingProxyType(
    {
        "delta.enableDeletionVectors": "false",
        # Who opens a table reads the commits since its last checkpoint, one by one: of a hundred, 80 ms.
        "delta.checkpointInterval": str(CHECKPOINT_EVERY),
    }
)
APPEND_ONLY_PROPERTIES: Mapping[str, str] = MappingProxyType({**_DEFAULT_PROPERTIES, "delta.appendOnly": "true"})
"""Of a table that takes new rows only."""


@dataclass(frozen=True, eq=False)
class Table:
    """A Delta table. Files are in `<lake>/<keyspace>/<name>`.

    `schema` holds a `comment` for every column and says which may be null; `keys` name a row; `constraints` are
    CHECKs in the SQL that DataFusion (deltalake) and Spark both read, and a NULL breaks them. `generation_column` says
    which generation a row belongs to, where it belongs to one: by its UUID or by its time. `follows_from` names the
    tables of which its rows are derived; a table without any is a source, of which its commits alone can tell.
    `of_readers`: it tells of those who read and judge, and of no fact of the cluster. `clustering` are the clustering
    columns that the table has in ScyllaDB, each with whether CQL orders it descending.
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
    of_readers: bool = False
    clustering: tuple[tuple[str, bool], ...] = ()

    def __post_init__(self) -> None:
        named = () if self.generation_column is None else (self.generation_column,)
        unknown = {*self.keys, *self.partition_by, *named} - set(self.schema.names)
        if unknown:
            raise ValueError(f"{self.full_name}: keys or partitions {sorted(unknown)} are no columns")

    @property
    def is_append_only(self) -> bool:
        """Whether rows that are there are never changed or removed."""
        return self.properties.get("delta.appendOnly") == "true"

    @property
    def full_name(self) -> str:
        """`keyspace.name`, as in CQL and in Spark SQL."""
        return f"{self.keyspace}.{self.name}"

    def __repr__(self) -> str:
        return f"Table({self.full_name})"


def array_type(element: pa.DataType) -> pa.ListType:
    """A list under the name that Spark and deltalake both give its element.

    Its elements are never null, but the type doesn't say so: Delta on Spark would not hold it, and deltalake could then
    not read what it let through.
    """
    return pa.list_(pa.field("element", element))


STREAMS_TYPE = array_type(pa.binary())
"""Stream IDs of 16 bytes in shard order: position j is shard j. Never sorted."""


def column(name: str, kind: pa.DataType, comment: str, *, null: bool = False) -> pa.Field:
    """A column with its comment, NOT NULL unless said otherwise."""
    return pa.field(name, kind, nullable=null, metadata={"comment": comment})


IGNORE_MSB_CHECK = "ignore_msb >= 0 AND ignore_msb <= 31"
STREAMS_CHECK = "cardinality(streams) >= 1"


def whole_milliseconds_check(name: str) -> str:
    """The CHECK of a time column that holds whole milliseconds."""
    return f"date_trunc('millisecond', {name}) = {name}"


RANGE_END_COLUMN = column(
    "range_end", pa.int64(), "greatest token of the range, included; the range starts after the one before"
)
STREAMS_COLUMN = column("streams", STREAMS_TYPE, "stream IDs, 16 bytes each, in shard order: position j is shard j")
IGNORE_MSB_COLUMN = column(
    "ignore_msb", pa.int8(), "most significant bits of a token that the owner's sharding ignores"
)
TIME_COLUMN = column("time", TIMESTAMP, "when the generation starts to operate, whole milliseconds")
EXPIRED_COLUMN = column(
    "expired", TIMESTAMP, "when no CDC log can hold rows of it any more; null while one can", null=True
)
