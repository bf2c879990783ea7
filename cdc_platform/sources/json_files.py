"""JSON from outside, read strictly: no field twice, no NaN, nothing too large or too deep to be held.

Every failure is one line with its place.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from cdc_platform.errors import InputError
from cdc_platform.sources.sizes import MOST_JSON
from cdc_platform.user_files import too_large

_MOST_CONTAINERS = 1 << 20
_DEEPEST = 32


def parse_json(text: str, source: str) -> object:
    """The value of a JSON text; `source` is what messages call it.

    Raises:
        InputError: it is no JSON, says a field twice, holds NaN or an infinity, or is too large or too deep.
    """
    if not text or text.isspace():
        raise InputError(f"{source} is empty; it has to hold JSON")
    if len(text) > MOST_JSON:
        raise too_large(source, MOST_JSON)
    containers = text.count("[") + text.count("{")
    if containers > _MOST_CONTAINERS:
        raise InputError(
            f"{source} holds more than {_MOST_CONTAINERS} lists and objects; nothing that is read here does"
        )
    try:
        value = json.loads(text, object_pairs_hook=_distinct_fields, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        raise InputError(f"{source} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise _too_deep(source) from None
    except ValueError as error:
        raise InputError(f"{source} is not JSON: {error}") from None
    if containers > _DEEPEST:  # fewer of them cannot be nested deeper, however long a list is
        _assert_shallow(value, source)
    return value


def _assert_shallow(value: object, source: str) -> None:
    """Hold that whoever shows or checks the value does not come to Python's own limit of depth."""
    level = [value]
    for _ in range(_DEEPEST):
        level = [inner for each in level for inner in _inside(each) if isinstance(inner, (list, dict))]
        if not level:
            return
    raise _too_deep(source)


def _inside(value: object) -> Iterable[object]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _too_deep(source: str) -> InputError:
    return InputError(f"{source} is not JSON that can be read: it is nested more than {_DEEPEST} deep")


def _distinct_fields(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"field {twice!r} is there twice; name it once")
    return fields


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no JSON number")
