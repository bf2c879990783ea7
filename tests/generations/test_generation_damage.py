"""When a generation no longer fits its ring: each condition alone, and none where nothing is amiss."""

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
    """What is amiss between a description and a ring of nodes that all read the second format."""
    return find_description_damage(description, ring, RingLayout.of(ring))


def conditions(found: list[GenerationDamage]) -> set[str]:
    """The conditions that hold."""
    return {each.condition.value for each in found}


def test_a_fresh_generation_fits() -> None:
    """Straight after it was made nothing is amiss."""
    assert damage(GENERATION) == []


def test_six_conditions_ask_for_a_repair_by_themselves() -> None:
    """Those of checkAndRepairCdcStreams, no more: sharding and excess are warnings."""
    expected = "no-generation v1-format unreadable missing-data range-count uncovered-tokens"
    assert {each.value for each in REPAIR_REASONS} == set(expected.split())


def test_a_node_has_left() -> None:
    """Ranges of a node that is gone: the numbers differ, every one of its ends is excess, no token is uncovered."""
    found = damage(GENERATION, Ring.of([ONE]))
    assert conditions(found) == {"range-count", "excess-ranges"}
    assert "the ring has 3 tokens, the generation describes 5 ranges" in found[0].detail
    assert "2 range ends (the first is 0)" in found[1].detail


def test_a_node_is_there_that_the_generation_does_not_know() -> None:
    """A node that joined without a generation: its tokens end no range."""
    found = damage(GENERATION, Ring.of([ONE, TWO, Node(UUID(int=3), (33,), 4, 12)]))
    assert conditions(found) == {"range-count", "uncovered-tokens"}
    assert "token 33 of the ring ends no range" in found[1].detail


def test_a_node_was_replaced_by_one_with_as_many_tokens() -> None:
    """Equal numbers hide nothing: the new token is uncovered, and the old one excess."""
    found = damage(GENERATION, Ring.of([ONE, Node(UUID(int=3), (0, 78), 3, 0)]))
    assert conditions(found) == {"uncovered-tokens", "excess-ranges"}


@pytest.mark.parametrize(
    ("shards", "msb", "expected"),
    [(5, 0, {"shard-count"}), (3, 1, {"ignore-msb"}), (5, 1, {"shard-count", "ignore-msb"})],
)
def test_a_node_was_resharded(shards: int, msb: int, expected: set[str]) -> None:
    """The ring is covered, the owner's sharding is another one: a warning that names the node or the range."""
    found = damage(GENERATION, Ring.of([ONE, Node(TWO.host_id, TWO.tokens, shards, msb)]))
    assert conditions(found) == expected
    assert not REPAIR_REASONS & {each.condition for each in found}


def test_single_rows_with_another_number_of_streams() -> None:
    """One range of a node has a stream too few: the row is named, and the node is not said to be resharded."""
    counts = GENERATION.stream_counts.copy()
    counts[2] -= 1
    streams = np.delete(GENERATION.streams, GENERATION.offsets[3] - 1, axis=0)
    found = damage(TopologyDescription(GENERATION.range_ends, counts, GENERATION.ignore_msbs, streams))
    assert "streams-a-row" in conditions(found)
    assert "shard-count" not in conditions(found)
    text = next(each.detail for each in found if each.condition is DamageKind.STREAMS_A_ROW)
    assert "1 of 3 ranges of" in text
    assert "ends at 5 and has 3 streams instead of 4" in text


def test_streams_in_another_order_are_misplaced() -> None:
    """Sorted streams, as a set would give them back, are found; which is the first is said."""
    streams = GENERATION.streams.copy()
    streams[[0, 1]] = streams[[1, 0]]
    found = damage(
        TopologyDescription(GENERATION.range_ends, GENERATION.stream_counts, GENERATION.ignore_msbs, streams)
    )
    assert conditions(found) == {"misplaced-streams"}
    assert found[0].detail.startswith("2 of 18 streams")
    assert f"0x{streams[0].tobytes().hex()}" in found[0].detail


@given(st.integers(0, 17), st.integers(0, 15), st.integers(1, 255))
def test_a_changed_byte_is_found_unless_it_is_random(stream: int, byte: int, change: int) -> None:
    """Token, version and index of every stream are checked, bit by bit; the 38 random bits say nothing."""
    streams = GENERATION.streams.copy()
    streams[stream, byte] ^= change
    if streams[stream, 15] & 0x0F > 1:
        return  # an ID of an unknown version: no description holds it
    random_bits = {8: 0xFF, 9: 0xFF, 10: 0xFF, 11: 0xFF, 12: 0xFC}.get(byte, 0)
    changed = TopologyDescription(GENERATION.range_ends, GENERATION.stream_counts, GENERATION.ignore_msbs, streams)
    assert conditions(damage(changed)) == ({"misplaced-streams"} if change & ~random_bits else set())


def test_a_limited_generation_fits_as_long_as_the_next_would_be_limited_too() -> None:
    """In the first format a large ring has fewer streams than shards: no damage until the second can be used."""
    ring = Ring.of([Node(UUID(int=1), tuple(range(300)), 1000, 12)])
    layout = RingLayout.of(ring)
    limited = limit_streams_for_v1(layout)
    made = generate_description(limited, UUID(int=1))
    assert find_description_damage(made, ring, limited) == []
    assert conditions(find_description_damage(made, ring, layout)) == {"shard-count"}
