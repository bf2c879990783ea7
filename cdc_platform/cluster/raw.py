"""Answers of a cluster as the bytes that came: no value is decoded, so that none stops a page.

The driver decodes a page whole or not at all, and Python has no timestamp of the year 10000. What bytes are worth is
left to who knows the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
from cassandra.cluster import ResponseFuture
from cassandra.cqltypes import BytesType
from cassandra.protocol import ProtocolHandler, ResultMessage

from cdc_platform.cluster.cutting import Cut, cut


@dataclass(frozen=True)
class RawPage:
    """A page of rows: the cells (binary) of each column name, all of `rows` cells."""

    names: tuple[str, ...]
    columns: Sequence[pa.BinaryArray]
    rows: int


# As the driver was built: with an extension in C, or without one.
_Protocol: Any = ProtocolHandler
_Result: Any = _Protocol.message_types_by_opcode[ResultMessage.opcode]


class _RawResult(_Result):
    """A result whose rows stay bytes: the driver, in C where it has that, is told that all columns are blobs."""

    def recv_results_metadata(self, f: Any, user_type_map: Any) -> None:
        """Read the head of a page as the driver does, and take every type for a blob's."""
        super().recv_results_metadata(f, user_type_map)
        columns: list[tuple[Any, ...]] = self.column_metadata or []
        self.column_metadata = [(*column[:3], BytesType) for column in columns]

    def recv_results_rows(self, f: Any, protocol_version: Any, user_type_map: Any, *known: Any) -> None:
        """Take a page's rows apart by whole columns; where they are too much unlike, let the driver do it."""
        begun = f.tell()
        self.recv_results_metadata(f, user_type_map)
        columns = self.column_metadata or known[0]
        found = cut(f.read(), len(columns))
        if found is None:
            f.seek(begun)
            super().recv_results_rows(f, protocol_version, user_type_map, *known)
            return
        self.column_names = [column[2] for column in columns]
        self.column_types = [column[3] for column in columns]
        self.parsed_rows: Any = found


class RawProtocol(_Protocol):
    """The driver's protocol with results that stay bytes."""

    message_types_by_opcode: ClassVar[Mapping[int, Any]] = {
        **_Protocol.message_types_by_opcode,
        ResultMessage.opcode: _RawResult,
    }


def raw_rows(names: Sequence[str], rows: Cut | Sequence[tuple[bytes | None, ...]]) -> list[RawPage]:
    """What an execution profile has as its row factory, where answers stay bytes."""
    if isinstance(rows, Cut):
        return [RawPage(tuple(names), rows.columns, rows.rows)]
    columns = zip(*rows, strict=True) if rows else [()] * len(names)
    return [RawPage(tuple(names), [pa.array(cells, pa.binary()) for cells in columns], len(rows))]


def pages_of(future: ResponseFuture) -> Iterator[RawPage]:
    """The pages of an answer, each asked for when it is wanted; raises what the driver raises."""
    answer: Any = future.result()
    yield from answer.current_rows
    while answer.has_more_pages:
        answer.fetch_next_page()
        yield from answer.current_rows
