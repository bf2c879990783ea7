"""Row TTL columns, as in ScyllaDB's test/cqlpy/test_ttl_row.py: which columns are allowed, and what their log has."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.command_line import run
from support.files.cql_scripts import NOW_US, SINCE, Accepted, Rehearse

from cdc_platform.cdclog import commit_script, read_table_schema
from cdc_platform.clock import SECOND_US, Clock, Microseconds
from cdc_platform.delta import Lake
from cdc_platform.settings import Settings

CDC = "WITH cdc = {'enabled': true}"
CLUSTERED = f"CREATE TABLE ks.t (p int, c int, x int, e bigint TTL, PRIMARY KEY (p, c)) {CDC};"
ROWS = "INSERT INTO ks.t (p, c, x, e) VALUES (1, 2, 3, 1577836800); UPDATE ks.t SET x = 4 WHERE p = 1 AND c = 3;"


def test_a_ttl_column_is_written_like_any_other(accepted: Accepted) -> None:
    """The value is in the log; an expired row stays, because ScyllaDB deletes it at an unknown later time."""
    outcomes = accepted(f"{CLUSTERED} {ROWS} ALTER TABLE ks.t TTL NULL; ALTER TABLE ks.t TTL e;")
    assert [(row["cdc$operation"], row["e"], row["cdc$ttl"]) for outcome in outcomes for row in outcome.rows] == [
        (2, 1577836800, None),
        (1, None, None),
    ]
    assert [outcome.schema.row_ttl for outcome in outcomes if outcome.schema is not None] == ["e", None, "e"]


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("CREATE TABLE ks.o (p int PRIMARY KEY, e timestamp TTL, f timestamp TTL)", "more than one TTL column"),
        ("CREATE TABLE ks.o (p int PRIMARY KEY, e text TTL)", "must be of type timestamp, bigint or int"),
        ("CREATE TABLE ks.o (e timestamp TTL PRIMARY KEY)", "Cannot use a primary key column as TTL column e"),
        ("CREATE TABLE ks.o (p int, e int TTL, PRIMARY KEY (p, e))", "Cannot use a primary key column as TTL column e"),
        ("CREATE TABLE ks.o (p int, c int, e int STATIC TTL, PRIMARY KEY (p, c))", "Cannot use a static column"),
        ("ALTER TABLE ks.t TTL x", "already has a TTL column, e"),
        ("ALTER TABLE ks.t TTL e", "already has a TTL column, e"),
        ("ALTER TABLE ks.n TTL NULL", "does not have a TTL column"),
        ("ALTER TABLE ks.n TTL nothing", "unknown column nothing"),
        ("ALTER TABLE ks.n TTL p", "Cannot use a primary key column"),
        ("ALTER TABLE ks.n TTL v", "must be of type"),
        ("ALTER TABLE ks.t RENAME e TO f", "Cannot rename"),
    ],
)
def test_invalid_ttl_columns(rehearsed: Rehearse, statement: str, why: str) -> None:
    """A table has one TTL column, of one of three types, neither static nor in the key; a second one needs TTL NULL."""
    others = "CREATE TABLE ks.n (p int PRIMARY KEY, v text);"
    outcome = rehearsed(f"{CLUSTERED} {others} {statement};").outcomes[-1]
    assert outcome.became == "wrong"
    assert why in str(outcome.error)


def test_a_dropped_ttl_column_is_no_longer_one(rehearsed: Rehearse) -> None:
    """A later column of its name is none, either; dropping another column changes nothing."""
    outcomes = rehearsed(f"{CLUSTERED} ALTER TABLE ks.t DROP x; ALTER TABLE ks.t DROP e;").outcomes
    assert [outcome.schema.row_ttl for outcome in outcomes if outcome.schema is not None] == ["e", "e", None]


def test_columns_may_be_named_ttl(accepted: Accepted) -> None:
    """The word is also a valid name."""
    accepted(
        "CREATE TABLE ks.t (ttl int PRIMARY KEY, TTL2 int, e int TTL);"
        " UPDATE ks.t USING TTL 5 SET ttl2 = 1 WHERE ttl = 1;"
    )


def test_a_stored_table_retains_its_ttl_column(streams_home: Path, tmp_path: Path) -> None:
    """The next script reads and changes it; the command warns that the log will not contain the expiry."""
    home = tmp_path / "home"
    shutil.copytree(streams_home, home)
    lake = Lake(home / "lake")
    for index, (text, column) in enumerate(((CLUSTERED + ROWS, "e"), ("ALTER TABLE ks.t TTL NULL;", None))):
        result = commit_script(text, lake, Clock(Microseconds(NOW_US + index * SECOND_US)), Settings())
        assert [str(outcome.error) for outcome in result.outcomes if outcome.error] == []
        assert read_table_schema(lake, "ks", "t").row_ttl == column
    (tmp_path / "s.cql").write_text(CLUSTERED.replace("ks.t", "ks.o"))
    answer = run("--home", home, "--clock", SINCE, "cql", "run", tmp_path / "s.cql")
    assert "rows of ks.o expire by its column e" in answer.stderr
