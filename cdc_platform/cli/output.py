"""Write results to standard output as JSON or tables, and warnings to standard error.

Every JSON value goes through `to_json_value`. Unprintable characters are printed as escapes. Long JSON lists are
spooled to a file.
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import singledispatch
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast
from uuid import UUID

import click

from cdc_platform.cli.command_hints import add_home_option, get_home_option
from cdc_platform.clock import (
    DAY_US,
    HOUR_US,
    MILLISECOND_US,
    MINUTE_US,
    SECOND_US,
    Milliseconds,
    format_ms,
    format_us,
    us_from_datetime,
)

if TYPE_CHECKING:
    from cdc_platform.delta import Lake

_DURATION_UNITS = (
    ("d", DAY_US),
    ("h", HOUR_US),
    ("m", MINUTE_US),
    ("s", SECOND_US),
    ("ms", MILLISECOND_US),
    ("us", 1),
)
MAX_EXACT_INTEGER = 1 << 53
"""Larger integers are written as text, since numbers in JavaScript and many JSON readers are not exact beyond this."""

DOCUMENT_VERSION = 1
"""The value of `version` in every document. It rises when a field changes its name or meaning."""

_ASCII_MARKS = str.maketrans("─✓✗", "-+x")
"""Replacements for lines and marks that a stream cannot encode."""


class StandardStream:
    """Standard output or error of a command, which keeps running if the stream fails.

    If it ended there after a commit, its exit code would be that of a refusal, which means that nothing was changed.
    Only a command that does nothing but print ends with its output, see `ends_with_it`.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.failure: OSError | None = None
        self.ends_with_it = False

    def write(self, text: str) -> int:
        """Write a text, unless an earlier write failed."""
        if self.failure is None:
            try:
                self._stream.write(text)
            except UnicodeEncodeError:
                encoding = self._stream.encoding
                return self.write(text.translate(_ASCII_MARKS).encode(encoding, "backslashreplace").decode(encoding))
            except OSError as error:
                self._fail(error)
        return len(text)

    def flush(self) -> None:
        """Flush the stream, unless a write failed."""
        if self.failure is None:
            try:
                self._stream.flush()
            except OSError as error:
                self._fail(error)

    @property
    def encoding(self) -> str:
        """Return UTF-8, so that click does not write past this stream. `write` escapes what it cannot encode."""
        return "utf-8"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _fail(self, error: OSError) -> None:
        self.failure = error
        # Discard what the stream still buffers, or flushing it at exit would fail.
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
        if self.ends_with_it:
            raise error


@contextmanager
def standard_streams() -> Iterator[StandardStream]:
    """Wrap the standard streams for a command; yield its standard output. A closed stream discards what is written."""
    originals = sys.stdout, sys.stderr
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        output = StandardStream(sys.stdout or nowhere)
        sys.stdout = cast("TextIO", output)
        sys.stderr = cast("TextIO", StandardStream(sys.stderr or nowhere))
        try:
            yield output
        finally:
            sys.stdout, sys.stderr = originals


json_option = click.option("--json", "as_json", is_flag=True, help="Write the result as one JSON document.")


@singledispatch
def to_json_value(value: object) -> object:
    """Convert to JSON types: blobs to 0x hex, times to ISO 8601 in UTC, maps to lists of [key, value]; sort sets."""
    item = getattr(value, "item", None)
    return to_json_value(item()) if callable(item) else str(value)


@to_json_value.register(type(None))
@to_json_value.register(bool)
@to_json_value.register(str)
def _unchanged(value: object) -> object:
    return value


@to_json_value.register
def _(value: int) -> object:
    return str(value) if abs(value) > MAX_EXACT_INTEGER else value


@to_json_value.register
def _(value: float) -> object:
    if math.isnan(value):
        return "NaN"
    return value if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")


@to_json_value.register(bytes)
@to_json_value.register(bytearray)
def _blob(value: bytes) -> object:
    return f"0x{value.hex()}"


@to_json_value.register
def _(value: datetime) -> object:
    return format_us(us_from_datetime(value))


@to_json_value.register(date)
@to_json_value.register(time)
def _day(value: date) -> object:
    return value.isoformat()


@to_json_value.register
def _(value: timedelta) -> object:
    """Return a duration as CQL writes it, for example 1d12h30m."""
    remaining = abs(value) // timedelta(microseconds=1)
    text = ""
    for unit, size in _DURATION_UNITS:
        count, remaining = divmod(remaining, size)
        text += f"{count}{unit}" if count else ""
    return f"{'-' if value < timedelta(0) else ''}{text or '0s'}"


@to_json_value.register(UUID)
@to_json_value.register(Decimal)
def _text(value: object) -> object:
    return str(value)


@to_json_value.register
def _(value: Mapping) -> object:
    return {str(key): to_json_value(inner) for key, inner in value.items()}


@to_json_value.register(set)
@to_json_value.register(frozenset)
def _set(value: Iterable) -> object:
    return [to_json_value(inner) for inner in sorted(value)]


@to_json_value.register(list)
@to_json_value.register(tuple)
def _list(value: Iterable) -> object:
    return [to_json_value(inner) for inner in value]


def escape_unprintable(text: str) -> str:
    """Return a text with unprintable characters escaped as in Python: `\\x1b`, `\\n`, `\\u202e`."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def to_json(value: object, indent: int | None = None) -> str:
    """Return a value as JSON, with unprintable characters as JSON escapes, so that the document stays the same."""
    text = json.dumps(to_json_value(value), ensure_ascii=False, indent=indent)
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character == "\n" else json.dumps(character)[1:-1] for character in text
    )


def write_json(value: object) -> None:
    """Write one JSON document. A list has one entry per line."""
    if isinstance(value, list):
        write_json_list(to_json(entry) for entry in value)
    else:
        click.echo(to_json(value, indent=2))


def write_json_rows(name: str, entries: Iterable[str], **fields: object) -> None:
    """Write a document whose list `name` has entries that are JSON already, each as soon as it comes."""
    head = to_json({"version": DOCUMENT_VERSION, **fields})[:-1]
    opening = f"{head}, {json.dumps(name)}: ["
    click.echo(opening, nl=False)
    separator = "\n"
    for entry in entries:
        click.echo(f"{separator}{entry}", nl=False)
        separator = ",\n"
    click.echo("]}")


def write_json_list(entries: Iterable[str]) -> None:
    """Write a JSON list of entries that are JSON already, each as soon as it comes."""
    opening = "["
    for entry in entries:
        click.echo(f"{opening}{entry}", nl=False)
        opening = ",\n"
    click.echo("[]" if opening == "[" else "]")


def write_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table for people. Columns whose name begins with `>` are right-aligned. None shows as a dash."""
    from cdc_platform.cli.layout import format_table_lines, get_page_width

    names = [
        f">{escape_unprintable(name[1:])}" if name.startswith(">") else escape_unprintable(name) for name in columns
    ]
    cells = [[format_cell(value) for value in row] for row in rows]
    if title:
        click.echo(click.style(escape_unprintable(title), bold=True))
    for line in format_table_lines(names, cells, get_page_width()):
        click.echo(line)


def write_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Write names and values, one pair per line."""
    from cdc_platform.cli.layout import format_fact_lines, get_page_width

    cells = [(escape_unprintable(name), format_cell(value)) for name, value in facts]
    for name, part in format_fact_lines(cells, get_page_width()):
        click.echo(f"{click.style(name, bold=True)}  {part}".rstrip())


def format_cell(value: object) -> str:
    """Return a value as tables show it: as in JSON, but integers always as digits and None as a dash."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    converted = to_json_value(value)
    return escape_unprintable(converted) if isinstance(converted, str) else to_json(value)


def format_optional_ms(ms: Milliseconds | None) -> str | None:
    """Return a generation's time (ms) as text, or None."""
    return None if ms is None else format_ms(ms)


def warn(text: str, *, code: str) -> None:
    """Write a remark to standard error. It is no part of the result, and ends with its `code` (see docs/codes.md)."""
    click.echo(f"warning: {escape_unprintable(add_home_option(text, get_home_option()))} [{code}]", err=True)


_BYTES_IN_MEMORY = 1 << 20


class SpooledList:
    """A list of values that keeps at most 1 MiB in memory. Its temporary file is deleted with the list."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(_BYTES_IN_MEMORY, "w+", encoding="utf-8", newline="\n")  # noqa: SIM115

    def append(self, value: object) -> None:
        """Append a value."""
        self._file.write(to_json(value) + "\n")

    def __iter__(self) -> Iterator[object]:
        """Return an iterator over the values in JSON types."""
        self._file.seek(0)
        return map(json.loads, self._file)


def write_json_document(document: Mapping[str, object]) -> None:
    """Write one JSON document. Spooled lists give the same text as lists in memory."""
    for piece in iterate_document_text(document):
        click.echo(piece, nl=False)
    click.echo()


def iterate_document_text(document: Mapping[str, object]) -> Iterator[str]:
    """Yield the text of `write_json_document`, piece by piece."""
    opening = "{"
    for name, value in document.items():
        yield f"{opening}\n  {to_json(name)}: "
        opening = ","
        if isinstance(value, SpooledList):
            yield from _list_text(value)
        else:
            yield _indented_json(value, 1)
    yield "{}" if opening == "{" else "\n}"


def _list_text(values: SpooledList) -> Iterator[str]:
    opening = "["
    for value in values:
        yield f"{opening}\n    {_indented_json(value, 2)}"
        opening = ","
    yield "[]" if opening == "[" else "\n  ]"


def _indented_json(value: object, depth: int) -> str:
    return to_json(value, indent=2).replace("\n", "\n" + "  " * depth)


def warn_if_topology_changing(lake: Lake) -> None:
    """Warn if the topology is changing, since the nodes stored here are those from before the change."""
    from cdc_platform.metastore import read_topology_transition

    transition = read_topology_transition(lake)
    if transition is not None:
        warn(f"{transition}: the nodes here are those of before", code="topology-changing")
