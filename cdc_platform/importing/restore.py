"""Restore damaged partitions of imported tables from the files that were imported.

Rows are replaced only if the new rows, together with the readable old ones, match the digest of the commit that wrote
the lost rows. Exported files do not contain the time at which an import entered ledger rows; Delta's log has its
millisecond per file, and the digest identifies the microsecond.
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
    WriteSource,
    compute,
    conform_rows,
    read_file_batches,
    retry_on_conflict,
    row_hash,
    task_writer,
    verify_tables,
    write_as,
)
from cdc_platform.importing.run import WRITE_ORDER, import_sources
from cdc_platform.importing.sources import ImportSources
from cdc_platform.metastore import read_nodes, replace_ring
from cdc_platform.storage import atomic
from cdc_platform.tables import GENERATIONS, UNORDERED_RANGES, Table

_ENTERED, _PUBLISHED = "created_at", "published_at"
_MAX_TRIES = 2_000_000
"""Two files already have a million combinations of timestamps."""


def backdate_rows(lake: Lake, rows: pa.Table, readable: pa.Table, lost: Sequence[str], due: int) -> pa.Table | None:
    """Return `readable` plus the ledger `rows` with the timestamps that give the digest `due`, or None if none do.

    `rows` include the rows of the data files `lost` (paths).
    """
    rule = lake.digest_rule(GENERATIONS)

    def digest(table: pa.Table) -> int:
        return row_hash.digest_rows(table, (), rule).get("", 0)

    candidates: list[list[tuple[int, pa.Table]]] = []
    for file in _bounded_files(lake, lost, "time"):
        file_rows = rows.filter((compute.field("time") >= file.low) & (compute.field("time") <= file.high))
        if file_rows.num_rows != file.rows:
            return None
        candidates.append([(digest(table), table) for table in _candidate_rows(lake, file_rows, file.path)])
    if prod(map(len, candidates)) > _MAX_TRIES:
        return None
    missing = (due - digest(readable)) % row_hash.DIGEST_MODULUS
    for choice in product(*candidates):
        if sum(number for number, _ in choice) % row_hash.DIGEST_MODULUS == missing:
            return pa.concat_tables([readable, *(table for _, table in choice)])
    return None


def _bounded_files(lake: Lake, paths: Sequence[str], name: str) -> list[BoundedFile]:
    """Return the files of these paths with the bounds of a column."""
    return [file for file in lake.bounded_files(GENERATIONS, name) if file.path in paths]


def _candidate_rows(lake: Lake, rows: pa.Table, path: str) -> Iterator[pa.Table]:
    """Yield the rows of a file with each timestamp at which all of them may have been entered."""
    (entered,), (published,) = (_bounded_files(lake, [path], name) for name in (_ENTERED, _PUBLISHED))
    if entered.low is None or entered.low != entered.high:
        return
    first = us_from_datetime(entered.low)
    for entered_us in range(first, first + us_from_ms(ONE_MS)):
        yield _with_entry_time(rows, datetime_from_us(Microseconds(entered_us)), is_published=published.low is not None)


def _with_entry_time(rows: pa.Table, entered_at: datetime, *, is_published: bool) -> pa.Table:
    """Return rows entered at `entered_at`, which is also when they were published, if they were."""
    at = pa.scalar(entered_at, GENERATIONS.schema.field(_ENTERED).type)
    never = pa.scalar(None, at.type)
    published = compute.if_else(compute.is_valid(rows[_PUBLISHED]), at if is_published else never, never)
    for name, values in ((_ENTERED, pa.repeat(at, rows.num_rows)), (_PUBLISHED, published)):
        rows = rows.set_column(rows.schema.get_field_index(name), GENERATIONS.schema.field(name), values)
    return rows


@dataclass(frozen=True)
class RestoredPartition:
    """A partition with the rows of its commits restored, and the version that restored them."""

    table: str
    slice: str
    version: int


def restore_rows(
    lake: Lake, clock: Clock, read: Callable[[], ImportSources]
) -> tuple[list[RestoredPartition], list[str]]:
    """Restore damaged partitions from the files that `read` reads; return them and the lines of the remaining damage.

    Raises:
        InputError: the files are refused, as by any import; nothing was written.
        ConflictError: other writers changed a table at every attempt.
    """
    tables = {table.full_name: table for table in (UNORDERED_RANGES, *WRITE_ORDER)}
    damaged = [table for table in verify_tables(lake, deep=True, names=tables) if table.broken or table.is_unreadable]
    remaining = [line for table in damaged if table.is_unreadable for line in table.damage]
    restored: list[RestoredPartition] = []
    if not any(table.broken for table in damaged):
        return restored, remaining
    with atomic.temporary_folder("import") as folder:
        alone = Lake(folder / "lake")
        replace_ring(alone, read_nodes(lake))
        import_sources(alone, clock, read())
        for table in damaged:
            for name, due in table.broken.items():
                result = _restore_partition(lake, alone, tables[table.name], name, due)
                if isinstance(result, RestoredPartition):
                    restored.append(result)
                else:
                    remaining += [f"{line}; {result}" for line in _damage_lines(table, name)]
    return restored, remaining


def _restore_partition(lake: Lake, alone: Lake, table: Table, name: str, due: int | None) -> RestoredPartition | str:
    """Restore a partition from the imported files, or return the reason why it cannot be restored."""
    if due is None:
        return "no commit has a digest of its rows"
    existing, imported = _partition_files(lake, table, name), _partition_files(alone, table, name)
    if not imported:
        return "the files have no rows of this partition"
    key = imported[0].partition
    imported_rows = _read_rows(table, imported, key)
    lost = [file for file in existing if not _is_readable(file)]
    readable_rows = _read_rows(table, [file for file in existing if file not in lost], key)
    rule = lake.digest_rule(table)
    # A readable row may itself be the altered one, even in its key, or have a value derived from its import time.
    candidates = (
        imported_rows,
        _union_by_key(table, imported_rows, readable_rows),
        _union_by_key(table, readable_rows, imported_rows),
    )
    rows = next(
        (
            candidate
            for candidate in candidates
            if row_hash.digest_rows(candidate, table.partition_by, rule).get(name) == due
        ),
        None,
    )
    if rows is None and table is GENERATIONS:
        rows = _restore_backdated(lake, imported_rows, existing, lost, due)
    if rows is None:
        is_all = table is GENERATIONS and imported_rows.num_rows >= sum(file.rows for file in existing)
        at = ", and the log does not show when an import entered them" if is_all else ""
        return f"the files do not give the lost rows{at}"
    where, what = dict(zip(table.partition_by, key, strict=True)), f"restoring rows of {table.full_name}"
    with write_as(WriteSource.STATED):
        version = retry_on_conflict(
            what, lambda: task_writer.commit_few_rows(lake, table, rows, where, replaced_files=existing)
        )
    return RestoredPartition(table.full_name, name, version)


def _restore_backdated(
    lake: Lake, imported: pa.Table, existing: list[DataFile], lost: list[DataFile], due: int
) -> pa.Table | None:
    """Return ledger rows backdated to the entry time of the lost files, or of any one file if all are readable."""
    for replaced in [lost] if lost else [[file] for file in existing]:
        readable_rows = _read_rows(GENERATIONS, [file for file in existing if file not in replaced], ())
        missing = _exclude_keys(GENERATIONS, imported, readable_rows)
        rows = backdate_rows(lake, missing, readable_rows, [file.path for file in replaced], due)
        if rows is not None:
            return rows
    return None


def _partition_files(lake: Lake, table: Table, name: str) -> list[DataFile]:
    """Return the files of a partition, by its name."""
    return [
        file
        for file in lake.data_files(table)
        if row_hash.format_partition_name(table.partition_by, file.partition) == name
    ]


def _read_rows(table: Table, files: list[DataFile], key: tuple[object, ...]) -> pa.Table:
    """Return the rows of a partition's files, with the partition's values as columns."""
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
    """Return True if the file is complete and its values are valid (such as UTF-8 text)."""
    rows = 0
    try:
        for batch in read_file_batches(file.path):
            batch.validate(full=True)
            rows += batch.num_rows
        return rows == file.rows
    except (OSError, pa.ArrowException, ValueError):
        return False


def _union_by_key(table: Table, rows: pa.Table, others: pa.Table) -> pa.Table:
    """Return `rows`, and those of `others` with other keys."""
    return pa.concat_tables([rows, _exclude_keys(table, others, rows)])


def _exclude_keys(table: Table, rows: pa.Table, others: pa.Table) -> pa.Table:
    """Return the rows whose key is not among the keys of `others`."""
    known = set(_row_keys(table, others))
    return rows.filter(pa.array([key not in known for key in _row_keys(table, rows)], pa.bool_()))


def _row_keys(table: Table, rows: pa.Table) -> Iterator[tuple[object, ...]]:
    return zip(*(rows[key].to_pylist() for key in table.keys), strict=True)


def _damage_lines(verification: TableVerification, name: str) -> list[str]:
    """Return the damage of a partition, or of the whole table if no message names the partition."""
    wrong = [*verification.damage, *verification.unexpected]
    return [line for line in wrong if name and name in line] or wrong
