"""Proof that an interval was read whole: it holds when it was, and each thing that speaks against it is found."""

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
    """Three generations, writes to two of them, one a batch of three rows, and two readers that have read them all."""
    folder = tmp_path_factory.mktemp("read")
    home, file = home_of(folder, "three"), folder / "s.cql"
    early = [INSERT.format(p, us_from_ms(Milliseconds(FIRST_MS + 1000 * p))) for p in (1, 2, 3)]
    three = " ".join(f"INSERT INTO ks.t (p, k, v) VALUES (7, {k}, 1);" for k in range(3))
    early.append(BATCH.format(7, us_from_ms(Milliseconds(FIRST_MS + 1000)), three))
    late = [INSERT.format(4, us_from_ms(SECOND_MS) + 5)]
    for lines, at in ((early, FIRST_MS + 5000), (late, SECOND_MS)):
        file.write_text("\n".join(lines), encoding="utf-8")
        answer = run("--home", home, "--clock", format_ms(Milliseconds(at)), "cql", "run", file, "--apply")
        assert answer.exit_code == 0, answer.stdout + answer.stderr
    for name in ("audit", "search"):
        assert run("--home", home, "--clock", NOW, "consume", "ks.t", "--name", name).exit_code == 0
    return home


@pytest.fixture
def home(read_home: Path, tmp_path: Path) -> Path:
    """A copy of that home, to break."""
    return shutil.copytree(read_home, tmp_path / "home")


def asked(home: Path, *more: str, since: str = A, until: str = B, clock: str = NOW) -> Answer:
    """Ask of the interval."""
    return run(
        "--home", home, "--clock", clock, "verify-interval", since, until, "--consumer", "audit", *more, "--json"
    )


def broken(answer: Answer) -> dict[str, str]:
    """What does not hold, and what was found."""
    assert answer.exit_code in (0, 1), answer.stderr
    assert (answer.exit_code == 0) == answer.json["verified"]
    return {each["check"]: each["detail"] for each in answer.json["checks"] if not each["passed"]}


def changed(home: Path, name: str | None, change: Callable[[list[Row]], list[Row]]) -> None:
    """Put other rows in place of those of the log, or of a reader's table."""
    lake = Lake(home / "lake")
    schema = read_table_schema(lake, "ks", "t")
    table = log_table(schema) if name is None else sink_table(schema, name)
    opened = DeltaTable(lake.path(table))
    rows = change(lake.read(table).to_pylist())
    write_deltalake(opened, pa.Table.from_pylist(rows, schema=pa.schema(opened.schema())), mode="overwrite")


def batch_of_one(rows: list[Row]) -> datetime:
    """When the batch was written that has a row of its own, the last of them."""
    return max(row[WRITTEN_AT] for row in rows)


def without_it(rows: list[Row]) -> list[Row]:
    """All but the rows of that batch."""
    return [row for row in rows if row[WRITTEN_AT] != batch_of_one(rows)]


def test_what_was_read_is_proved(home: Path) -> None:
    """Over a switch of generations, with a second reader; and nothing is said of an interval that is none."""
    answer = asked(home, "--against", "search")
    assert (broken(answer), answer.json["verified"]) == ({}, True)
    found = {each["check"]: each["detail"] for each in answer.json["checks"]}
    assert found["the reader has the log's rows"].startswith("7 of 7 rows")
    assert found["its generations could be read"] == "2 operate in it"
    assert run("--home", home, "--clock", NOW, "verify-interval", B, A, "--consumer", "audit").exit_code == 2
    assert run("--home", home, "--clock", NOW, "verify-interval", A, B, "--consumer", "nobody").exit_code == 2
    assert (
        "the consumer read every row"
        in run("--home", home, "--clock", NOW, "verify-interval", A, B, "--consumer", "audit").stdout
    )


def test_what_is_not_read_yet_or_not_over_is_found(home: Path) -> None:
    """A position before the end, and an end that is nearer to the clock than rows may be on their way."""
    soon = format_ms(Milliseconds(SECOND_MS + 7_200_000))
    assert set(broken(asked(home, until=soon))) == {"the interval is over", "it was reached"}
    assert set(broken(asked(home, until=soon, clock="2023-12-01T00:00:00Z"))) == {"it was reached"}


def test_a_batch_that_the_reader_lost_as_a_whole_is_found(home: Path) -> None:
    """No number in it is missing: only the log tells."""
    changed(home, "audit", without_it)
    found = broken(asked(home))
    assert found["the reader has the log's rows"].startswith("6 of 7 rows are in")
    assert "1 batches, the first of 2023-11-14T23:13:20.000005Z" in found["the reader has the log's rows"]


def test_a_batch_that_the_log_lost_as_a_whole_is_found(home: Path) -> None:
    """Whoever has read it tells."""
    changed(home, None, without_it)
    assert set(broken(asked(home))) == {"the log has the reader's rows"}


def test_a_batch_that_both_lost_is_found_by_a_second_reader(home: Path) -> None:
    """Without one the interval seems whole."""
    for name in (None, "audit"):
        changed(home, name, without_it)
    assert broken(asked(home)) == {}
    found = broken(asked(home, "--against", "search"))
    assert set(found) == {"it has all that search has read"}
    assert found["it has all that search has read"].startswith("1 of the 7 rows of consumer search")


def test_a_batch_that_all_have_lost_is_found_by_the_base_table(home: Path, tmp_path: Path) -> None:
    """As cqlsh prints it; equal rows hold, and so do rows that are gone by now where the log tells why."""
    rows = [(1, 1, 1), (2, 1, 1), (3, 1, 1), (4, 1, 1), (7, 0, 1), (7, 1, 1), (7, 2, 1)]
    lines = [f' {{"p": {p}, "k": {k}, "v": {v}}}' for p, k, v in rows]
    file = tmp_path / "base.txt"
    file.write_text("\n".join([" [json]", "-------", *lines, "", "(7 rows)", ""]), encoding="utf-8")
    assert broken(asked(home, "--base", str(file))) == {}
    for name in (None, "audit", "search"):
        changed(home, name, without_it)
    found = broken(asked(home, "--against", "search", "--base", str(file)))
    assert set(found) == {"the base table has the rows of the log"}
    assert found["the base table has the rows of the log"].startswith("of 7 rows 1 are not in the log, 0 have other")
    assert '{"p": 4, "k": 1}' in found["the base table has the rows of the log"]
    file.write_text('{"p": 1, "k": 1, "v": 2}', encoding="utf-8")
    found = broken(asked(home, "--base", str(file)))
    assert "0 are not in the log, 1 have other values; 5 rows" in found["the base table has the rows of the log"]
    file.write_text('{"p": 1}', encoding="utf-8")
    assert asked(home, "--base", str(file)).exit_code == 2
    row = lines[0]
    for text in ("", "garbage", f"[json]\n{row}\n(2 rows)", f"{row}\nrow", "[json]\n------\n", f"{row}\n(0 rows)"):
        file.write_text(text, encoding="utf-8")
        refused = asked(home, "--base", str(file))
        assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1), text


def test_torn_and_doubled_batches_are_found(home: Path) -> None:
    """A row of three that is gone everywhere; a row that the reader has again."""
    changed(home, "audit", lambda rows: [*rows, rows[0]])
    assert set(broken(asked(home))) == {"the reader has each row once"}
    for name in (None, "audit", "search"):
        changed(home, name, lambda rows: [row for row in rows if row["cdc$batch_seq_no"] != 1])
    assert "its batches have all their rows" in broken(asked(home))


def test_generations_that_could_not_be_read_are_found(home: Path, tmp_path: Path) -> None:
    """One that lacks rows of streams, and one that was removed."""
    lake = Lake(home / "lake")
    rows = lake.read(STREAMS_DESCRIPTIONS_V2).to_pylist()
    first = min(row["time"] for row in rows)
    lacking = [row for place, row in enumerate(rows) if row["time"] != first or place != _place(rows, first)]
    opened = DeltaTable(lake.path(STREAMS_DESCRIPTIONS_V2))
    write_deltalake(opened, pa.Table.from_pylist(lacking, schema=pa.schema(opened.schema())), mode="overwrite")
    found = broken(asked(home))
    assert "lacks some of its streams" in found["its generations could be read"]
    gone = home_of(tmp_path, "removed")
    assert run("--home", gone, "--clock", NOW, "consume", "ks.t", "--name", "audit").exit_code == 2
    consumers.register_consumer(
        Lake(gone / "lake"), Clock(us_from_ms(FIRST_MS)), "audit", "ks", "t", position_us=us_from_ms(SECOND_MS)
    )
    assert "was removed" in broken(asked(gone))["its generations could be read"]


def test_a_reader_of_several_tables_is_asked_for_one(home: Path) -> None:
    """By name alone it cannot be told which is meant."""
    lake = Lake(home / "lake")
    audit = consumers.find_consumer(lake, "audit", "ks", "t")
    lake.merge(
        consumers.CONSUMERS, consumers._rows(consumers.Consumer("audit", "ks", "u", *_rest(audit))), update=False
    )
    answer = asked(home)
    assert (answer.exit_code, "say which with --table" in answer.stderr) == (2, True)
    assert broken(asked(home, "--table", "ks.t")) == {}


def _rest(consumer: consumers.Consumer) -> tuple[Any, ...]:
    return consumer.set_timestamp_us, consumer.position_us, consumer.window_number, consumer.updated_at_us


def _place(rows: list[Row], time: datetime) -> int:
    return next(place for place, row in enumerate(rows) if row["time"] == time)
