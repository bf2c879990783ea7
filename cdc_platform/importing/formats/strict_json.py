"""Parse JSON strictly, with limits by this machine's memory: no duplicate field, no NaN, not too large or too deep.

Every failure is one line with its position.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from cdc_platform.errors import InputError
from cdc_platform.storage import DEFAULT_MAX_BYTES, too_large_error

MAX_JSON_BYTES = DEFAULT_MAX_BYTES
"""The maximum size of a JSON text in bytes: the tokens of three million vnodes."""
MEMORY_FACTOR = 10
"""How many times the size of an export its rows take at most while they are checked."""
_UNKNOWN_MEMORY = 8 * 1024**3


def get_memory_bytes() -> int | None:
    """Return the memory that processes may use: the machine's, or that of its control group if it is less."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
    limits = [Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")]
    for limit in limits:
        try:
            total = min(total, int(limit.read_text(encoding="ascii")))
        except (OSError, ValueError):
            continue
    return total


def max_export_bytes() -> int:
    """Return the maximum total size in bytes of the files of one import."""
    return (get_memory_bytes() or _UNKNOWN_MEMORY) // MEMORY_FACTOR


_MAX_CONTAINERS = 1 << 20
_MAX_DEPTH = 32


def parse_json(text: str, source: str) -> object:
    """Return the value of a JSON text; messages call the text `source`.

    Raises:
        InputError: it is not JSON, repeats a field, contains NaN or an infinity, or is too large or too deep.
    """
    if not text or text.isspace():
        raise InputError(f"{source} is empty; it has to hold JSON")
    if len(text) > MAX_JSON_BYTES:
        raise too_large_error(source, MAX_JSON_BYTES)
    containers = text.count("[") + text.count("{")
    if containers > _MAX_CONTAINERS:
        raise InputError(
            f"{source} holds more than {_MAX_CONTAINERS} lists and objects; nothing that is read here does"
        )
    try:
        value = json.loads(text, object_pairs_hook=_distinct_fields, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise InputError(f"{source} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise _too_deep(source) from None
    except ValueError as error:
        raise InputError(f"{source} is not JSON: {error}") from None
    if containers > _MAX_DEPTH:  # fewer containers cannot be nested deeper, however long a list is
        _assert_shallow(value, source)
    return value


def _assert_shallow(value: object, source: str) -> None:
    """Raise InputError if the value is too deep to print or check within Python's recursion limit."""
    level = [value]
    for _ in range(_MAX_DEPTH):
        level = [inner for container in level for inner in _children(container) if isinstance(inner, (list, dict))]
        if not level:
            return
    raise _too_deep(source)


def _children(value: object) -> Iterable[object]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _too_deep(source: str) -> InputError:
    return InputError(f"{source} is not JSON that can be read: it is nested more than {_MAX_DEPTH} deep")


def _distinct_fields(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"field {twice!r} is given twice; name it once")
    return fields


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is no JSON number")
