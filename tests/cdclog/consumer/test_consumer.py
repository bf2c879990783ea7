"""Reading a log: every row once, across a switch of generations, whatever process is killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from support.command_line import run
from support.files.export_files import ID, OTHER_ID
from support.homes.imported import home_with_generations

from cdc_platform import failpoints
from cdc_platform.cdclog import CONFIDENCE_WINDOW_US, EXACT, LOG_KEY, WRITTEN_AT, log_table, read_table_schema
from cdc_platform.cdclog.batch_encoder import encode_log_batch
from cdc_platform.cdclog.consumer import hourly, reader
from cdc_platform.cdclog.consumer.reader import consume, read_changes, sink_table
from cdc_platform.cdclog.dataframe import get_stream_lookup
from cdc_platform.cdclog.schema import GENERATION, typed_writes_schema
from cdc_platform.clock import (
    HOUR_US,
    Clock,
    Microseconds,
    datetime_from_us,
    format_ms,
    ms_from_us,
    parse_time_us,
    us_from_datetime,
    us_from_ms,
)
from cdc_platform.delta import Lake, TimeOrder
from cdc_platform.delta.small_files import rewrite_small_files
from cdc_platform.errors import ConflictError, InputError, NotFound, StateError
from cdc_platform.generations import uniform_tablet_ends
from cdc_platform.lifecycle import tablets
from cdc_platform.metastore import cdc_tables, consumers
from cdc_platform.metastore import tablets as metastore_tablets
from cdc_platform.settings import Settings
from cdc_platform.tables import GENERATION_TIMESTAMPS, STREAMS_DESCRIPTIONS_V2

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cdc_platform.cql import TableSchema

FIRST, SECOND = "2026-01-31T12:00:00Z", "2026-01-31T13:00:00Z"
START_US, SWITCH_US = parse_time_us(FIRST), parse_time_us(SECOND)
NOW_US = SWITCH_US + Microseconds(3_600_000_000)
DDL = "CREATE TABLE ks.t (p int, k int, v int, PRIMARY KEY (p, k)) WITH cdc = {'enabled': 'true'};"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Create two generations, an hour apart, and a table whose log has rows before, at and after the switch."""
    home_with_generations(tmp_path, {ID: ms_from_us(START_US), OTHER_ID: ms_from_us(SWITCH_US)})
    lake = Lake(tmp_path / "home" / "lake")
    cdc_tables.add_cdc_table(lake, Clock(START_US), "ks", "t", ttl_seconds=86_400, ddl=DDL)
    write(lake, 0, [Microseconds(START_US), Microseconds(START_US + 1), Microseconds(SWITCH_US - 1)])
    write(
        lake,
        1,
        [
            Microseconds(SWITCH_US),
            Microseconds(SWITCH_US + 1),
            Microseconds(NOW_US - CONFIDENCE_WINDOW_US),
            Microseconds(NOW_US - CONFIDENCE_WINDOW_US + 1),
        ],
    )
    return tmp_path / "home"


def schema(lake: Lake) -> TableSchema:
    """Return the registered table's schema."""
    return read_table_schema(lake, "ks", "t")


def write(lake: Lake, number: int, times_us: list[Microseconds]) -> None:
    """Log writes at these times."""
    typed = [
        {"operation": 2, "timestamp": when, "p": index, "k": number, "v": when % 1000}
        for index, when in enumerate(times_us)
    ]
    batch = pa.RecordBatch.from_pylist(typed, schema=typed_writes_schema(schema(lake)))
    rows = pa.Table.from_batches([encode_log_batch(schema(lake), batch, get_stream_lookup(lake, schema(lake)))])
    assert lake.append_once(log_table(schema(lake)), rows, {"writer": number + 1}, number or None)


def write_times(lake: Lake, table: Any) -> list[int]:
    """Return when the rows of a table were written (µs), sorted."""
    return sorted(lake.read(table, [WRITTEN_AT])[WRITTEN_AT].cast("int64").to_pylist())


READABLE = [START_US, START_US + 1, SWITCH_US - 1, SWITCH_US, SWITCH_US + 1, NOW_US - CONFIDENCE_WINDOW_US]


def test_each_row_is_read_once_and_none_too_early(home: Path) -> None:
    """Two windows cover the switch; a row younger than the safety window is read once it is old enough."""
    lake = Lake(home / "lake")
    table = schema(lake)
    consumer, rows = consume(lake, Clock(NOW_US), table, "audit")
    assert (rows, consumer.window_number, consumer.set_timestamp_us) == (6, 2, SWITCH_US)
    assert write_times(lake, sink_table(table, "audit")) == READABLE
    assert consume(lake, Clock(NOW_US), table, "audit")[1] == 0
    assert consume(lake, Clock(Microseconds(NOW_US + 1)), table, "audit")[1] == 1
    assert write_times(lake, sink_table(table, "audit")) == [*READABLE, NOW_US - CONFIDENCE_WINDOW_US + 1]
    everything = lake.read(log_table(table)).sort_by([("cdc$time", "ascending")])
    copied = lake.read(sink_table(table, "audit")).sort_by([("cdc$time", "ascending")])
    assert copied.drop_columns([GENERATION]).equals(everything)
    # Each row has the generation that operates at its time.
    row_generations = zip(
        map(us_from_datetime, copied[WRITTEN_AT].to_pylist()), copied[GENERATION].to_pylist(), strict=True
    )
    assert all(
        us_from_datetime(generation_time) == (SWITCH_US if written_us >= SWITCH_US else START_US)
        for written_us, generation_time in row_generations
    )


def test_files_rewritten_between_windows_change_nothing(home: Path) -> None:
    """After rewriting files of the log and of the sink, each row is read once, and the consumer continues."""
    lake = Lake(home / "lake")
    table = schema(lake)
    log, sink = log_table(table), sink_table(table, "audit")
    for number in range(2, 6):
        write(lake, number, [Microseconds(START_US + number * 10), Microseconds(SWITCH_US + number * 10)])
    for hour in (START_US, SWITCH_US):
        for number in range(6, 9):
            write(lake, (number if hour == START_US else number + 3), [Microseconds(hour + number * 100)])
    expected = [written_us for written_us in write_times(lake, log) if written_us <= NOW_US - CONFIDENCE_WINDOW_US]
    order = TimeOrder(WRITTEN_AT, LOG_KEY, Microseconds(NOW_US + 9 * HOUR_US))
    for until_us in (START_US + 30, SWITCH_US + 30, NOW_US):
        consume(lake, Clock(NOW_US), table, "audit", until_us=Microseconds(until_us))
        before = len(lake.data_files(log))
        rewritten = rewrite_small_files(lake, log, order)
        assert rewritten.files_before == 0 or len(lake.data_files(log)) < before
        rewrite_small_files(lake, sink, order)
        numbers = lake.transactions(sink, ["audit", "audit:position"])
        assert set(numbers) == {"audit", "audit:position"}
    assert len(lake.data_files(log)) < 9
    assert write_times(lake, sink) == expected
    assert consume(lake, Clock(NOW_US), table, "audit")[1] == 0


def test_until_and_name_belong_to_the_consumer(home: Path) -> None:
    """One consumer stops where requested while another reads on; a position never goes back."""
    lake = Lake(home / "lake")
    table = schema(lake)
    assert consume(lake, Clock(NOW_US), table, "slow", until_us=START_US)[1] == 1
    assert consume(lake, Clock(NOW_US), table, "fast")[1] == 6
    assert consume(lake, Clock(NOW_US), table, "slow", until_us=Microseconds(SWITCH_US - 1))[1] == 2
    assert consume(lake, Clock(NOW_US), table, "slow", until_us=START_US)[1] == 0
    assert write_times(lake, sink_table(table, "slow")) == READABLE[:3]


def test_large_logs_are_read_in_several_windows(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many files as fit are read at once, by their own bounds; the rows are the same."""
    lake = Lake(home / "lake")
    table = schema(lake)
    monkeypatch.setattr(reader, "MAX_ROWS_IN_MEMORY", 1)
    for part in range(3):
        write(lake, 2 + part, [Microseconds(START_US + 1000 * part + 10), Microseconds(START_US + 1000 * part + 20)])
    consumer, rows = consume(lake, Clock(NOW_US), table, "audit")
    assert rows == 12
    assert consumer.window_number > 2
    assert write_times(lake, sink_table(table, "audit")) == [
        written_us for written_us in write_times(lake, log_table(table)) if written_us <= NOW_US - CONFIDENCE_WINDOW_US
    ]


@pytest.mark.parametrize("point", failpoints.CONSUME_POINTS)
def test_a_killed_consumer_resumes_where_it_was(home: Path, point: str) -> None:
    """A real process is killed before it stores its rows, or before its position; more rows arrive in the meantime."""
    lake = Lake(home / "lake")
    table = schema(lake)
    command = [sys.executable, "-m", "cdc_platform", "--home", str(home), "--clock", "2026-01-31T12:30:00Z"]
    environment = {**os.environ, failpoints.KILL_AT_VARIABLE: point}
    killed = subprocess.run(
        [*command, "consume", "ks.t", "--name", "audit"], env=environment, capture_output=True, timeout=120
    )
    assert killed.returncode == -signal.SIGKILL
    answer = run("--home", home, "--clock", "2026-01-31T14:00:00Z", "consume", "ks.t", "--name", "audit", "--json")
    assert answer.exit_code == 0, answer.stderr
    assert write_times(lake, sink_table(table, "audit")) == READABLE
    assert answer.json["rows"] == (6 if point == failpoints.BEFORE_SINK else 4)
    assert answer.json["position"] == "2026-01-31T13:59:30.000Z"


def test_the_second_of_two_consumers_of_one_name_stops(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both read the same window, and the second one writes nothing."""
    lake = Lake(home / "lake")
    table = schema(lake)
    read_window = reader.read_window

    def overtake(*arguments: Any) -> Any:
        monkeypatch.setattr(reader, "read_window", read_window)
        consume(lake, Clock(NOW_US), table, "audit")
        return read_window(*arguments)

    monkeypatch.setattr(reader, "read_window", overtake)
    with pytest.raises(ConflictError, match=r"another process reads ks\.t as audit"):
        consume(lake, Clock(NOW_US), table, "audit")
    assert write_times(lake, sink_table(table, "audit")) == READABLE


def test_windows_of_another_process_are_not_mistaken_for_a_forgotten_consumers(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer looked up before another process read several windows gets a conflict, not advice to remove them."""
    lake, ensure_consumer = Lake(home / "lake"), reader.ensure_consumer

    def overtake(*arguments: Any) -> consumers.Consumer:
        outdated = ensure_consumer(*arguments)
        monkeypatch.undo()
        consume(Lake(home / "lake"), Clock(NOW_US), schema(lake), "audit")
        return outdated

    monkeypatch.setattr(reader, "ensure_consumer", overtake)
    with pytest.raises(ConflictError, match=r"another process reads ks\.t as audit"):
        consume(lake, Clock(NOW_US), schema(lake), "audit")
    assert consume(lake, Clock(NOW_US), schema(lake), "audit")[1] == 0


def test_a_generation_is_read_once_all_its_streams_exist(home: Path) -> None:
    """A timestamp without its stream rows makes the reader wait with a message; earlier rows are read."""
    lake = Lake(home / "lake")
    table = schema(lake)
    rows = lake.read(STREAMS_DESCRIPTIONS_V2, filters=[("time", "=", datetime_from_us(SWITCH_US))])
    lake.delete(STREAMS_DESCRIPTIONS_V2, [("time", "=", datetime_from_us(SWITCH_US)), ("range_end", ">", 0)])
    with pytest.raises(StateError, match="not all published yet"):
        consume(lake, Clock(NOW_US), table, "audit")
    assert write_times(lake, sink_table(table, "audit")) == READABLE[:3]
    lake.merge(STREAMS_DESCRIPTIONS_V2, rows, update=False)
    assert consume(lake, Clock(NOW_US), table, "audit")[1] == 3


def test_a_removed_generation_is_reported(home: Path) -> None:
    """A consumer inside it gets an error that names the lost rows, and is not moved."""
    lake = Lake(home / "lake")
    table = schema(lake)
    before, _ = consume(lake, Clock(NOW_US), table, "audit", until_us=START_US)
    lake.delete(GENERATION_TIMESTAMPS, [("time", "=", datetime_from_us(START_US))])
    with pytest.raises(StateError, match="which was removed; unread rows before 2026-01-31T13:00"):
        consume(lake, Clock(NOW_US), table, "audit")
    assert consumers.find_consumer(lake, "audit", "ks", "t") == before


def test_invalid_consumers_are_refused(home: Path, tmp_path: Path) -> None:
    """Invalid names, tables without a log, and a sink that does not belong to the position are refused."""
    lake = Lake(home / "lake")
    table = schema(lake)
    with pytest.raises(InputError, match="no name of a consumer"):
        consume(lake, Clock(NOW_US), table, "a-b/../c")
    with pytest.raises(NotFound, match="has no log here"):
        consume(Lake(tmp_path / "empty"), Clock(NOW_US), table, "audit")
    consume(lake, Clock(NOW_US), table, "audit")
    consumers.forget_consumer(lake, "audit", "ks", "t")
    with pytest.raises(StateError, match="it was forgotten"):
        consume(lake, Clock(NOW_US), table, "audit")


def test_a_sink_gets_added_columns(home: Path) -> None:
    """After ALTER TABLE adds a column and drops another the consumer reads on; old values stay in the sink."""
    lake = Lake(home / "lake")
    consume(lake, Clock(NOW_US), schema(lake), "audit", until_us=Microseconds(SWITCH_US - 1))
    cdc_tables.alter_cdc_table(lake, Clock(SWITCH_US), "ks", "t", ddl=DDL.replace("v int", "w text"))
    assert consume(lake, Clock(NOW_US), schema(lake), "audit", until_us=SWITCH_US)[1] == 1
    stored = lake.widen(log_table(schema(lake)))
    typed = [{"operation": 2, "timestamp": SWITCH_US + 2, "p": 1, "k": 9, "w": "new"}]
    batch = pa.RecordBatch.from_pylist(typed, schema=typed_writes_schema(schema(lake)))
    rows = encode_log_batch(schema(lake), batch, get_stream_lookup(lake, schema(lake)))
    assert lake.append_once(stored, pa.Table.from_batches([rows]), {"other": 1}, None)
    assert consume(lake, Clock(NOW_US), schema(lake), "audit")[1] == 3
    sink_rows = lake.read(lake.widen(sink_table(schema(lake), "audit"))).sort_by(WRITTEN_AT).to_pylist()
    assert [row["v"] for row in sink_rows] == [when % 1000 for when in READABLE[:3]] + [None] * 4
    assert [row["w"] for row in sink_rows] == [None] * 5 + ["new", None]


def test_a_copy_has_the_exact_value_if_its_log_has_one(home: Path, tmp_path: Path) -> None:
    """If a log gets exact values after a consumer began, both kinds of copies store them beside the native values."""
    lake, file = Lake(home / "lake"), tmp_path / "statements.cql"
    far_ms, clock = 9_300_000_000_000_000, format_ms(ms_from_us(Microseconds(START_US + 60_000_000)))

    def apply_insert(number: int, at_us: int, value: int, before: str = "") -> None:
        row = f"INSERT INTO ks.u (p, at) VALUES ({number}, {value}) USING TIMESTAMP {at_us};"
        file.write_text(before + row, encoding="utf-8")
        answer = run("--home", home, "--clock", clock, "cql", "run", file, "--apply")
        assert answer.exit_code == 0, answer.stderr

    apply_insert(
        1, START_US + 5, 1_000, "CREATE TABLE ks.u (p int PRIMARY KEY, at timestamp) WITH cdc = {'enabled': 'true'};"
    )
    table = read_table_schema(lake, "ks", "u")
    consume(lake, Clock(NOW_US), table, "audit", until_us=Microseconds(START_US + 10))
    apply_insert(2, START_US + 20, far_ms)
    assert consume(lake, Clock(NOW_US), table, "audit")[1] == 1
    assert hourly.copy_hour(lake, Clock(NOW_US), [table], START_US)[0].rows == 2
    log = exact_values(lake, log_table(table, exact=True))
    assert [(p, far) for p, _, far in log] == [(1, None), (2, [("at", str(far_ms))])]
    for name in ("audit", "hourly"):
        assert exact_values(lake, sink_table(table, name, exact=True)) == log


def exact_values(lake: Lake, table: Any) -> list[tuple[Any, ...]]:
    """Return the key, the native and the exact value of each row."""
    rows = lake.read(table, ["p", "at", EXACT]).sort_by("p")
    return list(zip(*(rows[name].to_pylist() for name in rows.column_names), strict=True))


def test_a_column_of_another_type_is_not_written_into_the_old_one(home: Path) -> None:
    """After a re-creation the sink stores old values and deletions in renamed columns, and the consumer continues."""
    lake = Lake(home / "lake")
    consume(lake, Clock(NOW_US), schema(lake), "audit", until_us=Microseconds(SWITCH_US - 1))
    before = lake.read(sink_table(schema(lake), "audit"))
    shutil.rmtree(lake.path(log_table(schema(lake))))
    cdc_tables.alter_cdc_table(lake, Clock(SWITCH_US), "ks", "t", ddl=DDL.replace("v int", "v text"))
    lake.ensure(log_table(schema(lake)))
    consume(lake, Clock(NOW_US), schema(lake), "audit")
    sink = sink_table(schema(lake), "audit")
    stored = lake.read_version(sink, lake.version(sink) or 0)
    old_names = sorted(name for name in stored.column_names if "$until_" in name)
    assert [name.partition("$until_")[0] for name in old_names] == ["cdc$deleted_v", "v"]
    assert sorted(stored[old_names[1]].to_pylist()) == sorted(before["v"].to_pylist()) != []
    assert stored["v"].null_count == stored.num_rows
    assert str(stored.schema.field("v").type).startswith("string")


def test_a_tablet_based_table_is_read_set_by_set(tmp_path: Path) -> None:
    """Two tablets split into four: rows have streams of their set, each set is a window, every row is read once."""
    lake = Lake(tmp_path / "lake")
    created, split = Clock(Microseconds(START_US + 5_000_000)), Clock(Microseconds(SWITCH_US - 65_000_000))
    tablets.create_tablets(lake, created, Settings(), "ks", "t", uniform_tablet_ends(2), ttl_seconds=86_400)
    tablets.split_tablets(lake, split, Settings(), "ks", "t", 4)
    cdc_tables.drop_cdc_table(lake, created, "ks", "t")
    cdc_tables.add_cdc_table(lake, split, "ks", "t", ttl_seconds=86_400, ddl=DDL)
    sets = metastore_tablets.read_stream_sets(lake, "ks", "t")
    assert [us_from_ms(stream_set.timestamp_ms) for stream_set in sets] == [START_US, SWITCH_US]
    times = [START_US, *map(Microseconds, range(SWITCH_US - 20, SWITCH_US + 20))]
    write(lake, 0, times)
    consumer, rows = consume(lake, Clock(NOW_US), schema(lake), "audit")
    assert (rows, consumer.window_number, consumer.set_timestamp_us) == (41, 2, SWITCH_US)
    sink_rows = lake.read(sink_table(schema(lake), "audit"))
    streams = [{bytes(stream) for stream in stream_set.ids} for stream_set in sets]
    assert [len(stream_set) for stream_set in streams] == [2, 4]
    for stream, when in zip(
        sink_rows["cdc$stream_id"].to_pylist(), sink_rows[WRITTEN_AT].cast("int64").to_pylist(), strict=True
    ):
        assert stream in streams[when >= SWITCH_US]
    assert sorted(sink_rows[WRITTEN_AT].cast("int64").to_pylist()) == times


@pytest.mark.spark
def test_changes_come_in_the_order_of_generations(home: Path, spark: SparkSession) -> None:
    """The DataFrame has the same rows; it excludes its start and rows younger than the safety window."""
    lake = Lake(home / "lake")
    table = schema(lake)

    def read(since_us: Microseconds, until_us: Microseconds) -> list[int]:
        rows = read_changes(spark, lake, table, since_us, until_us, now_us=NOW_US)
        return [row[0] for row in rows.selectExpr(f"unix_micros(`{WRITTEN_AT}`)").collect()]

    assert read(Microseconds(0), NOW_US * 2) == READABLE
    assert read(START_US, SWITCH_US) == READABLE[1:4]
    assert read(NOW_US, NOW_US * 2) == []
