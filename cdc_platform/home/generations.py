"""Lists of generations, their published streams, and the difference between two of them."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from cdc_platform.clock import Microseconds, Milliseconds, format_ms, us_from_ms
from cdc_platform.delta import Lake
from cdc_platform.errors import StateError
from cdc_platform.generations import TopologyDescription, compare_generations
from cdc_platform.metastore import generations, read_generation_description
from cdc_platform.ring import Int64s
from cdc_platform.tables import STREAMS_DESCRIPTIONS_V2, UNORDERED_RANGES
from cdc_platform.timeline import Generation, GenerationState, Timeline, read_generation_sizes, read_node_counts


@dataclass(frozen=True)
class GenerationSummary:
    """A known generation and its size.

    `id` is its UUID, None if only its time is known. `time_ms` (ms since 1970) is when it starts, `expired_ms` when its
    successor replaced it, None if it has none. `operating`: it operates now. `published`: clients see it. `num_nodes`,
    `num_ranges` and `num_streams` are None where its description is not stored.
    """

    id: str | None
    time_ms: Milliseconds
    expired_ms: Milliseconds | None
    operating: bool
    state: GenerationState
    published: bool
    num_nodes: int | None
    num_ranges: int | None
    num_streams: int | None


def list_generations(lake: Lake, now_us: Microseconds, since_us: Microseconds | None = None) -> list[GenerationSummary]:
    """Return the known generations, newest first.

    `since_us` (µs) leaves out those that stopped operating before it; the newest generation is always included.
    """
    timeline = Timeline.read(lake)
    known, operating = timeline.known, timeline.operating(now_us)
    if since_us is not None:
        known = _operating_since(known, since_us)
    sizes = {size.time_ms: size for size in read_generation_sizes(lake)}
    node_counts = read_node_counts(lake)
    return [
        GenerationSummary(
            generation.id,
            generation.time_ms,
            generation.expired_ms,
            generation == operating,
            generation.state,
            generation.published,
            node_counts.get(generation.id or ""),
            (size and size.num_ranges) or None,
            (size and size.num_streams) or None,
        )
        for generation in reversed(known)
        for size in [sizes.get(generation.time_ms)]
    ]


def _operating_since(known: list[Generation], since_us: Microseconds) -> list[Generation]:
    """Return the generations (oldest first) that start at or after a time, and the one before them."""
    later = sum(us_from_ms(generation.time_ms) >= since_us for generation in known)
    return known[-(later + 1) :]


@dataclass(frozen=True, eq=False)
class GenerationStreams:
    """The published streams of a generation.

    `rows` has one row per range in ring order: `range_end` (bigint, the last token of the range) and `streams`
    (list<binary>, 16-byte stream IDs in shard order). `unordered_range_ends`: ranges whose shard order is unknown.
    """

    generation: Generation
    rows: pa.Table
    unordered_range_ends: frozenset[int]

    def __len__(self) -> int:
        """Return the number of ranges."""
        return self.rows.num_rows


def read_generation_streams(lake: Lake, generation: Generation) -> GenerationStreams:
    """Return the streams of a published generation.

    Raises:
        StateError: the generation is published without any rows.
    """
    rows = generations.read_published_rows(lake, generation.time_ms)
    where = [("table_name", "=", STREAMS_DESCRIPTIONS_V2.full_name), ("generation", "=", format_ms(generation.time_ms))]
    unordered = lake.read(UNORDERED_RANGES, ["range_end"], where)["range_end"].to_pylist()
    return GenerationStreams(generation, rows, frozenset(unordered))


@dataclass(frozen=True)
class DescribedSize:
    """A generation and the size of its description."""

    generation: Generation
    num_ranges: int
    num_streams: int


@dataclass(frozen=True, eq=False)
class GenerationDiff:
    """The difference between two generations.

    `ranges_added` and `ranges_removed` are range ends (int64[]). `streams_kept` counts the stream IDs that both have.
    `changed_share` is the share (0 to 1) of the ring whose writes go to another stream.
    """

    old: DescribedSize
    new: DescribedSize
    ranges_added: Int64s
    ranges_removed: Int64s
    streams_kept: int
    changed_share: float


def diff_generations(lake: Lake, old: Generation, new: Generation) -> GenerationDiff:
    """Return the difference between two generations.

    Raises:
        StateError: one is known by its time alone, or its description is incomplete.
        NotFound: its description is not stored.
    """
    before, after = _read_description(lake, old), _read_description(lake, new)
    comparison = compare_generations(before, after)
    return GenerationDiff(
        DescribedSize(old, len(before), len(before.streams)),
        DescribedSize(new, len(after), len(after.streams)),
        comparison.ranges_added,
        comparison.ranges_removed,
        comparison.streams_kept,
        comparison.changed_share,
    )


def _read_description(lake: Lake, generation: Generation) -> TopologyDescription:
    if generation.generation_id is None:
        raise StateError(
            f"generation {format_ms(generation.time_ms)} is known by its time alone; import its "
            "cdc_generation_descriptions_v2 to compare it"
        )
    return read_generation_description(lake, generation.generation_id)
