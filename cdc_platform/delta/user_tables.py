"""Delta and Parquet tables outside of the lake, which a user names by path or by address."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.types as pat
from deltalake.exceptions import TableNotFoundError

from cdc_platform.delta.arrow import compute
from cdc_platform.delta.conform import fill_columns
from cdc_platform.delta.errors import translate_errors
from cdc_platform.delta.files import list_partition_files, open_parquet
from cdc_platform.delta.open_table import open_table
from cdc_platform.delta.paths import LOG_FOLDER
from cdc_platform.delta.snapshot import list_unreadable_features
from cdc_platform.delta.tasks import Batches, TaskRows, read_file_batches
from cdc_platform.errors import InputError, NotFound, StateError
from cdc_platform.storage import StoragePath, is_store_address, parse_path

_PARQUET = ".parquet"


@dataclass(frozen=True)
class UserTable:
    """A table outside of the lake: its columns, its data files, and its version if it is a Delta table.

    `files` has the path of each data file, the values of its partition columns, and its size in bytes.
    """

    address: str
    schema: pa.Schema
    files: tuple[tuple[str, Mapping[str, Any], int], ...]
    version: int | None = None

    @property
    def bytes(self) -> int:
        """The size of all data files."""
        return sum(size for _, _, size in self.files)

    def rows(self, wanted: pa.Schema) -> TaskRows:
        """Return the columns of `wanted`, in its types, one part per file; a column that a file lacks is null.

        Raises:
            InputError: a column is missing, or has another type. Integers may be narrower than wanted. Times may have
                any unit; a value that does not fit fails the task that reads it.
        """
        self.assert_readable(wanted)
        schema = pa.schema([self.schema.field(name) for name in wanted.names])
        files, address = self.files, self.address

        def batches(number: int) -> Batches:
            path, values, _ = files[number]
            with translate_errors(f"reading {address}"):
                yield from _read_file(address, path, values, schema, wanted)

        return TaskRows(len(files), batches)

    def assert_readable(self, wanted: pa.Schema) -> None:
        """Raise InputError unless the table has all columns of `wanted`, in types that can be read as these."""
        for field in wanted:
            if field.name not in self.schema.names:
                raise InputError(
                    f"{self.address} has no column {field.name}; it has {', '.join(self.schema.names) or 'none'}"
                )
            actual = self.schema.field(field.name).type
            if not _is_readable(actual, field.type):
                raise InputError(f"column {field.name} of {self.address} is {actual}; it has to be {field.type}")


def open_user_table(address: str) -> UserTable:
    """Open the Delta table, the Parquet file or the folder of Parquet files at a path or an address in a store.

    Raises:
        NotFound: nothing is there.
        InputError: a folder has neither a Delta log nor Parquet files, or its files differ in their columns.
        StateError: the Delta table has a feature by which its files alone do not determine its rows.
        StoreFailure: a file is damaged.
    """
    # Spark's workers have other working folders.
    path = parse_path(address if is_store_address(address) else Path(address).absolute())
    with translate_errors(f"reading {address}"):
        if (path / LOG_FOLDER).is_folder():
            return _open_delta(address, path)
        if path.is_folder():
            return _open_parquet(address, _list_parquet_files(address, path))
        stat = path.stat()
        if stat is None:
            raise NotFound(f"{address}: no such table; name a Delta table, a Parquet file or a folder of Parquet files")
        return _open_parquet(address, [(path, stat.bytes)])


def _open_delta(address: str, path: StoragePath) -> UserTable:
    try:
        opened = open_table(str(path))
    except TableNotFoundError:
        raise NotFound(f"{address}: its {LOG_FOLDER} has no commit; name another table") from None
    features = list_unreadable_features(opened)
    if features:
        raise StateError(
            f"{address} has the Delta feature {', '.join(features)}, which is not read here; drop it with ALTER TABLE "
            "... DROP FEATURE, or write its rows to Parquet files"
        )
    names = opened.partition_columns()
    files = tuple(
        (file.path, dict(zip(names, file.partition, strict=True)), file.bytes)
        for file in list_partition_files(opened, names)
    )
    return UserTable(address, opened.schema(), files, opened.version())


def _list_parquet_files(address: str, folder: StoragePath) -> list[tuple[StoragePath, int]]:
    files = [(folder / name, stat.bytes) for name, stat in folder.files() if name.endswith(_PARQUET)]
    if not files:
        raise InputError(f"{address} has neither a {LOG_FOLDER} nor files *{_PARQUET}; name a Delta or Parquet table")
    partitions = [part.name for part in folder.folders() if "=" in part.name]
    if partitions:
        raise InputError(f"{address} has folders of partitions ({partitions[0]}), which only Delta tables may have")
    return files


def _open_parquet(address: str, files: Sequence[tuple[StoragePath, int]]) -> UserTable:
    schemas = []
    for path, _ in files:
        try:
            with open_parquet(path) as file:
                schemas.append(file.schema_arrow.remove_metadata())
        except pa.ArrowInvalid as error:
            raise InputError(f"{path} is no Parquet file: {error}") from None
    for (path, _), schema in zip(files, schemas, strict=True):
        if not schema.equals(schemas[0]):
            raise InputError(
                f"{path} has other columns than {files[0][0]}; give all files of {address} the same columns"
            )
    return UserTable(address, schemas[0], tuple((str(path), {}, size) for path, size in files))


def _read_file(address: str, path: str, values: Mapping[str, Any], schema: pa.Schema, wanted: pa.Schema) -> Batches:
    inside = [name for name in schema.names if name not in values]
    for batch in read_file_batches(path, inside):
        columns = [
            _cast(address, column, field)
            for column, field in zip(fill_columns(batch, schema, values), wanted, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=wanted)


def _cast(address: str, column: Any, field: pa.Field) -> Any:
    try:
        return column if column.type == field.type else compute.cast(column, field.type)
    except pa.ArrowInvalid as error:
        raise InputError(f"column {field.name} of {address} does not fit {field.type}: {error}") from None


def _is_readable(actual: pa.DataType, wanted: pa.DataType) -> bool:
    """Return True if values of a type can be read as another one without changing any of them."""
    if pat.is_signed_integer(actual) and pat.is_signed_integer(wanted):
        return actual.bit_width <= wanted.bit_width
    if pat.is_timestamp(wanted):
        return pat.is_timestamp(actual) and actual.tz is not None
    if pat.is_string(wanted):
        return pat.is_string(actual) or pat.is_large_string(actual) or pat.is_string_view(actual)
    if pat.is_binary(wanted):
        return pat.is_binary(actual) or pat.is_large_binary(actual) or pat.is_binary_view(actual)
    if pat.is_map(wanted):
        return (
            pat.is_map(actual)
            and _is_readable(actual.key_type, wanted.key_type)
            and _is_readable(actual.item_type, wanted.item_type)
        )
    if pat.is_list(wanted):
        is_list = pat.is_list(actual) or pat.is_large_list(actual)
        return is_list and _is_readable(actual.value_type, wanted.value_type)
    if pat.is_struct(wanted):
        return (
            pat.is_struct(actual)
            and [field.name for field in actual] == [field.name for field in wanted]
            and all(_is_readable(part.type, due.type) for part, due in zip(actual, wanted, strict=True))
        )
    return actual == wanted
