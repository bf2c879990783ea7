"""What becomes of each statement of a file: done, passed over, refused or wrong, and what the file comes to."""

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


def test_what_cannot_change_a_table_is_passed_over(rehearsed: Rehearse) -> None:
    """An index, a view, roles, replication, cqlsh's lines; the statements around them are done."""
    result = rehearsed(
        f"""CONSISTENCY QUORUM
        {TABLE} CREATE INDEX ON ks.t (v); CREATE ROLE r; GRANT SELECT ON ks.t TO r;
        CREATE MATERIALIZED VIEW ks.v AS SELECT * FROM ks.t WHERE v IS NOT NULL PRIMARY KEY (v, pk);
        ALTER KEYSPACE ks WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 3}};
        INSERT INTO ks.t (pk, v) VALUES (1, 2); SELECT * FROM ks.v;"""
    )
    assert [each.became for each in result.outcomes] == ["passed over", "done", *["passed over"] * 5, "done", "done"]
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
def test_what_could_change_a_table_is_refused(rehearsed: Rehearse, statement: str, told: str) -> None:
    """With what would follow from leaving it out; it is wrong, and those behind it are done all the same."""
    result = rehearsed(f"{TABLE}\n{statement};\nINSERT INTO ks.t (pk) VALUES (1);")
    assert [each.became for each in result.outcomes] == ["done", "wrong", "done"]
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
def test_a_failed_definition_is_named_by_what_fails_for_it(rehearsed: Rehearse, failing: str) -> None:
    """Writes to a table that was not made are wrong, each with the line that was to make it; none ends with 0."""
    result = rehearsed(
        f"CREATE KEYSPACE ks; USE ks;\n{failing};\nINSERT INTO t (pk) VALUES (1);\nUPDATE ks.t SET v = 1 WHERE pk = 1"
    )
    created, *writes = result.outcomes[-3:]
    assert [each.became for each in result.outcomes[-3:]] == ["wrong"] * 3
    assert "which was to make" not in str(created.reason)
    assert all("line 2, which was to make table ks.t, was refused" in str(each.reason) for each in writes)


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
def test_only_what_needs_a_refused_definition_names_its_line(
    rehearsed: Rehearse, failing: str, needs_it: str, named: str
) -> None:
    """A statement that fails for another reason does not, though it has the same words in it."""
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
    assert [each.became for each in result.outcomes] == ["done"] * 3 + ["wrong"] * 7
    line = result.outcomes[3].statement.line
    told = f"line {line}, which was to make {named}, was refused"
    assert [told in str(each.reason) for each in result.outcomes[3:]] == [False, True, *[False] * 5]


def test_a_definition_that_is_done_later_is_to_blame_for_nothing(rehearsed: Rehearse) -> None:
    """The table is there in the end; what fails then fails by itself."""
    result = rehearsed(
        "CREATE TABLE ks.t (pk unheard PRIMARY KEY);\nCREATE TABLE ks.t (pk int PRIMARY KEY);\nDROP TABLE ks.t;\n"
        "INSERT INTO ks.t (pk) VALUES (1)"
    )
    assert [each.became for each in result.outcomes] == ["wrong", "done", "done", "wrong"]
    assert "was refused" not in str(result.outcomes[-1].reason)


def _noted(lake: Lake, number: int, text: str, versions: dict[str, int]) -> None:
    """A script of which it was noted that it is kept, and nothing more was done."""
    definitions = commit._dump_definitions(commit.load_stored_tables(lake).catalog)
    commit._record_script(lake, commit._RecordedScript(number, text, NOW_US, definitions, versions))


def test_a_script_that_cannot_be_finished_stands_in_nobodys_way(tmp_path: Path) -> None:
    """It is told of once, with what became of it; the next one is kept, and those behind hear no more of it."""
    lake, clock = Lake(tmp_path / "lake"), Clock(NOW_US)
    commit_script(TABLE, lake, clock, Settings())
    # The state of the log that it goes on from is gone.
    _noted(lake, 2, "INSERT INTO ks.t (pk, v) VALUES (1, 1);", {"ks.t": 99})
    result = commit_script(TABLE.replace("ks.t", "ks.other"), lake, clock, Settings())
    (line,) = result.left
    assert line.startswith("the script applied at 2020-11-26T12:00:00")
    assert "cannot be finished: " in line
    assert [table.full_name for table in cdc_tables.read_cdc_tables(lake)] == ["ks.other", "ks.t"]
    assert lake.read(KEPT_SCRIPTS, ["finished_at"])["finished_at"].null_count == 0
    assert commit_script("SELECT 1", lake, clock, Settings()).left == []


def test_a_script_is_tried_again_where_the_machine_was_at_fault(
    streams_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What may pass by itself is no reason to leave a script unfinished."""
    shutil.copytree(streams_home, tmp_path / "home")
    lake = Lake(tmp_path / "home" / "lake")
    commit_script(TABLE, lake, Clock(NOW_US), Settings())
    _noted(lake, 2, "INSERT INTO ks.t (pk, v) VALUES (1, 1);", {"ks.t": 0})

    def full(*_: object, **__: object) -> None:
        raise EnvironmentProblem("no space left on the disk")

    monkeypatch.setattr(commit, "append_log_parts", full)
    for _ in range(2):
        with pytest.raises(EnvironmentProblem):
            commit_script("SELECT 1", lake, Clock(NOW_US), Settings())
    assert lake.read(KEPT_SCRIPTS, ["finished_at"])["finished_at"].null_count == 1
