"""The data files of a table as Delta's log tells of them: paths, rows, bytes, partitions, bounds. None is opened.

It alone knows how Delta writes a path down.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from cdc_platform.clock import MILLISECOND_US
from cdc_platform.errors import StateError
from cdc_platform.home import state_folder
from cdc_platform.lake import arrow
from cdc_platform.lake.arrow import compute
from cdc_platform.lake.filters import PASSES, Filter
from cdc_platform.lake.tables import ALLOWED_FEATURES, Table
from cdc_platform.places import Place, options, place_of

_Told = TypeVar("_Told")
LOG_FOLDER = "_delta_log"
"""The folder of a table's commits, beside its data files."""
_OF_FILE, _OF_PARTITION = ("path", "num_records", "size_bytes"), "partition."
"""What the log's columns are called that tell of a file: by their names, and by how the names of others begin."""


class DataFile(NamedTuple):
    """A file of a table: its path, rows (0 where the log does not say) and bytes, its values of partition columns.

    A tuple: of an old home's thousands each commit makes new ones.
    """

    path: str
    rows: int
    bytes: int
    partition: tuple[Any, ...]


ROUNDED_US = MILLISECOND_US
"""So much the least and the greatest time of a file can be off in a log: its writers cut them off at milliseconds."""


class BoundedFile(NamedTuple):
    """A file with the least and the greatest value of a column in it; None, and 0 `rows`, without statistics."""

    path: str
    low: Any
    high: Any
    rows: int


@dataclass(frozen=True)
class Slice:
    """The part of a table that has these values (`key`) in its partition columns, by its files."""

    key: tuple[Any, ...]
    rows: int
    bytes: int


class ForeignPath(ValueError):
    """Delta's log names a file that does not lie in its table's folder."""


def plain_path(written: str) -> str:
    """A path below the table as the file system has it: in Delta's log it is quoted as in a URL.

    That is on top of what is quoted in the names of the folders.

    Raises:
        ForeignPath: the path is absolute, an address, or leads out of the folder. Delta would let a log name such a
            file; the platform never writes one, and neither reads, copies nor removes files outside its tables.
    """
    return _unquoted(written) if _ODD.search(written) else written


_ODD = re.compile(r"[%:\\\0]|\.\.|^/|^$")
"""What only a path can have that is quoted or leads elsewhere: nearly all are told apart by one search."""
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


@lru_cache(maxsize=1 << 13)
def _unquoted(written: str) -> str:
    """The same, which is asked of an old home's thousands by each commit."""
    plain = unquote(written)
    if _ADDRESS.match(written) or plain[:1] in ("", "/") or "\0" in plain or ".." in plain.split("/"):
        raise ForeignPath(f"Delta's log names a file that is not in the table's folder: {written!r}")
    return plain


def parquet(file: Place | str) -> pq.ParquetFile:
    """A data file, to be read in parts; times as Spark writes them too, which would be nanoseconds that end in 2262.

    Raises:
        FileNotFoundError: there is none.
    """
    place = place_of(file) if isinstance(file, str) else file
    return pq.ParquetFile(place.source(), coerce_int96_timestamp_unit="us")


def opened(folder: str, version: int | None = None) -> DeltaTable:
    """A table at a version, its newest if none is named, as it is opened for one look.

    Raises:
        TableNotFoundError: there is none.
    """
    return DeltaTable(folder, version=version, storage_options=options(folder))


def rows_of_version(folder: str, version: int) -> pa.Table:
    """All rows of a version of a table, in the columns that it had then, in no order; raises what `opened` does."""
    # Takes half as long to load as everything else here.
    from pyarrow import dataset

    # Spark's timestamps would be read as nanoseconds, which end in 2262.
    options = dataset.ParquetReadOptions(coerce_int96_timestamp_unit="us")
    table = opened(folder, version)
    paths(table)  # deltalake would read files outside the folder
    return table.to_pyarrow_dataset(parquet_read_options=options).to_table()


@lru_cache(maxsize=256)
def folder_in(lake: Place, keyspace: str, name: str) -> str:
    """The folder of a table of a lake: its path, or its address in a store. It is asked for at each look."""
    return str(lake / f"{keyspace}/{name}")


def draft_folder(table: Place) -> Path:
    """Where what goes into a table is written first: beside it, or in this machine's own part of a home in a store.

    As `own_or_temporary` where that part cannot be made.
    """
    if table.here is not None:
        return table.here.parent
    folder = state_folder(table.folder.folder.folder)
    with suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return own_or_temporary(folder)


def own_or_temporary(folder: Path) -> Path:
    """A folder, or of a process that may not write there, as one on a worker, where it has its temporary files."""
    return folder if os.access(folder, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())


def folder_of(opened: DeltaTable) -> str:
    """The folder of an opened table: its path, or its address in a store."""
    address = urlsplit(opened.table_uri)
    return unquote(address.path) if address.scheme in ("", "file") else opened.table_uri.rstrip("/")


def data_files(opened: DeltaTable, table: Table, folder: str, filters: Iterable[Filter] = ()) -> list[DataFile]:
    """The files that can hold rows which pass the (normal) filters; those on partition columns are what decides."""
    return files_of_partitions(opened, table.partition_by, folder, filters)


def files_of_partitions(
    opened: DeltaTable, partition_by: Sequence[str], folder: str, filters: Iterable[Filter] = ()
) -> list[DataFile]:
    """The same, of a table of which only these are known: the columns that it is partitioned by."""
    filters = list(filters)
    asked = {name: value for name, operator, value in filters if operator == "=" and value is not None}
    if partition_by and len(filters) == len(partition_by) and set(asked) == set(partition_by):
        return _of_partition(opened, tuple(partition_by), folder, asked)
    deciding = [
        (partition_by.index(name), PASSES[operator], value) for name, operator, value in filters if name in partition_by
    ]
    every = _every(opened, tuple(partition_by), folder)
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


def _of_partition(
    opened: DeltaTable, partition_by: tuple[str, ...], folder: str, values: Mapping[str, Any]
) -> list[DataFile]:
    """The files of one partition, found in the log's columns: a home that is old has thousands of others.

    Of those only what is asked of a file is taken along, without its statistics; and a version is asked once.
    """

    def tell() -> list[DataFile]:
        added = _added(opened)
        for name in partition_by if added.num_rows else ():
            told = [each for each in added.schema.names if each in _OF_FILE or each.startswith(_OF_PARTITION)]
            column = added[f"{_OF_PARTITION}{name}"]
            added = added.select(told).filter(compute.equal(column, pa.scalar(values[name], column.type)))
        return _files_of(added, partition_by, folder)

    return list(_once(opened, (partition_by, folder, *((name, values[name]) for name in partition_by)), tell))


def _every(opened: DeltaTable, partition_by: tuple[str, ...], folder: str) -> list[DataFile]:
    """All files of an opened version, told from the log once."""
    return _once(opened, (partition_by, folder), lambda: _files_of(_added(opened), partition_by, folder))


def _files_of(added: pa.Table, partition_by: tuple[str, ...], folder: str) -> list[DataFile]:
    columns = [arrow.values(added[f"{_OF_PARTITION}{name}"]) for name in partition_by] if added.num_rows else []
    keys = list(zip(*columns, strict=True)) if columns else [()] * added.num_rows
    told = (_known(added, "num_records"), _known(added, "size_bytes"))
    return [
        DataFile(path, rows or 0, size, key)
        for path, rows, size, key in zip(_paths(added, folder), *told, keys, strict=True)
    ]


def paths(opened: DeltaTable) -> list[str]:
    """The path of each file."""
    return _paths(_added(opened), folder_of(opened))


def sizes(opened: DeltaTable) -> list[int]:
    """The bytes of each file."""
    return arrow.values(_added(opened)["size_bytes"])


def slices_of(files: Sequence[DataFile]) -> list[Slice]:
    """What each slice of a table holds, in the order in which the files name them first."""
    found: dict[tuple[Any, ...], Slice] = {}
    for file in files:
        so_far = found.get(file.partition, Slice(file.partition, 0, 0))
        found[file.partition] = Slice(file.partition, so_far.rows + file.rows, so_far.bytes + file.bytes)
    return list(found.values())


def bounded_files(opened: DeltaTable, folder: str, name: str) -> list[BoundedFile]:
    """Each file with the bounds of a column, which are as exact as who wrote them was."""
    added = _added(opened)
    lows, highs, rows = (_known(added, column) for column in (f"min.{name}", f"max.{name}", "num_records"))
    return [
        BoundedFile(path, low, high, count or 0)
        for path, low, high, count in zip(_paths(added, folder), lows, highs, rows, strict=True)
    ]


def said_of_files(opened: DeltaTable, folder: str) -> dict[str, pa.Table]:
    """All that Delta's log says of each file, by its path: one line of deltalake's flat columns."""
    added = _added(opened)
    return {path: added.slice(place, 1) for place, path in enumerate(_paths(added, folder))}


def _added(opened: DeltaTable) -> pa.Table:
    """What Delta's log says of each file, which is asked once a version."""
    return _once(opened, (), lambda: pa.table(opened.get_add_actions(flatten=True)))


def _once(opened: DeltaTable, of: object, tell: Callable[[], _Told]) -> _Told:
    """What an opened version tells of something, which is asked of it once."""
    version, known = vars(opened).get("_told", (None, {}))
    if version != opened.version():
        version, known = vars(opened)["_told"] = opened.version(), {}
    if of not in known:
        known[of] = tell()
    return known[of]


def _paths(added: pa.Table, folder: str) -> list[str]:
    # As the place names them, in a tenth of the time.
    inside = f"{place_of(folder)}/"
    return [inside + plain_path(path) for path in arrow.values(added["path"])]


def _known(added: pa.Table, column: str) -> list[Any]:
    """What the log says of each file; None throughout where no file has it."""
    return arrow.values(added[column]) if column in added.schema.names else [None] * added.num_rows


def foreign_features(opened: DeltaTable) -> list[str]:
    """The features with which a reader needs more than the files, and which the platform never turns on."""
    return sorted(set(opened.protocol().reader_features or ()) - ALLOWED_FEATURES)


def refuse_features(table: Table, opened: DeltaTable) -> None:
    """Files hold the rows as they are only in a table without deletion vectors and column mapping."""
    foreign = foreign_features(opened)
    if foreign:
        raise StateError(
            f"{table.full_name} has Delta features that the platform never turns on: {', '.join(foreign)}; "
            "drop them with ALTER TABLE ... DROP FEATURE"
        )
