"""Answers of a cluster as the bytes that came: no value is decoded, so that none stops a page.

The driver decodes a page whole or not at all, and Python has no timestamp of the year 10000. What bytes are worth is
left to who knows the table.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from cassandra.cluster import ResponseFuture
from cassandra.protocol import ProtocolHandler, ResultMessage, read_int

_LENGTH = struct.Struct(">i")
Cells = list[bytes | None]


@dataclass(frozen=True)
class RawPage:
    """A page of rows: a list of cells for each column name, all of `rows` cells."""

    names: tuple[str, ...]
    columns: Sequence[Cells]
    rows: int


class _RawResult(ResultMessage):
    """A result whose rows stay bytes."""

    def recv_results_rows(
        self,
        f: Any,
        protocol_version: Any,
        user_type_map: Any,
        result_metadata: Any,
        column_encryption_policy: Any,
    ) -> None:
        """Read the head of the page as the driver does, and cut the rest into cells."""
        self.recv_results_metadata(f, user_type_map)
        columns = self.column_metadata or result_metadata
        rows = read_int(f)
        self.column_names = [column[2] for column in columns]
        self.column_types = [column[3] for column in columns]
        self.parsed_rows = [RawPage(tuple(self.column_names), _cells(f.read(), rows, len(columns)), rows)]


class RawProtocol(ProtocolHandler):
    """The driver's protocol with results that stay bytes."""

    message_types_by_opcode: ClassVar[Mapping[int, Any]] = {
        **ProtocolHandler.message_types_by_opcode,
        ResultMessage.opcode: _RawResult,
    }


def raw_rows(_: Sequence[str], pages: list[RawPage]) -> list[RawPage]:
    """What an execution profile has as its row factory, where answers stay bytes."""
    return pages


def pages_of(future: ResponseFuture) -> Iterator[RawPage]:
    """The pages of an answer, each asked for when it is wanted; raises what the driver raises."""
    answer: Any = future.result()
    yield from answer.current_rows
    while answer.has_more_pages:
        answer.fetch_next_page()
        yield from answer.current_rows


def _cells(body: bytes, rows: int, width: int) -> list[Cells]:
    columns: list[Cells] = [[] for _ in range(width)]
    put = [column.append for column in columns]
    unpack, at = _LENGTH.unpack_from, 0
    for _ in range(rows):
        for append in put:
            (length,) = unpack(body, at)
            at += 4
            if length < 0:
                append(None)
            else:
                append(body[at : at + length])
                at += length
    return columns
