"""The limits of statements, and skipped statements, none of which could change a table with CDC."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_platform.cql import ast as s
from cdc_platform.cql import parse_leniently, parse_statements
from cdc_platform.cql.lexer import (
    CQLSH_COMMANDS,
    IGNORED_STATEMENTS,
    REFUSED_STATEMENTS,
    classify_statement,
    split_statements,
)
from cdc_platform.errors import InputError


def split_texts(script: str) -> list[str]:
    """Return the texts of the statements of a script."""
    return [piece.text for piece in split_statements(script)]


def test_semicolons_end_statements_but_for_those_inside() -> None:
    """Except those in texts, quoted names, comments and batches; the last one is optional."""
    script = """-- a; b
    INSERT ';' ";" $$;$$ /* ; */ x; // c; d
    BEGIN BATCH a; b; APPLY /* ; */ BATCH; ; last"""
    assert split_texts(script) == [
        """INSERT ';' ";" $$;$$ /* ; */ x;""",
        "BEGIN BATCH a; b; APPLY /* ; */ BATCH;",
        "last",
    ]


def test_commands_of_cqlsh_end_with_their_line() -> None:
    """Or with an earlier semicolon outside of texts."""
    script = "CONSISTENCY QUORUM\nSOURCE 'a;b' INSERT x\r\nPAGING 10; USE a;\ndesc tables\nUSE b"
    assert split_texts(script) == [
        "CONSISTENCY QUORUM", "SOURCE 'a;b' INSERT x", "PAGING 10;", "USE a;", "desc tables", "USE b",
    ]  # fmt: skip


@given(st.text(alphabet="a;'\"$/*-\n B", max_size=30))
def test_nothing_is_lost(script: str) -> None:
    """The pieces are in the script's order, with only blanks, comments and semicolons between them."""
    position = 0
    for piece in split_statements(script):
        assert script[piece.start : piece.start + len(piece.text)] == piece.text
        assert piece.start >= position
        assert (piece.line, piece.column) == (
            script.count("\n", 0, piece.start) + 1,
            piece.start - script.rfind("\n", 0, piece.start),
        )
        assert (
            "a" not in script[position : piece.start]
            or "--" in script[position : piece.start]
            or "/" in script[position : piece.start]
        )
        position = piece.start + len(piece.text)


@pytest.mark.parametrize(
    ("text", "name", "handling"),
    [
        ("create index on t (v)", "CREATE INDEX", "passed over"),
        ("CREATE CUSTOM INDEX i ON t (v) USING 'StorageAttachedIndex'", "CREATE INDEX", "passed over"),
        ("CREATE CUSTOM INDEX i ON t (v) USING 'vector_index'", "CREATE INDEX", "done"),
        ("create index on ks.t (v) using 'FullText_Index'", "CREATE INDEX", "done"),
        ("CREATE CUSTOM INDEX i ON t (v) /* x */ USING -- y\n 'zzz_unknown'", "CREATE INDEX", "refused"),
        ("CREATE INDEX i ON t (v) -- USING 'zzz_unknown'\n", "CREATE INDEX", "passed over"),
        ("DROP INDEX i", "DROP INDEX", "done"),
        ("CREATE MATERIALIZED VIEW v AS SELECT * FROM t", "CREATE MATERIALIZED VIEW", "passed over"),
        ("ALTER /* x */ KEYSPACE k WITH replication = {'tablets': 1}", "ALTER KEYSPACE", "passed over"),
        ("ALTER KEYSPACE k WITH tablets = {'initial': 8}", "ALTER KEYSPACE WITH TABLETS", "refused"),
        ("COPY ks.t (a, b) TO 'x.csv'", "COPY TO", "passed over"),
        ("COPY ks.t (a, b) FROM 'to.csv'", "COPY FROM", "refused"),
        ("SOURCE 'other.cql'", "SOURCE", "refused"),
        ("SERIAL CONSISTENCY LOCAL_SERIAL", "SERIAL CONSISTENCY", "passed over"),
        ("CREATE OR REPLACE FUNCTION f(x int) ...", "CREATE FUNCTION", "passed over"),
        ("ATTACH SERVICE LEVEL x TO y", "ATTACH SERVICE LEVEL", "passed over"),
        ("GRANT SELECT ON t TO r", "GRANT", "passed over"),
        ("DROP KEYSPACE k", "DROP KEYSPACE", "done"),
        ("TRUNCATE t", "TRUNCATE", "done"),
        ("CREATE TRIGGER x ON t USING 'c'", "CREATE TRIGGER", "refused"),
        ("BEGIN UNLOGGED BATCH", "BATCH", "done"),
        ("DROP COLUMNFAMILY t", "DROP TABLE", "done"),
        ("desc t", "DESCRIBE", "done"),
        ("!", "statement", "done"),
    ],
)
def test_kinds(text: str, name: str, handling: str) -> None:
    """The first words decide the kind, whatever stands between them."""
    kind = classify_statement(text)
    assert (kind.name, kind.handling) == (name, handling)


def test_no_kind_of_the_grammar_is_skipped() -> None:
    """The list has starts that no write or definition of the grammar has, each with its reason."""
    for key, reason in {**IGNORED_STATEMENTS, **REFUSED_STATEMENTS}.items():
        assert reason
        with pytest.raises(InputError):
            parse_statements(f"{key} x")
    assert {word for key in ("SOURCE", "COPY") for word in [key]} <= CQLSH_COMMANDS


def test_a_script_is_read_statement_by_statement() -> None:
    """Unsupported statements have a position, skipped ones a reason, and the others parse as usual."""
    script = "CREATE INDEX i ON t (v);\nUPDATE t SETT x = 1;\n  USE a; TRACING ON\nUSE b"
    index, wrong, use, tracing, last = parse_leniently(script)
    assert isinstance(index.body, s.IgnoredStatement)
    assert isinstance(wrong.body, s.UnsupportedStatement)
    assert str(wrong.body.error).startswith("line 2, column 10: found 'SETT'; expected ")
    assert (use.body, use.line, isinstance(tracing.body, s.IgnoredStatement)) == (s.UseKeyspace("a"), 3, True)
    assert (last.text, last.kind, last.line) == ("USE b", "USE", 4)
    with pytest.raises(InputError, match=r"^line 1, column 8: "):
        parse_statements(script)
