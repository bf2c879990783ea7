"""Rows of a generation by range: detect missing rows and misplaced streams, and restore the shard order of streams.

`generations` has the rule for the shard order; `plan` chooses where an ignore_msb comes from.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from cdc_platform.clock import Milliseconds, format_ms
from cdc_platform.generations import (
    STREAM_ID_BYTES,
    STREAM_ID_VERSION,
    UNKNOWN_IGNORE_MSB,
    decode_stream_ids,
    explain_missing_rows,
    restore_shard_orders,
    stream_id_words,
)
from cdc_platform.importing.formats.cql_values import HALF_WRITTEN
from cdc_platform.importing.import_issues import ImportIssues, refuse_issues
from cdc_platform.ring import Int64s, RangeLookup, Ring, UInt8s, range_starts


@dataclass(frozen=True, eq=False)
class RangeRows:
    """The rows of one partition, ascending by range end.

    `range_ends`, `stream_counts` int64[n]; `streams` uint8[total, 16], grouped by range, in unsigned byte order within
    each range; `ignore_msbs` int64[n] in V2 descriptions, None in streams tables, which have no such column. `claims`
    int64[n] is the number of rows that each row states, if it can differ from the actual number.
    """

    source: str
    range_ends: np.ndarray
    stream_counts: np.ndarray
    streams: np.ndarray
    ignore_msbs: np.ndarray | None = None
    claims: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.range_ends)

    @cached_property
    def offsets(self) -> np.ndarray:
        """Return where each range's streams begin, and finally their end: int64[n + 1]."""
        return np.concatenate([[0], np.cumsum(self.stream_counts)])

    @cached_property
    def content(self) -> tuple[bytes, int]:
        """Return a key that is equal where `has_same_streams` is true, to look up one of thousands of generations."""
        digest = hashlib.blake2b(self.streams.tobytes(), digest_size=16)
        digest.update(self.stream_counts.astype(np.int64).tobytes())
        digest.update(self.range_ends.astype(np.int64).tobytes())
        return digest.digest(), len(self)

    def has_same_streams(self, other: RangeRows) -> bool:
        """Return True if both have the same ranges, each with the same set of streams."""
        return (
            np.array_equal(self.range_ends, other.range_ends)
            and np.array_equal(self.stream_counts, other.stream_counts)
            and np.array_equal(self.streams, other.streams)
        )


def published_range_rows(
    source: str, time_ms: Milliseconds, streams: Mapping[int, bytes], issues: ImportIssues | None = None
) -> RangeRows:
    """Build the user-facing rows of a time (ms) from each range end's streams (concatenated, 16 bytes each).

    Raises:
        InputError: the streams show that rows are missing, and `issues` refuses issues.
    """
    partition = _build_range_rows(source, streams, None)
    report_missing_rows(f"{source}: time {format_ms(time_ms)}", partition, issues or refuse_issues())
    return partition


def described_range_rows(
    source: str,
    id_: str,
    streams: Mapping[int, bytes],
    ignore_msbs: Mapping[int, int],
    claims: Mapping[int, int] | None = None,
    issues: ImportIssues | None = None,
) -> RangeRows:
    """Build the internal rows of a generation from each range end's streams (concatenated), ignore_msb and row count.

    Raises:
        InputError: a stream has a version other than 1, or the streams show that rows are missing, and `issues` refuses
            issues.
    """
    issues = issues or refuse_issues()
    partition = _build_range_rows(source, streams, ignore_msbs)
    if claims is not None:
        partition = replace(partition, claims=np.array([claims[end] for end in partition.range_ends.tolist()]))
    versions = decode_stream_ids(partition.streams).versions
    if np.any(versions != STREAM_ID_VERSION):
        first = int(np.argmax(versions != STREAM_ID_VERSION))
        age = "older than the version field" if versions[first] > STREAM_ID_VERSION else f"of version {versions[first]}"
        issues.report(
            f"{source}: generation {id_} has stream 0x{partition.streams[first].tobytes().hex()}, {age}; "
            "V2 descriptions hold streams of version 1"
        )
    report_missing_rows(f"{source}: generation {id_}", partition, issues)
    return partition


def _build_range_rows(source: str, streams: Mapping[int, bytes], ignore_msbs: Mapping[int, int] | None) -> RangeRows:
    ends = sorted(streams)
    counts = np.array([len(streams[end]) // STREAM_ID_BYTES for end in ends], dtype=np.int64)
    flat = np.frombuffer(b"".join(streams[end] for end in ends), dtype=np.uint8).reshape(-1, STREAM_ID_BYTES)
    return RangeRows(
        source,
        np.array(ends, dtype=np.int64),
        counts,
        sort_in_byte_order(counts, flat),
        None if ignore_msbs is None else np.array([ignore_msbs[end] for end in ends], dtype=np.int64),
    )


def sort_in_byte_order(stream_counts: np.ndarray, streams: np.ndarray) -> np.ndarray:
    """Return the streams (uint8[total, 16]) sorted per range as unsigned bytes, the order of sets in CQL clients."""
    rows = np.repeat(np.arange(len(stream_counts)), stream_counts)
    words = stream_id_words(streams)
    return streams[np.lexsort((words[:, 1], words[:, 0], rows))]


def report_missing_rows(what: str, rows: RangeRows, issues: ImportIssues) -> None:
    """Report a generation whose stream IDs show that rows are missing."""
    missing = explain_missing_rows(rows.range_ends, rows.offsets, rows.streams)
    if missing is not None:
        issues.report(f"{what}: {missing}: {HALF_WRITTEN}, rows are missing")


def report_misplaced_streams(
    what: str, range_ends: Int64s, offsets: Int64s, streams: UInt8s, issues: ImportIssues
) -> None:
    """Report streams whose token is outside their range: swapped rows, or IDs that were not generated for a ring.

    `range_ends` int64[n] ascending; the streams (uint8[k, 16]) of range i begin at `offsets[i]` (int64[n + 1]).
    """
    ranges = np.repeat(np.arange(len(range_ends)), np.diff(offsets))
    tokens = decode_stream_ids(streams).tokens
    wrong = np.flatnonzero(RangeLookup(range_ends).row_of(tokens) != ranges)
    if wrong.size:
        first = int(wrong[0])
        issues.report(
            f"{what}: {wrong.size} of {len(tokens)} streams lie outside their range, the first is "
            f"0x{streams[first].tobytes().hex()}, which has token {tokens[first]}, in the range that ends with "
            f"{range_ends[ranges[first]]}"
        )


@dataclass(frozen=True, eq=False)
class OrderedRangeRows:
    """The rows of a partition with their streams (uint8[total, 16]) in shard order where it can be restored.

    `reasons` maps each range end without a known shard order to the reason; those streams are in unsigned byte order.
    """

    rows: RangeRows
    streams: np.ndarray
    reasons: Mapping[int, str]


def restore_stream_order(rows: RangeRows, ignore_msbs: np.ndarray) -> OrderedRangeRows:
    """Sort every range's streams in shard order; `ignore_msbs` (int64[n]) is UNKNOWN_IGNORE_MSB where not known."""
    starts = range_starts(rows.range_ends)
    restored = restore_shard_orders(starts, rows.range_ends, rows.stream_counts, rows.streams, ignore_msbs)
    reasons = {
        int(rows.range_ends[row]): _unordered_reason(rows, row, int(ignore_msbs[row]), restored.settled)
        for row in np.flatnonzero(~restored.order_known).tolist()
    }
    return OrderedRangeRows(rows, restored.streams, reasons)


def owner_ignore_msbs(rows: RangeRows, ring: Ring) -> np.ndarray:
    """Return the ignore_msb (int64[n]) of the node that has each range end as a token, or UNKNOWN_IGNORE_MSB.

    A node whose shard count differs from the range's number of streams was resharded since, so its value is not used.
    """
    if len(ring.tokens) == 0:
        return np.full(len(rows), UNKNOWN_IGNORE_MSB)
    at = np.minimum(np.searchsorted(ring.tokens, rows.range_ends), len(ring.tokens) - 1)
    owned = (ring.tokens[at] == rows.range_ends) & (ring.shard_counts[at] == rows.stream_counts)
    return np.where(owned, ring.ignore_msbs[at], UNKNOWN_IGNORE_MSB)


def _unordered_reason(rows: RangeRows, row: int, ignore_msb: int, settled: np.ndarray) -> str:
    if ignore_msb == UNKNOWN_IGNORE_MSB:
        return "the ignore_msb of the range's owner is not known"
    lo, hi = rows.offsets[row], rows.offsets[row + 1]
    tokens = np.ascontiguousarray(rows.streams[lo:hi, :8]).view(">i8").ravel()
    unsettled = int(np.count_nonzero(~settled[lo:hi]))
    if np.count_nonzero(tokens == rows.range_ends[row]) >= unsettled:
        return f"{unsettled} shards own nothing before the range end, so their streams all have its token"
    return "the streams do not lie where the shards of the range begin"
