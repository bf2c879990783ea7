"""Generations listed without any stream: skipped by name as clients do; a generation with some streams is awaited."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from support.command_line import run
from support.files.export_files import ID, OTHER_ID
from support.homes.imported import home_with_generations

from cdc_platform.cdclog import (
    CONFIDENCE_WINDOW_US,
    WRITTEN_AT,
    audit_hours,
    audit_skipped_sets,
    log_table,
    read_table_schema,
)
from cdc_platform.cdclog.batch_encoder import encode_log_batch
from cdc_platform.cdclog.consumer import hourly
from cdc_platform.cdclog.consumer.progress import StreamProgress
from cdc_platform.cdclog.consumer.reader import consume, read_changes, sink_table
from cdc_platform.cdclog.dataframe import get_stream_lookup
from cdc_platform.cdclog.schema import GENERATION, typed_writes_schema
from cdc_platform.checks import audit_tablets
from cdc_platform.clock import HOUR_US, Clock, Microseconds, datetime_from_us, format_us, ms_from_us, parse_time_us
from cdc_platform.delta import Lake
from cdc_platform.errors import StateError
from cdc_platform.generations import uniform_tablet_ends
from cdc_platform.lifecycle import tablets
from cdc_platform.metastore import cdc_tables, consumers, read_skipped_sets
from cdc_platform.metastore import tablets as metastore_tablets
from cdc_platform.settings import Settings
from cdc_platform.tables import (
    GENERATION_TIMESTAMPS,
    REMOVED_GENERATIONS,
    STREAMS_DESCRIPTIONS_V2,
    TABLET_STREAMS,
    TABLET_TIMESTAMPS,
    Table,
)
from cdc_platform.timeline import StreamSources

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cdc_platform.cql import TableSchema

THIRD_ID = "8d3f3f2e-3c61-4b0e-9a59-5a3f7c1de003"
FIRST_US = parse_time_us("2026-01-31T12:00:00Z")
SECOND_US, THIRD_US = FIRST_US + HOUR_US, FIRST_US + HOUR_US * 2
LATE_US = THIRD_US + HOUR_US
TIMES = (FIRST_US, SECOND_US, THIRD_US)
DDL = "CREATE TABLE ks.t (p int, k int, v int, PRIMARY KEY (p, k)) WITH cdc = {'enabled': 'true'};"
WRITTEN = [when + offset for when in TIMES for offset in (0, 5)]
AUDIT = ("audit", "ks", "t")


@dataclass
class World:
    """A table with a log in three generations or stream sets, an hour apart, and the messages of its reader."""

    lake: Lake
    streams: Table
    column: str
    told: list[str] = field(default_factory=list)

    @property
    def schema(self) -> TableSchema:
        """Return the table's schema."""
        return read_table_schema(self.lake, "ks", "t")

    def take_away(self, time_us: int, rows: Callable[[pa.Table], pa.Table] = lambda rows: rows) -> pa.Table:
        """Delete rows of streams of a time, by default all; return them."""
        deleted = rows(
            self.lake.read(self.streams, filters=[(self.column, "=", datetime_from_us(Microseconds(time_us)))])
        )
        key = "range_end" if self.column == "time" else "stream_id"
        for row in deleted.to_pylist():
            where = [(self.column, "=", row[self.column]), (key, "=", row[key])]
            if "stream_state" in row:
                where.append(("stream_state", "=", row["stream_state"]))
            self.lake.delete(self.streams, where)
        return deleted

    def give_back(self, rows: pa.Table) -> None:
        """Restore rows of streams."""
        self.lake.merge(self.streams, rows, update=False)

    def consume(self, now_us: int = LATE_US, name: str = "audit", **more: Any) -> list[int]:
        """Run the consumer; return when the new rows were written."""
        before = len(self.read(name))
        consume(self.lake, Clock(Microseconds(now_us)), self.schema, name, on_message=self.told.append, **more)
        return self.read(name)[before:]

    def read(self, name: str = "audit") -> list[int]:
        """Return when the rows in the reader's table were written (µs), sorted."""
        rows = self.lake.read(sink_table(self.schema, name), [WRITTEN_AT])
        return sorted(rows[WRITTEN_AT].cast("int64").to_pylist())

    def copy_hour(self, hour_us: Microseconds) -> None:
        """Copy an hour into the hourly table."""
        hourly.copy_hour(
            self.lake,
            Clock(Microseconds(LATE_US + CONFIDENCE_WINDOW_US)),
            [self.schema],
            Microseconds(hour_us),
            self.told.append,
        )


def with_generations(folder: Path) -> World:
    """Create three generations of vnodes."""
    times = {id_: ms_from_us(when) for id_, when in zip((ID, OTHER_ID, THIRD_ID), TIMES, strict=True)}
    home_with_generations(folder, times)
    world = World(Lake(folder / "home" / "lake"), STREAMS_DESCRIPTIONS_V2, "time")
    cdc_tables.add_cdc_table(world.lake, Clock(FIRST_US), "ks", "t", ttl_seconds=86_400, ddl=DDL)
    return world


def with_tablets(folder: Path) -> World:
    """Create three stream sets of tablets, of two, four and eight."""
    world = World(Lake(folder / "home" / "lake"), TABLET_STREAMS, "timestamp")
    tablets.create_tablets(
        world.lake,
        Clock(Microseconds(FIRST_US + 5_000_000)),
        Settings(),
        "ks",
        "t",
        uniform_tablet_ends(2),
        ttl_seconds=86_400,
    )
    for count, when in ((4, SECOND_US), (8, THIRD_US)):
        tablets.split_tablets(world.lake, Clock(Microseconds(when - 65_000_000)), Settings(), "ks", "t", count)
    cdc_tables.alter_cdc_table(world.lake, Clock(Microseconds(FIRST_US + 6_000_000)), "ks", "t", ddl=DDL)
    return world


@pytest.fixture(params=[with_generations, with_tablets], ids=["vnodes", "tablets"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """Create either kind of table, with rows in all three generations or sets."""
    created: World = request.param(tmp_path)
    typed = [{"operation": 2, "timestamp": when, "p": index, "k": 0, "v": 1} for index, when in enumerate(WRITTEN)]
    batch = pa.RecordBatch.from_pylist(typed, schema=typed_writes_schema(created.schema))
    rows = pa.Table.from_batches(
        [encode_log_batch(created.schema, batch, get_stream_lookup(created.lake, created.schema))]
    )
    assert created.lake.append_once(log_table(created.schema), rows, {"writer": 1}, None)
    return created


def half(rows: pa.Table) -> pa.Table:
    """Return half of a generation's rows; deleting them leaves the rest incomplete."""
    return rows.slice(0, rows.num_rows // 2)


@pytest.mark.parametrize("bare", [FIRST_US, SECOND_US], ids=["before", "after"])
def test_a_generation_without_streams_is_skipped_once_a_later_one_operates(world: World, bare: int) -> None:
    """None of its rows is read, which is reported and recorded once; the rows of the others are read."""
    world.take_away(bare)
    others = [when for when in WRITTEN if not bare <= when < bare + HOUR_US]
    assert world.consume() == others
    (message,) = world.told
    assert f"skips the generation of {format_us(Microseconds(bare))}" in message
    assert "2 rows of the log" in message
    assert read_skipped_sets(world.lake) == {AUDIT: [bare]}
    assert world.consume() == []
    assert len(world.told) == 1
    assert consumers.find_consumer(world.lake, *AUDIT).position_us == LATE_US - CONFIDENCE_WINDOW_US


def test_the_newest_generation_is_awaited(world: World) -> None:
    """It is awaited until a later one has operated for the safety window, however long that takes, and then skipped."""
    deleted = world.take_away(THIRD_US)
    listed = GENERATION_TIMESTAMPS if world.column == "time" else TABLET_TIMESTAMPS
    fourth = world.lake.read(listed, filters=[(world.column, "=", datetime_from_us(THIRD_US))])
    for _ in range(2):
        with pytest.raises(StateError, match="not all published yet"):
            world.consume(LATE_US * 2)
        assert world.read() == WRITTEN[:4]
    name = fourth.schema.get_field_index(world.column)
    later = pa.array([datetime_from_us(LATE_US)], fourth.schema.field(name).type)
    world.lake.merge(listed, fourth.set_column(name, fourth.schema.field(name), later), update=False)
    with pytest.raises(StateError, match="not all published yet"):
        world.consume(LATE_US + CONFIDENCE_WINDOW_US - 1)
    assert world.told == []
    with pytest.raises(StateError, match=f"generation of {format_us(LATE_US)} are not all published yet"):
        world.consume(LATE_US + CONFIDENCE_WINDOW_US + 1)
    assert read_skipped_sets(world.lake) == {AUDIT: [THIRD_US]}
    world.give_back(deleted)


@pytest.mark.parametrize("number", range(3))
def test_a_generation_with_missing_streams_is_awaited_forever(world: World, number: int) -> None:
    """Later generations do not matter; earlier rows are read, and all others once the streams exist."""
    deleted = world.take_away(TIMES[number], half)
    for _ in range(2):
        with pytest.raises(StateError, match="not all published yet"):
            world.consume()
        assert world.read() == WRITTEN[: 2 * number]
    assert (world.told, read_skipped_sets(world.lake)) == ([], {})
    world.give_back(deleted)
    assert world.consume() == WRITTEN[2 * number :]


def test_streams_that_appear_later_are_read_from_their_generations_start(world: World) -> None:
    """The audit reports the generation until the reader runs again; then its rows are stored once, with its start."""
    deleted = world.take_away(SECOND_US)
    world.consume()
    assert [(finding.population, finding.violations) for finding in audit_skipped_sets(world.lake)] == [(1, 0)]
    world.give_back(deleted)
    world.told.clear()
    (finding,) = audit_skipped_sets(world.lake)
    assert (finding.invariant, finding.population, finding.violations) == ("passed_over_stays_empty", 1, 1)
    assert "consumer audit of ks.t" in finding.sample
    assert format_us(SECOND_US) in finding.sample
    before = consumers.find_consumer(world.lake, *AUDIT)
    world.consume()
    assert world.read() == WRITTEN
    late_rows = [(WRITTEN_AT, ">=", datetime_from_us(SECOND_US)), (WRITTEN_AT, "<", datetime_from_us(THIRD_US))]
    rows = world.lake.read(sink_table(world.schema, "audit"), [GENERATION], late_rows)
    assert rows[GENERATION].to_pylist() == [datetime_from_us(SECOND_US)] * 2
    assert (audit_skipped_sets(world.lake), read_skipped_sets(world.lake), world.told) == ([], {}, [])
    world.consume()
    assert world.read() == WRITTEN
    assert consumers.find_consumer(world.lake, *AUDIT) == before


def test_a_reader_without_recorded_progress_reports_what_it_cannot_read(world: World) -> None:
    """A table of an earlier release: the rows stay unread, and every run reports it until the consumer is forgotten."""
    deleted = world.take_away(SECOND_US)
    with pytest.MonkeyPatch.context() as earlier:
        earlier.setattr(StreamProgress, "marks", lambda *_: {})
        world.consume()
    world.give_back(deleted)
    for _ in range(2):
        world.told.clear()
        assert world.consume() == []
        assert f"skipped the generation of {format_us(SECOND_US)}" in world.told[0]
    assert world.consume(name="anew") == WRITTEN
    consumers.forget_consumer(world.lake, *AUDIT)
    assert (audit_skipped_sets(world.lake), read_skipped_sets(world.lake)) == ([], {})


def test_a_generation_with_rows_already_read_is_not_skipped(world: World) -> None:
    """It had streams, so their absence is damage, for which the reader waits."""
    assert world.consume(until_us=SECOND_US) == WRITTEN[:3]
    world.take_away(SECOND_US)
    with pytest.raises(StateError, match="not all published yet"):
        world.consume()
    assert read_skipped_sets(world.lake) == {}


def test_a_reader_that_stops_inside_a_skipped_generation_continues_there(world: World) -> None:
    """With `--until` inside it, the skip is reported once and recorded once, and nothing of it is read."""
    world.take_away(SECOND_US)
    assert world.consume(until_us=SECOND_US + 1) == WRITTEN[:2]
    assert world.consume() == WRITTEN[4:]
    assert len(world.told) == 1
    assert read_skipped_sets(world.lake) == {AUDIT: [SECOND_US]}


def test_a_skip_recorded_by_a_killed_reader_is_withdrawn(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader is killed after the record, before anything moved; when the streams appear, the generation is read."""
    deleted = world.take_away(SECOND_US)

    class Killed(BaseException):
        pass

    def die(*_: object, **__: object) -> None:
        raise Killed

    consume_until = SECOND_US - 1
    assert world.consume(until_us=consume_until) == WRITTEN[:2]
    with monkeypatch.context() as patched:
        patched.setattr(Lake, "append_once", die)
        with pytest.raises(Killed):
            world.consume()
    assert read_skipped_sets(world.lake) == {AUDIT: [SECOND_US]}
    world.give_back(deleted)
    assert world.consume() == WRITTEN[2:]
    assert read_skipped_sets(world.lake) == {}
    assert audit_skipped_sets(world.lake) == []


def test_hourly_copies_skip_and_are_repaired_by_another_copy(world: World) -> None:
    """The hour is complete without those rows; when the streams appear, checks fail until the hour is copied again."""
    deleted = world.take_away(SECOND_US)
    for hour in TIMES:
        world.copy_hour(hour)
    assert world.read("hourly") == [*WRITTEN[:2], *WRITTEN[4:]]
    assert len(world.told) == 1
    assert read_skipped_sets(world.lake) == {("hourly", "ks", "t"): [SECOND_US]}
    assert all(finding.violations == 0 for finding in [*audit_hours(world.lake), *audit_skipped_sets(world.lake)])
    world.give_back(deleted)
    assert [finding.violations for finding in audit_hours(world.lake)] == [1, 0]
    assert [finding.violations for finding in audit_skipped_sets(world.lake)] == [1]
    world.copy_hour(SECOND_US)
    assert world.read("hourly") == WRITTEN
    assert all(finding.violations == 0 for finding in [*audit_hours(world.lake), *audit_skipped_sets(world.lake)])


def test_a_new_reader_reports_rows_of_removed_generations(world: World) -> None:
    """The message has the start of reading, the removed generations, and how many of their rows the log still has."""
    before = (LATE_US if world.column == "time" else LATE_US + 86_400_000_000) * 2
    if world.column == "time":
        removed_ms = FIRST_US // 1000
        note = {"time": datetime_from_us(FIRST_US), "generation_id": ID, "expired": datetime_from_us(LATE_US)}
        note |= {"removed_at": datetime_from_us(LATE_US), "rows": 1, "bytes": 1}
        rows = pa.Table.from_pylist([note], schema=REMOVED_GENERATIONS.schema)
        world.lake.merge(REMOVED_GENERATIONS, rows, update=False)
        world.lake.delete(GENERATION_TIMESTAMPS, [("time", "=", datetime_from_us(removed_ms * 1000))])
        world.take_away(FIRST_US)
    else:
        tablets.collect_tablet_sets(world.lake, Clock(Microseconds(SECOND_US + 86_400_000_000)), "ks", "t")
    assert world.consume(before) == WRITTEN[2:]
    (message,) = world.told
    assert f"begins at {format_us(SECOND_US)}" in message
    assert format_us(FIRST_US) in message
    assert "2 rows of the log" in message
    world.told.clear()
    world.consume(before)
    assert world.told == []


def test_the_commands_report_skipped_generations(world: World) -> None:
    """`consume` warns on standard error, and `consumers` lists them in its rows."""
    world.take_away(SECOND_US)
    home = world.lake.root.parent
    end = format_us(LATE_US)
    answer = run("--home", home, "--clock", end, "consume", "ks.t", "--name", "audit", "--json")
    assert answer.exit_code == 0
    assert answer.stderr.startswith("warning: consumer audit of ks.t skips the generation of 2026-01-31T13:00")
    (consumer,) = run("--home", home, "consumers", "--json").rows
    assert consumer["skipped"] == [format_us(SECOND_US)]


def test_writes_into_a_set_without_streams_are_refused(tmp_path: Path) -> None:
    """Writes in other sets of the table are accepted; the stream of a write in the empty set is unknown."""
    world = with_tablets(tmp_path)
    world.take_away(SECOND_US)
    source = StreamSources(world.lake).of("ks", "t")
    for when, accepted in ((FIRST_US, True), (SECOND_US - 1, True), (SECOND_US, False), (THIRD_US, True)):
        assert source.explain(7, Microseconds(when), Microseconds(when)).accepted == accepted
        keys, times = pa.array([b"\0\0\0\1"]), pa.array([when])
        if accepted:
            assert source.finder()(keys, times)[0].as_py() is not None
        else:
            with pytest.raises(StateError, match="listed without a row of streams"):
                source.finder()(keys, times)
    wrong = {finding.invariant: finding.violations for finding in audit_tablets(world.lake) if finding.violations}
    assert wrong == {"tablet_timestamp_complete": 1}


def test_a_collection_never_makes_a_set_without_streams_the_base(tmp_path: Path) -> None:
    """The set after it builds on the one before, which therefore stays."""
    world = with_tablets(tmp_path)
    world.take_away(SECOND_US)
    collection = tablets.collect_tablet_sets(
        world.lake, Clock(Microseconds(SECOND_US + HOUR_US + 86_400_000_000 - 1)), "ks", "t"
    )
    assert (collection.base_ms, collection.removed_ms) == (FIRST_US // 1000, ())
    assert metastore_tablets.read_set_timestamps(world.lake, "ks", "t") == [when // 1000 for when in TIMES]


@pytest.mark.spark
def test_a_dataframe_of_changes_omits_skipped_generations(world: World, spark: SparkSession) -> None:
    """The DataFrame has the same rows as a reader's table."""
    world.take_away(SECOND_US)
    rows = read_changes(spark, world.lake, world.schema, Microseconds(0), LATE_US, now_us=LATE_US)
    written_us = [row[0] for row in rows.selectExpr(f"unix_micros(`{WRITTEN_AT}`)").collect()]
    assert written_us == [*WRITTEN[:2], *WRITTEN[4:]]
