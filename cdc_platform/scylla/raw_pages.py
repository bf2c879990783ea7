"""Pages of query results as raw bytes: cells split by whole columns where consecutive rows have the same lengths.

The driver decodes a page completely or not at all, and Python has no timestamp of the year 10000. Each cell follows
its length (-1 for null); rows of numbers, UUIDs and nulls keep the same lengths for long runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from cassandra.cluster import ResponseFuture
from cassandra.cqltypes import BytesType
from cassandra.protocol import ProtocolHandler, ResultMessage

from cdc_platform.delta import binaries_from_buffer

_LENGTH_BYTES = 4
_FIRST_PROBE, _PROBE_GROWTH = 64, 8
"""So many rows are looked at, whether they are cut as the first of them is; where all are, so many times as many."""
_MAX_RUNS, _ROWS_PER_RUN = 4, 32
"""What has more runs than so many, and less rows in each, the driver is faster at."""


@dataclass(frozen=True)
class SplitPage:
    """The cells (binary) of each column, all of `rows` cells."""

    columns: list[pa.BinaryArray]
    rows: int


@dataclass
class _UniformRun:
    """Rows that follow each other and are cut alike: uint8[n, width], each cell behind its length."""

    lengths: list[int]
    rows: np.ndarray

    def columns(self) -> Iterator[pa.BinaryArray]:
        """The cells of each column."""
        count, at = len(self.rows), 0
        for length in self.lengths:
            at += _LENGTH_BYTES
            if length < 0:
                yield pa.nulls(count, pa.binary())
                continue
            yield binaries_from_buffer(self.rows[:, at : at + length], length * np.arange(count + 1))
            at += length


def split_page(body: bytes, columns: int) -> SplitPage | None:
    """The rows of a page, whose body begins with their number; None where few that follow are cut alike.

    None as well where the body does not have them all.
    """
    count = int.from_bytes(body[:_LENGTH_BYTES], "big", signed=True)
    raw, left, look = np.frombuffer(body, np.uint8)[_LENGTH_BYTES:], count, _FIRST_PROBE
    runs: list[_UniformRun] = []
    while left > 0:
        if len(runs) > _MAX_RUNS + (count - left) // _ROWS_PER_RUN:
            return None
        lengths = _cell_lengths(raw, columns)
        width = sum(_LENGTH_BYTES + max(length, 0) for length in lengths)
        most = min(left, look, len(raw) // width if width else 0)
        if not most:
            return None
        rows = raw[: most * width].reshape(most, width)
        alike = _count_alike(rows, lengths)
        runs.append(_UniformRun(lengths, rows[:alike]))
        look = look * _PROBE_GROWTH if alike == look else _FIRST_PROBE
        raw, left = raw[alike * width :], left - alike
    if not runs:
        return SplitPage([pa.nulls(0, pa.binary())] * columns, 0)
    parts = zip(*(run.columns() for run in runs), strict=True)
    return SplitPage([each[0] if len(each) == 1 else pa.concat_arrays(each) for each in parts], count)


def _cell_lengths(raw: np.ndarray, columns: int) -> list[int]:
    """The lengths of the cells of the first row, as far as it is there."""
    found, at = list[int](), 0
    for _ in range(columns):
        found.append(int.from_bytes(raw[at : at + _LENGTH_BYTES].tobytes(), "big", signed=True))
        at += _LENGTH_BYTES + max(found[-1], 0)
    return found


def _count_alike(rows: np.ndarray, lengths: list[int]) -> int:
    """How many rows from the first on have cells of these lengths."""
    differs, at = np.zeros(len(rows), bool), 0
    for length in lengths:
        differs |= rows[:, at : at + _LENGTH_BYTES].view(">i4")[:, 0] != length
        at += _LENGTH_BYTES + max(length, 0)
    return int(differs.argmax()) if differs.any() else len(rows)


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
        found = split_page(f.read(), len(columns))
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


def build_raw_pages(names: Sequence[str], rows: SplitPage | Sequence[tuple[bytes | None, ...]]) -> list[RawPage]:
    """What an execution profile has as its row factory, where answers stay bytes."""
    if isinstance(rows, SplitPage):
        return [RawPage(tuple(names), rows.columns, rows.rows)]
    columns = zip(*rows, strict=True) if rows else [()] * len(names)
    return [RawPage(tuple(names), [pa.array(cells, pa.binary()) for cells in columns], len(rows))]


def iter_pages(future: ResponseFuture) -> Iterator[RawPage]:
    """The pages of an answer, each asked for when it is wanted; raises what the driver raises."""
    answer: Any = future.result()
    yield from answer.current_rows
    while answer.has_more_pages:
        answer.fetch_next_page()
        yield from answer.current_rows
