"""The rows of a page of CQL's protocol, cut into cells by whole columns where many rows that follow are cut alike.

In the protocol each cell stands behind its length, -1 for null, so that nobody knows where a row begins before all
cells in front of it are read. Rows of numbers, UUIDs and nulls are cut alike for long, and then a column of them is
where the one of their first row is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from cdc_platform.lake.arrow import cut_binaries

_LENGTH = 4
_FIRST_LOOK, _LOOK_FURTHER = 64, 8
"""So many rows are looked at, whether they are cut as the first of them is; where all are, so many times as many."""
_RUNS, _ROWS_A_RUN = 4, 32
"""What has more runs than so many, and less rows in each, the driver is faster at."""


@dataclass(frozen=True)
class Cut:
    """The cells (binary) of each column, all of `rows` cells."""

    columns: list[pa.BinaryArray]
    rows: int


@dataclass
class _Run:
    """Rows that follow each other and are cut alike: uint8[n, width], each cell behind its length."""

    lengths: list[int]
    rows: np.ndarray

    def columns(self) -> Iterator[pa.BinaryArray]:
        """The cells of each column."""
        count, at = len(self.rows), 0
        for length in self.lengths:
            at += _LENGTH
            if length < 0:
                yield pa.nulls(count, pa.binary())
                continue
            yield cut_binaries(self.rows[:, at : at + length], length * np.arange(count + 1))
            at += length


def cut(body: bytes, columns: int) -> Cut | None:
    """The rows of a page, whose body begins with their number; None where few that follow are cut alike.

    None as well where the body does not have them all.
    """
    count = int.from_bytes(body[:_LENGTH], "big", signed=True)
    raw, left, look = np.frombuffer(body, np.uint8)[_LENGTH:], count, _FIRST_LOOK
    runs: list[_Run] = []
    while left > 0:
        if len(runs) > _RUNS + (count - left) // _ROWS_A_RUN:
            return None
        lengths = _lengths(raw, columns)
        width = sum(_LENGTH + max(length, 0) for length in lengths)
        most = min(left, look, len(raw) // width if width else 0)
        if not most:
            return None
        rows = raw[: most * width].reshape(most, width)
        alike = _alike(rows, lengths)
        runs.append(_Run(lengths, rows[:alike]))
        look = look * _LOOK_FURTHER if alike == look else _FIRST_LOOK
        raw, left = raw[alike * width :], left - alike
    if not runs:
        return Cut([pa.nulls(0, pa.binary())] * columns, 0)
    parts = zip(*(run.columns() for run in runs), strict=True)
    return Cut([each[0] if len(each) == 1 else pa.concat_arrays(each) for each in parts], count)


def _lengths(raw: np.ndarray, columns: int) -> list[int]:
    """The lengths of the cells of the first row, as far as it is there."""
    found, at = list[int](), 0
    for _ in range(columns):
        found.append(int.from_bytes(raw[at : at + _LENGTH].tobytes(), "big", signed=True))
        at += _LENGTH + max(found[-1], 0)
    return found


def _alike(rows: np.ndarray, lengths: list[int]) -> int:
    """How many rows from the first on have cells of these lengths."""
    differs, at = np.zeros(len(rows), bool), 0
    for length in lengths:
        differs |= rows[:, at : at + _LENGTH].view(">i4")[:, 0] != length
        at += _LENGTH + max(length, 0)
    return int(differs.argmax()) if differs.any() else len(rows)
