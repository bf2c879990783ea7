"""Names of generations: the keys of Dagster's partitions, the names in tables, and the digests of their rows.

A generation that a join or a repair creates is named by its number in the inbox, its node and the first digits of
its UUID, as `12_10.0.0.4_5f0c3c5e`: all are known when it is queued and never change. A generation without a join
is named by its timestamp. Names of older homes are whole UUIDs and stay valid.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

import pyarrow as pa

from cdc_platform.clock import Microseconds, Milliseconds, datetime_from_ms, format_ms, parse_time_ms
from cdc_platform.delta import Lake, PartSelector, provenance, row_hash
from cdc_platform.errors import InputError, NotFound, UnknownGeneration
from cdc_platform.metastore import GENERATION_EVENTS, WITHDRAWAL_EVENT
from cdc_platform.tables import (
    BOOTSTRAP_EVENTS,
    CDC_LOCAL,
    GENERATION_DESCRIPTIONS,
    GENERATION_DESCRIPTIONS_V2,
    GENERATION_SWITCHES,
    GENERATION_TIMESTAMPS,
    GENERATIONS,
    NODES,
    REMOVED_GENERATIONS,
    STREAMS_DESCRIPTIONS,
    STREAMS_DESCRIPTIONS_V2,
    TOPOLOGY_DESCRIPTIONS,
    VERDICTS,
    Table,
)
from cdc_platform.timeline.timeline import Timeline

_UUID_PATTERN = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_JOIN_KEY_PATTERN = re.compile(r"(\d+)_.*_([0-9a-f]{8})")
_TIME_PATTERN = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_MAX_NODE_CHARACTERS = 15


@dataclass(frozen=True)
class InboxJoin:
    """An event that creates a generation: its number in the inbox (from 1), its generation and its node."""

    number: int
    generation_id: str
    host_id: str
    address: str

    @property
    def key(self) -> str:
        """Return the generation's short name."""
        return f"{self.number}_{_short_node_name(self.address)}_{self.generation_id[:8]}"


@dataclass(frozen=True)
class GenerationKeys:
    """The names of all generations. `older_names` are whole UUIDs that older homes use as names and that stay valid."""

    joins: tuple[InboxJoin, ...]
    withdrawn: frozenset[str]
    older_names: frozenset[str] = frozenset()

    @classmethod
    def read(cls, lake: Lake, older_names: Collection[str] = ()) -> GenerationKeys:
        """Read the names from the inbox. Of `older_names`, only whole UUIDs stay names. Reads no tokens."""
        columns = ["event_id", "kind", "generation_id", "host_id", "address", "created_at"]
        rows = lake.read(BOOTSTRAP_EVENTS, columns).sort_by([("created_at", "ascending"), ("event_id", "ascending")])
        events, kinds, generations, hosts, addresses = (rows[name].to_pylist() for name in columns[:5])
        # A foreign writer can double a row; the numbers of later joins must not change.
        making = [
            index
            for index, kind in enumerate(kinds)
            if kind in GENERATION_EVENTS and (index == 0 or events[index] != events[index - 1])
        ]
        joins = tuple(
            InboxJoin(number, generations[index], hosts[index], addresses[index])
            for number, index in enumerate(making, start=1)
        )
        withdrawn = frozenset(name for name, kind in zip(generations, kinds, strict=True) if kind == WITHDRAWAL_EVENT)
        return cls(joins, withdrawn, frozenset(name for name in older_names if _UUID_PATTERN.fullmatch(name)))

    def of(self, generation_id: str | None, time_ms: Milliseconds | None = None) -> str:
        """Return the name of a generation: from its join, or else from its time (ms).

        Raises:
            NotFound: no event creates it, and no time is given.
        """
        if generation_id is not None and generation_id in self.older_names:
            return generation_id
        join = None if generation_id is None else self.by_generation.get(generation_id)
        if join is not None:
            return join.key
        if time_ms is None:
            raise NotFound(f"no bootstrap event introduces generation {generation_id}, and it has no time")
        return format_ms(time_ms)

    def generation(self, key: str) -> str | Milliseconds:
        """Return the generation with a name: its UUID (text), or its time (ms) if it has no join.

        Raises:
            NotFound: the inbox has no such join.
            InputError: the name is not a generation's.
        """
        if _UUID_PATTERN.fullmatch(key):
            return key
        match = _JOIN_KEY_PATTERN.fullmatch(key)
        if match is None:
            try:
                return parse_time_ms(key)
            except InputError:
                raise InputError(
                    f"{key!r} is no name of a generation; write it as in the list of partitions: 12_10.0.0.4_5f0c3c5e"
                ) from None
        number, digits = int(match[1]), match[2]
        join = self.joins[number - 1] if 0 < number <= len(self.joins) else None
        if join is None or not join.generation_id.startswith(digits):
            raise UnknownGeneration(
                f"no join in the inbox creates generation {key}; list them with: cdc-platform generations"
            )
        return join.generation_id

    @cached_property
    def by_generation(self) -> dict[str, InboxJoin]:
        """Return the joins by their generations' UUIDs."""
        return {join.generation_id: join for join in self.joins}


def is_generation_name(key: str) -> bool:
    """Return True if a partition key has the form of a generation's name. Tables and hours have other forms."""
    return any(pattern.fullmatch(key) for pattern in (_JOIN_KEY_PATTERN, _UUID_PATTERN, _TIME_PATTERN))


def _short_node_name(address: str) -> str:
    """Shorten a node's address: all of an IPv4 address, the end of an IPv6 one, the first label of a host name."""
    if ":" in address:
        return address.replace(":", "-")[-_MAX_NODE_CHARACTERS:]
    return address if address.replace(".", "").isdigit() else address.partition(".")[0][:_MAX_NODE_CHARACTERS]


_UUID_LENGTH, _UUID_DASHES = 36, 4


@dataclass(frozen=True)
class GenerationRows:
    """The rows of a table with these values in these columns."""

    table: Table
    where: PartSelector


@dataclass(frozen=True)
class GenerationNames:
    """How tables name a generation. `id` None: only its time (ms) is known; `time_ms` None: it has no time yet.

    `host_id` is the joining node, None if no event creates the generation. `is_v1`: its data is a V1 cell.
    """

    key: str
    id: str | None
    time_ms: Milliseconds | None
    host_id: str | None
    is_v1: bool = False
    is_removed: bool = False

    def parts(self) -> Iterator[GenerationRows]:
        """Yield its rows in all tables, in the order in which they are written."""
        if self.id is not None:
            named = {"generation_id": self.id}
            yield GenerationRows(BOOTSTRAP_EVENTS, named)
            yield GenerationRows(TOPOLOGY_DESCRIPTIONS, named)
            yield GenerationRows(GENERATION_SWITCHES, named)
            yield GenerationRows(GENERATION_DESCRIPTIONS_V2, {"id": self.id})
            yield GenerationRows(GENERATIONS, named)
            yield GenerationRows(VERDICTS, named)
        if self.time_ms is None:
            return
        at = {"time": datetime_from_ms(self.time_ms)}
        yield GenerationRows(GENERATION_DESCRIPTIONS, at)
        if self.host_id is not None:
            yield GenerationRows(CDC_LOCAL, {"host_id": self.host_id, "streams_timestamp": at["time"]})
            yield GenerationRows(NODES, {"host_id": self.host_id})
        yield GenerationRows(STREAMS_DESCRIPTIONS, at)
        yield GenerationRows(STREAMS_DESCRIPTIONS_V2, at)
        yield GenerationRows(GENERATION_TIMESTAMPS, at)
        yield GenerationRows(REMOVED_GENERATIONS, at)

    def part(self, table: Table) -> GenerationRows | None:
        """Return its rows in a table, or in the V1 table that corresponds to a V2 one; None while it can have none."""
        if table is GENERATION_DESCRIPTIONS_V2 and self.is_v1:
            table = GENERATION_DESCRIPTIONS
        return next((part for part in self.parts() if part.table is table), None)


def list_generation_names(lake: Lake, keys: GenerationKeys) -> list[GenerationNames]:
    """Return all waiting, existing and removed generations, oldest first, without withdrawn ones."""
    timeline = Timeline.read(lake)
    timed = [
        GenerationNames(
            keys.of(generation.id, generation.time_ms),
            generation.id,
            generation.time_ms,
            _joining_host(keys, generation.id),
            generation.format == "v1",
            generation.is_removed,
        )
        for generation in timeline.generations
    ]
    known = {generation.id for generation in timed}
    waiting = (join for join in keys.joins if join.generation_id not in known | keys.withdrawn)
    return [
        *timed,
        *(GenerationNames(keys.of(join.generation_id), join.generation_id, None, join.host_id) for join in waiting),
    ]


def resolve_generation(lake: Lake, keys: GenerationKeys, name: str, now_us: Microseconds) -> str | Milliseconds:
    """Return the generation with this name, as its UUID (text) or time (ms).

    `name` is its key in a list of partitions, whatever its state, its UUID or time, the beginning of either, `latest`,
    or `operating` (at `now_us`).

    Raises:
        NotFound: no generation has this name, or several begin with it.
    """
    try:
        return keys.generation(name.lower() if name.count("-") == _UUID_DASHES else name)
    except InputError:
        if len(name) == _UUID_LENGTH:
            return name
        generation = Timeline.read(lake).find_by_name(name, now_us)
        return generation.id or generation.time_ms


def get_generation_names(lake: Lake, keys: GenerationKeys, generation: str | Milliseconds) -> GenerationNames:
    """Return how tables name a generation, given by its UUID (text) or time (ms), whatever its state.

    Raises:
        NotFound: the generation is unknown.
    """
    names = next(
        (
            candidate
            for candidate in list_generation_names(lake, keys)
            if generation in (candidate.id, candidate.time_ms)
        ),
        None,
    )
    if names is not None:
        return names
    if isinstance(generation, str) and generation in keys.by_generation:
        return GenerationNames(keys.of(generation), generation, None, _joining_host(keys, generation))
    Timeline.read(lake).find(generation)
    raise AssertionError("unreachable: what is found has a name")


class GenerationDigests:
    """Digests of generations' rows in tables. Each table is read once, on first use."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._slices: dict[str, provenance.PartitionDigests] = {}
        self._rows: dict[str, dict[str, int]] = {}

    def of(self, names: GenerationNames, table: Table) -> int | None:
        """Return the digest of a generation's rows in a table, or None while it has none there.

        For `cdc_local`, it is the digest of the row first given to the joining node, since nodes move on to later
        generations.
        """
        part = names.part(table)
        if part is None:
            return None
        if table is CDC_LOCAL:
            return _cdc_local_digest(self._lake, names)
        columns = tuple(part.where)
        name = row_hash.partition_name_from_values(columns, part.where)
        if columns == part.table.partition_by:
            if part.table.full_name not in self._slices:
                self._slices[part.table.full_name] = provenance.PartitionDigests(self._lake, part.table)
            return self._slices[part.table.full_name].digest(name)
        if part.table.full_name not in self._rows:
            self._rows[part.table.full_name] = row_hash.digest_rows(
                self._lake.read(part.table), columns, self._lake.digest_rule(part.table)
            )
        return self._rows[part.table.full_name].get(name)


def read_generation_digest(lake: Lake, names: GenerationNames, table: Table) -> int | None:
    """Return the digest as `GenerationDigests.of` does, reading only the rows of one generation."""
    part = names.part(table)
    if part is None:
        return None
    if table is CDC_LOCAL:
        return _cdc_local_digest(lake, names)
    return provenance.get_part_digest(lake, part.table, part.where)


def _cdc_local_digest(lake: Lake, names: GenerationNames) -> int | None:
    """Return the digest of the `cdc_local` row in which the joining node stores the ID, or None before it does."""
    if names.time_ms is None or names.host_id is None:
        return None
    stored_id = None if names.is_v1 else names.id
    return _hash_cdc_local_row(names.host_id, names.time_ms, stored_id, lake.digest_rule(CDC_LOCAL))


@lru_cache(maxsize=10_000)
def _hash_cdc_local_row(
    host_id: str, time_ms: Milliseconds, generation_id: str | None, rule: row_hash.DigestRule
) -> int:
    row = {
        "host_id": host_id,
        "key": "cdc_local",
        "streams_timestamp": datetime_from_ms(time_ms),
        "uuid": generation_id,
    }
    return row_hash.digest_rows(pa.Table.from_pylist([row], schema=CDC_LOCAL.schema), (), rule)[""]


def _joining_host(keys: GenerationKeys, generation_id: str | None) -> str | None:
    join = None if generation_id is None else keys.by_generation.get(generation_id)
    return None if join is None else join.host_id
