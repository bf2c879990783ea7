"""Schema of a base table: columns, CDC options, row TTL, the properties after WITH, and its log table.

The rules of `expires timestamp TTL` are those of ScyllaDB 2026 (test/cqlpy/test_ttl_row.py). Expired rows stay until
ScyllaDB's own scan removes them, which no script shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, total_ordering
from typing import Any, Literal, NamedTuple
from uuid import UUID

from cdc_platform.clock import DAY_SECONDS, MAX_CDC_TTL_SECONDS, Microseconds, Milliseconds, ms_from_us
from cdc_platform.cql import ast as s
from cdc_platform.cql.alternator import ATTRIBUTES, DECODED_ATTRIBUTES_TYPE, is_alternator_keyspace
from cdc_platform.cql.names import LOG_SUFFIX
from cdc_platform.cql.types import (
    BIGINT,
    BLOB,
    BOOLEAN,
    COUNTER,
    INT,
    SMALLINT,
    TIMESTAMP,
    TIMEUUID,
    TINYINT,
    CqlType,
    ListType,
    MapType,
    SetType,
    Value,
    list_alternatives,
    us_from_timeuuid,
)
from cdc_platform.errors import InputError, NotFound
from cdc_platform.ring import serialize_composite_key

ColumnKind = Literal["partition", "clustering", "static", "regular"]
PreimageMode = Literal["false", "true", "full"]
DeltaMode = Literal["full", "keys"]
LogColumnRole = Literal[
    "stream_id",
    "time",
    "batch_seq_no",
    "operation",
    "ttl",
    "end_of_batch",
    "key",
    "value",
    "deleted",
    "deleted_elements",
]

LOG_PRIMARY_KEY = ("cdc$stream_id", "cdc$time", "cdc$batch_seq_no")
"""The primary key of every log; a partition is a stream."""
DEFAULT_CDC_TTL = DAY_SECONDS
MAX_WRITE_TTL = 20 * 365 * DAY_SECONDS
"""The longest TTL of a write, in seconds: twenty years."""
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
_IMAGES: Mapping[str, PreimageMode] = {"true": "true", "1": "true", "false": "false", "0": "false", "full": "full"}
_DELTAS: Mapping[str, DeltaMode] = {"full": "full", "keys": "keys"}


@dataclass(frozen=True)
class CdcOptions:
    """The options of `WITH cdc = {...}`. `ttl` is in seconds; with 0 the log's rows never expire."""

    enabled: bool = False
    preimage: PreimageMode = "false"
    postimage: bool = False
    delta: DeltaMode = "full"
    ttl: int = DEFAULT_CDC_TTL

    @property
    def has_images(self) -> bool:
        """Return True if the log has rows as they were before a write, or are after it."""
        return self.preimage != "false" or self.postimage

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> CdcOptions:
        """Parse the options of a CQL map, with keys and values in any case; options left out have their default.

        Raises:
            InputError: an option is unknown, or has an invalid value.
        """
        read: dict[str, Any] = {}
        for key, text in options.items():
            name, value = key.lower(), text.lower()
            if name not in _OPTION_READERS:
                raise InputError(f"unknown CDC option {key!r}; the options are {', '.join(_OPTION_READERS)}")
            if name in read:
                raise InputError(f"CDC option {key!r} is given twice")
            read[name] = _OPTION_READERS[name](key, value)
        return cls(**read)


def _parse_choice(choices: Mapping[str, Any], key: str, value: str) -> Any:
    if value not in choices:
        raise InputError(f"{value!r} is no value of CDC option {key!r}; it is one of {', '.join(choices)}")
    return choices[value]


def _parse_cdc_ttl(key: str, value: str) -> int:
    digits = value.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise InputError(f"{value!r} is no value of CDC option {key!r}; it is a number of seconds, 0 for no expiry")
    if value.startswith("-"):
        raise InputError(f"CDC option {key!r} is {value}; it is 0 (no expiry) or more seconds")
    if len(digits) > 10 or int(digits) > MAX_CDC_TTL_SECONDS:
        raise InputError(
            f"CDC option {key!r} is {value}, which is too large; it is at most {MAX_CDC_TTL_SECONDS} seconds"
        )
    return int(digits)


_OPTION_READERS = {
    "enabled": lambda key, value: _parse_choice(_BOOLEANS, key, value),
    "preimage": lambda key, value: _parse_choice(_IMAGES, key, value),
    "postimage": lambda key, value: _parse_choice(_BOOLEANS, key, value),
    "delta": lambda key, value: _parse_choice(_DELTAS, key, value),
    "ttl": _parse_cdc_ttl,
}


CLUSTER_ONLY_OPTIONS = frozenset({"enable_requested", "tablet_merge_blocked"})
"""CDC options that clusters print and no statement sets; they do not affect logs and their rows."""


def explain_unknown_option(options: Mapping[str, str]) -> str | None:
    """Return the error about unknown CDC options that a cluster prints; None if all are known."""
    known = {key: value for key, value in options.items() if key.lower() not in CLUSTER_ONLY_OPTIONS}
    try:
        CdcOptions.parse(known)
    except InputError as error:
        return str(error)
    return None


@dataclass(frozen=True)
class Column:
    """A column of a base table. `descending` is for clustering columns."""

    name: str
    type: CqlType
    kind: ColumnKind = "regular"
    descending: bool = False

    @property
    def is_key(self) -> bool:
        """Return True if it is part of the primary key."""
        return self.kind in ("partition", "clustering")


@total_ordering
class _DescendingKey:
    """A sort key with reversed order."""

    __slots__ = ("key",)

    def __init__(self, key: Any) -> None:
        self.key = key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _DescendingKey) and self.key == other.key

    def __lt__(self, other: _DescendingKey) -> bool:
        return other.key < self.key

    def __hash__(self) -> int:
        return hash(self.key)


class SearchIndex(NamedTuple):
    """An index that is built from the table's CDC log: its name, and its class in lower case."""

    name: str
    class_name: str


@dataclass(frozen=True)
class TableSchema:
    """A base table: its columns with the keys in key order, its CDC options, and its creation time (µs since 1970).

    `dropped` holds the dropped columns: name and the time (µs) until which it cannot be reused. `default_ttl` (s)
    applies to writes without a TTL, 0 for none. `truncated_us` is the time of the last truncation and `log_since_us`
    that of the log's recreation (µs), None if there was none. `row_ttl` is the column by which rows expire.
    `has_old_log` is True if its log existed before the table was defined here, created at `old_log_ms` (ms) if that is
    known. `cdc_by_index` is True if CDC is on because a search index needs it, and no statement has enabled it.
    `cdc_turned_off` is True if a statement has disabled it. `attributes` are those (name, DynamoDB's type) of an
    Alternator table that its views show as columns.
    """

    keyspace: str
    name: str
    columns: tuple[Column, ...]
    cdc: CdcOptions = field(default_factory=CdcOptions)
    created_at_us: Microseconds = Microseconds(0)
    dropped: tuple[tuple[str, Microseconds], ...] = ()
    default_ttl: int = 0
    truncated_us: Microseconds | None = None
    log_since_us: Microseconds | None = None
    row_ttl: str | None = None
    has_old_log: bool = False
    old_log_ms: Milliseconds | None = None
    search_indexes: tuple[SearchIndex, ...] = ()
    cdc_by_index: bool = False
    cdc_turned_off: bool = False
    attributes: tuple[tuple[str, str], ...] = ()

    @property
    def full_name(self) -> str:
        """`keyspace.table`."""
        return f"{self.keyspace}.{self.name}"

    @property
    def has_decoded_attributes(self) -> bool:
        """Return True if it is an Alternator table whose attributes are JSON."""
        return is_alternator_keyspace(self.keyspace) and any(
            column.name == ATTRIBUTES and column.type.cql == DECODED_ATTRIBUTES_TYPE for column in self.columns
        )

    @property
    def log_name(self) -> str:
        """Return the name of its CDC log, in the same keyspace."""
        return self.name + LOG_SUFFIX

    @cached_property
    def partition_key(self) -> tuple[Column, ...]:
        """Return the columns of the partition key, in key order."""
        return self._columns_of_kind("partition")

    @cached_property
    def clustering_key(self) -> tuple[Column, ...]:
        """Return the clustering columns, in key order."""
        return self._columns_of_kind("clustering")

    @cached_property
    def statics(self) -> tuple[Column, ...]:
        """Return the static columns."""
        return self._columns_of_kind("static")

    @cached_property
    def regulars(self) -> tuple[Column, ...]:
        """Return the columns that are neither keys nor static."""
        return self._columns_of_kind("regular")

    @cached_property
    def selected(self) -> tuple[Column, ...]:
        """Return the columns in the order of `SELECT *`: keys, then static ones by name, then the others by name."""
        by_name = [*sorted(self.statics, key=_encoded_name), *sorted(self.regulars, key=_encoded_name)]
        return (*self.partition_key, *self.clustering_key, *by_name)

    @cached_property
    def has_counters(self) -> bool:
        """Return True if a column is a counter."""
        return any(column.type == COUNTER for column in self.columns)

    @cached_property
    def logged(self) -> tuple[LogColumn, ...]:
        """See `get_log_columns`."""
        return tuple(_iterate_log_columns(self))

    @cached_property
    def _by_name(self) -> dict[str, Column]:
        return {column.name: column for column in self.columns}

    def has(self, name: str) -> bool:
        """Return True if a column of that name exists."""
        return name in self._by_name

    def column(self, name: str) -> Column:
        """Return the column of a name; raises NotFound."""
        column = self._by_name.get(name)
        if column is None:
            raise NotFound(
                f"unknown column {name} of {self.full_name}; {list_alternatives(self._by_name)}",
                lacks=f"column {self.full_name}.{name}",
            )
        return column

    def partition_bytes(self, partition_key: Sequence[Value]) -> bytes:
        """Return the serialized partition key (one value per column), which the token is a hash of."""
        columns = self.partition_key
        if len(columns) == 1:
            (value,) = partition_key
            return columns[0].type.to_bytes(value)
        return serialize_composite_key(
            [column.type.to_bytes(value) for column, value in zip(columns, partition_key, strict=True)]
        )

    def clustering_order(self, values: Sequence[Value]) -> tuple[Any, ...]:
        """Return the sort key of rows in a partition, from the values of the clustering columns or a prefix of them."""
        keys = []
        for column, value in zip(self.clustering_key, values, strict=False):
            key = column.type.sort_key(value)
            keys.append(_DescendingKey(key) if column.descending else key)
        return tuple(keys)

    def _columns_of_kind(self, kind: ColumnKind) -> tuple[Column, ...]:
        return tuple(column for column in self.columns if column.kind == kind)


class LogColumn(NamedTuple):
    """A column of a CDC log: name, type, role, and the column of the base table that it belongs to."""

    name: str
    type: CqlType
    role: LogColumnRole
    base: Column | None = None


_METADATA_COLUMNS = (
    LogColumn("cdc$stream_id", BLOB, "stream_id"),
    LogColumn("cdc$time", TIMEUUID, "time"),
    LogColumn("cdc$batch_seq_no", INT, "batch_seq_no"),
    LogColumn("cdc$operation", TINYINT, "operation"),
    LogColumn("cdc$ttl", BIGINT, "ttl"),
    LogColumn("cdc$end_of_batch", BOOLEAN, "end_of_batch"),
)


def get_log_columns(schema: TableSchema) -> list[LogColumn]:
    """Return the columns of a table's log, in order: the log's own, the keys, then those of each other column.

    An atomic column has its value and `cdc$deleted_`; a column of several cells also has `cdc$deleted_elements_`.
    """
    return list(schema.logged)


def _iterate_log_columns(schema: TableSchema) -> Iterator[LogColumn]:
    yield from _METADATA_COLUMNS
    keys = (*schema.partition_key, *schema.clustering_key)
    yield from (LogColumn(key.name, key.type, "key", key) for key in keys)
    for column in schema.selected[len(keys) :]:
        yield from _value_log_columns(column)


def _value_log_columns(column: Column) -> list[LogColumn]:
    columns = [
        LogColumn(column.name, get_logged_type(column.type), "value", column),
        LogColumn(f"cdc$deleted_{column.name}", BOOLEAN, "deleted", column),
    ]
    if column.type.multicell:
        elements = SetType(get_element_key_type(column.type).frozen(), True)
        columns.append(LogColumn(f"cdc$deleted_elements_{column.name}", elements, "deleted_elements", column))
    return columns


def get_logged_type(kind: CqlType) -> CqlType:
    """Return the type of a column in the log: frozen, and lists as maps from their keys."""
    if isinstance(kind, ListType) and kind.multicell:
        return MapType(TIMEUUID, kind.element.frozen(), True)
    return kind.frozen()


def get_element_key_type(kind: CqlType) -> CqlType:
    """Return the key type of a column's cells: map keys, set elements, timeuuids of a list, or field indices."""
    if isinstance(kind, MapType):
        return kind.key
    if isinstance(kind, SetType):
        return kind.element
    return TIMEUUID if isinstance(kind, ListType) else SMALLINT


def get_element_value_type(kind: CqlType, key: Value) -> CqlType | None:
    """Return the value type of a column's cell at `key`; None for sets, whose cells have no value."""
    if isinstance(kind, MapType):
        return kind.value
    if isinstance(kind, ListType):
        return kind.element
    return None if isinstance(kind, SetType) else kind.parts[key]


def _encoded_name(column: Column) -> bytes:
    return column.name.encode()


_STREAM_ID_COLUMN = "cdc$stream_id"


def parse_cdc_options(properties: Iterable[s.TableProperty]) -> CdcOptions | None:
    """Return the CDC options that the properties set; None if they set none."""
    values = [part.value for part in properties if isinstance(part, s.NamedProperty) and part.name == "cdc"]
    if len(values) > 1:
        raise InputError("cdc is set twice; give all of its options in one map")
    return CdcOptions.parse(parse_option_map(values[0])) if values else None


def omits_enabled(properties: Iterable[s.TableProperty]) -> bool:
    """Return True if the properties set CDC options without `enabled`, which turns CDC off in ALTER TABLE."""
    values = [part.value for part in properties if isinstance(part, s.NamedProperty) and part.name == "cdc"]
    pairs = [pair for value in values if isinstance(value, s.MapLiteral) for pair in value.pairs]
    return bool(values) and "enabled" not in ((_option_text(key) or "").lower() for key, _ in pairs)


def explain_cdc_turned_off(table: str) -> str:
    """Explain the effect of ALTER TABLE with CDC options that omit `enabled`."""
    return (
        f"ALTER TABLE {table} WITH cdc sets options without 'enabled', which turns CDC off: the map replaces all CDC "
        "options; write 'enabled': true beside the others to leave it on"
    )


def is_cdc_log(name: str, columns: Iterable[s.ColumnDefinition]) -> bool:
    """Return True if a table of this name and these columns is a CDC log, as DESCRIBE prints one when CDC is off."""
    return name.endswith(LOG_SUFFIX) and _STREAM_ID_COLUMN in (column.name for column in columns)


def get_table_id(properties: Iterable[s.TableProperty]) -> UUID | None:
    """Return the ID given for a new table; None if the properties have none."""
    for part in properties:
        if isinstance(part, s.NamedProperty) and part.name == "id" and isinstance(part.value, s.Constant):
            return UUID(str(part.value.value))
    return None


def creation_ms_from_id(id_: UUID | None) -> Milliseconds | None:
    """Return when a table was created (ms), from the timeuuid that is its ID; None for other IDs."""
    return ms_from_us(us_from_timeuuid(id_)) if id_ is not None and id_.version == 1 else None


def get_default_ttl(properties: Iterable[s.TableProperty]) -> int | None:
    """Return the TTL (s) of writes without one; None if the properties do not set it."""
    terms = [
        part.value for part in properties if isinstance(part, s.NamedProperty) and part.name == "default_time_to_live"
    ]
    if not terms:
        return None
    value = terms[-1].value if isinstance(terms[-1], s.Constant) and terms[-1].kind == "integer" else -1
    if not 0 <= value <= MAX_WRITE_TTL:
        raise InputError(f"default_time_to_live is a number of seconds from 0 to {MAX_WRITE_TTL}")
    return value


def parse_option_map(term: s.Term) -> dict[str, str]:
    """Return a map of options as text, for any kind of constants."""
    pairs = term.pairs if isinstance(term, s.MapLiteral) else () if term == s.SetLiteral(()) else None
    texts = None if pairs is None else [(_option_text(key), _option_text(value)) for key, value in pairs]
    if texts is None or any(None in pair for pair in texts):
        raise InputError("options are a map of texts, as in {'enabled': true}")
    keys = [str(key).lower() for key, _ in texts]
    for key, count in Counter(keys).items():
        if count > 1:
            raise InputError(f"option {key!r} is given {count} times")
    return {str(key): str(value) for key, value in texts}


def _option_text(term: s.Term) -> str | None:
    if not isinstance(term, s.Constant) or term.kind == "null":
        return None
    return str(term.value) if term.kind == "text" else term.text


_ROW_TTL_TYPES = (TIMESTAMP, BIGINT, INT)


def set_row_ttl(schema: TableSchema, columns: Iterable[s.ColumnDefinition]) -> TableSchema:
    """Return the table with the column that is defined with TTL, if there is one; raises InputError."""
    names = [column.name for column in columns if column.row_ttl]
    if len(names) > 1:
        raise InputError(f"{schema.full_name} has more than one TTL column, {', '.join(names)}; leave one of them")
    return _with_row_ttl(schema, names[0]) if names else schema


def alter_row_ttl(schema: TableSchema, name: str | None) -> TableSchema:
    """Return the table after ALTER TABLE ... TTL with a column or NULL.

    A table has one TTL column, which must be removed before another one is set.

    Raises:
        NotFound: no such column exists.
        InputError: the table already has a TTL column, or has none to remove; or the column cannot be one.
    """
    known = schema.row_ttl
    if name is None:
        if known is None:
            raise InputError(f"{schema.full_name} does not have a TTL column; there is nothing to undo")
        return replace(schema, row_ttl=None)
    if known is not None:
        raise InputError(f"{schema.full_name} already has a TTL column, {known}; ALTER TABLE ... TTL NULL first")
    return _with_row_ttl(schema, name)


def drop_lost_row_ttl(schema: TableSchema) -> TableSchema:
    """Return the table without its TTL column, if that was dropped."""
    return schema if schema.row_ttl is None or schema.has(schema.row_ttl) else replace(schema, row_ttl=None)


def _with_row_ttl(schema: TableSchema, name: str) -> TableSchema:
    column = schema.column(name)
    if column.kind != "regular":
        what = "a primary key" if column.is_key else "a static"
        raise InputError(f"Cannot use {what} column as TTL column {name} of {schema.full_name}; take a regular one")
    if column.type not in _ROW_TTL_TYPES:
        raise InputError(f"TTL column {name} is {column.type.cql}; it must be of type timestamp, bigint or int")
    return replace(schema, row_ttl=name)
