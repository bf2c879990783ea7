"""Applied scripts: tables, tablets and log rows in the lake, one script after the other, also after a kill."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.files.cql_scripts import NOW_US

from cdc_platform import failpoints
from cdc_platform.cdclog import (
    ScriptResult,
    commit_script,
    dry_run_on_stored_tables,
    log_rows_from_arrow,
    log_table,
    read_table_schema,
)
from cdc_platform.cdclog.gaps import OptionGap, find_table_gaps
from cdc_platform.clock import Clock, Microseconds, parse_time_us, us_from_seconds
from cdc_platform.delta import Lake
from cdc_platform.delta.open_table import OpenTable
from cdc_platform.metastore import cdc_tables, tablets
from cdc_platform.settings import Settings
from cdc_platform.tables import KEPT_SCRIPTS

FIRST = """CREATE KEYSPACE tabs WITH tablets = {'enabled': true, 'initial': 2};
CREATE TYPE ks.ut (a int);
CREATE TABLE ks.t (pk int, ck text, l list<int>, u ut, f frozen<map<text, decimal>>, d date, PRIMARY KEY (pk, ck))
    WITH cdc = {'enabled': true, 'preimage': true, 'ttl': 60};
CREATE TABLE ks.plain (pk int PRIMARY KEY);
CREATE TABLE ks.gone (pk int PRIMARY KEY, v int) WITH cdc = {'enabled': true};
CREATE TABLE tabs.t (pk int PRIMARY KEY) WITH cdc = {'enabled': true};
INSERT INTO ks.t (pk, ck, l, u, f, d) VALUES (0, 'a', [1, 2], {a: 1}, {'x': 1.50}, '2020-01-01');
UPDATE ks.t USING TTL 5 SET d = '2021-01-01' WHERE pk = 0 AND ck = 'b';
INSERT INTO ks.gone (pk, v) VALUES (1, 1);
INSERT INTO tabs.t (pk) VALUES (7);"""
SECOND = """UPDATE ks.t SET l[1] = 3, d = null WHERE pk = 0 AND ck = 'a';
ALTER TYPE ks.ut ADD b text; ALTER TABLE ks.t ADD v int; ALTER TABLE ks.t DROP f;
UPDATE ks.t SET l = l - [1], u.b = 'x', v = 9 WHERE pk = 0 AND ck = 'a';
DROP TABLE ks.gone; CREATE TABLE ks.gone (name text PRIMARY KEY) WITH cdc = {'enabled': true};
INSERT INTO ks.gone (name) VALUES ('n');
ALTER TABLE ks.gone WITH cdc = {'enabled': false}; INSERT INTO ks.gone (name) VALUES ('in no log');
ALTER TABLE ks.gone WITH cdc = {'enabled': true, 'ttl': 9};
INSERT INTO tabs.t (pk) VALUES (8) USING TIMESTAMP 9;"""
LATER = "2020-11-26T12:00:10Z"
LATER_US = parse_time_us(LATER)


@pytest.fixture(scope="module")
def first_kept(streams_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Create the lake of a home in which the first script is applied; tests only read it."""
    lake = copy_home(streams_home, tmp_path_factory.mktemp("first") / "home")
    result = apply_script(lake, FIRST, NOW_US)
    assert [str(outcome.error) for outcome in result.outcomes if outcome.error] == []
    return lake


@pytest.fixture(scope="module")
def both_kept(first_kept: Lake, tmp_path_factory: pytest.TempPathFactory) -> tuple[Lake, ScriptResult]:
    """Apply both scripts to a lake; return it with the result of the second."""
    lake = copy_home(first_kept.root.parent, tmp_path_factory.mktemp("both") / "home")
    return lake, apply_script(lake, SECOND, LATER_US)


def copy_home(home: Path, other: Path) -> Lake:
    """Return the lake of a copy of a home."""
    shutil.copytree(home, other)
    return Lake(other / "lake")


def apply_script(lake: Lake, script: str, at_us: Microseconds) -> ScriptResult:
    """Apply a script at a time."""
    return commit_script(script, lake, Clock(at_us), Settings())


def log_rows(lake: Lake, keyspace: str, name: str) -> list[dict[str, Any]]:
    """Return the log rows of a table, in canonical form, ordered by time."""
    schema = read_table_schema(lake, keyspace, name)
    stored_rows = list(log_rows_from_arrow(schema, lake.read(log_table(schema))))
    return sorted(stored_rows, key=lambda row: (row["cdc$time"].time, row["cdc$batch_seq_no"]))


def stored_state(lake: Lake) -> dict[str, Any]:
    """Return everything stored: the log rows of every table, its state and history, and its streams."""
    cdc_table_rows = sorted(cdc_tables.read_cdc_tables(lake), key=lambda table: table.full_name)
    sets = {
        name: [stream_set.ids.tolist() for stream_set in tablets.read_stream_sets(lake, *name)]
        for name in tablets.read_tables_with_stream_sets(lake)
    }
    return {"tables": cdc_table_rows, "changes": cdc_tables.read_table_changes(lake), "sets": sets} | {
        table.full_name: log_rows(lake, table.keyspace_name, table.table_name) for table in cdc_table_rows
    }


def final_rows(result: ScriptResult, name: str) -> list[dict[str, Any]]:
    """Return the rows of a table at the end, which its log gives as well."""
    (table,) = [table for table in result.tables if table.name == name]
    assert table.replayed == table.base
    return table.base


def test_a_script_is_applied(first_kept: Lake) -> None:
    """Tables with their TTLs, tablets, and log rows in their streams are stored; a table without CDC is not."""
    assert {table.full_name for table in cdc_tables.read_cdc_tables(first_kept)} == {"ks.t", "ks.gone", "tabs.t"}
    assert cdc_tables.find_cdc_table(first_kept, "ks", "t").ttl_seconds == 60
    assert [row["cdc$operation"] for row in log_rows(first_kept, "ks", "t")] == [2, 1]
    (streams,) = tablets.read_stream_sets(first_kept, "tabs", "t")
    assert log_rows(first_kept, "tabs", "t")[0]["cdc$stream_id"] in {stream.tobytes() for stream in streams.ids}


def test_a_script_opens_no_log_that_it_does_not_write(
    first_kept: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A home may have hundreds of tables; of those that a script leaves alone nothing is recorded."""
    lake = Lake(copy_home(first_kept.root.parent, tmp_path / "home").root)
    changes, opened = cdc_tables.read_table_changes(lake), list[str]()
    begin = OpenTable.__init__

    def count(table: OpenTable, folder: str, *args: Any, **options: Any) -> None:
        opened.append(folder)
        begin(table, folder, *args, **options)

    monkeypatch.setattr(OpenTable, "__init__", count)
    apply_script(lake, "INSERT INTO ks.gone (pk, v) VALUES (2, 2);", LATER_US)
    logs = {Path(folder).name for folder in opened if "scylla_cdc_log" in folder}
    assert logs <= {"gone_scylla_cdc_log", ".gone_scylla_cdc_log.state"}
    assert "gone_scylla_cdc_log" in logs
    assert len(log_rows(lake, "ks", "gone")) == 2
    assert cdc_tables.read_table_changes(lake) == changes


@pytest.mark.parametrize(
    ("script", "altered"),
    [
        ("ALTER TABLE ks.t WITH cdc = {'enabled': true, 'ttl': 9};", ["ks.t"]),
        ("ALTER TABLE ks.t ADD w int;", ["ks.t"]),
        ("ALTER TYPE ks.ut ADD w int;", ["ks.t"]),
        ("TRUNCATE ks.gone;", ["ks.gone"]),
        ("CREATE TABLE ks.more (pk int PRIMARY KEY) WITH cdc = {'enabled': true};", ["ks.more"]),
        ("DROP TABLE ks.gone;", ["ks.gone"]),
        ("USE ks;", []),
    ],
)
def test_only_changed_tables_are_recorded(first_kept: Lake, tmp_path: Path, script: str, altered: list[str]) -> None:
    """A type changes the tables that use it."""
    lake = copy_home(first_kept.root.parent, tmp_path / "home")
    before = cdc_tables.read_table_changes(lake)
    result = apply_script(lake, script, LATER_US)
    assert [str(outcome.error) for outcome in result.outcomes if outcome.error] == []
    added = [change for change in cdc_tables.read_table_changes(lake) if change not in before]
    assert sorted({change.full_name for change in added}) == altered


def test_scripts_continue_where_the_last_one_ended(first_kept: Lake, both_kept: tuple[Lake, ScriptResult]) -> None:
    """The next script has the tables, types and rows, and its log rows come later; meanwhile a TTL has passed."""
    lake, result = both_kept
    assert [outcome.accepted for outcome in result.outcomes] == [True] * 11 + [False]
    assert final_rows(result, "ks.t") == [{"pk": 0, "ck": "a", "d": None, "l": [3], "u": {"a": 1, "b": "x"}, "v": 9}]
    assert [row["cdc$operation"] for row in log_rows(lake, "ks", "t")] == [2, 1, 0, 1, 0, 1]
    assert [row["name"] for row in log_rows(lake, "ks", "gone")] == ["n"]
    assert lake.read(KEPT_SCRIPTS, ["finished_at"])["finished_at"].null_count == 0
    assert dry_run_on_stored_tables("SELECT * FROM ks.t", lake, Clock(LATER_US), Settings()).tables == []


def test_a_rehearsal_reads_stored_tables_and_writes_nothing(
    first_kept: Lake, both_kept: tuple[Lake, ScriptResult]
) -> None:
    """Its rows are those that applying the same script writes."""
    before = stored_state(first_kept)
    rehearsed = dry_run_on_stored_tables(SECOND, first_kept, Clock(LATER_US), Settings())
    assert stored_state(first_kept) == before
    assert [outcome.rows for outcome in rehearsed.outcomes] == [outcome.rows for outcome in both_kept[1].outcomes]


def test_an_invalid_statement_applies_nothing(lake: Lake) -> None:
    """An invalid statement does not start Spark, either."""

    result = commit_script(f"{FIRST} INSERT INTO ks.t (x) VALUES (1);", lake, Clock(NOW_US), Settings())
    assert result.wrong is not None
    assert list(lake.root.rglob("*")) == []


@pytest.mark.parametrize("name", ['"my-ks"', '"a b"', '"ä"', '""""', f'"{"k" * 193}"'])
@pytest.mark.parametrize(
    "statement",
    [
        "CREATE KEYSPACE {}",
        "CREATE TABLE {}.t (p int PRIMARY KEY) WITH cdc = {{'enabled': true}}",
        "CREATE TYPE {}.u (a int)",
        "CREATE TABLE ks.{} (p int PRIMARY KEY) WITH cdc = {{'enabled': true}}",
        "CREATE TYPE ks.{} (a int)",
    ],
)
def test_a_name_that_scylladb_refuses_is_refused_before_anything_is_recorded(
    lake: Lake, statement: str, name: str
) -> None:
    """This includes the keyspace that a table implies: a recorded script can be finished."""
    result = commit_script(f"{statement.format(name)};", lake, Clock(NOW_US), Settings())
    assert result.wrong is not None
    assert re.search("names no (keyspace|table|type): a name has 1 to 192 letters", str(result.wrong.reason))
    assert not lake.exists(KEPT_SCRIPTS)
    assert commit_script("SELECT 1", lake, Clock(NOW_US), Settings()).left == []


@pytest.mark.parametrize("point", failpoints.SCRIPT_POINTS)
def test_a_killed_script_is_completed_by_the_next(
    first_kept: Lake, both_kept: tuple[Lake, ScriptResult], point: str, tmp_path: Path
) -> None:
    """Whatever was written before the kill, the final state is that of a complete run."""
    lake = copy_home(first_kept.root.parent, tmp_path / "home")
    (tmp_path / "script.cql").write_text(SECOND, encoding="utf-8")
    options = [
        "--home",
        str(tmp_path / "home"),
        "--clock",
        LATER,
        "cql",
        "run",
        str(tmp_path / "script.cql"),
        "--apply",
    ]
    killed = subprocess.run(
        [sys.executable, "-m", "cdc_platform", *options],
        env=os.environ | {failpoints.KILL_AT_VARIABLE: point},
        capture_output=True,
        timeout=250,
    )
    assert killed.returncode == -signal.SIGKILL
    apply_script(lake, "", Microseconds(LATER_US + 1))
    assert stored_state(lake) == stored_state(both_kept[0])


def test_a_renamed_key_continues_in_one_log(streams_home: Path, tmp_path: Path) -> None:
    """One commit gives all rows the new names, also if no native column can hold the key."""
    lake = copy_home(streams_home, tmp_path / "home")
    apply_script(
        lake,
        """CREATE TABLE ks.r (pk timestamp, ck int, v int, PRIMARY KEY (pk, ck)) WITH cdc = {'enabled': true};
        INSERT INTO ks.r (pk, ck, v) VALUES (9223372036854775807, 1, 1);""",
        NOW_US,
    )
    before = lake.version(log_table(read_table_schema(lake, "ks", "r")))
    renames = "ALTER TABLE ks.r RENAME pk TO at AND ck TO place;"
    result = apply_script(lake, renames, Microseconds(NOW_US + 1_000_000))
    assert [str(outcome.error) for outcome in result.outcomes if outcome.error] == []
    table = log_table(read_table_schema(lake, "ks", "r"))
    assert before is not None
    assert lake.version(table) == before + 1
    result = apply_script(
        lake, "UPDATE ks.r SET v = 2 WHERE at = 9223372036854775807 AND place = 1;", Microseconds(NOW_US + 2_000_000)
    )
    assert [(row["place"], row["v"]) for row in final_rows(result, "ks.r")] == [(1, 2)]
    schema, version = read_table_schema(lake, "ks", "r"), lake.version(table)
    assert version is not None
    rows = list(log_rows_from_arrow(schema, lake.read_version(table, version)))
    assert [(row["at"], row["place"]) for row in rows] == [(2**63 - 1, 1)] * 2


def test_gaps_of_a_log_are_known_to_the_next_script(streams_home: Path, tmp_path: Path) -> None:
    """For it a truncated table begins empty, and one whose log was dropped begins with the rows of the next log."""
    lake = copy_home(streams_home, tmp_path / "home")
    table = "CREATE TABLE ks.{} (pk int PRIMARY KEY) WITH cdc = {{'enabled': true}}; INSERT INTO ks.{} (pk) VALUES (1);"
    apply_script(lake, table.format("cut", "cut") + table.format("anew", "anew"), NOW_US)
    second = """TRUNCATE ks.cut; INSERT INTO ks.cut (pk) VALUES (2);
        ALTER TABLE ks.anew WITH cdc = {'enabled': false}; DROP TABLE ks.anew_scylla_cdc_log;
        ALTER TABLE ks.anew WITH cdc = {'enabled': true}; INSERT INTO ks.anew (pk) VALUES (3);"""
    result = apply_script(lake, second, Microseconds(NOW_US + 1_000_000))
    assert [str(result_item.error) for result_item in result.outcomes if result_item.error] == []
    third = "INSERT INTO ks.cut (pk) VALUES (4); INSERT INTO ks.anew (pk) VALUES (5) IF NOT EXISTS;"
    result = apply_script(lake, third, Microseconds(NOW_US + 2_000_000))
    rows = {result_item.name: sorted(row["pk"] for row in result_item.base) for result_item in result.tables}
    assert rows == {"ks.cut": [2, 4], "ks.anew": [3, 5]}
    assert sorted(row["pk"] for row in log_rows(lake, "ks", "cut")) == [1, 2, 4]
    assert sorted(row["pk"] for row in log_rows(lake, "ks", "anew")) == [3, 5]
    assert all(result_item.missing for result_item in result.tables)


def test_every_change_of_options_is_recorded(streams_home: Path, tmp_path: Path) -> None:
    """A change that the same script reverts is recorded, too: writes in between are missing or live longer."""
    lake = copy_home(streams_home, tmp_path / "home")
    definition = "CREATE TABLE ks.t (pk int PRIMARY KEY, v int) WITH cdc = {'enabled': true, 'ttl': 60};"
    apply_script(lake, definition, NOW_US)
    second = """ALTER TABLE ks.t WITH cdc = {'enabled': true, 'ttl': 9000}; INSERT INTO ks.t (pk) VALUES (1);
        ALTER TABLE ks.t WITH cdc = {'enabled': false, 'ttl': 60}; INSERT INTO ks.t (pk) VALUES (2);
        ALTER TABLE ks.t WITH cdc = {'enabled': true, 'ttl': 60};"""
    at_us = Microseconds(NOW_US + 1_000_000)
    (table,) = apply_script(lake, second, at_us).tables
    recorded = [
        (item.changed_at_us - at_us, item.enabled, item.ttl_seconds) for item in cdc_tables.read_table_changes(lake)
    ]
    assert recorded == [(-1_000_000, True, 60), (0, True, 9000), (1, False, 60), (2, True, 60)]
    (gap,) = find_table_gaps(read_table_schema(lake, "ks", "t"), cdc_tables.read_table_changes(lake))
    assert gap == OptionGap("all writes", Microseconds(at_us + 1), Microseconds(at_us + 2)) == table.missing[0]
    # Without a write in between, nothing is missing.
    reverted = (
        "ALTER TABLE ks.t WITH cdc = {'enabled': false}; ALTER TABLE ks.t WITH cdc = {'enabled': true, 'ttl': 60};"
    )
    apply_script(lake, reverted, Microseconds(at_us + 5))
    assert len(cdc_tables.read_table_changes(lake)) == 4
    # The next script knows the gap, and rows are known to live as long as the longest TTL.
    (table,) = apply_script(lake, "INSERT INTO ks.t (pk) VALUES (3);", Microseconds(at_us + 9)).tables
    assert table.missing == [gap]
    periods = cdc_tables.read_log_histories(lake)["ks", "t"].periods
    assert max(item.ttl_us or 0 for item in periods) == us_from_seconds(9000)


def test_a_table_whose_log_ended_in_its_own_script_is_known(streams_home: Path, tmp_path: Path) -> None:
    """Its rows have streams, and its log is known to have ended; a table that never had a log is unknown."""
    lake = copy_home(streams_home, tmp_path / "home")
    script = """CREATE KEYSPACE tabs WITH tablets = {'enabled': true, 'initial': 2};
        CREATE TABLE tabs.t (pk int PRIMARY KEY) WITH cdc = {'enabled': true}; INSERT INTO tabs.t (pk) VALUES (7);
        ALTER TABLE tabs.t WITH cdc = {'enabled': false};
        CREATE TABLE ks.plain (pk int PRIMARY KEY); ALTER TABLE ks.plain ADD v int;"""
    result = apply_script(lake, script, NOW_US)
    assert [str(item.error) for item in result.outcomes if item.error] == []
    assert [(item.full_name, item.enabled) for item in cdc_tables.read_cdc_tables(lake)] == [("tabs.t", False)]
    (streams,) = tablets.read_stream_sets(lake, "tabs", "t")
    assert log_rows(lake, "tabs", "t")[0]["cdc$stream_id"] in {stream.tobytes() for stream in streams.ids}
