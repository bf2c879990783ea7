"""Make commits in a table's transaction log, and look up the digests that commits record.

Every write goes through `make_commit`. A commit is the version after the one that was read, or fails; retrying is up
to the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from deltalake import CommitProperties, PostCommitHookProperties, Transaction

from cdc_platform.delta import commit_info
from cdc_platform.delta.commit_info import CommitInfo
from cdc_platform.delta.open_table import OpenTable
from cdc_platform.delta.row_hash import DigestRule, digest_rule_from_properties
from cdc_platform.delta.table_usage import record_commit
from cdc_platform.delta.transaction_log import get_entry_path, read_commit

DeltaCommitProperties = CommitProperties
"""deltalake's properties of a commit."""


def make_commit(
    opened: OpenTable,
    commit: Callable[[DeltaCommitProperties], object],
    *,
    digests: Mapping[str, int] | None = None,
    numbers: Mapping[str, int] | None = None,
    accepts: Mapping[int, str] | None = None,
    files: Mapping[str, int] | None = None,
) -> None:
    """Run `commit`, which makes one commit, with a CommitInfo, as the version after the opened one.

    `digests` are those of the partitions that it changes. `numbers` are transaction numbers by application, which Delta
    keeps as well. `accepts` are foreign commits. `files` are the digests of rewritten files.

    A failure is ignored if the commit is in the log all the same: a store may have done what it reported as failed. If
    a store refuses a file, a thread of deltalake may print a panic on standard error, next to the exception that it
    raises.
    """
    info = commit_info.new_commit_info(digests, numbers, accepts, files)
    read_version = opened.version()
    try:
        commit(properties_from_commit_info(info))
        opened.publish(read_version + 1)
    except Exception:
        if not _is_committed(opened.folder, read_version, info.id):
            raise
    record_commit(opened.folder)
    if opened.version() == read_version:
        opened.update()


def properties_from_commit_info(info: CommitInfo) -> DeltaCommitProperties:
    """Return deltalake's properties for a commit with this CommitInfo.

    The commit is never retried, since its digests would be wrong on top of another commit.
    """
    marks = [Transaction(*number) for number in info.numbers.items()] or None
    return CommitProperties(custom_metadata=dict(info.metadata()), max_commit_retries=0, app_transactions=marks)


def get_post_commit_hooks(opened: OpenTable) -> PostCommitHookProperties:
    """Return deltalake's work after the next commit: remove expired log entries only where a checkpoint is due.

    Delta removes entries no further than a checkpoint, and a search after every commit is as slow as a commit of one
    row.
    """
    configured = opened.delta.metadata().configuration.get("delta.checkpointInterval", "100")
    interval = int(configured) if configured.isdigit() else 1
    is_due = (opened.version() + 2) % max(interval, 1) == 0
    return PostCommitHookProperties(cleanup_expired_logs=None if is_due else False)


def get_digest_rule(opened: OpenTable) -> DigestRule:
    """Return the rule by which the commits of an opened table compute digests.

    Raises:
        StateError: this version does not know the rule.
    """
    metadata = opened.delta.metadata()
    return digest_rule_from_properties(metadata.name or opened.folder, metadata.configuration)


def get_digests(opened: OpenTable, wanted: Collection[str]) -> dict[str, int] | None:
    """Return the recorded digests of partitions in an opened version; None if one of them is unknown.

    A partition that no commit names is empty, if the log goes back to a creation with a CommitInfo.
    """
    known = get_known_digests(opened, wanted)
    return known if len(known) == len(set(wanted)) else None


def get_known_digests(opened: OpenTable, wanted: Collection[str]) -> dict[str, int]:
    """Return the recorded digests of partitions in an opened version, without the unknown ones.

    A partition that no commit names is empty, if the log goes back to a creation with a CommitInfo.
    """
    digests: dict[str, int] = {}
    for version in range(opened.version(), -1, -1):
        try:
            info = opened.commit(version).info
        except FileNotFoundError:
            return digests
        if info is not None:
            digests = {name: digest for name, digest in info.digests.items() if name in wanted} | digests
            if len(digests) == len(set(wanted)):
                return digests
            if version == 0:
                return {name: digests.get(name, 0) for name in wanted}
    return digests


def _is_committed(folder: str, after: int, identity: str) -> bool:
    """Return True if a commit with this CommitInfo's ID follows a version in the log."""
    version = after + 1
    while True:
        try:
            info = read_commit(get_entry_path(folder, version), version).info
        except (FileNotFoundError, ValueError):  # another writer is still writing it
            return False
        if info is not None and info.id == identity:
            return True
        version += 1
