"""Columns of a log whose table was altered, in a user type's fields or a column's type, as every reader sees them."""

from __future__ import annotations

import csv
import itertools
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.command_line import Answer, run

from cdc_platform import failpoints
from cdc_platform.cdclog import arrow_type
from cdc_platform.cdclog.schema_evolution import convert_values, has_new_fields, is_compatible_type
from cdc_platform.cql import BLOB, INT, TEXT, CqlType, ListType, MapType, SetType, TupleType, UserType

OLD = UserType("ks", "u", (("a", INT), ("c", TEXT)), True)
NEW = UserType("ks", "u", (("b", INT), ("c", TEXT), ("d", TEXT)), True)
VALUE, GROWN = {"a": 1, "c": "x"}, {"b": 1, "c": "x", "d": None}
WRAPPED: dict[str, tuple[CqlType, CqlType, Any, Any]] = {
    "itself": (OLD, NEW, VALUE, GROWN),
    "in a list": (ListType(OLD), ListType(NEW), [VALUE], [GROWN]),
    "in a set": (SetType(OLD), SetType(NEW), [VALUE], [GROWN]),
    "as a map's value": (MapType(TEXT, OLD), MapType(TEXT, NEW), [("k", VALUE)], [("k", GROWN)]),
    "as a map's key": (MapType(OLD, INT), MapType(NEW, INT), [(VALUE, 1)], [(GROWN, 1)]),
    "in a tuple": (TupleType((INT, OLD)), TupleType((INT, NEW)), {"_1": 1, "_2": VALUE}, {"_1": 1, "_2": GROWN}),
    "in another type": (
        UserType("ks", "o", (("z", OLD),)),
        UserType("ks", "o", (("z", NEW), ("y", ListType(NEW)))),
        {"z": VALUE},
        {"z": GROWN, "y": None},
    ),
    "twice in lists": (ListType(ListType(OLD)), ListType(ListType(NEW)), [[VALUE], []], [[GROWN], []]),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_an_older_value_has_null_in_added_fields(name: str) -> None:
    """Fields match by position, whatever their names; nulls and slices of an array stay correct."""
    old, new, value, grown = WRAPPED[name]
    stored, target = arrow_type(old), arrow_type(new)
    assert is_compatible_type(stored, new)
    assert has_new_fields(stored, new)
    assert not has_new_fields(target, new)
    values = pa.array([None, value, None, value], stored)
    for start, count in itertools.product(range(4), range(1, 5)):
        expected = [None, grown, None, grown][start : start + count]
        assert convert_values(values.slice(start, count), target).to_pylist() == expected
    assert convert_values(pa.chunked_array([values, values.slice(1, 1)]), target).to_pylist()[-1] == grown
    assert convert_values(pa.array([], stored), target).type == target


@pytest.mark.parametrize(
    ("stored", "kind"),
    [
        (INT, TEXT),
        (TEXT, INT),
        (NEW, OLD),
        (OLD, UserType("ks", "u", (("a", TEXT), ("c", TEXT)))),
        (OLD, TupleType((INT, TEXT, TEXT))),
        (TupleType((INT,)), TupleType((INT, INT))),
        (ListType(INT), ListType(TEXT)),
        (MapType(TEXT, INT), SetType(TEXT)),
        (INT, OLD),
        (OLD, BLOB),
    ],
    ids=str,
)
def test_another_type_is_not_compatible(stored: CqlType, kind: CqlType) -> None:
    """Another type is refused even if its fields or parts begin in the same way."""
    assert not is_compatible_type(arrow_type(stored), kind)


SCRIPTS = [
    """CREATE TYPE ks.u (a int, c text);
       CREATE TABLE ks.t (p int PRIMARY KEY, v u, f frozen<u>, l list<frozen<u>>, m map<frozen<u>, int>, w int)
           WITH cdc = {'enabled': true};
       INSERT INTO ks.t (p, v, f, l, m, w) VALUES (1, {a: 1, c: 'x'}, {a: 2, c: 'y'}, [{a: 3, c: 'z'}], {{a: 4}: 4}, 7);
       INSERT INTO ks.t (p, v, w) VALUES (2, {a: 1, c: 'x'}, 8);""",
    "ALTER TYPE ks.u ADD d text;",
    "ALTER TYPE ks.u RENAME a TO b;",
    """INSERT INTO ks.t (p, v, f, w) VALUES (3, {b: 3, d: 'new'}, {b: 3, d: 'new'}, 9);
       UPDATE ks.t SET v.b = 5, m = m - {{b: 4}} WHERE p = 1;""",
    "UPDATE ks.t SET w = null WHERE p = 2;",
    "ALTER TABLE ks.t DROP w;",
    "ALTER TABLE ks.t ADD w text;",
    "INSERT INTO ks.t (p, w) VALUES (4, 'ten');",
]
ROWS = [
    {"p": 1, "w": None, "v": {"b": 1, "c": "x", "d": None}, "f": {"b": 2, "c": "y", "d": None}},
    {"p": 2, "w": None, "v": {"b": 1, "c": "x", "d": None}, "f": None},
    {"p": 3, "w": None, "v": {"b": 3, "c": None, "d": "new"}, "f": {"b": 3, "c": None, "d": "new"}},
    {"p": 1, "w": None, "v": {"b": 5, "c": None, "d": None}, "f": None},
    {"p": 2, "w": None, "v": None, "f": None},
    {"p": 4, "w": "ten", "v": None, "f": None},
]
"""The expected rows of the log after all scripts, written by hand."""


class Home:
    """A home whose clock advances by a minute with each command."""

    def __init__(self, home: Path) -> None:
        self.home, self.minute = home, 0

    def run(self, *words: object) -> Answer:
        """Run a command and assert that it succeeds."""
        self.minute += 1
        clock = f"2026-01-02T{self.minute // 60:02}:{self.minute % 60:02}:00Z"
        answer = run("--home", self.home, "--clock", clock, *map(str, words))
        assert answer.exit_code == 0, answer
        return answer


@pytest.fixture
def altered(streams_home: Path, tmp_path: Path) -> Home:
    """Return a home that has applied all scripts, with a consumer that has read on after each of them."""
    home = Home(Path(shutil.copytree(streams_home, tmp_path / "home")))
    for number, text in enumerate(SCRIPTS):
        script = tmp_path / f"{number}.cql"
        script.write_text(text, encoding="utf-8")
        home.run("cql", "run", script, "--apply")
        home.run("consume", "ks.t", "--name", "follower")
    home.run("consume", "ks.t", "--name", "late")
    return home


def read_rows(home: Home, table: str) -> list[dict[str, Any]]:
    """Return the rows of a log or of a copy of it, oldest first, in the columns of interest."""
    answer = home.run("sql", f'SELECT p, w, v, f FROM {table} ORDER BY "cdc$timestamp", "cdc$batch_seq_no"', "--json")
    return answer.rows


def test_every_reader_has_each_value_of_an_extended_type(altered: Home, tmp_path: Path) -> None:
    """The log, both consumers, the export and the rebuilt table lose no value and invent no deletion."""
    for table in ("ks.t_scylla_cdc_log", "ks.t_scylla_cdc_log_follower", "ks.t_scylla_cdc_log_late"):
        assert read_rows(altered, table) == ROWS, table
    altered.run("export", tmp_path / "exported")
    with (tmp_path / "exported" / "logs" / "ks.t_scylla_cdc_log.csv").open(encoding="utf-8", newline="") as file:
        exported = list(csv.DictReader(file, doublequote=False, escapechar="\\"))
    assert [int(row["p"]) for row in exported] == [row["p"] for row in ROWS]
    assert [row["v"] != "<null>" for row in exported] == [row["v"] is not None for row in ROWS]
    assert exported[0]["v"] == "{b: 1, c: 'x', d: <null>}"
    assert exported[0]["m"] == "{{b: 4, c: <null>, d: <null>}: 4}"
    assert {row["cdc$deleted_w"] for row in exported} == {"<null>"}
    probe = tmp_path / "look.cql"
    probe.write_text("INSERT INTO ks.t (p) VALUES (5);", encoding="utf-8")
    table_result = altered.run("cql", "run", probe, "--json").json["tables"]["ks.t"]
    assert table_result["replayed"] == table_result["base"]
    assert {row["p"]: (row["w"], row["v"]) for row in table_result["base"]} == {
        1: (None, {"b": 5, "c": "x", "d": None}),
        2: (None, {"b": 1, "c": "x", "d": None}),
        3: (None, {"b": 3, "c": None, "d": "new"}),
        4: ("ten", None),
        5: (None, None),
    }


@pytest.mark.parametrize("point", failpoints.SCRIPT_POINTS)
def test_a_killed_alteration_has_the_same_result(streams_home: Path, tmp_path: Path, point: str) -> None:
    """Whatever part of a log was rewritten, the next script completes it, and no row is lost or duplicated."""
    text = f"{SCRIPTS[1]} {SCRIPTS[2]} ALTER TABLE ks.t DROP w; UPDATE ks.t SET v.b = 5 WHERE p = 1;"
    rows_by_home = []
    for name in ("whole", "killed"):
        home = Home(Path(shutil.copytree(streams_home, tmp_path / name)))
        for number, script in enumerate([SCRIPTS[0], text]):
            (tmp_path / f"{number}.cql").write_text(script, encoding="utf-8")
        home.run("cql", "run", tmp_path / "0.cql", "--apply")
        command = [
            "--home",
            str(home.home),
            "--clock",
            "2026-01-02T00:02:00Z",
            "cql",
            "run",
            str(tmp_path / "1.cql"),
            "--apply",
        ]
        environment = os.environ | ({failpoints.KILL_AT_VARIABLE: point} if name == "killed" else {})
        completed = subprocess.run(
            [sys.executable, "-m", "cdc_platform", *command], env=environment, capture_output=True, check=False
        )
        assert completed.returncode == (-signal.SIGKILL if name == "killed" else 0)
        (tmp_path / "2.cql").write_text("SELECT 1", encoding="utf-8")
        run("--home", home.home, "--clock", "2026-01-02T00:03:00Z", "cql", "run", tmp_path / "2.cql", "--apply")
        order = 'SELECT * FROM ks.t_scylla_cdc_log ORDER BY "cdc$timestamp", "cdc$batch_seq_no"'
        rows_by_home.append(run("--home", home.home, "sql", order, "--json").rows)
    assert rows_by_home[0] == rows_by_home[1]
    assert [row["v"]["b"] for row in rows_by_home[0]] == [1, 1, 5]
    assert "w" not in rows_by_home[0][0]


def test_a_home_with_an_altered_log_passes_its_checks(altered: Home) -> None:
    """Every row matches its commit, and the consumers have the rows of the log."""
    results = run("--home", altered.home, "--clock", "2026-01-03T00:00:00Z", "check", "--deep", "--json").rows
    failed = [result["invariant"] for result in results if not result["passed"]]
    assert [name for name in failed if name != "refines_vnodes"] == []  # the home has no ring
