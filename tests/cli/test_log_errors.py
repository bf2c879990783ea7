"""Invalid scripts: syntax errors, wrong statements, and refused writes; nothing is ever written."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import Cli, run
from support.files.bad_input import Case, argument, assert_one_line, assert_refused, given, listing

from cdc_platform.clock import Microseconds

NOW = "2026-02-02T00:00:00Z"
NOW_US = Microseconds(1_769_990_400_000_000)
CALL = ("--clock", NOW, "cql", "run", "{dir}/script.cql")
TABLE = """CREATE TYPE ks.ut (a int, b text);
CREATE TABLE ks.t (pk int, ck1 int, ck2 int, v int, s int static, m map<int, text>, l list<int>, n set<int>, u ut,
    f frozen<map<int, int>>, PRIMARY KEY (pk, ck1, ck2)) WITH cdc = {'enabled': true};
CREATE TABLE ks.plain (pk int PRIMARY KEY, v int);
"""
WHERE = "WHERE pk = 0 AND ck1 = 0 AND ck2 = 0"


def script(name: str, says: str, text: str | bytes) -> Case:
    """Return a case of a script with this text alone."""
    return Case(f"script: {name}", CALL, says, {"script.cql": text})


def syntax(name: str, text: str, *says: str) -> Case:
    """Return a case of a script that does not parse; each of `says` is one part of the message."""
    return script(f"syntax, {name}", "; expected ".join(says), text)


def on_table(name: str, statement: str, says: str) -> Case:
    """Return a case of a wrong statement after those that create the tables."""
    return script(name, says, f"{TABLE}{statement};")


def invalid_value(name: str, value: str, kind: str, says: str) -> Case:
    """Return a case of a value that is invalid for a column's type."""
    text = f"CREATE TABLE ks.t (pk int PRIMARY KEY, v {kind}); INSERT INTO ks.t (pk, v) VALUES (0, {value});"
    return script(f"value, {name}", says, text)


CASES = [
    argument("no such file", "nowhere.cql", "cql", "run", "nowhere.cql"),
    argument("no file", "Missing argument", "cql", "run"),
    script("no UTF-8", "is no text: byte 3 is not UTF-8", b"-- \xff"),
    # Syntax errors: line, column, and the expected token
    syntax(
        "unknown statement", "SELEC * FROM ks.t;", "line 1, column 1: found 'SELEC'", "the end of the script, ALTER"
    ),
    syntax("second line", "SELECT 1;\n  UPDATE t SET;", "line 2, column 15: found ';'", "a name"),
    syntax("no values", "INSERT INTO ks.t (a)", "line 1, column 21: the script ends", "VALUES"),
    syntax("no where", "DELETE FROM ks.t;", "line 1, column 17: found ';'", "USING or WHERE"),
    syntax("open text", "UPDATE t SET a = 'x", 'line 1, column 18: the text that begins with "\'x" has no end'),
    on_table("bind marker", "INSERT INTO ks.plain (pk) VALUES (?)", "? has no value; give it one with --values FILE"),
    syntax("trailing comma", "INSERT INTO ks.t (a) VALUES (1,);", "line 1, column 32: found ')'", "a name, a value"),
    syntax("open batch", "BEGIN BATCH UPDATE t SET a = 1 WHERE b = 1;", "the script ends", "APPLY"),
    syntax("two statements", "USE ks USE other;", "line 1, column 8: found 'USE'", "the end of the script or ';'"),
    syntax("reserved word", "CREATE TABLE ks.table (a int);", "column 17: table is a reserved word"),
    syntax("half a byte", "INSERT INTO t (a) VALUES (0xabc);", "0xabc has 3 hexadecimal digits"),
    syntax("said twice", "UPDATE t USING TTL 1 AND TTL 2 SET a = 1 WHERE b = 1;", "USING says TTL AND TTL"),
    syntax("no tuple", "DELETE FROM t WHERE (a, b) > 1;", "(a, b) is compared with a tuple"),
    # Keyspaces, types, tables
    script("no keyspace", "t has no keyspace and none is in use", "CREATE TABLE t (a int PRIMARY KEY);"),
    script("unknown keyspace", "unknown keyspace nowhere", "USE nowhere;"),
    script("keyspace twice", "keyspace ks exists already", "CREATE KEYSPACE ks; CREATE KEYSPACE ks;"),
    script("unknown type", "unknown type integer", "CREATE TABLE ks.t (a integer PRIMARY KEY);"),
    script("type twice", "type ks.a exists already", "CREATE TYPE ks.a (b int); CREATE TYPE ks.a (b int);"),
    script("field twice", "two fields b", "CREATE TYPE ks.a (b int, b text);"),
    script("no primary key", "0 primary keys", "CREATE TABLE ks.t (a int);"),
    script("two primary keys", "2 primary keys", "CREATE TABLE ks.t (a int PRIMARY KEY, b int, PRIMARY KEY (b));"),
    script(
        "unknown key column",
        "column b of the primary key is not defined",
        "CREATE TABLE ks.t (a int, PRIMARY KEY (b));",
    ),
    script("column twice", "column a is defined 2 times", "CREATE TABLE ks.t (a int PRIMARY KEY, a text);"),
    script("melted key", "has to be frozen<list<int>>", "CREATE TABLE ks.t (a list<int> PRIMARY KEY);"),
    script("duration key", "cannot be of type duration", "CREATE TABLE ks.t (a duration PRIMARY KEY);"),
    script(
        "melted element",
        "inside of list<> has to be frozen",
        "CREATE TABLE ks.t (a int PRIMARY KEY, b list<set<int>>);",
    ),
    script("frozen scalar", "int cannot be frozen", "CREATE TABLE ks.t (a int PRIMARY KEY, b frozen<int>);"),
    script("half a map", "map takes 2 type(s), not 1", "CREATE TABLE ks.t (a int PRIMARY KEY, b map<int>);"),
    script("static without rows", "no clustering columns", "CREATE TABLE ks.t (a int PRIMARY KEY, b int static);"),
    script(
        "order of no key",
        "must name the clustering columns (b)",
        "CREATE TABLE ks.t (a int, b int, PRIMARY KEY (a, b)) WITH CLUSTERING ORDER BY (a DESC);",
    ),
    script(
        "order of a later key alone",
        "must name the clustering columns (b, c), or the first of them",
        "CREATE TABLE ks.t (a int, b int, c int, PRIMARY KEY (a, b, c)) WITH CLUSTERING ORDER BY (c DESC);",
    ),
    script(
        "order with a column twice",
        "names (b, b); it must name the clustering columns (b)",
        "CREATE TABLE ks.t (a int, b int, PRIMARY KEY (a, b)) WITH CLUSTERING ORDER BY (b DESC, b ASC);",
    ),
    script(
        "order twice",
        "CLUSTERING ORDER BY is given 2 times",
        "CREATE TABLE ks.t (a int, b int, PRIMARY KEY (a, b)) WITH CLUSTERING ORDER BY (b DESC)"
        " AND CLUSTERING ORDER BY (b DESC);",
    ),
    script(
        "order without a direction",
        "expected ASC or DESC",
        "CREATE TABLE ks.t (a int, b int, PRIMARY KEY (a, b)) WITH CLUSTERING ORDER BY (b);",
    ),
    script(
        "counters",
        "Cannot create CDC log for table ks.t. Counter support not implemented",
        "CREATE TABLE ks.t (a int PRIMARY KEY, b counter) WITH cdc = {'enabled': true};",
    ),
    script(
        "counters later",
        "Cannot create CDC log for table ks.t. Counter support not implemented",
        "CREATE TABLE ks.t (a int PRIMARY KEY, b counter); ALTER TABLE ks.t WITH cdc = {'enabled': true};",
    ),
    script(
        "nested log",
        "Cannot create CDC log for table ks.t_scylla_cdc_log: it is named like a log",
        "CREATE TABLE ks.t_scylla_cdc_log (a int PRIMARY KEY) WITH cdc = {'enabled': true};",
    ),
    script(
        "named like a log",
        "because a table of name ks.t_scylla_cdc_log already exists",
        "CREATE TABLE ks.t_scylla_cdc_log (a int PRIMARY KEY);"
        "CREATE TABLE ks.t (a int PRIMARY KEY) WITH cdc = {'enabled': true};",
    ),
    script(
        "CDC option",
        "unknown CDC option 'enable'",
        "CREATE TABLE ks.t (a int PRIMARY KEY) WITH cdc = {'enable': true};",
    ),
    script(
        "CDC value",
        "'yes' is no value of CDC option 'enabled'",
        "CREATE TABLE ks.t (a int PRIMARY KEY) WITH cdc = {'enabled': 'yes'};",
    ),
    script("CDC TTL", "CDC option 'ttl' is -1", "CREATE TABLE ks.t (a int PRIMARY KEY) WITH cdc = {'ttl': -1};"),
    script(
        "large CDC TTL",
        "CDC option 'ttl' is 2147483648, which is too large",
        "CREATE TABLE ks.t (a int PRIMARY KEY) WITH cdc = {'ttl': 2147483648};",
    ),
    script("no CDC map", "options are a map", "CREATE TABLE ks.t (a int PRIMARY KEY) WITH cdc = true;"),
    on_table("table twice", "CREATE TABLE ks.t (a int PRIMARY KEY)", "table ks.t exists already"),
    on_table("alter the log", "ALTER TABLE ks.t_scylla_cdc_log ADD x int", "is a CDC log"),
    on_table("column there already", "ALTER TABLE ks.t ADD v int", "has a column v already"),
    on_table("drop a key", "ALTER TABLE ks.t DROP ck1", "cannot be dropped"),
    on_table("drop what is not there", "ALTER TABLE ks.t DROP x", "unknown column x"),
    on_table("added too soon", "ALTER TABLE ks.t DROP v; ALTER TABLE ks.t ADD v int", "retry after 5 seconds"),
    on_table("type in use", "DROP TYPE ks.ut", "type ks.ut is used by ks.t"),
    on_table("drop what is no table", "DROP TABLE ks.x", "unknown table ks.x; there is t, plain"),
    # Writes
    on_table("unknown table", "INSERT INTO ks.x (pk) VALUES (0)", "statement 4 (line 5): unknown table ks.x"),
    on_table("write to the log", "INSERT INTO ks.t_scylla_cdc_log (pk) VALUES (0)", "is a CDC log"),
    on_table("unknown column", f"UPDATE ks.t SET x = 0 {WHERE}", "unknown column x of ks.t; there is pk, ck1"),
    on_table("unknown key", "DELETE FROM ks.t WHERE pk = 0 AND x = 0", "unknown column x"),
    on_table("no partition key", "DELETE FROM ks.t WHERE ck1 = 0", "WHERE lacks pk of the partition key"),
    on_table("null key", "DELETE FROM ks.t WHERE pk = null", "cannot be null"),
    on_table("key twice", "DELETE FROM ks.t WHERE pk = 0 AND pk = 1", "pk is given more than once"),
    on_table("range of partitions", "DELETE FROM ks.t WHERE pk > 0", "pk is in the partition key"),
    on_table("tokens", "DELETE FROM ks.t WHERE token(pk) > 0", "TOKEN of pk cannot name the rows"),
    on_table("gap in the key", "DELETE FROM ks.t WHERE pk = 0 AND ck2 = 0", "ck1 before it is not given"),
    on_table(
        "bound behind a gap", "DELETE FROM ks.t WHERE pk = 0 AND ck2 > 0", "bound the clustering column that comes next"
    ),
    on_table("two bounds", "DELETE FROM ks.t WHERE pk = 0 AND ck1 > 0 AND ck1 > 1", "two bounds on one side"),
    on_table("rows by value", "DELETE FROM ks.t WHERE pk = 0 AND v = 0", "v of ks.t is no part of the primary key"),
    on_table("update a range", "UPDATE ks.t SET v = 0 WHERE pk = 0 AND ck1 > 0", "names whole rows of ks.t"),
    on_table("update a partition", "UPDATE ks.t SET v = 0 WHERE pk = 0", "names whole rows of ks.t"),
    on_table("static by row", f"UPDATE ks.t SET s = 0 {WHERE}", "UPDATE of static columns alone names a partition"),
    on_table("update a key", "UPDATE ks.t SET ck1 = 1 WHERE pk = 0", "ck1 is in the primary key"),
    on_table(
        "insert half a key", "INSERT INTO ks.t (pk, ck1, v) VALUES (0, 0, 0)", "INSERT lacks ck2 of the clustering key"
    ),
    on_table("insert no key", "INSERT INTO ks.t (v) VALUES (0)", "INSERT lacks pk of the partition key"),
    on_table("too few values", "INSERT INTO ks.plain (pk, v) VALUES (0)", "names 2 columns and gives 1 values"),
    on_table("named twice", "INSERT INTO ks.plain (pk, pk) VALUES (0, 0)", "names column pk 2 times"),
    on_table("set twice", f"UPDATE ks.t SET v = 0, v = 1 {WHERE}", "Multiple incompatible setting of column v"),
    on_table("set from another", f"UPDATE ks.t SET m = n + {{1}} {WHERE}", "is allowed with m itself alone"),
    on_table("add to a number", f"UPDATE ks.t SET v = v + 1 {WHERE}", "v of type int takes no +"),
    on_table("add to what is frozen", f"UPDATE ks.t SET f = f + {{1: 1}} {WHERE}", "takes no +"),
    on_table("element of what is frozen", f"UPDATE ks.t SET f[1] = 1 {WHERE}", "f is frozen"),
    on_table("element of a set", f"UPDATE ks.t SET n[1] = 1 {WHERE}", "n is a set"),
    on_table("element of a number", f"UPDATE ks.t SET v[1] = 1 {WHERE}", "v of type int has no elements"),
    on_table("unknown field", f"UPDATE ks.t SET u.c = 1 {WHERE}", "has no field c; there is a, b"),
    on_table("field of a number", f"UPDATE ks.t SET v.a = 1 {WHERE}", "v of type int has no fields"),
    on_table(
        "index outside", f"UPDATE ks.t SET l[0] = 1 {WHERE}", "index 0 is outside of the list, which has 0 elements"
    ),
    on_table("prepend to a set", f"UPDATE ks.t SET n = {{1}} + n {WHERE}", "n is no list"),
    on_table("null element", f"UPDATE ks.t SET m = {{1: null}} {WHERE}", "null is no element"),
    on_table("add null", f"UPDATE ks.t SET m = m + null {WHERE}", "null cannot be added"),
    on_table("remove pairs", f"UPDATE ks.t SET m = m - {{1: 'a'}} {WHERE}", "a map is no value of type set<int>"),
    on_table("condition", f"UPDATE ks.t SET v = 0 {WHERE} IF v > null", "Invalid comparison with null"),
    on_table("JSON", "INSERT INTO ks.plain JSON '{}'", "INSERT lacks pk of the partition key of ks.plain"),
    on_table("negative TTL", "INSERT INTO ks.plain (pk) VALUES (0) USING TTL -1", "USING TTL is -1"),
    on_table(
        "large TTL", "INSERT INTO ks.plain (pk) VALUES (0) USING TTL 630720001", "from 0 (no expiry) to 630720000"
    ),
    on_table("TTL of a DELETE", f"DELETE v FROM ks.t USING TTL 1 {WHERE}", "DELETE takes no TTL"),
    on_table(
        "TTL of a batch", "BEGIN BATCH USING TTL 1 DELETE FROM ks.t WHERE pk = 0 APPLY BATCH", "a batch takes no TTL"
    ),
    on_table(
        "two timestamps",
        "BEGIN BATCH USING TIMESTAMP 1 DELETE FROM ks.t USING TIMESTAMP 2 WHERE pk = 0 APPLY BATCH",
        "given to the batch and to a statement in it",
    ),
    on_table("counter batch", "BEGIN COUNTER BATCH DELETE FROM ks.t WHERE pk = 0 APPLY BATCH", "COUNTER BATCH is not"),
    on_table("timestamp of text", "DELETE FROM ks.t USING TIMESTAMP 'now' WHERE pk = 0", "USING TIMESTAMP: 'now'"),
    on_table(
        "timestamp out of range",
        "DELETE FROM ks.t USING TIMESTAMP 9223372036854775808 WHERE pk = 0",
        "an integer from -9223372036854775808",
    ),
    # Values
    invalid_value(
        "text as int", "'a'", "int", "'a' is no value of type int; write an integer from -2147483648 to 2147483647"
    ),
    invalid_value("tinyint", "128", "tinyint", "an integer from -128 to 127"),
    invalid_value("int", "2147483648", "int", "2147483648 for type int"),
    invalid_value("float as int", "1.5", "int", "1.5 is no value of type int"),
    invalid_value("int as text", "1", "text", "write a text, as 'a'"),
    invalid_value("ascii", "'é'", "ascii", "a text of ASCII"),
    invalid_value("boolean", "'true'", "boolean", "write true or false"),
    invalid_value("uuid in quotes", "'0dd381f0-2fea-11eb-af55-000000000001'", "uuid", "without quotes"),
    invalid_value("timeuuid", "0dd381f0-2fea-41eb-af55-000000000001", "timeuuid", "a UUID of version 1"),
    invalid_value("blob", "'0x01'", "blob", "write bytes as 0x0102"),
    invalid_value("inet", "'300.0.0.1'", "inet", "'300.0.0.1' is no address"),
    invalid_value("date", "'2026-02-30'", "date", "there is no day 02-30"),
    invalid_value("time", "'25:00:00'", "time", "is no time of day"),
    invalid_value("timestamp", "'yesterday'", "timestamp", "is no timestamp"),
    invalid_value("duration", "1", "duration", "a duration as 1d12h30m"),
    invalid_value("float", "1e39", "float", "1e39 for type float"),
    invalid_value("list as set", "[1]", "set<int>", "a list is no value of type set<int>; write a set"),
    invalid_value("tuple", "(1, 2, 3)", "tuple<int, int>", "a tuple of 3 values"),
    invalid_value("function", "today()", "date", "unknown function today"),
    invalid_value("function of another type", "now()", "int", "now() gives a timeuuid"),
    script(
        "empty key",
        "the partition key of ks.t is empty",
        "CREATE TABLE ks.t (pk text PRIMARY KEY); INSERT INTO ks.t (pk) VALUES ('');",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_bad_script_is_refused(case: Case, seeded_home: Path, tmp_path: Path):
    """One line with the error, exit code 2, and no write."""
    assert_refused(case, seeded_home, tmp_path)


def refused(statement: str) -> dict[str, str]:
    """Return a script whose second statement is refused, with another one after it."""
    return {
        "script.cql": f"""CREATE TABLE ks.t (pk int PRIMARY KEY, v int) WITH cdc = {{'enabled': true}};
        {statement};
        INSERT INTO ks.t (pk, v) VALUES (2, 2);"""
    }


REFUSED = [
    Case(
        "from the future",
        CALL,
        "is from the future",
        refused(f"INSERT INTO ks.t (pk, v) VALUES (1, 1) USING TIMESTAMP {NOW_US + 5_000_000}"),
    ),
    Case("from the past", CALL, "is from the past", refused("INSERT INTO ks.t (pk) VALUES (1) USING TIMESTAMP 1")),
    Case(
        "one write of a batch",
        CALL,
        "is from the future",
        refused(f"""BEGIN BATCH INSERT INTO ks.t (pk, v) VALUES (1, 1);
             INSERT INTO ks.t (pk) VALUES (3) USING TIMESTAMP {NOW_US + 60_000_000} APPLY BATCH"""),
    ),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_a_refused_write_leaves_nothing_and_stops_nothing(case: Case, cli: Cli, seeded_home: Path, tmp_path: Path):
    """The whole write is refused with the rule's reason and exit code 1; the next statement is accepted."""
    before = listing(seeded_home)
    answer = cli(*given(case, tmp_path), "--json")
    assert (answer.exit_code, answer.stderr) == (1, "")
    _, bad, good = answer.json["statements"]
    assert (bad["accepted"], bad["rows"]) == (False, [])
    assert case.says in bad["reason"]
    assert (good["accepted"], good["reason"], len(good["rows"])) == (True, None, 1)
    assert answer.json["tables"] == {
        "ks.t": {"base": [{"pk": 2, "v": 2}], "replayed": [{"pk": 2, "v": 2}], "missing": []}
    }
    assert listing(seeded_home) == before


def test_a_home_without_generations_has_no_stream(tmp_path: Path):
    """A write to a table with CDC is refused with the words that people search for; others are accepted."""
    (tmp_path / "script.cql").write_text(
        """CREATE TABLE ks.t (pk int PRIMARY KEY) WITH cdc = {'enabled': true};
        CREATE TABLE ks.plain (pk int PRIMARY KEY);
        INSERT INTO ks.t (pk) VALUES (0);
        INSERT INTO ks.plain (pk) VALUES (0);"""
    )
    (tmp_path / "home").mkdir()
    answer = run("--home", tmp_path / "home", "cql", "run", tmp_path / "script.cql", "--json")
    assert answer.exit_code == 1
    assert [statement["accepted"] for statement in answer.json["statements"]] == [True, True, False, True]
    assert "could not find any CDC stream" in answer.json["statements"][2]["reason"]


def test_a_wrong_statement_is_an_outcome_in_the_document(cli: Cli, tmp_path: Path):
    """With --json all statements are listed, the wrong one with its reason; exit code and message are unchanged."""
    (tmp_path / "script.cql").write_text(
        """CREATE TABLE ks.t (pk int PRIMARY KEY);
        INSERT INTO ks.t (x) VALUES (0);
        INSERT INTO ks.t (pk) VALUES (0);"""
    )
    answer = cli("--clock", NOW, "cql", "run", tmp_path / "script.cql", "--json")
    assert answer.exit_code == 2
    assert_one_line(answer.stderr, "statement 2 (line 2): unknown column x of ks.t; there is pk")
    assert [statement["accepted"] for statement in answer.json["statements"]] == [True, False, True]
    assert answer.json["statements"][1]["reason"] == "unknown column x of ks.t; there is pk"
    assert answer.json["tables"] == {"ks.t": {"base": [{"pk": 0}], "replayed": None, "missing": []}}
