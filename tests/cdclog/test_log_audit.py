"""The check of logs: a valid log passes, and each seeded damage violates one invariant alone, wherever it is."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st
from support.command_line import run
from support.files.export_files import ID, OTHER_ID, generation, streams_csv, timestamps_csv
from support.homes.imported import home_with_generations
from support.homes.log_lake import (
    BATCHES,
    DDL,
    FIRST,
    ROWS,
    SECOND,
    START_US,
    SWITCH_US,
    Row,
    alone,
    put,
    rows_of,
    split,
    three,
    write,
)

from cdc_platform.cdclog import (
    EXACT,
    WRITTEN_AT,
    Script,
    StoredTables,
    audit_log,
    audit_logs,
    count_log_contents,
    log_table,
    read_table_schema,
)
from cdc_platform.cdclog.audit import logs
from cdc_platform.cdclog.audit.logs import LogContents, LogPart, _split_by_time, read_log_part
from cdc_platform.cdclog.state.store import StoredState
from cdc_platform.cdclog.values import log_rows_to_arrow
from cdc_platform.checks import LOG_INVARIANTS, Finding, judge_findings
from cdc_platform.checks import invariants as names
from cdc_platform.clock import Clock, Microseconds, datetime_from_us, parse_time_ms, parse_time_us
from cdc_platform.cql import Catalog, get_log_columns, make_log_timeuuid, parse_statements
from cdc_platform.delta import Lake, TaskRunner
from cdc_platform.metastore import cdc_tables, tablets
from cdc_platform.settings import Settings
from cdc_platform.tables import GENERATION_DESCRIPTIONS_V2, GENERATION_TIMESTAMPS, REMOVED_GENERATIONS, UNORDERED_RANGES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def no_spark() -> SparkSession:
    """Fail, because small logs are judged without a session."""
    raise AssertionError("no session is needed")


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create two generations, a log in both, and one of a tablet-based table that was split at the same time."""
    tmp_path = tmp_path_factory.mktemp("healthy")
    home_with_generations(tmp_path, {ID: parse_time_ms(FIRST), OTHER_ID: parse_time_ms(SECOND)})
    lake = Lake(tmp_path / "home" / "lake")
    cdc_tables.add_cdc_table(lake, Clock(START_US), "ks", "t", ttl_seconds=86_400, ddl=DDL.format("t"))
    write(lake, "t")
    split(lake)
    return tmp_path / "home"


@pytest.fixture
def home(healthy: Path, tmp_path: Path) -> Path:
    """Return a copy of the home, to be damaged."""
    return Path(shutil.copytree(healthy, tmp_path / "home"))


@pytest.fixture
def lake(home: Path) -> Lake:
    """Return the lake of the copy."""
    return Lake(home / "lake")


ALONE = TaskRunner(no_spark)


def failed_invariants(lake: Lake, table: str = "t") -> list[str]:
    """Return the invariants that a log violates."""
    results = judge_findings(audit_log(lake, read_table_schema(lake, "ks", table), ALONE), LOG_INVARIANTS)
    return [line.invariant for line in results if not line.passed]


def findings(lake: Lake, table: str = "t") -> dict[str, Finding]:
    """Return the findings of a log by invariant."""
    return {line.invariant: line for line in audit_log(lake, read_table_schema(lake, "ks", table), ALONE)}


def other_stream(lake: Lake, row: Row, *, same_range: bool) -> bytes:
    """Return another stream of the first generation, of another shard of the row's range, or of another range."""
    for entry in lake.read(GENERATION_DESCRIPTIONS_V2, filters=[("id", "=", ID)]).to_pylist():
        if (row["cdc$stream_id"] in entry["streams"]) == same_range:
            return next(stream for stream in entry["streams"] if stream != row["cdc$stream_id"])
    raise AssertionError("there is one")


def test_a_valid_log_passes(lake: Lake) -> None:
    """Across two generations and a split, every row and every batch is counted, and there is no violation."""
    for table in ("t", "tabs"):
        assert failed_invariants(lake, table) == []
        counts = {line.invariant: line.population for line in findings(lake, table).values()}
        assert counts == dict.fromkeys(LOG_INVARIANTS[:4], ROWS) | dict.fromkeys(LOG_INVARIANTS[4:], BATCHES)
    both = audit_logs(lake, ALONE)
    assert [(line.invariant, line.population) for line in both[::5]] == [
        (names.LOG_TIME_IN_BOUNDS, 2 * ROWS),
        (names.LOG_BATCH_ENDED, 2 * BATCHES),
    ]


def test_an_empty_log_has_no_findings(tmp_path: Path, lake: Lake) -> None:
    """Without a log, or with an empty one, there are no findings, so the check of such a lake is unaffected."""
    assert audit_logs(Lake(tmp_path / "empty"), ALONE) == []
    put(lake, [])
    assert audit_log(lake, read_table_schema(lake, "ks", "t"), ALONE) == []


def _too_early(lake: Lake, rows: list[Row]) -> None:
    row = alone(rows)
    row |= {
        "cdc$time": str(make_log_timeuuid(Microseconds(START_US - 1), b"x")),
        WRITTEN_AT: datetime_from_us(Microseconds(START_US - 1)),
    }


def _no_timeuuid(lake: Lake, rows: list[Row]) -> None:
    alone(rows)["cdc$time"] = "5d5e1a4c-8f7e-4b1a-9a59-5a3f7c1de001"


def _no_uuid(lake: Lake, rows: list[Row]) -> None:
    alone(rows)["cdc$time"] = "yesterday"


def _other_timestamp(lake: Lake, rows: list[Row]) -> None:
    alone(rows)[WRITTEN_AT] = datetime_from_us(Microseconds(START_US + 5))


def _no_timestamp(lake: Lake, rows: list[Row]) -> None:
    alone(rows)[WRITTEN_AT] = None


def _stream_of_the_past(lake: Lake, rows: list[Row]) -> None:
    late = alone(rows, late=True)
    late["cdc$stream_id"] = next(row["cdc$stream_id"] for row in rows if row["p"] == late["p"])


def _short_stream(lake: Lake, rows: list[Row]) -> None:
    alone(rows)["cdc$stream_id"] = b"short"


def _other_range(lake: Lake, rows: list[Row]) -> None:
    alone(rows)["cdc$stream_id"] = other_stream(lake, alone(rows), same_range=False)


def _other_shard(lake: Lake, rows: list[Row]) -> None:
    alone(rows)["cdc$stream_id"] = other_stream(lake, alone(rows), same_range=True)


def _no_key(lake: Lake, rows: list[Row]) -> None:
    alone(rows)["p"] = None


def _lost_row(lake: Lake, rows: list[Row]) -> None:
    rows.remove(three(rows)[1])


def _same_number(lake: Lake, rows: list[Row]) -> None:
    three(rows)[1]["cdc$batch_seq_no"] = 0


def _no_end(lake: Lake, rows: list[Row]) -> None:
    alone(rows)["cdc$end_of_batch"] = None


def _lost_end(lake: Lake, rows: list[Row]) -> None:
    rows.remove(three(rows)[2])


def _two_ends(lake: Lake, rows: list[Row]) -> None:
    three(rows)[0]["cdc$end_of_batch"] = True


@pytest.mark.parametrize(
    ("damage", "invariant", "says"),
    [
        (_too_early, names.LOG_TIME_IN_BOUNDS, "nothing operates at 2026-01-31T11:59:59.999999Z"),
        (_no_timeuuid, names.LOG_TIME_IN_BOUNDS, "is no timeuuid"),
        (_no_uuid, names.LOG_TIME_IN_BOUNDS, "is no timeuuid"),
        (_other_timestamp, names.LOG_TIMESTAMP_IS_TIME, "cdc$timestamp is 2026-01-31T12:00:00.000005Z, the time in"),
        (_no_timestamp, names.LOG_TIMESTAMP_IS_TIME, "cdc$timestamp is null"),
        (_stream_of_the_past, names.LOG_STREAM_OPERATES, "is none of the generation of 2026-01-31T13:00:00"),
        (_short_stream, names.LOG_STREAM_OPERATES, "no stream: its stream is none"),
        (_other_range, names.LOG_ROW_COLOCATED, "the stream of its base row's token"),
        (_other_shard, names.LOG_ROW_COLOCATED, "the stream of its base row's token"),
        (_no_key, names.LOG_ROW_COLOCATED, "a key column of the base row is null"),
        (_lost_row, names.LOG_BATCH_COMPLETE, "has rows 0, 2 (end); it has to be 0 to n - 1"),
        (_same_number, names.LOG_BATCH_COMPLETE, "has rows 0, 0, 2 (end)"),
        (_no_end, names.LOG_BATCH_ENDED, "has rows 0; the last one, and only it, is the end"),
        (_lost_end, names.LOG_BATCH_ENDED, "has rows 0, 1; the last one"),
        (_two_ends, names.LOG_BATCH_ENDED, "has rows 0 (end), 1, 2 (end)"),
    ],
)
def test_a_damage_violates_one_invariant_alone(
    lake: Lake, damage: Callable[[Lake, list[Row]], None], invariant: str, says: str
) -> None:
    """There is one violation, of one invariant, with the row or the batch in its sample."""
    rows = rows_of(lake)
    damage(lake, rows)
    put(lake, rows)
    assert failed_invariants(lake) == [invariant]
    line = findings(lake)[invariant]
    assert (line.violations, says in line.sample) == (1, True), line.sample
    assert line.sample.startswith("ks.t: ")


@pytest.mark.parametrize(("past", "invariant"), [(True, names.LOG_STREAM_OPERATES), (False, names.LOG_ROW_COLOCATED)])
def test_tablets_are_compared_with_their_sets(lake: Lake, past: bool, invariant: str) -> None:
    """A stream of the set before the split, and one of another tablet of the right set, are violations."""
    sets = tablets.read_stream_sets(lake, "ks", "tabs")
    rows = rows_of(lake, "tabs")
    row = alone(rows, late=True)
    ids = [bytes(stream) for stream in sets[0 if past else 1].ids]
    row["cdc$stream_id"] = next(stream for stream in ids if stream != row["cdc$stream_id"])
    put(lake, rows, "tabs")
    assert failed_invariants(lake, "tabs") == [invariant]


def test_rows_appended_twice_are_found(lake: Lake) -> None:
    """Each file is complete by itself, but together they have every batch of the second one twice."""
    table = log_table(read_table_schema(lake, "ks", "t"))
    newest = [row for row in rows_of(lake) if row[WRITTEN_AT] >= datetime_from_us(SWITCH_US)]
    write_deltalake(
        lake.path(table), pa.Table.from_pylist(newest, schema=table.schema.remove_metadata()), mode="append"
    )
    assert failed_invariants(lake) == [names.LOG_BATCH_COMPLETE, names.LOG_BATCH_ENDED]
    assert findings(lake)[names.LOG_BATCH_COMPLETE].violations == BATCHES // 2


def test_with_unknown_shard_order_the_range_decides(lake: Lake) -> None:
    """Another shard's stream of such a range passes; a stream of another range does not."""
    rows = rows_of(lake)
    _other_shard(lake, rows)
    put(lake, rows)
    entry = next(
        entry
        for entry in lake.read(GENERATION_DESCRIPTIONS_V2, filters=[("id", "=", ID)]).to_pylist()
        if alone(rows)["cdc$stream_id"] in entry["streams"]
    )
    unordered = {"table_name": GENERATION_DESCRIPTIONS_V2.full_name, "generation": ID, "reason": "a test"}
    unordered_ranges = pa.Table.from_pylist(
        [unordered | {"range_end": entry["range_end"]}], schema=UNORDERED_RANGES.schema
    )
    lake.merge(UNORDERED_RANGES, unordered_ranges, update=False)
    assert failed_invariants(lake) == []
    _other_range(lake, rows)
    put(lake, rows)
    assert failed_invariants(lake) == [names.LOG_ROW_COLOCATED]


def remove_generation(lake: Lake, id_: str, time: str) -> None:
    """Remove a generation and leave the record of its removal."""
    time_at = datetime_from_us(parse_time_us(time))
    records = [
        {"time": time_at, "generation_id": id_, "expired": time_at, "removed_at": time_at, "rows": 0, "bytes": 0}
    ]
    lake.merge(REMOVED_GENERATIONS, pa.Table.from_pylist(records, schema=REMOVED_GENERATIONS.schema), update=False)
    lake.delete(GENERATION_TIMESTAMPS, [("time", "=", time_at)])
    lake.delete(GENERATION_DESCRIPTIONS_V2, [("id", "=", id_)])


def test_rows_of_removed_generations_are_not_judged(lake: Lake) -> None:
    """Their streams cannot be looked up; if that applies to all rows, nothing was checked, which fails."""
    remove_generation(lake, ID, FIRST)
    assert failed_invariants(lake) == []
    lines = findings(lake)
    assert {lines[name].population for name in (names.LOG_STREAM_OPERATES, names.LOG_ROW_COLOCATED)} == {ROWS // 2}
    assert f"{ROWS // 2} rows are of generations that were removed" in lines[names.LOG_ROW_COLOCATED].sample
    put(lake, [row for row in rows_of(lake) if row[WRITTEN_AT] < datetime_from_us(SWITCH_US)])
    assert failed_invariants(lake) == [names.LOG_STREAM_OPERATES, names.LOG_ROW_COLOCATED]


def test_collected_stream_sets_count_as_removed(lake: Lake) -> None:
    """The row of a log's creation stays, so that older rows do not count as rows without any generation."""
    from cdc_platform.lifecycle import tablets

    collection = tablets.collect_tablet_sets(lake, Clock(Microseconds(SWITCH_US + 3 * 86_400_000_000)), "ks", "tabs")
    assert len(collection.removed_ms) == 1
    assert failed_invariants(lake, "tabs") == []
    assert "not judged" in findings(lake, "tabs")[names.LOG_STREAM_OPERATES].sample


def test_unreadable_streams_are_a_violation(lake: Lake) -> None:
    """If some rows of a generation are missing, the check reports its log rows and does not stop."""
    lake.delete(GENERATION_DESCRIPTIONS_V2, [("id", "=", ID), ("range_end", ">", 0)])
    line = findings(lake)[names.LOG_STREAM_OPERATES]
    assert (line.violations, line.population) == (ROWS // 2, ROWS)
    assert "is partial" in line.sample


def test_published_streams_alone_judge_by_range(tmp_path: Path, lake: Lake) -> None:
    """A home with only the clients' tables compares every row with its range and its generation."""
    files = {
        "streams.csv": streams_csv({parse_time_ms(FIRST): generation()}),
        "times.csv": timestamps_csv({parse_time_ms(FIRST): None}),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8", newline="")
    answer = run("--home", tmp_path / "other", "import", *(tmp_path / name for name in files))
    assert answer.exit_code == 0, answer.stderr
    other = Lake(tmp_path / "other" / "lake")
    cdc_tables.add_cdc_table(other, Clock(START_US), "ks", "t", ttl_seconds=86_400, ddl=DDL.format("t"))
    other.ensure(log_table(read_table_schema(other, "ks", "t")))
    rows = rows_of(lake)[: ROWS // 2]
    for damage, broken in ((_other_shard, []), (_other_range, [names.LOG_ROW_COLOCATED])):
        damage(lake, rows)
        put(other, rows)
        assert failed_invariants(other) == broken


def test_keys_of_all_types_are_hashed(lake: Lake) -> None:
    """For keys that typed writes cannot have, the log of a script passes, and fails with another key."""
    ddl = """CREATE TABLE ks.d (a decimal, b frozen<list<int>>, c timestamp, v int, PRIMARY KEY ((a, b, c)))
        WITH cdc = {'enabled': 'true'};"""
    writes = [f"INSERT INTO ks.d (a, b, c, v) VALUES ({n}.5, [1, {n}], '2020-01-0{n}', 1);" for n in (1, 2, 3)]
    script = Script(lake, Settings(), Microseconds(SWITCH_US + 1), StoredTables(Catalog(), lambda _: StoredState()))
    script.run(parse_statements(ddl + "".join(writes)))
    cdc_tables.add_cdc_table(lake, Clock(START_US), "ks", "d", ttl_seconds=86_400, ddl=ddl)
    schema = read_table_schema(lake, "ks", "d")
    columns = [column.name for column in get_log_columns(schema)]
    rows = log_rows_to_arrow(schema, [{name: row.get(name) for name in columns} for row in script.written["ks.d"]])
    assert rows.num_rows == 3
    lake.append_once(log_table(schema), rows, {"writer": 1}, None)
    assert failed_invariants(lake, "d") == []
    changed_rows = rows_of(lake, "d")
    changed_rows[0]["a"] = "77.5"
    put(lake, changed_rows, "d")
    assert failed_invariants(lake, "d") == [names.LOG_ROW_COLOCATED]


def test_keys_outside_the_column_range_are_hashed_exactly(lake: Lake) -> None:
    """Timestamps and dates as keys: near ones, then far ones in a file with a column for exact values."""
    ddl = """CREATE TABLE ks.d (a timestamp, b date, v int, PRIMARY KEY ((a, b)))
        WITH cdc = {'enabled': 'true'};"""
    days = (2**31, 2**31 + 1, 2**31 + 2)
    writes = [f"INSERT INTO ks.d (a, b, v) VALUES ({n}, {day}, 1);" for n in (1, 2) for day in days]
    far_writes = [f"INSERT INTO ks.d (a, b, v) VALUES ({2**63 - n}, {n}, 1);" for n in range(1, 7)]
    script = Script(lake, Settings(), Microseconds(SWITCH_US + 1), StoredTables(Catalog(), lambda _: StoredState()))
    script.run(parse_statements(ddl + "".join(writes + far_writes)))
    cdc_tables.add_cdc_table(lake, Clock(START_US), "ks", "d", ttl_seconds=86_400, ddl=ddl)
    schema = read_table_schema(lake, "ks", "d")
    columns = [column.name for column in get_log_columns(schema)]
    rows = [{name: row.get(name) for name in columns} for row in script.written["ks.d"]]
    near, far_rows = (log_rows_to_arrow(schema, part_rows) for part_rows in (rows[: len(writes)], rows[len(writes) :]))
    assert (EXACT in near.column_names, EXACT in far_rows.column_names) == (False, True)
    assert lake.append_once(log_table(schema), near, {"writer": 1}, None)
    lake.widen(log_table(schema, exact=True))
    assert lake.append_once(log_table(schema, exact=True), far_rows, {"writer": 2}, 1)
    assert findings(lake, "d")[names.LOG_ROW_COLOCATED].population == len(writes + far_writes)
    assert failed_invariants(lake, "d") == []


@given(
    st.lists(st.tuples(st.integers(0, 50_000), st.integers(0, 50_000), st.integers(1, 40)), min_size=1),
    st.integers(1, 60),
)
def test_parts_hold_every_time_once(files: list[tuple[int, int, int]], size: int) -> None:
    """Whatever the bounds of the files, each row is in one part with its file, and rows of one time are together."""
    named = [
        (f"{number}", Microseconds(low), Microseconds(low + width), rows)
        for number, (low, width, rows) in enumerate(files)
    ]
    parts = list(_split_by_time(named, size))
    for path, low, high, _ in named:
        for when in (low, high, (low + high) // 2):
            holding = [
                part
                for part in parts
                if (part.from_us is None or part.from_us <= when) and (part.before_us is None or when < part.before_us)
            ]
            assert len(holding) == 1
            assert path in holding[0].paths


def test_parts_return_all_rows_including_those_without_a_time(lake: Lake) -> None:
    """Rows at the border of two parts go to one of them; rows without a timestamp go to the first part."""
    rows = rows_of(lake)
    _no_timestamp(lake, rows)
    put(lake, rows)
    schema = read_table_schema(lake, "ks", "t")
    (path,) = {path for path, *_ in lake.bounded_files(log_table(schema), WRITTEN_AT)}
    parts = [LogPart((path,), None, SWITCH_US), LogPart((path,), SWITCH_US, None)]
    assert [len(read_log_part(schema, part)) for part in parts] == [ROWS // 2, ROWS // 2]


def test_a_home_of_tablets_is_checked_without_spark(tmp_path: Path) -> None:
    """The command lists the results of logs after the others, and its exit code depends on them."""
    lake = Lake(tmp_path / "home" / "lake")
    split(lake)
    command = ("--home", tmp_path / "home", "--clock", "2026-01-31T14:00:00Z", "check", "--json")
    answer = run(*command)
    assert answer.exit_code == 0, answer.stdout
    lines = {line["invariant"]: line for line in answer.rows}
    assert [name for name in lines if name.startswith("log_")] == list(LOG_INVARIANTS)
    assert lines[names.LOG_ROW_COLOCATED]["checked"] == ROWS
    rows = rows_of(lake, "tabs")
    _lost_row(lake, rows)
    put(lake, rows, "tabs")
    answer = run(*command)
    assert answer.exit_code == 1
    # Another program deleted the row, which the storage checks report as well.
    failed_names = [line["invariant"] for line in answer.rows if not line["passed"]]
    assert failed_names == [names.LOG_BATCH_COMPLETE, names.ROWS_AS_COMMITTED, names.COMMITS_KNOWN]


def test_the_overview_counts_rows(lake: Lake) -> None:
    """Rows are counted by generation and by operation, with the newest time; a row without a time has no generation."""
    schema, rows = read_table_schema(lake, "ks", "t"), rows_of(lake)
    contents = count_log_contents(lake, schema, ALONE)
    assert (contents.rows, contents.newest_us) == (ROWS, SWITCH_US + (BATCHES // 2 - 1) * 1000)
    assert contents.by_period == {START_US: ROWS // 2, SWITCH_US: ROWS // 2}
    assert contents.by_operation == {"update": BATCHES // 2, "insert": BATCHES}
    assert contents.bytes == sum(
        Path(path).stat().st_size for path, *_ in lake.bounded_files(log_table(schema), WRITTEN_AT)
    )
    _no_uuid(lake, rows)
    put(lake, rows)
    assert count_log_contents(lake, schema, ALONE).by_period == {None: 1, START_US: ROWS // 2 - 1, SWITCH_US: ROWS // 2}
    put(lake, [])
    assert count_log_contents(lake, schema, ALONE) == LogContents(0, 0, None, {}, {})


@pytest.mark.spark
def test_spark_gives_the_same_findings(home: Path, lake: Lake, spark: SparkSession, monkeypatch: Any) -> None:
    """Executors find the same in valid and damaged logs, part by part; the command and SQL know the log."""
    rows = rows_of(lake)
    schema = read_table_schema(lake, "ks", "t")
    command = ("--home", home, "--clock", "2026-01-31T14:00:00Z", "check", "--json")
    results = {line["invariant"]: line for line in run(*command).rows}
    assert [name for name, line in results.items() if name.startswith("log_") and line["passed"]] == [*LOG_INVARIANTS]
    names_of_one = [line["invariant"] for line in run(*command, ID).rows]
    assert names.RING_COVERED_ONCE in names_of_one
    assert not set(names_of_one) & set(LOG_INVARIANTS)
    for damage in (_other_shard, _lost_row, _stream_of_the_past):
        damage(lake, rows)
    put(lake, rows)
    damaged = audit_log(lake, schema, ALONE)
    monkeypatch.setattr(logs, "MAX_TASKS_IN_PROCESS", 0)
    monkeypatch.setattr(logs, "ROWS_A_TASK", 7)
    assert audit_log(lake, schema, TaskRunner(lambda: spark, in_process=0)) == damaged
    assert sum(line.violations for line in damaged) == 3
    contents = count_log_contents(lake, schema, TaskRunner(lambda: spark, in_process=0))
    monkeypatch.undo()
    assert contents == count_log_contents(lake, schema, ALONE)
    table = log_table(read_table_schema(lake, "ks", "tabs")).full_name
    query = f'SELECT "cdc$operation" AS operation, count(*) AS n FROM {table} GROUP BY 1 ORDER BY 1'
    answer = run("--home", home, "sql", query, "--json")
    assert answer.exit_code == 0, answer.stderr
    assert answer.rows == [{"operation": 1, "n": BATCHES // 2}, {"operation": 2, "n": BATCHES}]
