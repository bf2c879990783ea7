"""The check of logs: a healthy log passes, each seeded damage is named by one invariant alone, wherever that is."""

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
    """Small logs are judged without."""
    raise AssertionError("no session is needed")


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with two generations, a log over both, and one of a tablet-based table that was split at the same time."""
    tmp_path = tmp_path_factory.mktemp("healthy")
    home_with_generations(tmp_path, {ID: parse_time_ms(FIRST), OTHER_ID: parse_time_ms(SECOND)})
    lake = Lake(tmp_path / "home" / "lake")
    cdc_tables.add_cdc_table(lake, Clock(START_US), "ks", "t", ttl_seconds=86_400, ddl=DDL.format("t"))
    write(lake, "t")
    split(lake)
    return tmp_path / "home"


@pytest.fixture
def home(healthy: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return Path(shutil.copytree(healthy, tmp_path / "home"))


@pytest.fixture
def lake(home: Path) -> Lake:
    """Its lake."""
    return Lake(home / "lake")


ALONE = TaskRunner(no_spark)


def failed(lake: Lake, table: str = "t") -> list[str]:
    """The invariants that a log breaks."""
    judged = judge_findings(audit_log(lake, read_table_schema(lake, "ks", table), ALONE), LOG_INVARIANTS)
    return [line.invariant for line in judged if not line.passed]


def found(lake: Lake, table: str = "t") -> dict[str, Finding]:
    """What was found in a log, by invariant."""
    return {line.invariant: line for line in audit_log(lake, read_table_schema(lake, "ks", table), ALONE)}


def other_stream(lake: Lake, row: Row, *, same_range: bool) -> bytes:
    """Another stream of the first generation: of another shard of the row's range, or of another range."""
    for entry in lake.read(GENERATION_DESCRIPTIONS_V2, filters=[("id", "=", ID)]).to_pylist():
        if (row["cdc$stream_id"] in entry["streams"]) == same_range:
            return next(stream for stream in entry["streams"] if stream != row["cdc$stream_id"])
    raise AssertionError("there is one")


def test_a_healthy_log_passes(lake: Lake) -> None:
    """Over two generations and over a split: every row and every batch is counted, nothing is wrong."""
    for table in ("t", "tabs"):
        assert failed(lake, table) == []
        counts = {line.invariant: line.population for line in found(lake, table).values()}
        assert counts == dict.fromkeys(LOG_INVARIANTS[:4], ROWS) | dict.fromkeys(LOG_INVARIANTS[4:], BATCHES)
    both = audit_logs(lake, ALONE)
    assert [(line.invariant, line.population) for line in both[::5]] == [
        (names.LOG_TIME_IN_BOUNDS, 2 * ROWS),
        (names.LOG_BATCH_ENDED, 2 * BATCHES),
    ]


def test_without_rows_nothing_is_asked(tmp_path: Path, lake: Lake) -> None:
    """No line without a log, nor with an empty one: the check of such a lake stays as it is."""
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
def test_a_damage_is_named_by_its_invariant_alone(
    lake: Lake, damage: Callable[[Lake, list[Row]], None], invariant: str, says: str
) -> None:
    """One violation, of one invariant, with the row or the batch in words."""
    rows = rows_of(lake)
    damage(lake, rows)
    put(lake, rows)
    assert failed(lake) == [invariant]
    line = found(lake)[invariant]
    assert (line.violations, says in line.sample) == (1, True), line.sample
    assert line.sample.startswith("ks.t: ")


@pytest.mark.parametrize(("past", "invariant"), [(True, names.LOG_STREAM_OPERATES), (False, names.LOG_ROW_COLOCATED)])
def test_tablets_are_held_to_their_sets(lake: Lake, past: bool, invariant: str) -> None:
    """The stream of the set before the split, and that of another tablet of the right set."""
    sets = tablets.read_stream_sets(lake, "ks", "tabs")
    rows = rows_of(lake, "tabs")
    row = alone(rows, late=True)
    ids = [bytes(stream) for stream in sets[0 if past else 1].ids]
    row["cdc$stream_id"] = next(stream for stream in ids if stream != row["cdc$stream_id"])
    put(lake, rows, "tabs")
    assert failed(lake, "tabs") == [invariant]


def test_rows_that_were_appended_twice_are_seen(lake: Lake) -> None:
    """Each file is whole in itself; together every batch of the second one is there twice."""
    table = log_table(read_table_schema(lake, "ks", "t"))
    newest = [row for row in rows_of(lake) if row[WRITTEN_AT] >= datetime_from_us(SWITCH_US)]
    write_deltalake(
        lake.path(table), pa.Table.from_pylist(newest, schema=table.schema.remove_metadata()), mode="append"
    )
    assert failed(lake) == [names.LOG_BATCH_COMPLETE, names.LOG_BATCH_ENDED]
    assert found(lake)[names.LOG_BATCH_COMPLETE].violations == BATCHES // 2


def test_where_the_order_of_shards_is_not_known_the_range_decides(lake: Lake) -> None:
    """Another shard's stream of such a range passes, another range's does not."""
    rows = rows_of(lake)
    _other_shard(lake, rows)
    put(lake, rows)
    entry = next(
        entry
        for entry in lake.read(GENERATION_DESCRIPTIONS_V2, filters=[("id", "=", ID)]).to_pylist()
        if alone(rows)["cdc$stream_id"] in entry["streams"]
    )
    unordered = {"table_name": GENERATION_DESCRIPTIONS_V2.full_name, "generation": ID, "reason": "a test"}
    known = pa.Table.from_pylist([unordered | {"range_end": entry["range_end"]}], schema=UNORDERED_RANGES.schema)
    lake.merge(UNORDERED_RANGES, known, update=False)
    assert failed(lake) == []
    _other_range(lake, rows)
    put(lake, rows)
    assert failed(lake) == [names.LOG_ROW_COLOCATED]


def remove(lake: Lake, id_: str, time: str) -> None:
    """What the removal of a generation leaves: a note that it was there."""
    at = datetime_from_us(parse_time_us(time))
    gone = [{"time": at, "generation_id": id_, "expired": at, "removed_at": at, "rows": 0, "bytes": 0}]
    lake.merge(REMOVED_GENERATIONS, pa.Table.from_pylist(gone, schema=REMOVED_GENERATIONS.schema), update=False)
    lake.delete(GENERATION_TIMESTAMPS, [("time", "=", at)])
    lake.delete(GENERATION_DESCRIPTIONS_V2, [("id", "=", id_)])


def test_rows_of_removed_generations_are_counted_and_left(lake: Lake) -> None:
    """Their streams cannot be looked up; where that is so of all rows, nothing was checked, which is no pass."""
    remove(lake, ID, FIRST)
    assert failed(lake) == []
    lines = found(lake)
    assert {lines[name].population for name in (names.LOG_STREAM_OPERATES, names.LOG_ROW_COLOCATED)} == {ROWS // 2}
    assert f"{ROWS // 2} rows are of generations that were removed" in lines[names.LOG_ROW_COLOCATED].sample
    put(lake, [row for row in rows_of(lake) if row[WRITTEN_AT] < datetime_from_us(SWITCH_US)])
    assert failed(lake) == [names.LOG_STREAM_OPERATES, names.LOG_ROW_COLOCATED]


def test_collected_stream_sets_are_as_removed_generations(lake: Lake) -> None:
    """The row of a log's creation stays, so that older rows are not taken for rows of no time at all."""
    from cdc_platform.lifecycle import tablets

    gone = tablets.collect_tablet_sets(lake, Clock(Microseconds(SWITCH_US + 3 * 86_400_000_000)), "ks", "tabs")
    assert len(gone.removed_ms) == 1
    assert failed(lake, "tabs") == []
    assert "not judged" in found(lake, "tabs")[names.LOG_STREAM_OPERATES].sample


def test_streams_that_cannot_be_read_are_a_violation(lake: Lake) -> None:
    """Part of a generation's rows is gone: the check says so of the log's rows, and does not stop."""
    lake.delete(GENERATION_DESCRIPTIONS_V2, [("id", "=", ID), ("range_end", ">", 0)])
    line = found(lake)[names.LOG_STREAM_OPERATES]
    assert (line.violations, line.population) == (ROWS // 2, ROWS)
    assert "is partial" in line.sample


def test_published_streams_alone_judge_by_range(tmp_path: Path, lake: Lake) -> None:
    """A home that has only what readers see holds every row to its range, and to its generation."""
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
        assert failed(other) == broken


def test_keys_of_all_types_are_hashed(lake: Lake) -> None:
    """Keys that typed writes cannot have, row by row: the log of a script passes, and fails with another key."""
    ddl = """CREATE TABLE ks.d (a decimal, b frozen<list<int>>, c timestamp, v int, PRIMARY KEY ((a, b, c)))
        WITH cdc = {'enabled': 'true'};"""
    writes = [f"INSERT INTO ks.d (a, b, c, v) VALUES ({n}.5, [1, {n}], '2020-01-0{n}', 1);" for n in (1, 2, 3)]
    script = Script(lake, Settings(), Microseconds(SWITCH_US + 1), StoredTables(Catalog(), lambda _: StoredState()))
    script.run(parse_statements(ddl + "".join(writes)))
    cdc_tables.add_cdc_table(lake, Clock(START_US), "ks", "d", ttl_seconds=86_400, ddl=ddl)
    schema = read_table_schema(lake, "ks", "d")
    columns = [each.name for each in get_log_columns(schema)]
    rows = log_rows_to_arrow(schema, [{name: row.get(name) for name in columns} for row in script.written["ks.d"]])
    assert rows.num_rows == 3
    lake.append_once(log_table(schema), rows, {"writer": 1}, None)
    assert failed(lake, "d") == []
    changed = rows_of(lake, "d")
    changed[0]["a"] = "77.5"
    put(lake, changed, "d")
    assert failed(lake, "d") == [names.LOG_ROW_COLOCATED]


def test_keys_that_no_native_column_holds_are_hashed_as_they_are(lake: Lake) -> None:
    """Timestamps and dates as keys: near ones, then far ones in a file that has a column for them."""
    ddl = """CREATE TABLE ks.d (a timestamp, b date, v int, PRIMARY KEY ((a, b)))
        WITH cdc = {'enabled': 'true'};"""
    days = (2**31, 2**31 + 1, 2**31 + 2)
    writes = [f"INSERT INTO ks.d (a, b, v) VALUES ({n}, {day}, 1);" for n in (1, 2) for day in days]
    far = [f"INSERT INTO ks.d (a, b, v) VALUES ({2**63 - n}, {n}, 1);" for n in range(1, 7)]
    script = Script(lake, Settings(), Microseconds(SWITCH_US + 1), StoredTables(Catalog(), lambda _: StoredState()))
    script.run(parse_statements(ddl + "".join(writes + far)))
    cdc_tables.add_cdc_table(lake, Clock(START_US), "ks", "d", ttl_seconds=86_400, ddl=ddl)
    schema = read_table_schema(lake, "ks", "d")
    columns = [each.name for each in get_log_columns(schema)]
    rows = [{name: row.get(name) for name in columns} for row in script.written["ks.d"]]
    near, beyond = (log_rows_to_arrow(schema, half) for half in (rows[: len(writes)], rows[len(writes) :]))
    assert (EXACT in near.column_names, EXACT in beyond.column_names) == (False, True)
    assert lake.append_once(log_table(schema), near, {"writer": 1}, None)
    lake.widen(log_table(schema, exact=True))
    assert lake.append_once(log_table(schema, exact=True), beyond, {"writer": 2}, 1)
    assert found(lake, "d")[names.LOG_ROW_COLOCATED].population == len(writes + far)
    assert failed(lake, "d") == []


@given(
    st.lists(st.tuples(st.integers(0, 50_000), st.integers(0, 50_000), st.integers(1, 40)), min_size=1),
    st.integers(1, 60),
)
def test_parts_hold_every_time_once(files: list[tuple[int, int, int]], size: int) -> None:
    """Whatever the bounds of the files, each row is in one part, which has its file; rows of one time are together."""
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


def test_parts_give_all_rows_and_those_without_a_time(lake: Lake) -> None:
    """Rows at the border of two parts go to one of them; rows without a timestamp to the first."""
    rows = rows_of(lake)
    _no_timestamp(lake, rows)
    put(lake, rows)
    schema = read_table_schema(lake, "ks", "t")
    (path,) = {path for path, *_ in lake.bounded_files(log_table(schema), WRITTEN_AT)}
    parts = [LogPart((path,), None, SWITCH_US), LogPart((path,), SWITCH_US, None)]
    assert [len(read_log_part(schema, part)) for part in parts] == [ROWS // 2, ROWS // 2]


def test_a_home_of_tablets_is_checked_without_spark(tmp_path: Path) -> None:
    """The command has the lines of logs behind the others, and the exit code of what they say."""
    lake = Lake(tmp_path / "home" / "lake")
    split(lake)
    told = ("--home", tmp_path / "home", "--clock", "2026-01-31T14:00:00Z", "check", "--json")
    answer = run(*told)
    assert answer.exit_code == 0, answer.stdout
    lines = {line["invariant"]: line for line in answer.rows}
    assert [name for name in lines if name.startswith("log_")] == list(LOG_INVARIANTS)
    assert lines[names.LOG_ROW_COLOCATED]["checked"] == ROWS
    rows = rows_of(lake, "tabs")
    _lost_row(lake, rows)
    put(lake, rows, "tabs")
    answer = run(*told)
    assert answer.exit_code == 1
    # Whoever took the row away is none of the platform, which the tables tell as well.
    found = [line["invariant"] for line in answer.rows if not line["passed"]]
    assert found == [names.LOG_BATCH_COMPLETE, names.ROWS_AS_COMMITTED, names.COMMITS_KNOWN]


def test_an_overview_counts_rows(lake: Lake) -> None:
    """By generation and by operation, with the newest time; a row without a time belongs to no generation."""
    schema, rows = read_table_schema(lake, "ks", "t"), rows_of(lake)
    seen = count_log_contents(lake, schema, ALONE)
    assert (seen.rows, seen.newest_us) == (ROWS, SWITCH_US + (BATCHES // 2 - 1) * 1000)
    assert seen.by_period == {START_US: ROWS // 2, SWITCH_US: ROWS // 2}
    assert seen.by_operation == {"update": BATCHES // 2, "insert": BATCHES}
    assert seen.bytes == sum(
        Path(path).stat().st_size for path, *_ in lake.bounded_files(log_table(schema), WRITTEN_AT)
    )
    _no_uuid(lake, rows)
    put(lake, rows)
    assert count_log_contents(lake, schema, ALONE).by_period == {None: 1, START_US: ROWS // 2 - 1, SWITCH_US: ROWS // 2}
    put(lake, [])
    assert count_log_contents(lake, schema, ALONE) == LogContents(0, 0, None, {}, {})


@pytest.mark.spark
def test_spark_finds_what_the_process_finds(home: Path, lake: Lake, spark: SparkSession, monkeypatch: Any) -> None:
    """Part by part on executors: the same lines of healthy and of damaged logs; the command and SQL know the log."""
    rows = rows_of(lake)
    schema = read_table_schema(lake, "ks", "t")
    told = ("--home", home, "--clock", "2026-01-31T14:00:00Z", "check", "--json")
    checked = {line["invariant"]: line for line in run(*told).rows}
    assert [name for name, line in checked.items() if name.startswith("log_") and line["passed"]] == [*LOG_INVARIANTS]
    of_one = [line["invariant"] for line in run(*told, ID).rows]
    assert names.RING_COVERED_ONCE in of_one
    assert not set(of_one) & set(LOG_INVARIANTS)
    for damage in (_other_shard, _lost_row, _stream_of_the_past):
        damage(lake, rows)
    put(lake, rows)
    damaged = audit_log(lake, schema, ALONE)
    monkeypatch.setattr(logs, "MAX_TASKS_IN_PROCESS", 0)
    monkeypatch.setattr(logs, "ROWS_A_TASK", 7)
    assert audit_log(lake, schema, TaskRunner(lambda: spark, in_process=0)) == damaged
    assert sum(line.violations for line in damaged) == 3
    seen = count_log_contents(lake, schema, TaskRunner(lambda: spark, in_process=0))
    monkeypatch.undo()
    assert seen == count_log_contents(lake, schema, ALONE)
    table = log_table(read_table_schema(lake, "ks", "tabs")).full_name
    query = f'SELECT "cdc$operation" AS operation, count(*) AS n FROM {table} GROUP BY 1 ORDER BY 1'
    answer = run("--home", home, "sql", query, "--json")
    assert answer.exit_code == 0, answer.stderr
    assert answer.rows == [{"operation": 1, "n": BATCHES // 2}, {"operation": 2, "n": BATCHES}]
