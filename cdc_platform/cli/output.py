"""Write results to standard output as JSON or tables, and warnings to standard error.

Every JSON value goes through `to_json_value`. Control characters and escapes are printed escaped. Long JSON
lists are spooled to a file.
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
    from cdc_platform.preflight import PreflightResult

_DURATION_UNITS = (
    ("d", DAY_US),
    ("h", HOUR_US),
    ("m", MINUTE_US),
    ("s", SECOND_US),
    ("ms", MILLISECOND_US),
    ("us", 1),
)
MAX_EXACT_INTEGER = 1 << 53
"""Whole numbers beyond this are no longer exact as JavaScript's and many JSON readers' numbers: they go out as text."""

_ASCII_MARKS = str.maketrans("─✓✗", "-+x")
"""What stands for lines and marks where a stream cannot encode them."""


class StandardStream:
    """Standard output or error of a command, which runs on where nobody takes what it writes.

    A command that ended there would leave with the code of a refusal, which says that nothing was changed, behind a
    commit. Only one that does nothing but write ends with its output, see `ends_with_it`.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.failure: OSError | None = None
        self.ends_with_it = False

    def write(self, text: str) -> int:
        """Write a text, unless an earlier one could not be written."""
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
        """Flush what was written, unless it could not be."""
        if self.failure is None:
            try:
                self._stream.flush()
            except OSError as error:
                self._fail(error)

    @property
    def encoding(self) -> str:
        """UTF-8, so that click writes to no stream below this one; what the stream cannot encode goes out escaped."""
        return "utf-8"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _fail(self, error: OSError) -> None:
        self.failure = error
        # What the stream still holds goes nowhere, or the process would fail over it when it ends.
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
        if self.ends_with_it:
            raise error


@contextmanager
def standard_streams() -> Iterator[StandardStream]:
    """Let a command write to the standard streams; yield its standard output. One that is closed goes nowhere."""
    before = sys.stdout, sys.stderr
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        output = StandardStream(sys.stdout or nowhere)
        sys.stdout = cast("TextIO", output)
        sys.stderr = cast("TextIO", StandardStream(sys.stderr or nowhere))
        try:
            yield output
        finally:
            sys.stdout, sys.stderr = before


json_option = click.option("--json", "as_json", is_flag=True, help="Write the result as one JSON document.")


@singledispatch
def to_json_value(value: object) -> object:
    """A value as JSON has it: blobs as 0x hex, times as ISO 8601 in UTC, maps as lists of [key, value], sets sorted."""
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
    """A duration as CQL writes it: 1d12h30m."""
    left = abs(value) // timedelta(microseconds=1)
    text = ""
    for unit, size in _DURATION_UNITS:
        count, left = divmod(left, size)
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
    """A text with what cannot be shown, control characters and the like, as in Python: `\\x1b`, `\\n`, `\\u202e`."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def to_json(value: object, indent: int | None = None) -> str:
    """A value as JSON, with what cannot be shown as JSON escapes it: it is the same document."""
    text = json.dumps(to_json_value(value), ensure_ascii=False, indent=indent)
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in text)


def write_json(value: object) -> None:
    """One JSON document; a list has an entry a line."""
    if isinstance(value, list):
        write_json_list(to_json(entry) for entry in value)
    else:
        click.echo(to_json(value, indent=2))


def write_json_list(entries: Iterable[str]) -> None:
    """A JSON list of entries that are JSON already, written as they come: nothing waits for the last one."""
    opening = "["
    for entry in entries:
        click.echo(f"{opening}{entry}", nl=False)
        opening = ",\n"
    click.echo("[]" if opening == "[" else "]")


def write_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table for people. A column whose name begins with `>` is aligned to the right. None shows as a dash."""
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
    """Names and values, one a line."""
    from cdc_platform.cli.layout import format_fact_lines, get_page_width

    told = [(escape_unprintable(name), format_cell(value)) for name, value in facts]
    for name, part in format_fact_lines(told, get_page_width()):
        click.echo(f"{click.style(name, bold=True)}  {part}".rstrip())


def format_cell(value: object) -> str:
    """A value as tables show it: as JSON has it, whole numbers always as digits, None as a dash."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    told = to_json_value(value)
    return escape_unprintable(told) if isinstance(told, str) else to_json(value)


def format_optional_ms(ms: Milliseconds | None) -> str | None:
    """A generation's time (ms) as text, None as None."""
    return None if ms is None else format_ms(ms)


def warn(text: str, *, code: str) -> None:
    """A remark that is not part of the result, on standard error; its `code` ends the line, docs/codes.md has it."""
    click.echo(f"warning: {escape_unprintable(add_home_option(text, get_home_option()))} [{code}]", err=True)


def write_preflight_results(trials: Sequence[PreflightResult]) -> None:
    """Print what was tried (at least one thing), each with a tick or a cross and, where there is one, its mend."""
    width = max(len(trial.check) for trial in trials)
    for trial in trials:
        mark = click.style("✓", fg="green") if trial.ok else click.style("✗", fg="red")
        click.echo(f"{mark} {trial.check:<{width}}  {escape_unprintable(trial.found)}")
        if trial.mend:
            mend = add_home_option(trial.mend, get_home_option())
            click.echo(f"  {'':<{width}}  {click.style('mend:', bold=True)} {escape_unprintable(mend)}")


_BYTES_IN_MEMORY = 1 << 20


class SpooledList:
    """A list of values, of which the memory holds a mebibyte at most; its file is gone when it is."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(_BYTES_IN_MEMORY, "w+", encoding="utf-8", newline="\n")  # noqa: SIM115

    def append(self, value: object) -> None:
        """Put a value behind the others."""
        self._file.write(to_json(value) + "\n")

    def __iter__(self) -> Iterator[object]:
        """The values as JSON has them."""
        self._file.seek(0)
        return map(json.loads, self._file)


def write_json_document(document: Mapping[str, object]) -> None:
    """One JSON document, with the same text as one whose spooled lists were in memory."""
    for piece in iterate_document_text(document):
        click.echo(piece, nl=False)
    click.echo()


def iterate_document_text(document: Mapping[str, object]) -> Iterator[str]:
    """The text of `write_json_document`, piece by piece."""
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
    """Say that the nodes are those of before, where they are."""
    from cdc_platform.metastore import read_topology_transition

    found = read_topology_transition(lake)
    if found is not None:
        warn(f"{found}: the nodes here are those of before", code="topology-changing")
