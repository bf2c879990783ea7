"""Statements that differ in nothing but their literals have one shape: parsed once, and filled with other literals.

Whatever a shape cannot hold for sure (comments, bind markers, literals that mean more than themselves) is parsed whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from lark import Token

from cdc_platform.cql import statements as s
from cdc_platform.cql.bodies import READERS, Bodies

_LITERAL = re.compile(
    r"""( '[^']*+(?:''[^']*+)*+'
        | "[^"]*+(?:""[^"]*+)*+"
        | (?<![\w.])[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}(?![\w.-])
        | (?<![\w.])0x[0-9a-f]*(?![\w.])
        | (?<![\w.])-?[0-9]+(?:\.[0-9]+)?(?![\w.])
        )""",
    re.VERBOSE | re.IGNORECASE,
)
_NO_SHAPE = re.compile(r"--|//|/\*|\$\$")
"""What no shape has outside of its literals: comments, and texts between dollars."""
_MOST_SHAPES = 2_000
_LONGEST_SHAPE = 8_192
_UUID_CHARACTERS = 36

Fill = Callable[[Mapping[int, s.Constant] | Sequence[s.Constant]], Any]
"""Makes a part of a statement's body of its literals, by their numbers in the text."""


class Slot(s.Constant):
    """A place of a body where a literal stands; its `value` is the literal's number in the text."""


@dataclass(frozen=True)
class Literals:
    """A text without its literals, and those: the kind (a terminal of the grammar) and the text of each, in order."""

    shape: tuple[str, ...]
    found: list[tuple[str, str]]

    @property
    def places(self) -> dict[tuple[int, int], tuple[int, str]]:
        """By where a literal begins and ends in the text: its number and its kind."""
        places: dict[tuple[int, int], tuple[int, str]] = {}
        at, number = 0, 0
        for place, part in enumerate(self.shape):
            end = at + len(part)
            if _is_mark(place, part):
                kind, text = self.found[number]
                end = at + len(text)
                places[at, end] = number, kind
                number += 1
            at = end
        return places


_KINDS = {"\0STRING": "STRING", "\0UUID": "UUID", "\0BLOB": "BLOB", "\0FLOAT": "FLOAT", "\0INTEGER": "INTEGER"}
_KINDS |= {"\0FLOAT-": "FLOAT", "\0INTEGER-": "INTEGER"}
"""What stands in a shape in place of a literal; whether a number is negative is part of its shape."""


def _is_mark(place: int, part: str) -> bool:
    return place % 2 == 1 and part[0] != '"'


def literals_of(text: str) -> Literals:
    """Take a text apart into its shape and its literals."""
    parts = _LITERAL.split(text)
    found: list[tuple[str, str]] = []
    for place in range(1, len(parts), 2):
        literal = parts[place]
        if literal[0] != '"':
            mark = _mark(literal)
            parts[place] = mark
            found.append((_KINDS[mark], literal))
    return Literals(tuple(parts), found)


def _mark(literal: str) -> str:
    if literal[0] == "'":
        return "\0STRING"
    if literal[1:2] in ("x", "X"):
        return "\0BLOB"
    if len(literal) == _UUID_CHARACTERS and literal.count("-") == 4:
        return "\0UUID"
    sign = "-" if literal[0] == "-" else ""
    return ("\0FLOAT" if "." in literal else "\0INTEGER") + sign


class Slotted(Bodies):
    """The records of a statement with slots in place of its literals, which are at the given places of the text.

    `constants` are those that it has put slots for, by their numbers.
    """

    def __init__(self, places: dict[tuple[int, int], tuple[int, str]]) -> None:
        super().__init__()
        self._places = places
        self.constants: dict[int, s.Constant] = {}

    def _read(self, token: Token) -> s.Constant:
        """The slot of a literal; the constant itself where no literal is known of."""
        constant = super()._read(token)
        number, kind = self._places.get((token.start_pos or 0, token.end_pos or 0), (-1, ""))
        if kind != token.type:
            return constant
        self.constants[number] = constant
        return Slot(constant.kind, number, constant.text)


@dataclass(frozen=True)
class _Known:
    fill: Fill
    kind: str
    behind: int
    """Characters of the text that are behind the statement."""


class Shapes:
    """The shapes that were met, the last thousands of them at most."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], _Known] = {}

    def statement(self, literals: Literals, text: str, line: int) -> s.Statement | None:
        """The statement of a text, if its shape is known and its literals can be read."""
        known = self._known.get(literals.shape)
        if known is None:
            return None
        constants = constants_of(literals)
        if constants is None:
            return None
        told = text[: len(text) - known.behind].strip()
        return s.Statement(told, line, known.fill(constants), known.kind)

    def learn(self, literals: Literals, body: s.Body, kind: str, text: str, span: tuple[int, int]) -> None:
        """Keep the shape of a body with slots that stands at `span` of its text, if all its literals have a slot."""
        if not isinstance(body, s.Write | s.Batch) or sum(map(len, literals.shape)) > _LONGEST_SHAPE:
            return
        plain = (part for place, part in enumerate(literals.shape) if place % 2 == 0)
        slots = sorted(slot.value for slot in _parts(body, Slot))
        if (
            slots != list(range(len(literals.found)))
            or any(map(_NO_SHAPE.search, plain))
            or any(_parts(body, s.Marker))
        ):
            return
        start, end = span
        if start or len(text) - end > len(literals.shape[-1]):
            return
        if len(self._known) >= _MOST_SHAPES:
            self._known.clear()
        self._known[literals.shape] = _Known(filler(body), kind, len(text) - end)


def constants_of(literals: Literals) -> list[s.Constant] | None:
    """The literals as the parser has them; None where one of them is none after all, which the parser tells of."""
    try:
        return [s.Constant(*READERS[kind](text), text) for kind, text in literals.found]
    except ValueError:
        return None


def _parts(node: Any, kind: type[Any]) -> Iterator[Any]:
    """The parts of a body that are of a kind."""
    if isinstance(node, kind):
        yield node
    elif isinstance(node, tuple):
        for part in node:
            yield from _parts(part, kind)
    elif is_dataclass(node):
        for field in fields(node):
            yield from _parts(getattr(node, field.name), kind)


def filler(body: s.Body) -> Fill:
    """What makes a body of the literals that belong into its slots."""
    return _filler(body) or (lambda _: body)


def _filler(node: Any) -> Fill | None:
    """As `filler`, of a part of a body; None where it has no slot."""
    if isinstance(node, Slot):
        number = node.value
        return lambda constants: constants[number]
    is_plain = type(node) is tuple
    if not is_plain and not isinstance(node, tuple) and not is_dataclass(node):
        return None
    parts = list(node) if isinstance(node, tuple) else [getattr(node, field.name) for field in fields(node)]
    fillers = list(map(_filler, parts))
    if not any(fillers):
        return None
    made: Any = type(node)
    fills = [each or _same(part) for each, part in zip(fillers, parts, strict=True)]
    if is_plain:
        return lambda constants: tuple([fill(constants) for fill in fills])
    return lambda constants: made(*[fill(constants) for fill in fills])


def _same(part: Any) -> Fill:
    return lambda _: part
