"""Tables on Spark: partitions replaced in one commit, repeatable merges, names for SQL, and concurrent writers."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from cdc_platform.delta import Lake, TaskRunner, commit_retry, task_writer, tasks, translate_errors
from cdc_platform.errors import ConflictError, EnvironmentProblem, InputError, StateError
from cdc_platform.spark import frames, table_to_spark_schema
from cdc_platform.storage import atomic
from cdc_platform.tables import (
    BOOTSTRAP_EVENTS,
    CDC_LOCAL,
    GENERATION_DESCRIPTIONS,
    GENERATION_DESCRIPTIONS_V2,
    NODES,
    STREAMS_DESCRIPTIONS_V2,
    Table,
    column,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TIME = datetime(2021, 11, 2, 19, 45, 26, 384000, tzinfo=UTC)
HOUR = timedelta(hours=1)
PARTITION = {"time": TIME}


def streams(spark: SparkSession, time: datetime, count: int, stream: bytes = b"0123456789abcdef") -> DataFrame:
    """Return `count` rows of cdc_streams_descriptions_v2 with range ends from 0, in one partition."""
    from pyspark.sql import functions as F

    ends = spark.range(0, count, 1, 1)
    return ends.select(
        F.lit(time).alias("time"), F.col("id").alias("range_end"), F.array(F.lit(stream)).alias("streams")
    )


def ends(lake: Lake, time: datetime) -> list[int]:
    """Return the range ends of one time that deltalake reads."""
    return sorted(lake.read(STREAMS_DESCRIPTIONS_V2, ["range_end"], [("time", "=", time)])["range_end"].to_pylist())


def test_only_the_partition_is_replaced(spark: SparkSession, lake: Lake) -> None:
    """Spark and deltalake write partitions of a time with milliseconds that count as one for both."""
    table = STREAMS_DESCRIPTIONS_V2
    other = pa.Table.from_pylist([{"time": TIME + HOUR, "range_end": 9, "streams": [b"x" * 16]}], schema=table.schema)
    lake.merge(table, other, update=False)
    first = frames.replace_partition(TaskRunner(lambda: spark), lake, table, streams(spark, TIME, 3), PARTITION)
    assert (ends(lake, TIME), ends(lake, TIME + HOUR)) == ([0, 1, 2], [9])
    second = frames.replace_partition(TaskRunner(lambda: spark), lake, table, streams(spark, TIME, 2), PARTITION)
    assert second == first + 1 == lake.version(table)
    frames.replace_partition(
        TaskRunner(lambda: spark), lake, table, streams(spark, TIME + HOUR, 1), {"time": TIME + HOUR}
    )
    assert (ends(lake, TIME), ends(lake, TIME + HOUR)) == ([0, 1], [0])
    lake.merge(table, other, update=False)
    rows = frames.read_table_frame(spark, lake, table).where(f"time = timestamp'{TIME + HOUR}'")
    assert sorted(row["range_end"] for row in rows.collect()) == [0, 9]
    assert lake.delete(table, [("time", "=", TIME)]) == 2
    assert frames.read_table_frame(spark, lake, table).count() == 2


def test_partition_is_read_without_deltas_state(spark: SparkSession, lake: Lake) -> None:
    """`get_partition_rows` gives the rows that a reader sees, from either writer and from this partition only."""
    table, names = STREAMS_DESCRIPTIONS_V2, ["range_end", "streams"]
    schema = table_to_spark_schema(table)
    stored = type(schema)([schema[name] for name in names])
    assert frames.get_partition_rows(lake, table, PARTITION, names).frame(spark, stored).count() == 0
    frames.replace_partition(TaskRunner(lambda: spark), lake, table, streams(spark, TIME, 3), PARTITION)
    other_rows = pa.Table.from_pylist(
        [{"time": time, "range_end": 9, "streams": [b"x" * 16]} for time in (TIME, TIME + HOUR)], schema=table.schema
    )
    lake.merge(table, other_rows, update=False)
    rows = frames.get_partition_rows(lake, table, PARTITION, names).frame(spark, stored)
    read = frames.read_table_frame(spark, lake, table).where(f"time = '{TIME}'").select(*names)
    assert sorted(rows.collect()) == sorted(read.collect())
    assert rows.count() == 4
    with pytest.raises(InputError, match="named by time"):
        frames.get_partition_rows(lake, table, {**PARTITION, "range_end": 9}, names)


def test_partition_value_may_be_any_text(spark: SparkSession, lake: Lake) -> None:
    """A generation's UUID, or a text with quotes, is a value and not SQL."""
    for name in (UUID(int=5), 'it\'s \\ a "test"'):
        rows = spark.createDataFrame(
            [(str(name), 1, 12, 1, [b"0123456789abcdef"])], table_to_spark_schema(GENERATION_DESCRIPTIONS_V2)
        )
        frames.replace_partition(TaskRunner(lambda: spark), lake, GENERATION_DESCRIPTIONS_V2, rows, {"id": name})
        assert lake.read(GENERATION_DESCRIPTIONS_V2, ["id"], [("id", "=", name)])["id"].to_pylist() == [str(name)]


def test_rows_are_appended_once_per_transaction(spark: SparkSession, lake: Lake) -> None:
    """The table skips a number that it has, or a lower one; without a number rows are always appended."""
    table = STREAMS_DESCRIPTIONS_V2
    transactions = [("one", 2, 2), ("one", 2, 2), ("one", 1, 2), ("other", 1, 3), ("one", 3, 0)]
    appended = [
        frames.append_to_table(
            TaskRunner(lambda: spark), lake, table, streams(spark, TIME + number * HOUR, rows), (application, at)
        )
        for number, (application, at, rows) in enumerate(transactions)
    ]
    assert appended == [True, False, False, True, False]
    assert [len(ends(lake, TIME + number * HOUR)) for number in range(len(transactions))] == [2, 0, 0, 3, 0]
    assert lake.transaction(table, "one") == 2
    assert frames.append_to_table(TaskRunner(lambda: spark), lake, table, streams(spark, TIME, 2))
    assert ends(lake, TIME) == [0, 0, 1, 1]
    newest, *_ = lake.commits(table)
    assert newest.operation == "WRITE"


def test_all_rows_and_columns_are_replaced(spark: SparkSession, lake: Lake) -> None:
    """Declared columns, comments included, replace the existing ones, once per transaction."""
    old, new = (
        Table("ks", "log", pa.schema([column("k", pa.int32(), "key"), last]), ("k",), "a log")
        for last in (column("b", pa.string(), "old", null=True), column("a", pa.int64(), "new", null=True))
    )
    assert frames.append_to_table(
        TaskRunner(lambda: spark), lake, old, spark.createDataFrame([(1, "x"), (2, "y")], table_to_spark_schema(old))
    )
    rows = spark.createDataFrame([(3, 30)], table_to_spark_schema(new))
    assert [frames.replace_all_rows(TaskRunner(lambda: spark), lake, new, rows, ("shape", 1)) for _ in range(2)] == [
        True,
        False,
    ]
    assert lake.read(new).to_pylist() == [{"k": 3, "a": 30}]
    stored = pa.schema(DeltaTable(lake.path(new)).schema())
    assert stored.equals(new.schema, check_metadata=True)
    assert frames.replace_all_rows(TaskRunner(lambda: spark), lake, new, rows.limit(0), ("empty", 1))
    assert lake.read(new).num_rows == 0


def test_workers_without_the_home_are_one_line(spark: SparkSession, lake: Lake) -> None:
    """If a worker has no folder that the driver created, nothing is committed, and one line has a remedy."""
    table = STREAMS_DESCRIPTIONS_V2
    version = frames.replace_partition(TaskRunner(lambda: spark), lake, table, streams(spark, TIME, 2), PARTITION)
    parent = str(Path(lake.path(table)).parent)

    def hidden(_: int) -> Any:
        import shutil
        from pathlib import Path

        import pyarrow as pa

        for draft in Path(parent).glob(".*"):
            shutil.rmtree(draft)
        streams = pa.array([[b"1" * 16]])
        yield pa.record_batch({"time": pa.array([TIME]), "range_end": pa.array([1]), "streams": streams})

    with pytest.raises(EnvironmentProblem, match=r"workers do not see the home .*; mount it at the same path"):
        frames.replace_partition(TaskRunner(lambda: spark), lake, table, tasks.TaskRows(1, hidden), PARTITION)
    assert (lake.version(table), ends(lake, TIME)) == (version, [0, 1])


def test_structs_in_arrays_are_preserved_by_spark(spark: SparkSession, lake: Lake) -> None:
    """Spark writes the V1 description, and deltalake reads it unchanged."""
    entries = [{"token_range_end": 5, "streams": [b"b" * 16, b"a" * 16], "sharding_ignore_msb": 12}]
    rows = spark.createDataFrame([(TIME, entries, None)], table_to_spark_schema(GENERATION_DESCRIPTIONS))
    frames.append_to_table(TaskRunner(lambda: spark), lake, GENERATION_DESCRIPTIONS, rows)
    assert lake.read(GENERATION_DESCRIPTIONS).to_pylist() == [{"time": TIME, "description": entries, "expired": None}]


def test_tables_stay_readable_by_every_delta_reader(spark: SparkSession, lake: Lake) -> None:
    """Spark's writes add no feature to a table, and tables that it creates have none either."""
    frames.replace_partition(
        TaskRunner(lambda: spark), lake, STREAMS_DESCRIPTIONS_V2, streams(spark, TIME, 1), PARTITION
    )
    frames.append_to_table(TaskRunner(lambda: spark), lake, STREAMS_DESCRIPTIONS_V2, streams(spark, TIME + HOUR, 2))
    spark.range(3).write.format("delta").save(str(lake.root / "own"))
    for path in (lake.path(STREAMS_DESCRIPTIONS_V2), str(lake.root / "own")):
        protocol = DeltaTable(path).protocol()
        assert (protocol.min_reader_version, protocol.reader_features, protocol.writer_features) == (1, None, None)
        assert protocol.min_writer_version <= 3


def _v2_with(column: str, expression: str) -> Callable[[SparkSession], DataFrame]:
    from pyspark.sql import functions as F

    return lambda spark: streams(spark, TIME, 2).withColumn(column, F.expr(expression))


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (lambda spark: streams(spark, TIME + HOUR, 2), "rows lie outside that partition"),
        (_v2_with("range_end", "cast(null as bigint)"), "range_end may not be null, and is in 2 of 2 rows"),
        (
            _v2_with("streams", "cast(array() as array<binary>)"),
            "2 rows break the table's constraints, as this one: .*streams=\\[\\]",
        ),
        (_v2_with("range_end", "'text'"), "range_end takes int64, not string"),
        (lambda spark: streams(spark, TIME, 2).drop("streams"), "name `streams` cannot be resolved"),
    ],
    ids=["outside", "null", "empty", "type", "missing"],
)
def test_invalid_rows_are_refused_in_one_line(
    spark: SparkSession,
    lake: Lake,
    rows: Callable[[SparkSession], DataFrame],
    told: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The table stays unchanged, and nothing is printed."""
    with pytest.raises(InputError, match=told) as refused:
        frames.replace_partition(TaskRunner(lambda: spark), lake, STREAMS_DESCRIPTIONS_V2, rows(spark), PARTITION)
    assert "\n" not in str(refused.value)
    assert STREAMS_DESCRIPTIONS_V2.full_name in str(refused.value)
    assert lake.read(STREAMS_DESCRIPTIONS_V2).num_rows == 0
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("where", [{}, {"colour": 1}, {"time": 1.5}])
def test_partition_name_needs_columns_and_plain_values(spark: SparkSession, lake: Lake, where: dict[str, Any]) -> None:
    """An empty or unknown name never replaces all rows."""
    with pytest.raises(InputError, match="slice"):
        frames.replace_partition(
            TaskRunner(lambda: spark), lake, STREAMS_DESCRIPTIONS_V2, streams(spark, TIME, 1), where
        )


@pytest.mark.parametrize(
    ("query", "error", "told"),
    [
        ("SELEC 1", InputError, "Syntax error at or near 'SELEC'"),
        ("SELECT nothing FROM {local}", InputError, "`nothing` cannot be resolved"),
        ("SELECT * FROM nowhere.table", InputError, "`nowhere`.`table` cannot be found"),
        ("SELECT 1/0", InputError, "Division by zero"),
        ("SELECT CAST('x' AS INT)", InputError, "cannot be cast"),
        ("SELECT no_such_function(1)", InputError, "Cannot resolve routine"),
        ("INSERT INTO {local} VALUES ('h', 'other', null, null)", InputError, r"known_key .*key : other"),
        ("INSERT INTO {local} VALUES (null, 'cdc_local', null, null)", InputError, "NOT NULL .* host_id"),
        ("DELETE FROM {events} WHERE kind = 'join'", StateError, "only allow appends"),
    ],
)
def test_errors_of_a_query_are_one_line(
    spark: SparkSession, lake: Lake, query: str, error: type[Exception], told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """The line has the fault in the query's words, without a stack or state code, and nothing is printed."""
    for table in (CDC_LOCAL, BOOTSTRAP_EVENTS):
        lake.ensure(table)
    named = {"local": f"delta.`{lake.path(CDC_LOCAL)}`", "events": f"delta.`{lake.path(BOOTSTRAP_EVENTS)}`"}
    with pytest.raises(error, match=told) as refused, translate_errors("the query"):
        spark.sql(query.format(**named)).collect()
    assert "SQLSTATE" not in str(refused.value)
    assert "\n" not in str(refused.value)
    assert capfd.readouterr() == ("", "")


class Interleaving:
    """Interleaves two writers: the first stops within its rows until the second has committed."""

    def __init__(self, folder: Path) -> None:
        self.started, self.go_on, self.once = folder / "started", folder / "go_on", folder / "once"
        os.mkfifo(self.started)
        os.mkfifo(self.go_on)

    def stopping(self, rows: DataFrame) -> DataFrame:
        """Return the same rows; their first computation reports its start and waits until it may continue."""
        started, go_on, once = self.started, self.go_on, self.once

        def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            # Opening a FIFO waits for its other end.
            if not once.exists():
                once.touch()
                started.write_bytes(b"")
                go_on.read_bytes()
            yield from batches

        return rows.mapInArrow(wait, rows.schema)

    def run(self, first: Callable[[], Any], second: Callable[[], Any]) -> Future[Any]:
        """Run `second` in the middle of `first`; return the result or error of `first`."""
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(first)
            self.started.read_text(encoding="utf-8")
            second()
            self.go_on.write_text("", encoding="utf-8")
        return running


@pytest.mark.timeout(120)
@pytest.mark.parametrize("there", [0, 2], ids=["new", "known"])
def test_concurrent_replacement_of_a_partition_is_repeated(
    spark: SparkSession, lake: Lake, tmp_path: Path, there: int
) -> None:
    """Two nodes publish one generation at the same time: one result, no duplicates, no error."""
    table, interleaving = STREAMS_DESCRIPTIONS_V2, Interleaving(tmp_path)
    rows = streams(spark, TIME, 4)
    if there:
        frames.replace_partition(TaskRunner(lambda: spark), lake, table, streams(spark, TIME, there), PARTITION)
    first = interleaving.run(
        lambda: frames.replace_partition(
            TaskRunner(lambda: spark), lake, table, interleaving.stopping(rows), PARTITION
        ),
        lambda: frames.replace_partition(TaskRunner(lambda: spark), lake, table, rows, PARTITION),
    )
    assert ends(lake, TIME) == [0, 1, 2, 3]
    newest, before, *_ = lake.commits(table)
    assert (newest.operation, before.operation) == ("WRITE", "WRITE")
    assert first.result() == newest.version


def commit_first(monkeypatch: pytest.MonkeyPatch, second: Callable[[], Any]) -> None:
    """Run `second` between the next partition writer's read of the table and its commit."""
    placed = task_writer._place_draft

    def place(*of: Any) -> Any:
        monkeypatch.setattr(task_writer, "_place_draft", placed)
        second()
        return placed(*of)

    monkeypatch.setattr(task_writer, "_place_draft", place)


@pytest.mark.parametrize("other", [0, 1], ids=["the same slice", "another slice"])
def test_writer_retries_after_a_concurrent_commit(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch, other: int
) -> None:
    """Rows of both writers exist once, and the version that the later writer returns has its rows."""
    table = STREAMS_DESCRIPTIONS_V2
    time = TIME + other * HOUR
    commit_first(
        monkeypatch,
        lambda: frames.replace_partition(
            TaskRunner(lambda: spark), lake, table, streams(spark, time, 3), {"time": time}
        ),
    )
    version = frames.replace_partition(TaskRunner(lambda: spark), lake, table, streams(spark, TIME, 4), PARTITION)
    assert ends(lake, TIME) == [0, 1, 2, 3]
    assert ends(lake, TIME + HOUR) == [0, 1, 2][: 3 * other]
    assert version == lake.version(table)
    assert DeltaTable(lake.path(table), version=version - 1).to_pyarrow_table().num_rows == 3


def test_race_without_a_retry_is_a_conflict(spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a control of the test above, the race is real, and its loser fails with one line."""
    monkeypatch.setattr(commit_retry, "ATTEMPTS", 1)
    table = STREAMS_DESCRIPTIONS_V2
    commit_first(
        monkeypatch,
        lambda: frames.replace_partition(TaskRunner(lambda: spark), lake, table, streams(spark, TIME, 3), PARTITION),
    )
    with pytest.raises(ConflictError, match="other writers committed first"):
        frames.replace_partition(TaskRunner(lambda: spark), lake, table, streams(spark, TIME, 4), PARTITION)
    assert ends(lake, TIME) == [0, 1, 2]


def test_write_leaves_no_drafts(spark: SparkSession, lake: Lake) -> None:
    """This holds after success and refusal; drafts of killed writers are removed, held ones stay."""
    table = STREAMS_DESCRIPTIONS_V2
    frames.replace_partition(TaskRunner(lambda: spark), lake, table, streams(spark, TIME, 2), PARTITION)
    with pytest.raises(InputError):
        frames.replace_partition(TaskRunner(lambda: spark), lake, table, streams(spark, TIME + HOUR, 2), PARTITION)
    parent = Path(lake.path(table)).parent
    assert [entry.name for entry in parent.iterdir()] == [table.name]
    locked = atomic.make_draft_folder(parent, table.name)
    # An abandoned draft, and two of an earlier release, which had no locks: one more than a day old, one younger.
    (parent / f".{table.name}.{1:032x}.draft").mkdir()
    for number, age in ((2, 2 * 86_400), (3, 3_600)):
        old_draft = parent / f".{table.name}.{number:032x}"
        old_draft.mkdir()
        modified = old_draft.stat().st_mtime - age
        os.utime(old_draft, (modified, modified))
    frames.replace_partition(TaskRunner(lambda: spark), lake, table, streams(spark, TIME, 2), PARTITION)
    assert {entry.name for entry in parent.iterdir()} == {f".{table.name}.{3:032x}", locked.name, table.name}
    atomic.discard_draft(locked)


def test_rows_of_tasks_are_a_partition_like_any_other(spark: SparkSession, lake: Lake) -> None:
    """Workers create, read and rewrite them without the JVM; an empty part is no file, invalid rows are refused."""
    table = STREAMS_DESCRIPTIONS_V2

    def part(number: int) -> Iterator[pa.RecordBatch]:
        for end in range(2 * number):
            row = {"time": TIME, "range_end": 10 * number + end, "streams": [bytes([number]) * 16] * 2}
            yield pa.RecordBatch.from_pylist([row], schema=table.schema)

    rows = tasks.TaskRows(3, part)
    frames.replace_partition(TaskRunner(lambda: spark), lake, table, rows, PARTITION)
    assert ends(lake, TIME) == [10, 11, 20, 21, 22, 23]
    assert len(lake.data_files(table, [("time", "=", TIME)])) == 2

    def later(batch: pa.RecordBatch) -> pa.RecordBatch:
        times = pa.repeat(pa.scalar(TIME + HOUR, table.schema.field("time").type), batch.num_rows)
        return pa.RecordBatch.from_arrays([times, *batch.columns], names=table.schema.names)

    copied = frames.get_partition_rows(lake, table, PARTITION, ["range_end", "streams"]).map(later)
    frames.replace_partition(TaskRunner(lambda: spark), lake, table, copied, {"time": TIME + HOUR})
    columns = [lake.read(table, ["range_end", "streams"], [("time", "=", time)]) for time in (TIME, TIME + HOUR)]
    assert columns[0].sort_by("range_end") == columns[1].sort_by("range_end")
    with pytest.raises(InputError, match=r"rows lie outside that partition \(time : 2021-11-02 20:45"):
        frames.replace_partition(TaskRunner(lambda: spark), lake, table, copied, PARTITION)
    frames.replace_partition(TaskRunner(lambda: spark), lake, table, tasks.TaskRows(0, part), PARTITION)
    assert ends(lake, TIME) == []


@pytest.mark.timeout(120)
def test_writer_of_another_partition_is_no_conflict(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    """Two generations written concurrently are both stored, once each."""
    table, interleaving = STREAMS_DESCRIPTIONS_V2, Interleaving(tmp_path)
    first = interleaving.run(
        lambda: frames.replace_partition(
            TaskRunner(lambda: spark), lake, table, interleaving.stopping(streams(spark, TIME, 4)), PARTITION
        ),
        lambda: frames.replace_partition(
            TaskRunner(lambda: spark), lake, table, streams(spark, TIME + HOUR, 3), {"time": TIME + HOUR}
        ),
    )
    assert (ends(lake, TIME), ends(lake, TIME + HOUR)) == ([0, 1, 2, 3], [0, 1, 2])
    assert first.result() == lake.version(table)


def test_concurrent_append_happens_once(spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two writers with one transaction only one's rows are appended; other rows in between stay."""
    table = STREAMS_DESCRIPTIONS_V2
    lake.ensure(table)
    commit_first(
        monkeypatch,
        lambda: frames.append_to_table(TaskRunner(lambda: spark), lake, table, streams(spark, TIME, 3), ("twins", 1)),
    )
    assert not frames.append_to_table(TaskRunner(lambda: spark), lake, table, streams(spark, TIME, 3), ("twins", 1))
    assert ends(lake, TIME) == [0, 1, 2]
    commit_first(
        monkeypatch,
        lambda: frames.append_to_table(TaskRunner(lambda: spark), lake, table, streams(spark, TIME + HOUR, 1)),
    )
    assert frames.append_to_table(
        TaskRunner(lambda: spark), lake, table, streams(spark, TIME + 2 * HOUR, 2), ("twins", 2)
    )
    assert (ends(lake, TIME + HOUR), ends(lake, TIME + 2 * HOUR)) == ([0], [0, 1])


def test_concurrent_replacements_by_threads(spark: SparkSession, lake: Lake) -> None:
    """Whichever thread commits first, each row exists once and neither fails."""
    start = threading.Barrier(2)

    def write(_: int) -> int:
        start.wait()
        return frames.replace_partition(
            TaskRunner(lambda: spark), lake, STREAMS_DESCRIPTIONS_V2, streams(spark, TIME, 20), PARTITION
        )

    with ThreadPoolExecutor(2) as pool:
        written = list(pool.map(write, range(2)))
    assert len(set(written)) == 2
    assert ends(lake, TIME) == list(range(20))


def test_missing_table_reads_as_empty(spark: SparkSession, lake: Lake) -> None:
    """It has its columns, and the read does not create it."""
    assert frames.read_table_frame(spark, lake, NODES).columns == NODES.schema.names
    assert not lake.exists(NODES)
