"""Short names of generations: parsed back, stable while queued, and compatible with older homes."""

from __future__ import annotations

import uuid

import pytest

from cdc_platform.clock import Milliseconds
from cdc_platform.errors import InputError, NotFound
from cdc_platform.timeline import GenerationKeys
from cdc_platform.timeline.generation_names import InboxJoin

FIRST, SECOND = str(uuid.UUID(int=1 << 120)), str(uuid.UUID(int=2 << 120))


def known_keys(*addresses: str, kept: frozenset[str] = frozenset()) -> GenerationKeys:
    """Return the keys of joins of nodes at these addresses."""
    ids = (FIRST, SECOND)
    joins = (InboxJoin(n, ids[n - 1], str(uuid.UUID(int=n)), address) for n, address in enumerate(addresses, start=1))
    return GenerationKeys(tuple(joins), frozenset(), kept)


@pytest.mark.parametrize(
    "address", ["10.0.0.4", "255.255.255.255", "fe80::1ff:fe23:4567:890a", "scylla_1.eu-west.example.com", "x" * 60]
)
def test_a_name_is_parsed_back(address: str) -> None:
    """Whatever a node's address is, its generation's name is short and identifies it alone."""
    known = known_keys(address, address)
    names = [known.of(generation_id) for generation_id in (FIRST, SECOND)]
    assert len(set(names)) == 2
    assert [known.generation(name) for name in names] == [FIRST, SECOND]
    assert all(len(name) <= 28 for name in names)


def test_a_name_does_not_change() -> None:
    """Later joins, and the generation's own time, do not change its name."""
    name = "1_10.0.0.4_01000000"
    assert known_keys("10.0.0.4").of(FIRST) == known_keys("10.0.0.4", "10.0.0.5").of(FIRST, Milliseconds(1_000)) == name


def test_names_of_older_homes_stay_valid() -> None:
    """A partition named by its UUID retains its name; both names identify the generation."""
    known = known_keys("10.0.0.4", "10.0.0.5", kept=frozenset({FIRST}))
    assert known.of(FIRST) == FIRST
    assert known.generation(FIRST) == known.generation("1_10.0.0.4_01000000") == FIRST
    assert known.of(SECOND) == "2_10.0.0.5_02000000"


def test_without_a_join_the_time_is_the_name() -> None:
    """An imported generation is named by its timestamp, which leads back to it."""
    known = known_keys()
    assert known.of(FIRST, Milliseconds(1_769_860_800_384)) == "2026-01-31T12:00:00.384Z"
    assert known.generation("2026-01-31T12:00:00.384Z") == 1_769_860_800_384


@pytest.mark.parametrize("name", ["2_10.0.0.4_01000000", "1_10.0.0.4_02000000", "0_10.0.0.4_01000000"])
def test_a_name_of_another_inbox_is_unknown(name: str) -> None:
    """The number and the digits of a name must match each other."""
    with pytest.raises(NotFound):
        known_keys("10.0.0.4").generation(name)


def test_an_invalid_name_is_refused() -> None:
    """Text that is no name, time or UUID is refused; a generation without a join has no short name."""
    with pytest.raises(InputError, match="is no name of a generation"):
        known_keys().generation("nonsense")
    with pytest.raises(NotFound, match="no bootstrap event"):
        known_keys().of(FIRST)
