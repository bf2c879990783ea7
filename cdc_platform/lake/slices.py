"""Rows in volume: Spark's tasks write the files, and one atomic commit puts them into their table.

In place of a slice's rows, behind those that there are, or in place of all; a commit names no file that was not seen
where it belongs. Each task writes with deltalake into a Delta table of its own that has the declared shape and
constraints, so that Parquet, statistics, NOT NULL and CHECKs are those of every other write. Nothing is seen before the
commit. Delta on Spark took five times as long: it rebuilds a table's state before it replaces a slice (a third of
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

from cdc_platform import drafts, errors
from cdc_platform.errors import ConflictError, EnvironmentProblem, InputError, PlatformError, Unavailable
from cdc_platform.lake import commits, digests, file_properties, merging, placing
from cdc_platform.lake.arrow import compute
from cdc_platform.lake.committed import Committed
from cdc_platform.lake.creation import Log, blank
from cdc_platform.lake.elsewhere import is_tried_elsewhere
from cdc_platform.lake.files import DataFile, data_files, draft_folder, own_or_temporary, plain_path
from cdc_platform.lake.filters import filters_sql, normal_filters
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.mirrored_logs import with_files
from cdc_platform.lake.rows import conform
from cdc_platform.lake.tables import Table
from cdc_platform.lake.translate import OUTSIDE_SLICE, told_by_task, translate
from cdc_platform.lake.volume import Batches, FrameRows, TaskRows, Workers
from cdc_platform.lake.writable import assert_writable
from cdc_platform.places import place_of

_ANSWER = pa.schema({"file": pa.string(), "refused": pa.string(), "said": pa.string(), "read": pa.string()})
"""What a task answers: a line a file, with the action that adds it, and one with the digest of those that it has made
others of; or one that says why it refuses its rows.
"""
_FEW_BYTES = 1 << 20


@dataclass(frozen=True, eq=False)
class Draft:
    """Files that are written, in a folder beside their table, and in no table yet.

    In a store there is no such folder: they are where they are to be, under names that nobody else has.
    """

    folder: Path | None
    files: tuple[dict[str, Any], ...]

    @property
    def digests(self) -> dict[str, int]:
        """The digests of its rows, by slice."""
        return digests.summed(
            {name: int(digest, 16) for name, digest in file["digests"].items()} for file in self.files
        )


Rows = TaskRows | Committed
"""Rows that tasks make, or make of rows of another slice while they hold these against what commits say of them."""


def write_draft(
    workers: Workers, lake: Lake, table: Table, rows: FrameRows | Rows, where: Mapping[str, Any], what: str
) -> Draft:
    """Write the rows of a slice beside the table; one Spark job at most. `what` names the write in errors.

    Raises:
        InputError: the rows don't fit the table's columns, types or constraints, or lie outside the slice.
        EnvironmentProblem: Spark's workers do not see the folder that the driver made.
        StateError: what they are made of is not what commits put there.
        PlatformError: as `assert_writable`.
    """
    assert_writable(lake, what, table)
    target = place_of(lake.path(table))
    beside = draft_folder(target)
    folder = None if target.here is None else drafts.make_folder(beside, table.name)
    if folder is not None:
        drafts.sweep_unheld(beside)
    rule = lake.digest_rule(table)
    source = rows if isinstance(rows, Committed) else None
    part = _Part(table, str(folder or ""), blank(table), dict(where), what, rule, str(target), str(beside), source)
    try:
        if isinstance(rows, TaskRows | Committed):
            made = rows if isinstance(rows, TaskRows) else rows.rows
            answers = workers.table(made.through(part.write), _ANSWER)
        else:
            answers = rows.table(part.write, _ANSWER)
        found = answers.to_pylist()
        for line in found:
            if line["refused"]:
                raise told_by_task(line["refused"], line["said"])
        if source is not None:
            source.accept(int(line["read"], 16) for line in found if line["read"])
    except BaseException:
        if folder is not None:
            drafts.discard(folder)
        raise
    return Draft(folder, tuple(json.loads(line["file"]) for line in found if line["file"]))


def few(workers: Workers, table: Table, rows: FrameRows | Rows) -> pa.Table | None:
    """The rows of one task that this process makes, where they are few and their partition is named by no time.

    Raises:
        StateError: what they are made of is not what commits put there.
    """
    if isinstance(rows, FrameRows):
        return None
    tasks = rows if isinstance(rows, TaskRows) else rows.rows
    if tasks.tasks != 1 or not workers.work_here(1) or placing.has_times(table):
        return None
    made: list[pa.RecordBatch] = []
    read: list[int] = []
    size, batches = 0, tasks.batches(0)
    for batch in rows.read(batches, read) if isinstance(rows, Committed) else batches:
        size += batch.nbytes
        if size > _FEW_BYTES:
            return None
        made += [batch] if batch.num_rows else []
    if isinstance(rows, Committed):
        rows.accept(read)
    return pa.Table.from_batches(made) if made else None


def checked(table: Table, rows: pa.Table, where: Mapping[str, Any], what: str) -> pa.Table:
    """Rows of a slice in the columns and types that they are written in.

    Raises:
        InputError: as `write_draft`.
    """
    fit = conform(table, rows)
    for column, value in where.items():
        _refuse_outside(fit, column, value, what)
    return fit


def commit_few(
    lake: Lake,
    table: Table,
    rows: pa.Table,
    where: Mapping[str, Any],
    in_place_of: Collection[DataFile] | None = None,
) -> int:
    """Write checked rows in place of the slice's by one commit, without a draft: of few that takes a third of the time.

    Answers, and gives way to other writers, as `commit`.

    Raises:
        ConflictError: the slice has by now other files than those that it is to be put `in_place_of`.
    """
    with lake.taken(table) as opened:
        filters = normal_filters(table, [(name, "=", value) for name, value in where.items()])
        # What has to make room is looked for in the log alone; where there is nothing, deltalake need not look.
        held = data_files(opened, table, lake.path(table), filters)
        if in_place_of is not None and set(held) != set(in_place_of):
            raise ConflictError(f"{table.full_name} was written to meanwhile; run it again")
        replaced = filters_sql(filters) if filters else None
        name = digests.slice_of(table.partition_by, where)
        read_version = opened.version()
        write = partial(
            write_deltalake,
            with_files(opened) if held else opened,
            rows,
            writer_properties=file_properties.of_rows(table, rows),
            post_commithook_properties=commits.hooks_of(opened),
        )

        def put(properties: commits.Properties) -> None:
            if held:
                write(mode="overwrite", predicate=replaced, commit_properties=properties)
            else:
                write(mode="append", commit_properties=properties)

        commits.make(
            opened, put, digests={name: 0} | digests.of_rows(rows, table.partition_by, commits.digest_rule(opened))
        )
        return read_version + 1


def commit(lake: Lake, table: Table, draft: Draft, where: Mapping[str, Any]) -> int:
    """Put the files in place of the slice's rows; answers with the table's version in which they are.

    Only onto the version that was looked at, as every commit here: when another writer comes in between, deltalake
    raises its conflict, and the caller tries again from the look. With nothing to put in and nothing to take out,
    nothing is committed.

    Raises:
        EnvironmentProblem: a file is not where Spark's worker said it wrote it; nothing was committed.
    """
    with lake.taken(table) as opened:
        return _commit(opened, lake, table, draft, where)


def _commit(opened: DeltaTable, lake: Lake, table: Table, draft: Draft, where: Mapping[str, Any]) -> int:
    if not draft.files and not lake.files(table, [(name, "=", value) for name, value in where.items()]):
        return opened.version()
    placed = _placed(lake, table, draft)
    name = digests.slice_of(table.partition_by, where)
    read_version = opened.version()
    commits.make(
        opened,
        lambda properties: opened.create_write_transaction(
            placed,
            "overwrite",
            opened.schema(),
            list(table.partition_by),
            [(column, "=", placing.partition_text(value)) for column, value in where.items()],
            commit_properties=properties,
            post_commithook_properties=commits.hooks_of(opened),
        ),
        digests={name: 0} | draft.digests,
    )
    return read_version + 1


def commit_once(
    lake: Lake,
    table: Table,
    draft: Draft,
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
        EnvironmentProblem: as `commit`.
        ConflictError: it is of another version by now.
    """
    with lake.taken(table) as opened:
        if of is not None and opened.version() != of:
            raise ConflictError(f"{table.full_name} was written to meanwhile; run it again")
        numbers = {} if transaction is None else dict([transaction]) | dict(beside or {})
        return _commit_once(opened, lake, table, draft, transaction, numbers, append=append)


def _commit_once(
    opened: DeltaTable,
    lake: Lake,
    table: Table,
    draft: Draft,
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
    placed, added = _placed(lake, table, draft), draft.digests
    if append:
        after = digests.changed(merging.before(opened, table, added), added, {})
    else:
        held = [digests.slice_name(table.partition_by, part.key) for part in lake.slices(table)]
        after = dict.fromkeys(held if table.partition_by else [""], 0) | added
    commits.make(
        opened,
        lambda properties: opened.create_write_transaction(
            placed,
            "append" if append else "overwrite",
            opened.schema() if append else Schema.from_arrow(pa.schema(table.schema)),
            list(table.partition_by),
            commit_properties=properties,
            post_commithook_properties=commits.hooks_of(opened),
        ),
        digests=after,
        numbers=numbers,
    )
    return True


def discard(draft: Draft) -> None:
    """Remove a draft, or what is left of it. Files of a store that no commit names go with the table's upkeep."""
    if draft.folder is not None:
        drafts.discard(draft.folder)


@dataclass(frozen=True, eq=False)
class _Part:
    """One task's part of a write; travels to the executors, which share the lake's place with the driver.

    `folder`: the draft that it writes into, beside `target`; empty where that lies in a store: what is written there is
    not seen before a commit names it. On its way there it lies in `here`, the driver's own part of the home, or, where
    the executor does not see that, with its temporary files. `source`: what the rows that it gets are to be held
    against before others are made of them, see there.
    """

    table: Table
    folder: str
    blank: Log
    where: Mapping[str, Any]
    what: str
    rule: digests.Rule
    target: str = ""
    here: str = ""
    source: Committed | None = None

    def write(self, batches: Batches) -> Batches:
        """Rows in; the actions that add their files out."""
        read: list[int] = []
        try:
            made = batches if self.source is None else self.source.read(batches, read)
            lines = [{"file": json.dumps(file)} for file in self._written(made)]
            lines += [{"read": f"{sum(read):x}"}] if read else []
        except (PlatformError, DeltaError) as error:
            # As an error of Python in a task of Spark it would lose its class, and be run again for nothing.
            told = error if isinstance(error, PlatformError) else translate(error, self.what)
            if told is None or (isinstance(told, Unavailable) and is_tried_elsewhere()):
                raise
            # By the class of the platform's own that it is: rooms above have some that only they know.
            known = next(each.__name__ for each in type(told).__mro__ if getattr(errors, each.__name__, None) is each)
            lines = [{"refused": known, "said": str(told)}]
        columns = [pa.array([line.get(name) for line in lines], pa.string()) for name in _ANSWER.names]
        yield pa.RecordBatch.from_arrays(columns, schema=_ANSWER)

    def _written(self, batches: Batches) -> list[dict[str, Any]]:
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return []
        if self.folder and not Path(self.folder).is_dir():
            raise EnvironmentProblem(f"{self.what}: {_unseen(self.folder)}")
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
        held = {slice_: f"{digest:032x}" for slice_, digest in digests.summed(seen).items()}
        # Of all rows of the task: which are in which of its files, nobody asks.
        return [file | {"digests": {} if place else held} for place, file in enumerate(added)]

    def _placed(self, rows: pa.RecordBatchReader) -> list[dict[str, Any]]:
        how = file_properties.of_many(self.table)
        if self.folder:
            return placing.write(self.blank, Path(self.folder, uuid.uuid4().hex), rows, how)
        with drafts.temporary_folder(self.table.name, own_or_temporary(Path(self.here))) as folder:
            added = placing.write(self.blank, folder / "rows", rows, how)
            for file in added:
                path = plain_path(file["path"])
                (place_of(self.target) / path).receive(folder / "rows" / path)
            return added

    def _checked(self, batches: Batches, failed: list[Exception], seen: list[dict[str, int]]) -> Batches:
        try:
            for batch in batches:
                rows = checked(self.table, pa.Table.from_batches([batch]), self.where, self.what)
                seen.append(digests.of_rows(rows, self.table.partition_by, self.rule))
                yield from rows.to_batches()
        except Exception as error:
            failed.append(error)
            raise


def _refuse_outside(rows: pa.Table, column: str, value: Any, what: str) -> None:
    due = pa.scalar(str(value) if isinstance(value, uuid.UUID) else value, rows[column].type)
    wrong = compute.index(compute.equal(rows[column], due), False).as_py()
    if wrong >= 0:
        raise InputError(f"{what}: {OUTSIDE_SLICE} ({column} : {rows[column][wrong].as_py()})")


def _placed(lake: Lake, table: Table, draft: Draft) -> list[AddAction | RemoveAction]:
    return placing.placed(table, lake.path(table), draft.folder, draft.files, _unseen("{}"))


def _unseen(path: str) -> str:
    return (
        f"Spark's workers do not see the home as this process does ({path}); mount it at the same path on every "
        "worker, or run on this machine alone (without SPARK_REMOTE)"
    )
