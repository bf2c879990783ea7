"""The pandera models of generations: each invariant of streams and ranges, stated as a check on their columns.

The checks call the functions of `ring` and `generations` that place streams. They are pandera's pandas models on
purpose: a task validates its own frames, in the driver as on Spark. Importing this module imports pandera and pandas.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
import pandas as pd
import pandera.pandas as pa
from pandera.typing import Series

from cdc_platform.checks.invariants import (
    MAX_SAMPLES,
    PUBLISHED_EQUALS_DESCRIPTION,
    REFINES_VNODES,
    RING_COVERED_ONCE,
    ROW_COUNT,
    SHARD_COLOCATION,
    STREAM_FORMAT,
    STREAMS_UNIQUE,
    TABLET_STREAM_AT_END,
    TABLET_STREAM_FORMAT,
    TIMESTAMP_COMPLETE,
    VNODE_COLOCATION,
    Invariant,
)
from cdc_platform.generations import (
    SOME_SHARD,
    STREAM_ID_VERSION,
    UNKNOWN_SHARD,
    find_repeated_streams,
    is_in_place,
)
from cdc_platform.ring import MINIMUM_TOKEN, Bools, is_in_range


def _check(invariant: Invariant) -> Callable[[Callable[[Any, Any], Bools]], Any]:
    """Declare a method as the check of an invariant: it returns which rows of the frame satisfy it (bool[n])."""

    def declare(rule: Callable[[Any, Any], Bools]) -> Any:
        @wraps(rule)
        def check(cls: Any, frame: pd.DataFrame) -> pd.Series:
            return pd.Series(rule(cls, _Columns(frame)), index=frame.index)

        return pa.dataframe_check(
            name=str(invariant), title=str(invariant), description=invariant.meaning, n_failure_cases=MAX_SAMPLES
        )(check)

    return declare


class _Columns:
    """The columns of a frame as numpy arrays: operators of pandas take several times as long."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self._frame = frame

    def __getattr__(self, name: str) -> np.ndarray:
        return self._frame[name].to_numpy()


def _column(description: str) -> Any:
    """Declare a column. int64 has no nulls, and looking for them takes a fifth of the validation."""
    return pa.Field(nullable=True, description=description)


class _Model(pa.DataFrameModel):
    """A model whose frames have all of its columns, in its order, and no others."""

    class Config:  # pyrefly: ignore[bad-override]
        """Pandera's options."""

        strict, ordered = True, True


class StreamModel(_Model):
    """The streams of generations, one row per stream."""

    generation: Series[np.int64] = _column("number of the generation within the frame")
    range_start: Series[np.int64] = _column("end of the range before, which this range excludes")
    range_end: Series[np.int64] = _column("last token of the stream's range")
    vnode_index: Series[np.int64] = _column("rank of the range end in its generation")
    stream_count: Series[np.int64] = _column("streams of the range")
    shard_count: Series[np.int64] = _column("shards of the range's owner; `stream_count` if the table defines them")
    ignore_msb: Series[np.int64] = _column("ignore_msb of the range's owner, -1 if unknown")
    shard: Series[np.int64] = _column("position of the stream in its range, or SOME_, UNKNOWN_ or NO_SHARD")
    is_complete: Series[np.bool_] = _column("True if the stream ID has 16 bytes; else its fields are meaningless")
    token: Series[np.int64] = _column("token of the stream ID")
    version: Series[np.int64] = _column("version of the stream ID")
    index: Series[np.int64] = _column("vnode index of the stream ID")
    random: Series[np.int64] = _column("random bits of the stream ID")

    @_check(VNODE_COLOCATION)
    def vnode_colocation(cls, stream: Any) -> Bools:
        """The token lies in (range_start, range_end], around the ring."""
        return ~stream.is_complete | is_in_range(stream.token, stream.range_start, stream.range_end)

    @_check(SHARD_COLOCATION)
    def shard_colocation(cls, stream: Any) -> Bools:
        """The token is on the stream's shard, or is the range end if that shard owns no token of the range."""
        in_place = is_in_place(
            stream.token, stream.range_start, stream.range_end, stream.shard, stream.shard_count, stream.ignore_msb
        )
        order_unknown = (stream.shard == SOME_SHARD) | (stream.shard == UNKNOWN_SHARD)
        has_all_shards = stream.stream_count == stream.shard_count
        return ~stream.is_complete | (has_all_shards & (order_unknown | in_place))

    @_check(STREAM_FORMAT)
    def stream_format(cls, stream: Any) -> Bools:
        """The ID has 16 bytes, version 1 and the rank of its range as index."""
        has_fields = (stream.version == STREAM_ID_VERSION) & (stream.index == stream.vnode_index)
        return stream.is_complete & has_fields

    @_check(STREAMS_UNIQUE)
    def streams_unique(cls, stream: Any) -> Bools:
        """No stream of the range has the same token and the same random bits."""
        return ~stream.is_complete | ~find_repeated_streams(
            stream.generation, stream.range_end, stream.token, stream.random
        )


class RangeModel(_Model):
    """The ranges of one generation, one row per range, ascending by range end."""

    range_start: Series[np.int64] = _column("start that the table states, else `previous_end`")
    range_end: Series[np.int64] = _column("last token of the range")
    previous_end: Series[np.int64] = _column("end of the range before; the last end for the first range")
    vnode_index: Series[np.int64] = _column("row number from 0")

    @_check(RING_COVERED_ONCE)
    def ring_covered_once(cls, range_: Any) -> Bools:
        """The range starts where the range before ends, and only the single range of a ring starts where it ends."""
        repeated = (range_.range_end == range_.previous_end) & (range_.vnode_index > 0)
        return (range_.range_start == range_.previous_end) & ~repeated & (range_.range_end != MINIMUM_TOKEN)


class RingTokenModel(_Model):
    """The tokens of the rings that a generation serves, one row per token."""

    token: Series[np.int64] = _column("token of a node")
    range_end: Series[np.int64] = _column("end of the generation's range that contains the token")

    @_check(REFINES_VNODES)
    def refines_vnodes(cls, ring: Any) -> Bools:
        """The token ends the range that contains it."""
        return ring.token == ring.range_end


class RowCountModel(_Model):
    """The numbers of rows that a ring, or the rows of a generation themselves, claim for it; one row per claim."""

    claimed: Series[np.int64] = _column("claimed number of rows, -1 for null")
    rows: Series[np.int64] = _column("rows that exist")

    @_check(ROW_COUNT)
    def row_count(cls, claim: Any) -> Bools:
        """As many rows exist as are claimed."""
        return claim.claimed == claim.rows


class ComparedRangeModel(_Model):
    """The ranges of a generation in two tables, one row per range end that either of them has.

    The digests (64 bits) are of the streams in their order, or as a set where a table does not know the order.
    """

    first_rows: Series[np.int64] = _column("rows of the range in the first table")
    second_rows: Series[np.int64] = _column("rows of the range in the second table")
    first_digest: Series[np.int64] = _column("digest of the streams in the first table")
    second_digest: Series[np.int64] = _column("digest of the streams in the second table")
    first_msb: Series[np.int64] = _column("ignore_msb in the first table, 0 if only one of them has it")
    second_msb: Series[np.int64] = _column("ignore_msb in the second table, 0 if only one of them has it")

    @_check(PUBLISHED_EQUALS_DESCRIPTION)
    def published_equals_description(cls, range_: Any) -> Bools:
        """Both tables have the range once, with the same streams and the same ignore_msb."""
        is_once = (range_.first_rows == 1) & (range_.second_rows == 1)
        has_same_streams = range_.first_digest == range_.second_digest
        return is_once & has_same_streams & (range_.first_msb == range_.second_msb)


class PublishedTimestampModel(_Model):
    """The timestamps that readers see, one row per timestamp."""

    published: Series[np.int64] = _column("ranges that have streams rows under the timestamp")
    described: Series[np.int64] = _column("ranges that the generation describes; `published` without a description")
    common: Series[np.int64] = _column("ranges that are in both")

    @_check(TIMESTAMP_COMPLETE)
    def timestamp_complete(cls, timestamp: Any) -> Bools:
        """There are streams rows, and they are those of the described ranges."""
        is_same = (timestamp.common == timestamp.published) & (timestamp.common == timestamp.described)
        return (timestamp.published > 0) & is_same


class TabletStreamModel(_Model):
    """The streams of a tablet-based table, one row per stream."""

    is_complete: Series[np.bool_] = _column("True if the stream ID has 16 bytes; else its fields are meaningless")
    version: Series[np.int64] = _column("version of the stream ID")
    index: Series[np.int64] = _column("vnode index of the stream ID")

    @_check(TABLET_STREAM_FORMAT)
    def tablet_stream_format(cls, stream: Any) -> Bools:
        """The ID has 16 bytes, version 1 and index 0."""
        return stream.is_complete & (stream.version == STREAM_ID_VERSION) & (stream.index == 0)


class TabletModel(_Model):
    """The tablets of a stream set, one row per token that ends a tablet or that a current stream has."""

    token: Series[np.int64] = _column("last token of a tablet, or token of a stream")
    streams: Series[np.int64] = _column("current streams with this token")
    tablets: Series[np.int64] = _column("tablets that end with this token; 1 if the tablets are not recorded")

    @_check(TABLET_STREAM_AT_END)
    def tablet_stream_at_end(cls, tablet: Any) -> Bools:
        """Exactly one stream has the last token of each tablet, and no other token has any."""
        return (tablet.streams == 1) & (tablet.tablets == 1)
