"""Parse scripts by grammar.lark, and execute statements with bind markers for rows of values.

This module knows syntax only. An error names the line, the column and what the grammar expects there. Values of markers
are JSON; binding them produces a script without markers that has the same effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

from lark import Lark, Tree
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken, VisitError
from lark.lexer import PatternStr

from cdc_platform.cql import ast as s
from cdc_platform.cql.lexer import StatementText, classify_statement, split_statements
from cdc_platform.cql.literals import format_json, parse_json
from cdc_platform.cql.transformer import ShapeLiterals, SlotTransformer, StatementShapes, extract_literals, make_filler
from cdc_platform.errors import InputError

_TERMINAL_NAMES = {
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
_MAX_EXPECTED = 12
_TOO_DEEP_MESSAGE = "a value or type of the script is nested too deeply; write it with fewer levels"


def parse_statements(text: str) -> list[s.Statement]:
    """Return the statements of a script, in order, with a batch as one; all of them must be understood.

    Raises:
        InputError: the script does not parse; the message has the line, the column and what was expected.
    """
    return list(_iterate_strictly(text))


@lru_cache(maxsize=4096)
def parse_definitions(text: str) -> tuple[s.Statement, ...]:
    """Return the statements of a stored definition as `parse_statements`, and cache them.

    Every run and most ticks of sensors load the definitions of all tables. Parsing one takes milliseconds.

    Raises:
        InputError: as `parse_statements`.
    """
    return tuple(_iterate_strictly(text))


def check_script(text: str) -> None:
    """Raise InputError unless `parse_statements` understands a script, without storing its statements."""
    for _ in _iterate_strictly(text):
        pass


def parse_leniently(text: str) -> list[s.Statement]:
    """Return the statements of a script, in order; the bodies of skipped or invalid ones say so."""
    return list(iterate_leniently(text))


def iterate_leniently(text: str) -> Iterator[s.Statement]:
    """Yield the statements that `parse_leniently` returns, parsing on demand."""
    shapes = StatementShapes()
    return (_parse_or_explain(piece, shapes) for piece in split_statements(text))


def _reparse(statement: s.Statement, text: str) -> s.Statement:
    """Return the statement with another text at the same line; raises InputError if the text is not understood."""
    return _parse_text(
        StatementText(0, text, statement.line, 1), statement.kind, StatementShapes(), extract_literals(text)
    )


def _iterate_strictly(text: str) -> Iterator[s.Statement]:
    shapes = StatementShapes()
    return (_parse_strictly(piece, shapes) for piece in split_statements(text))


def _parse_strictly(piece: StatementText, shapes: StatementShapes) -> s.Statement:
    literals = extract_literals(piece.text)
    known = shapes.statement(literals, piece.text, piece.line)
    if known is not None:
        return known
    kind = classify_statement(piece.text)
    if kind.name == "CREATE INDEX" and kind.handling != "done":  # the grammar has only those of search indexes
        index_word = piece.text.split()[1][:40]
        raise _error_at(
            piece, 1, len("CREATE ") + 1, f"found {index_word!r}; expected an index of a search class: {kind.why}"
        )
    return _parse_text(piece, kind.name, shapes, literals)


def _parse_or_explain(piece: StatementText, shapes: StatementShapes) -> s.Statement:
    literals = extract_literals(piece.text)
    known = shapes.statement(literals, piece.text, piece.line)
    if known is not None:
        return known
    kind = classify_statement(piece.text)
    text = _strip_semicolon(piece.text)
    if kind.handling == "passed over":
        return s.Statement(text, piece.line, s.IgnoredStatement(kind.why), kind.name)
    if kind.handling == "refused":
        return s.Statement(
            text, piece.line, s.UnsupportedStatement(InputError(f"{kind.name} is not done: {kind.why}")), kind.name
        )
    try:
        return _parse_text(piece, kind.name, shapes, literals)
    except InputError as error:
        return s.Statement(text, piece.line, s.UnsupportedStatement(error), kind.name)


def _strip_semicolon(text: str) -> str:
    return text.removesuffix(";").strip()


@lru_cache(maxsize=1)
def _get_lark() -> Lark:
    grammar = files("cdc_platform.cql").joinpath("grammar.lark").read_text(encoding="utf-8")
    return Lark(grammar, parser="lalr", propagate_positions=True, maybe_placeholders=True)


def _parse_text(piece: StatementText, kind: str, shapes: StatementShapes, literals: ShapeLiterals) -> s.Statement:
    try:
        tree = _get_lark().parse(piece.text)
    except UnexpectedInput as error:
        raise _error_at(piece, *_explain_unexpected(piece.text, error)) from None
    (child,) = (child for child in tree.children if isinstance(child, Tree))
    meta = child.meta
    try:
        bodies = SlotTransformer(literals.places)
        slotted = bodies.transform(child)
        body = make_filler(slotted)(bodies.constants)
        shapes.learn(literals, slotted, kind, piece.text, (meta.start_pos, meta.end_pos))
    except VisitError as error:
        if isinstance(error.orig_exc, RecursionError):
            raise _error_at(piece, meta.line, meta.column, _TOO_DEEP_MESSAGE) from None
        if isinstance(error.orig_exc, InputError):
            position: Any = error.obj.meta if isinstance(error.obj, Tree) else error.obj
            raise _error_at(piece, position.line, position.column, str(error.orig_exc)) from None
        raise
    except RecursionError:
        raise _error_at(piece, meta.line, meta.column, _TOO_DEEP_MESSAGE) from None
    statement_text = piece.text[meta.start_pos : meta.end_pos].strip()
    return s.Statement(statement_text, piece.line, body, kind)


def _error_at(piece: StatementText, line: int, column: int, message: str) -> InputError:
    """Return the error with its position in the script; `line` and `column` count from the statement's start (1)."""
    column += piece.column - 1 if line == 1 else 0
    return InputError(f"line {piece.line + line - 1}, column {column}: {message}")


def _explain_unexpected(text: str, error: UnexpectedInput) -> tuple[int, int, str]:
    """Return the line and the column of unexpected text, and the message about it."""
    line, column = error.line, error.column
    if isinstance(error, UnexpectedToken):
        wanted = error.accepts or error.expected
        if error.token.type == "$END":
            message, line, column = "the script ends", text.count("\n") + 1, len(text) - text.rfind("\n")
        else:
            message = f"found {str(error.token)[:40]!r}"
    elif isinstance(error, UnexpectedCharacters):
        wanted, message = error.allowed or (), _describe_found(text, error.pos_in_stream or 0)
    else:
        wanted, message = (), "the script ends"
    return line, column, f"{message}; expected {_describe_expected(wanted)}"


def _describe_found(text: str, at: int) -> str:
    if text.startswith("/*", at):
        return f"the comment that begins with {text[at : at + 20]!r} has no end"
    if text[at] in "'\"" or text.startswith("$$", at):
        return f"the text that begins with {text[at : at + 20]!r} has no end"
    return f"found {text[at : at + 20].splitlines()[0]!r}"


def _describe_expected(wanted: Iterable[str]) -> str:
    names = sorted(
        {_name_terminal(name) for name in wanted}, key=lambda text: (text.startswith("'"), text.isupper(), text)
    )
    listed = names[:_MAX_EXPECTED] + (["..."] if len(names) > _MAX_EXPECTED else [])
    return " or ".join([", ".join(listed[:-1]), listed[-1]]) if len(listed) > 1 else "".join(listed) or "something else"


@lru_cache(maxsize=256)
def _name_terminal(terminal: str) -> str:
    """Return the name of a terminal of the grammar for messages."""
    if terminal in _TERMINAL_NAMES:
        return _TERMINAL_NAMES[terminal]
    pattern = _get_lark().get_terminal(terminal).pattern
    if isinstance(pattern, PatternStr):
        return pattern.value if pattern.value.isalpha() else f"'{pattern.value}'"
    return terminal


_MAX_CONTAINERS = 1 << 20
_MAX_DEPTH = 64


def bind_values(statements: Sequence[s.Statement], values: str) -> list[s.Statement]:
    """Return the statements, those with markers once for each of their executions.

    `values` is JSON: an array with an entry for each statement with markers, in order; an entry is an array of
    executions, and an execution is an array of values for `?`, or an object of values for `:name`.

    Raises:
        InputError: the values have another form, or do not match the markers.
    """
    if values.count("[") + values.count("{") > _MAX_CONTAINERS:
        raise InputError(f"the values hold more than {_MAX_CONTAINERS} arrays and objects; split the script")
    document = parse_json(values)
    _check_depth(document)
    marked = [statement for statement in statements if any(_find_markers(statement.body))]
    if not isinstance(document, list) or len(document) != len(marked):
        has = f"it has {len(document)}" if isinstance(document, list) else "it has none"
        raise InputError(
            f"the values must be an array with one entry per statement with bind markers; there are {len(marked)}, "
            f"{has}"
        )
    entries = iter(document)
    bound: list[s.Statement] = []
    for statement in statements:
        markers = list(_find_markers(statement.body))
        if markers:
            bound += _execute(statement, markers, next(entries))
        else:
            bound.append(statement)
    return bound


def _check_depth(document: Any) -> None:
    """Refuse values that are nested too deeply for Python's recursion limit."""
    level = [document] if isinstance(document, list | dict) else []
    for _ in range(_MAX_DEPTH):
        inside = (container.values() if isinstance(container, dict) else container for container in level)
        level = [inner for items in inside for inner in items if isinstance(inner, list | dict)]
        if not level:
            return
    raise InputError(f"the values are nested more than {_MAX_DEPTH} deep; write them with fewer levels")


def _find_markers(node: Any) -> Iterator[s.BindMarker]:
    """Yield the bind markers in a statement, in no particular order."""
    if isinstance(node, s.BindMarker):
        yield node
    elif isinstance(node, tuple):
        for part in node:
            yield from _find_markers(part)
    elif is_dataclass(node):
        for field in fields(node):
            yield from _find_markers(getattr(node, field.name))


def _execute(statement: s.Statement, markers: list[s.BindMarker], entry: object) -> Iterator[s.Statement]:
    if not isinstance(entry, list):
        raise InputError(f"line {statement.line}: the values of a statement are an array of its executions")
    markers = sorted(markers, key=lambda marker: marker.start)
    for number, execution in enumerate(entry, 1):
        try:
            bound_values = _match_values(markers, execution)
        except InputError as error:
            raise InputError(f"line {statement.line}, execution {number}: {error}") from None
        yield _reparse(statement, _substitute(statement, markers, bound_values))


def _match_values(markers: Sequence[s.BindMarker], execution: object) -> list[Any]:
    if isinstance(execution, dict):
        missing = [marker.name for marker in markers if marker.name not in execution]
        if missing:
            raise InputError(f"it has no value for {':' + missing[0] if missing[0] else '?'}, which is positional")
        spare = set(execution) - {marker.name for marker in markers}
        if spare:
            raise InputError(f"it has a value for {min(spare)}, which has no bind marker")
        return [execution[marker.name] for marker in markers]
    if not isinstance(execution, list):
        raise InputError("an execution is an array of values, or an object of values by name")
    if len(execution) != len(markers):
        raise InputError(f"it has {len(execution)} values for {len(markers)} markers")
    return execution


def _substitute(statement: s.Statement, markers: Sequence[s.BindMarker], values: Sequence[Any]) -> str:
    parts, at = [], 0
    is_document = isinstance(statement.body, s.Insert) and statement.body.json is not None
    for marker, value in zip(markers, values, strict=True):
        parts += [
            statement.text[at : marker.start],
            _format_marker_value(marker, value, document=is_document and marker is markers[0]),
        ]
        at = marker.end
    return "".join([*parts, statement.text[at:]])


def _format_marker_value(marker: s.BindMarker, value: Any, *, document: bool) -> str:
    if marker.is_list:
        if not isinstance(value, list):
            raise InputError(f"IN takes an array of values, not {format_json(value)[:40]}")
        return f"({', '.join(map(_format_json_call, value))})"
    if document and isinstance(value, dict):
        return _quote_text(format_json(value))
    return _format_json_call(value)


def _format_json_call(value: Any) -> str:
    return f"fromJson({_quote_text(format_json(value))})"


def _quote_text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
