"""The text of a script as `platform.kept_scripts` has it: where it is long, compressed in a comment of CQL.

A row of a table is in memory several times while it is written.
"""

from __future__ import annotations

import base64
import zlib

from cdc_platform.errors import InputError

_PACKED = "-- compressed, by zlib and base85: "
_LONG = 1 << 18


def packed(text: str) -> str:
    """A script as it is noted."""
    if len(text) < _LONG and not text.startswith(_PACKED):
        return text
    return _PACKED + base64.b85encode(zlib.compress(text.encode(), 1)).decode()


def unpacked(noted: str) -> str:
    """A script as it was; raises InputError for one that was not noted by `packed`."""
    if not noted.startswith(_PACKED):
        return noted
    try:
        return zlib.decompress(base64.b85decode(noted.removeprefix(_PACKED))).decode()
    except (ValueError, zlib.error):
        raise InputError("the text of a script in platform.kept_scripts is damaged; restore the table") from None
