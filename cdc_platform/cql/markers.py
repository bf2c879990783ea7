"""Statements with bind markers, as drivers prepare them: executed once for each row of values given beside them.

Values are JSON, read by the types of the places where they stand, as fromJson() does; what comes out is a script
without markers, which says the same on its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from cdc_platform.cql import statements as s
from cdc_platform.cql.json_values import parsed, written_json
from cdc_platform.cql.parser import parse_again
from cdc_platform.errors import InputError

_MOST_CONTAINERS = 1 << 20
_DEEPEST = 64


def bound(statements: Sequence[s.Statement], values: str) -> list[s.Statement]:
    """The statements, those with markers once for each of their executions.

    `values` is JSON: an array with an entry for each statement with markers, in order; an entry is an array of
    executions, and an execution is an array of values for `?`, or an object of values for `:name`.

    Raises:
        InputError: the values are not of that form, or not those that the markers need.
    """
    if values.count("[") + values.count("{") > _MOST_CONTAINERS:
        raise InputError(f"the values hold more than {_MOST_CONTAINERS} arrays and objects; split the script")
    document = parsed(values)
    _assert_shallow(document)
    marked = [statement for statement in statements if any(markers_of(statement.body))]
    if not isinstance(document, list) or len(document) != len(marked):
        has = f"it has {len(document)}" if isinstance(document, list) else "it has none"
        raise InputError(
            f"the values are an array with an entry a statement with bind markers; there are {len(marked)}, {has}"
        )
    entries = iter(document)
    found: list[s.Statement] = []
    for statement in statements:
        markers = list(markers_of(statement.body))
        if markers:
            found += _executed(statement, markers, next(entries))
        else:
            found.append(statement)
    return found


def _assert_shallow(document: Any) -> None:
    """Hold that nothing that walks the values comes to Python's own limit of depth."""
    level = [document] if isinstance(document, list | dict) else []
    for _ in range(_DEEPEST):
        inside = (each.values() if isinstance(each, dict) else each for each in level)
        level = [inner for some in inside for inner in some if isinstance(inner, list | dict)]
        if not level:
            return
    raise InputError(f"the values are nested more than {_DEEPEST} deep; write them with fewer levels")


def markers_of(node: Any) -> Iterator[s.Marker]:
    """The bind markers in a statement, in no order."""
    if isinstance(node, s.Marker):
        yield node
    elif isinstance(node, tuple):
        for part in node:
            yield from markers_of(part)
    elif is_dataclass(node):
        for field in fields(node):
            yield from markers_of(getattr(node, field.name))


def _executed(statement: s.Statement, markers: list[s.Marker], entry: object) -> Iterator[s.Statement]:
    if not isinstance(entry, list):
        raise InputError(f"line {statement.line}: the values of a statement are an array of its executions")
    markers = sorted(markers, key=lambda marker: marker.start)
    for number, execution in enumerate(entry, 1):
        try:
            given = _given(markers, execution)
        except InputError as error:
            raise InputError(f"line {statement.line}, execution {number}: {error}") from None
        yield parse_again(statement, _text(statement, markers, given))


def _given(markers: Sequence[s.Marker], execution: object) -> list[Any]:
    if isinstance(execution, dict):
        lacking = [marker.name for marker in markers if marker.name not in execution]
        if lacking:
            raise InputError(f"it has no value for {':' + lacking[0] if lacking[0] else '?'}, which stands by order")
        spare = set(execution) - {marker.name for marker in markers}
        if spare:
            raise InputError(f"it has a value for {min(spare)}, of which there is no marker")
        return [execution[marker.name] for marker in markers]
    if not isinstance(execution, list):
        raise InputError("an execution is an array of values, or an object of values by name")
    if len(execution) != len(markers):
        raise InputError(f"it has {len(execution)} values for {len(markers)} markers")
    return execution


def _text(statement: s.Statement, markers: Sequence[s.Marker], values: Sequence[Any]) -> str:
    parts, at = [], 0
    is_document = isinstance(statement.body, s.Insert) and statement.body.json is not None
    for marker, value in zip(markers, values, strict=True):
        parts += [
            statement.text[at : marker.start],
            _term(marker, value, document=is_document and marker is markers[0]),
        ]
        at = marker.end
    return "".join([*parts, statement.text[at:]])


def _term(marker: s.Marker, value: Any, *, document: bool) -> str:
    if marker.several:
        if not isinstance(value, list):
            raise InputError(f"IN takes an array of values, not {written_json(value)[:40]}")
        return f"({', '.join(map(_constant, value))})"
    if document and isinstance(value, dict):
        return _quoted(written_json(value))
    return _constant(value)


def _constant(value: Any) -> str:
    return f"fromJson({_quoted(written_json(value))})"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
