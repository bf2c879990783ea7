"""Text and JSON files from outside, read strictly: no field twice, no NaN, every failure one line with its place.

What the JSON has to say is left to the modules that ask for it.
"""

from __future__ import annotations

import json
from pathlib import Path

from cdc_platform.errors import InputError, NotFound


def read_text(path: Path) -> str:
    """A file's text, UTF-8 with or without a byte order mark.

    Raises:
        NotFound: there is no such file.
        InputError: it is no readable file, or not UTF-8.
    """
    try:
        # Line ends stay as they are: a cut file is told by the one that is missing.
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise NotFound(f"{path}: no such file; check the path") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder; name a file in it") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no text: byte {error.start} is not UTF-8; save it as UTF-8") from None


def parse_json(text: str, source: str) -> object:
    """The value of a JSON text; `source` is what messages call it.

    Raises:
        InputError: it is no JSON, says a field twice, or holds NaN or an infinity.
    """
    if not text.strip():
        raise InputError(f"{source} is empty; it has to hold JSON")
    try:
        return json.loads(text, object_pairs_hook=_distinct_fields, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        raise InputError(f"{source} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise InputError(f"{source} is not JSON that can be read: it is nested too deeply") from None
    except ValueError as error:
        raise InputError(f"{source} is not JSON: {error}") from None


def _distinct_fields(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"field {twice!r} is there twice; name it once")
    return fields


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no JSON number")
