"""Change the rows of an opened Delta table in one commit that records the digests of the changed partitions.

Added and removed rows are known before deltalake writes. The commit is the version after the one that was read, or
fails; `Lake` retries. Tables partitioned by time are written through a draft and our own add actions: deltalake would
write partition times without a zone, and a reader in another zone would read another time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat
from deltalake import ColumnProperties, WriterProperties, write_deltalake
from deltalake.transaction import AddAction, RemoveAction

from cdc_platform.clock import Microseconds, datetime_from_us, parse_time_us, us_from_datetime
from cdc_platform.delta import commits, files, row_hash
from cdc_platform.delta.arrow import compute
from cdc_platform.delta.commits import DeltaCommitProperties, get_post_commit_hooks
from cdc_platform.delta.conform import conform_rows, refuse_repeated_keys, strip_comments
from cdc_platform.delta.create import InitialLog, make_empty_log, write_log
from cdc_platform.delta.errors import translate_read_errors
from cdc_platform.delta.files import (
    Filter,
    filters_sql,
    normalize_filters,
    quote_column,
)
from cdc_platform.delta.open_table import OpenTable
from cdc_platform.delta.paths import LOG_FOLDER, decode_path, get_draft_folder
from cdc_platform.delta.row_hash import encode_rows, find_differing_rows, hash_keys, hash_rows_blake2b
from cdc_platform.delta.table_rows import read_rows, read_small_table
from cdc_platform.errors import EnvironmentProblem, StateError
from cdc_platform.storage import StoragePath, atomic, parse_path
from cdc_platform.tables import Table

# Setting up zstd for each column takes a sixth of a commit of a few rows, and two fifths of reading them.
_FEW_ROWS_PROPERTIES = WriterProperties(compression="UNCOMPRESSED")
_FEW_ROWS_BYTES = 1 << 17
# Limits the dictionary of columns whose values nearly all differ: a dictionary of all values makes a file up to twice
# as large, and takes a third more time.
_DICTIONARY_BYTES = 1 << 16
_STREAM_ID_PROPERTIES = ColumnProperties(dictionary_enabled=False, statistics_enabled="NONE")
"""How stream IDs are written: without dictionary and statistics.

All stream IDs differ, so a dictionary is useless. Nobody needs their least and greatest values, which take a fifth of a
write. deltalake does not find a nested column by its name (it silently drops the setting), so these are the properties
of all columns that are not named.
"""
_OTHER_PROPERTIES = ColumnProperties(dictionary_enabled=True, statistics_enabled="PAGE")


def get_writer_properties(table: Table, rows: pa.Table) -> WriterProperties:
    """Return the properties for one file of these rows: uncompressed if they are few (128 KiB)."""
    return _FEW_ROWS_PROPERTIES if rows.nbytes <= _FEW_ROWS_BYTES else get_bulk_writer_properties(table)


def get_bulk_writer_properties(table: Table) -> WriterProperties:
    """Return the properties for files of many rows of a table."""
    others = [name for name in table.schema.names if name != "streams"]
    if table.generation_column is None or len(others) == len(table.schema.names):
        return _make_bulk_properties()
    return _make_bulk_properties(_STREAM_ID_PROPERTIES, dict.fromkeys(others, _OTHER_PROPERTIES))


def _make_bulk_properties(
    default: ColumnProperties | None = None, columns: dict[str, ColumnProperties] | None = None
) -> WriterProperties:
    # Stream IDs are half random, but those of one range share their first bytes: of 1,638,400 of them zstd leaves 60 %
    # of the bytes for a fifth more time than no compression takes, snappy 72 %. Spark writes the same
    # (session.sql_conf).
    return WriterProperties(
        compression="ZSTD",
        compression_level=1,
        dictionary_page_size_limit=_DICTIONARY_BYTES,
        default_column_properties=default,
        column_properties=columns,
    )


@dataclass(frozen=True, eq=False)
class PartialReplacement:
    """All rows that pass some filters, and a mask `is_removed` (bool) of the rows to remove; the others stay."""

    rows: pa.Table
    is_removed: np.ndarray

    @cached_property
    def removed(self) -> pa.Table:
        """The removed rows."""
        return self.rows if self.is_removed.all() else self.rows.filter(pa.array(self.is_removed))

    def apply(self, table: Table, new_rows: pa.Table) -> pa.Table:
        """Return the rows after `new_rows` replaces the removed ones.

        The first new row with the key of a removed row takes its position; the rest follow at the end. This preserves
        the order of a file, in which it is smaller.
        """
        if self.is_removed.all():
            return new_rows
        known, new_keys = (encode_rows(part, table.keys) for part in (self.removed, new_rows))
        matched = np.asarray(compute.fill_null(compute.index_in(new_keys, value_set=known), -1))
        partners, first = np.unique(matched, return_index=True)
        partners, first = partners[partners >= 0], first[partners >= 0]
        order = np.where(self.is_removed, -1, np.arange(len(self.is_removed)))
        order[np.flatnonzero(self.is_removed)[partners]] = len(self.is_removed) + first
        behind = np.setdiff1d(np.arange(new_rows.num_rows), first, assume_unique=True)
        order = np.concatenate([order[order >= 0], len(self.is_removed) + behind])
        return pa.concat_tables([self.rows, new_rows]).take(pa.array(order))


_AddedFile = dict[str, Any]
"""A file as Delta's log adds it, with the folder of its draft's table as `draft`."""


def has_time_partitions(table: Table) -> bool:
    """Return True if a partition column of the table holds times."""
    return any(pat.is_timestamp(table.schema.field(name).type) for name in table.partition_by)


def format_partition_value(value: Any) -> str:
    """Format a partition column's value as in Delta's log and in deltalake's filters."""
    return _format_time(us_from_datetime(value)) if isinstance(value, datetime) else str(value)


def write_draft_files(
    empty: InitialLog, folder: Path, rows: pa.Table | pa.RecordBatchReader, properties: WriterProperties
) -> list[_AddedFile]:
    """Write rows as files of a new table in a new folder, whose log begins as `empty`; return the files.

    So Parquet, statistics, NOT NULL and CHECKs are those of every other write.

    Raises:
        DeltaError: the rows break a rule of the table.
    """
    write_log(folder, empty)
    write_deltalake(folder, rows, mode="append", writer_properties=properties)
    lines = (folder / LOG_FOLDER / f"{len(empty):020d}.json").read_text(encoding="utf-8").splitlines()
    return [action["add"] | {"draft": folder.name} for action in map(json.loads, lines) if "add" in action]


def place_files(
    table: Table, target: str, draft: Path | None, files: Sequence[_AddedFile], unseen: str
) -> list[AddAction | RemoveAction]:
    """Move the files of a draft into the table's folder under their names, and return the actions that add them.

    All files are checked before the first one moves. Without a draft, they must be in the table's folder already.

    Raises:
        EnvironmentProblem: a file is missing or incomplete; the message ends with `unseen` and the file's name.
    """
    missing: list[str] = []
    moves: list[tuple[Path, StoragePath]] = []
    for file in files:
        path = decode_path(file["path"])
        written, final_path = draft and draft / file["draft"] / path, parse_path(target) / path
        if written is not None and _is_whole(parse_path(written), file["size"]):
            moves.append((written, final_path))
        elif not _is_whole(final_path, file["size"]):  # an earlier attempt that hit a conflict may have moved it
            missing.append(str(written or final_path))
    if missing:
        raise EnvironmentProblem(
            f"{table.full_name} is unchanged: {len(missing)} of {len(files)} new files are missing or incomplete; "
            + unseen.format(missing[0])
        )
    for written, final_path in moves:
        final_path.receive(written)
    return [_make_add_action(table, file) for file in files]


def _rewrite_partitions(
    opened: OpenTable,
    table: Table,
    rows: pa.Table,
    partitions: Iterable[Any],
    commit: tuple[DeltaCommitProperties, WriterProperties],
) -> None:
    """Commit rows: append them, or replace the rows of some partitions of the table's one partition column.

    The commit is only the version after the opened one, if the properties say so. The next process sweeps the drafts of
    a killed one; vacuum removes files that no commit names.
    """
    properties, writing = commit
    target = parse_path(opened.folder)
    (column,) = table.partition_by
    chosen = [format_partition_value(value) for value in partitions]
    draft = atomic.make_draft_folder(get_draft_folder(target), table.name)
    try:
        files = write_draft_files(make_empty_log(table), draft / "rows", rows, writing) if rows.num_rows else []
        added = place_files(table, str(target), draft, files, "{} was removed")
    finally:
        atomic.discard_draft(draft)
    opened.delta.create_write_transaction(
        added,
        "overwrite" if chosen else "append",
        opened.delta.schema(),
        list(table.partition_by),
        [(column, "in", chosen)] if chosen else None,
        commit_properties=properties,
        post_commithook_properties=get_post_commit_hooks(opened),
    )


def _make_add_action(table: Table, file: _AddedFile) -> AddAction:
    return AddAction(
        decode_path(file["path"]),
        file["size"],
        _with_zones(table, file["partitionValues"]),
        file["modificationTime"],
        True,
        file["stats"],
    )


def _with_zones(table: Table, values: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return partition values as deltalake wrote them, with a zone added to times."""
    times = {name for name in values if pat.is_timestamp(table.schema.field(name).type)}
    return {
        name: _format_time(parse_time_us(value, zone_required=False)) if value is not None and name in times else value
        for name, value in values.items()
    }


def _format_time(us: Microseconds) -> str:
    """Format a time as Delta on Spark does: ISO 8601 in UTC, always with six decimals."""
    return f"{datetime_from_us(us):%Y-%m-%dT%H:%M:%S.%fZ}"


def _is_whole(file: StoragePath, size: int) -> bool:
    try:
        stat = file.stat()
    except OSError:
        return False
    return stat is not None and stat.bytes == size


# More keys than this are searched by their bounds: the length of a list in a statement is limited.
_MAX_LISTED_KEYS = 256

_ReplaceCondition = Callable[[pa.Table, pa.Table], pa.ChunkedArray]
"""A mask of the existing rows (first) to replace by the new rows with the same keys (second)."""

TransactionNumbers = Mapping[str, int]
"""Transaction numbers by application, which Delta keeps with a commit."""

NO_TRANSACTION_NUMBERS: TransactionNumbers = MappingProxyType({})

RowsRule = Callable[[pa.Table], pa.Table | None]
"""A function from all rows of a table to the rows to write, or None."""


@dataclass(frozen=True)
class MergeResult:
    """The result of a merge. `version` is the table's version that has all of the rows."""

    inserted: int
    updated: int
    version: int


def transact_rows(opened: OpenTable, table: Table, rule: RowsRule, *, whole: bool, numbers: TransactionNumbers) -> None:
    """Merge the rows that a rule derives from all rows, as the version after the one that was read.

    Do nothing if the table has one of the `numbers` of applications, or a higher one.
    """
    if any((opened.delta.transaction_version(name) or 0) >= number for name, number in numbers.items()):
        return
    existing = _read_declared_rows(opened, table)
    result = rule(existing)
    if result is None:
        return
    source = conform_rows(table, result)
    refuse_repeated_keys(table, source)
    update = not table.is_append_only
    merge_rows(opened, table, source, update, existing=existing, whole=whole, numbers=numbers)


def merge_judged_rows(
    opened: OpenTable, table: Table, judge: Callable[[], pa.Table | None], update: bool
) -> MergeResult | None:
    """Merge the rows that `judge` derives from the newest rows, as the version after the opened one."""
    result = judge()
    if result is None:
        return None
    source = conform_rows(table, result)
    refuse_repeated_keys(table, source)
    return merge_rows(opened, table, source, update)


def merge_rows(
    opened: OpenTable,
    table: Table,
    rows: pa.Table,
    update: bool,
    only: _ReplaceCondition | None = None,
    existing: pa.Table | None = None,
    whole: bool = False,
    numbers: TransactionNumbers = NO_TRANSACTION_NUMBERS,
) -> MergeResult:
    """Merge rows by key.

    With `only`, no row is inserted. `existing`, if given, has all rows of the table with keys of `rows`. With
    `whole`, it has all rows of the table, and those whose keys are not in `rows` are removed.
    """
    if not rows.num_rows and not whole:
        return MergeResult(0, 0, opened.version())
    if existing is None:
        existing = _read_declared_rows(opened, table, _make_key_filters(table, rows))
    if rows.num_rows and not existing.num_rows and only is None:
        done = MergeResult(rows.num_rows, 0, opened.version() + 1)
        append_rows(opened, table, rows, numbers)
        return done
    index_by_key = {key: index for index, key in enumerate(hash_keys(rows, table.keys))}
    existing_keys = hash_keys(existing, table.keys)
    matched = [index for index, key in enumerate(existing_keys) if key in index_by_key]
    partners = [index_by_key[existing_keys[index]] for index in matched]
    old, new = existing.take(pa.array(matched, pa.int64())), rows.take(pa.array(partners, pa.int64()))
    changing = np.zeros(len(matched), dtype=bool)
    if matched and only is not None:
        changing = np.asarray(compute.fill_null(only(old, new), False))
    elif matched and update:
        changing = (hash_rows_blake2b(old) != hash_rows_blake2b(new)).any(axis=1)
    inserted = np.ones(rows.num_rows, dtype=bool)
    inserted[partners] = False
    inserted_rows = rows.slice(0, 0) if only is not None else rows.filter(pa.array(inserted))
    removed, replacing = old.filter(pa.array(changing)), new.filter(pa.array(changing))
    dropped = [index for index, key in enumerate(existing_keys) if whole and key not in index_by_key]
    deleted = existing.take(pa.array(dropped, pa.int64()))
    done = MergeResult(inserted_rows.num_rows, removed.num_rows, opened.version() + 1)
    if not done.inserted and not done.updated and not dropped:
        return MergeResult(0, 0, opened.version())
    # If a foreign writer duplicated a row, pass its replacement once; it replaces both.
    changed = set(np.asarray(partners, dtype=np.int64)[changing].tolist())
    moved = [index in changed or (only is None and new) for index, new in enumerate(inserted)]
    source = rows if dropped else rows.filter(pa.array(moved, pa.bool_()))
    added, removed_rows = pa.concat_tables([inserted_rows, replacing]), pa.concat_tables([removed, deleted])

    def commit(properties: commits.DeltaCommitProperties) -> None:
        append = not (done.updated or dropped)
        all_rows = None if append or table.partition_by else _read_all_if_few(opened, table)
        if has_time_partitions(table):
            _write_exchange(opened, table, added, removed_rows, properties)
        elif all_rows is not None:
            _write_overwrite(opened, table, _exchange_rows(all_rows, table, added, removed_rows), properties)
        else:
            _write_merge(opened, table, source, properties, append=append, whole=bool(dropped))

    commits.make_commit(
        opened, commit, digests=_compute_digests_after(opened, table, added, removed_rows), numbers=numbers
    )
    return done


def delete_rows(opened: OpenTable, table: Table, filters: Sequence[Filter]) -> int:
    """Delete the rows that pass all (normal) filters; return their number. Without any, there is no commit."""
    predicate = filters_sql(filters)
    if all(name in table.partition_by for name, _, _ in filters):
        removed_files = files.list_data_files(opened, table, filters)
        digests = {row_hash.format_partition_name(table.partition_by, file.partition): 0 for file in removed_files}
        if removed_files:
            commits.make_commit(
                opened,
                lambda own: opened.with_data_files().delete(
                    predicate,
                    commit_properties=own,
                    post_commithook_properties=commits.get_post_commit_hooks(opened),
                ),
                digests=digests,
            )
        return sum(file.rows for file in removed_files)
    removed = _read_declared_rows(opened, table, filters)
    none = removed.slice(0, 0)

    def commit(properties: commits.DeltaCommitProperties) -> None:
        if has_time_partitions(table):
            _write_exchange(opened, table, none, removed, properties)
        else:
            opened.with_data_files().delete(
                predicate,
                commit_properties=properties,
                post_commithook_properties=commits.get_post_commit_hooks(opened),
            )

    if removed.num_rows:
        commits.make_commit(opened, commit, digests=_compute_digests_after(opened, table, none, removed))
    return removed.num_rows


def append_rows(
    opened: OpenTable, table: Table, rows: pa.Table, numbers: TransactionNumbers = NO_TRANSACTION_NUMBERS
) -> None:
    """Append rows, with the transaction numbers of applications in the same commit."""
    commits.make_commit(
        opened,
        lambda properties: _write_append(opened, table, rows, properties),
        digests=_compute_digests_after(opened, table, rows, rows.slice(0, 0)),
        numbers=numbers,
    )


def replace_rows(
    opened: OpenTable,
    table: Table,
    rows: pa.Table,
    filters: Sequence[Filter],
    numbers: TransactionNumbers = NO_TRANSACTION_NUMBERS,
    partial: PartialReplacement | None = None,
) -> None:
    """Replace the rows that pass all (normal) filters by rows that pass them, with transaction numbers of applications.

    `partial` has the rows that pass, which are in files of their own; only its removed rows are replaced.
    """
    predicate = filters_sql(filters)
    if partial is None:
        removed = _read_declared_rows(opened, table, filters)
        expected = _compute_digests_after(opened, table, rows, removed)
    else:
        expected = _compute_digests_after_replacement(opened, table, rows, filters, partial)
        rows, removed = partial.apply(table, rows), partial.rows

    def commit(properties: commits.DeltaCommitProperties) -> None:
        if has_time_partitions(table):
            _write_exchange(opened, table, rows, removed, properties)
        else:
            write_deltalake(
                opened.with_data_files(),
                strip_comments(rows),
                mode="overwrite",
                predicate=predicate,
                commit_properties=properties,
                post_commithook_properties=commits.get_post_commit_hooks(opened),
                writer_properties=get_writer_properties(table, rows),
            )

    commits.make_commit(opened, commit, digests=expected, numbers=numbers)


def _compute_digests_after(
    opened: OpenTable, table: Table, added: pa.Table, removed: pa.Table, written: Collection[str] = ()
) -> dict[str, int]:
    """Return the resulting digests of the partitions that rows are added to or removed from, and of the `written` ones.

    A row that stays is in both sums or in neither, so the digest continues from the recorded one.
    """
    names = dict.fromkeys(
        name for rows in (added, removed) for name in row_hash.list_partition_names(rows, table.partition_by)
    )
    names |= dict.fromkeys(written)
    rule = commits.get_digest_rule(opened)
    if rule == row_hash.DigestRule.BLAKE2B:  # the other rules are so cheap that skipping equal rows saves nothing
        added, removed = find_differing_rows(added, removed)
    added_digests, removed_digests = (row_hash.digest_rows(rows, table.partition_by, rule) for rows in (added, removed))
    nothing = dict.fromkeys(names, 0)
    return row_hash.update_digests(get_digests_before(opened, table, names), nothing | added_digests, removed_digests)


def _compute_digests_after_replacement(
    opened: OpenTable, table: Table, new_rows: pa.Table, filters: Sequence[Filter], partial: PartialReplacement
) -> dict[str, int]:
    """Return the resulting digests of the partitions of the files that pass."""
    assert all(name in table.partition_by for name, _, _ in filters), "parts are of whole files"
    existing = files.list_data_files(opened, table, filters)
    expected, read_count = sum(file.rows for file in existing), partial.rows.num_rows
    if expected != read_count:
        raise StateError(f"{table.full_name} has {expected} rows where {read_count} were read: nothing was replaced")
    written = {row_hash.format_partition_name(table.partition_by, file.partition): None for file in existing}
    return _compute_digests_after(opened, table, new_rows, partial.removed, written)


def get_digests_before(opened: OpenTable, table: Table, partitions: Collection[str]) -> dict[str, int]:
    """Return the digests of partitions in an opened version: the recorded ones or, without those, from the rows."""
    if table.partition_by:
        existing = {
            row_hash.format_partition_name(table.partition_by, file.partition): file.partition
            for file in files.list_data_files(opened, table)
        }
        partitions = [name for name in partitions if name in existing]
    else:
        existing = {"": ()}
    if not partitions:
        return {}
    with translate_read_errors(f"the log of {table.full_name}"):
        recorded = commits.get_digests(opened, partitions)
    if recorded is not None:
        return recorded
    digests: dict[str, int] = {}
    for name in partitions:
        own = normalize_filters(table, [(c, "=", v) for c, v in zip(table.partition_by, existing[name], strict=True)])
        with translate_read_errors(table.full_name):
            rows = read_rows(opened, opened.schema(), own)
        digests |= row_hash.digest_rows(rows, table.partition_by, commits.get_digest_rule(opened))
    return digests


def _read_declared_rows(opened: OpenTable, table: Table, filters: Sequence[Filter] = ()) -> pa.Table:
    """Return the rows of an opened table that pass all (normal) filters, in the declared schema.

    Raises:
        StoreFailure: they cannot be read, or are not as declared.
    """
    with translate_read_errors(table.full_name):
        return read_rows(opened, table.schema, filters)


def _write_merge(
    opened: OpenTable,
    table: Table,
    rows: pa.Table,
    properties: commits.DeltaCommitProperties,
    *,
    append: bool,
    whole: bool,
) -> None:
    if append:  # A merge, which searches for the keys again, takes ten times as long.
        _write_append(opened, table, rows, properties)
        return
    # streamed_exec would keep deltalake from skipping the partitions and files that hold none of the keys.
    merger = opened.with_data_files().merge(
        strip_comments(rows),
        " AND ".join(f"t.{quote_column(key)} = s.{quote_column(key)}" for key in table.keys),
        source_alias="s",
        target_alias="t",
        streamed_exec=False,
        writer_properties=get_writer_properties(table, rows),
        commit_properties=properties,
        post_commithook_properties=commits.get_post_commit_hooks(opened),
    )
    if whole:  # only if `rows` are all rows of the result
        merger = merger.when_not_matched_by_source_delete()
    merger.when_matched_update_all().when_not_matched_insert_all().execute()


def _write_append(opened: OpenTable, table: Table, rows: pa.Table, properties: commits.DeltaCommitProperties) -> None:
    if has_time_partitions(table):
        _write_exchange(opened, table, rows, rows.slice(0, 0), properties)
    else:
        write_deltalake(
            opened.delta,
            strip_comments(rows),
            mode="append",
            commit_properties=properties,
            post_commithook_properties=commits.get_post_commit_hooks(opened),
            writer_properties=get_writer_properties(table, rows),
        )


def _write_exchange(
    opened: OpenTable,
    table: Table,
    added: pa.Table,
    removed: pa.Table,
    properties: commits.DeltaCommitProperties,
) -> None:
    """Add and remove rows; rewrite the partitions with removed rows, ordered by key."""
    (name,) = table.partition_by
    partitions = compute.unique(removed[name]).to_pylist()
    if partitions:
        own = normalize_filters(table, [(name, "in", partitions)])
        added = _exchange_rows(_read_declared_rows(opened, table, own), table, added, removed)
    _rewrite_partitions(opened, table, added, partitions, (properties, get_writer_properties(table, added)))


def _exchange_rows(existing: pa.Table, table: Table, added: pa.Table, removed: pa.Table) -> pa.Table:
    """Return rows without the removed and with the added ones, ordered by key."""
    removed_keys = set(hash_keys(removed, table.schema.names))
    stays = [row not in removed_keys for row in hash_keys(existing, table.schema.names)]
    remaining = existing.filter(pa.array(stays, pa.bool_()))
    return pa.concat_tables([remaining, added]).sort_by([(key, "ascending") for key in table.keys])


def _read_all_if_few(opened: OpenTable, table: Table) -> pa.Table | None:
    """Return all rows if they are few and the table has no feature that the platform does not know; None otherwise."""
    all_rows = None if files.list_unsupported_features(opened) else read_small_table(opened)
    return all_rows.cast(table.schema) if all_rows is not None and all_rows.schema.names == table.schema.names else None


def _write_overwrite(
    opened: OpenTable, table: Table, rows: pa.Table, properties: commits.DeltaCommitProperties
) -> None:
    """Replace all files by one file with all rows; for few rows this takes a third of the time of a merge."""
    write_deltalake(
        opened.delta,
        strip_comments(rows.cast(table.schema)),
        mode="overwrite",
        commit_properties=properties,
        post_commithook_properties=commits.get_post_commit_hooks(opened),
        writer_properties=get_writer_properties(table, rows),
    )


def _make_key_filters(table: Table, rows: pa.Table) -> list[Filter]:
    """Return filters that pass the rows with the keys of `rows` and few others: lists of keys, or their bounds."""
    filters: list[Filter] = []
    for name in table.keys:
        values = compute.unique(rows[name])
        if len(values) <= _MAX_LISTED_KEYS:
            filters.append((name, "in", values.to_pylist()))
        elif not pat.is_binary(values.type):
            bounds = compute.min_max(values)
            filters += [(name, ">=", bounds["min"].as_py()), (name, "<=", bounds["max"].as_py())]
    return normalize_filters(table, filters)
