"""Delta tables without a JVM: repeatable merges, filters, and racing writers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from support.nodes import node_fields

from cdc_platform.delta import Lake, commit_retry
from cdc_platform.delta.writer import MergeResult, merge_rows
from cdc_platform.errors import ConflictError, InputError, StateError
from cdc_platform.tables import (
    BOOTSTRAP_EVENTS,
    CDC_LOCAL,
    GENERATION_DESCRIPTIONS,
    GENERATION_TIMESTAMPS,
    GENERATIONS,
    NODES,
    STREAMS_DESCRIPTIONS_V2,
)

TIME = datetime(2021, 11, 2, 19, 45, 26, 384000, tzinfo=UTC)
HOUR = timedelta(hours=1)
PROCESSES = 3


def stamps(*times: datetime, expired: datetime | None = None) -> pa.Table:
    """Return rows of cdc_generation_timestamps."""
    return pa.Table.from_pylist(
        [{"key": "timestamps", "time": time, "expired": expired} for time in times], schema=GENERATION_TIMESTAMPS.schema
    )


def streams(time: datetime, ends: range, stream: bytes = b"0123456789abcdef") -> pa.Table:
    """Return rows of cdc_streams_descriptions_v2."""
    rows = [{"time": time, "range_end": end, "streams": [stream, stream]} for end in ends]
    return pa.Table.from_pylist(rows, schema=STREAMS_DESCRIPTIONS_V2.schema)


def event(number: int) -> pa.Table:
    """Return one row of bootstrap_events."""
    row = node_fields(1, tokens=[-(2**63) + 1, 2**63 - 1], shard_count=4) | {
        "event_id": str(UUID(int=number)),
        "kind": "join",
        "features": [],
        "generation_id": str(UUID(int=2)),
        "created_at": TIME,
    }
    return pa.Table.from_pylist([row], schema=BOOTSTRAP_EVENTS.schema)


def test_nothing_here_needs_spark() -> None:
    """Commands that start no JVM must not pay for the import of pyspark either."""
    code = "import sys, cdc_platform.delta.lake, cdc_platform.tables.registry; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_missing_table_reads_as_an_empty_one(lake: Lake) -> None:
    """Before the first write a table reads as empty, without an error."""
    assert not lake.exists(NODES)
    assert lake.version(NODES) is None
    assert lake.commits(NODES) == []
    assert lake.delete(NODES, [("host_id", "=", "x")]) == 0
    rows = lake.read(NODES, ["tokens", "host_id"])
    assert (rows.num_rows, rows.schema.names) == (0, ["tokens", "host_id"])


def test_a_merge_can_be_repeated(lake: Lake) -> None:
    """A merge of equal rows changes nothing, not even the version."""
    first = lake.merge(GENERATION_TIMESTAMPS, stamps(TIME, TIME + HOUR), update=False)
    assert (first.inserted, first.updated) == (2, 0)
    for update in (False, True):
        assert lake.merge(GENERATION_TIMESTAMPS, stamps(TIME), update=update) == MergeResult(0, 0, first.version)
    assert lake.version(GENERATION_TIMESTAMPS) == first.version


def test_a_merge_retains_or_replaces_existing_rows(lake: Lake) -> None:
    """Without `update` the first writer's row stays; with it the row becomes the given one, also back to null."""
    lake.merge(GENERATION_TIMESTAMPS, stamps(TIME), update=False)
    changed = stamps(TIME, expired=TIME + HOUR)
    assert lake.merge(GENERATION_TIMESTAMPS, changed, update=False).updated == 0
    assert lake.read(GENERATION_TIMESTAMPS)["expired"].to_pylist() == [None]
    assert lake.merge(GENERATION_TIMESTAMPS, changed, update=True).updated == 1
    assert lake.read(GENERATION_TIMESTAMPS)["expired"].to_pylist() == [TIME + HOUR]
    assert lake.merge(GENERATION_TIMESTAMPS, stamps(TIME), update=True).updated == 1
    assert lake.read(GENERATION_TIMESTAMPS)["expired"].to_pylist() == [None]


def test_nested_columns_are_compared_by_content(lake: Lake) -> None:
    """An equal list of structs is no change; one more stream is."""
    entry = {"token_range_end": 7, "streams": [b"a" * 16], "sharding_ignore_msb": 12}

    def write(*entries: dict[str, Any]) -> MergeResult:
        rows = [{"time": TIME, "description": list(entries), "expired": None}]
        return lake.merge(
            GENERATION_DESCRIPTIONS, pa.Table.from_pylist(rows, schema=GENERATION_DESCRIPTIONS.schema), update=True
        )

    assert write(entry).inserted == 1
    assert write(entry).updated == 0
    longer = {**entry, "streams": [b"a" * 16, b"b" * 16]}
    assert write(longer).updated == 1
    assert lake.read(GENERATION_DESCRIPTIONS)["description"].to_pylist() == [[longer]]


def test_reads_have_the_declared_schema_and_order_of_streams(lake: Lake) -> None:
    """Streams are read in the order of their write: position j is shard j, whatever the bytes."""
    backwards = pa.Table.from_pylist(
        [{"time": TIME, "range_end": 1, "streams": [b"c" * 16, b"a" * 16, b"b" * 16]}],
        schema=STREAMS_DESCRIPTIONS_V2.schema,
    )
    lake.merge(STREAMS_DESCRIPTIONS_V2, backwards, update=False)
    rows = lake.read(STREAMS_DESCRIPTIONS_V2)
    assert rows.schema == STREAMS_DESCRIPTIONS_V2.schema
    assert rows["streams"].to_pylist() == [[b"c" * 16, b"a" * 16, b"b" * 16]]


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ([("time", "=", TIME)], [1, 2, 3]),
        ([("time", ">", TIME)], [1, 2]),
        ([("time", "=", (TIME + HOUR).replace(tzinfo=None))], [1, 2]),
        ([("time", "in", [TIME, TIME + 5 * HOUR]), ("range_end", "!=", 2)], [1, 3]),
        ([("range_end", "not in", [1, 2])], [3]),
        ([("range_end", ">=", 2), ("time", "<=", TIME)], [2, 3]),
        ([("time", "in", [])], []),
    ],
)
def test_filters(lake: Lake, filters: list[tuple[str, str, Any]], found: list[int]) -> None:
    """Filters read and delete the same rows, on partition columns with milliseconds as on others."""
    lake.merge(STREAMS_DESCRIPTIONS_V2, streams(TIME, range(1, 4)), update=False)
    lake.merge(STREAMS_DESCRIPTIONS_V2, streams(TIME + HOUR, range(1, 3)), update=False)
    assert sorted(lake.read(STREAMS_DESCRIPTIONS_V2, ["range_end"], filters)["range_end"].to_pylist()) == found
    assert lake.delete(STREAMS_DESCRIPTIONS_V2, filters) == len(found)
    assert lake.read(STREAMS_DESCRIPTIONS_V2).num_rows == 5 - len(found)


def test_texts_with_quotes_and_uuids_are_values_not_sql(lake: Lake) -> None:
    """A value never becomes part of a statement."""
    rows = [{"host_id": str(UUID(int=7)), "key": "rewritten", "uuid": "it's"}]
    lake.merge(CDC_LOCAL, pa.Table.from_pylist(rows), update=False)
    for good in ([("uuid", "=", "it's")], [("host_id", "=", UUID(int=7))]):
        assert lake.read(CDC_LOCAL, filters=good).num_rows == 1
    assert lake.read(CDC_LOCAL, filters=[("uuid", "=", "' OR 1=1 --")]).num_rows == 0


def test_deleting_no_rows_is_no_commit(lake: Lake) -> None:
    """The version changes only with the content."""
    version = lake.merge(GENERATION_TIMESTAMPS, stamps(TIME), update=False).version
    assert lake.delete(GENERATION_TIMESTAMPS, [("time", ">", TIME)]) == 0
    assert lake.version(GENERATION_TIMESTAMPS) == version


def test_the_history_lists_the_newest_commit_first(lake: Lake) -> None:
    """The history has the operation of each version in Delta's log, for people and lineage."""
    version = lake.merge(GENERATION_TIMESTAMPS, stamps(TIME), update=False).version
    newest, *_ = lake.commits(GENERATION_TIMESTAMPS)
    assert (newest.version, newest.operation) == (version, "WRITE")
    assert lake.commits(GENERATION_TIMESTAMPS)[-1].operation == "CREATE TABLE"


def _wrong(**changes: Any) -> Callable[[Lake], object]:
    row = {
        "generation_id": "g",
        "time": TIME,
        "num_ranges": 1,
        "num_streams": 1,
        "created_at": TIME,
        **changes,
    }
    present = {name: value for name, value in row.items() if value is not ...}
    return lambda lake: lake.merge(GENERATIONS, pa.Table.from_pylist([present]), update=False)


@pytest.mark.parametrize(
    ("write", "told"),
    [
        (_wrong(num_ranges=0), "break the table's constraints, as this one: generation_id=g.*num_ranges=0"),
        (_wrong(time=TIME + timedelta(microseconds=1)), "constraints"),
        (_wrong(num_streams=None), "num_streams may not be null, and is in 1 of 1 rows"),
        (_wrong(created_at=...), "created_at may not be null"),
        (_wrong(num_ranges="many"), "num_ranges takes int32, not string"),
        (_wrong(num_ranges=2**40), "num_ranges takes int32"),
        (_wrong(colour="red"), "no column colour; it has generation_id"),
        (
            lambda lake: lake.merge(GENERATION_TIMESTAMPS, stamps(TIME, TIME), update=False),
            "appears 2 times in one write",
        ),
        (
            lambda lake: lake.merge(
                GENERATION_TIMESTAMPS, stamps(*(TIME + timedelta(hours=n) for n in range(100)), TIME), update=False
            ),
            "appears 2 times in one write",
        ),
        (lambda lake: lake.merge(NODES, pa.table({"tokens": [[1, None]]}), update=True), "may not be null"),
        (lambda lake: lake.read(NODES, filters=[("color", "=", 1)]), "no column color"),
        (lambda lake: lake.delete(NODES, []), "needs a filter"),
        (lambda lake: lake.delete(NODES, [("color", "=", 1)]), "no column color"),
        (lambda lake: lake.delete(NODES, [("host_id", "~", 1)]), "no filter operator '~'"),
    ],
)
def test_wrong_rows_are_refused_before_they_are_written(lake: Lake, write: Callable[[Lake], object], told: str) -> None:
    """One line names the error and its position; the table stays unchanged."""
    with pytest.raises(InputError, match=told):
        write(lake)
    assert lake.read(GENERATIONS).num_rows == 0


def test_the_inbox_only_accepts_new_rows(lake: Lake) -> None:
    """Append-only applies to every writer, and merges of new events still work."""
    assert lake.merge(BOOTSTRAP_EVENTS, event(1), update=False).inserted == 1
    assert lake.merge(BOOTSTRAP_EVENTS, event(1), update=False).inserted == 0
    assert lake.merge(BOOTSTRAP_EVENTS, event(2), update=False).inserted == 1
    with pytest.raises(StateError, match="is append-only"):
        lake.merge(BOOTSTRAP_EVENTS, event(1), update=True)
    with pytest.raises(StateError, match="is append-only"):
        lake.delete(BOOTSTRAP_EVENTS, [("kind", "=", "join")])


def test_a_folder_in_the_way_of_a_table_is_named(lake: Lake) -> None:
    """A folder that is not a table is neither used nor overwritten."""
    folder = Path(lake.path(NODES))
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(StateError, match="is not a table, but is at the path of one"):
        lake.ensure(NODES)
    assert [path.name for path in folder.parent.iterdir()] == ["nodes"]


def test_a_table_of_another_version_is_not_written(lake: Lake) -> None:
    """Unexpected columns mean that another version wrote the table."""
    lake.ensure(CDC_LOCAL)
    with pytest.raises(StateError, match=r"has columns host_id, key.*expects host_id, address"):
        lake.ensure(replace(NODES, keyspace=CDC_LOCAL.keyspace, name=CDC_LOCAL.name))


def test_the_bound_on_retries_ends_in_a_conflict(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that always loses stops after the limit of attempts and reports a conflict."""
    monkeypatch.setattr(commit_retry, "ATTEMPTS", 3)
    lake.ensure(GENERATION_TIMESTAMPS)
    tries: list[int] = []

    def always_late(opened: Any) -> object:
        tries.append(1)
        lake.merge(GENERATION_TIMESTAMPS, stamps(TIME + len(tries) * HOUR), update=False)
        return merge_rows(opened, GENERATION_TIMESTAMPS, stamps(TIME, TIME + 100 * HOUR), False)

    with pytest.raises(ConflictError, match="run it again"):
        lake._write(GENERATION_TIMESTAMPS, always_late)
    assert len(tries) == 3
    assert lake.read(GENERATION_TIMESTAMPS, filters=[("time", "=", TIME)]).num_rows == 0


def test_a_lost_race_is_run_again_from_the_newer_version(lake: Lake) -> None:
    """The second writer finds the first one's rows and adds its own."""
    lake.ensure(GENERATION_TIMESTAMPS)
    versions: list[int] = []

    def late_once(opened: Any) -> MergeResult:
        if not versions:
            lake.merge(GENERATION_TIMESTAMPS, stamps(TIME), update=False)
        versions.append(opened.version())
        return merge_rows(opened, GENERATION_TIMESTAMPS, stamps(TIME, TIME + HOUR), False)

    merged = lake._write(GENERATION_TIMESTAMPS, late_once)
    assert (merged.inserted, len(versions)) == (1, 2)
    assert sorted(lake.read(GENERATION_TIMESTAMPS)["time"].to_pylist()) == [TIME, TIME + HOUR]


RACER = """
import sys
from datetime import datetime, timedelta, UTC
import pyarrow as pa
from cdc_platform.delta.lake import Lake
from cdc_platform.tables.generations import GENERATION_TIMESTAMPS
from cdc_platform.tables.nodes import NODES

lake, number = Lake(sys.argv[1]), int(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
lake.ensure(NODES)
inserted, start = 0, datetime(2021, 11, 2, 19, tzinfo=UTC)
for hour in range(4):
    row = {"key": "timestamps", "time": start + timedelta(hours=hour), "expired": start + timedelta(hours=number)}
    inserted += lake.merge(GENERATION_TIMESTAMPS, pa.Table.from_pylist([row]), update=False).inserted
print(inserted)
"""


def test_processes_that_write_equal_rows_leave_one_result(lake: Lake) -> None:
    """Racing processes leave one table, one row per key and one winner per row, without an error."""
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(lake.root), str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(PROCESSES)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    answers = [racer.communicate(timeout=120) for racer in racers]
    assert [racer.returncode for racer in racers] == [0] * PROCESSES, answers
    assert sum(int(inserted) for inserted, _ in answers) == 4
    assert lake.read(GENERATION_TIMESTAMPS).num_rows == 4
    operations = [commit.operation for commit in lake.commits(NODES)]
    assert operations == ["CREATE TABLE"]
    assert [commit.operation for commit in lake.commits(GENERATION_TIMESTAMPS)].count("WRITE") == 4
    assert not list(lake.root.glob("*/.*"))


def test_the_files_of_a_partition(lake: Lake) -> None:
    """The files of one partition are found without reading any, under their names on disk."""
    assert lake.data_files(STREAMS_DESCRIPTIONS_V2, [("time", "=", TIME)]) == []
    for hour in range(3):
        lake.merge(STREAMS_DESCRIPTIONS_V2, streams(TIME + hour * HOUR, range(2)), update=False)
    every = [file.path for file in lake.data_files(STREAMS_DESCRIPTIONS_V2)]
    one = [file.path for file in lake.data_files(STREAMS_DESCRIPTIONS_V2, [("time", "=", TIME), ("range_end", "=", 1)])]
    later = [
        file.path for file in lake.data_files(STREAMS_DESCRIPTIONS_V2, [("time", "in", [TIME + HOUR, TIME + 2 * HOUR])])
    ]
    assert (len(every), len(one), len(later)) == (3, 1, 2)
    assert set(every) == {*one, *later}
    assert all(Path(path).is_file() for path in every)
