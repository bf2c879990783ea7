"""Write rows in volume: Spark tasks write the files, and one atomic commit adds them to the table.

Each task writes through deltalake into a Delta table of its own with the declared schema and constraints, so Parquet,
statistics, NOT NULL and CHECKs are those of every other write. A commit names only files that exist at their paths.
Delta on Spark took five times as long: it rebuilds a table's state before it replaces a partition (a third of that),
and every row passes through the JVM.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import Schema, write_deltalake
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from cdc_platform import errors
from cdc_platform.delta import commits, row_hash, writer
from cdc_platform.delta.arrow import compute
from cdc_platform.delta.conform import conform_rows, strip_comments
from cdc_platform.delta.create import InitialLog, make_empty_log
from cdc_platform.delta.errors import OUTSIDE_PARTITION, error_from_task_report, translate_error
from cdc_platform.delta.files import (
    DataFile,
    filters_sql,
    list_data_files,
    normalize_filters,
)
from cdc_platform.delta.home_mode import assert_table_writable
from cdc_platform.delta.lake import Lake
from cdc_platform.delta.open_table import OpenTable
from cdc_platform.delta.paths import decode_path, get_draft_folder, get_writable_folder
from cdc_platform.delta.task_retry import is_retried_elsewhere
from cdc_platform.delta.tasks import Batches, FrameRows, TaskRows, TaskRunner
from cdc_platform.delta.verification import VerifiedRows
from cdc_platform.errors import ConflictError, EnvironmentProblem, InputError, PlatformError, Unavailable
from cdc_platform.storage import atomic, parse_path
from cdc_platform.tables import Table

_REPORT_SCHEMA = pa.schema({"file": pa.string(), "refused": pa.string(), "message": pa.string(), "read": pa.string()})
"""A task's report.

It has a row for each file, with the action that adds it, and one with the digest of the rows that it read; or one row
with the reason why it refuses its rows.
"""
_FEW_BYTES = 1 << 20


@dataclass(frozen=True, eq=False)
class WriteDraft:
    """Written files that no table contains yet, in a folder next to their table.

    In a store there is no such folder: the files are at their final paths, under unique names.
    """

    folder: Path | None
    files: tuple[dict[str, Any], ...]

    @property
    def digests(self) -> dict[str, int]:
        """The digests of its rows, by partition."""
        return row_hash.sum_digests(
            {name: int(digest, 16) for name, digest in file["digests"].items()} for file in self.files
        )


WritableRows = TaskRows | VerifiedRows
"""Rows that tasks produce, or derive from another partition's rows while they verify those against the commits."""


def write_draft(
    workers: TaskRunner, lake: Lake, table: Table, rows: FrameRows | WritableRows, where: Mapping[str, Any], what: str
) -> WriteDraft:
    """Write the rows of a partition next to the table, in at most one Spark job. `what` names the write in errors.

    Raises:
        InputError: the rows don't fit the table's columns, types or constraints, or lie outside the partition.
        EnvironmentProblem: Spark's workers do not see the folder that the driver made.
        StateError: the source rows are not the committed ones.
        PlatformError: as `assert_table_writable`.
    """
    assert_table_writable(lake, what, table)
    target = parse_path(lake.path(table))
    draft_folder = get_draft_folder(target)
    folder = None if target.local_path is None else atomic.make_draft_folder(draft_folder, table.name)
    if folder is not None:
        atomic.sweep_legacy_drafts(draft_folder)
    rule = lake.digest_rule(table)
    source = rows if isinstance(rows, VerifiedRows) else None
    part = _TaskWriter(
        table, str(folder or ""), make_empty_log(table), dict(where), what, rule, str(target), str(draft_folder), source
    )
    try:
        if isinstance(rows, TaskRows | VerifiedRows):
            tasks = rows if isinstance(rows, TaskRows) else rows.rows
            answers = workers.table(tasks.through(part.write), _REPORT_SCHEMA)
        else:
            answers = rows.table(part.write, _REPORT_SCHEMA)
        lines = answers.to_pylist()
        for line in lines:
            if line["refused"]:
                raise error_from_task_report(line["refused"], line["message"])
        if source is not None:
            source.verify_digests(int(line["read"], 16) for line in lines if line["read"])
    except BaseException:
        if folder is not None:
            atomic.discard_draft(folder)
        raise
    return WriteDraft(folder, tuple(json.loads(line["file"]) for line in lines if line["file"]))


def collect_if_few(workers: TaskRunner, table: Table, rows: FrameRows | WritableRows) -> pa.Table | None:
    """Return the rows of a single task that this process runs, if they are few (1 MiB); None otherwise.

    Return None as well for tables with time partitions.

    Raises:
        StateError: the source rows are not the committed ones.
    """
    if isinstance(rows, FrameRows):
        return None
    tasks = rows if isinstance(rows, TaskRows) else rows.rows
    if tasks.tasks != 1 or not workers.runs_in_process(1) or writer.has_time_partitions(table):
        return None
    collected: list[pa.RecordBatch] = []
    read: list[int] = []
    size, batches = 0, tasks.batches(0)
    for batch in rows.read(batches, read) if isinstance(rows, VerifiedRows) else batches:
        size += batch.nbytes
        if size > _FEW_BYTES:
            return None
        collected += [batch] if batch.num_rows else []
    if isinstance(rows, VerifiedRows):
        rows.verify_digests(read)
    return pa.Table.from_batches(collected) if collected else None


def check_rows(table: Table, rows: pa.Table, where: Mapping[str, Any], what: str) -> pa.Table:
    """Return rows of a partition in the columns and types of the table.

    Raises:
        InputError: as `write_draft`.
    """
    fit = conform_rows(table, rows)
    for column, value in where.items():
        _refuse_outside(fit, column, value, what)
    return fit


def commit_few_rows(
    lake: Lake,
    table: Table,
    rows: pa.Table,
    where: Mapping[str, Any],
    replaced_files: Collection[DataFile] | None = None,
) -> int:
    """Replace a partition's rows by checked rows in one commit, without a draft; return the new version.

    For few rows this takes a third of the time. Conflicts are raised as in `commit_draft`.

    Raises:
        ConflictError: the partition no longer has the files `replaced_files`.
    """
    with lake.open_for_write(table) as opened:
        filters = normalize_filters(table, [(name, "=", value) for name, value in where.items()])
        # Look up the replaced files in the log alone; without any, deltalake need not search.
        existing = list_data_files(opened, table, filters)
        if replaced_files is not None and set(existing) != set(replaced_files):
            raise ConflictError(f"{table.full_name} was changed in the meantime; run it again")
        replaced = filters_sql(filters) if filters else None
        name = row_hash.partition_name_from_values(table.partition_by, where)
        read_version = opened.version()
        write = partial(
            write_deltalake,
            opened.with_data_files() if existing else opened.delta,
            strip_comments(rows),
            writer_properties=writer.get_writer_properties(table, rows),
            post_commithook_properties=commits.get_post_commit_hooks(opened),
        )

        def put(properties: commits.DeltaCommitProperties) -> None:
            if existing:
                write(mode="overwrite", predicate=replaced, commit_properties=properties)
            else:
                write(mode="append", commit_properties=properties)

        commits.make_commit(
            opened,
            put,
            digests={name: 0} | row_hash.digest_rows(rows, table.partition_by, commits.get_digest_rule(opened)),
        )
        return read_version + 1


def commit_draft(lake: Lake, table: Table, draft: WriteDraft, where: Mapping[str, Any]) -> int:
    """Replace the partition's rows by the files of a draft; return the version of the table that has them.

    The commit applies only to the version that was read: if another writer commits in between, deltalake raises its
    conflict, and the caller reads and tries again. If there is nothing to add and nothing to remove, there is no
    commit.

    Raises:
        EnvironmentProblem: a file is not where Spark's worker reported it; nothing was committed.
    """
    with lake.open_for_write(table) as opened:
        return _commit_opened(opened, lake, table, draft, where)


def _commit_opened(opened: OpenTable, lake: Lake, table: Table, draft: WriteDraft, where: Mapping[str, Any]) -> int:
    if not draft.files and not lake.data_files(table, [(name, "=", value) for name, value in where.items()]):
        return opened.version()
    placed = _place_draft(lake, table, draft)
    name = row_hash.partition_name_from_values(table.partition_by, where)
    read_version = opened.version()
    commits.make_commit(
        opened,
        lambda properties: opened.delta.create_write_transaction(
            placed,
            "overwrite",
            opened.delta.schema(),
            list(table.partition_by),
            [(column, "=", writer.format_partition_value(value)) for column, value in where.items()],
            commit_properties=properties,
            post_commithook_properties=commits.get_post_commit_hooks(opened),
        ),
        digests={name: 0} | draft.digests,
    )
    return read_version + 1


def commit_draft_once(
    lake: Lake,
    table: Table,
    draft: WriteDraft,
    transaction: tuple[str, int] | None,
    *,
    append: bool,
    other_numbers: Mapping[str, int] | None = None,
    read_version: int | None = None,
) -> bool:
    """Append the files of a draft, or replace all rows of the table in the declared columns; return True if it did.

    With a `transaction` (application and its number), do nothing if the table has that number or a higher one.
    `other_numbers` are numbers of other applications to record in the same commit, also if there is no file. The rows
    were derived from `read_version` of the table.

    Raises:
        EnvironmentProblem: as `commit_draft`.
        ConflictError: the table is no longer at that version.
    """
    with lake.open_for_write(table) as opened:
        if read_version is not None and opened.version() != read_version:
            raise ConflictError(f"{table.full_name} was changed in the meantime; run it again")
        numbers = {} if transaction is None else dict([transaction]) | dict(other_numbers or {})
        return _commit_opened_once(opened, lake, table, draft, transaction, numbers, append=append)


def _commit_opened_once(
    opened: OpenTable,
    lake: Lake,
    table: Table,
    draft: WriteDraft,
    transaction: tuple[str, int] | None,
    numbers: Mapping[str, int],
    *,
    append: bool,
) -> bool:
    last_number = None if transaction is None else opened.delta.transaction_version(transaction[0])
    if transaction is not None and last_number is not None and last_number >= transaction[1]:
        return False
    if append and not draft.files and len(numbers) < 2:
        return False
    placed, added = _place_draft(lake, table, draft), draft.digests
    if append:
        after = row_hash.update_digests(writer.get_digests_before(opened, table, added), added, {})
    else:
        existing = [row_hash.format_partition_name(table.partition_by, part.key) for part in lake.partitions(table)]
        after = dict.fromkeys(existing if table.partition_by else [""], 0) | added
    commits.make_commit(
        opened,
        lambda properties: opened.delta.create_write_transaction(
            placed,
            "append" if append else "overwrite",
            opened.delta.schema() if append else Schema.from_arrow(pa.schema(table.schema)),
            list(table.partition_by),
            commit_properties=properties,
            post_commithook_properties=commits.get_post_commit_hooks(opened),
        ),
        digests=after,
        numbers=numbers,
    )
    return True


def discard_write_draft(draft: WriteDraft) -> None:
    """Remove a draft's folder. The table's maintenance removes a store's files that no commit names."""
    if draft.folder is not None:
        atomic.discard_draft(draft.folder)


@dataclass(frozen=True, eq=False)
class _TaskWriter:
    """One task's part of a write; pickled to the executors, which see the lake at the driver's path.

    `folder` is the draft folder, next to `target`; empty for a store, where no reader sees files before a commit names
    them. For a store, a task first writes to `local_folder`, the driver's local state of the home, or to its temporary
    folder if the executor does not see that. `source` verifies the rows that the task receives, see `VerifiedRows`.
    """

    table: Table
    folder: str
    blank: InitialLog
    where: Mapping[str, Any]
    what: str
    rule: row_hash.DigestRule
    target: str = ""
    local_folder: str = ""
    source: VerifiedRows | None = None

    def write(self, batches: Batches) -> Batches:
        """Write rows, and yield the actions that add their files."""
        read: list[int] = []
        try:
            source_rows = batches if self.source is None else self.source.read(batches, read)
            lines = [{"file": json.dumps(file)} for file in self._written(source_rows)]
            lines += [{"read": f"{sum(read):x}"}] if read else []
        except (PlatformError, DeltaError) as error:
            # A Python error in a Spark task would lose its class, and Spark would retry the task in vain.
            translated = error if isinstance(error, PlatformError) else translate_error(error, self.what)
            if translated is None or (isinstance(translated, Unavailable) and is_retried_elsewhere()):
                raise
            # Report the nearest class in `errors`: packages above define subclasses that this one does not know.
            class_name = next(
                error_class.__name__
                for error_class in type(translated).__mro__
                if getattr(errors, error_class.__name__, None) is error_class
            )
            lines = [{"refused": class_name, "message": str(translated)}]
        columns = [pa.array([line.get(name) for line in lines], pa.string()) for name in _REPORT_SCHEMA.names]
        yield pa.RecordBatch.from_arrays(columns, schema=_REPORT_SCHEMA)

    def _written(self, batches: Batches) -> list[dict[str, Any]]:
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return []
        if self.folder and not Path(self.folder).is_dir():
            raise EnvironmentProblem(f"{self.what}: {_format_unseen(self.folder)}")
        failed: list[Exception] = []
        digests_by_batch: list[dict[str, int]] = []
        checked = self._checked(chain([first], batches), failed, digests_by_batch)
        rows = pa.RecordBatchReader.from_batches(self.table.schema, checked)
        try:
            added = self._placed(rows)
        except DeltaError:
            if failed:  # Arrow's stream passes on an error's message, not its class.
                raise failed[0] from None
            raise
        digests = {slice_: f"{digest:032x}" for slice_, digest in row_hash.sum_digests(digests_by_batch).items()}
        # The first file has the digests of all rows of the task: nothing needs them by file.
        return [file | {"digests": {} if index else digests} for index, file in enumerate(added)]

    def _placed(self, rows: pa.RecordBatchReader) -> list[dict[str, Any]]:
        how = writer.get_bulk_writer_properties(self.table)
        if self.folder:
            return writer.write_draft_files(self.blank, Path(self.folder, uuid.uuid4().hex), rows, how)
        with atomic.temporary_folder(self.table.name, get_writable_folder(Path(self.local_folder))) as folder:
            added = writer.write_draft_files(self.blank, folder / "rows", rows, how)
            for file in added:
                path = decode_path(file["path"])
                (parse_path(self.target) / path).receive(folder / "rows" / path)
            return added

    def _checked(self, batches: Batches, failed: list[Exception], seen: list[dict[str, int]]) -> Batches:
        try:
            for batch in _pull_in_own_thread(batches):
                rows = check_rows(self.table, pa.Table.from_batches([batch]), self.where, self.what)
                seen.append(row_hash.digest_rows(rows, self.table.partition_by, self.rule))
                yield from rows.to_batches()
        except Exception as error:
            failed.append(error)
            raise


def _pull_in_own_thread(batches: Batches) -> Batches:
    """Yield batches that another thread produces, one at a time.

    Producing them may read Delta tables. deltalake consumes them in a thread of its asynchronous runtime, and does not
    read a table in such a thread.
    """
    with ThreadPoolExecutor(1) as thread:
        rows = iter(batches)
        while (batch := thread.submit(next, rows, None).result()) is not None:
            yield batch


def _refuse_outside(rows: pa.Table, column: str, value: Any, what: str) -> None:
    due = pa.scalar(str(value) if isinstance(value, uuid.UUID) else value, rows[column].type)
    wrong = compute.index(compute.equal(rows[column], due), False).as_py()
    if wrong >= 0:
        raise InputError(f"{what}: {OUTSIDE_PARTITION} ({column} : {rows[column][wrong].as_py()})")


def _place_draft(lake: Lake, table: Table, draft: WriteDraft) -> list[AddAction | RemoveAction]:
    return writer.place_files(table, lake.path(table), draft.folder, draft.files, _format_unseen("{}"))


def _format_unseen(path: str) -> str:
    return (
        f"Spark's workers do not see the home as this process does ({path}); mount it at the same path on every "
        "worker, or run on this machine alone (without SPARK_REMOTE)"
    )
