"""Regular expressions read texts of any length: none repeats a group that can backtrack."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from re import _constants as ops  # pyrefly: ignore
from re import _parser as parser  # pyrefly: ignore
from typing import Any

from lark import Lark

ROOT = Path(__file__).resolve().parents[2]
SIMPLE = (ops.LITERAL, ops.NOT_LITERAL, ops.IN, ops.ANY, ops.CATEGORY)


def patterns() -> Iterator[tuple[str, Any, int]]:
    """Yield every constant pattern of the program with position and flags, and every terminal of the grammar."""
    for path in sorted((ROOT / "cdc_platform").rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.args:
                owner, text = call.func.value, call.args[0]
                if isinstance(owner, ast.Name) and owner.id == "re" and isinstance(text, ast.Constant):
                    verbose = any("VERBOSE" in ast.unparse(argument) for argument in (*call.args[1:], *call.keywords))
                    yield f"{path.relative_to(ROOT)}:{call.lineno}", text.value, re.VERBOSE if verbose else 0
    grammar = files("cdc_platform.cql").joinpath("grammar.lark").read_text(encoding="utf-8")
    for terminal in Lark(grammar, parser="lalr").terminals:
        yield f"grammar.lark: {terminal.name}", terminal.pattern.to_regexp(), 0


def find_stored_states(parsed: Any) -> Iterator[str]:
    """Yield the unbounded loops over a group that is not possessive, which store a state per iteration."""
    for operation, argument in parsed:
        if operation in (ops.MAX_REPEAT, ops.MIN_REPEAT):
            _, most, body = argument
            if most == ops.MAXREPEAT and not (len(body) == 1 and body[0][0] in SIMPLE):
                yield str(operation)
        yield from find_in_parts(argument)


def find_in_parts(argument: Any) -> Iterator[str]:
    """Yield such loops in the parts of an operation."""
    if isinstance(argument, parser.SubPattern):
        yield from find_stored_states(argument)
    elif isinstance(argument, (tuple, list)):
        for part in argument:
            yield from find_in_parts(part)


def test_no_pattern_stores_a_state_per_character() -> None:
    """An unbounded loop over a group stores hundreds of bytes per iteration, or 1.6 GB for 2 MB of text."""
    loops = [
        (position, loop)
        for position, text, flags in patterns()
        for loop in find_stored_states(parser.parse(text, flags))
    ]
    assert loops == []


def find_backtracking(parsed: Any, possessive: bool = False) -> Iterator[str]:
    """Yield the loops in possessive groups that match greedily or lazily and therefore can backtrack."""
    for operation, argument in parsed:
        inner = possessive or operation == ops.ATOMIC_GROUP
        if operation in (ops.MAX_REPEAT, ops.MIN_REPEAT) and possessive and argument[0] != argument[1]:
            yield str(operation)
        if operation == ops.POSSESSIVE_REPEAT:
            inner = possessive or not (len(argument[2]) == 1 and argument[2][0][0] in SIMPLE)
        for part in argument if isinstance(argument, (tuple, list)) else (argument,):
            for group in part if isinstance(part, list) else (part,):
                if isinstance(group, parser.SubPattern):
                    yield from find_backtracking(group, inner)


def test_possessive_groups_hold_no_loop_that_backtracks() -> None:
    """Before 3.11.5, Python matches too little if the body of a possessive loop backtracks."""
    assert [
        (position, loop)
        for position, text, flags in patterns()
        for loop in find_backtracking(parser.parse(text, flags))
    ] == []


def test_loops_that_backtrack_in_possessive_groups_are_found() -> None:
    """Greedy and lazy loops are reported at any depth; loops of a fixed length and possessive ones are not."""
    for text in (r"(?:, ?a)*+", r"(?:a|(b|c.*?d))*+", r"x(?>a+b)", r"(?=(?:a\s+b)*+)"):
        assert list(find_backtracking(parser.parse(text))), text
    for text in (r"(?:, ?+a)*+", r"a+(?:[^']|'')*+b*", r"(?:[0-9a-f]{2})*+", r"(?>a|b)*+"):
        assert not list(find_backtracking(parser.parse(text))), text


def test_loops_over_groups_are_found() -> None:
    """The rule finds such loops at any depth, and no possessive ones."""
    for text in (r"'(?:[^']|'')*'", r"(?:a|bc)+d", r"x(?P<n>(ab)*?)y", r"(?=(a(b|c)+))"):
        assert list(find_stored_states(parser.parse(text))), text
    for text in (r"'(?:[^']|'')*+'", r"[ab]+c", r"(?>a|b)*+", r"(?:a|b){1,20}"):
        assert not list(find_stored_states(parser.parse(text))), text
    assert sum(1 for _ in patterns()) > 100
