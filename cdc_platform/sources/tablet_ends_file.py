"""Files with the last tokens of a table's tablets: a JSON list of integers, or of strings of integers."""

from __future__ import annotations

import re
from pathlib import Path

from cdc_platform.errors import InputError
from cdc_platform.sources.json_files import parse_json
from cdc_platform.user_files import read_text

_INTEGER = re.compile(r"-?\d{1,19}", re.ASCII)


def read_tablet_ends(path: str | Path) -> list[int]:
    """The integers of the list in a file, in its order.

    Raises:
        NotFound, InputError: there is no such file, it holds no JSON list, or an entry is no integer.
    """
    return parse_tablet_ends(read_text(Path(path)), str(path))


def parse_tablet_ends(text: str, source: str) -> list[int]:
    """As `read_tablet_ends`, of the text itself; `source` is what messages call it.

    Raises:
        InputError: it is no JSON list, or an entry is no integer.
    """
    value = parse_json(text, source)
    if not isinstance(value, list):
        raise InputError(f"{source} is no JSON list; write the tablets' last tokens as [-1, 9223372036854775807]")
    return [_token(entry, number, source) for number, entry in enumerate(value)]


def _token(entry: object, number: int, source: str) -> int:
    if isinstance(entry, int) and not isinstance(entry, bool):
        return entry
    if isinstance(entry, str) and _INTEGER.fullmatch(entry):
        return int(entry)
    shown = str(entry)[:60] if not isinstance(entry, str) else repr(entry[:60])
    raise InputError(f"{source}: entry {number} is {shown}, which is no integer; tokens are integers")
