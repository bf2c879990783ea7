"""The data files of a table as the Delta log describes them: paths, rows, bytes, partitions, bounds, and row filters.

No data file is opened, except by `open_parquet`. Only this module knows how Delta encodes paths. Readers skip files
by the bounds in the log; `BoundsCheck` verifies those against the rows.
"""

from __future__ import annotations

import os
import re
import tempfile
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from operator import eq, ge, gt, le, lt, ne
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pat
from deltalake import DeltaTable

from cdc_platform.clock import MILLISECOND_NS, MILLISECOND_US, datetime_from_us, us_from_datetime
from cdc_platform.delta import arrow
from cdc_platform.delta.arrow import compute
from cdc_platform.errors import InputError, StateError
from cdc_platform.home import local_state_folder
from cdc_platform.storage import StoragePath, get_storage_options, parse_path
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
"""What an operator asks of a value."""
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
    """The filters with values as Arrow and SQL want them: aware datetimes in UTC, UUIDs as lower-case text."""
    normal: list[Filter] = []
    for name, operator, value in filters:
        if name not in table.schema.names:
            raise InputError(f"{table.full_name} has no column {name}; it has {', '.join(table.schema.names)}")
        if operator not in OPERATORS:
            raise InputError(f"no filter operator {operator!r}; there are {', '.join(sorted(OPERATORS))}")
        several = operator in ("in", "not in")
        normal.append(
            (name, operator, [_normalize_value(each) for each in value] if several else _normalize_value(value))
        )
    return normal


def _normalize_value(value: Any) -> Any:
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, datetime):
        return datetime_from_us(us_from_datetime(value))
    return value


def filter_rows(rows: pa.Table, filters: Iterable[Filter]) -> pa.Table:
    """The rows that pass all (normal) filters, as SQL would have it."""
    chosen: pa.ChunkedArray | None = None
    for name, operator, value in filters:
        passes = _filter_mask(rows[name], operator, value)
        chosen = passes if chosen is None else compute.and_kleene(chosen, passes)
    return rows if chosen is None else rows.filter(chosen)


def _filter_mask(column: pa.ChunkedArray, operator: str, value: Any) -> pa.ChunkedArray:
    """For each value whether it passes; null counts as no."""
    if operator not in ("in", "not in"):
        return _ARROW_COMPARISONS[operator](column, pa.scalar(value))
    found = compute.is_in(column, value_set=pa.array(value, column.type))
    if operator == "in":
        return found
    return compute.if_else(compute.or_(column.is_valid(), not value), compute.invert(found), False)


def filters_sql(filters: Iterable[Filter]) -> str:
    """The condition in SQL that all (normal) filters are passed."""
    return " AND ".join(_filter_sql(*each) for each in filters) or "true"


def _filter_sql(name: str, operator: str, value: Any) -> str:
    if operator in ("in", "not in"):
        inside = ", ".join(_sql_literal(each) for each in value)
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
    """A column's name in SQL."""
    return '"' + name.replace('"', '""') + '"'


_CachedValue = TypeVar("_CachedValue")
LOG_FOLDER = "_delta_log"
"""The folder of a table's commits, beside its data files."""
_FILE_COLUMNS, _PARTITION_PREFIX = ("path", "num_records", "size_bytes"), "partition."
"""What the log's columns are called that tell of a file: by their names, and by how the names of others begin."""


class DataFile(NamedTuple):
    """A file of a table: its path, rows (0 where the log does not say) and bytes, its values of partition columns.

    A tuple: of an old home's thousands each commit makes new ones.
    """

    path: str
    rows: int
    bytes: int
    partition: tuple[Any, ...]


STATISTICS_ROUNDING_US = MILLISECOND_US
"""So much the least and the greatest time of a file can be off in a log: its writers cut them off at milliseconds."""


class BoundedFile(NamedTuple):
    """A file with the least and the greatest value of a column in it; None, and 0 `rows`, without statistics."""

    path: str
    low: Any
    high: Any
    rows: int


@dataclass(frozen=True)
class TablePartition:
    """The part of a table that has these values (`key`) in its partition columns, by its files."""

    key: tuple[Any, ...]
    rows: int
    bytes: int


class ForeignPath(ValueError):
    """Delta's log names a file that does not lie in its table's folder."""


def decode_path(written: str) -> str:
    """A path below the table as the file system has it: in Delta's log it is quoted as in a URL.

    That is on top of what is quoted in the names of the folders.

    Raises:
        ForeignPath: the path is absolute, an address, or leads out of the folder. Delta would let a log name such a
            file; the platform never writes one, and neither reads, copies nor removes files outside its tables.
    """
    return _decode_unusual_path(written) if _UNUSUAL_PATH.search(written) else written


_UNUSUAL_PATH = re.compile(r"[%:\\\0]|\.\.|^/|^$")
"""What only a path can have that is quoted or leads elsewhere: nearly all are told apart by one search."""
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


@lru_cache(maxsize=1 << 13)
def _decode_unusual_path(written: str) -> str:
    """The same, which is asked of an old home's thousands by each commit."""
    plain = unquote(written)
    if _ADDRESS.match(written) or plain[:1] in ("", "/") or "\0" in plain or ".." in plain.split("/"):
        raise ForeignPath(f"Delta's log names a file that is not in the table's folder: {written!r}")
    return plain


def open_parquet(file: StoragePath | str) -> pq.ParquetFile:
    """A data file, to be read in parts; times as Spark writes them too, which would be nanoseconds that end in 2262.

    Raises:
        FileNotFoundError: there is none.
    """
    place = parse_path(file) if isinstance(file, str) else file
    return pq.ParquetFile(place.source(), coerce_int96_timestamp_unit="us")


def open_table(folder: str, version: int | None = None) -> DeltaTable:
    """A table at a version, its newest if none is named, as it is opened for one look.

    Raises:
        TableNotFoundError: there is none.
    """
    return DeltaTable(folder, version=version, storage_options=get_storage_options(folder))


def read_rows_at_version(folder: str, version: int) -> pa.Table:
    """All rows of a version of a table, in the columns that it had then, in no order; raises what `opened` does."""
    # Takes half as long to load as everything else here.
    from pyarrow import dataset

    # Spark's timestamps would be read as nanoseconds, which end in 2262.
    options = dataset.ParquetReadOptions(coerce_int96_timestamp_unit="us")
    table = open_table(folder, version)
    list_paths(table)  # deltalake would read files outside the folder
    return table.to_pyarrow_dataset(parquet_read_options=options).to_table()


@lru_cache(maxsize=256)
def get_table_folder(lake: StoragePath, keyspace: str, name: str) -> str:
    """The folder of a table of a lake: its path, or its address in a store. It is asked for at each look."""
    return str(lake / f"{keyspace}/{name}")


def get_draft_folder(table: StoragePath) -> Path:
    """Where what goes into a table is written first: beside it, or in this machine's own part of a home in a store.

    As `get_writable_folder` where that part cannot be made.
    """
    if table.here is not None:
        return table.here.parent
    folder = local_state_folder(table.folder.folder.folder)
    with suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return get_writable_folder(folder)


def get_writable_folder(folder: Path) -> Path:
    """A folder, or of a process that may not write there, as one on a worker, where it has its temporary files."""
    return folder if os.access(folder, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())


def folder_from_opened(opened: DeltaTable) -> str:
    """The folder of an opened table: its path, or its address in a store."""
    address = urlsplit(opened.table_uri)
    return unquote(address.path) if address.scheme in ("", "file") else opened.table_uri.rstrip("/")


def list_data_files(opened: DeltaTable, table: Table, folder: str, filters: Iterable[Filter] = ()) -> list[DataFile]:
    """The files that can hold rows which pass the (normal) filters; those on partition columns are what decides."""
    return list_partition_files(opened, table.partition_by, folder, filters)


def list_partition_files(
    opened: DeltaTable, partition_by: Sequence[str], folder: str, filters: Iterable[Filter] = ()
) -> list[DataFile]:
    """The same, of a table of which only these are known: the columns that it is partitioned by."""
    filters = list(filters)
    asked = {name: value for name, operator, value in filters if operator == "=" and value is not None}
    if partition_by and len(filters) == len(partition_by) and set(asked) == set(partition_by):
        return _list_one_partition(opened, tuple(partition_by), folder, asked)
    deciding = [
        (partition_by.index(name), OPERATORS[operator], value)
        for name, operator, value in filters
        if name in partition_by
    ]
    every = _list_all_files(opened, tuple(partition_by), folder)
    if not deciding:
        return list(every)
    return [
        file
        for file in every
        if all(
            file.partition[place] is not None and passes(file.partition[place], value)
            for place, passes, value in deciding
        )
    ]


def _list_one_partition(
    opened: DeltaTable, partition_by: tuple[str, ...], folder: str, values: Mapping[str, Any]
) -> list[DataFile]:
    """The files of one partition, found in the log's columns: a home that is old has thousands of others.

    Of those only what is asked of a file is taken along, without its statistics; and a version is asked once.
    """

    def tell() -> list[DataFile]:
        added = _get_add_actions(opened)
        for name in partition_by if added.num_rows else ():
            told = [each for each in added.schema.names if each in _FILE_COLUMNS or each.startswith(_PARTITION_PREFIX)]
            column = added[f"{_PARTITION_PREFIX}{name}"]
            added = added.select(told).filter(compute.equal(column, pa.scalar(values[name], column.type)))
        return _data_files_from_log(added, partition_by, folder)

    return list(
        _cache_per_version(opened, (partition_by, folder, *((name, values[name]) for name in partition_by)), tell)
    )


def _list_all_files(opened: DeltaTable, partition_by: tuple[str, ...], folder: str) -> list[DataFile]:
    """All files of an opened version, told from the log once."""
    return _cache_per_version(
        opened, (partition_by, folder), lambda: _data_files_from_log(_get_add_actions(opened), partition_by, folder)
    )


def _data_files_from_log(added: pa.Table, partition_by: tuple[str, ...], folder: str) -> list[DataFile]:
    columns = (
        [arrow.to_python_values(added[f"{_PARTITION_PREFIX}{name}"]) for name in partition_by] if added.num_rows else []
    )
    keys = list(zip(*columns, strict=True)) if columns else [()] * added.num_rows
    told = (_column_or_nulls(added, "num_records"), _column_or_nulls(added, "size_bytes"))
    return [
        DataFile(path, rows or 0, size, key)
        for path, rows, size, key in zip(_absolute_paths(added, folder), *told, keys, strict=True)
    ]


def list_paths(opened: DeltaTable) -> list[str]:
    """The path of each file."""
    return _absolute_paths(_get_add_actions(opened), folder_from_opened(opened))


def list_sizes(opened: DeltaTable) -> list[int]:
    """The bytes of each file."""
    return arrow.to_python_values(_get_add_actions(opened)["size_bytes"])


def partitions_from_files(files: Sequence[DataFile]) -> list[TablePartition]:
    """What each slice of a table holds, in the order in which the files name them first."""
    found: dict[tuple[Any, ...], TablePartition] = {}
    for file in files:
        so_far = found.get(file.partition, TablePartition(file.partition, 0, 0))
        found[file.partition] = TablePartition(file.partition, so_far.rows + file.rows, so_far.bytes + file.bytes)
    return list(found.values())


def list_bounded_files(opened: DeltaTable, folder: str, name: str) -> list[BoundedFile]:
    """Each file with the bounds of a column, which are as exact as who wrote them was."""
    added = _get_add_actions(opened)
    lows, highs, rows = (_column_or_nulls(added, column) for column in (f"min.{name}", f"max.{name}", "num_records"))
    return [
        BoundedFile(path, low, high, count or 0)
        for path, low, high, count in zip(_absolute_paths(added, folder), lows, highs, rows, strict=True)
    ]


def read_file_statistics(opened: DeltaTable, folder: str) -> dict[str, pa.Table]:
    """All that Delta's log says of each file, by its path: one line of deltalake's flat columns."""
    added = _get_add_actions(opened)
    return {path: added.slice(place, 1) for place, path in enumerate(_absolute_paths(added, folder))}


def _get_add_actions(opened: DeltaTable) -> pa.Table:
    """What Delta's log says of each file, which is asked once a version."""
    return _cache_per_version(opened, (), lambda: pa.table(opened.get_add_actions(flatten=True)))


def _cache_per_version(opened: DeltaTable, of: object, tell: Callable[[], _CachedValue]) -> _CachedValue:
    """What an opened version tells of something, which is asked of it once."""
    version, known = vars(opened).get("_told", (None, {}))
    if version != opened.version():
        version, known = vars(opened)["_told"] = opened.version(), {}
    if of not in known:
        known[of] = tell()
    return known[of]


def _absolute_paths(added: pa.Table, folder: str) -> list[str]:
    # As the place names them, in a tenth of the time.
    inside = f"{parse_path(folder)}/"
    return [inside + decode_path(path) for path in arrow.to_python_values(added["path"])]


def _column_or_nulls(added: pa.Table, column: str) -> list[Any]:
    """What the log says of each file; None throughout where no file has it."""
    return arrow.to_python_values(added[column]) if column in added.schema.names else [None] * added.num_rows


def list_unsupported_features(opened: DeltaTable) -> list[str]:
    """The features with which a reader needs more than the files, and which the platform never turns on."""
    return sorted(set(opened.protocol().reader_features or ()) - ALLOWED_FEATURES)


def refuse_unsupported_features(table: Table, opened: DeltaTable) -> None:
    """Files hold the rows as they are only in a table without deletion vectors and column mapping."""
    foreign = list_unsupported_features(opened)
    if foreign:
        raise StateError(
            f"{table.full_name} has Delta features that the platform never turns on: {', '.join(foreign)}; "
            "drop them with ALTER TABLE ... DROP FEATURE"
        )


_BOUNDED_TYPES = (
    pat.is_integer,
    pat.is_floating,
    pat.is_boolean,
    pat.is_string,
    pat.is_temporal,
)
"""Which types the log has bounds of that say the same in every engine."""
_ROUNDING_BY_UNIT = {"us": MILLISECOND_US, "ns": MILLISECOND_NS}
"""Spark cuts times off behind the millisecond, also of the greatest one, which its readers know."""


class BoundsCheck:
    """Of one file, column by column: the least and the greatest value, and how many are null.

    `said`: the one line that the log has of the file, in deltalake's flat names.
    """

    def __init__(self, said: pa.Table) -> None:
        self._said = {name: said[name][0] for name in said.schema.names}
        self._outside: dict[str, str] = {}
        self._nulls: dict[str, int] = {}

    def see(self, batch: pa.RecordBatch) -> None:
        """Take in some of the file's rows."""
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if pat.is_nested(column.type):
                continue
            self._nulls[name] = self._nulls.get(name, 0) + column.null_count
            if name in self._outside or not any(is_one(column.type) for is_one in _BOUNDED_TYPES):
                continue
            low, high = (self._bound(f"{end}.{name}", column.type) for end in ("min", "max"))
            if (low is None and high is None) or column.null_count == len(column):
                continue
            found = compute.min_max(column)
            least, greatest = _to_comparable(found["min"]), _to_comparable(found["max"])
            if (low is not None and least < low) or (high is not None and greatest > high + _get_rounding(column.type)):
                self._outside[name] = f"{name} has values outside the bounds"

    def wrong(self) -> str | None:
        """What does not hold of the rows that were taken in, in words; None where all does."""
        for name, count in self._nulls.items():
            due = self._said.get(f"null_count.{name}")
            if due is not None and due.is_valid and due.as_py() != count:
                self._outside.setdefault(name, f"{name} has {count} nulls, not the {due.as_py()}")
        return next((self._outside[name] for name in sorted(self._outside)), None)

    def _bound(self, name: str, kind: pa.DataType) -> Any:
        said = self._said.get(name)
        return None if said is None or not said.is_valid else _to_comparable(said.cast(kind))


def _to_comparable(value: pa.Scalar) -> Any:
    """A value by which others of its column can be compared; times as numbers, as Python's end with the year 9999."""
    return value.value if pat.is_temporal(value.type) else value.as_py()


def _get_rounding(kind: pa.DataType) -> Any:
    """By how much a greatest value may be less than it is, as something that can be added to it."""
    if pat.is_timestamp(kind):
        return _ROUNDING_BY_UNIT.get(kind.unit, 0)
    return "" if pat.is_string(kind) else 0
