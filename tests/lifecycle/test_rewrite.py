"""The rewrite of V1: each of its steps, its conditions, and a repetition that changes nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.drawing import examples
from support.homes.contents import contents
from support.homes.v1_tables import HOUR_MS, START_MS, expected, nodes, old_cluster, published, times, write_v1

from cdc_platform.clock import (
    Clock,
    Microseconds,
    Milliseconds,
    datetime_from_ms,
    datetime_from_us,
    ms_from_datetime,
    us_from_ms,
)
from cdc_platform.delta import Lake
from cdc_platform.errors import NotFound, StateError
from cdc_platform.lifecycle import RewriteDecision
from cdc_platform.lifecycle.join import publish
from cdc_platform.lifecycle.rewrite import (
    has_no_v1_streams,
    nodes_without_rewrite_marker,
    plan_rewrite,
    rewrite_streams_tables,
)
from cdc_platform.metastore import cdc_tables, write_nodes
from cdc_platform.metastore.cdc_local import hosts_with_rewrite_marker
from cdc_platform.settings import Settings
from cdc_platform.tables import (
    CDC_LOCAL,
    GENERATION_DESCRIPTIONS,
    GENERATION_TIMESTAMPS,
    STREAMS_DESCRIPTIONS,
    STREAMS_DESCRIPTIONS_V2,
)

HOSTS = [str(node.host_id) for node in nodes(3)]
QUIET = Settings(rewrite_retry_ms=Milliseconds(0))


def at(hours: float) -> Clock:
    """Return a clock that stands this many hours after the first V1 generation."""
    return Clock(us_from_ms(Milliseconds(START_MS + int(hours * HOUR_MS))))


def read_published_times(lake: Lake) -> list[int]:
    """Return the published times (ms), ascending."""
    return sorted(ms_from_datetime(time) for time in lake.read(GENERATION_TIMESTAMPS)["time"].to_pylist())


def read_markers(lake: Lake) -> dict[str, int | None]:
    """Return the marker's time (ms) of every node that has one."""
    rows = lake.read(CDC_LOCAL, filters=[("key", "=", "rewritten")]).to_pylist()
    return {
        row["host_id"]: None if row["streams_timestamp"] is None else ms_from_datetime(row["streams_timestamp"])
        for row in rows
    }


def map_actions(decisions: tuple[RewriteDecision, ...] | list[RewriteDecision]) -> dict[int, str]:
    """Return the action for each time."""
    return {decision.time_ms: decision.action for decision in decisions}


def test_an_empty_old_table_has_no_decisions(lake: Lake) -> None:
    """After expiry removed the last V1 generation, the plan is empty, without an error."""
    old_cluster(lake, times(1))
    lake.delete(STREAMS_DESCRIPTIONS, [("time", "=", datetime_from_ms(Milliseconds(times(1)[0])))])
    assert plan_rewrite(lake, at(1), QUIET) == []


def test_live_generations_are_rewritten_in_shard_order(lake: Lake) -> None:
    """With a TTL of a day, at hour 26, hours 0 and 1 are too old, and hours 2 to 4 are in the new table."""
    descriptions = old_cluster(lake, times(5))
    result = rewrite_streams_tables(lake, at(26.5), QUIET)
    old, live = times(5)[:2], times(5)[2:]
    assert map_actions(result.decisions) == dict.fromkeys(old, "skip-too-old") | dict.fromkeys(live, "rewrite")
    assert read_published_times(lake) == live
    for time_ms in live:
        assert published(lake, Milliseconds(time_ms)) == expected(descriptions[time_ms])
    assert lake.read(STREAMS_DESCRIPTIONS_V2).num_rows == 3 * 12
    assert read_markers(lake) == dict.fromkeys(HOSTS, times(5)[-1])
    assert result.marked == tuple(HOSTS)


def test_every_step_is_reported_with_its_reason(lake: Lake) -> None:
    """The log has the tables with CDC, the scan, each timestamp's action and reason, and the marker."""
    old_cluster(lake, times(4), without_data=[times(4)[2]])
    publish.write_published_timestamp(lake, Milliseconds(times(4)[1]))
    messages: list[str] = []
    rewrite_streams_tables(lake, at(25.5), QUIET, HOSTS[:1], on_message=messages.append)
    assert messages == [
        "step 3: 1 tables have CDC enabled, the first ks.orders",
        "step 4: the old table has 4 timestamps; step 5: 1 of them are too old",
        "step 6: 2020-09-13T12:26:40.000Z: skip-too-old: superseded at 2020-09-13T13:26:40.000Z, and logs have rows "
        "only from 2020-09-13T13:56:40.000Z on",
        "step 6: 2020-09-13T13:26:40.000Z: skip-present: cdc_generation_timestamps has it already",
        "step 6: 2020-09-13T14:26:40.000Z: missing-data: cdc_generation_descriptions has no row of this time, which "
        "alone tells the ranges of its streams; import that table and run: cdc-platform rewrite --force",
        "step 6: 2020-09-13T15:26:40.000Z: rewrite: it is the newest of the old table, and not in the new one",
        "step 7: finished, but 1 generations could not be rewritten; nodes marked as rewritten: " + HOSTS[0],
    ]


def test_step_1_without_the_old_table_nothing_is_marked(lake: Lake) -> None:
    """Without the old table the rewrite stops without a marker; a table created empty counts as missing."""
    write_nodes(lake, nodes(3))
    cdc_tables.add_cdc_table(lake, at(0), "ks", "t", ttl_seconds=10)
    for prepare in (lambda: None, lambda: lake.ensure(STREAMS_DESCRIPTIONS)):
        prepare()
        assert has_no_v1_streams(lake)
        result = rewrite_streams_tables(lake, at(1), QUIET)
        assert (result.decisions, result.marked) == ((), ())
        assert result.ended.startswith("step 1")
        assert hosts_with_rewrite_marker(lake) == set()


def test_step_2_a_marked_node_does_nothing(lake: Lake) -> None:
    """A node with a marker stops, even if generations are not rewritten; `force` lets it run."""
    old_cluster(lake, times(2))
    marker = [{"host_id": HOSTS[0], "key": "rewritten", "streams_timestamp": None, "uuid": None}]
    lake.merge(CDC_LOCAL, pa.Table.from_pylist(marker, schema=CDC_LOCAL.schema), update=True)
    assert rewrite_streams_tables(lake, at(2), QUIET, HOSTS[:1]).ended.startswith("step 2")
    assert read_published_times(lake) == []
    assert nodes_without_rewrite_marker(lake) == HOSTS[1:]
    assert len(rewrite_streams_tables(lake, at(2), QUIET, HOSTS[:1], force=True).decisions) == 2
    assert read_published_times(lake) == times(2)
    assert read_markers(lake) == {HOSTS[0]: None}


def test_step_3_without_an_enabled_table_only_the_marker_is_written(lake: Lake) -> None:
    """A table with CDC disabled does not count: old generations are not needed, now or later."""
    old_cluster(lake, times(2), tables=[])
    cdc_tables.add_cdc_table(lake, at(0), "ks", "off", ttl_seconds=0, enabled=False)
    result = rewrite_streams_tables(lake, at(2), QUIET)
    assert (result.decisions, read_published_times(lake), read_markers(lake)) == ((), [], dict.fromkeys(HOSTS))
    assert result.ended.startswith("step 3")


def test_a_log_that_never_expires_retains_every_generation(lake: Lake) -> None:
    """With a TTL of 0 beside a short one, nothing is too old by the documented rule."""
    old_cluster(lake, times(3), tables=[("t", 0), ("u", 1)])
    assert set(map_actions(plan_rewrite(lake, at(1000), QUIET)).values()) == {"rewrite"}


def test_a_setting_enables_the_refinement(lake: Lake) -> None:
    """A log created in hour 2 that never expires has no rows from earlier hours, within the clock margin."""
    old_cluster(lake, times(4), tables=[("t", 0)], created_at_ms=START_MS - HOUR_MS)
    cdc_tables.drop_cdc_table(lake, at(5), "ks", "t")
    cdc_tables.add_cdc_table(lake, at(5), "ks", "t", ttl_seconds=0, created_at_ms=Milliseconds(times(4)[2]))
    rewritten_times = {
        (creation, margin): [
            time
            for time, action in map_actions(
                plan_rewrite(lake, at(9), Settings(use_creation_time=creation, clock_margin_ms=Milliseconds(margin)))
            ).items()
            if action == "rewrite"
        ]
        for creation, margin in ((False, 0), (True, 0), (True, 10_000))
    }
    assert rewritten_times == {(False, 0): times(4), (True, 0): times(4)[2:], (True, 10_000): times(4)[1:]}


def test_present_timestamps_are_skipped(lake: Lake) -> None:
    """Step 6.1: a timestamp in the new table is not fetched, whatever its rows."""
    descriptions = old_cluster(lake, times(2))
    publish.write_published_streams(lake, Milliseconds(times(2)[0]), descriptions[times(2)[1]])
    publish.write_published_timestamp(lake, Milliseconds(times(2)[0]))
    before = published(lake, Milliseconds(times(2)[0]))
    assert map_actions(rewrite_streams_tables(lake, at(2), QUIET).decisions) == {
        times(2)[0]: "skip-present",
        times(2)[1]: "rewrite",
    }
    assert published(lake, Milliseconds(times(2)[0])) == before


def test_rows_without_their_timestamp_are_completed(lake: Lake) -> None:
    """Rows of another writer with wrong streams and an unknown range are replaced by V1's."""
    descriptions = old_cluster(lake, times(2))
    first, second = times(2)
    foreign = descriptions[second]
    publish.write_published_streams(lake, Milliseconds(first), foreign)
    stray = {"time": datetime_from_us(Microseconds(first * 1000)), "range_end": 42, "streams": [b"\0" * 15 + b"\1"]}
    rows = pa.Table.from_pylist([stray], schema=STREAMS_DESCRIPTIONS_V2.schema)
    lake.merge(STREAMS_DESCRIPTIONS_V2, rows, update=False)
    rewrite_streams_tables(lake, at(2), QUIET)
    assert published(lake, Milliseconds(first)) == expected(descriptions[first])
    assert read_published_times(lake) == [first, second]


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_missing_data_does_not_stop_the_others(lake: Lake, lost: int) -> None:
    """A timestamp without a description is reported; the others are rewritten, and the nodes are marked."""
    old_cluster(lake, times(3), without_data=[times(3)[lost]])
    result = rewrite_streams_tables(lake, at(3), QUIET)
    assert [decision.time_ms for decision in result.missing] == [times(3)[lost]]
    assert read_published_times(lake) == [time for time in times(3) if time != times(3)[lost]]
    assert read_markers(lake) == dict.fromkeys(HOSTS, times(3)[-1])


def test_a_damaged_description_is_missing_data(lake: Lake) -> None:
    """A description with streams of 15 bytes, unsorted range ends or no ranges is reported, never published."""
    old_cluster(lake, times(4))
    damage: list[Callable[[list[dict[str, Any]]], object]] = [
        lambda entries: entries[0]["streams"].__setitem__(0, b"\1" * 15),
        lambda entries: entries.reverse(),
        lambda entries: entries.clear(),
    ]
    for time_ms, spoil in zip(times(4), damage, strict=False):
        row = next(
            row for row in lake.read(GENERATION_DESCRIPTIONS).to_pylist() if ms_from_datetime(row["time"]) == time_ms
        )
        spoil(row["description"])
        rows = pa.Table.from_pylist([row], schema=GENERATION_DESCRIPTIONS.schema)
        lake.merge(GENERATION_DESCRIPTIONS, rows, update=True)
    result = rewrite_streams_tables(lake, at(4), QUIET)
    assert [decision.time_ms for decision in result.missing] == times(4)[:3]
    messages = ("has 15 bytes; it has 16", "range ends ascend, each once", "is damaged: it has no ranges")
    for decision, part in zip(result.missing, messages, strict=True):
        assert part in decision.reason
    assert read_published_times(lake) == times(4)[3:]


def test_a_failing_read_is_retried(lake: Lake) -> None:
    """The description's file is missing in two attempts, and back in the third, which succeeds."""
    descriptions = old_cluster(lake, times(1))
    path = Path(lake.data_files(GENERATION_DESCRIPTIONS)[0].path)
    moved_path = path.with_suffix(".away")
    waited: list[float] = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 2:
            moved_path.rename(path)

    path.rename(moved_path)
    messages: list[str] = []
    rewrite_streams_tables(
        lake, at(1), Settings(rewrite_retry_ms=Milliseconds(1500)), on_message=messages.append, sleep=wait
    )
    assert waited == [1.5, 1.5]
    assert sum("trying again" in line for line in messages) == 2
    assert published(lake, START_MS) == expected(descriptions[START_MS])


def test_an_unreadable_description_leaves_the_node_unmarked(lake: Lake) -> None:
    """The readable generation is rewritten, no node is marked, and the next run completes the rewrite."""
    descriptions = old_cluster(lake, times(2))
    lake.delete(GENERATION_DESCRIPTIONS, [("time", ">=", datetime_from_ms(START_MS))])
    files = []
    for time_ms in times(2):
        write_v1(lake, {time_ms: descriptions[time_ms]})
        files.append(next(file.path for file in lake.data_files(GENERATION_DESCRIPTIONS) if file.path not in files))
    path = Path(files[0])
    content = path.read_bytes()
    _damage_column(path, "description")
    few_attempts = Settings(rewrite_attempts=3, rewrite_retry_ms=Milliseconds(0))
    with pytest.raises(StateError, match=r"1 of 2 V1 generations .* no node is marked.*run it again"):
        # With a lake that has not read the file before.
        rewrite_streams_tables(Lake(lake.root), at(2), few_attempts, sleep=lambda _: None)
    assert (read_published_times(lake), read_markers(lake)) == (times(2)[1:], {})
    path.write_bytes(content)
    rewrite_streams_tables(lake, at(2), QUIET)
    assert (read_published_times(lake), read_markers(lake)) == (times(2), dict.fromkeys(HOSTS, times(2)[-1]))


def test_the_scan_reads_no_streams(lake: Lake) -> None:
    """The plan for 10,000 V1 generations succeeds with every byte of their streams and descriptions damaged."""
    count = 10_000
    old_cluster(lake, times(1))
    template = lake.read(STREAMS_DESCRIPTIONS), lake.read(GENERATION_DESCRIPTIONS)
    generation_times = pa.array(
        [datetime_from_ms(Milliseconds(time)) for time in times(count)], pa.timestamp("us", "UTC")
    )
    for table, rows in zip((STREAMS_DESCRIPTIONS, GENERATION_DESCRIPTIONS), template, strict=True):
        copies = rows.take(pa.array([0] * count)).set_column(0, table.schema.field("time"), generation_times)
        lake.merge(table, copies, update=False)
        for path in (file.path for file in lake.data_files(table)):
            _damage_column(Path(path), "streams" if table is STREAMS_DESCRIPTIONS else "description")
        with pytest.raises(StateError):
            lake.read(table)
    decisions = plan_rewrite(lake, at(count + 10.5), QUIET)
    assert len(decisions) == count
    assert [decision.action for decision in decisions] == ["skip-too-old"] * (count - 14) + ["rewrite"] * 14
    result = rewrite_streams_tables(lake, at(count + 10.5), QUIET, dry_run=True)
    assert list(result.decisions) == decisions


def test_a_dry_run_writes_nothing(lake: Lake) -> None:
    """The decisions equal those of the following run, and no table changes."""
    old_cluster(lake, times(3), without_data=times(3)[:1])
    before = contents(lake)
    messages: list[str] = []
    planned = rewrite_streams_tables(lake, at(3), QUIET, dry_run=True, on_message=messages.append)
    assert contents(lake) == before
    assert planned.marked == ()
    assert "dry run" in messages[-1]
    assert rewrite_streams_tables(lake, at(3), QUIET).decisions == planned.decisions


def test_a_rolling_rewrite_runs_once(lake: Lake) -> None:
    """In a rolling upgrade the first node does the work, and the others find it done; each gets its marker."""
    old_cluster(lake, times(3))
    results = [rewrite_streams_tables(lake, at(3), QUIET, [host]) for host in HOSTS]
    assert [set(map_actions(result.decisions).values()) for result in results] == [
        {"rewrite"},
        {"skip-present"},
        {"skip-present"},
    ]
    assert read_markers(lake) == dict.fromkeys(HOSTS, times(3)[-1])
    before = contents(lake)
    assert rewrite_streams_tables(lake, at(4), QUIET).ended.startswith("step 2")
    rewrite_streams_tables(lake, at(4), QUIET, force=True)
    assert contents(lake) == before


def test_the_rewrite_can_be_disabled(lake: Lake) -> None:
    """With `dont_rewrite_streams` nothing is written, not even a marker."""
    old_cluster(lake, times(2))
    before = contents(lake)
    result = rewrite_streams_tables(lake, at(2), Settings(dont_rewrite_streams=True))
    assert "administrator" in result.ended
    assert contents(lake) == before


def test_unknown_nodes_are_refused(lake: Lake) -> None:
    """A node unknown to the ring and cdc_local, and an empty ring, are refused."""
    old_cluster(lake, times(1), members=[])
    with pytest.raises(NotFound, match="the ring has no nodes"):
        rewrite_streams_tables(lake, at(1), QUIET)
    with pytest.raises(NotFound, match="no node 00000000-0000-0000-0000-0000000000ff is known"):
        rewrite_streams_tables(lake, at(1), QUIET, ["00000000-0000-0000-0000-0000000000ff"])
    assert read_markers(lake) == {}


@settings(max_examples=examples(12), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    count=st.integers(1, 4),
    lost=st.sets(st.integers(0, 3), max_size=2),
    there=st.sets(st.integers(0, 3), max_size=2),
    hours=st.floats(0, 30),
    ttls=st.lists(st.sampled_from([0, 3600, 24 * 3600]), max_size=2),
)
def test_rewrite_completes_every_live_generation_with_data(
    tmp_path: Path, count: int, lost: set[int], there: set[int], hours: float, ttls: list[int]
) -> None:
    """For any mix of missing, present and old generations, the live ones with data are complete after one run."""
    shutil.rmtree(tmp_path / "lake", ignore_errors=True)
    lake = Lake(tmp_path / "lake")
    all_times = times(count)
    missing = [time for number, time in enumerate(all_times) if number in lost]
    tables = [(f"t{number}", ttl) for number, ttl in enumerate(ttls)]
    descriptions = old_cluster(lake, all_times, without_data=missing, tables=tables)
    for time in (time for number, time in enumerate(all_times) if number in there):
        publish.write_published_streams(lake, Milliseconds(time), descriptions[time])
        publish.write_published_timestamp(lake, Milliseconds(time))
    clock = at(hours)
    rewrite_streams_tables(lake, clock, QUIET)
    now = clock.now_ms()
    for time, following in zip(all_times, [*all_times[1:], None], strict=True):
        dead = bool(ttls) and following is not None and all(ttl and now - ttl * 1000 > following for ttl in ttls)
        if ttls and not dead and time not in missing:
            assert published(lake, Milliseconds(time)) == expected(descriptions[time])
            assert time in read_published_times(lake)
    before = contents(lake)
    rewrite_streams_tables(lake, clock, QUIET, force=True)
    assert contents(lake) == before


def _damage_column(path: Path, column: str) -> None:
    """Overwrite every byte of a column's values in a Parquet file, and leave the rest unchanged."""
    parquet_file = pq.ParquetFile(path)
    content = bytearray(path.read_bytes())
    for group in range(parquet_file.metadata.num_row_groups):
        for number in range(parquet_file.metadata.num_columns):
            chunk = parquet_file.metadata.row_group(group).column(number)
            if chunk.path_in_schema.split(".")[0] == column:
                start = min(filter(None, (chunk.dictionary_page_offset, chunk.data_page_offset)))
                content[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    path.write_bytes(content)
