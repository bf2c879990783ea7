"""Short names of generations that a person can tell apart, and back: what Dagster's partitions are called.

A generation that a join or a repair makes is named by its number in the inbox, its node and the first digits of its
UUID, as `12_10.0.0.4_5f0c3c5e`: all of it is known when it is queued and never changes. One without a join is named by
its timestamp. Homes of before had whole UUIDs as names; those go on.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

from cdc_platform.clock import Milliseconds, format_ms, parse_time_ms
from cdc_platform.errors import InputError, NotFound, UnknownGeneration
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import BOOTSTRAP_EVENTS
from cdc_platform.records.inbox import MAKING, WITHDRAW

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_JOIN = re.compile(r"(\d+)_.*_([0-9a-f]{8})")
_LONGEST_NODE = 15


@dataclass(frozen=True)
class Join:
    """An event that makes a generation: its place in the inbox from 1 on, its generation, its node."""

    number: int
    generation_id: str
    host_id: str
    address: str

    @property
    def key(self) -> str:
        """The generation's short name."""
        return f"{self.number}_{_node(self.address)}_{self.generation_id[:8]}"


@dataclass(frozen=True)
class Keys:
    """The names of all generations. `kept` are names of before, whole UUIDs, which their generations keep."""

    joins: tuple[Join, ...]
    withdrawn: frozenset[str]
    kept: frozenset[str] = frozenset()

    @classmethod
    def read(cls, lake: Lake, kept: Collection[str] = ()) -> Keys:
        """The names by the inbox as it stands. Of names in `kept` those that are UUIDs stay. Reads no tokens."""
        columns = ["event_id", "kind", "generation_id", "host_id", "address", "created_at"]
        rows = lake.read(BOOTSTRAP_EVENTS, columns).sort_by([("created_at", "ascending"), ("event_id", "ascending")])
        kinds, generations, hosts, addresses = (rows[name].to_pylist() for name in columns[1:5])
        making = [place for place, kind in enumerate(kinds) if kind in MAKING]
        joins = tuple(
            Join(number, generations[place], hosts[place], addresses[place])
            for number, place in enumerate(making, start=1)
        )
        withdrawn = frozenset(name for name, kind in zip(generations, kinds, strict=True) if kind == WITHDRAW)
        return cls(joins, withdrawn, frozenset(name for name in kept if _UUID.fullmatch(name)))

    def of(self, generation_id: str | None, time_ms: Milliseconds | None = None) -> str:
        """The name of a generation: by its join, or without one by its time (ms).

        Raises:
            NotFound: no event makes it, and no time is given.
        """
        if generation_id is not None and generation_id in self.kept:
            return generation_id
        join = None if generation_id is None else self.by_generation.get(generation_id)
        if join is not None:
            return join.key
        if time_ms is None:
            raise NotFound(f"no bootstrap event introduces generation {generation_id}, and it has no time")
        return format_ms(time_ms)

    def generation(self, key: str) -> str | Milliseconds:
        """The generation of a name: its UUID (text), or its time (ms) where it has no join.

        Raises:
            NotFound: the inbox has no such join.
            InputError: it is no name of a generation.
        """
        if _UUID.fullmatch(key):
            return key
        named = _JOIN.fullmatch(key)
        if named is None:
            try:
                return parse_time_ms(key)
            except InputError:
                raise InputError(
                    f"{key!r} names no generation; they are named as 12_10.0.0.4_5f0c3c5e, as in the list of partitions"
                ) from None
        number, digits = int(named[1]), named[2]
        join = self.joins[number - 1] if 0 < number <= len(self.joins) else None
        if join is None or not join.generation_id.startswith(digits):
            raise UnknownGeneration(
                f"no join in the inbox makes generation {key}; list them with: cdc-platform generations"
            )
        return join.generation_id

    @cached_property
    def by_generation(self) -> dict[str, Join]:
        """The joins by their generations' UUIDs."""
        return {join.generation_id: join for join in self.joins}


def _node(address: str) -> str:
    """A node's address, short: an IPv4 address whole, the end of an IPv6 one, the first part of a host's name."""
    if ":" in address:
        return address.replace(":", "-")[-_LONGEST_NODE:]
    return address if address.replace(".", "").isdigit() else address.partition(".")[0][:_LONGEST_NODE]
