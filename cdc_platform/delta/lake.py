"""The `Lake`: create, read, merge, delete and inspect Delta tables in milliseconds, without a JVM (deltalake).

Rows are pyarrow tables.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from deltalake.exceptions import TableNotFoundError

from cdc_platform.delta import commits, compaction, create, files, table_rows, transaction_log, writer
from cdc_platform.delta.arrow import compute
from cdc_platform.delta.commit_retry import retry_on_conflict
from cdc_platform.delta.conform import conform_rows, get_empty_rows, refuse_append_only, refuse_repeated_keys
from cdc_platform.delta.errors import translate_errors, translate_read_errors
from cdc_platform.delta.files import BoundedFile, DataFile, Filter, TablePartition, normalize_filters
from cdc_platform.delta.home_mode import assert_table_writable
from cdc_platform.delta.open_table import OpenTable
from cdc_platform.delta.paths import get_table_folder
from cdc_platform.delta.row_hash import NEWEST_DIGEST_RULE, DigestRule
from cdc_platform.delta.table_cache import TableCache
from cdc_platform.delta.table_usage import record_read
from cdc_platform.delta.transaction_log import Commit
from cdc_platform.delta.writer import (
    NO_TRANSACTION_NUMBERS,
    MergeResult,
    PartialReplacement,
    RowsRule,
    TransactionNumbers,
    merge_judged_rows,
    merge_rows,
    transact_rows,
)
from cdc_platform.errors import InputError, StateError
from cdc_platform.storage import parse_path, parse_root
from cdc_platform.tables import Table

VERSION_RETENTION = timedelta(days=7)
"""How long unneeded files stay for readers of older versions: Delta's own default."""
_Result = TypeVar("_Result")


class Lake:
    """The Delta tables under one root: a folder of a local or shared file system, or a prefix of an object store.

    To read rows, use the method that returns what you need:

    * rows in memory, filtered and in the declared schema: `read`; of an old version, in its schema: `read_version`;
    * rows by partition, with the files that have them: `read_partitions`;
    * rows in batches, for tasks: `data_files`, then `tasks.rows_from_files` or `tasks.read_file_batches`;
      `verification.get_verified_rows` compares them with their commits as they are read;
    * rows that were added between two versions: `versions.read_changes_since`;
    * a dataset for another query engine: `snapshot.read_newest_snapshot`, `..._at_version` and `..._at_time`.

    `data_files`, `partitions`, `file_bounds` and `bounded_files` read the log alone.
    """

    def __init__(self, root: Path | str) -> None:
        self.location = parse_root(root)
        self.table_cache = TableCache()

    @property
    def root(self) -> Path:
        """The folder of a lake on a file system; a lake in a store has none."""
        assert self.location.local_path is not None, f"{self.location} is no folder"
        return self.location.local_path

    def __repr__(self) -> str:
        return f"Lake({str(self.location)!r})"

    def path(self, table: Table) -> str:
        """Return the folder of the table's files, and record a read of the table (see `table_usage`)."""
        record_read(table.full_name)
        return get_table_folder(self.location, table.keyspace, table.name)

    def exists(self, table: Table) -> bool:
        """Return True if the table was ever created here."""
        with translate_errors(f"looking for {table.full_name}"):
            return self.table_cache.exists(self.path(table))

    def version(self, table: Table) -> int | None:
        """Return the newest version of the table; None if the table does not exist."""
        return None if (opened := self._open(table)) is None else opened.version()

    def ensure(self, table: Table) -> None:
        """Create the table unless it exists. Any number of processes may do so at once; the result is one table.

        Raises:
            StateError: a table of another schema, or a folder that is no table, is at its path.
            HomeIsObserved, HomeIsMirror: this lake accepts no such writes.
        """
        assert_table_writable(self, f"writing {table.full_name}", table)
        existing = self._open(table)
        if existing is None:
            with translate_errors(f"creating {table.full_name}"):
                create.create_table(table, parse_path(self.path(table)))
            self.table_cache.revalidate(self.path(table))
            existing = self._open(table)
        columns = [] if existing is None else existing.schema().names
        if columns != table.schema.names:
            raise StateError(
                f"{table.full_name} at {self.path(table)} has columns {', '.join(columns) or 'none'} where this "
                f"version expects {', '.join(table.schema.names)}; use the version that wrote it, or another --home"
            )

    def digest_rule(self, table: Table) -> DigestRule:
        """Return the table's digest rule; that of new tables if it does not exist."""
        return NEWEST_DIGEST_RULE if (opened := self._open(table)) is None else commits.get_digest_rule(opened)

    def stored_schema(self, table: Table) -> pa.Schema:
        """Return the stored table's columns, in order, and their types; no columns if it does not exist."""
        opened = self._open(table)
        return pa.schema([]) if opened is None else opened.schema().remove_metadata()

    def widen(self, table: Table) -> Table:
        """Create the table, or add the columns that it lacks; return the table's resulting declaration.

        New columns come last and are null in all rows. Columns that `table` does not declare stay.

        Raises:
            StateError: a column exists with another type, or a folder that is no table is at its path.
        """
        if not self.exists(table):
            self.ensure(table)
        return self._write(table, lambda opened: create.add_missing_columns(opened, table))

    def read(
        self, table: Table, columns: Sequence[str] | None = None, filters: Sequence[Filter] | None = None
    ) -> pa.Table:
        """Return the rows that pass all `filters`, unordered, in the declared schema; empty if the table is missing.

        Filters on partition columns and on columns with statistics leave whole files unread.
        """
        schema = table.schema if columns is None else pa.schema([table.schema.field(name) for name in columns])
        normal = normalize_filters(table, filters or ())
        opened = self._open(table)
        if opened is None:
            return get_empty_rows(schema)
        with translate_read_errors(table.full_name):
            return table_rows.read_rows(opened, schema, normal)

    def read_version(self, table: Table, version: int) -> pa.Table:
        """Return all rows of a version of the table, in the columns of that version, unordered."""
        with translate_read_errors(f"version {version} of {table.full_name}"):
            return table_rows.read_rows_at_version(self.path(table), version)

    def merge(self, table: Table, rows: pa.Table, *, update: bool) -> MergeResult:
        """Insert the rows whose keys are new; existing rows stay, or with `update` are replaced by the given ones.

        If nothing would change, there is no commit, so the version stays. Writers in other processes may merge the same
        keys: one wins, the others find its rows.

        Raises:
            InputError: the rows don't fit the table's schema or constraints, or hold a key twice.
            StateError: the table is append-only and `update` is set.
            ConflictError: other writers kept winning.
        """
        if update:
            refuse_append_only(table)
        source = conform_rows(table, rows)
        refuse_repeated_keys(table, source)
        self.ensure(table)
        return self._write(table, lambda opened: merge_rows(opened, table, source, update), source.nbytes)

    def delete(self, table: Table, filters: Sequence[Filter]) -> int:
        """Delete the rows that pass all `filters`; return their number. Without any, there is no commit.

        Raises:
            InputError: there is no filter; emptying a table is never intended.
            StateError: the table is append-only.
        """
        if not filters:
            raise InputError(f"deleting from {table.full_name} needs a filter")
        refuse_append_only(table)
        chosen = normalize_filters(table, filters)
        if not self.exists(table):
            return 0
        return self._write(table, lambda opened: writer.delete_rows(opened, table, chosen))

    def compare_and_set(self, table: Table, rows: pa.Table, expected: tuple[str, Any]) -> bool:
        """Replace the row with the key of `rows` if its column is as `expected`; return True if it was.

        Of any number of concurrent writers, in any number of processes, exactly one gets True.

        Raises:
            InputError: `rows` is not one row, or does not fit the table.
            StateError: the table is append-only.
        """
        refuse_append_only(table)
        source = conform_rows(table, rows)
        if source.num_rows != 1:
            raise InputError(f"{table.full_name}: compare and set takes one row, not {source.num_rows}")
        self.ensure(table)
        [(name, _, value)] = normalize_filters(table, [(expected[0], "=", expected[1])])

        def as_expected(old: pa.Table, _: pa.Table) -> pa.ChunkedArray:
            return compute.equal(old[name], pa.scalar(value, old[name].type))

        return self._write(table, lambda opened: merge_rows(opened, table, source, True, only=as_expected)).updated == 1

    def transact(
        self, table: Table, rule: RowsRule, *, whole: bool = False, numbers: TransactionNumbers = NO_TRANSACTION_NUMBERS
    ) -> None:
        """Derive rows from all rows of a small table in one atomic step.

        `rule` gets all rows of one version. It returns the rows to insert or to replace by key (in an append-only table
        existing rows stay), or with `whole` all rows of the result. If it returns None or changes nothing, or if the
        table has one of the `numbers` of applications already, nothing is written. The commit must be the table's next
        version; otherwise the rule is called again. Errors of the rule propagate.

        Raises:
            InputError: the rows don't fit the table, or hold a key twice.
            StateError: the table is append-only, and `whole` is set.
            ConflictError: other writers kept winning.
        """
        if whole:
            refuse_append_only(table)
        if not self.exists(table) and rule(table.schema.empty_table()) is None:
            return
        self.ensure(table)
        self._write(table, lambda opened: transact_rows(opened, table, rule, whole=whole, numbers=numbers))

    def merge_judged(
        self, table: Table, judge: Callable[[], pa.Table | None], *, update: bool = False
    ) -> MergeResult | None:
        """Merge the rows that `judge` derives from its own reads; return None if it returns none.

        The commit must be the version after the newest one before `judge` read; otherwise `judge` is called again. So
        its reads of this table still hold when its rows are committed. Errors of `judge` propagate, and then nothing
        was written.

        Raises:
            InputError, StateError, ConflictError: as `merge`.
        """
        if update:
            refuse_append_only(table)
        if not self.exists(table) and judge() is None:
            return None
        self.ensure(table)
        return self._write(table, lambda opened: merge_judged_rows(opened, table, judge, update))

    def raise_column(self, table: Table, rows: pa.Table, name: str) -> int:
        """Replace existing rows by those of `rows` with the same key, where column `name` is null or less.

        Return the number of replaced rows. No row is inserted, so a row that another writer deletes stays deleted.

        Raises:
            InputError: the rows don't fit the table, or hold a key twice.
        """
        refuse_append_only(table)
        source = conform_rows(table, rows)
        refuse_repeated_keys(table, source)
        if not self.exists(table):
            return 0

        def grows(old: pa.Table, new: pa.Table) -> pa.ChunkedArray:
            return compute.or_kleene(compute.is_null(old[name]), compute.less(old[name], new[name]))

        return self._write(table, lambda opened: merge_rows(opened, table, source, True, only=grows)).updated

    def transaction(self, table: Table, application: str) -> int | None:
        """Return the number of an application's last transaction in the table; None before the first."""
        opened = self._open(table)
        return None if opened is None else opened.delta.transaction_version(application)

    def transactions(self, table: Table, applications: Iterable[str]) -> dict[str, int]:
        """Return the numbers of the last transactions in the table, of those of some applications."""
        opened = self._open(table)
        if opened is None:
            return {}
        numbers_by_name = {name: opened.delta.transaction_version(name) for name in applications}
        return {name: number for name, number in numbers_by_name.items() if number is not None}

    def append_once(self, table: Table, rows: pa.Table, numbers: Mapping[str, int], expected: int | None) -> bool:
        """Append rows in one commit with the transaction numbers of applications; return True if it was made.

        The commit is made only if the number of the first application is still `expected`: of any number of concurrent
        writers, in any number of processes, only one appends its rows. Without rows there is a commit as well, of the
        numbers.

        Raises:
            InputError: the rows don't fit the table.
        """
        source = conform_rows(table, rows)
        self.ensure(table)
        first = next(iter(numbers))

        def change(opened: OpenTable) -> bool:
            if opened.delta.transaction_version(first) != expected:
                return False
            writer.append_rows(opened, table, source, numbers)
            return True

        return self._write(table, change, source.nbytes)

    def replace_once(
        self,
        table: Table,
        rows: pa.Table,
        filters: Sequence[Filter],
        version: int | None,
        partial: PartialReplacement | None = None,
        **numbers: int,
    ) -> bool:
        """Replace the rows that pass all `filters` by `rows`, which pass them too; return True if the commit was made.

        The commit is made only as the version after `version`, from which `rows` were derived, with applications'
        `numbers`. `partial` has that version's rows that pass filters on partition columns, so that they are not read
        again.

        Raises:
            InputError, StateError: there is no filter, the rows don't fit the table, it is append-only, or has others.
        """
        if not filters:
            raise InputError(f"replacing rows of {table.full_name} needs a filter")
        refuse_append_only(table)
        source = conform_rows(table, rows)
        chosen = normalize_filters(table, filters)

        def change(opened: OpenTable) -> bool:
            if version is None or not _has_rows_of(opened, version):
                return False
            writer.replace_rows(opened, table, source, chosen, numbers, partial)
            return True

        return self._write(table, change, source.nbytes + (partial.rows.nbytes if partial else 0))

    def data_files(self, table: Table, filters: Sequence[Filter] = ()) -> list[DataFile]:
        """List the data files that can hold rows which pass `filters`, from Delta's log alone.

        Only filters on partition columns are compared.
        """
        normal = normalize_filters(table, filters)
        opened = self._open(table)
        with translate_read_errors(table.full_name):
            return [] if opened is None else files.list_data_files(opened, table, normal)

    def partitions(self, table: Table) -> list[TablePartition]:
        """List a table's partitions from Delta's log alone; a table without partition columns is one partition."""
        return files.partitions_from_files(self.data_files(table))

    def file_bounds(self, table: Table, name: str) -> list[tuple[Any, Any, int]]:
        """Return the least and the greatest value of a column in each data file, and the file's rows.

        They come from the log alone. Files without statistics, and without a value in the column, are left out.
        """
        return [(low, high, rows) for _, low, high, rows in self.bounded_files(table, name) if None not in (low, high)]

    def bounded_files(self, table: Table, name: str) -> list[BoundedFile]:
        """Return each data file with the bounds of a column, which are as exact as the writer recorded them."""
        opened = self._open(table)
        with translate_read_errors(table.full_name):
            return [] if opened is None else files.list_bounded_files(opened, name)

    def vacuum(self, table: Table, *, retention: timedelta = VERSION_RETENTION) -> int:
        """Delete files that no version younger than `retention` needs; return their number.

        Without any, there is no commit. The age is by the machine's clock.
        """
        files: set[str] = set()
        retry_on_conflict(
            f"vacuuming {table.full_name}", lambda: files.update(compaction.vacuum_files(self._open(table), retention))
        )
        return len(files)

    def commits(self, table: Table) -> list[Commit]:
        """Return the commits that are still in Delta's log, newest first, each with its CommitInfo if it has one.

        Raises:
            StoreFailure: an entry of the log cannot be read.
        """
        opened = self._open(table)
        with translate_read_errors(f"the log of {table.full_name}"):
            return [] if opened is None else list(transaction_log.iter_commits(self.path(table), opened.version()))

    def read_partitions(
        self, table: Table, columns: Sequence[str], keys: Collection[Any] | None = None
    ) -> tuple[dict[Any, pa.Table], list[DataFile]]:
        """Return columns of the rows by the value of the one partition column, and the files that have these rows.

        `keys` selects partitions by their values. Rows and files are of one version. The rows are unchecked, with the
        nulls that a foreign writer may have left.

        Raises:
            StateError: the table has Delta features by which its files are not its rows.
        """
        opened = self._open(table)
        if opened is None:
            return {}, []
        files.refuse_unsupported_features(table, opened)
        with translate_read_errors(table.full_name):
            data_files = files.list_data_files(opened, table)
            chosen = data_files if keys is None else [file for file in data_files if file.partition[0] in keys]
            return table_rows.read_partitions(opened, table, columns, chosen, are_all=keys is None), chosen

    def open_for_write(self, table: Table, size: int = 0) -> AbstractContextManager[OpenTable]:
        """Return a context with the table at its newest version, for one commit; see `TableCache.open_for_write`."""
        assert_table_writable(self, f"writing {table.full_name}", table, size)
        return self.table_cache.open_for_write(self.path(table))

    def _open(self, table: Table) -> OpenTable | None:
        with translate_errors(f"opening {table.full_name}"):
            try:
                return self.table_cache.get_newest(self.path(table))
            except TableNotFoundError:
                return None

    def _write(self, table: Table, change: Callable[[OpenTable], _Result], size: int = 0) -> _Result:
        """Run a change against the newest version, and again from a newer one while other writers commit first.

        `size` is the number of bytes of the rows, if they are more than a few.
        """

        def write() -> _Result:
            with self.open_for_write(table, size) as opened:
                before = opened.version()
                result = change(opened)
                compaction.compact_small_files(opened, table, before)
                return result

        return retry_on_conflict(f"writing {table.full_name}", write)


def _has_rows_of(opened: OpenTable, version: int) -> bool:
    """Return True if no commit since `version` changed rows, columns or rules: only file maintenance came between."""
    if opened.version() < version:
        return False
    try:
        return not any(opened.commit(newer).changes for newer in range(version + 1, opened.version() + 1))
    except FileNotFoundError:
        return False
