"""Entries of a JSON list that wait in a file of their own until they are written, however many there are."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping

import click

from cdc_platform.commands.output import as_json

_BYTES_IN_MEMORY = 1 << 20


class Spooled:
    """A list of values, of which the memory holds a mebibyte at most; its file is gone when it is."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(_BYTES_IN_MEMORY, "w+", encoding="utf-8", newline="\n")  # noqa: SIM115

    def append(self, value: object) -> None:
        """Put a value behind the others."""
        self._file.write(as_json(value) + "\n")

    def __iter__(self) -> Iterator[object]:
        """The values as JSON has them."""
        self._file.seek(0)
        return map(json.loads, self._file)


def write_document(document: Mapping[str, object]) -> None:
    """One JSON document, with the same text as one whose spooled lists were in memory."""
    for piece in pieces_of(document):
        click.echo(piece, nl=False)
    click.echo()


def pieces_of(document: Mapping[str, object]) -> Iterator[str]:
    """The text of `write_document`, piece by piece."""
    opening = "{"
    for name, value in document.items():
        yield f"{opening}\n  {as_json(name)}: "
        opening = ","
        if isinstance(value, Spooled):
            yield from _list_pieces(value)
        else:
            yield _indented(value, 1)
    yield "{}" if opening == "{" else "\n}"


def _list_pieces(values: Spooled) -> Iterator[str]:
    opening = "["
    for value in values:
        yield f"{opening}\n    {_indented(value, 2)}"
        opening = ","
    yield "[]" if opening == "[" else "\n  ]"


def _indented(value: object, depth: int) -> str:
    return as_json(value, indent=2).replace("\n", "\n" + "  " * depth)
