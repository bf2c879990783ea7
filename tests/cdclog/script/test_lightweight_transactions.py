"""Lightweight transactions: the rows that are read, the answers, and the writes, as in ScyllaDB's tests.

The names in brackets are those of its test/cql (2026), which have the same expectations.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.files.cql_scripts import NOW_US, SINCE, Accepted, Rehearse
from support.files.export_files import ID, OTHER_ID
from support.homes.imported import home_with_generations

from cdc_platform.cdclog import StatementOutcome
from cdc_platform.cdclog.script.run import dry_run_script
from cdc_platform.clock import Clock, parse_time_ms, parse_time_us
from cdc_platform.cql import us_from_timeuuid
from cdc_platform.delta import Lake
from cdc_platform.errors import WriteRefused
from cdc_platform.settings import Settings

CDC = "WITH cdc = {'enabled': true}"
PLAIN = f"CREATE TABLE ks.t (a int PRIMARY KEY, b int) {CDC};"
ROWS = f"CREATE TABLE ks.t (p int, c int, s int static, v int, PRIMARY KEY (p, c)) {CDC};"
NONE = None


def answer_rows(outcome: StatementOutcome) -> list[tuple[Any, ...]]:
    """Return the values of the answer, row by row, with [applied] first."""
    assert outcome.error is None, outcome.error
    assert outcome.answer is not None
    return [tuple(row.values()) for row in outcome.answer.json()]


def steps(accepted: Accepted, script: str, *pairs: tuple[str, Any]) -> None:
    """Run statements after a script and assert their answers.

    Each with IF gives one row, or the rows of a list; only applied ones write log rows.
    """
    outcomes = accepted(script + "\n" + ";\n".join(statement for statement, _ in pairs))
    for (statement, expected), outcome in zip(pairs, outcomes[-len(pairs) :], strict=True):
        if expected is None:
            continue
        rows = expected if isinstance(expected, list) else [expected]
        assert (statement, answer_rows(outcome)) == (statement, rows)
        assert (statement, outcome.became) == (statement, "done" if rows[0][0] else "not applied")
        assert rows[0][0] or outcome.rows == []


def test_conditions_on_existence(accepted: Accepted) -> None:
    """The answer has all columns, null without a row; only applied statements leave log rows [lwt_test, if_exists]."""
    steps(
        accepted,
        PLAIN,
        ("INSERT INTO ks.t (a, b) VALUES (1, 1) IF NOT EXISTS", (True, NONE, NONE)),
        ("INSERT INTO ks.t (a, b) VALUES (1, 2) IF NOT EXISTS", (False, 1, 1)),
        ("UPDATE ks.t SET b = 3 WHERE a = 2 IF EXISTS", (False, NONE, NONE)),
        ("UPDATE ks.t SET b = 3 WHERE a = 1 IF EXISTS", (True, 1, 1)),
        ("DELETE FROM ks.t WHERE a = 1 IF EXISTS", (True, 1, 3)),
        ("DELETE FROM ks.t WHERE a = 1 IF EXISTS", (False, NONE, NONE)),
        ("UPDATE ks.t SET b = 2 WHERE a = 1 IF b = 1", (False, NONE)),
        ("UPDATE ks.t SET b = 2 WHERE a = 1 IF b = null", (True, NONE)),
    )


def test_static_columns_have_their_own_conditions(accepted: Accepted) -> None:
    """EXISTS without clustering columns reads the static row; conditions on both fall back to it [lwt_test]."""
    steps(
        accepted,
        ROWS + "INSERT INTO ks.t (p, c, v) VALUES (1, 1, 1);",
        ("INSERT INTO ks.t (p, c, s) VALUES (1, 1, 10) IF NOT EXISTS", (False, 1, 1, NONE, 1)),
        ("UPDATE ks.t SET v = 10 WHERE p = 1 AND c = 1 IF v = 1", (True, 1)),
        ("UPDATE ks.t SET s = 2 WHERE p = 1 IF EXISTS", (False, 1, NONE, NONE, NONE)),
        ("UPDATE ks.t SET s = 2 WHERE p = 7 IF EXISTS", (False, NONE, NONE, NONE, NONE)),
        ("DELETE s FROM ks.t WHERE p = 1 AND c = 1 IF s = 1 AND v = 10", (False, NONE, 10)),
        ("INSERT INTO ks.t (p, s) VALUES (1, 1) IF NOT EXISTS", (True, 1, NONE, NONE, NONE)),
        ("INSERT INTO ks.t (p, s) VALUES (1, 2) IF NOT EXISTS", (False, 1, NONE, 1, NONE)),
        ("DELETE FROM ks.t WHERE p = 1 AND c = 1 IF EXISTS", (True, 1, 1, 1, 10)),
        ("UPDATE ks.t SET v = 10 WHERE p = 1 AND c = 1 IF EXISTS", (False, NONE, NONE, NONE, NONE)),
        ("UPDATE ks.t SET v = 10 WHERE p = 1 AND c = 1 IF s = 1 AND v = 1", (False, 1, NONE)),
        ("UPDATE ks.t SET s = 10 WHERE p = 1 AND c = 1 IF s = 1 AND v = 1", (False, 1, NONE)),
        ("DELETE v FROM ks.t WHERE p = 1 AND c = 1 IF s = 1", (True, 1)),
        ("UPDATE ks.t SET v = 10 WHERE p = 1 AND c = 1 IF s = 1", (True, 1)),
        ("UPDATE ks.t SET s = 10 WHERE p = 1 IF s = 1", (True, 1)),
        ("DELETE s FROM ks.t WHERE p = 1 IF EXISTS", (True, 1, NONE, 10, NONE)),
    )


NULLS = [
    ("b > 3", False), ("b <= 3", False), ("b = null", True), ("b != null", False), ("b != 1", True),
    ("b IN (1, null)", True),
    ("b IN (1)", False), ("b IN ()", False), ("b = 1", False),
]  # fmt: skip
VALUES = [
    ("b = 1", True), ("b != 1", False), ("b > 0", True), ("b >= 1", True), ("b < 1", False), ("b <= 1", True),
    ("b = null", False), ("b != null", True), ("b IN (1, 2)", True), ("b IN (4, null)", False),
    ("b = 1 AND b > 5", False),
]  # fmt: skip


@pytest.mark.parametrize(("value", "conditions"), [("null", NULLS), ("1", VALUES)])
def test_comparisons_with_null(accepted: Accepted, value: str, conditions: list[tuple[str, bool]]) -> None:
    """Null equals null and is in a list that has it; orders of null are false [lwt_test, null handling]."""
    row = f"INSERT INTO ks.t (a, b) VALUES (1, {value});"
    stored = None if value == "null" else int(value)
    steps(
        accepted,
        PLAIN + row,
        *(
            (f"UPDATE ks.t SET b = {value} WHERE a = 1 IF {condition}", (holds, stored))
            for condition, holds in conditions
        ),
    )


COLLECTIONS = f"""CREATE TYPE ks.u (x int, y int);
    CREATE TABLE ks.t (a int PRIMARY KEY, m map<int, int>, l list<int>, n set<int>, f frozen<list<int>>, u u, w text)
    {CDC};"""
HOLDS = {
    "m[1] = 10": True, "m[1] = null": False, "m[2] = null": True, "m[null] = null": True, "m = {1: 10}": True,
    "m >= {1: 10}": True, "m > {1: 10}": False, "l[0] = 5": True, "l[1] = 7": False, "l[9] = null": True,
    "l[-1] = null": True, "l = [5, 6]": True, "l IN ([1], [5, 6])": True, "n = {2, 1}": True, "n < {1, 3}": True,
    "n = {}": False, "n != null": True, "f = []": True, "f = null": False, "f[0] = null": True, "u = {x: 1}": True,
    "u = {x: 1, y: 2}": False, "w LIKE 'a%c'": True, "w LIKE 'a_c'": True, "w LIKE 'a'": False, r"w LIKE '\a%'": True,
    "w LIKE '%b%'": True, "w LIKE '%c%b%'": False, "w LIKE ''": False,
}  # fmt: skip


@pytest.mark.parametrize(("condition", "holds"), HOLDS.items())
def test_collections_are_compared(accepted: Accepted, condition: str, holds: bool) -> None:
    """Collections are compared whole, by element and in order; missing ones are null [lwt_test; like_matcher.cc]."""
    row = "INSERT INTO ks.t (a, m, l, n, f, u, w) VALUES (1, {1: 10}, [5, 6], {1, 2}, [], {x: 1}, 'abc');"
    outcomes = accepted(f"{COLLECTIONS} {row} UPDATE ks.t SET w = 'abc' WHERE a = 1 IF {condition};")
    assert (answer_rows(outcomes[-1])[0][0], bool(outcomes[-1].rows)) == (holds, holds)


def test_an_empty_collection_is_null(accepted: Accepted) -> None:
    """A collection that is not frozen is null if empty; lists are answered without their keys [lwt_test]."""
    steps(
        accepted,
        COLLECTIONS + "INSERT INTO ks.t (a) VALUES (1);",
        ("UPDATE ks.t SET l = [1] WHERE a = 1 IF l = []", (True, NONE)),
        ("UPDATE ks.t SET l = [2] WHERE a = 1 IF l IN ([], [1])", (True, [1])),
        ("UPDATE ks.t SET n = {} WHERE a = 1 IF n = {} AND n = null", (True, NONE)),
        ("UPDATE ks.t SET f = [1] WHERE a = 1 IF f = []", (False, NONE)),
        ("UPDATE ks.t SET f = [] WHERE a = 1 IF f = null", (True, NONE)),
        ("UPDATE ks.t SET f = [1] WHERE a = 1 IF f = []", (True, [])),
    )


def test_batches_are_applied_as_one(accepted: Accepted) -> None:
    """The answer has one row per statement; if one condition fails nothing is written [lwt_batch_test]."""
    insert = "INSERT INTO ks.t (p, c) VALUES (1, {}) {}"
    batch = "BEGIN BATCH {}; {} APPLY BATCH"
    steps(
        accepted,
        f"CREATE TABLE ks.t (p int, c int, i int, l list<int>, PRIMARY KEY (p, c)) {CDC};",
        (batch.format(insert.format(1, "IF NOT EXISTS"), ""), [(True, NONE, NONE, NONE, NONE)]),
        (
            batch.format(insert.format(1, "IF NOT EXISTS"), insert.format(2, "IF NOT EXISTS")),
            [(False, 1, 1, NONE, NONE), (False, NONE, NONE, NONE, NONE)],
        ),
        ("INSERT INTO ks.t (p, c, i, l) VALUES (1, 1, 1, [1, 2])", None),
        ("INSERT INTO ks.t (p, c, i, l) VALUES (1, 2, 2, [1, 2, 3, 4])", None),
        (
            "BEGIN BATCH UPDATE ks.t SET i = 3 WHERE p = 1 AND c = 1 IF i = 2;"
            " UPDATE ks.t SET l = l - [1] WHERE p = 1 AND c = 2 APPLY BATCH",
            [(False, 1, 1, 1), (False, 1, 2, 2)],
        ),
        (
            "BEGIN BATCH UPDATE ks.t SET i = 2 WHERE p = 1 AND c = 1 IF i = 1;"
            " UPDATE ks.t SET l = l - [2] WHERE p = 1 AND c = 2 APPLY BATCH",
            [(True, 1, 1, 1), (True, 1, 2, 2)],
        ),
        (
            "BEGIN BATCH DELETE l FROM ks.t WHERE p = 1 AND c = 3 IF EXISTS;"
            " UPDATE ks.t SET l = l - [3] WHERE p = 1 AND c = 2 APPLY BATCH",
            [(False, NONE, NONE, NONE, NONE), (False, 1, 2, 2, [1, 3, 4])],
        ),
        (
            "BEGIN BATCH UPDATE ks.t SET i = 7 WHERE p = 1 AND c = 1 IF EXISTS;"
            " UPDATE ks.t SET i = 7 WHERE p = 1 AND c IN (1, 2) APPLY BATCH",
            [(True, 1, 1, 2, [1, 2]), (True, 1, 1, 2, [1, 2])],
        ),
        # A row without a condition or a reading operation is not read, and answered as absent.
        (
            "BEGIN BATCH UPDATE ks.t SET i = 8 WHERE p = 1 AND c = 1 IF i = 7;"
            " UPDATE ks.t SET i = 8 WHERE p = 1 AND c = 2 APPLY BATCH",
            [(True, 1, 1, 7), (True, NONE, NONE, NONE)],
        ),
    )


def test_a_batch_reads_the_static_row_and_others(accepted: Accepted) -> None:
    """One statement selects no row and another one has static conditions [lwt_batch_test]."""
    steps(
        accepted,
        f"CREATE TABLE ks.t (p int, c int, s int static, PRIMARY KEY (p, c)) {CDC};"
        "INSERT INTO ks.t (p, s) VALUES (1, 1);",
        (
            "BEGIN BATCH INSERT INTO ks.t (p, c) VALUES (1, 1) IF NOT EXISTS;"
            " UPDATE ks.t SET s = 2 WHERE p = 1 IF s = 1 APPLY BATCH",
            [(True, NONE, NONE, NONE), (True, 1, NONE, 1)],
        ),
    )


def test_a_conditional_batch_has_one_timestamp(accepted: Accepted) -> None:
    """The statements' own timestamps are ignored (cas_request.cc, apply_updates), but their TTLs are not."""
    outcomes = accepted(
        ROWS
        + """BEGIN BATCH
            INSERT INTO ks.t (p, c, v) VALUES (1, 1, 1) IF NOT EXISTS;
            INSERT INTO ks.t (p, c, v) VALUES (1, 2, 2) USING TIMESTAMP 5;
        APPLY BATCH;
        UPDATE ks.t SET v = 2 WHERE p = 1 AND c = 1 IF v = 1;
        INSERT INTO ks.t (p, c, v) VALUES (2, 1, 1) IF NOT EXISTS USING TTL 9;"""
    )
    times = [{us_from_timeuuid(row["cdc$time"]) for row in outcome.rows} for outcome in outcomes[1:]]
    assert times == [{NOW_US}, {NOW_US + 1}, {NOW_US + 2}]
    assert outcomes[-1].rows[0]["cdc$ttl"] == 9


def test_images_of_a_transaction(accepted: Accepted) -> None:
    """They are those of any write: a pre-image of the row before it [cdc_with_lwt_test]."""
    outcomes = accepted(
        """CREATE TABLE ks.t (pk int, ck int, val int, PRIMARY KEY (pk, ck))
            WITH cdc = {'enabled': true, 'preimage': true};
        INSERT INTO ks.t (pk, ck, val) VALUES (1, 1, 111) IF NOT EXISTS;
        INSERT INTO ks.t (pk, ck, val) VALUES (1, 1, 222) IF NOT EXISTS;
        UPDATE ks.t SET val = 333 WHERE pk = 1 AND ck = 1 IF EXISTS;
        UPDATE ks.t SET val = 444 WHERE pk = 888 AND ck = 777 IF EXISTS;
        DELETE FROM ks.t WHERE pk = 1 AND ck = 1 IF EXISTS;
        DELETE FROM ks.t WHERE pk = 1 AND ck = 1 IF EXISTS;"""
    )
    images = [(row["cdc$operation"], row["val"]) for outcome in outcomes for row in outcome.rows]
    assert images == [(2, 111), (0, 111), (1, 333), (0, 333), (3, None)]


WRONG = {
    "INSERT INTO ks.t (p, c) VALUES (1, 1) IF NOT EXISTS USING TIMESTAMP 1": "Cannot provide custom timestamp",
    "BEGIN BATCH USING TIMESTAMP 1 INSERT INTO ks.t (p, c) VALUES (1, 1) IF NOT EXISTS APPLY BATCH":
        "Cannot provide custom timestamp for conditional BATCH",
    "UPDATE ks.t SET v = 1 WHERE p IN (1, 2) AND c = 1 IF v = 1": "IN on the partition key is not supported",
    "UPDATE ks.t SET v = 1 WHERE p = 1 AND c IN (1, 2) IF v = 1": "IN on the clustering key columns is not supported",
    "UPDATE ks.t SET v = 1 WHERE p = 1 IF s = 1": "UPDATE of columns names whole rows",
    "UPDATE ks.t SET s = 1 WHERE p = 1 IF v = 1": "UPDATE of columns names whole rows",
    "UPDATE ks.t SET s = 1 WHERE p = 1 AND c = 1 IF s = 1": "UPDATE of static columns alone",
    "UPDATE ks.t SET s = 1 WHERE p = 1 AND c = 1 IF EXISTS": "UPDATE of static columns alone",
    "UPDATE ks.t SET v = 1 WHERE p = 1 AND c = 1 IF p = 1": "PRIMARY KEY column 'p' cannot have IF conditions",
    "UPDATE ks.t SET v = 1 WHERE p = 1 AND c = 1 IF x = 1": "unknown column x",
    "UPDATE ks.t SET v = 1 WHERE p = 1 AND c = 1 IF v > null": "Invalid comparison with null",
    "UPDATE ks.t SET v = 1 WHERE p = 1 AND c = 1 IF v = 'x'": "IF v: 'x' is no value of type int",
    "UPDATE ks.t SET v = 1 WHERE p = 1 AND c = 1 IF v.a = 1": "no conditions on fields",
    "UPDATE ks.t SET v = 1 WHERE p = 1 AND c = 1 IF v[0] = 1": "has no elements",
    "UPDATE ks.t SET v = 1 WHERE p = 1 AND c = 1 IF v LIKE 'x'": "is no value of type int",
    "UPDATE ks.t SET v = 'x' WHERE p = 1 AND c = 1 IF v = 1": "'x' is no value of type int",
    "DELETE FROM ks.t WHERE p = 1 IF EXISTS": "in order to delete non static columns",
    "DELETE FROM ks.t WHERE p = 1 AND c > 0 IF v = 10": "in order to delete non static columns",
    "DELETE s FROM ks.t WHERE p = 1 IF v = 1": "in order to use IF condition on non static columns",
    "BEGIN BATCH INSERT INTO ks.t (p, s) VALUES (1, 1) IF NOT EXISTS; DELETE FROM ks.t WHERE p = 2 APPLY BATCH":
        "cannot span multiple partitions",
    "BEGIN BATCH INSERT INTO ks.t (p, c) VALUES (1, 1) IF NOT EXISTS; INSERT INTO ks.o (p) VALUES (1) APPLY BATCH":
        "cannot span multiple tables",
    "UPDATE ks.n SET x = x + 1 WHERE p = 1 IF EXISTS": "Conditional updates are not supported on counter tables",
}  # fmt: skip


@pytest.mark.parametrize(("statement", "why"), WRONG.items())
def test_unsupported_conditions(rehearsed: Rehearse, statement: str, why: str) -> None:
    """The statement is invalid whether its condition holds or not, and changes nothing [lwt_test, sanity checks]."""
    others = "CREATE TABLE ks.o (p int PRIMARY KEY); CREATE TABLE ks.n (p int PRIMARY KEY, x counter);"
    outcome = rehearsed(f"{ROWS} {others} {statement};").outcomes[-1]
    assert outcome.became == "wrong"
    assert why in str(outcome.error)


def test_a_statement_that_is_not_applied_reads_no_elements(accepted: Accepted) -> None:
    """An index outside the list is no error if the condition fails, since nothing is written then."""
    outcomes = accepted(COLLECTIONS + "UPDATE ks.t SET l[5] = 1 WHERE a = 1 IF w = 'x';")
    assert outcomes[-1].became == "not applied"


def test_the_acceptance_rule_judges_applied_statements(rehearsed: Rehearse) -> None:
    """A transaction has the clock's time, so before the first generation it is refused if its condition holds."""
    script = (
        ROWS
        + "INSERT INTO ks.t (p, c) VALUES (1, 1) IF NOT EXISTS; UPDATE ks.t SET v = 1 WHERE p = 1 AND c = 1 IF v = 1;"
    )
    applied, not_applied = rehearsed(script, at="2019-12-31T23:59:59Z").outcomes[1:]
    assert isinstance(applied.error, WriteRefused)
    assert not_applied.became == "not applied"
    assert [outcome.became for outcome in rehearsed(script, at=SINCE).outcomes[1:]] == ["done", "not applied"]


def test_a_retried_entry_meets_the_acceptance_rule(tmp_path: Path) -> None:
    """Its mutation has its ballot's time: within its generation it is logged, after a switch refused."""
    # It equals a write without IF at that time (service/storage_proxy.cc, learn_decision; cdc/metadata.cc).
    proposed = parse_time_us("2020-11-26T12:00:00Z")
    switched = parse_time_ms("2020-11-26T12:01:00Z")
    home = home_with_generations(tmp_path, {ID: parse_time_ms(SINCE), OTHER_ID: switched})
    entry = f"{ROWS} UPDATE ks.t USING TIMESTAMP {proposed} SET v = 9 WHERE p = 1 AND c = 1;"

    def learn(at: str) -> StatementOutcome:
        result = dry_run_script(entry, Lake(home / "lake"), Clock(parse_time_us(at)), Settings())
        assert [table.replayed == table.base for table in result.tables] == [True]
        return result.outcomes[-1]

    assert learn("2020-11-26T12:00:30Z").became == "done"
    refused = learn("2020-11-26T12:02:00Z")
    assert isinstance(refused.error, WriteRefused)
    assert refused.rows == []
