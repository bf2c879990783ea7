"""Whether a generation still fits its ring: when `checkAndRepairCdcStreams` creates a new one, and other damage.

Pure functions of columns. `lifecycle` reads the columns and creates the new generation.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from cdc_platform.generations.description import RingLayout, TopologyDescription
from cdc_platform.generations.generation_id import GenerationId
from cdc_platform.generations.stream_ids import STREAM_ID_VERSION, decode_stream_ids
from cdc_platform.ring import Int64s, Ring, first_token_for_shard, isin_sorted_tokens, unique_tokens


class DamageKind(StrEnum):
    """What is wrong with the latest generation. The first six make a repair necessary, the others if it is strict."""

    NO_GENERATION = "no-generation"
    V1_FORMAT = "v1-format"
    UNREADABLE = "unreadable"
    MISSING_DATA = "missing-data"
    RANGE_COUNT = "range-count"
    UNCOVERED_TOKENS = "uncovered-tokens"
    SHARD_COUNT = "shard-count"
    IGNORE_MSB = "ignore-msb"
    STREAMS_A_ROW = "streams-a-row"
    MISPLACED_STREAMS = "misplaced-streams"
    EXCESS_RANGES = "excess-ranges"


REPAIR_REASONS = frozenset(list(DamageKind)[:6])
"""The conditions under which ScyllaDB makes a new generation; the others go beyond it."""


@dataclass(frozen=True)
class GenerationDamage:
    """One condition that holds, and one line about it for people."""

    condition: DamageKind
    detail: str

    @property
    def is_reason(self) -> bool:
        """Whether it makes a repair necessary by itself."""
        return self.condition in REPAIR_REASONS


def find_range_damage(range_ends: Int64s, ring_tokens: Int64s) -> list[GenerationDamage]:
    """Where the ranges of a generation (ends int64[n], ascending) do not fit the ring's tokens (int64[m], ascending).

    More ranges than tokens still refine the ring; they are streams for nothing, which is why their number counts.
    """
    found = []
    if len(range_ends) != len(ring_tokens):
        found.append(
            GenerationDamage(
                DamageKind.RANGE_COUNT,
                f"the ring has {len(ring_tokens)} tokens, the generation describes {len(range_ends)} ranges",
            )
        )
    missing = unique_tokens(ring_tokens[~isin_sorted_tokens(ring_tokens, range_ends)])
    if len(missing):
        text = (
            f"{_describe_count(missing, 'token')} of the ring ends no range of the generation: vnode colocation "
            "is lost there"
        )
        found.append(GenerationDamage(DamageKind.UNCOVERED_TOKENS, text))
    excess = unique_tokens(range_ends[~isin_sorted_tokens(range_ends, ring_tokens)])
    if len(excess):
        text = f"{_describe_count(excess, 'range end')} of the generation is no token of the ring any more"
        found.append(GenerationDamage(DamageKind.EXCESS_RANGES, text))
    return found


def find_sharding_damage(
    range_ends: Int64s, stream_counts: Int64s, ignore_msbs: Int64s, ring: Ring, expected: RingLayout
) -> list[GenerationDamage]:
    """Where a generation's rows (int64[n] columns) are not sharded as the owners of their ends.

    `expected` is the layout that a new generation of `ring` would have. A node all of whose rows have one other number
    of streams was resharded; a node whose rows differ from each other has rows that are damaged or limited.
    """
    rows = np.flatnonzero(isin_sorted_tokens(range_ends, ring.tokens))
    place = np.searchsorted(ring.tokens, range_ends[rows])
    owners, counts, due = ring.owner_index[place], stream_counts[rows], expected.shard_counts[place]
    resharded: list[str] = []
    uneven: list[str] = []
    for owner in unique_tokens(owners[counts != due]).tolist():
        mine = owners == owner
        several = unique_tokens(counts[mine])
        host = ring.nodes[owner].host_id
        if len(several) == 1 and np.ptp(due[mine]) == 0:
            resharded.append(
                f"{host} has {due[mine][0]} shards, its {int(mine.sum())} ranges have {several[0]} streams"
            )
        else:
            wrong = mine & (counts != due)
            first = int(np.flatnonzero(wrong)[0])
            uneven.append(
                f"{int(wrong.sum())} of {int(mine.sum())} ranges of {host}, the first ends at "
                f"{range_ends[rows[first]]} and has {counts[first]} streams instead of {due[first]}"
            )
    found = []
    if resharded:
        found.append(GenerationDamage(DamageKind.SHARD_COUNT, _describe_first(resharded, "node")))
    if uneven:
        found.append(GenerationDamage(DamageKind.STREAMS_A_ROW, _describe_first(uneven, "node")))
    wrong = np.flatnonzero(ignore_msbs[rows] != expected.ignore_msbs[place])
    if len(wrong):
        row = int(wrong[0])
        text = (
            f"{len(wrong)} ranges have another ignore_msb than the owner of their end, the first ends at "
            f"{range_ends[rows[row]]} and has {ignore_msbs[rows[row]]} instead of {expected.ignore_msbs[place[row]]}"
        )
        found.append(GenerationDamage(DamageKind.IGNORE_MSB, text))
    return found


def _find_stream_damage(description: TopologyDescription) -> list[GenerationDamage]:
    """Where the streams of a row are not the ones its own sharding puts there: token, index or version is another."""
    found = find_misplaced_streams(description)
    rows = np.repeat(np.arange(len(description)), description.stream_counts)
    streams = decode_stream_ids(description.streams)
    wrong = np.flatnonzero((streams.versions != STREAM_ID_VERSION) | (streams.indexes != rows))
    if len(wrong):
        first = int(wrong[0])
        text = (
            f"{len(wrong)} of {len(rows)} stream IDs do not have version {STREAM_ID_VERSION} and the rank of "
            "their range, the "
            f"first is {_describe_stream(description, first, rows)}: version {streams.versions[first]}, index "
            f"{streams.indexes[first]} where the range is number {rows[first]}"
        )
        found.append(GenerationDamage(DamageKind.MISPLACED_STREAMS, text))
    return found


def find_misplaced_streams(description: TopologyDescription) -> list[GenerationDamage]:
    """Where streams do not have the token that their range and shard give them."""
    counts = description.stream_counts
    rows = np.repeat(np.arange(len(description)), counts)
    shards = np.arange(len(rows)) - np.repeat(description.offsets[:-1], counts)
    due = first_token_for_shard(
        description.range_starts[rows],
        description.range_ends[rows],
        shards,
        counts[rows],
        description.ignore_msbs[rows],
    )
    wrong = np.flatnonzero(decode_stream_ids(description.streams).tokens != due)
    if not len(wrong):
        return []
    first = int(wrong[0])
    text = (
        f"{len(wrong)} of {len(rows)} streams are not where their row and shard put them, the first is "
        f"{_describe_stream(description, first, rows)}"
    )
    return [GenerationDamage(DamageKind.MISPLACED_STREAMS, text)]


def _describe_stream(description: TopologyDescription, stream: int, rows: Int64s) -> str:
    end = description.range_ends[rows[stream]]
    return f"0x{description.streams[stream].tobytes().hex()} of the range up to {end}"


def find_id_damage(latest: GenerationId | None, *, v2_everywhere: bool) -> list[GenerationDamage]:
    """What is wrong with the ID of the latest generation (None: there is none) where every node, or not every one,
    reads the second format.
    """
    if latest is None:
        return [GenerationDamage(DamageKind.NO_GENERATION, "no generation is known at all")]
    if latest.uuid is None and v2_everywhere:
        text = f"the latest generation {latest} is of the first format, and every node supports the second"
        return [GenerationDamage(DamageKind.V1_FORMAT, text)]
    return []


def find_description_damage(
    description: TopologyDescription, ring: Ring, expected: RingLayout
) -> list[GenerationDamage]:
    """Everything that is amiss between a generation that could be read and its ring; see the three functions above."""
    return [
        *find_range_damage(description.range_ends, ring.tokens),
        *find_sharding_damage(
            description.range_ends, description.stream_counts, description.ignore_msbs, ring, expected
        ),
        *_find_stream_damage(description),
    ]


def _describe_count(values: Int64s, noun: str) -> str:
    """`token 5`, or how many there are and the first."""
    return f"{noun} {values[0]}" if len(values) == 1 else f"each of {len(values)} {noun}s (the first is {values[0]})"


def _describe_first(texts: list[str], noun: str) -> str:
    return texts[0] if len(texts) == 1 else f"{texts[0]}; and {len(texts) - 1} more {noun}s"
