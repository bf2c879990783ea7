"""Statements of one shape: filling in literals gives the result of parsing each statement as a whole."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.drawing import examples

from cdc_platform.cql import ast as s
from cdc_platform.cql import parse_leniently, parse_statements
from cdc_platform.cql.transformer import StatementShapes, extract_literals
from cdc_platform.errors import InputError

TERMS = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.sampled_from(["0", "-0", "00", "1.5", "-1.50", "1.", "1e5", "-2E-3", "1.5.5", "12h", "-1mo3d", "P1D", "5x"]),
    st.text("a';-/$\"?: \n", max_size=6).map(lambda text: "'" + text.replace("'", "''") + "'"),
    st.sampled_from(["''", "'a''b'", "$$it's$$", "$$5$$", "null", "TRUE", "NaN", "-infinity", "0x", "0xAf", "0xabc"]),
    st.uuids().map(str),
    st.uuids().map(lambda uuid: f"{uuid}0"),
    st.sampled_from(["[1, -2]", "{1: 'a', 2:'b'}", "{a: 1}", "(1, 'x')", "fromJson('5')", "(int) 5", "?", ":x", '"a"']),
)
TEMPLATES = st.sampled_from(
    (
        "INSERT INTO t (a, b) VALUES ({}, {})",
        'INSERT INTO "T;-5" (a, "b\'5") VALUES ({},{}) USING TTL {}',
        "UPDATE ks.t USING TIMESTAMP {} SET a = a -{}, b = b + {} WHERE p = {} AND c IN ({}, {})",
        "UPDATE t SET m[{}] = {}, u.x={} WHERE p={} IF a>{}",
        "delete a5 from t where p = {} and c>{}-- it's {}",
        "DELETE FROM t /* {} */ WHERE p = {}",
        "BEGIN BATCH USING TIMESTAMP {} INSERT INTO t (p) VALUES ({}); DELETE FROM t WHERE p={}; APPLY BATCH",
        "INSERT INTO t JSON {} DEFAULT UNSET",
    )
)


@st.composite
def scripts(draw: st.DrawFn) -> list[str]:
    """Draw statements of few shapes, each several times, most of them valid."""
    statements = []
    for template in draw(st.lists(TEMPLATES, min_size=1, max_size=3)):
        for _ in range(draw(st.integers(2, 4))):
            statements.append(template.format(*(draw(TERMS) for _ in range(template.count("{}")))))
    return statements


def parse_alone(text: str) -> tuple[Any, ...]:
    """Return a statement that is parsed alone, or the message of its error."""
    try:
        (statement,) = parse_statements(text + "\n;")
    except InputError as error:
        return (str(error).partition(": ")[2],)
    return statement.text, repr(statement.body), statement.kind


@settings(deadline=None, max_examples=examples(150))
@given(scripts())
def test_a_shape_filled_is_the_statement_parsed(texts: list[str]) -> None:
    """A statement after others of its shape equals the statement alone, or is refused with an equal message."""
    expected = [parse_alone(text) for text in texts]
    accepted = [text for text, outcome in zip(texts, expected, strict=True) if len(outcome) == 3]
    parsed = [
        (statement.text, repr(statement.body), statement.kind) for statement in parse_leniently("\n;".join(accepted))
    ]
    assert parsed == [outcome for outcome in expected if len(outcome) == 3]
    for text, outcome in zip(texts, expected, strict=True):
        if len(outcome) == 1:
            with pytest.raises(InputError) as caught:
                parse_statements("\n;".join([*accepted, text]) + "\n;")
            assert str(caught.value).partition(": ")[2] == outcome[0]


def test_a_shape_omits_literals() -> None:
    """A shape omits only literals, not digits in names, in durations or after a word."""
    text = "INSERT INTO t5 (\"a5\", b) VALUES (-5, 1.5, 'it''s 5', 1h5m, 0xaf, 6a8a35b7-ae7c-4a1f-9d2e-1a2b3c4d5e6f)"
    assert [literal for _, literal in extract_literals(text).literals] == [
        *("-5", "1.5", "'it''s 5'", "0xaf", "6a8a35b7-ae7c-4a1f-9d2e-1a2b3c4d5e6f")
    ]


def test_the_parser_runs_once_per_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred statements of two shapes are parsed twice; one with a bind marker each time."""
    learned = list[str]()
    learn = StatementShapes.learn

    def counted(self: StatementShapes, *arguments: Any) -> None:
        learned.append(arguments[3])
        learn(self, *arguments)

    monkeypatch.setattr(StatementShapes, "learn", counted)
    texts = [f"INSERT INTO t (p, c) VALUES ({n}, '{n}'); DELETE FROM t WHERE p = {n};" for n in range(50)]
    assert len(parse_statements("".join(texts))) == 100
    assert len(learned) == 2
    learned.clear()
    statements = parse_statements("UPDATE t SET a = ? WHERE p = 1;" * 3)
    assert len(learned) == 3
    body = statements[1].body
    assert isinstance(body, s.Update)
    assert isinstance(body.assignments[0].value, s.BindMarker)
