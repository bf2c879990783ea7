"""The data files of a table as the Delta log describes them: paths, rows, bytes, partitions, bounds, and row filters.

No data file is opened, except by `open_parquet`. Readers skip files by the bounds in the log; `BoundsCheck` verifies
those against the rows.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import eq, ge, gt, le, lt, ne
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pat

from cdc_platform.clock import MILLISECOND_NS, MILLISECOND_US, datetime_from_us, us_from_datetime
from cdc_platform.delta import arrow
from cdc_platform.delta.arrow import compute
from cdc_platform.delta.open_table import OpenTable
from cdc_platform.delta.paths import decode_path
from cdc_platform.errors import InputError, StateError
from cdc_platform.storage import StoragePath, parse_path
from cdc_platform.tables import ALLOWED_FEATURES, Table

Filter = tuple[str, str, Any]
"""(column, operator, value); operators `=`, `!=`, `<`, `<=`, `>`, `>=`, `in`, `not in`.

Times are datetimes, UUIDs are UUIDs or text. A null passes no filter.
"""

OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": eq,
    "==": eq,
    "!=": ne,
    "<": lt,
    "<=": le,
    ">": gt,
    ">=": ge,
    "in": lambda value, several: value in several,
    "not in": lambda value, several: value not in several,
}
"""The comparison of each operator."""
_ARROW_COMPARISONS: Mapping[str, Callable[[Any, Any], pa.ChunkedArray]] = {
    "=": compute.equal,
    "==": compute.equal,
    "!=": compute.not_equal,
    "<": compute.less,
    "<=": compute.less_equal,
    ">": compute.greater,
    ">=": compute.greater_equal,
}


def normalize_filters(table: Table, filters: Iterable[Filter]) -> list[Filter]:
    """Return filters with values for Arrow and SQL: aware datetimes in UTC, UUIDs as lower-case text."""
    normal: list[Filter] = []
    for name, operator, value in filters:
        if name not in table.schema.names:
            raise InputError(f"{table.full_name} has no column {name}; it has {', '.join(table.schema.names)}")
        if operator not in OPERATORS:
            raise InputError(f"no filter operator {operator!r}; there are {', '.join(sorted(OPERATORS))}")
        is_list = operator in ("in", "not in")
        normal.append(
            (name, operator, [_normalize_value(item) for item in value] if is_list else _normalize_value(value))
        )
    return normal


def _normalize_value(value: Any) -> Any:
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, datetime):
        return datetime_from_us(us_from_datetime(value))
    return value


def filter_rows(rows: pa.Table, filters: Iterable[Filter]) -> pa.Table:
    """Return the rows that pass all (normal) filters, with SQL semantics."""
    chosen: pa.ChunkedArray | None = None
    for name, operator, value in filters:
        passes = _filter_mask(rows[name], operator, value)
        chosen = passes if chosen is None else compute.and_kleene(chosen, passes)
    return rows if chosen is None else rows.filter(chosen)


def _filter_mask(column: pa.ChunkedArray, operator: str, value: Any) -> pa.ChunkedArray:
    """Return a mask of the values that pass; null counts as no."""
    if operator not in ("in", "not in"):
        return _ARROW_COMPARISONS[operator](column, pa.scalar(value))
    is_member = compute.is_in(column, value_set=pa.array(value, column.type))
    if operator == "in":
        return is_member
    return compute.if_else(compute.or_(column.is_valid(), not value), compute.invert(is_member), False)


def filters_sql(filters: Iterable[Filter]) -> str:
    """Return the SQL condition that all (normal) filters pass."""
    return " AND ".join(_filter_sql(*condition) for condition in filters) or "true"


def _filter_sql(name: str, operator: str, value: Any) -> str:
    if operator in ("in", "not in"):
        inside = ", ".join(_sql_literal(item) for item in value)
        return f"{quote_column(name)} {operator.upper()} ({inside})" if inside else str(operator == "not in").lower()
    return f"{quote_column(name)} {'=' if operator == '==' else operator} {_sql_literal(value)}"


def _sql_literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, datetime):
        return f"arrow_cast('{value.isoformat(timespec='microseconds')}', 'Timestamp(Microsecond, Some(\"UTC\"))')"
    return "'" + str(value).replace("'", "''") + "'"


def quote_column(name: str) -> str:
    """Quote a column's name for SQL."""
    return '"' + name.replace('"', '""') + '"'


_FILE_COLUMNS, _PARTITION_PREFIX = ("path", "num_records", "size_bytes"), "partition."
"""The columns of deltalake's flat log that a listing of files needs, and the prefix of partition columns."""


class DataFile(NamedTuple):
    """A file of a table: its path, rows (0 if the log has no count), bytes and partition values.

    A tuple, since each commit of an old home creates thousands.
    """

    path: str
    rows: int
    bytes: int
    partition: tuple[Any, ...]


STATISTICS_ROUNDING_US = MILLISECOND_US
"""The largest error of a file's least and greatest time in a log: writers truncate them to milliseconds."""


class BoundedFile(NamedTuple):
    """A file with the least and the greatest value of a column in it; None, and 0 `rows`, without statistics."""

    path: str
    low: Any
    high: Any
    rows: int


@dataclass(frozen=True)
class TablePartition:
    """The partition of a table with these values (`key`) in its partition columns, with its rows and bytes."""

    key: tuple[Any, ...]
    rows: int
    bytes: int


def open_parquet(file: StoragePath | str) -> pq.ParquetFile:
    """Open a data file, to be read in parts.

    Spark's INT96 times are read in microseconds, since nanoseconds end in 2262.

    Raises:
        FileNotFoundError: the file does not exist.
    """
    path = parse_path(file) if isinstance(file, str) else file
    return pq.ParquetFile(path.source(), coerce_int96_timestamp_unit="us")


def list_data_files(opened: OpenTable, table: Table, filters: Iterable[Filter] = ()) -> list[DataFile]:
    """List the files that can hold rows which pass the (normal) filters; only partition columns are compared."""
    return list_partition_files(opened, table.partition_by, filters)


def list_partition_files(
    opened: OpenTable, partition_by: Sequence[str], filters: Iterable[Filter] = ()
) -> list[DataFile]:
    """List files as `list_data_files` does, for a table of which only the partition columns are known."""
    filters = list(filters)
    requested = {name: value for name, operator, value in filters if operator == "=" and value is not None}
    if partition_by and len(filters) == len(partition_by) and set(requested) == set(partition_by):
        return _list_one_partition(opened, tuple(partition_by), requested)
    deciding = [
        (partition_by.index(name), OPERATORS[operator], value)
        for name, operator, value in filters
        if name in partition_by
    ]
    all_files = _list_all_files(opened, tuple(partition_by))
    if not deciding:
        return list(all_files)
    return [
        file
        for file in all_files
        if all(
            file.partition[index] is not None and passes(file.partition[index], value)
            for index, passes, value in deciding
        )
    ]


def _list_one_partition(opened: OpenTable, partition_by: tuple[str, ...], values: Mapping[str, Any]) -> list[DataFile]:
    """List the files of one partition by filtering the log's columns; an old home has thousands of others.

    Statistics are not read. The result is cached per version.
    """

    def select() -> list[DataFile]:
        added = _get_add_actions(opened)
        for name in partition_by if added.num_rows else ():
            columns = [
                column_name
                for column_name in added.schema.names
                if column_name in _FILE_COLUMNS or column_name.startswith(_PARTITION_PREFIX)
            ]
            column = added[f"{_PARTITION_PREFIX}{name}"]
            added = added.select(columns).filter(compute.equal(column, pa.scalar(values[name], column.type)))
        return _data_files_from_log(added, partition_by, opened.folder)

    key = ("files", partition_by, *((name, values[name]) for name in partition_by))
    return list(opened.derive(key, select))


def _list_all_files(opened: OpenTable, partition_by: tuple[str, ...]) -> list[DataFile]:
    return opened.derive(
        ("files", partition_by), lambda: _data_files_from_log(_get_add_actions(opened), partition_by, opened.folder)
    )


def _data_files_from_log(added: pa.Table, partition_by: tuple[str, ...], folder: str) -> list[DataFile]:
    columns = (
        [arrow.to_python_values(added[f"{_PARTITION_PREFIX}{name}"]) for name in partition_by] if added.num_rows else []
    )
    keys = list(zip(*columns, strict=True)) if columns else [()] * added.num_rows
    sizes = (_column_or_nulls(added, "num_records"), _column_or_nulls(added, "size_bytes"))
    return [
        DataFile(path, rows or 0, size, key)
        for path, rows, size, key in zip(_absolute_paths(added, folder), *sizes, keys, strict=True)
    ]


def list_paths(opened: OpenTable) -> list[str]:
    """Return the path of each file."""
    return _absolute_paths(_get_add_actions(opened), opened.folder)


def list_sizes(opened: OpenTable) -> list[int]:
    """Return the bytes of each file."""
    return arrow.to_python_values(_get_add_actions(opened)["size_bytes"])


def partitions_from_files(files: Sequence[DataFile]) -> list[TablePartition]:
    """Return each partition with its rows and bytes, in the order of its first file."""
    sizes: dict[tuple[Any, ...], tuple[int, int]] = {}
    for file in files:
        rows, size = sizes.get(file.partition, (0, 0))
        sizes[file.partition] = rows + file.rows, size + file.bytes
    return [TablePartition(partition, rows, size) for partition, (rows, size) in sizes.items()]


def list_bounded_files(opened: OpenTable, name: str) -> list[BoundedFile]:
    """Return each file with the bounds of a column, which are as exact as the writer recorded them."""
    added = _get_add_actions(opened)
    lows, highs, rows = (_column_or_nulls(added, column) for column in (f"min.{name}", f"max.{name}", "num_records"))
    return [
        BoundedFile(path, low, high, count or 0)
        for path, low, high, count in zip(_absolute_paths(added, opened.folder), lows, highs, rows, strict=True)
    ]


def read_file_statistics(opened: OpenTable, paths: Collection[str] | None = None) -> dict[str, pa.Table]:
    """Return what the log says about each file, or about some, by its path: one row of deltalake's flat columns."""
    added = _get_add_actions(opened)
    stored = _absolute_paths(added, opened.folder)
    return {path: added.slice(index, 1) for index, path in enumerate(stored) if paths is None or path in paths}


def _get_add_actions(opened: OpenTable) -> pa.Table:
    """Return everything in Delta's log about each file."""
    return opened.derive("add actions", lambda: pa.table(opened.delta.get_add_actions(flatten=True)))


def _absolute_paths(added: pa.Table, folder: str) -> list[str]:
    # String concatenation takes a tenth of the time of joining StoragePaths.
    inside = f"{parse_path(folder)}/"
    return [inside + decode_path(path) for path in arrow.to_python_values(added["path"])]


def _column_or_nulls(added: pa.Table, column: str) -> list[Any]:
    """Return a column of the log for each file; None throughout if no file has it."""
    return arrow.to_python_values(added[column]) if column in added.schema.names else [None] * added.num_rows


def list_unsupported_features(opened: OpenTable) -> list[str]:
    """List the reader features that need more than the data files; the platform never enables them."""
    return sorted(set(opened.delta.protocol().reader_features or ()) - ALLOWED_FEATURES)


def refuse_unsupported_features(table: Table, opened: OpenTable) -> None:
    """Raise a StateError if a table has reader features such as deletion vectors or column mapping.

    Without these features the data files hold the rows as they are.
    """
    foreign = list_unsupported_features(opened)
    if foreign:
        raise StateError(
            f"{table.full_name} has Delta features that the platform never enables: {', '.join(foreign)}; "
            "drop them with ALTER TABLE ... DROP FEATURE"
        )


_BOUNDED_TYPES = (
    pat.is_integer,
    pat.is_floating,
    pat.is_boolean,
    pat.is_string,
    pat.is_temporal,
)
"""The types whose bounds in the log mean the same in every engine."""
_ROUNDING_BY_UNIT = {"us": MILLISECOND_US, "ns": MILLISECOND_NS}
"""Spark truncates times to milliseconds, also the greatest one; its readers allow for that."""


class BoundsCheck:
    """Compare the rows of one file with the log: the least and greatest value and the null count of each column.

    `statistics` is the file's row in deltalake's flat columns.
    """

    def __init__(self, statistics: pa.Table) -> None:
        self._statistics = {name: statistics[name][0] for name in statistics.schema.names}
        self._outside: dict[str, str] = {}
        self._nulls: dict[str, int] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Add some of the file's rows to the check."""
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if pat.is_nested(column.type):
                continue
            self._nulls[name] = self._nulls.get(name, 0) + column.null_count
            if name in self._outside or not any(is_one(column.type) for is_one in _BOUNDED_TYPES):
                continue
            low, high = (self._bound(f"{end}.{name}", column.type) for end in ("min", "max"))
            if (low is None and high is None) or column.null_count == len(column):
                continue
            extremes = compute.min_max(column)
            least, greatest = _to_comparable(extremes["min"]), _to_comparable(extremes["max"])
            if (low is not None and least < low) or (high is not None and greatest > high + _get_rounding(column.type)):
                self._outside[name] = f"{name} has values outside the bounds"

    def describe_mismatch(self) -> str | None:
        """Return a description of the first mismatch among the rows seen so far; None if there is none."""
        for name, count in self._nulls.items():
            expected = self._statistics.get(f"null_count.{name}")
            if expected is not None and expected.is_valid and expected.as_py() != count:
                self._outside.setdefault(name, f"{name} has {count} nulls, not the {expected.as_py()}")
        return next((self._outside[name] for name in sorted(self._outside)), None)

    def _bound(self, name: str, kind: pa.DataType) -> Any:
        bound = self._statistics.get(name)
        return None if bound is None or not bound.is_valid else _to_comparable(bound.cast(kind))


def _to_comparable(value: pa.Scalar) -> Any:
    """Return a value that compares with others of its column; times as numbers, as Python's end with the year 9999."""
    return value.value if pat.is_temporal(value.type) else value.as_py()


def _get_rounding(kind: pa.DataType) -> Any:
    """Return the possible error of a greatest value, as something that can be added to it."""
    if pat.is_timestamp(kind):
        return _ROUNDING_BY_UNIT.get(kind.unit, 0)
    return "" if pat.is_string(kind) else 0
