"""The rows of a CSV file as `cqlsh COPY ... TO ... WITH HEADER = true` writes it; what shows that it was cut.

It knows no table: columns are what the header names.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator

from cdc_platform.errors import InputError
from cdc_platform.sources.cqlsh_values import HALF

Rows = Iterator[tuple[int, dict[str, str]]]
"""Rows of an export as (line, values by column); values are in the form that COPY gives them, null is empty."""

# One after the other: a file object in memory would hold the text a second time, four bytes a character.
_LINES = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_ENDS_WHOLE = re.compile(r'.*[}\]"]|.*([+-]\d{4}|Z)|', re.DOTALL)


def csv_rows(source: str, text: str) -> tuple[list[str], Rows]:
    """The columns that the header names, and the rows after it. A header alone is a table without a row.

    Raises:
        InputError: the text is no whole CSV.
    """
    # A set of a few thousand stream IDs is one field; the csv module stops at 128 KiB unless told.
    csv.field_size_limit(max(csv.field_size_limit(), 1 << 30))
    reader = csv.reader((line[0] for line in _LINES.finditer(text)), strict=True)
    header = [name.strip() for name in _next(source, reader) or []]
    return header, _dict_rows(source, reader, header, ends_whole=text.endswith("\n"))


def _next(source: str, reader: Iterator[list[str]]) -> list[str] | None:
    try:
        return next(reader, None)
    except csv.Error as error:
        cut = f"a quote is open at its end: {HALF}; export it again" if "end of data" in str(error) else str(error)
        raise InputError(f"{source} is no whole CSV file: {cut}") from None


def _dict_rows(source: str, reader: Iterator[list[str]], header: list[str], *, ends_whole: bool) -> Rows:
    line, last = 1, ""
    for line, row in enumerate(iter(lambda: _next(source, reader), None), start=2):
        if not row:
            continue
        if len(row) != len(header):
            cut = f": {HALF}; export it again" if len(row) < len(header) else ""
            raise InputError(f"{source}, line {line} has {len(row)} columns where the header names {len(header)}{cut}")
        last = row[-1]
        yield line, dict(zip(header, row, strict=True))
    if line == 1 and not ends_whole:
        raise InputError(
            f"{source} ends in its header, without a line end: {HALF}; export it again, or end the line if the table "
            "is empty"
        )
    # A cut inside a last number or time leaves one that reads well: only the line end tells that it is whole.
    if not ends_whole and not _ENDS_WHOLE.fullmatch(last):
        raise InputError(
            f"{source}, line {line} ends in {last[-30:]!r} without a line end: {HALF}; export it again, or end the "
            "line if the file is whole"
        )
