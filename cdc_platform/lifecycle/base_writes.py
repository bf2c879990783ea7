"""Which stream every base write gets: key bytes and timestamp in, stream ID out, for DataFrames of any size.

It knows how descriptions reach the executors; the rules are those of `generations`. Whether a coordinator would
accept the write is `explain`'s business: here the past is looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from cdc_platform.errors import InputError, StateError
from cdc_platform.generations import GenerationId, TopologyDescription, operating_index
from cdc_platform.lake.arrow import compute, stream_ids, tokens_of_column
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.volume import settle_worker
from cdc_platform.records import generation_data, reading

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# A description of 1.6 million streams takes 26 MB; a worker keeps those of the newest few generations.
_DESCRIPTIONS_A_WORKER = 8


def assign_streams(lake: Lake, writes: DataFrame) -> DataFrame:
    """Add `stream_id` (binary) to writes with a serialized partition `key` (binary) and a `timestamp` (bigint, µs).

    The stream is the one that the generation operating at the timestamp gives the key. It is null where the key or
    the timestamp is null, where no generation operated yet, and where the one that did was removed since. Writes of
    which 32,768 don't fit into memory are run under `lake.session.bounded_batches`.

    Raises:
        InputError: a column is missing or has another type.
        StateError: a generation that operated in between has no ID, so that its description cannot be read.
    """
    from pyspark.sql import types as T

    for name, kind in (("key", T.BinaryType()), ("timestamp", T.LongType())):
        if name not in writes.columns or writes.schema[name].dataType != kind:
            raise InputError(f"writes need a column {name!r} of type {kind.simpleString()}; they have {writes.columns}")
    streams_of = stream_finder(lake)
    schema = T.StructType([*writes.schema.fields, T.StructField("stream_id", T.BinaryType())])

    def with_streams(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            streams = streams_of(batch.column("key"), batch.column("timestamp"))
            yield pa.RecordBatch.from_arrays([*batch.columns, streams], names=[*batch.schema.names, "stream_id"])
        settle_worker()

    return writes.mapInArrow(with_streams, schema)


def stream_finder(lake: Lake) -> Callable[[pa.Array, pa.Array], pa.Array]:
    """What `assign_streams` does to one batch: from keys (binary) and timestamps (int64, µs) to stream IDs.

    It knows the generations of now and may travel to executors; descriptions are read where it runs.

    Raises:
        StateError: a generation has no ID, so that its description cannot be read.
    """
    generations = reading.timeline(lake)
    nameless = [each for each in generations if each.generation_id is None and each.removed_ms is None]
    if nameless:
        raise StateError(
            f"{len(nameless)} generations are known by their timestamp alone; import their V2 descriptions first"
        )
    times = np.array([generation.time_ms * 1000 for generation in generations], dtype=np.int64)
    ids = [generation.generation_id if generation.removed_ms is None else None for generation in generations]
    return partial(_streams, str(lake.root), times, ids)


def _streams(
    root: str, times_us: np.ndarray, ids: list[GenerationId | None], keys: pa.Array, timestamps: pa.Array
) -> pa.Array:
    """The stream IDs (binary, null where there is none) of one batch. Removed generations have no ID here."""
    valid = compute.and_(compute.is_valid(keys), compute.is_valid(timestamps)).to_numpy(zero_copy_only=False)
    when = compute.fill_null(timestamps, 0).to_numpy(zero_copy_only=False)
    chosen = np.where(valid, operating_index(times_us, when), -1)
    gone = [index for index, generation_id in enumerate(ids) if generation_id is None]
    chosen[np.isin(chosen, gone)] = -1
    tokens = tokens_of_column(keys)
    out = np.zeros((len(keys), 16), dtype=np.uint8)
    for index in np.flatnonzero(np.bincount(chosen + 1)[1:]).tolist():
        generation_id = ids[index]
        assert generation_id is not None
        description = _description(root, generation_id)
        rows = np.flatnonzero(chosen == index)
        out[rows] = description.streams_of(tokens[rows])
    return stream_ids(out, chosen >= 0)


@lru_cache(maxsize=_DESCRIPTIONS_A_WORKER)
def _description(root: str, generation_id: GenerationId) -> TopologyDescription:
    """A generation's description, read once a worker: it never changes once it has a timestamp."""
    return generation_data.description_of(Lake(root), generation_id)
