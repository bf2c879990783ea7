"""When a generation no longer fits its ring: each condition alone, and none for a sound generation."""

from __future__ import annotations

from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_platform.generations import (
    DamageKind,
    GenerationDamage,
    RingLayout,
    TopologyDescription,
    find_description_damage,
    generate_description,
    limit_streams_for_v1,
)
from cdc_platform.generations.damage import REPAIR_REASONS
from cdc_platform.ring import Node, Ring

ONE = Node(UUID(int=1), (-(2**62), 5, 2**61), 4, 12)
TWO = Node(UUID(int=2), (0, 77), 3, 0)
RING = Ring.of([ONE, TWO])
GENERATION = generate_description(RingLayout.of(RING), UUID(int=9))


def damage(description: TopologyDescription, ring: Ring = RING) -> list[GenerationDamage]:
    """Return the damage of a description in a ring of nodes that all support V2."""
    return find_description_damage(description, ring, RingLayout.of(ring))


def conditions(damages: list[GenerationDamage]) -> set[str]:
    """Return the conditions of the damages."""
    return {damage_found.condition.value for damage_found in damages}


def test_a_fresh_generation_fits() -> None:
    """A newly generated description has no damage."""
    assert damage(GENERATION) == []


def test_six_conditions_require_a_repair() -> None:
    """The conditions are those of checkAndRepairCdcStreams; sharding and excess ranges are warnings."""
    expected = "no-generation v1-format unreadable missing-data range-count uncovered-tokens"
    assert {condition.value for condition in REPAIR_REASONS} == set(expected.split())


def test_a_node_that_left() -> None:
    """The number of ranges differs, the node's range ends are in excess, and no token is uncovered."""
    damages = damage(GENERATION, Ring.of([ONE]))
    assert conditions(damages) == {"range-count", "excess-ranges"}
    assert "the ring has 3 tokens, the generation describes 5 ranges" in damages[0].detail
    assert "2 range ends (the first is 0)" in damages[1].detail


def test_a_node_unknown_to_the_generation() -> None:
    """The tokens of a node that joined without a generation end no range."""
    damages = damage(GENERATION, Ring.of([ONE, TWO, Node(UUID(int=3), (33,), 4, 12)]))
    assert conditions(damages) == {"range-count", "uncovered-tokens"}
    assert "token 33 of the ring ends no range" in damages[1].detail


def test_a_node_was_replaced_by_one_with_as_many_tokens() -> None:
    """Although the numbers are equal, the new token is uncovered and the old one in excess."""
    damages = damage(GENERATION, Ring.of([ONE, Node(UUID(int=3), (0, 78), 3, 0)]))
    assert conditions(damages) == {"uncovered-tokens", "excess-ranges"}


@pytest.mark.parametrize(
    ("shards", "msb", "expected"),
    [(5, 0, {"shard-count"}), (3, 1, {"ignore-msb"}), (5, 1, {"shard-count", "ignore-msb"})],
)
def test_a_node_was_resharded(shards: int, msb: int, expected: set[str]) -> None:
    """The ring is covered, but its owner's sharding differs, which is a warning with the node or the range."""
    damages = damage(GENERATION, Ring.of([ONE, Node(TWO.host_id, TWO.tokens, shards, msb)]))
    assert conditions(damages) == expected
    assert not REPAIR_REASONS & {damage_found.condition for damage_found in damages}


def test_a_single_row_with_another_number_of_streams() -> None:
    """If one range of a node lacks a stream, the message names the row, and the node does not count as resharded."""
    counts = GENERATION.stream_counts.copy()
    counts[2] -= 1
    streams = np.delete(GENERATION.streams, GENERATION.offsets[3] - 1, axis=0)
    damages = damage(TopologyDescription(GENERATION.range_ends, counts, GENERATION.ignore_msbs, streams))
    assert "streams-a-row" in conditions(damages)
    assert "shard-count" not in conditions(damages)
    text = next(damage_found.detail for damage_found in damages if damage_found.condition is DamageKind.STREAMS_A_ROW)
    assert "1 of 3 ranges of" in text
    assert "ends at 5 and has 3 streams instead of 4" in text


def test_streams_in_another_order_are_misplaced() -> None:
    """Streams sorted as in a set are found, and the message names the first."""
    streams = GENERATION.streams.copy()
    streams[[0, 1]] = streams[[1, 0]]
    damages = damage(
        TopologyDescription(GENERATION.range_ends, GENERATION.stream_counts, GENERATION.ignore_msbs, streams)
    )
    assert conditions(damages) == {"misplaced-streams"}
    assert damages[0].detail.startswith("2 of 18 streams")
    assert f"0x{streams[0].tobytes().hex()}" in damages[0].detail


@given(st.integers(0, 17), st.integers(0, 15), st.integers(1, 255))
def test_a_changed_byte_is_found_unless_it_is_random(stream: int, byte: int, change: int) -> None:
    """Every bit of a stream's token, version and index is checked; the 38 random bits are not."""
    streams = GENERATION.streams.copy()
    streams[stream, byte] ^= change
    if streams[stream, 15] & 0x0F > 1:
        return  # an ID of an unknown version, which no description accepts
    random_bits = {8: 0xFF, 9: 0xFF, 10: 0xFF, 11: 0xFF, 12: 0xFC}.get(byte, 0)
    changed = TopologyDescription(GENERATION.range_ends, GENERATION.stream_counts, GENERATION.ignore_msbs, streams)
    assert conditions(damage(changed)) == ({"misplaced-streams"} if change & ~random_bits else set())


def test_a_limited_generation_fits_as_long_as_the_next_would_be_limited_too() -> None:
    """In V1 a large ring has fewer streams than shards, which is no damage until V2 is possible."""
    ring = Ring.of([Node(UUID(int=1), tuple(range(300)), 1000, 12)])
    layout = RingLayout.of(ring)
    limited = limit_streams_for_v1(layout)
    description = generate_description(limited, UUID(int=1))
    assert find_description_damage(description, ring, limited) == []
    assert conditions(find_description_damage(description, ring, layout)) == {"shard-count"}
