"""Columns by which rows expire, as ScyllaDB's test/cqlpy/test_ttl_row.py has them: which may be one, and their log."""

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


def test_a_ttl_column_is_written_to_as_any_other(accepted: Accepted) -> None:
    """Its value is in the log; the row stays, even one whose time has passed, until ScyllaDB deletes it some time."""
    done = accepted(f"{CLUSTERED} {ROWS} ALTER TABLE ks.t TTL NULL; ALTER TABLE ks.t TTL e;")
    assert [(row["cdc$operation"], row["e"], row["cdc$ttl"]) for each in done for row in each.rows] == [
        (2, 1577836800, None),
        (1, None, None),
    ]
    assert [each.schema.row_ttl for each in done if each.schema is not None] == ["e", None, "e"]


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
def test_what_can_be_no_ttl_column(rehearsed: Rehearse, statement: str, why: str) -> None:
    """One a table, of three types, and neither static nor of a key; a second one comes behind TTL NULL alone."""
    others = "CREATE TABLE ks.n (p int PRIMARY KEY, v text);"
    outcome = rehearsed(f"{CLUSTERED} {others} {statement};").outcomes[-1]
    assert outcome.became == "wrong"
    assert why in str(outcome.error)


def test_a_dropped_ttl_column_is_none_any_more(rehearsed: Rehearse) -> None:
    """Neither is one of its name that is added later; where another column goes, it stays."""
    done = rehearsed(f"{CLUSTERED} ALTER TABLE ks.t DROP x; ALTER TABLE ks.t DROP e;").outcomes
    assert [each.schema.row_ttl for each in done if each.schema is not None] == ["e", "e", None]


def test_columns_may_be_named_ttl(accepted: Accepted) -> None:
    """The word is a name as well."""
    accepted(
        "CREATE TABLE ks.t (ttl int PRIMARY KEY, TTL2 int, e int TTL);"
        " UPDATE ks.t USING TTL 5 SET ttl2 = 1 WHERE ttl = 1;"
    )


def test_a_kept_table_keeps_its_ttl_column(streams_home: Path, tmp_path: Path) -> None:
    """The next script finds it, and what it makes of it is kept; people are told what the log cannot have."""
    home = tmp_path / "home"
    shutil.copytree(streams_home, home)
    lake = Lake(home / "lake")
    for turn, (text, column) in enumerate(((CLUSTERED + ROWS, "e"), ("ALTER TABLE ks.t TTL NULL;", None))):
        result = commit_script(text, lake, Clock(Microseconds(NOW_US + turn * SECOND_US)), Settings())
        assert [str(each.error) for each in result.outcomes if each.error] == []
        assert read_table_schema(lake, "ks", "t").row_ttl == column
    (tmp_path / "s.cql").write_text(CLUSTERED.replace("ks.t", "ks.o"))
    answer = run("--home", home, "--clock", SINCE, "cql", "run", tmp_path / "s.cql")
    assert "rows of ks.o expire by its column e" in answer.stderr
