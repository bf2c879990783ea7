"""Short names of generations: there and back, known when queued, and those of older homes."""

from __future__ import annotations

import uuid

import pytest

from cdc_platform.clock import Milliseconds
from cdc_platform.errors import InputError, NotFound
from cdc_platform.timeline import GenerationKeys
from cdc_platform.timeline.generation_names import InboxJoin

FIRST, SECOND = str(uuid.UUID(int=1 << 120)), str(uuid.UUID(int=2 << 120))


def keys(*addresses: str, kept: frozenset[str] = frozenset()) -> GenerationKeys:
    """Joins of nodes at these addresses."""
    ids = (FIRST, SECOND)
    joins = (InboxJoin(n, ids[n - 1], str(uuid.UUID(int=n)), address) for n, address in enumerate(addresses, start=1))
    return GenerationKeys(tuple(joins), frozenset(), kept)


@pytest.mark.parametrize(
    "address", ["10.0.0.4", "255.255.255.255", "fe80::1ff:fe23:4567:890a", "scylla_1.eu-west.example.com", "x" * 60]
)
def test_a_name_leads_back(address: str) -> None:
    """Whatever a node is called, its generation's name is short and leads to it alone."""
    known = keys(address, address)
    names = [known.of(each) for each in (FIRST, SECOND)]
    assert len(set(names)) == 2
    assert [known.generation(name) for name in names] == [FIRST, SECOND]
    assert all(len(name) <= 28 for name in names)


def test_a_name_does_not_change() -> None:
    """Who queues behind it, and the time that it gets, change no name."""
    name = "1_10.0.0.4_01000000"
    assert keys("10.0.0.4").of(FIRST) == keys("10.0.0.4", "10.0.0.5").of(FIRST, Milliseconds(1_000)) == name


def test_names_of_before_go_on() -> None:
    """A partition that is called by its UUID keeps its name; both names lead to the generation."""
    known = keys("10.0.0.4", "10.0.0.5", kept=frozenset({FIRST}))
    assert known.of(FIRST) == FIRST
    assert known.generation(FIRST) == known.generation("1_10.0.0.4_01000000") == FIRST
    assert known.of(SECOND) == "2_10.0.0.5_02000000"


def test_without_a_join_the_time_is_the_name() -> None:
    """An imported generation is named by its timestamp, which leads back to it."""
    known = keys()
    assert known.of(FIRST, Milliseconds(1_769_860_800_384)) == "2026-01-31T12:00:00.384Z"
    assert known.generation("2026-01-31T12:00:00.384Z") == 1_769_860_800_384


@pytest.mark.parametrize("name", ["2_10.0.0.4_01000000", "1_10.0.0.4_02000000", "0_10.0.0.4_01000000"])
def test_a_name_of_another_inbox_is_none(name: str) -> None:
    """Number and digits have to fit each other."""
    with pytest.raises(NotFound):
        keys("10.0.0.4").generation(name)


def test_what_is_no_name_is_refused() -> None:
    """Neither a name nor a time nor a UUID."""
    with pytest.raises(InputError, match="is no name of a generation"):
        keys().generation("nonsense")
    with pytest.raises(NotFound, match="no bootstrap event"):
        keys().of(FIRST)
