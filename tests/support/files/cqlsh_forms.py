"""Convert a CSV file of COPY into the other output formats of cqlsh."""

from __future__ import annotations

import csv
import io
import json
import re

_TEXT = re.compile(r"'[^']*'|0x[0-9a-f]+|[0-9a-f]{8}-[0-9a-f-]{27}|[A-Za-z]\w*")
"""Parts of a collection that are strings in JSON."""
_TIME = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3})\+0000")


def as_printed(text: str) -> str:
    """Return a COPY file as SELECT prints it: right-aligned, 6 decimals, null, a row count and a page break."""
    rows = [[_TIME.sub(r"\g<1>000+0000", cell) or "null" for cell in row] for row in csv.reader(io.StringIO(text))]
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    head, *body = (" " + " | ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    rule = "-" + "-+-".join("-" * width for width in widths) + "-"
    pages = [*body[:1], "---MORE---", *([head, rule] if body[1:] else []), *body[1:]]
    return "\n".join(["", head, rule, *pages, "", f"({len(body)} rows)", ""])


def objects(text: str) -> list[str]:
    """Return a COPY file's rows as SELECT JSON: blobs as text, sets and tuples as arrays, tokens as numbers."""

    def value(name: str, cell: str) -> str:
        if not cell:
            return "null"
        if re.fullmatch(r"-?\d+", cell):
            return cell
        if cell[0] not in "{[":
            return json.dumps(_TIME.sub(r"\1Z", cell))
        return _TEXT.sub(lambda text: json.dumps(text[0].strip("'")), cell.translate(str.maketrans("{}()", "[][]")))

    return [
        "{" + ", ".join(f'"{name}": {value(name, cell)}' for name, cell in row.items()) + "}"
        for row in csv.DictReader(io.StringIO(text))
    ]


def as_json_table(text: str) -> str:
    """Return SELECT JSON as cqlsh prints it."""
    rows = objects(text)
    return "\n".join(["", " [json]", "-" * 20, *(f" {row}" for row in rows), "", f"({len(rows)} rows)", ""])


def as_json_lines(text: str) -> str:
    """Return the objects alone, one per line."""
    return "\n".join(objects(text))


def as_json_list(text: str) -> str:
    """Return the objects as one list."""
    return "[" + ",\n".join(objects(text)) + "]"
