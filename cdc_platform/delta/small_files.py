"""Rewrite the small files of a table into fewer, larger ones. No row changes.

A table that is written every minute gets a file a minute. Files of a table with times are grouped by the hour of their
rows, once that hour is settled; files of other tables are grouped by size. Each group becomes one file. The commit adds
and removes files with `dataChange = false`, so streams and incremental readers do not see the rows again, and readers
of older versions keep the old files until they are vacuumed. The digest of each new file is in the commit's CommitInfo.

The work of a call has a limit, and does not depend on the length of the log: the newest groups come first, and the
walk back through the log ends at the files that are rewritten.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import pyarrow as pa
from deltalake.transaction import AddAction, RemoveAction

from cdc_platform import failpoints
from cdc_platform.clock import HOUR_US, Clock, Microseconds, us_from_datetime
from cdc_platform.delta import commits, files, row_hash, writer
from cdc_platform.delta.commit_retry import retry_on_conflict
from cdc_platform.delta.conform import fill_columns
from cdc_platform.delta.create import make_empty_log
from cdc_platform.delta.errors import translate_errors, translate_read_errors
from cdc_platform.delta.lake import Lake
from cdc_platform.delta.open_table import OpenTable
from cdc_platform.delta.paths import get_draft_folder
from cdc_platform.delta.tasks import read_file_batches
from cdc_platform.delta.transaction_log import Commit
from cdc_platform.delta.verification import list_foreign_commits, verify_added_files
from cdc_platform.errors import NotAsCommitted, StoreFailure
from cdc_platform.storage import atomic, parse_path, write_check
from cdc_platform.tables import Table

SMALL_BYTES = 16 << 20
"""A file of this size or more is not rewritten."""
GROUP_BYTES = 64 << 20
"""The most bytes of the files of one group, which are read into memory together."""
_FEWEST_FILES = 16
"""A table without times has at least this many small files before they are rewritten."""
_GROUPS_PER_COMMIT = 24


@dataclass(frozen=True)
class RewriteLimits:
    """The most groups (hours, for a table with times) and bytes of old files that one call rewrites in one table."""

    groups: int = 336
    bytes: int = 1 << 30


@dataclass(frozen=True)
class TimeOrder:
    """A table's rows by time: the timestamp `column`, and the columns `after` it that order rows of one time.

    Hours that ended at `settled_us` or earlier are rewritten.
    """

    column: str
    after: tuple[str, ...]
    settled_us: Microseconds


@dataclass(frozen=True)
class RewrittenFiles:
    """What one call did: groups, and their files before and after. `remaining` groups are left for the next call."""

    groups: int = 0
    files_before: int = 0
    files_after: int = 0
    rows: int = 0
    remaining: int = 0


@dataclass(frozen=True)
class _SmallFile:
    path: str
    rows: int
    bytes: int
    low_us: Microseconds


_Group = tuple[_SmallFile, ...]


def count_rewritable_files(lake: Lake, table: Table, order: TimeOrder | None) -> tuple[int, int]:
    """Return how many groups and files `rewrite_small_files` would rewrite now, from Delta's log alone."""
    if not lake.exists(table):
        return 0, 0
    groups = _plan_groups(lake.table_cache.get_newest(lake.path(table)), order)
    return len(groups), sum(map(len, groups))


def rewrite_small_files(
    lake: Lake, table: Table, order: TimeOrder | None, limits: RewriteLimits | None = None
) -> RewrittenFiles:
    """Rewrite groups of small files, the newest first. Without any, there is no commit.

    Killed at any point, a further call does the rest. Other writers may commit meanwhile: a commit that loses is
    repeated, and a group is left alone if another writer has removed one of its files. The table has no partition
    columns. Only its stored schema counts.

    Raises:
        NotAsCommitted: the table has a foreign commit that nobody has accepted, which could not be taken back any more.
        StoreFailure: a file has other rows than its commit recorded, or is damaged.
        StateError: the table has Delta features by which its files are not its rows.
    """
    limits = limits or RewriteLimits()
    if not lake.exists(table):
        return RewrittenFiles()
    opened = lake.table_cache.get_newest(lake.path(table))
    planned = _plan_groups(opened, order)
    if not planned:
        return RewrittenFiles()
    files.refuse_unsupported_features(table, opened)
    foreign = _find_unaccepted_commit(opened)
    if foreign is not None:
        raise NotAsCommitted(
            f"{table.full_name} has a foreign commit, version {foreign.version} ({foreign.operation} by "
            f"{foreign.engine}): its files are not rewritten until that is accepted or taken back; to see how, run: "
            "cdc-platform check"
        )
    path = parse_path(opened.folder)
    write_check.assert_conditional_writes(path.folder.folder, f"rewriting files of {path}")
    chosen = list(_limit_groups(planned, limits))
    result = RewrittenFiles(remaining=len(planned) - len(chosen))
    remaining = iter(chosen)
    while batch := list(islice(remaining, _GROUPS_PER_COMMIT)):
        done = _rewrite_groups(lake, table, batch, order)
        result = replace(
            result,
            groups=result.groups + done.groups,
            files_before=result.files_before + done.files_before,
            files_after=result.files_after + done.files_after,
            rows=result.rows + done.rows,
        )
    return result


def _limit_groups(groups: Iterable[_Group], limits: RewriteLimits) -> Iterator[_Group]:
    """Yield the first groups within the limits, at least one."""
    total = 0
    for index, group in enumerate(groups):
        total += sum(file.bytes for file in group)
        if index and (index >= limits.groups or total > limits.bytes):
            return
        yield group


def _plan_groups(opened: OpenTable, order: TimeOrder | None) -> list[_Group]:
    """Return the groups of at least two small files, the newest first."""
    if order is None:
        small = [
            _SmallFile(file.path, file.rows, file.bytes, Microseconds(0))
            for file in files.list_partition_files(opened, ())
            if file.bytes < SMALL_BYTES
        ]
        return [group for group in _fill_groups(small) if len(group) > 1] if len(small) >= _FEWEST_FILES else []
    by_hour: dict[int, list[_SmallFile]] = defaultdict(list)
    bounded = files.list_bounded_files(opened, order.column)
    for bounds, size in zip(bounded, files.list_sizes(opened), strict=True):
        if size >= SMALL_BYTES or bounds.low is None or bounds.high is None:
            continue
        low_us, high_us = us_from_datetime(bounds.low), us_from_datetime(bounds.high)
        hour = low_us // HOUR_US
        # A window may begin just before the end of an hour; a file of several hours is not one of minutes.
        end_us = (hour + (1 if high_us < (hour + 1) * HOUR_US else 2)) * HOUR_US
        if high_us < end_us <= order.settled_us:
            by_hour[hour].append(_SmallFile(bounds.path, bounds.rows, size, low_us))
    return [
        group
        for hour in sorted(by_hour, reverse=True)
        for group in _fill_groups(sorted(by_hour[hour], key=lambda file: (file.low_us, file.path)))
        if len(group) > 1
    ]


def _fill_groups(small: Sequence[_SmallFile]) -> list[_Group]:
    """Divide files, in their order, into groups of at most `GROUP_BYTES`."""
    groups: list[list[_SmallFile]] = []
    size = GROUP_BYTES
    for file in small:
        if size + file.bytes > GROUP_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file.bytes
    return [tuple(group) for group in groups]


@dataclass(frozen=True)
class _NewFiles:
    """The files that replace a group, in the table's folder, with the digest of each by its path below the table."""

    group: _Group
    added: tuple[AddAction, ...]
    digests: dict[str, int]


def _rewrite_groups(lake: Lake, table: Table, groups: Sequence[_Group], order: TimeOrder | None) -> RewrittenFiles:
    """Write the new files of some groups, and replace the old ones in one commit."""
    verify_added_files(lake, table, [file.path for group in groups for file in group])
    opened = lake.table_cache.get_newest(lake.path(table))
    stored = Table(table.keyspace, table.name, opened.schema().remove_metadata(), (), table.comment)
    rule = commits.get_digest_rule(opened)
    target = parse_path(opened.folder)
    draft = atomic.make_draft_folder(get_draft_folder(target), table.name)
    try:
        with translate_errors(f"rewriting files of {table.full_name}"):
            written = [_write_group(stored, rule, str(target), draft, group, order) for group in groups]
    finally:
        atomic.discard_draft(draft)
    failpoints.kill_if_selected(failpoints.BEFORE_FILES_REPLACED)
    return retry_on_conflict(f"rewriting files of {table.full_name}", lambda: _commit(lake, table, written))


def _write_group(
    stored: Table, rule: row_hash.DigestRule, target: str, draft: Path, group: _Group, order: TimeOrder | None
) -> _NewFiles:
    """Write the rows of a group's files, in order, into new files of the table that no commit names yet.

    Raises:
        StoreFailure: the new files do not have the rows of the old ones.
    """
    rows = pa.concat_tables([_read_file(file, stored.schema) for file in group])
    if order is not None:
        rows = rows.sort_by([(name, "ascending") for name in (order.column, *order.after)])
    folder = draft / str(len(list(draft.iterdir())))
    added = writer.write_draft_files(make_empty_log(stored), folder, rows, writer.get_writer_properties(stored, rows))
    digests = {file["path"]: _digest_file(str(folder / file["path"]), rule) for file in added}
    expected = sum(row_hash.digest_rows(rows, (), rule).values()) % row_hash.DIGEST_MODULUS
    if sum(digests.values()) % row_hash.DIGEST_MODULUS != expected:
        raise StoreFailure(f"the new files of {stored.full_name} do not have the rows of the old ones; none was used")
    placed = writer.place_files(stored, target, draft, added, "{} was removed")
    return _NewFiles(
        group, tuple(replace(action, data_change=False) for action in placed if isinstance(action, AddAction)), digests
    )


def _read_file(file: _SmallFile, schema: pa.Schema) -> pa.Table:
    with translate_read_errors(file.path), files.open_parquet(file.path) as parquet:
        return pa.table(fill_columns(parquet.read(), schema, {}), names=schema.names).cast(schema)


def _digest_file(path: str, rule: row_hash.DigestRule) -> int:
    digests = (row_hash.digest_rows(pa.Table.from_batches([batch]), (), rule) for batch in read_file_batches(path))
    return sum(sum(digest.values()) for digest in digests) % row_hash.DIGEST_MODULUS


def _commit(lake: Lake, table: Table, written: Sequence[_NewFiles]) -> RewrittenFiles:
    """Replace the files of all groups that still have theirs; return what was done."""
    folder = lake.path(table)
    # Not `Lake.open_for_write`, which refuses writes of rows to mirrors: no row changes here.
    with lake.table_cache.open_for_write(folder) as opened:
        existing = set(files.list_paths(opened))
        current = [new for new in written if all(file.path in existing for file in new.group)]
        if not current:
            return RewrittenFiles()
        old = [file for new in current for file in new.group]
        added = [action for new in current for action in new.added]
        now_ms = Clock().now_ms()
        inside = f"{parse_path(folder)}/"
        removed = [RemoveAction(file.path.removeprefix(inside), False, now_ms, file.bytes, {}) for file in old]
        commits.make_commit(
            opened,
            lambda properties: opened.delta.create_write_transaction(
                [*added, *removed],
                "append",
                opened.delta.schema(),
                [],
                commit_properties=properties,
                post_commithook_properties=commits.get_post_commit_hooks(opened),
            ),
            files={name: digest for new in current for name, digest in new.digests.items()},
        )
        failpoints.kill_if_selected(failpoints.AFTER_FILES_REPLACED)
        return RewrittenFiles(len(current), len(old), len(added), sum(file.rows for file in old))


def _find_unaccepted_commit(opened: OpenTable) -> Commit | None:
    """Return the newest foreign commit that changed the table and was not accepted; None if there is none.

    Read the log back to the newest rewrite of files, which was made when there was none.

    Raises:
        StoreFailure: an entry cannot be read.
    """
    history: list[Commit] = []
    with translate_errors(f"reading the log of {opened.folder}"):
        for version in range(opened.version(), -1, -1):
            try:
                history.append(opened.commit(version))
            except FileNotFoundError:
                break
            info = history[-1].info
            if info is not None and info.files:
                break
    accepted = {version for commit in history if commit.info is not None for version in commit.info.accepts}
    return next((commit for commit in list_foreign_commits(history) if commit.version not in accepted), None)
