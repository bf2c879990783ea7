"""From the text of a script to its statements, by the grammar in grammar.lark.

Knows syntax alone. Text that does not parse is told of with its line, its column and what was expected there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib.resources import files
from typing import Any

from lark import Lark, Tree
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken, VisitError
from lark.lexer import PatternStr

from cdc_platform.cql import statements as s
from cdc_platform.cql.kinds import kind_of
from cdc_platform.cql.shapes import Literals, Shapes, Slotted, filler, literals_of
from cdc_platform.cql.splitting import Piece, pieces
from cdc_platform.errors import InputError

_SAID = {
    "IDENTIFIER": "a name",
    "QUOTED_IDENTIFIER": "a name",
    "STRING": "a value",
    "INTEGER": "a value",
    "FLOAT": "a value",
    "BOOLEAN": "a value",
    "NULL": "a value",
    "UUID": "a value",
    "BLOB": "a value",
    "DURATION": "a value",
    "NOT_FINITE": "a value",
    "LSQB": "a value",
    "LBRACE": "a value",
    "READ": "SELECT",
    "DROPPED_TABLE": "TABLE",
    "DROPPED_TYPE": "TYPE",
    "DROPPED_KEYSPACE": "KEYSPACE",
    "BATCH_KIND": "UNLOGGED",
    "ASCENDING": "ASC",
    "DESCENDING": "DESC",
    "STATIC": "STATIC",
    "$END": "the end of the script",
}
_MOST_SAID = 12
_TOO_DEEP = "a value or type of the script is nested too deeply; write it with fewer levels"


def parse(text: str) -> list[s.Statement]:
    """The statements of a script, in order, all of which have to be understood; a batch is one.

    Raises:
        InputError: the script does not parse; the message has the line, the column and what was expected.
    """
    return list(_understood_ones(text))


def assert_understood(text: str) -> None:
    """Hold that `parse` understands a script, of which nothing is kept meanwhile; raises InputError as that does."""
    for _ in _understood_ones(text):
        pass


def read_script(text: str) -> list[s.Statement]:
    """The statements of a script, in order; those that are passed over, or not understood, have bodies that say so."""
    return list(statements_in(text))


def statements_in(text: str) -> Iterator[s.Statement]:
    """As `read_script`, each when it is asked for."""
    shapes = Shapes()
    return (_read(piece, shapes) for piece in pieces(text))


def parse_again(statement: s.Statement, text: str) -> s.Statement:
    """The statement with another text, which has to be understood, in the same place; raises InputError."""
    return _parsed(Piece(0, text, statement.line, 1), statement.kind, Shapes(), literals_of(text))


def _understood_ones(text: str) -> Iterator[s.Statement]:
    shapes = Shapes()
    return (_understood(piece, shapes) for piece in pieces(text))


def _understood(piece: Piece, shapes: Shapes) -> s.Statement:
    literals = literals_of(piece.text)
    known = shapes.statement(literals, piece.text, piece.line)
    if known is not None:
        return known
    kind = kind_of(piece.text)
    if kind.name == "CREATE INDEX" and kind.handling != "done":  # the grammar has those of search indexes alone
        found = piece.text.split()[1][:40]
        raise _at(piece, 1, len("CREATE ") + 1, f"found {found!r}; expected an index of a search class: {kind.why}")
    return _parsed(piece, kind.name, shapes, literals)


def _read(piece: Piece, shapes: Shapes) -> s.Statement:
    literals = literals_of(piece.text)
    known = shapes.statement(literals, piece.text, piece.line)
    if known is not None:
        return known
    kind = kind_of(piece.text)
    text = _without_end(piece.text)
    if kind.handling == "passed over":
        return s.Statement(text, piece.line, s.PassedOver(kind.why), kind.name)
    if kind.handling == "refused":
        return s.Statement(text, piece.line, s.Unread(InputError(f"{kind.name} is not done: {kind.why}")), kind.name)
    try:
        return _parsed(piece, kind.name, shapes, literals)
    except InputError as error:
        return s.Statement(text, piece.line, s.Unread(error), kind.name)


def _without_end(text: str) -> str:
    return text.removesuffix(";").strip()


@lru_cache(maxsize=1)
def _parser() -> Lark:
    grammar = files("cdc_platform.cql").joinpath("grammar.lark").read_text(encoding="utf-8")
    return Lark(grammar, parser="lalr", propagate_positions=True, maybe_placeholders=True)


def _parsed(piece: Piece, kind: str, shapes: Shapes, literals: Literals) -> s.Statement:
    try:
        tree = _parser().parse(piece.text)
    except UnexpectedInput as error:
        raise _at(piece, *_unexpected(piece.text, error)) from None
    (child,) = (child for child in tree.children if isinstance(child, Tree))
    meta = child.meta
    try:
        bodies = Slotted(literals.places)
        slotted = bodies.transform(child)
        body = filler(slotted)(bodies.constants)
        shapes.learn(literals, slotted, kind, piece.text, (meta.start_pos, meta.end_pos))
    except VisitError as error:
        if isinstance(error.orig_exc, RecursionError):
            raise _at(piece, meta.line, meta.column, _TOO_DEEP) from None
        if isinstance(error.orig_exc, InputError):
            place: Any = error.obj.meta if isinstance(error.obj, Tree) else error.obj
            raise _at(piece, place.line, place.column, str(error.orig_exc)) from None
        raise
    except RecursionError:
        raise _at(piece, meta.line, meta.column, _TOO_DEEP) from None
    told = piece.text[meta.start_pos : meta.end_pos].strip()
    return s.Statement(told, piece.line, body, kind)


def _at(piece: Piece, line: int, column: int, message: str) -> InputError:
    """The error with where it is in the script; `line` and `column` count from the begin of the statement, from 1."""
    column += piece.column - 1 if line == 1 else 0
    return InputError(f"line {piece.line + line - 1}, column {column}: {message}")


def _unexpected(text: str, error: UnexpectedInput) -> tuple[int, int, str]:
    """The line and the column of what is not expected, and what is told of it."""
    line, column = error.line, error.column
    if isinstance(error, UnexpectedToken):
        wanted = error.accepts or error.expected
        if error.token.type == "$END":
            found, line, column = "the script ends", text.count("\n") + 1, len(text) - text.rfind("\n")
        else:
            found = f"found {str(error.token)[:40]!r}"
    elif isinstance(error, UnexpectedCharacters):
        wanted, found = error.allowed or (), _found(text, error.pos_in_stream or 0)
    else:
        wanted, found = (), "the script ends"
    return line, column, f"{found}; expected {_one_of(wanted)}"


def _found(text: str, at: int) -> str:
    if text.startswith("/*", at):
        return f"the comment that begins with {text[at : at + 20]!r} has no end"
    if text[at] in "'\"" or text.startswith("$$", at):
        return f"the text that begins with {text[at : at + 20]!r} has no end"
    return f"found {text[at : at + 20].splitlines()[0]!r}"


def _one_of(wanted: Iterable[str]) -> str:
    said = sorted({_said(name) for name in wanted}, key=lambda text: (text.startswith("'"), text.isupper(), text))
    shown = said[:_MOST_SAID] + (["..."] if len(said) > _MOST_SAID else [])
    return " or ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else "".join(shown) or "something else"


@lru_cache(maxsize=256)
def _said(terminal: str) -> str:
    """How a terminal of the grammar is named to people."""
    if terminal in _SAID:
        return _SAID[terminal]
    pattern = _parser().get_terminal(terminal).pattern
    if isinstance(pattern, PatternStr):
        return pattern.value if pattern.value.isalpha() else f"'{pattern.value}'"
    return terminal
