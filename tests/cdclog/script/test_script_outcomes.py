"""The outcome of each statement of a file: done, passed over, refused or wrong, and the summary of the file."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.files.cql_scripts import NOW_US, Rehearse

from cdc_platform.cdclog import commit_script
from cdc_platform.cdclog.script import commit
from cdc_platform.clock import Clock
from cdc_platform.delta import Lake
from cdc_platform.errors import EnvironmentProblem, InputError
from cdc_platform.metastore import cdc_tables
from cdc_platform.settings import Settings
from cdc_platform.tables import KEPT_SCRIPTS

TABLE = "CREATE TABLE ks.t (pk int PRIMARY KEY, v int) WITH cdc = {'enabled': true};"


def test_statements_that_change_no_table_are_passed_over(rehearsed: Rehearse) -> None:
    """Indexes, views, roles, replication and cqlsh's lines are passed over; the statements around them run."""
    result = rehearsed(
        f"""CONSISTENCY QUORUM
        {TABLE} CREATE INDEX ON ks.t (v); CREATE ROLE r; GRANT SELECT ON ks.t TO r;
        CREATE MATERIALIZED VIEW ks.v AS SELECT * FROM ks.t WHERE v IS NOT NULL PRIMARY KEY (v, pk);
        ALTER KEYSPACE ks WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 3}};
        INSERT INTO ks.t (pk, v) VALUES (1, 2); SELECT * FROM ks.v;"""
    )
    assert [outcome.became for outcome in result.outcomes] == [
        "passed over",
        "done",
        *["passed over"] * 5,
        "done",
        "done",
    ]
    assert result.tables[0].base == result.tables[0].replayed == [{"pk": 1, "v": 2}]
    assert result.summary == {
        "done": {"CREATE TABLE": 1, "INSERT": 1, "SELECT": 1},
        "passed over": {
            "ALTER KEYSPACE": 1,
            "CONSISTENCY": 1,
            "CREATE INDEX": 1,
            "CREATE MATERIALIZED VIEW": 1,
            "CREATE ROLE": 1,
            "GRANT": 1,
        },
    }
    assert result.outcomes[2].reason == "an index is derived from its table and changes nothing in it"


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("COPY ks.t (pk, v) FROM 'x.csv'", "the rows of a file"),
        ("SOURCE 'x.cql'", "the statements of another file"),
        ("CREATE CUSTOM INDEX i ON ks.t (v) USING 'zzz_unknown'", "its class 'zzz_unknown' is not known"),
        ("ALTER KEYSPACE ks WITH tablets = {'enabled': true}", "how many streams"),
        ("CREATE TRIGGER x ON ks.t USING 'c'", "writes to tables by itself"),
        ("INSERT INTO ks.t (pk, v) VALUE (1, 2)", "column 26: found 'VALUE'; expected"),
    ],
)
def test_statements_that_could_change_a_table_are_refused(rehearsed: Rehearse, statement: str, told: str) -> None:
    """The reason names the effect of leaving the statement out; it is wrong, but later statements run."""
    result = rehearsed(f"{TABLE}\n{statement};\nINSERT INTO ks.t (pk) VALUES (1);")
    assert [outcome.became for outcome in result.outcomes] == ["done", "wrong", "done"]
    assert told in str(result.outcomes[1].reason)
    with pytest.raises(InputError):
        rehearsed(f"{TABLE}\n{statement};", strict=True)


@pytest.mark.parametrize(
    "failing",
    [
        "CREATE TABLE ks.t (pk int PRIMARY KEY, v unheard)",
        "CREATE TABLE ks.t (pk int PRIMARY KEY, v 'org.example.Custom')",
        'CREATE TABLE IF NOT EXISTS "ks" . "t" (pk int PRIMARY KEY, v counter) WITH cdc = {\'enabled\': true}',
    ],
)
def test_a_failed_definition_is_named_by_its_followers(rehearsed: Rehearse, failing: str) -> None:
    """Writes to the missing table are wrong, each with the line of the failed definition."""
    result = rehearsed(
        f"CREATE KEYSPACE ks; USE ks;\n{failing};\nINSERT INTO t (pk) VALUES (1);\nUPDATE ks.t SET v = 1 WHERE pk = 1"
    )
    created, *writes = result.outcomes[-3:]
    assert [outcome.became for outcome in result.outcomes[-3:]] == ["wrong"] * 3
    assert "which was to make" not in str(created.reason)
    assert all("line 2, which was to make table ks.t, was refused" in str(outcome.reason) for outcome in writes)


@pytest.mark.parametrize(
    ("failing", "needs_it", "named"),
    [
        ("CREATE KEYSPACE k2 WITH tablets = {'enabled': true, 'initial': -1}", "USE k2", "keyspace k2"),
        ("CREATE TYPE ks.u (a unheard)", "CREATE TABLE ks.x (p int PRIMARY KEY, v u)", "type ks.u"),
        ("ALTER TYPE ks.grown ADD b unheard", "UPDATE ks.g SET v.b = 1 WHERE p = 1", "field ks.grown.b"),
        ("ALTER TYPE ks.grown ADD b of three words", "UPDATE ks.g SET v.b = 1 WHERE p = 1", "field ks.grown.b"),
        ("ALTER TABLE ks.t ADD w unheard", "INSERT INTO ks.t (pk, w) VALUES (1, 1)", "column ks.t.w"),
        ("ALTER TABLE ks.t ADD w 'org.example.X'", "INSERT INTO ks.t (pk, w) VALUES (1, 1)", "column ks.t.w"),
        ("ALTER TABLE ks.t RENAME v TO w", "INSERT INTO ks.t (pk, w) VALUES (1, 1)", "column ks.t.w"),
        ('CREATE TABLE ks."T" (pk unheard PRIMARY KEY)', 'DELETE FROM ks."T" WHERE pk = 1', "table ks.T"),
    ],
)
def test_only_a_dependent_statement_names_the_line_of_a_refused_definition(
    rehearsed: Rehearse, failing: str, needs_it: str, named: str
) -> None:
    """A statement that fails for another reason does not name it, although it contains the same words."""
    others = [
        "INSERT INTO ks.t (pk, v) VALUES ('w', 1)",
        "INSERT INTO ks.t (pk, v) VALUES (1, 'k2 u b w T')",
        "INSERT INTO ks.t (pk, absent) VALUES (1, 1) /* w b u T */",
        "UPDATE ks.g SET v.absent = 1 WHERE p = 1",
        "INSERT INTO ks.t (pk) VALUES",
    ]
    before = [
        TABLE.strip().rstrip(";"),
        "CREATE TYPE ks.grown (a int)",
        "CREATE TABLE ks.g (p int PRIMARY KEY, v grown)",
    ]
    result = rehearsed(";\n".join([*before, failing, needs_it, *others]))
    assert [outcome.became for outcome in result.outcomes] == ["done"] * 3 + ["wrong"] * 7
    line = result.outcomes[3].statement.line
    expected = f"line {line}, which was to make {named}, was refused"
    assert [expected in str(outcome.reason) for outcome in result.outcomes[3:]] == [False, True, *[False] * 5]


def test_a_definition_that_succeeds_later_is_not_named(rehearsed: Rehearse) -> None:
    """The table existed, so a later failure has its own reason."""
    result = rehearsed(
        "CREATE TABLE ks.t (pk unheard PRIMARY KEY);\nCREATE TABLE ks.t (pk int PRIMARY KEY);\nDROP TABLE ks.t;\n"
        "INSERT INTO ks.t (pk) VALUES (1)"
    )
    assert [outcome.became for outcome in result.outcomes] == ["wrong", "done", "done", "wrong"]
    assert "was refused" not in str(result.outcomes[-1].reason)


def _record_script(lake: Lake, number: int, text: str, versions: dict[str, int]) -> None:
    """Record a script as begun, without applying anything of it."""
    definitions = commit._dump_definitions(commit.load_stored_tables(lake).catalog)
    commit._record_script(lake, commit._RecordedScript(number, text, NOW_US, definitions, versions))


def test_a_script_that_cannot_be_finished_blocks_no_other(tmp_path: Path) -> None:
    """It is reported once, with the reason; the next script is applied, and later ones do not mention it."""
    lake, clock = Lake(tmp_path / "lake"), Clock(NOW_US)
    commit_script(TABLE, lake, clock, Settings())
    # The state of the log that it continues from is gone.
    _record_script(lake, 2, "INSERT INTO ks.t (pk, v) VALUES (1, 1);", {"ks.t": 99})
    result = commit_script(TABLE.replace("ks.t", "ks.other"), lake, clock, Settings())
    (message,) = result.left
    assert message.startswith("the script applied at 2020-11-26T12:00:00")
    assert "cannot be finished: " in message
    assert [table.full_name for table in cdc_tables.read_cdc_tables(lake)] == ["ks.other", "ks.t"]
    assert lake.read(KEPT_SCRIPTS, ["finished_at"])["finished_at"].null_count == 0
    assert commit_script("SELECT 1", lake, clock, Settings()).left == []


def test_a_script_is_retried_after_a_fault_of_the_machine(
    streams_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault that may pass does not leave a script unfinished for good."""
    shutil.copytree(streams_home, tmp_path / "home")
    lake = Lake(tmp_path / "home" / "lake")
    commit_script(TABLE, lake, Clock(NOW_US), Settings())
    _record_script(lake, 2, "INSERT INTO ks.t (pk, v) VALUES (1, 1);", {"ks.t": 0})

    def raise_disk_full(*_: object, **__: object) -> None:
        raise EnvironmentProblem("no space left on the disk")

    monkeypatch.setattr(commit, "append_log_parts", raise_disk_full)
    for _ in range(2):
        with pytest.raises(EnvironmentProblem):
            commit_script("SELECT 1", lake, Clock(NOW_US), Settings())
    assert lake.read(KEPT_SCRIPTS, ["finished_at"])["finished_at"].null_count == 1
