"""Proof that an interval was read completely: it passes if it was, and each contradiction is found."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from support.command_line import Answer, run
from support.homes.timelines import FIRST_MS, SECOND_MS, home_of

from cdc_platform.cdclog import WRITTEN_AT, log_table, read_table_schema
from cdc_platform.cdclog.consumer.reader import sink_table
from cdc_platform.clock import Clock, Milliseconds, format_ms, us_from_ms
from cdc_platform.delta import Lake
from cdc_platform.metastore import consumers
from cdc_platform.tables import STREAMS_DESCRIPTIONS_V2

A, B = format_ms(FIRST_MS), format_ms(Milliseconds(SECOND_MS + 60_000))
NOW = format_ms(Milliseconds(SECOND_MS + 3_600_000))
Row = dict[str, Any]
INSERT = "INSERT INTO ks.t (p, k, v) VALUES ({0}, 1, 1) USING TIMESTAMP {1};"
BATCH = "BEGIN BATCH USING TIMESTAMP {1} {2} APPLY BATCH;"


@pytest.fixture(scope="module")
def read_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create three generations with writes to two of them.

    One is a batch of three rows; two consumers have read everything.
    """
    folder = tmp_path_factory.mktemp("read")
    home, file = home_of(folder, "three"), folder / "s.cql"
    early = [INSERT.format(p, us_from_ms(Milliseconds(FIRST_MS + 1000 * p))) for p in (1, 2, 3)]
    three = " ".join(f"INSERT INTO ks.t (p, k, v) VALUES (7, {k}, 1);" for k in range(3))
    early.append(BATCH.format(7, us_from_ms(Milliseconds(FIRST_MS + 1000)), three))
    late = [INSERT.format(4, us_from_ms(SECOND_MS) + 5)]
    for lines, clock_ms in ((early, FIRST_MS + 5000), (late, SECOND_MS)):
        file.write_text("\n".join(lines), encoding="utf-8")
        answer = run("--home", home, "--clock", format_ms(Milliseconds(clock_ms)), "cql", "run", file, "--apply")
        assert answer.exit_code == 0, answer.stdout + answer.stderr
    for name in ("audit", "search"):
        assert run("--home", home, "--clock", NOW, "consume", "ks.t", "--name", name).exit_code == 0
    return home


@pytest.fixture
def home(read_home: Path, tmp_path: Path) -> Path:
    """Return a copy of that home, to be damaged."""
    return shutil.copytree(read_home, tmp_path / "home")


def verify(home: Path, *more: str, since: str = A, until: str = B, clock: str = NOW) -> Answer:
    """Verify the interval."""
    return run(
        "--home", home, "--clock", clock, "verify-interval", since, until, "--consumer", "audit", *more, "--json"
    )


def failures(answer: Answer) -> dict[str, str]:
    """Return the failed checks with their details."""
    assert answer.exit_code in (0, 1), answer.stderr
    assert (answer.exit_code == 0) == answer.json["verified"]
    return {check["check"]: check["detail"] for check in answer.json["checks"] if not check["passed"]}


def replace_rows(home: Path, name: str | None, change: Callable[[list[Row]], list[Row]]) -> None:
    """Replace the rows of the log, or of a consumer's table."""
    lake = Lake(home / "lake")
    schema = read_table_schema(lake, "ks", "t")
    table = log_table(schema) if name is None else sink_table(schema, name)
    opened = DeltaTable(lake.path(table))
    rows = change(lake.read(table).to_pylist())
    write_deltalake(opened, pa.Table.from_pylist(rows, schema=pa.schema(opened.schema())), mode="overwrite")


def last_single_batch_time(rows: list[Row]) -> datetime:
    """Return the time of the last batch, which has a single row."""
    return max(row[WRITTEN_AT] for row in rows)


def without_last_batch(rows: list[Row]) -> list[Row]:
    """Return all rows but those of that batch."""
    return [row for row in rows if row[WRITTEN_AT] != last_single_batch_time(rows)]


def test_a_complete_read_is_proved(home: Path) -> None:
    """The proof covers a switch of generations and a second reader; an invalid interval or consumer is refused."""
    answer = verify(home, "--against", "search")
    assert (failures(answer), answer.json["verified"]) == ({}, True)
    details = {check["check"]: check["detail"] for check in answer.json["checks"]}
    assert details["the reader has the log's rows"].startswith("7 of 7 rows")
    assert details["its generations could be read"] == "2 operate in it"
    assert run("--home", home, "--clock", NOW, "verify-interval", B, A, "--consumer", "audit").exit_code == 2
    assert run("--home", home, "--clock", NOW, "verify-interval", A, B, "--consumer", "nobody").exit_code == 2
    assert (
        "the consumer read every row"
        in run("--home", home, "--clock", NOW, "verify-interval", A, B, "--consumer", "audit").stdout
    )


def test_an_unread_or_unfinished_interval_is_found(home: Path) -> None:
    """The position is before the end, or the end is so near to the clock that rows may still arrive."""
    soon = format_ms(Milliseconds(SECOND_MS + 7_200_000))
    assert set(failures(verify(home, until=soon))) == {"the interval is over", "it was reached"}
    assert set(failures(verify(home, until=soon, clock="2023-12-01T00:00:00Z"))) == {"it was reached"}


def test_a_batch_missing_only_from_the_reader_is_found(home: Path) -> None:
    """None of its row numbers is missing, so only the log shows it."""
    replace_rows(home, "audit", without_last_batch)
    failed = failures(verify(home))
    assert failed["the reader has the log's rows"].startswith("6 of 7 rows are in")
    assert "1 batches, the first of 2023-11-14T23:13:20.000005Z" in failed["the reader has the log's rows"]


def test_a_batch_missing_only_from_the_log_is_found(home: Path) -> None:
    """A consumer that has read it shows it."""
    replace_rows(home, None, without_last_batch)
    assert set(failures(verify(home))) == {"the log has the reader's rows"}


def test_a_batch_missing_from_both_is_found_by_a_second_reader(home: Path) -> None:
    """Without a second reader the interval seems complete."""
    for name in (None, "audit"):
        replace_rows(home, name, without_last_batch)
    assert failures(verify(home)) == {}
    failed = failures(verify(home, "--against", "search"))
    assert set(failed) == {"it has all that search has read"}
    assert failed["it has all that search has read"].startswith("1 of the 7 rows of consumer search")


def test_a_batch_missing_everywhere_is_found_by_the_base_table(home: Path, tmp_path: Path) -> None:
    """The table is read as cqlsh prints it; rows pass if they are equal, or gone for a reason that the log shows."""
    rows = [(1, 1, 1), (2, 1, 1), (3, 1, 1), (4, 1, 1), (7, 0, 1), (7, 1, 1), (7, 2, 1)]
    lines = [f' {{"p": {p}, "k": {k}, "v": {v}}}' for p, k, v in rows]
    file = tmp_path / "base.txt"
    file.write_text("\n".join([" [json]", "-------", *lines, "", "(7 rows)", ""]), encoding="utf-8")
    assert failures(verify(home, "--base", str(file))) == {}
    for name in (None, "audit", "search"):
        replace_rows(home, name, without_last_batch)
    failed = failures(verify(home, "--against", "search", "--base", str(file)))
    assert set(failed) == {"the base table has the rows of the log"}
    assert failed["the base table has the rows of the log"].startswith("of 7 rows 1 are not in the log, 0 have other")
    assert '{"p": 4, "k": 1}' in failed["the base table has the rows of the log"]
    file.write_text('{"p": 1, "k": 1, "v": 2}', encoding="utf-8")
    failed = failures(verify(home, "--base", str(file)))
    assert "0 are not in the log, 1 have other values; 5 rows" in failed["the base table has the rows of the log"]
    file.write_text('{"p": 1}', encoding="utf-8")
    assert verify(home, "--base", str(file)).exit_code == 2
    row = lines[0]
    for text in ("", "garbage", f"[json]\n{row}\n(2 rows)", f"{row}\nrow", "[json]\n------\n", f"{row}\n(0 rows)"):
        file.write_text(text, encoding="utf-8")
        refused = verify(home, "--base", str(file))
        assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1), text


def test_partial_and_repeated_batches_are_found(home: Path) -> None:
    """One of three rows is missing everywhere, or the reader has a row twice."""
    replace_rows(home, "audit", lambda rows: [*rows, rows[0]])
    assert set(failures(verify(home))) == {"the reader has each row once"}
    for name in (None, "audit", "search"):
        replace_rows(home, name, lambda rows: [row for row in rows if row["cdc$batch_seq_no"] != 1])
    assert "its batches have all their rows" in failures(verify(home))


def test_unreadable_generations_are_found(home: Path, tmp_path: Path) -> None:
    """A generation misses rows of streams, and another one was removed."""
    lake = Lake(home / "lake")
    rows = lake.read(STREAMS_DESCRIPTIONS_V2).to_pylist()
    first = min(row["time"] for row in rows)
    incomplete = [row for index, row in enumerate(rows) if row["time"] != first or index != _index_of(rows, first)]
    opened = DeltaTable(lake.path(STREAMS_DESCRIPTIONS_V2))
    write_deltalake(opened, pa.Table.from_pylist(incomplete, schema=pa.schema(opened.schema())), mode="overwrite")
    failed = failures(verify(home))
    assert "lacks some of its streams" in failed["its generations could be read"]
    removed_home = home_of(tmp_path, "removed")
    assert run("--home", removed_home, "--clock", NOW, "consume", "ks.t", "--name", "audit").exit_code == 2
    consumers.register_consumer(
        Lake(removed_home / "lake"), Clock(us_from_ms(FIRST_MS)), "audit", "ks", "t", position_us=us_from_ms(SECOND_MS)
    )
    assert "was removed" in failures(verify(removed_home))["its generations could be read"]


def test_a_reader_of_several_tables_needs_a_table(home: Path) -> None:
    """Its name alone is ambiguous."""
    lake = Lake(home / "lake")
    audit = consumers.find_consumer(lake, "audit", "ks", "t")
    lake.merge(
        consumers.CONSUMERS, consumers._rows(consumers.Consumer("audit", "ks", "u", *_rest(audit))), update=False
    )
    answer = verify(home)
    assert (answer.exit_code, "say which with --table" in answer.stderr) == (2, True)
    assert failures(verify(home, "--table", "ks.t")) == {}


def _rest(consumer: consumers.Consumer) -> tuple[Any, ...]:
    return consumer.set_timestamp_us, consumer.position_us, consumer.window_number, consumer.updated_at_us


def _index_of(rows: list[Row], time: datetime) -> int:
    return next(index for index, row in enumerate(rows) if row["time"] == time)
