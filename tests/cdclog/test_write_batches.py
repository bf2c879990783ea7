"""Batches of base writes in tables outside the home: each is logged once, in its streams, or refused as a whole."""

from __future__ import annotations

import random
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyarrow import parquet
from support.files.export_files import ID, OTHER_ID, generation
from support.oracles import oracle
from support.read_logs import START_US as BEGIN_US
from support.read_logs import SWITCH_US, home_with_log, schema

from cdc_platform.cdclog import (
    InvalidWrites,
    append_batch,
    append_hour,
    audit_logs,
    compare_rebuilt,
    list_hours,
    log_table,
    rebuild_table,
    rebuilt_table,
)
from cdc_platform.cdclog.write_batches import audit_appended_hour
from cdc_platform.clock import HOUR_US, Clock, Microseconds, parse_time_us
from cdc_platform.cql import CdcOptions
from cdc_platform.delta import Lake, TaskRunner, translate_errors
from cdc_platform.errors import InputError, NotFound, StateError
from cdc_platform.metastore import cdc_tables, consumers

SPAN_US = 2 * HOUR_US
NOON_US = parse_time_us("2026-01-31T12:00:00Z")
TYPES = {"timestamp": pa.int64(), "ttl": pa.int32(), "operation": pa.int8(), "p": pa.int32(), "k": pa.int32()}
TYPES |= {"v": pa.int32(), "cdc$deleted_v": pa.bool_()}
Write = dict[str, Any]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Create two generations, and `ks.t (p, k, v)` with an empty log."""
    return Lake(home_with_log(tmp_path) / "lake")


@pytest.fixture
def workers() -> TaskRunner:
    """Return a runner in this process."""
    return TaskRunner.alone()


def draw_writes(count: int, seed: int = 0) -> list[Write]:
    """Return writes of every operation in both generations, at distinct times, in no order."""
    pick = random.Random(seed)
    times = pick.sample(range(BEGIN_US, BEGIN_US + SPAN_US), count)
    writes = []
    for written_us in times:
        write: Write = {"timestamp": written_us, "p": pick.randrange(9), "k": pick.randrange(6)}
        write["operation"] = pick.choice([1, 2, 2, 2, 3, 4])
        if write["operation"] == 4:
            write["k"] = None
        if write["operation"] < 3:
            write["ttl"] = pick.choice([None, None, 0, 600])
            write |= {"v": pick.randrange(100)} if pick.random() < 0.8 else {"cdc$deleted_v": True}
        writes.append(write)
    return writes


def save_writes(writes: list[Write], path: Path, *, delta: bool = False) -> str:
    """Save a table with these writes and the columns that any of them has."""
    names = [name for name in TYPES if any(name in write for write in writes)]
    table = pa.Table.from_pylist(writes, schema=pa.schema({name: TYPES[name] for name in names}))
    if delta:
        write_deltalake(path, table)
    else:
        parquet.write_table(table, path, row_group_size=100)
    return str(path)


def stream_of(write: Write) -> bytes:
    """Return the stream of a write by big integers, from the description of the generation that operates then."""
    description = generation(ID if write["timestamp"] < SWITCH_US else OTHER_ID)
    token = oracle.token_of(struct.pack(">i", write["p"]))
    entries = sorted((description.entry(row) for row in range(len(description))), key=lambda entry: entry.range_end)
    entry = next((entry for entry in entries if entry.range_end >= token), entries[0])
    return bytes(entry.streams[oracle.shard_of(token, len(entry.streams), entry.ignore_msb)])


def log_rows(lake: Lake) -> list[Write]:
    """Return the rows of the log."""
    return lake.read(log_table(schema(lake))).to_pylist()


def expected_row(write: Write) -> tuple[Any, ...]:
    """Return the log row of a write to this table; each write has one."""
    operation, has_ttl = write["operation"], (write.get("ttl") or 0) > 0
    is_alone = "cdc$deleted_v" in write and has_ttl and operation == 1
    return (
        stream_of(write),
        write["timestamp"],
        operation,
        write["p"],
        write["k"],
        write.get("v"),
        write.get("cdc$deleted_v"),
        write["ttl"] if has_ttl and not is_alone else None,
    )


def actual_row(row: Write) -> tuple[Any, ...]:
    """Return the same fields of a row of the log."""
    written_us = int(row["cdc$timestamp"].timestamp() * 1_000_000 + 0.5)
    names = ("p", "k", "v", "cdc$deleted_v", "cdc$ttl")
    return (row["cdc$stream_id"], written_us, row["cdc$operation"], *(row[name] for name in names))


def expected_state(writes: list[Write], as_of: int) -> dict[tuple[int, int], int | None]:
    """Return the rows of the table at a time, from the writes alone: the newest write of each cell and marker wins."""
    ordered = sorted((write for write in writes if write["timestamp"] <= as_of), key=lambda write: write["timestamp"])
    markers: dict[tuple[int, int], Write] = {}
    cells: dict[tuple[int, int], Write] = {}
    for write in ordered:
        key, operation = (write["p"], write["k"]), write["operation"]
        if operation >= 3:
            for live in (markers, cells):
                for deleted_key in [other for other in live if other == key or (operation == 4 and other[0] == key[0])]:
                    del live[deleted_key]
        if operation == 2:
            markers[key] = write
        if operation < 3:
            cells[key] = write

    def is_live(write: Write | None) -> bool:
        ttl = 0 if write is None else write.get("ttl") or 0
        return write is not None and (not ttl or write["timestamp"] + ttl * 1_000_000 > as_of)

    values = {key: write["v"] for key, write in cells.items() if "v" in write and is_live(write)}
    return {key: None for key, write in markers.items() if is_live(write)} | values


def rebuilt_rows(lake: Lake) -> dict[tuple[int, int], int | None]:
    """Return the rows of the rebuilt table."""
    rows = lake.read(rebuilt_table(schema(lake))).to_pylist()
    assert len({(row["p"], row["k"]) for row in rows}) == len(rows)
    return {(row["p"], row["k"]): row["v"] for row in rows}


@pytest.mark.parametrize("delta", [False, True], ids=["parquet", "delta"])
def test_a_batch_is_logged_once_in_its_streams(lake: Lake, tmp_path: Path, workers: TaskRunner, *, delta: bool) -> None:
    """Each write has the stream of an oracle; the same batch in other files and order adds nothing."""
    writes = [write for write in draw_writes(400) if not ("cdc$deleted_v" in write and write.get("ttl"))]
    source = save_writes(writes, tmp_path / "writes", delta=delta)
    result = append_batch(lake, "ks", "t", source, "one", workers)
    assert (result.appended, result.writes, result.log_rows) == (True, len(writes), len(writes))
    assert sorted(map(repr, map(actual_row, log_rows(lake)))) == sorted(map(repr, map(expected_row, writes)))
    version = lake.version(log_table(schema(lake)))
    shuffled = random.Random(1).sample(writes, len(writes))
    for other_source in (
        source,
        save_writes(shuffled, tmp_path / "shuffled"),
        save_writes(shuffled, tmp_path / "delta", delta=True),
    ):
        repeated = append_batch(lake, "ks", "t", other_source, "one", workers)
        assert (repeated.appended, repeated.writes) == (False, len(writes))
    assert lake.version(log_table(schema(lake))) == version
    assert {finding.violations for finding in audit_logs(lake, workers)} == {0}


def test_other_content_is_refused(lake: Lake, tmp_path: Path, workers: TaskRunner) -> None:
    """A known name with other content is refused, and so are the same writes under another name, whole or in part."""
    writes = draw_writes(50)
    append_batch(lake, "ks", "t", save_writes(writes, tmp_path / "one"), "one", workers)
    before = log_rows(lake)
    more = save_writes([*writes, {"timestamp": BEGIN_US, "operation": 2, "p": 1, "k": 1, "v": 1}], tmp_path / "more")
    for name, message in {
        "one": r"^the log of ks\.t already has a batch one with other content; nothing was appended: ",
        "two": r"^(appending to \S+: )?the log of ks\.t already has rows of the same writes, for example of 2026-",
    }.items():
        with pytest.raises(InputError, match=message):
            append_batch(lake, "ks", "t", more, name, workers)
    assert log_rows(lake) == before
    assert append_batch(lake, "ks", "t", save_writes(draw_writes(50, 1), tmp_path / "other"), "two", workers).appended


def test_hours_are_batches(lake: Lake, tmp_path: Path, workers: TaskRunner) -> None:
    """Each hour has its writes, whatever the order; an hour without writes can be appended later."""
    writes = draw_writes(200)
    source = save_writes(writes, tmp_path / "writes")
    hours = list_hours(source, workers)
    assert hours == [NOON_US, NOON_US + HOUR_US, NOON_US + 2 * HOUR_US]
    for hour in (hours[2], hours[0], hours[2]):
        append_hour(lake, "ks", "t", source, hour, workers)
    in_hours = [write for write in writes if (write["timestamp"] - NOON_US) // HOUR_US in (0, 2)]
    assert {row[1] for row in map(actual_row, log_rows(lake))} == {write["timestamp"] for write in in_hours}
    empty = Microseconds(NOON_US + 5 * HOUR_US)
    late = save_writes([writes[0] | {"timestamp": empty}], tmp_path / "late")
    for path, appended in ((source, False), (late, True)):
        assert append_hour(lake, "ks", "t", path, empty, workers).appended is appended
    assert {finding.violations for finding in audit_appended_hour(lake, workers, hours[0])} == {0}
    assert next(finding.population for finding in audit_appended_hour(lake, workers, empty)) == 1
    assert audit_appended_hour(lake, workers, hours[1]) == []
    with pytest.raises(InputError, match="is not the start of an hour"):
        append_hour(lake, "ks", "t", source, Microseconds(NOON_US + 1), workers)


GOOD: Write = {"timestamp": BEGIN_US, "operation": 2, "p": 1, "k": 1, "v": 1}
BAD: dict[str, tuple[Write, str, str]] = {
    "an operation": (GOOD | {"operation": 7}, "operation_known", "operation 7 is none of 1 to 6"),
    "no operation": (GOOD | {"operation": None}, "operation_known", "operation None is none of 1 to 6"),
    "no time": (GOOD | {"timestamp": None}, "timestamp_in_bounds", "it has no timestamp"),
    "no time of a timeuuid": (
        GOOD | {"timestamp": 2**62},
        "timestamp_in_bounds",
        f"timestamp {2**62} is no time in µs",
    ),
    "before all": (
        GOOD | {"timestamp": BEGIN_US - 1},
        "generation_operates",
        "no known generation operates at 2026-01-31T12:09:59.999999Z",
    ),
    "a TTL": (GOOD | {"ttl": -1}, "ttl_in_bounds", "ttl -1 is not 0 to 630720000 seconds"),
    "no partition key": (GOOD | {"p": None}, "partition_key_complete", "it has no p"),
    "no clustering key": (GOOD | {"k": None}, "write_fits_table", "it has no k; it is a clustering column"),
    "a deletion with a value": (
        GOOD | {"operation": 3},
        "write_fits_table",
        "it is a deletion (operation 3 to 6) and also writes a column",
    ),
    "a deletion of a partition with a row": (
        {"timestamp": BEGIN_US, "operation": 4, "p": 1, "k": 1},
        "write_fits_table",
        "it deletes a partition (operation 4) and has a k; operation 3 deletes a row",
    ),
    "set and deleted": (GOOD | {"cdc$deleted_v": True}, "write_fits_table", "it both set v and delete it"),
}


@pytest.mark.parametrize(("bad", "check", "reason"), BAD.values(), ids=list(BAD))
def test_each_invalid_write_is_named(
    lake: Lake, tmp_path: Path, workers: TaskRunner, bad: Write, check: str, reason: str
) -> None:
    """The error has its key, the check and the reason; nothing of the batch is appended, and all of it is counted."""
    others = [GOOD | {"timestamp": BEGIN_US + index, "k": index} for index in range(300)]
    writes = [*others[:150], bad, *others[150:], bad]
    with pytest.raises(InvalidWrites) as refused:
        append_batch(lake, "ks", "t", save_writes(writes, tmp_path / "writes"), "one", workers)
    error = refused.value
    assert (error.bad, len(error.writes)) == ({check: 2}, 2)
    assert error.writes[0] == {
        "key": f'{{"p": {"null" if bad["p"] is None else bad["p"]}, "k": {"null" if bad["k"] is None else bad["k"]}}}',
        "timestamp_us": bad["timestamp"],
        "check": check,
        "reason": reason,
    }
    assert "2 of 302 writes are invalid, and nothing was appended; the first has the key" in str(error)
    assert log_rows(lake) == []
    # Without the invalid writes, the name can be used.
    assert append_batch(lake, "ks", "t", save_writes(others, tmp_path / "others"), "one", workers).writes == 300


def test_wrong_sources_are_refused(lake: Lake, tmp_path: Path, workers: TaskRunner) -> None:
    """The error is one line that names the column, the path or the name; nothing is written."""
    plain = {"timestamp": [BEGIN_US], "p": pa.array([1], pa.int32()), "k": pa.array([1], pa.int32())}
    tables = {
        "has no column timestamp": {name: plain[name] for name in ("p", "k")},
        "has no column p; every write needs one": {name: plain[name] for name in ("timestamp", "k")},
        "has columns that no write to ks.t has: w": plain | {"w": [1]},
        r"column v of \S+ is string; it has to be int32": plain | {"v": ["x"]},
        r"column k of \S+ is int64; it has to be int32": plain | {"k": [1]},
        r"column timestamp of \S+ is string": plain | {"timestamp": ["2026"]},
    }
    for number, (message, columns) in enumerate(tables.items()):
        parquet.write_table(pa.table(columns), tmp_path / f"{number}.parquet")
        with pytest.raises(InputError, match=message):
            append_batch(lake, "ks", "t", str(tmp_path / f"{number}.parquet"), "one", workers)
    good = save_writes([GOOD], tmp_path / "good.parquet")
    (tmp_path / "text.parquet").write_text("no", encoding="utf-8")
    (tmp_path / "empty").mkdir()
    for path, kind, message in (
        (tmp_path / "none", NotFound, "no such table"),
        (tmp_path / "text.parquet", InputError, "is no Parquet file"),
        (tmp_path / "empty", InputError, "has neither a _delta_log nor files"),
    ):
        with pytest.raises(kind, match=message):
            append_batch(lake, "ks", "t", str(path), "one", workers)
    for name in ("", "a/b", "-a", "x" * 129):
        with pytest.raises(InputError, match="is no name of a batch"):
            append_batch(lake, "ks", "t", good, name, workers)
    cdc_tables.alter_cdc_table(lake, Clock(Microseconds(SWITCH_US)), "ks", "t", enabled=False)
    assert log_rows(lake) == []


def test_times_and_narrow_integers_are_read(lake: Lake, tmp_path: Path, workers: TaskRunner) -> None:
    """Times of any unit count as µs, and the default operation inserts, so both batches are the same."""
    times = [BEGIN_US + index * 1000 for index in range(5)]
    keys = {"p": pa.array([1] * 5, pa.int16()), "k": pa.array(range(5), pa.int8()), "v": pa.array(range(5), pa.int32())}
    first, second = tmp_path / "first.parquet", tmp_path / "second.parquet"
    parquet.write_table(pa.table({"timestamp": times, "operation": pa.array([2] * 5, pa.int8())} | keys), first)
    parquet.write_table(pa.table({"timestamp": pa.array(times, pa.timestamp("us", "UTC"))} | keys), second)
    assert append_batch(lake, "ks", "t", str(first), "one", workers).appended
    assert not append_batch(lake, "ks", "t", str(second), "one", workers).appended
    assert {row["cdc$operation"] for row in log_rows(lake)} == {2}


def test_a_recreated_log_has_no_batch(lake: Lake, tmp_path: Path, workers: TaskRunner) -> None:
    """After a DROP the name is free; consumers that have read past the batch are named."""
    source = save_writes([GOOD], tmp_path / "one.parquet")
    clock = Clock(Microseconds(SWITCH_US))
    consumers.register_consumer(lake, clock, "audit", "ks", "t", position_us=Microseconds(BEGIN_US))
    (consumer,) = append_batch(lake, "ks", "t", source, "one", workers).passed
    assert (consumer.name, consumer.position_us) == ("audit", BEGIN_US)
    ddl = cdc_tables.find_cdc_table(lake, "ks", "t").ddl
    lake.delete(log_table(schema(lake)), [("p", "=", 1)])
    cdc_tables.drop_cdc_table(lake, clock, "ks", "t")
    cdc_tables.add_cdc_table(lake, clock, "ks", "t", ttl_seconds=86_400, created_now=True, ddl=ddl)
    assert append_batch(lake, "ks", "t", source, "one", workers).appended


@pytest.mark.parametrize("seed", range(3))
def test_the_table_of_any_time_follows_from_its_writes(
    lake: Lake, tmp_path: Path, workers: TaskRunner, seed: int
) -> None:
    """At times between and beyond the writes, with TTLs that end, the rows equal a model without a log."""
    writes = draw_writes(300, seed)
    append_batch(lake, "ks", "t", save_writes(writes[:150], tmp_path / "one"), "one", workers)
    append_batch(lake, "ks", "t", save_writes(writes[150:], tmp_path / "two"), "two", workers)
    clock = Clock(Microseconds(BEGIN_US + 4 * HOUR_US))
    times_us = [BEGIN_US - 1, *(write["timestamp"] for write in writes[:6]), BEGIN_US + SPAN_US, clock.now_us()]
    row_counts = []
    for time_us in times_us:
        result = rebuild_table(lake, clock, "ks", "t", workers, Microseconds(time_us))
        assert rebuilt_rows(lake) == expected_state(writes, time_us)
        assert (result.changed, result.rows) == (True, len(rebuilt_rows(lake)))
        row_counts.append(result.rows)
    assert len(set(row_counts)) > 4
    version = lake.version(rebuilt_table(schema(lake)))
    assert not rebuild_table(lake, clock, "ks", "t", workers, clock.now_us()).changed
    assert lake.version(rebuilt_table(schema(lake))) == version
    with pytest.raises(InputError, match="is in the future"):
        rebuild_table(lake, clock, "ks", "t", workers, Microseconds(clock.now_us() + 1))


def test_a_comparison_counts_and_names_differences(lake: Lake, tmp_path: Path, workers: TaskRunner) -> None:
    """Rows of one side, other values and repeated keys are counted; the same rows in any order are equal."""
    writes = [GOOD | {"timestamp": BEGIN_US + number, "p": number, "v": number} for number in range(100)]
    append_batch(lake, "ks", "t", save_writes(writes, tmp_path / "writes"), "one", workers)
    rebuild_table(lake, Clock(Microseconds(SWITCH_US)), "ks", "t", workers)
    rows = [{"p": number, "k": 1, "v": number} for number in reversed(range(100))]

    def compare(rows: list[Write], *, delta: bool = False) -> Any:
        path = tmp_path / f"given-{len(list(tmp_path.iterdir()))}"
        return compare_rebuilt(lake, "ks", "t", save_writes(rows, path, delta=delta), workers)

    for delta in (False, True):
        equal = compare(rows, delta=delta)
        assert (equal.is_equal, equal.rebuilt_rows, equal.given_rows, equal.first) == (True, 100, 100, ())
    changed_rows = [row | {"v": None} if row["p"] in (3, 4) else row for row in rows if row["p"] != 7]
    differing = compare([*changed_rows, {"p": 1, "k": 2, "v": 0}, rows[0]])
    assert not differing.is_equal
    counts = (differing.only_rebuilt, differing.only_given, differing.given_twice, differing.other_values)
    assert counts == (1, 1, 1, 2)
    differences = {(entry.key, entry.difference, entry.columns) for entry in differing.first}
    assert differences == {
        ('{"p": 7, "k": 1}', "only rebuilt", ()),
        ('{"p": 1, "k": 2}', "only given", ()),
        ('{"p": 99, "k": 1}', "given twice", ()),
        ('{"p": 3, "k": 1}', "other values", ("v",)),
        ('{"p": 4, "k": 1}', "other values", ("v",)),
    }
    empty = compare(rows[:1])
    assert (empty.only_rebuilt, len(empty.first)) == (99, 20)
    tokens = sorted(oracle.token_of(struct.pack(">i", number)) for number in range(99))
    sample_tokens = [
        oracle.token_of(struct.pack(">i", int(entry.key[6 : entry.key.index(",")]))) for entry in empty.first
    ]
    assert sample_tokens == tokens[:20]
    with pytest.raises(InputError, match="has no column v"):
        compare([{"p": 1, "k": 1}])


def test_a_log_of_keys_cannot_be_rebuilt(lake: Lake, workers: TaskRunner) -> None:
    """It is refused before anything is written."""
    cdc_table = cdc_tables.find_cdc_table(lake, "ks", "t")
    keys = replace(schema(lake), cdc=CdcOptions(enabled=True, delta="keys"))
    assert cdc_table.ddl is not None
    ddl = cdc_table.ddl.replace("'enabled': 'true'", "'enabled': 'true', 'delta': 'keys'")
    assert ddl != cdc_table.ddl
    cdc_tables.alter_cdc_table(lake, Clock(Microseconds(SWITCH_US)), "ks", "t", ddl=ddl)
    with pytest.raises(StateError, match="logs keys alone"):
        rebuild_table(lake, Clock(Microseconds(SWITCH_US)), "ks", "t", workers)
    assert lake.version(rebuilt_table(keys)) is None


@pytest.mark.spark
def test_spark_gives_the_same_results_as_one_process(
    lake: Lake, tmp_path: Path, on_spark: TaskRunner, workers: TaskRunner
) -> None:
    """A batch, a rebuilt table and a comparison have the same rows, counts and keys; a repetition adds nothing."""
    writes = draw_writes(400)
    # Two writes at one time, which arrive in any order.
    writes += [GOOD | {"timestamp": BEGIN_US + SPAN_US, "v": value} for value in (5, 6)]
    folder = tmp_path / "parts"
    folder.mkdir()
    for part in range(4):
        save_writes(writes[part::4], folder / f"{part}.parquet")
    other = Lake(home_with_log(_created(tmp_path / "other")) / "lake")
    result = append_batch(lake, "ks", "t", str(folder), "one", on_spark)
    assert result == append_batch(other, "ks", "t", str(folder), "one", workers)
    assert sorted(map(repr, log_rows(lake))) == sorted(map(repr, log_rows(other)))
    assert not append_batch(lake, "ks", "t", str(folder), "one", on_spark).appended
    assert not append_batch(lake, "ks", "t", str(folder), "one", workers).appended
    with translate_errors("appending"), pytest.raises(InputError, match="rows of the same writes"):
        append_batch(lake, "ks", "t", str(folder), "two", on_spark)
    with pytest.raises(InvalidWrites) as refused:
        append_batch(lake, "ks", "t", save_writes([GOOD | {"p": None}], tmp_path / "bad"), "bad", on_spark)
    assert refused.value.bad == {"partition_key_complete": 1}
    clock, moment = Clock(Microseconds(BEGIN_US + SPAN_US)), Microseconds(BEGIN_US + HOUR_US)
    assert rebuild_table(lake, clock, "ks", "t", on_spark, moment).changed
    assert rebuilt_rows(lake) == expected_state(writes, moment)
    rebuild_table(other, clock, "ks", "t", workers)
    path = other.path(rebuilt_table(schema(other)))
    comparison = compare_rebuilt(lake, "ks", "t", path, on_spark)
    assert not comparison.is_equal
    assert comparison == compare_rebuilt(lake, "ks", "t", path, workers)
    rebuild_table(lake, clock, "ks", "t", on_spark)
    assert compare_rebuilt(lake, "ks", "t", path, on_spark).is_equal


def _created(folder: Path) -> Path:
    folder.mkdir()
    return folder
