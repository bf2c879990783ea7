"""Pages of query results as raw bytes: cells split by whole columns where consecutive rows have the same lengths.

The driver decodes a page completely or not at all, and Python has no timestamp of the year 10000. Each cell follows
its length (-1 for null); rows of numbers, UUIDs and nulls keep the same lengths for long runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from cassandra.cluster import ResponseFuture
from cassandra.cqltypes import BytesType
from cassandra.protocol import ProtocolHandler, ResultMessage

from cdc_platform.delta import binaries_from_buffer
from cdc_platform.scylla.rate import ReadMeter

_LENGTH_BYTES = 4
_FIRST_PROBE, _PROBE_GROWTH = 64, 8
"""How many rows to compare with the first row's cell lengths, and that number's growth while all are alike."""
_MAX_RUNS, _ROWS_PER_RUN = 4, 32
"""Beyond this many runs with fewer rows than this in each, the driver is faster."""


@dataclass(frozen=True)
class SplitPage:
    """The cells (binary) of each column, `rows` in each."""

    columns: list[pa.BinaryArray]
    rows: int


@dataclass
class _UniformRun:
    """Consecutive rows with equal cell lengths: uint8[n, width], each cell after its length."""

    lengths: list[int]
    rows: np.ndarray

    def columns(self) -> Iterator[pa.BinaryArray]:
        """Yield the cells of each column."""
        count, at = len(self.rows), 0
        for length in self.lengths:
            at += _LENGTH_BYTES
            if length < 0:
                yield pa.nulls(count, pa.binary())
                continue
            yield binaries_from_buffer(self.rows[:, at : at + length], length * np.arange(count + 1))
            at += length


def split_page(body: bytes, columns: int) -> SplitPage | None:
    """Split a page, whose body begins with its row count, into columns.

    Return None if too few consecutive rows have equal cell lengths, or if the body is truncated.
    """
    count = int.from_bytes(body[:_LENGTH_BYTES], "big", signed=True)
    raw, remaining, probe = np.frombuffer(body, np.uint8)[_LENGTH_BYTES:], count, _FIRST_PROBE
    runs: list[_UniformRun] = []
    while remaining > 0:
        if len(runs) > _MAX_RUNS + (count - remaining) // _ROWS_PER_RUN:
            return None
        lengths = _cell_lengths(raw, columns)
        width = sum(_LENGTH_BYTES + max(length, 0) for length in lengths)
        count_probed = min(remaining, probe, len(raw) // width if width else 0)
        if not count_probed:
            return None
        rows = raw[: count_probed * width].reshape(count_probed, width)
        alike = _count_alike(rows, lengths)
        runs.append(_UniformRun(lengths, rows[:alike]))
        probe = probe * _PROBE_GROWTH if alike == probe else _FIRST_PROBE
        raw, remaining = raw[alike * width :], remaining - alike
    if not runs:
        return SplitPage([pa.nulls(0, pa.binary())] * columns, 0)
    parts = zip(*(run.columns() for run in runs), strict=True)
    return SplitPage([arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays) for arrays in parts], count)


def _cell_lengths(raw: np.ndarray, columns: int) -> list[int]:
    """Return the lengths of the first row's cells; a truncated row gives wrong lengths, which the caller detects."""
    lengths, at = list[int](), 0
    for _ in range(columns):
        lengths.append(int.from_bytes(raw[at : at + _LENGTH_BYTES].tobytes(), "big", signed=True))
        at += _LENGTH_BYTES + max(lengths[-1], 0)
    return lengths


def _count_alike(rows: np.ndarray, lengths: list[int]) -> int:
    """Return how many leading rows have cells of these lengths."""
    differs, at = np.zeros(len(rows), bool), 0
    for length in lengths:
        differs |= rows[:, at : at + _LENGTH_BYTES].view(">i4")[:, 0] != length
        at += _LENGTH_BYTES + max(length, 0)
    return int(differs.argmax()) if differs.any() else len(rows)


@dataclass(frozen=True)
class RawPage:
    """A page of rows: the cells (binary) of each column name, all of `rows` cells.

    `paging_state` is where the next page begins; None on the last one. `undecoded` counts, by attribute, the values of
    an Alternator table that do not follow its format.
    """

    names: tuple[str, ...]
    columns: Sequence[pa.BinaryArray]
    rows: int
    paging_state: bytes | None = None
    undecoded: Counter[str] = field(default_factory=Counter)


# The driver's classes as built: with or without the C extension.
_Protocol: Any = ProtocolHandler
_Result: Any = _Protocol.message_types_by_opcode[ResultMessage.opcode]


class _RawResult(_Result):
    """A result whose rows stay bytes: all columns appear as blobs to the driver, including its C extension."""

    def recv_results_metadata(self, f: Any, user_type_map: Any) -> None:
        """Read a page's metadata as the driver does, and replace every type by blob."""
        super().recv_results_metadata(f, user_type_map)
        columns: list[tuple[Any, ...]] = self.column_metadata or []
        self.column_metadata = [(*column[:3], BytesType) for column in columns]

    def recv_results_rows(self, f: Any, protocol_version: Any, user_type_map: Any, *known: Any) -> None:
        """Split a page's rows by columns; if they are too heterogeneous, let the driver decode them."""
        begun = f.tell()
        self.recv_results_metadata(f, user_type_map)
        columns = self.column_metadata or known[0]
        page = split_page(f.read(), len(columns))
        if page is None:
            f.seek(begun)
            super().recv_results_rows(f, protocol_version, user_type_map, *known)
            return
        self.column_names = [column[2] for column in columns]
        self.column_types = [column[3] for column in columns]
        self.parsed_rows: Any = page


class RawProtocol(_Protocol):
    """The driver's protocol with results that stay bytes."""

    message_types_by_opcode: ClassVar[Mapping[int, Any]] = {
        **_Protocol.message_types_by_opcode,
        ResultMessage.opcode: _RawResult,
    }


def build_raw_pages(names: Sequence[str], rows: SplitPage | Sequence[tuple[bytes | None, ...]]) -> list[RawPage]:
    """Build pages of raw bytes; the row factory of an execution profile."""
    if isinstance(rows, SplitPage):
        return [RawPage(tuple(names), rows.columns, rows.rows)]
    columns = zip(*rows, strict=True) if rows else [()] * len(names)
    return [RawPage(tuple(names), [pa.array(cells, pa.binary()) for cells in columns], len(rows))]


def iter_pages(future: ResponseFuture, meter: ReadMeter) -> Iterator[RawPage]:
    """Yield an answer's pages; raise what the driver raises. Each page is requested before the previous one is used.

    The meter counts the pages, and delays requests to keep to its rates.
    """
    has_more = True
    while has_more:
        answer: Any = future.result()
        (page,) = answer.current_rows
        paging_state, has_more = answer.paging_state, future.has_more_pages
        meter.count_page(page.rows)
        if has_more:
            meter.await_request()
            future.start_fetching_next_page()
        yield replace(page, paging_state=paging_state if has_more else None)
