"""The CQL grammar: accepted statements, and the positions of errors."""

from __future__ import annotations

import time
from contextlib import suppress
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_platform.cql import ast as s
from cdc_platform.cql import parse_statements, quote_name
from cdc_platform.cql.names import RESERVED_WORDS
from cdc_platform.errors import InputError


def parse_one(text: str) -> s.StatementBody:
    """Return the body of the only statement of a script."""
    (statement,) = parse_statements(text)
    return statement.body


def integer(number: int) -> s.Constant:
    """Return an integer constant as the parser does."""
    return s.Constant("integer", number, str(number))


def test_statements_end_with_semicolons() -> None:
    """A statement's text is unchanged, without comments around it; empty statements are ignored."""
    script = """-- a comment; with a semicolon
    ;; USE a ; /* of
    lines; */ USE "B;c"; // and another
    UPDATE t SET x = ';' -- it's; here
       WHERE y = 1"""
    assert [(statement.line, statement.text) for statement in parse_statements(script)] == [
        (2, "USE a"),
        (3, 'USE "B;c"'),
        (4, "UPDATE t SET x = ';' -- it's; here\n       WHERE y = 1"),
    ]


@pytest.mark.parametrize("text", ["", " \n", "-- nothing", ";;", "/* * */"])
def test_a_script_without_statements(text: str) -> None:
    """A script without statements is valid."""
    assert parse_statements(text) == []


def test_reads_are_skipped_as_a_whole() -> None:
    """SELECT and DESCRIBE end at the first semicolon outside of texts, names and comments."""
    script = """SELECT "a;b", count(*) FROM t WHERE x = 'a;''b' -- don't;
        ALLOW FILTERING; DESCRIBE TABLE ks.t; desc t; select json * from t"""
    assert [statement.body for statement in parse_statements(script)] == [s.ReadOnlyStatement()] * 4


def test_names_are_in_lower_case_unless_quoted() -> None:
    """Quotes retain the case and permit reserved words; two quotes stand for one."""
    body = parse_one('INSERT INTO Ks.T (A, "A", "select", "a""b") VALUES (1, 2, 3, 4)')
    assert isinstance(body, s.Insert)
    assert body.table == ("ks", "t")
    assert body.columns == ("a", "A", "select", 'a"b')


@pytest.mark.parametrize(
    "name",
    ["key", "type", "ttl", "timestamp", "values", "list", "map", "int", "text", "static", "json", "batch_id",
     "unlogged_at", "infinity_", "nan1", "true_", "exists", "writetime", "counter", "date", "c0ffee", "p1d_"],
)  # fmt: skip
def test_words_that_are_not_reserved_are_names(name: str) -> None:
    """A word is a name, even if it is a keyword in another context."""
    table, row = f"CREATE TABLE {name} ({name} int PRIMARY KEY)", f"UPDATE {name} SET {name} = 1 WHERE {name} = 2"
    created, updated = parse_one(table), parse_one(row)
    assert isinstance(created, s.CreateTable)
    assert isinstance(updated, s.Update)
    assert (created.columns[0].name, updated.assignments[0].target.column) == (name, name)


@pytest.mark.parametrize(
    ("written", "kind", "value"),
    [
        ("'it''s'", "text", "it's"),
        ("$$it's$$", "text", "it's"),
        ("-17", "integer", -17),
        ("1.50", "float", 1.5),
        ("1e3", "float", 1000),
        ("-1.5E-2", "float", Decimal("-0.015")),
        ("TRUE", "boolean", True),
        ("null", "null", None),
        ("0xCAFE", "blob", b"\xca\xfe"),
        ("0x", "blob", b""),
        ("-Infinity", "float", float("-inf")),
        ("1h30m", "duration", (0, 0, 5_400_000_000_000)),
        ("-2w", "duration", (0, -14, 0)),
        ("P1Y2M3DT4H", "duration", (14, 3, 14_400_000_000_000)),
        ("PT36H", "duration", (0, 0, 129_600_000_000_000)),
    ],
)
def test_constants(written: str, kind: s.ConstantKind, value: object) -> None:
    """The spelling of a constant decides its kind."""
    body = parse_one(f"INSERT INTO t (a) VALUES ({written})")
    assert isinstance(body, s.Insert)
    assert body.values == (s.Constant(kind, value, written),)


def test_uuids_are_no_subtractions() -> None:
    """A UUID may start with a digit or a letter."""
    for text in ("550e8400-e29b-41d4-a716-446655440000", "cafe8400-e29b-41d4-a716-446655440000"):
        body = parse_one(f"INSERT INTO t (a) VALUES ({text})")
        assert isinstance(body, s.Insert)
        assert body.values == (s.Constant("uuid", UUID(text), text),)


def test_literals_of_collections() -> None:
    """The content of braces decides whether they are a set, a map or fields."""
    body = parse_one("INSERT INTO t (a) VALUES ([1], {1}, {1: 2}, {a: 1, B: {}}, (1, 2), f(1, g()))")
    assert isinstance(body, s.Insert)
    number = integer(1)
    assert body.values == (
        s.ListLiteral((number,)),
        s.SetLiteral((number,)),
        s.MapLiteral(((number, integer(2)),)),
        s.UserTypeLiteral((("a", number), ("b", s.SetLiteral(())))),
        s.TupleLiteral((number, integer(2))),
        s.FunctionCall("f", (number, s.FunctionCall("g", ()))),
    )


@pytest.mark.parametrize(
    ("written", "assignment"),
    [
        ("a = 1", s.Assignment(s.WholeColumn("a"), integer(1))),
        ("a = -1", s.Assignment(s.WholeColumn("a"), integer(-1))),
        ("a = b + 1", s.Assignment(s.WholeColumn("a"), integer(1), "+", "b")),
        ("a = a -1", s.Assignment(s.WholeColumn("a"), integer(1), "-", "a")),
        ("a=a- -1", s.Assignment(s.WholeColumn("a"), integer(-1), "-", "a")),
        ("a = 1 + a", s.Assignment(s.WholeColumn("a"), integer(1), "prepend", "a")),
        ("a += 1", s.Assignment(s.WholeColumn("a"), integer(1), "+", "a")),
        ("a -= 1", s.Assignment(s.WholeColumn("a"), integer(1), "-", "a")),
        ("a[1] = 2", s.Assignment(s.ColumnElement("a", integer(1)), integer(2))),
        ("a.b = 2", s.Assignment(s.ColumnField("a", "b"), integer(2))),
    ],
)
def test_assignments(written: str, assignment: s.Assignment) -> None:
    """Whole columns, elements and fields; addition, subtraction and prepending."""
    body = parse_one(f"UPDATE t SET {written} WHERE k = 1")
    assert isinstance(body, s.Update)
    assert body.assignments == (assignment,)


def test_restrictions() -> None:
    """Comparisons of one and several columns, choices, and IF."""
    body = parse_one(
        "DELETE a, b[1], c.d FROM t USING TIMESTAMP 5 WHERE k IN (1, 2) AND (x, y) >= (3, 4) AND z=1 IF EXISTS"
    )
    assert isinstance(body, s.Delete)
    assert body.targets == (s.WholeColumn("a"), s.ColumnElement("b", integer(1)), s.ColumnField("c", "d"))
    assert body.where == (
        s.Relation(("k",), "IN", (integer(1), integer(2))),
        s.Relation(("x", "y"), ">=", (integer(3), integer(4))),
        s.Relation(("z",), "=", (integer(1),)),
    )
    assert (body.using.timestamp, body.condition) == (integer(5), "exists")


@pytest.mark.parametrize("kind", ["", "UNLOGGED", "LOGGED", "COUNTER"])
@pytest.mark.parametrize("end", ["", ";"])
def test_batches(kind: str, end: str) -> None:
    """A batch is one statement, with and without inner semicolons."""
    body = parse_one(
        f"BEGIN {kind} BATCH USING TIMESTAMP 7{end} DELETE FROM t WHERE a = 1{end}"
        " DELETE FROM t WHERE a = 2; APPLY BATCH;"
    )
    assert isinstance(body, s.Batch)
    assert (body.kind, len(body.writes), body.using.timestamp) == (kind.lower() or "logged", 2, integer(7))


def test_tables() -> None:
    """Keys within and after the columns, nested types, and every kind of option."""
    body = parse_one(
        """CREATE TABLE IF NOT EXISTS ks.t (a int, b map<int, frozen<list<ks2.ut>>>, c set<text> static,
            PRIMARY KEY ((a, b), c, d)) WITH CLUSTERING ORDER BY (c DESC, d ASC) AND cdc = {'enabled': true}
            AND comment = 'x' AND gc_grace_seconds = 0"""
    )
    assert isinstance(body, s.CreateTable)
    assert body.if_not_exists
    inner = s.TypeName(s.QualifiedName("ks2", "ut"))
    frozen = s.TypeName(s.QualifiedName(None, "frozen"), (s.TypeName(s.QualifiedName(None, "list"), (inner,)),))
    assert body.columns[1].type == s.TypeName(
        s.QualifiedName(None, "map"), (s.TypeName(s.QualifiedName(None, "int")), frozen)
    )
    assert [column.static for column in body.columns] == [False, False, True]
    assert body.keys == (s.PrimaryKey(("a", "b"), ("c", "d")),)
    assert body.properties[0] == s.ClusteringOrder((("c", True), ("d", False)))
    assert [part.name for part in body.properties if isinstance(part, s.NamedProperty)] == [
        "cdc",
        "comment",
        "gc_grace_seconds",
    ]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("ALTER TABLE t ADD a int", s.AddColumns),
        ("ALTER TABLE t ADD a int, b text static", s.AddColumns),
        ("ALTER TABLE t ADD (a int, b text)", s.AddColumns),
        ("ALTER TABLE t DROP a", s.DropColumns),
        ("ALTER TABLE t DROP (a, b) USING TIMESTAMP 1", s.DropColumns),
        ("ALTER TABLE t WITH cdc = {} AND comment = ''", s.AlterProperties),
        ("ALTER TABLE t RENAME a TO b AND c TO d", s.RenameColumns),
        ("ALTER TYPE t ADD a int", s.AddFields),
        ("ALTER TYPE t RENAME a TO b", s.RenameFields),
        ("CREATE TYPE t (a int, b frozen<tuple<int, text>>)", s.CreateType),
        (
            "CREATE KEYSPACE k WITH replication = {'class': 'x', 'replication_factor': 3} AND durable_writes = true",
            s.CreateKeyspace,
        ),
        ("DROP TABLE IF EXISTS ks.t", s.DropObject),
        ("DROP TYPE t", s.DropObject),
        ("DROP KEYSPACE k", s.DropObject),
        ("TRUNCATE TABLE t", s.Truncate),
        ("TRUNCATE t", s.Truncate),
    ],
)
def test_definitions(text: str, kind: type) -> None:
    """Every supported definition parses."""
    assert isinstance(parse_one(text), kind)


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=10))
def test_every_name_can_be_quoted(name: str) -> None:
    """A quoted name parses to that name."""
    assert parse_one(f"USE {quote_name(name)}") == s.UseKeyspace(name)
    assert parse_one(f"USE {quote_name(name.lower())}") == s.UseKeyspace(name.lower())


@pytest.mark.parametrize("word", sorted(RESERVED_WORDS))
def test_reserved_words_need_quotes(word: str) -> None:
    """Without quotes a reserved word is no name."""
    assert parse_one(f"USE {quote_name(word)}") == s.UseKeyspace(word)
    with pytest.raises(InputError):
        parse_statements(f"USE {word}")


@given(st.text(max_size=40))
def test_no_text_breaks_the_parser(text: str) -> None:
    """Any text parses to statements or raises an error with a position."""
    with suppress(InputError):
        assert all(statement.text in text for statement in parse_statements(text))


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [("FROM", 1, 1), ("USE a;\n\n  USE", 3, 6), ("UPDATE t\nSET a = @ WHERE b = 1", 2, 9), ("USE 'a", 1, 5)],
)
def test_errors_have_a_position(text: str, line: int, column: int) -> None:
    """The line and column are those of the unexpected token or of the end."""
    with pytest.raises(InputError, match=f"^line {line}, column {column}: .*; expected "):
        parse_statements(text)


@pytest.mark.parametrize("opening", ["[", "{", "(", "f("])
def test_deeply_nested_literals_are_refused(opening: str) -> None:
    """An error is raised before the interpreter's stack overflows."""
    closing = {"[": "]", "{": "}"}.get(opening, ")")
    with pytest.raises(InputError, match="nested too deeply"):
        parse_statements(f"INSERT INTO t (a) VALUES ({opening * 5000}1{closing * 5000})")


def test_a_comment_ends_at_a_carriage_return() -> None:
    """As after a line feed, in statements and in skipped text (Cql.g, COMMENT)."""
    script = "-- one\rUSE a; // two\rSELECT 1 -- three;\r; USE b -- four"
    assert [type(statement.body) for statement in parse_statements(script)] == [
        s.UseKeyspace,
        s.ReadOnlyStatement,
        s.UseKeyspace,
    ]


@pytest.mark.parametrize(
    ("script", "place"),
    [
        ("USE a;\nUSE select", "line 2, column 5: "),
        ("USE a;\n UPDATE t USING TTL 1 AND TTL 2 SET v = 1 WHERE k = 0", "line 2, column 11: "),
        ("UPDATE t SET v = 1\nWHERE (a, b) = 1", "line 2, column 7: "),
        ("UPDATE t SET v = 0xABC WHERE k = 0", "line 1, column 18: "),
        ("UPDATE t SET v = 1e9999999999999999999 WHERE k = 0", "line 1, column 18: "),
        ("USE a;\n  UPDATE t SET v = " + "[" * 5_000 + "]" * 5_000 + " WHERE k = 0", "line 2, column 3: "),
        ("CREATE TABLE t (a " + "list<" * 5_000 + "int" + ">" * 5_000 + " PRIMARY KEY)", "line 1, column 1: "),
        ("USE a;\n/* no end", "line 2, column 1: the comment that begins with '/* no end' has no end"),
        ("UPDATE t SET v = $$no end", "line 1, column 18: the text that begins with '$$no end' has no end"),
        ("UPDATE t SET v = 1\n", "line 2, column 1: "),
    ],
)
def test_every_error_names_its_position(script: str, place: str) -> None:
    """The position is that of the wrong part, or, for deep nesting, of the statement."""
    with pytest.raises(InputError) as caught:
        parse_statements(script)
    assert str(caught.value).startswith(place)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("long", ["-- x\n", "/* x */", "/* x\n"])
@pytest.mark.parametrize("script", ["{}USE a", "SELECT {} FROM t", "UPDATE t SET v = 1 {} WHERE k = 0"])
def test_comments_take_linear_time(script: str, long: str) -> None:
    """Eight times as many comments take about eight times as long, not 64 times, also without an end."""

    def seconds(count: int) -> float:
        text = script.format(long * count)
        best = float("inf")
        for _ in range(3):
            start = time.process_time()
            with suppress(InputError):
                parse_statements(text)
            best = min(best, time.process_time() - start)
        return best

    parse_statements("USE a")
    assert seconds(16_000) < 30 * seconds(2_000) + 0.05


def test_integers_and_decimals_have_any_size() -> None:
    """Numbers may have more digits than Python's int() accepts by default."""
    body = parse_one(f"UPDATE t SET v = {'9' * 50_000}, w = -1.{'0' * 50_000}1e-77 WHERE k = 0")
    assert isinstance(body, s.Update)
    number, fraction = (assignment.value for assignment in body.assignments)
    assert isinstance(number, s.Constant)
    assert number.value == 10**50_000 - 1
    assert isinstance(fraction, s.Constant)
    assert fraction.value.as_tuple().exponent == -50_078
