"""Values from other sources: JSON documents, bytes, type hints, and the values of bind markers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.command_line import run
from support.files.cql_scripts import Accepted, Rehearse

from cdc_platform.cql import DECIMAL, INT, TEXT, value_from_json
from cdc_platform.cql.codec import BLOB_CONVERTIBLE_TYPES, scalar_from_bytes
from cdc_platform.cql.literals import parse_json
from cdc_platform.cql.types import BOOLEAN, VARINT
from cdc_platform.errors import InputError

WIDE = """CREATE TYPE ks.u (x int, y text);
    CREATE TABLE ks.t (p int, "K" text, s int static, v int, m map<int, text>, l list<bigint>, n set<uuid>, u u, b blob,
        d date, e decimal, f double, ts timestamp, tup tuple<int, text>, o boolean, PRIMARY KEY (p, "K"))
    WITH cdc = {'enabled': true};"""
DOCUMENT = {
    "P": 1,
    '"K"': "k",
    "v": "7",
    "m": {"1": "a", "2": "b"},
    "l": [1, 2.0, 1e3],
    "n": ["550e8400-e29b-41d4-a716-446655440000"],
    "u": {"x": 1},
    "b": "0xCAFE",
    "d": "2026-01-31",
    "f": 1.5,
    "ts": 5,
    "tup": [1],
    "o": "TRUE",
}
ROW = {
    "p": 1, "K": "k", "s": None, "v": 7, "m": [[1, "a"], [2, "b"]], "l": [1, 2, 1000], "b": b"\xca\xfe",
    "d": "2026-01-31",
    "f": 1.5, "ts": "1970-01-01T00:00:00.005Z", "tup": [1, None], "o": True, "u": {"x": 1, "y": None}, "e": None,
}  # fmt: skip


def test_insert_json(rehearsed: Rehearse) -> None:
    """Names are lower case unless quoted; columns not named are null (cql3/type_json.cc, update_statement.cc)."""
    document = json.dumps(DOCUMENT).replace("'", "''")
    result = rehearsed(f"{WIDE} INSERT INTO ks.t JSON '{document}';")
    assert result.outcomes[-1].error is None, result.outcomes[-1].error
    (table,) = result.tables
    assert table.base == table.replayed
    (row,) = table.base
    assert {name: row[name] for name in ROW} == ROW
    (logged,) = result.outcomes[-1].rows
    assert (logged["cdc$operation"], logged["cdc$deleted_e"], logged["cdc$deleted_l"]) == (2, True, True)


def test_insert_json_leaves_columns_not_named_unset(accepted: Accepted) -> None:
    """With DEFAULT UNSET only a named null is null. Static columns are ignored, as ScyllaDB does."""
    outcomes = accepted(
        f"""{WIDE} INSERT INTO ks.t JSON '{{"p": 1, "\\"K\\"": "k", "v": null, "s": 5}}' DEFAULT UNSET;"""
    )
    (row,) = outcomes[-1].rows
    assert {name for name, value in row.items() if value is not None and "cdc$deleted" in name} == {"cdc$deleted_v"}


def test_insert_json_in_a_transaction(accepted: Accepted) -> None:
    """INSERT JSON supports IF NOT EXISTS and TTLs."""
    insert = """INSERT INTO ks.t JSON '{"p": 1, "\\"K\\"": "k", "v": 1}' IF NOT EXISTS USING TTL 9"""
    outcomes = accepted(f"{WIDE} {insert}; {insert};")
    assert [outcome.became for outcome in outcomes[-2:]] == ["done", "not applied"]
    assert outcomes[-2].rows[0]["cdc$ttl"] == 9


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ("[1]", "is no JSON object"),
        ("{", "is no JSON at character"),
        ('{"p": 1, "k": "k"}', "unrecognized column: k"),
        ('{"p": null, "\\"K\\"": "k"}', "cannot be null"),
        ('{"p": 1}', "INSERT lacks K"),
        ('{"p": 1.5, "\\"K\\"": "k"}', "column p: 1.5 is no JSON value of type int"),
        ('{"p": 1, "\\"K\\"": "k", "l": [null]}', "null is no element"),
        ('{"p": 1, "\\"K\\"": "k", "m": [1]}', "in JSON that is an object"),
        ('{"p": 1, "\\"K\\"": "k", "b": "cafe"}', "is no JSON value of type blob"),
        ('{"p": 1, "P": 2, "\\"K\\"": "k"}', "names column p twice"),
        ('{"p": NaN, "\\"K\\"": "k"}', "NaN is no number of JSON"),
    ],
)
def test_invalid_documents(rehearsed: Rehearse, document: str, why: str) -> None:
    """The error is one line that names the problem."""
    assert why in str(rehearsed(f"{WIDE} INSERT INTO ks.t JSON '{document}';").outcomes[-1].error)


@given(st.integers(), st.decimals(allow_nan=False, allow_infinity=False), st.text(), st.booleans())
def test_numbers_keep_their_digits(whole: int, decimal: Any, text: str, truth: bool) -> None:
    """Numbers of any length keep their digits, as numbers and in texts; texts and booleans are unchanged."""
    assert (
        value_from_json(VARINT, parse_json(str(whole)))
        == value_from_json(VARINT, parse_json(json.dumps(str(whole))))
        == whole
    )
    assert value_from_json(DECIMAL, parse_json(json.dumps(str(decimal)))) == decimal
    assert value_from_json(TEXT, parse_json(json.dumps(text))) == text
    assert value_from_json(BOOLEAN, parse_json(json.dumps(truth))) is truth
    with pytest.raises(InputError):
        value_from_json(INT, parse_json(json.dumps(truth)))


@pytest.mark.parametrize(
    ("expression", "kind", "value"),
    [
        ("fromJson('[1, 2]')", "list<int>", [1, 2]),
        ("fromJson('null')", "int", None),
        ('fromJson(\'{"1": "x"}\')', "frozen<map<int, text>>", [[1, "x"]]),
        ("intAsBlob(5)", "blob", b"\0\0\0\5"),
        ("blobAsInt(0x00000005)", "int", 5),
        ("blobAsText(textAsBlob('é'))", "text", "é"),
        ("timestampAsBlob(1)", "blob", bytes(7) + b"\1"),
        ("blobAsDecimal(0x0000000105)", "decimal", "0.5"),
        ("varcharAsBlob('a')", "blob", b"a"),
        ("blobAsBoolean(0x01)", "boolean", True),
        ("(int) 5", "int", 5),
        ("intAsBlob((int) 5)", "blob", b"\0\0\0\5"),
        ("toJson((text) 'a\"b')", "text", '"a\\"b"'),
        ("toJson(blobAsInt(0x00000005))", "text", "5"),
    ],
)
def test_functions_of_values(accepted: Accepted, expression: str, kind: str, value: Any) -> None:
    """Functions convert from and to JSON and bytes, and with a type hint in front."""
    table = f"CREATE TABLE ks.t (pk int PRIMARY KEY, v {kind}) WITH cdc = {{'enabled': true}};"
    outcomes = accepted(f"{table} UPDATE ks.t SET v = {expression} WHERE pk = 0; SELECT 1;")
    logged: Any = outcomes[1].rows[0]["v"]
    if kind == "list<int>":
        logged = [inner for _, inner in logged]
    assert (logged if kind != "decimal" else str(logged)) == value


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("blobAsInt(0x0005)", "0x0005 of 2 bytes is no value of type int"),
        ("blobAsText(0xff)", "is no value of type text"),
        ("(bigint) 5", "gives a bigint, which is no value of type int"),
        ("(int) 'x'", "'x' is no value of type int"),
        ("fromJson('x')", "is no JSON"),
        ("toJson(now())", "gives a text"),
        ("?", "? has no value; give it one with --values FILE"),
    ],
)
def test_functions_that_fail(rehearsed: Rehearse, expression: str, why: str) -> None:
    """The error is one line that names the value or the type."""
    table = "CREATE TABLE ks.t (pk int PRIMARY KEY, v int) WITH cdc = {'enabled': true};"
    assert why in str(rehearsed(f"{table} UPDATE ks.t SET v = {expression} WHERE pk = 0;").outcomes[-1].error)


@pytest.mark.parametrize("kind", BLOB_CONVERTIBLE_TYPES, ids=lambda kind: kind.name)
@given(data=st.binary(max_size=17))
def test_bytes_are_values_or_refused(kind: Any, data: bytes) -> None:
    """A value read from bytes is written as bytes that are read as the same value."""
    try:
        value = scalar_from_bytes(kind, data)
    except InputError:
        return
    reread = scalar_from_bytes(kind, kind.to_bytes(value))
    assert kind.sort_key(reread) == kind.sort_key(value)


PREPARED = """CREATE TABLE ks.t (p int, c text, v map<text, int>, PRIMARY KEY (p, c)) WITH cdc = {'enabled': true};
INSERT INTO ks.t (p, c, v) VALUES (?, ?, {'a': ?}) USING TTL ?;
BEGIN BATCH
  UPDATE ks.t SET v['b'] = :n WHERE p = :p AND c = :c;
  DELETE FROM ks.t WHERE p = :p AND c IN :gone
APPLY BATCH;
INSERT INTO ks.t JSON ?;"""
VALUES = [
    [[1, "x", 5, None], [1, "it's", 6, 60]],
    [{"n": 7, "p": 1, "c": "x", "gone": ["it's", "z"]}],
    [[{"p": 2, "c": "j"}], ['{"p": 3, "c": "k"}']],
]


def test_bind_markers(rehearsed: Rehearse) -> None:
    """Each statement runs once per row of values, by order or by name; no marker remains in the executed text."""
    result = rehearsed(PREPARED, values=json.dumps(VALUES))
    assert [str(outcome.error) for outcome in result.outcomes if outcome.error] == []
    assert [outcome.statement.line for outcome in result.outcomes] == [1, 2, 2, 3, 7, 7]
    assert result.outcomes[1].statement.text == (
        "INSERT INTO ks.t (p, c, v) VALUES (fromJson('1'), fromJson('\"x\"'), {'a': fromJson('5')})"
        " USING TTL fromJson('null')"
    )
    rows = {(row["p"], row["c"]): row["v"] for row in result.tables[0].base}
    assert rows == {(1, "x"): [["a", 5], ["b", 7]], (2, "j"): None, (3, "k"): None}


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ("{}", "it has none"),
        ("[[]]", "there are 3, it has 1"),
        ("[[], [], {}]", "line 7: the values of a statement are an array"),
        ("[[[1]], [], []]", "line 2, execution 1: it has 1 values for 4 markers"),
        ('[[], [{"n": 1}], []]', "line 3, execution 1: it has no value for :p"),
        ('[[], [{"n": 1, "p": 1, "c": "x", "gone": [], "y": 1}], []]', "it has a value for y"),
        ('[[], [{"n": 1, "p": 1, "c": "x", "gone": 1}], []]', "IN takes an array"),
        ("[", "is no JSON"),
    ],
)
def test_values_that_do_not_fit(rehearsed: Rehearse, values: str, why: str) -> None:
    """Nothing runs, and one line names the statement and the execution."""
    with pytest.raises(InputError) as caught:
        rehearsed(PREPARED, values=values)
    assert why in str(caught.value)


@pytest.mark.parametrize("size", [47, 48, 1536])
def test_vectors_of_any_length_are_values_of_markers(rehearsed: Rehearse, size: int) -> None:
    """Vectors of 192 bytes (48 floats) and more are in the log, in the table, and in the table rebuilt from the log."""
    value = [number / 4 for number in range(size)]
    text = f"""CREATE TABLE ks.t (p int PRIMARY KEY, v vector<float, {size}>, l list<frozen<vector<float, {size}>>>)
        WITH cdc = {{'enabled': true, 'postimage': true}}; INSERT INTO ks.t (p, v, l) VALUES (:p, :v, :more);"""
    values = [{"p": 1, "v": value, "more": [value]}]
    result = rehearsed(text, values=json.dumps([values]))
    assert [str(outcome.error) for outcome in result.outcomes if outcome.error] == []
    (table,) = result.tables
    assert table.base == table.replayed == [{"p": 1, "l": [value], "v": value}]
    assert [row["v"] for row in result.outcomes[1].rows if row["v"] is not None] == [value] * 2
    short = rehearsed(text, values=json.dumps([[values[0] | {"v": value[1:]}]]))
    assert short.outcomes[1].became == "wrong"


def test_values_of_a_file(tmp_path: Path) -> None:
    """Values are read from a file on the command line; an applied script contains its values."""
    (tmp_path / "home").mkdir()
    script, values = tmp_path / "s.cql", tmp_path / "v.json"
    script.write_text("CREATE TABLE ks.t (p int PRIMARY KEY); INSERT INTO ks.t (p) VALUES (?);")
    values.write_text("[[[1], [2]]]")
    answer = run("--home", tmp_path / "home", "cql", "run", script, "--values", values, "--json", "--apply")
    assert answer.exit_code == 0, answer.stderr
    assert [row["p"] for row in answer.json["tables"]["ks.t"]["base"]] in ([1, 2], [2, 1])
    values.write_text("[]")
    assert run("--home", tmp_path / "home", "cql", "run", script, "--values", values).exit_code == 2
