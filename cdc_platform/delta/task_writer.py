"""Write rows in volume: Spark tasks write the files, and one atomic commit adds them to the table.

Each task writes through deltalake into a Delta table of its own with the declared schema and constraints, so Parquet,
statistics, NOT NULL and CHECKs are those of every other write. A commit names only files that were seen in their
place. Delta on Spark took five times as long: it rebuilds a table's state before it replaces a partition (a third of
that), and every row passes through the JVM.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from cdc_platform import errors
from cdc_platform.delta import row_hash, transaction_log, writer
from cdc_platform.delta.arrow import compute
from cdc_platform.delta.conform import conform_rows
from cdc_platform.delta.create import InitialLog, make_empty_log
from cdc_platform.delta.errors import OUTSIDE_PARTITION, error_from_task_report, translate_error
from cdc_platform.delta.files import (
    DataFile,
    decode_path,
    filters_sql,
    get_draft_folder,
    get_writable_folder,
    list_data_files,
    normalize_filters,
)
from cdc_platform.delta.lake import Lake
from cdc_platform.delta.log_mirror import with_data_files
from cdc_platform.delta.observed_home import assert_table_writable
from cdc_platform.delta.task_retry import is_retried_elsewhere
from cdc_platform.delta.tasks import Batches, FrameRows, TaskRows, TaskRunner
from cdc_platform.delta.verification import VerifiedRows
from cdc_platform.errors import ConflictError, EnvironmentProblem, InputError, PlatformError, Unavailable
from cdc_platform.storage import atomic, parse_path
from cdc_platform.tables import Table

_REPORT_SCHEMA = pa.schema({"file": pa.string(), "refused": pa.string(), "said": pa.string(), "read": pa.string()})
"""What a task answers: a line a file, with the action that adds it, and one with the digest of those that it has made
others of; or one that says why it refuses its rows.
"""
_FEW_BYTES = 1 << 20


@dataclass(frozen=True, eq=False)
class WriteDraft:
    """Files that are written, in a folder beside their table, and in no table yet.

    In a store there is no such folder: they are where they are to be, under names that nobody else has.
    """

    folder: Path | None
    files: tuple[dict[str, Any], ...]

    @property
    def digests(self) -> dict[str, int]:
        """The digests of its rows, by slice."""
        return row_hash.sum_digests(
            {name: int(digest, 16) for name, digest in file["digests"].items()} for file in self.files
        )


WritableRows = TaskRows | VerifiedRows
"""Rows that tasks make, or make of rows of another slice while they hold these against what commits say of them."""


def write_draft(
    workers: TaskRunner, lake: Lake, table: Table, rows: FrameRows | WritableRows, where: Mapping[str, Any], what: str
) -> WriteDraft:
    """Write the rows of a slice beside the table; one Spark job at most. `what` names the write in errors.

    Raises:
        InputError: the rows don't fit the table's columns, types or constraints, or lie outside the slice.
        EnvironmentProblem: Spark's workers do not see the folder that the driver made.
        StateError: what they are made of is not what commits put there.
        PlatformError: as `assert_table_writable`.
    """
    assert_table_writable(lake, what, table)
    target = parse_path(lake.path(table))
    beside = get_draft_folder(target)
    folder = None if target.here is None else atomic.make_draft_folder(beside, table.name)
    if folder is not None:
        atomic.sweep_legacy_drafts(beside)
    rule = lake.digest_rule(table)
    source = rows if isinstance(rows, VerifiedRows) else None
    part = _TaskWriter(
        table, str(folder or ""), make_empty_log(table), dict(where), what, rule, str(target), str(beside), source
    )
    try:
        if isinstance(rows, TaskRows | VerifiedRows):
            made = rows if isinstance(rows, TaskRows) else rows.rows
            answers = workers.table(made.through(part.write), _REPORT_SCHEMA)
        else:
            answers = rows.table(part.write, _REPORT_SCHEMA)
        found = answers.to_pylist()
        for line in found:
            if line["refused"]:
                raise error_from_task_report(line["refused"], line["said"])
        if source is not None:
            source.accept(int(line["read"], 16) for line in found if line["read"])
    except BaseException:
        if folder is not None:
            atomic.discard_draft(folder)
        raise
    return WriteDraft(folder, tuple(json.loads(line["file"]) for line in found if line["file"]))


def collect_if_few(workers: TaskRunner, table: Table, rows: FrameRows | WritableRows) -> pa.Table | None:
    """The rows of one task that this process makes, where they are few and their partition is named by no time.

    Raises:
        StateError: what they are made of is not what commits put there.
    """
    if isinstance(rows, FrameRows):
        return None
    tasks = rows if isinstance(rows, TaskRows) else rows.rows
    if tasks.tasks != 1 or not workers.work_here(1) or writer.has_time_partitions(table):
        return None
    made: list[pa.RecordBatch] = []
    read: list[int] = []
    size, batches = 0, tasks.batches(0)
    for batch in rows.read(batches, read) if isinstance(rows, VerifiedRows) else batches:
        size += batch.nbytes
        if size > _FEW_BYTES:
            return None
        made += [batch] if batch.num_rows else []
    if isinstance(rows, VerifiedRows):
        rows.accept(read)
    return pa.Table.from_batches(made) if made else None


def check_rows(table: Table, rows: pa.Table, where: Mapping[str, Any], what: str) -> pa.Table:
    """Rows of a slice in the columns and types that they are written in.

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
    in_place_of: Collection[DataFile] | None = None,
) -> int:
    """Write checked rows in place of the slice's by one commit, without a draft: of few that takes a third of the time.

    Answers, and gives way to other writers, as `commit_draft`.

    Raises:
        ConflictError: the slice has by now other files than those that it is to be put `in_place_of`.
    """
    with lake.taken(table) as opened:
        filters = normalize_filters(table, [(name, "=", value) for name, value in where.items()])
        # What has to make room is looked for in the log alone; where there is nothing, deltalake need not look.
        held = list_data_files(opened, table, lake.path(table), filters)
        if in_place_of is not None and set(held) != set(in_place_of):
            raise ConflictError(f"{table.full_name} was written to meanwhile; run it again")
        replaced = filters_sql(filters) if filters else None
        name = row_hash.partition_name_from_values(table.partition_by, where)
        read_version = opened.version()
        write = partial(
            write_deltalake,
            with_data_files(opened) if held else opened,
            rows,
            writer_properties=writer.get_writer_properties(table, rows),
            post_commithook_properties=transaction_log.get_post_commit_hooks(opened),
        )

        def put(properties: transaction_log.DeltaCommitProperties) -> None:
            if held:
                write(mode="overwrite", predicate=replaced, commit_properties=properties)
            else:
                write(mode="append", commit_properties=properties)

        transaction_log.make_commit(
            opened,
            put,
            digests={name: 0} | row_hash.digest_rows(rows, table.partition_by, transaction_log.get_digest_rule(opened)),
        )
        return read_version + 1


def commit_draft(lake: Lake, table: Table, draft: WriteDraft, where: Mapping[str, Any]) -> int:
    """Put the files in place of the slice's rows; answers with the table's version in which they are.

    Only onto the version that was looked at, as every commit here: when another writer comes in between, deltalake
    raises its conflict, and the caller tries again from the look. With nothing to put in and nothing to take out,
    nothing is committed.

    Raises:
        EnvironmentProblem: a file is not where Spark's worker said it wrote it; nothing was committed.
    """
    with lake.taken(table) as opened:
        return _commit_opened(opened, lake, table, draft, where)


def _commit_opened(opened: DeltaTable, lake: Lake, table: Table, draft: WriteDraft, where: Mapping[str, Any]) -> int:
    if not draft.files and not lake.files(table, [(name, "=", value) for name, value in where.items()]):
        return opened.version()
    placed = _place_draft(lake, table, draft)
    name = row_hash.partition_name_from_values(table.partition_by, where)
    read_version = opened.version()
    transaction_log.make_commit(
        opened,
        lambda properties: opened.create_write_transaction(
            placed,
            "overwrite",
            opened.schema(),
            list(table.partition_by),
            [(column, "=", writer.format_partition_value(value)) for column, value in where.items()],
            commit_properties=properties,
            post_commithook_properties=transaction_log.get_post_commit_hooks(opened),
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
    beside: Mapping[str, int] | None = None,
    of: int | None = None,
) -> bool:
    """Put the files behind the table's rows, or in place of all of them in the declared columns; whether it was now.

    With a `transaction` (application and its number) not if the table has seen that number or a higher one. `beside`
    are numbers of other applications that are kept with it, also where there is no file. `of` is the version of the
    table that the rows were made of.

    Raises:
        EnvironmentProblem: as `commit_draft`.
        ConflictError: it is of another version by now.
    """
    with lake.taken(table) as opened:
        if of is not None and opened.version() != of:
            raise ConflictError(f"{table.full_name} was written to meanwhile; run it again")
        numbers = {} if transaction is None else dict([transaction]) | dict(beside or {})
        return _commit_opened_once(opened, lake, table, draft, transaction, numbers, append=append)


def _commit_opened_once(
    opened: DeltaTable,
    lake: Lake,
    table: Table,
    draft: WriteDraft,
    transaction: tuple[str, int] | None,
    numbers: Mapping[str, int],
    *,
    append: bool,
) -> bool:
    seen = None if transaction is None else opened.transaction_version(transaction[0])
    if transaction is not None and seen is not None and seen >= transaction[1]:
        return False
    if append and not draft.files and len(numbers) < 2:
        return False
    placed, added = _place_draft(lake, table, draft), draft.digests
    if append:
        after = row_hash.update_digests(writer.get_digests_before(opened, table, added), added, {})
    else:
        held = [row_hash.format_partition_name(table.partition_by, part.key) for part in lake.slices(table)]
        after = dict.fromkeys(held if table.partition_by else [""], 0) | added
    transaction_log.make_commit(
        opened,
        lambda properties: opened.create_write_transaction(
            placed,
            "append" if append else "overwrite",
            opened.schema() if append else Schema.from_arrow(pa.schema(table.schema)),
            list(table.partition_by),
            commit_properties=properties,
            post_commithook_properties=transaction_log.get_post_commit_hooks(opened),
        ),
        digests=after,
        numbers=numbers,
    )
    return True


def discard_write_draft(draft: WriteDraft) -> None:
    """Remove a draft, or what is left of it. Files of a store that no commit names go with the table's upkeep."""
    if draft.folder is not None:
        atomic.discard_draft(draft.folder)


@dataclass(frozen=True, eq=False)
class _TaskWriter:
    """One task's part of a write; travels to the executors, which share the lake's place with the driver.

    `folder`: the draft that it writes into, beside `target`; empty where that lies in a store: what is written there is
    not seen before a commit names it. On its way there it lies in `here`, the driver's own part of the home, or, where
    the executor does not see that, with its temporary files. `source`: what the rows that it gets are to be held
    against before others are made of them, see there.
    """

    table: Table
    folder: str
    blank: InitialLog
    where: Mapping[str, Any]
    what: str
    rule: row_hash.DigestRule
    target: str = ""
    here: str = ""
    source: VerifiedRows | None = None

    def write(self, batches: Batches) -> Batches:
        """Rows in; the actions that add their files out."""
        read: list[int] = []
        try:
            made = batches if self.source is None else self.source.read(batches, read)
            lines = [{"file": json.dumps(file)} for file in self._written(made)]
            lines += [{"read": f"{sum(read):x}"}] if read else []
        except (PlatformError, DeltaError) as error:
            # As an error of Python in a task of Spark it would lose its class, and be run again for nothing.
            told = error if isinstance(error, PlatformError) else translate_error(error, self.what)
            if told is None or (isinstance(told, Unavailable) and is_retried_elsewhere()):
                raise
            # By the class of the platform's own that it is: rooms above have some that only they know.
            known = next(each.__name__ for each in type(told).__mro__ if getattr(errors, each.__name__, None) is each)
            lines = [{"refused": known, "said": str(told)}]
        columns = [pa.array([line.get(name) for line in lines], pa.string()) for name in _REPORT_SCHEMA.names]
        yield pa.RecordBatch.from_arrays(columns, schema=_REPORT_SCHEMA)

    def _written(self, batches: Batches) -> list[dict[str, Any]]:
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return []
        if self.folder and not Path(self.folder).is_dir():
            raise EnvironmentProblem(f"{self.what}: {_format_unseen(self.folder)}")
        failed: list[Exception] = []
        seen: list[dict[str, int]] = []
        checked = self._checked(chain([first], batches), failed, seen)
        rows = pa.RecordBatchReader.from_batches(self.table.schema, checked)
        try:
            added = self._placed(rows)
        except DeltaError:
            if failed:  # Arrow's stream between the two hands on what an error says, not what it is.
                raise failed[0] from None
            raise
        held = {slice_: f"{digest:032x}" for slice_, digest in row_hash.sum_digests(seen).items()}
        # Of all rows of the task: which are in which of its files, nobody asks.
        return [file | {"digests": {} if place else held} for place, file in enumerate(added)]

    def _placed(self, rows: pa.RecordBatchReader) -> list[dict[str, Any]]:
        how = writer.get_bulk_writer_properties(self.table)
        if self.folder:
            return writer.write_draft_files(self.blank, Path(self.folder, uuid.uuid4().hex), rows, how)
        with atomic.temporary_folder(self.table.name, get_writable_folder(Path(self.here))) as folder:
            added = writer.write_draft_files(self.blank, folder / "rows", rows, how)
            for file in added:
                path = decode_path(file["path"])
                (parse_path(self.target) / path).receive(folder / "rows" / path)
            return added

    def _checked(self, batches: Batches, failed: list[Exception], seen: list[dict[str, int]]) -> Batches:
        try:
            for batch in batches:
                rows = check_rows(self.table, pa.Table.from_batches([batch]), self.where, self.what)
                seen.append(row_hash.digest_rows(rows, self.table.partition_by, self.rule))
                yield from rows.to_batches()
        except Exception as error:
            failed.append(error)
            raise


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
