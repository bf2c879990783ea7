"""Restore damaged partitions of imported tables from the same files.

Rows are replaced only if the new ones, with the readable old ones, have the digest of the commit that wrote the
lost ones. No exported file has the time at which an import entered ledger rows: Delta's log has its millisecond per
file, and the digest identifies the microsecond.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import product
from math import prod

import pyarrow as pa

from cdc_platform.clock import ONE_MS, Clock, Microseconds, datetime_from_us, us_from_datetime, us_from_ms
from cdc_platform.delta import (
    BoundedFile,
    DataFile,
    Lake,
    TableVerification,
    allow_writes,
    compute,
    conform_rows,
    read_file_batches,
    retry_on_conflict,
    row_hash,
    task_writer,
    verify_tables,
)
from cdc_platform.importing.run import WRITE_ORDER, ImportSources, import_sources
from cdc_platform.metastore import read_nodes, replace_ring
from cdc_platform.storage import atomic
from cdc_platform.tables import GENERATIONS, UNORDERED_RANGES, Table

_ENTERED, _PUBLISHED = "created_at", "published_at"
_MAX_TRIES = 2_000_000
"""Of two files there are a million moments."""


def backdate_rows(lake: Lake, rows: pa.Table, kept: pa.Table, lost: Sequence[str], due: int) -> pa.Table | None:
    """Rows of the ledger at the moments at which they, with `kept` ones, have the digest `due`; None: there are none.

    Among `rows` are those that the data files `lost`, which are named by their paths, had.
    """
    rule = lake.digest_rule(GENERATIONS)

    def digest(some: pa.Table) -> int:
        return row_hash.digest_rows(some, (), rule).get("", 0)

    of_files: list[list[tuple[int, pa.Table]]] = []
    for file in _bounded_files(lake, lost, "time"):
        held = rows.filter((compute.field("time") >= file.low) & (compute.field("time") <= file.high))
        if held.num_rows != file.rows:
            return None
        of_files.append([(digest(some), some) for some in _candidate_rows(lake, held, file.path)])
    if prod(map(len, of_files)) > _MAX_TRIES:
        return None
    missing = (due - digest(kept)) % row_hash.DIGEST_MODULUS
    for some in product(*of_files):
        if sum(number for number, _ in some) % row_hash.DIGEST_MODULUS == missing:
            return pa.concat_tables([kept, *(each for _, each in some)])
    return None


def _bounded_files(lake: Lake, paths: Sequence[str], name: str) -> list[BoundedFile]:
    """The files of these paths with the bounds of a column."""
    return [file for file in lake.bounded_files(GENERATIONS, name) if file.path in paths]


def _candidate_rows(lake: Lake, rows: pa.Table, path: str) -> Iterator[pa.Table]:
    """Rows that a file had, as entered at each moment at which all of them can have been."""
    (entered,), (published,) = (_bounded_files(lake, [path], name) for name in (_ENTERED, _PUBLISHED))
    if entered.low is None or entered.low != entered.high:
        return
    first = us_from_datetime(entered.low)
    for moment in range(first, first + us_from_ms(ONE_MS)):
        yield _with_entry_time(rows, datetime_from_us(Microseconds(moment)), is_published=published.low is not None)


def _with_entry_time(rows: pa.Table, moment: datetime, *, is_published: bool) -> pa.Table:
    """Rows as entered at a moment, which is also when their publishing was finished, where it was."""
    at = pa.scalar(moment, GENERATIONS.schema.field(_ENTERED).type)
    never = pa.scalar(None, at.type)
    published = compute.if_else(compute.is_valid(rows[_PUBLISHED]), at if is_published else never, never)
    for name, values in ((_ENTERED, pa.repeat(at, rows.num_rows)), (_PUBLISHED, published)):
        rows = rows.set_column(rows.schema.get_field_index(name), GENERATIONS.schema.field(name), values)
    return rows


@dataclass(frozen=True)
class RestoredPartition:
    """A slice that has the rows again which its commits put there, and the version in which it has them."""

    table: str
    slice: str
    version: int


def restore_rows(
    lake: Lake, clock: Clock, read: Callable[[], ImportSources]
) -> tuple[list[RestoredPartition], list[str]]:
    """Make damaged slices anew of files that `read` reads; answers with those, and with what is left, in words.

    Raises:
        InputError: the files are refused, as by any import; nothing was written.
        ConflictError: other writers kept changing a table.
    """
    tables = {table.full_name: table for table in (UNORDERED_RANGES, *WRITE_ORDER)}
    found = [each for each in verify_tables(lake, deep=True, names=tables) if each.broken or each.is_unreadable]
    left = [line for each in found if each.is_unreadable for line in each.damage]
    done: list[RestoredPartition] = []
    if not any(each.broken for each in found):
        return done, left
    with atomic.temporary_folder("import") as folder:
        alone = Lake(folder / "lake")
        replace_ring(alone, read_nodes(lake))
        import_sources(alone, clock, read())
        for each in found:
            for name, due in each.broken.items():
                made = _restore_partition(lake, alone, tables[each.name], name, due)
                if isinstance(made, RestoredPartition):
                    done.append(made)
                else:
                    left += [f"{line}; {made}" for line in _damage_lines(each, name)]
    return done, left


def _restore_partition(lake: Lake, alone: Lake, table: Table, name: str, due: int | None) -> RestoredPartition | str:
    """Put a slice in its place that the files make again; or why it is not."""
    if due is None:
        return "no commit says which rows were there"
    there, made = _partition_files(lake, table, name), _partition_files(alone, table, name)
    if not made:
        return "the files have no rows of it"
    key = made[0].partition
    brought = _read_rows(table, made, key)
    lost = [file for file in there if not _is_readable(file)]
    kept = _read_rows(table, [file for file in there if file not in lost], key)
    rule = lake.digest_rule(table)
    # A row that is readable may be the changed one, also in its key, or have what only the moment of its import said.
    any_of = (brought, _union_by_key(table, brought, kept), _union_by_key(table, kept, brought))
    rows = next(
        (some for some in any_of if row_hash.digest_rows(some, table.partition_by, rule).get(name) == due), None
    )
    if rows is None and table is GENERATIONS:
        rows = _restore_backdated(lake, brought, there, lost, due)
    if rows is None:
        is_all = table is GENERATIONS and brought.num_rows >= sum(file.rows for file in there)
        at = ", and the log does not tell the moment at which an import entered them" if is_all else ""
        return f"the files do not give the rows that were there{at}"
    where, what = dict(zip(table.partition_by, key, strict=True)), f"making rows of {table.full_name} anew"
    with allow_writes():
        version = retry_on_conflict(
            what, lambda: task_writer.commit_few_rows(lake, table, rows, where, in_place_of=there)
        )
    return RestoredPartition(table.full_name, name, version)


def _restore_backdated(
    lake: Lake, brought: pa.Table, there: list[DataFile], lost: list[DataFile], due: int
) -> pa.Table | None:
    """The rows of the ledger, those of lost files as entered when they were; of a file that reads, which may be any."""
    for some in [lost] if lost else [[file] for file in there]:
        kept = _read_rows(GENERATIONS, [file for file in there if file not in some], ())
        missing = _exclude_keys(GENERATIONS, brought, kept)
        rows = backdate_rows(lake, missing, kept, [file.path for file in some], due)
        if rows is not None:
            return rows
    return None


def _partition_files(lake: Lake, table: Table, name: str) -> list[DataFile]:
    """The files of a slice, by its name."""
    return [
        file
        for file in lake.data_files(table)
        if row_hash.format_partition_name(table.partition_by, file.partition) == name
    ]


def _read_rows(table: Table, files: list[DataFile], key: tuple[object, ...]) -> pa.Table:
    """The rows of files of a slice, with the values that name it."""
    parts = [table.schema.empty_table()]
    for file in files:
        batches = list(read_file_batches(file.path))
        if batches:
            part = pa.Table.from_batches(batches)
            for column, value in zip(table.partition_by, key, strict=True):
                kind = table.schema.field(column).type
                part = part.append_column(column, pa.array([value] * part.num_rows, kind))
            parts.append(conform_rows(table, part))
    return pa.concat_tables(parts)


def _is_readable(file: DataFile) -> bool:
    """Whether all of it is there, and texts are some: what cannot be that is not what was written."""
    rows = 0
    try:
        for batch in read_file_batches(file.path):
            batch.validate(full=True)
            rows += batch.num_rows
        return rows == file.rows
    except (OSError, pa.ArrowException, ValueError):
        return False


def _union_by_key(table: Table, rows: pa.Table, others: pa.Table) -> pa.Table:
    """Rows, and those of others that have another key."""
    return pa.concat_tables([rows, _exclude_keys(table, others, rows)])


def _exclude_keys(table: Table, rows: pa.Table, others: pa.Table) -> pa.Table:
    """The rows that have another key than each of the others."""
    known = set(_row_keys(table, others))
    return rows.filter(pa.array([key not in known for key in _row_keys(table, rows)], pa.bool_()))


def _row_keys(table: Table, rows: pa.Table) -> Iterator[tuple[object, ...]]:
    return zip(*(rows[key].to_pylist() for key in table.keys), strict=True)


def _damage_lines(found: TableVerification, name: str) -> list[str]:
    """What is wrong with a slice of a table, or of the table where that is not said of the slice."""
    wrong = [*found.damage, *found.strange]
    return [line for line in wrong if name and name in line] or wrong
