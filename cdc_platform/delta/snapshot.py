"""Versions of tables as Arrow datasets, for readers that bring their own query engine.

Only the log is read until the dataset is scanned.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, reduce
from operator import and_
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from deltalake.exceptions import TableNotFoundError

from cdc_platform.clock import Microseconds, format_us, us_from_ms
from cdc_platform.delta import files
from cdc_platform.delta.errors import translate_errors
from cdc_platform.delta.lake import Lake
from cdc_platform.delta.open_table import OpenTable, open_table
from cdc_platform.delta.paths import decode_path
from cdc_platform.errors import NotFound, StateError
from cdc_platform.storage import StoragePath, get_storage_options, parse_path
from cdc_platform.tables import Table

if TYPE_CHECKING:
    from pyarrow import dataset as arrow_dataset

# With other features (deletion vectors, column mapping) the data files alone do not determine the rows.
_READABLE_FEATURES = frozenset({"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"})
# Limits of a scan: files open at once, and batches read ahead in each. The defaults, 4 files and 16 batches of 131,072
# rows, take gigabytes if rows have lists of streams.
_FILES_AHEAD, _BATCHES_AHEAD, _ROWS_A_BATCH = 2, 2, 1 << 15

_TIME_TYPES = frozenset({pa.timestamp("us"), pa.timestamp("us", "UTC")})
_MAX_EXACT_US = 1 << 62
"""Times (µs) from here on get no bounds, since rounding would overflow."""


class SnapshotFile(NamedTuple):
    """A data file: its path in the table's folder, its partition values, and the bounds of its times.

    `times` has the least and the greatest value (in the unit of the column) of the columns without nulls in the file.
    """

    path: str
    values: dict[str, Any]
    times: dict[str, tuple[int, int]]


@dataclass(frozen=True)
class Snapshot:
    """A version of a table: its columns, its files.

    `unreadable_features` are the Delta features that need more than the data files to read the rows.
    """

    table: Table
    version: int
    folder: StoragePath
    schema: pa.Schema
    files: tuple[SnapshotFile, ...]
    unreadable_features: tuple[str, ...] = ()

    def dataset(self) -> arrow_dataset.Dataset:
        """Return the rows as a dataset that can be scanned any number of times.

        Row groups that a filter excludes stay unread; files that it excludes by partition or time are not opened.

        Raises:
            StateError: the table has a feature that takes more than its files to read.
        """
        if self.unreadable_features:
            raise StateError(
                f"{self.table.full_name} has the Delta feature {', '.join(self.unreadable_features)}, which this "
                "reader does not know; read it on Spark (--spark), or with another Delta reader"
            )
        arrow = _import_dataset()
        system, folder = _file_system(self.folder)
        # Spark writes INT96 times, which pyarrow would read as nanoseconds.
        reading = arrow.ParquetFileFormat(read_options=arrow.ParquetReadOptions(coerce_int96_timestamp_unit="us"))
        fragments = [
            reading.make_fragment(f"{folder}{part.path}", system, partition_expression=self._partition_expression(part))
            for part in self.files
        ]
        return _get_bounded_dataset_class()(fragments, self.schema, reading, system)

    def find_damage(self) -> str | None:
        """Describe the first file that is missing or cannot be read to its end; None if all is well.

        This reads every file, so call it only after a query has failed.
        """
        for part in self.files:
            message = _find_damage(self.folder / part.path)
            if message is not None:
                return f"{self.table.full_name}: {self.folder / part.path} {message}"
        return None

    def _partition_expression(self, part: SnapshotFile) -> arrow_dataset.Expression | None:
        """Return an expression that holds for every row of a file."""
        field = _import_dataset().field
        conditions = [
            field(name).is_null() if value is None else field(name) == pa.scalar(value, self.schema.field(name).type)
            for name, value in part.values.items()
        ]
        for name, (low, high) in part.times.items():
            low, high = (pa.scalar(at, self.schema.field(name).type) for at in (low, high))
            conditions += [field(name) >= low, field(name) <= high]
        return reduce(and_, conditions) if conditions else None


def read_newest_snapshot(lake: Lake, table: Table) -> Snapshot | None:
    """Return the newest snapshot of a table; None if the table does not exist.

    Raises:
        StateError: its log is damaged.
    """
    opened = _open_newest(lake, table)
    return None if opened is None else _make_snapshot(lake, table, opened)


def read_snapshot_at_version(lake: Lake, table: Table, version: int) -> Snapshot:
    """Return the snapshot of a version, in the columns of that version.

    Raises:
        NotFound: the version does not exist, or not any more.
        StateError: as `read_newest_snapshot`.
    """
    opened = _open_newest(lake, table)
    if opened is None:
        raise NotFound(f"{table.full_name} does not exist in this home, so it has no version {version}")
    if version > opened.version():
        raise NotFound(f"{table.full_name} has no version {version}; its newest is {opened.version()}")
    return _read_at_version(lake, table, opened, version)


def read_snapshot_at_time(lake: Lake, table: Table, at_us: Microseconds) -> Snapshot | None:
    """Return the newest snapshot committed at `at_us` (µs) or before; None if the table did not exist then.

    The times in the commits come from the clocks of the machines that made them.

    Raises:
        NotFound: the log no longer goes back to that time.
        StateError: as `read_newest_snapshot`.
    """
    opened = _open_newest(lake, table)
    if opened is None:
        return None
    commits = sorted((entry["version"], entry["timestamp"]) for entry in opened.delta.history() if "timestamp" in entry)
    newest = max((version for version, ms in commits if us_from_ms(ms) <= at_us), default=None)
    if newest is not None:
        return _read_at_version(lake, table, opened, newest)
    if commits and commits[0][0] == 0:
        return None
    raise NotFound(
        f"the log of {table.full_name} no longer goes back to {format_us(at_us)}; its oldest commit here is version"
        f" {commits[0][0] if commits else opened.version()}"
    )


def _open_newest(lake: Lake, table: Table) -> OpenTable | None:
    with translate_errors(f"opening {table.full_name}"):
        try:
            return open_table(lake.path(table))
        except TableNotFoundError:
            return None


def _read_at_version(lake: Lake, table: Table, opened: OpenTable, version: int) -> Snapshot:
    if version != opened.version():
        with translate_errors(f"opening version {version} of {table.full_name}"):
            opened = open_table(lake.path(table), version)
    snapshot = _make_snapshot(lake, table, opened)
    missing = next((part.path for part in snapshot.files if (snapshot.folder / part.path).stat() is None), None)
    if missing is not None:
        raise NotFound(
            f"version {version} of {table.full_name} cannot be read any more: {snapshot.folder / missing} is gone"
        )
    return snapshot


def _make_snapshot(lake: Lake, table: Table, opened: OpenTable) -> Snapshot:
    with translate_errors(f"opening {table.full_name}"):
        added = pa.table(opened.delta.get_add_actions(flatten=True))
        names = opened.partition_columns()
        schema = opened.schema()
        paths = list(map(decode_path, added["path"].to_pylist())) if added.num_rows else []
    columns = [added[f"partition.{name}"].to_pylist() if added.num_rows else [] for name in names]
    values = zip(*columns, strict=True) if names else ((),) * added.num_rows
    named = (dict(zip(names, row, strict=True)) for row in values)
    parts = tuple(map(SnapshotFile, paths, named, _read_time_bounds(added, schema)))
    return Snapshot(
        table, opened.version(), parse_path(lake.path(table)), schema, parts, list_unreadable_features(opened)
    )


def _read_time_bounds(added: pa.Table, schema: pa.Schema) -> list[dict[str, tuple[int, int]]]:
    """Return the bounds of the times in each file, by column, from the log."""
    bounds: list[dict[str, tuple[int, int]]] = [{} for _ in range(added.num_rows)]
    for column in schema:
        statistics = [f"{what}.{column.name}" for what in ("min", "max", "null_count")]
        if column.type not in _TIME_TYPES or not set(statistics) <= set(added.schema.names):
            continue
        lows, highs, nulls = (
            added[name].cast(kind).cast(pa.int64()).to_pylist()
            for name, kind in zip(statistics, (column.type, column.type, pa.int64()), strict=True)
        )
        for times, low, high, absent in zip(bounds, lows, highs, nulls, strict=True):
            if absent == 0 and low is not None and high is not None and max(-low, high) < _MAX_EXACT_US:
                times[column.name] = low - files.STATISTICS_ROUNDING_US, high + files.STATISTICS_ROUNDING_US
    return bounds


def list_unreadable_features(opened: OpenTable) -> tuple[str, ...]:
    """Return the Delta features of an opened table that need more than its data files."""
    needed = set(opened.delta.protocol().reader_features or ()) - _READABLE_FEATURES
    if opened.delta.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
        needed.add("columnMapping")
    return tuple(sorted(needed))


def _file_system(folder: StoragePath) -> tuple[Any, str]:
    """Return Arrow's file system for a table's files, and the prefix of their paths in it."""
    from pyarrow import fs

    if folder.local_path is not None:
        return fs.LocalFileSystem(), f"{folder}/"
    from deltalake.fs import DeltaStorageHandler

    return fs.PyFileSystem(DeltaStorageHandler(str(folder), get_storage_options(str(folder)))), ""


def _find_damage(path: StoragePath) -> str | None:
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path.source()) as file:
            for _ in file.iter_batches(_ROWS_A_BATCH):
                pass
    except FileNotFoundError:
        return "is missing"
    except (OSError, pa.ArrowException) as error:
        return f"is damaged ({' '.join(str(error).split())[:200]})"
    return None


@cache
def _get_bounded_dataset_class() -> type[Any]:
    """Return a dataset class whose scans read little ahead, also if a query engine starts them."""
    arrow = _import_dataset()

    class Bounded(arrow.FileSystemDataset):
        def scanner(self, **options: Any) -> Any:
            ahead = {"batch_readahead": _BATCHES_AHEAD, "fragment_readahead": _FILES_AHEAD, "batch_size": _ROWS_A_BATCH}
            return super().scanner(**{**options, **ahead})

    return Bounded


@cache
def _import_dataset() -> Any:
    """Import pyarrow's datasets late: loading them takes longer than most calls that do not need them."""
    import pyarrow.dataset

    return pyarrow.dataset
