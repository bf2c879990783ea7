"""From the text of a script to its statements, by the grammar in grammar.lark.

Knows syntax alone. Text that does not parse is refused with its line, its column and what was expected there.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from importlib.resources import files
from typing import Any

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken, VisitError
from lark.lexer import PatternStr

from cdc_platform.cql import statements as s
from cdc_platform.cql.bodies import Bodies
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
    """The statements of a script, in order; a batch is one.

    Raises:
        InputError: the script does not parse; the message has the line, the column and what was expected.
    """
    try:
        tree = _parser().parse(text)
    except UnexpectedInput as error:
        raise InputError(_message(text, error)) from None
    return [_statement(text, child) for child in tree.children if isinstance(child, Tree)]


@lru_cache(maxsize=1)
def _parser() -> Lark:
    grammar = files("cdc_platform.cql").joinpath("grammar.lark").read_text(encoding="utf-8")
    return Lark(grammar, parser="lalr", propagate_positions=True, maybe_placeholders=True)


def _statement(text: str, tree: Tree[Token]) -> s.Statement:
    meta = tree.meta
    try:
        body = Bodies().transform(tree)
    except VisitError as error:
        if isinstance(error.orig_exc, RecursionError):
            raise _at(meta, _TOO_DEEP) from None
        if isinstance(error.orig_exc, InputError):
            raise _at(error.obj.meta if isinstance(error.obj, Tree) else error.obj, str(error.orig_exc)) from None
        raise
    except RecursionError:
        raise _at(meta, _TOO_DEEP) from None
    return s.Statement(text[meta.start_pos : meta.end_pos].strip(), meta.line, body)


def _at(place: Any, message: str) -> InputError:
    """The error with where it is; `place` is a token, or where a part of a statement begins."""
    return InputError(f"line {place.line}, column {place.column}: {message}")


def _message(text: str, error: UnexpectedInput) -> str:
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
    return f"line {line}, column {column}: {found}; expected {_one_of(wanted)}"


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
