"""Finds the ranges that hold tokens, for millions of tokens at a time.

Knows a sorted column of range ends and nothing of what the ranges mean.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from cdc_platform.errors import InputError
from cdc_platform.ring.tokens import LAST, Int64s, bias, unbias

# Steps after which a binary search is the faster way; random rings need about five.
_MOST_STEPS = 12


class RangeLookup:
    """Looks up ranges among `range_ends` (int64[n] ascending).

    A table over the top bits of the position gives the first range that may hold a token, a few steps lead to the
    one that does: on a ring of random tokens five times faster than a binary search, which clumped rings fall back on.
    """

    def __init__(self, range_ends: Int64s) -> None:
        self._ends = range_ends
        bits = min(22, len(range_ends).bit_length() + 1)
        self._shift = np.uint64(64 - bits)
        bounds = bias(np.arange(1 << bits, dtype=np.uint64) << self._shift)
        self._first = np.searchsorted(range_ends, bounds, side="left")
        self._steps = int(np.diff(self._first, append=len(range_ends)).max())
        # No token is greater than LAST, so that no step leaves the column.
        self._padded = np.append(range_ends, np.int64(LAST))

    def row_of(self, tokens: ArrayLike) -> Int64s:
        """The range (int64, shape of `tokens`) that holds each token: the first end at or after it, else range 0.

        Raises:
            InputError: there are no ranges.
        """
        tokens = np.asarray(tokens, dtype=np.int64)
        if len(self._ends) == 0:
            raise InputError("no range holds a token where there are no ranges; describe at least one range")
        if self._steps > _MOST_STEPS:
            rows = np.asarray(np.searchsorted(self._ends, tokens, side="left"))
        else:
            rows = self._stepped(tokens.ravel()).reshape(tokens.shape)
        return np.where(rows == len(self._ends), 0, rows)

    def _stepped(self, tokens: Int64s) -> Int64s:
        """The first end at or after each token (int64[n]): a step for all, and more for the few that need them."""
        cells = unbias(tokens) >> self._shift
        rows = self._first.take(cells.view(np.int64))
        rows += self._padded.take(rows) < tokens
        left = np.flatnonzero(self._padded.take(rows) < tokens)
        while len(left):
            further = rows.take(left) + 1
            rows[left] = further
            left = left[self._padded.take(further) < tokens.take(left)]
        return rows
