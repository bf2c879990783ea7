"""Changed CDC options, truncations and re-created logs: every entry point reports the gaps of a log and their times."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import run
from support.files.cql_scripts import NOW_US, Accepted, Rehearse

from cdc_platform.cdclog import commit_script, describe_gaps, dry_run_on_stored_tables, read_table_schema
from cdc_platform.cdclog.gaps import CdcOptionsSince, OptionGap, find_option_gaps, options_history
from cdc_platform.clock import SECOND_US, Clock, Microseconds, format_us
from cdc_platform.cql import CdcOptions, TableSchema
from cdc_platform.delta import Lake
from cdc_platform.metastore import cdc_tables
from cdc_platform.settings import Settings

ON = CdcOptions(enabled=True)
OFF = CdcOptions()
KEYS = CdcOptions(enabled=True, delta="keys")
BEFORE = CdcOptions(enabled=True, preimage="true")
FULL = CdcOptions(enabled=True, preimage="full", postimage=True)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([ON], []),
        ([OFF], []),
        ([KEYS], []),
        ([FULL], []),
        ([OFF, ON], [("all writes", None, 1)]),
        ([ON, OFF], [("all writes", 1, None)]),
        ([ON, OFF, ON], [("all writes", 1, 2)]),
        ([ON, KEYS], [("values", 1, None)]),
        ([KEYS, ON, KEYS], [("values", None, 1), ("values", 2, None)]),
        ([ON, BEFORE], [("pre-images", None, 1)]),
        ([BEFORE, ON], [("pre-images", 1, None)]),
        ([BEFORE, FULL], [("full pre-images", None, 1), ("post-images", None, 1)]),
        ([FULL, OFF, FULL], [("all writes", 1, 2)]),
    ],
)
def test_gaps_follow_from_options(options: list[CdcOptions], expected: list[tuple]) -> None:
    """A gap is what the table logged at another time; data that was never requested is no gap."""
    history = [CdcOptionsSince(Microseconds(index), item) for index, item in enumerate(options)]
    assert find_option_gaps(TableSchema("ks", "t", ()), history) == [OptionGap(*item) for item in expected]


TABLE = "CREATE TABLE ks.t (pk int PRIMARY KEY, v int) WITH cdc = {'enabled': true};"


def test_a_script_reports_the_gaps_of_its_logs(rehearsed: Rehearse) -> None:
    """A gap begins at the time of the next write, since earlier writes have been logged."""
    result = rehearsed(
        f"""{TABLE} INSERT INTO ks.t (pk, v) VALUES (1, 1);
        ALTER TABLE ks.t WITH cdc = {{'enabled': false}}; INSERT INTO ks.t (pk, v) VALUES (2, 2);
        ALTER TABLE ks.t WITH cdc = {{'enabled': true, 'preimage': 'full'}}; INSERT INTO ks.t (pk, v) VALUES (3, 3);"""
    )
    (table,) = result.tables
    assert [len(outcome.rows) for outcome in result.outcomes] == [0, 1, 0, 0, 0, 1]
    off, on = Microseconds(NOW_US + 1), Microseconds(NOW_US + 2)
    assert table.missing == [
        OptionGap("all writes", off, on),
        OptionGap("full pre-images", None, off),
    ]
    assert str(table.missing[0]) == f"all writes from {format_us(off)} until {format_us(on)}"
    assert (len(table.base), len(table.replayed or ())) == (3, 2)


def test_a_truncated_table(rehearsed: Rehearse) -> None:
    """The earlier rows are missing from the table, but not from the log; later rows are in both."""
    result = rehearsed(f"{TABLE} INSERT INTO ks.t (pk) VALUES (1); TRUNCATE ks.t; INSERT INTO ks.t (pk) VALUES (2);")
    (table,) = result.tables
    assert [row["pk"] for row in table.base] == [2]
    assert table.missing == [
        OptionGap("the truncation, which takes all that was written", None, Microseconds(NOW_US + 1))
    ]


def test_a_log_is_dropped_and_created_again(accepted: Accepted, rehearsed: Rehearse) -> None:
    """A log can be dropped only while CDC is off; the next log begins with the next write."""
    drop = "DROP TABLE ks.t_scylla_cdc_log"
    wrong = rehearsed(f"{TABLE} {drop};").outcomes[-1]
    assert "is the log of a table with CDC; turn that off first" in str(wrong.error)
    result = rehearsed(
        f"""{TABLE} INSERT INTO ks.t (pk) VALUES (1); ALTER TABLE ks.t WITH cdc = {{'enabled': false}}; {drop};
        ALTER TABLE ks.t WITH cdc = {{'enabled': true}}; INSERT INTO ks.t (pk) VALUES (2);"""
    )
    assert [outcome.became for outcome in result.outcomes] == ["done"] * 6
    (table,) = result.tables
    assert [row["pk"] for row in table.replayed or ()] == [2]
    assert OptionGap("all writes to the log that was dropped", None, NOW_US) in table.missing


def _apply(lake: Lake, text: str, at_us: Microseconds) -> None:
    result = commit_script(text, lake, Clock(at_us), Settings())
    assert [str(outcome.error) for outcome in result.outcomes if outcome.error] == []


def test_stored_gaps_are_reported_by_every_entry_point(tmp_path: Path) -> None:
    """The next script and the list of tables report them, including a truncation recorded in the table's definition."""
    home = tmp_path / "home"
    home.mkdir()
    lake = Lake(home / "lake")
    _apply(lake, TABLE, NOW_US)
    _apply(lake, "ALTER TABLE ks.t WITH cdc = {'enabled': true, 'preimage': true};", NOW_US + SECOND_US)
    _apply(lake, "ALTER TABLE ks.t WITH cdc = {'enabled': false}; TRUNCATE ks.t;", NOW_US + SECOND_US * 2)
    schema = read_table_schema(lake, "ks", "t")
    assert schema.truncated_us == NOW_US + 2_000_000
    assert [item.options.preimage for item in options_history(cdc_tables.read_table_changes(lake), schema)] == [
        "false",
        "true",
        "false",
    ]
    times = [format_us(Microseconds(NOW_US + item)) for item in (1_000_000, 2_000_000)]
    expected = [
        f"the log of ks.t lacks all writes from {times[1]} on",
        f"the log of ks.t lacks pre-images from the first write until {times[0]}",
        f"the log of ks.t lacks the truncation, which takes all that was written from the first write until {times[1]}",
    ]
    assert describe_gaps(lake) == expected
    result = dry_run_on_stored_tables(
        "ALTER TABLE ks.t ADD w int", lake, Clock(Microseconds(NOW_US + 3_000_000)), Settings()
    )
    assert [f"the log of ks.t lacks {gap}" for gap in result.tables[0].missing] == expected
    listed = run("--home", home, "tables")
    assert all(item in " ".join(listed.stderr.split()) for item in expected)
