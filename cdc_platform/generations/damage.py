"""Whether a generation still fits its ring: when `checkAndRepairCdcStreams` creates a new one, and other damage.

These are pure functions of columns. `lifecycle` reads the columns and creates the new generation.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from cdc_platform.generations.description import RingLayout, TopologyDescription, find_uncovered_tokens
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
"""The conditions under which ScyllaDB creates a new generation; the others go beyond it."""


@dataclass(frozen=True)
class GenerationDamage:
    """One condition that holds, and one line about it for people."""

    condition: DamageKind
    detail: str

    @property
    def is_reason(self) -> bool:
        """Return True if the condition alone makes a repair necessary."""
        return self.condition in REPAIR_REASONS


def find_range_damage(range_ends: Int64s, ring_tokens: Int64s) -> list[GenerationDamage]:
    """Find where ranges (ends int64[n], ascending) do not fit the ring's tokens (int64[m], ascending).

    More ranges than tokens still refine the ring, but their streams are useless, so their number counts as damage.
    """
    damage = []
    if len(range_ends) != len(ring_tokens):
        damage.append(
            GenerationDamage(
                DamageKind.RANGE_COUNT,
                f"the ring has {len(ring_tokens)} tokens, the generation describes {len(range_ends)} ranges",
            )
        )
    missing = unique_tokens(find_uncovered_tokens(range_ends, ring_tokens))
    if len(missing):
        text = (
            f"{_describe_count(missing, 'token')} of the ring ends no range of the generation, so vnode colocation is "
            f"lost there"
        )
        damage.append(GenerationDamage(DamageKind.UNCOVERED_TOKENS, text))
    excess = unique_tokens(range_ends[~isin_sorted_tokens(range_ends, ring_tokens)])
    if len(excess):
        text = f"{_describe_count(excess, 'range end')} of the generation is no longer a token of the ring"
        damage.append(GenerationDamage(DamageKind.EXCESS_RANGES, text))
    return damage


def find_sharding_damage(
    range_ends: Int64s, stream_counts: Int64s, ignore_msbs: Int64s, ring: Ring, expected: RingLayout
) -> list[GenerationDamage]:
    """Find where a generation's rows (int64[n] columns) are not sharded like the owners of their ends.

    `expected` is the layout of a new generation of `ring`. A node whose rows all have one other number of streams was
    resharded; a node whose rows differ from each other has damaged or limited rows.
    """
    rows = np.flatnonzero(isin_sorted_tokens(range_ends, ring.tokens))
    index = np.searchsorted(ring.tokens, range_ends[rows])
    owners, counts, due = (
        ring.owner_index[index],
        stream_counts[rows],
        expected.shard_counts[index],
    )
    resharded: list[str] = []
    uneven: list[str] = []
    for owner in unique_tokens(owners[counts != due]).tolist():
        owned = owners == owner
        distinct = unique_tokens(counts[owned])
        host = ring.nodes[owner].host_id
        if len(distinct) == 1 and np.ptp(due[owned]) == 0:
            resharded.append(
                f"{host} has {due[owned][0]} shards, its {int(owned.sum())} ranges have {distinct[0]} streams"
            )
        else:
            wrong = owned & (counts != due)
            first = int(np.flatnonzero(wrong)[0])
            uneven.append(
                f"{int(wrong.sum())} of {int(owned.sum())} ranges of {host}, the first ends at "
                f"{range_ends[rows[first]]} and has {counts[first]} streams instead of {due[first]}"
            )
    damage = []
    if resharded:
        damage.append(GenerationDamage(DamageKind.SHARD_COUNT, _describe_first(resharded, "node")))
    if uneven:
        damage.append(GenerationDamage(DamageKind.STREAMS_A_ROW, _describe_first(uneven, "node")))
    wrong = np.flatnonzero(ignore_msbs[rows] != expected.ignore_msbs[index])
    if len(wrong):
        row = int(wrong[0])
        text = (
            f"{len(wrong)} ranges have another ignore_msb than the owner of their end, the first ends at "
            f"{range_ends[rows[row]]} and has {ignore_msbs[rows[row]]} instead of {expected.ignore_msbs[index[row]]}"
        )
        damage.append(GenerationDamage(DamageKind.IGNORE_MSB, text))
    return damage


def _find_stream_damage(description: TopologyDescription) -> list[GenerationDamage]:
    """Find streams of a row that its own sharding does not put there: token, index or version differ."""
    damage = find_misplaced_streams(description)
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
        damage.append(GenerationDamage(DamageKind.MISPLACED_STREAMS, text))
    return damage


def find_misplaced_streams(description: TopologyDescription) -> list[GenerationDamage]:
    """Find streams without the token that their range and shard give them."""
    counts = description.stream_counts
    rows = np.repeat(np.arange(len(description)), counts)
    shards = np.arange(len(rows)) - np.repeat(description.offsets[:-1], counts)
    expected = first_token_for_shard(
        description.range_starts[rows],
        description.range_ends[rows],
        shards,
        counts[rows],
        description.ignore_msbs[rows],
    )
    wrong = np.flatnonzero(decode_stream_ids(description.streams).tokens != expected)
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
    """Find what is wrong with the ID of the latest generation (None: there is none).

    `v2_everywhere`: True if every node reads V2.
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
    """Find all damage of a readable generation with respect to its ring: in ranges, sharding and streams."""
    return [
        *find_range_damage(description.range_ends, ring.tokens),
        *find_sharding_damage(
            description.range_ends, description.stream_counts, description.ignore_msbs, ring, expected
        ),
        *_find_stream_damage(description),
    ]


def _describe_count(values: Int64s, noun: str) -> str:
    """Return `token 5`, or the number of values and the first one."""
    return f"{noun} {values[0]}" if len(values) == 1 else f"each of {len(values)} {noun}s (the first is {values[0]})"


def _describe_first(texts: list[str], noun: str) -> str:
    return texts[0] if len(texts) == 1 else f"{texts[0]}; and {len(texts) - 1} more {noun}s"
