"""From rows to their commits: partitions by the commits' digests, other parts by inserted and removed rows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc_platform.delta import CommitAuthor, Lake, commit_as, provenance, row_hash, transaction_log
from cdc_platform.storage import parse_path
from cdc_platform.tables import GENERATION_TIMESTAMPS, STREAMS_DESCRIPTIONS_V2

TIME = datetime(2026, 1, 31, 12, 0, 0, 384000, tzinfo=UTC)
HOUR = timedelta(hours=1)


def streams(hour: int, *ends: int, stream: bytes = b"0123456789abcdef") -> pa.Table:
    """Return rows of one partition of cdc_streams_descriptions_v2."""
    rows = [{"time": TIME + hour * HOUR, "range_end": end, "streams": [stream]} for end in ends]
    return pa.Table.from_pylist(rows, schema=STREAMS_DESCRIPTIONS_V2.schema)


def stamps(*hours: int, expired: datetime | None = None) -> pa.Table:
    """Return rows of cdc_generation_timestamps, which has no partitions."""
    rows = [{"key": "timestamps", "time": TIME + hour * HOUR, "expired": expired} for hour in hours]
    return pa.Table.from_pylist(rows, schema=GENERATION_TIMESTAMPS.schema)


def by(command: str, work: Any) -> None:
    """Do something in the name of a command."""
    with commit_as(CommitAuthor("a test", command)):
        work()


def list_changes(lake: Lake, table: Any, where: provenance.PartSelector) -> list[tuple[int, str, int, int]]:
    """Return each change of a part: version, command, rows written and removed."""
    return [
        (change.commit.version, change.commit.info.author.command, change.written, change.removed)
        for change in provenance.iter_changes(lake, table, where)
        if change.commit.info is not None
    ]


def test_a_partitions_digest_is_that_of_its_rows(tmp_path: Path) -> None:
    """The recorded digest equals that of the rows; a partition without rows has none, whatever commits record."""
    lake = Lake(tmp_path)
    for hour in (0, 1):
        lake.merge(STREAMS_DESCRIPTIONS_V2, streams(hour, 1, 2), update=False)
    lake.delete(STREAMS_DESCRIPTIONS_V2, [("time", "=", TIME + HOUR)])
    own = row_hash.digest_rows(streams(0, 1, 2), ["time"], row_hash.NEWEST_DIGEST_RULE)
    assert provenance.PartitionDigests(lake, STREAMS_DESCRIPTIONS_V2).names == list(own)
    assert provenance.get_part_digest(lake, STREAMS_DESCRIPTIONS_V2, {"time": TIME}) == next(iter(own.values()))
    assert provenance.get_part_digest(lake, STREAMS_DESCRIPTIONS_V2, {"time": TIME + HOUR}) is None


def test_a_tables_digest_covers_all_partitions(tmp_path: Path) -> None:
    """A change in any partition changes the table's digest, which needs no read of rows if commits record it."""
    lake = Lake(tmp_path)
    assert provenance.get_table_digest(lake, STREAMS_DESCRIPTIONS_V2) is None
    lake.merge(STREAMS_DESCRIPTIONS_V2, streams(0, 1), update=False)
    one = provenance.get_table_digest(lake, STREAMS_DESCRIPTIONS_V2)
    lake.merge(STREAMS_DESCRIPTIONS_V2, streams(1, 1), update=False)
    both = provenance.get_table_digest(lake, STREAMS_DESCRIPTIONS_V2)
    lake.delete(STREAMS_DESCRIPTIONS_V2, [("time", "=", TIME + HOUR)])
    assert provenance.get_table_digest(lake, STREAMS_DESCRIPTIONS_V2) == one != both
    lake.merge(GENERATION_TIMESTAMPS, stamps(0), update=False)
    own = row_hash.digest_rows(stamps(0), (), row_hash.NEWEST_DIGEST_RULE)[""]
    assert provenance.get_table_digest(lake, GENERATION_TIMESTAMPS, most_bytes=0) == own
    for entry in Path(lake.path(GENERATION_TIMESTAMPS), "_delta_log").glob("*.json"):
        entry.write_text(entry.read_text().replace("cdc_platform", "nobody"))
    old = row_hash.digest_rows(stamps(0), (), row_hash.DigestRule.BLAKE2B)[""]
    assert provenance.get_table_digest(Lake(tmp_path), GENERATION_TIMESTAMPS) == old != own


def test_a_partition_without_commit_info_is_read(tmp_path: Path) -> None:
    """Without a CommitInfo and a digest rule, the digest is computed from the rows."""
    lake = Lake(tmp_path)
    lake.merge(STREAMS_DESCRIPTIONS_V2, streams(0, 1), update=False)
    for entry in Path(lake.path(STREAMS_DESCRIPTIONS_V2), "_delta_log").glob("*.json"):
        entry.write_text(entry.read_text().replace("cdc_platform", "nobody"))
    (own,) = row_hash.digest_rows(streams(0, 1), ["time"], row_hash.DigestRule.BLAKE2B).values()
    assert provenance.get_part_digest(lake, STREAMS_DESCRIPTIONS_V2, {"time": TIME}) == own


@pytest.mark.parametrize("where", [{"time": TIME}, {"key": "timestamps", "time": TIME}])
def test_a_row_leads_to_its_commits(tmp_path: Path, where: provenance.PartSelector) -> None:
    """In a table without partitions, inserted and removed rows identify a part's commits, even in shared files."""
    lake = Lake(tmp_path)
    by("publish", lambda: lake.merge(GENERATION_TIMESTAMPS, stamps(0), update=False))
    by("other", lambda: lake.merge(GENERATION_TIMESTAMPS, stamps(1), update=False))
    by("mark", lambda: lake.merge(GENERATION_TIMESTAMPS, stamps(0, expired=TIME + HOUR), update=True))
    by("mark other", lambda: lake.merge(GENERATION_TIMESTAMPS, stamps(1, expired=TIME + HOUR), update=True))
    by("expire", lambda: lake.delete(GENERATION_TIMESTAMPS, [("time", "=", TIME)]))
    first = lake.version(GENERATION_TIMESTAMPS)
    assert first is not None
    assert list_changes(lake, GENERATION_TIMESTAMPS, where) == [
        (first, "expire", 0, 1),
        (first - 2, "mark", 1, 1),
        (first - 4, "publish", 1, 0),
    ]
    last = provenance.find_last_change(lake, GENERATION_TIMESTAMPS, where)
    assert last is not None
    assert last.commit.version == first - 2


def test_a_partition_leads_to_its_commits(tmp_path: Path) -> None:
    """Each commit that changed a partition is reported, with the partition's digest at that time."""
    lake = Lake(tmp_path)
    by("first", lambda: lake.merge(STREAMS_DESCRIPTIONS_V2, streams(0, 1), update=False))
    by("other", lambda: lake.merge(STREAMS_DESCRIPTIONS_V2, streams(1, 1), update=False))
    by("more", lambda: lake.merge(STREAMS_DESCRIPTIONS_V2, streams(0, 2), update=False))
    changes_by_command = list_changes(lake, STREAMS_DESCRIPTIONS_V2, {"time": TIME})
    assert [(command, written) for _, command, written, _ in changes_by_command] == [("more", 1), ("first", 1)]
    changes = list(provenance.iter_changes(lake, STREAMS_DESCRIPTIONS_V2, {"time": TIME}))
    (one,) = row_hash.digest_rows(streams(0, 1), ["time"], row_hash.NEWEST_DIGEST_RULE).values()
    assert changes[1].commit.at_ms is not None
    assert provenance.get_recorded_digest(lake, STREAMS_DESCRIPTIONS_V2, {"time": TIME}, changes[1].commit.at_ms) == one
    assert provenance.get_recorded_digest(lake, STREAMS_DESCRIPTIONS_V2, {"time": TIME}, 0) is None


def test_a_compaction_is_no_change(tmp_path: Path) -> None:
    """A commit that changes no row is no write; a missing table has no changes."""
    from deltalake import DeltaTable

    lake = Lake(tmp_path)
    assert list(provenance.iter_changes(lake, GENERATION_TIMESTAMPS, {"time": TIME})) == []
    for hour in (0, 1):
        lake.merge(GENERATION_TIMESTAMPS, stamps(hour), update=False)
    before = list_changes(lake, GENERATION_TIMESTAMPS, {"time": TIME})
    DeltaTable(lake.path(GENERATION_TIMESTAMPS)).optimize.compact()
    assert list_changes(lake, GENERATION_TIMESTAMPS, {"time": TIME}) == before != []


@pytest.mark.parametrize(
    "line",
    ["no JSON", "7", '"add"', '["add"]', '{"add": 7}', '{"add": "a text with path in it"}', '{"remove": {"size": 1}}'],
)
def test_an_invalid_log_entry_is_named(tmp_path: Path, line: str) -> None:
    """Anything other than a valid action or data file raises one error that names the log entry."""
    file = tmp_path / f"{3:020d}.json"
    good = '{"add": {"path": "part-0.parquet", "dataChange": true}}'
    file.write_text(f"{good}\n\n{good}\n")
    assert transaction_log.read_commit(parse_path(str(file)), 3).files == {"part-0.parquet"}
    file.write_text(f"{good}\n{line}\n")
    with pytest.raises(ValueError, match=rf"^{file.name} is damaged \("):
        transaction_log.read_commit(parse_path(str(file)), 3)
