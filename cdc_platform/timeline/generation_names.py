"""Names of generations: the keys of Dagster's partitions, the names in tables, and the digests of their rows.

A generation that a join or a repair creates is named by its number in the inbox, its node and the first digits of
its UUID, as `12_10.0.0.4_5f0c3c5e`: all are known when it is queued and never change. A generation without a join
is named by its timestamp. Names of older homes are whole UUIDs and stay valid.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property

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
_MAX_NODE_CHARACTERS = 15


@dataclass(frozen=True)
class InboxJoin:
    """An event that makes a generation: its place in the inbox from 1 on, its generation, its node."""

    number: int
    generation_id: str
    host_id: str
    address: str

    @property
    def key(self) -> str:
        """The generation's short name."""
        return f"{self.number}_{_short_node_name(self.address)}_{self.generation_id[:8]}"


@dataclass(frozen=True)
class GenerationKeys:
    """The names of all generations. `kept` are names of before, whole UUIDs, which their generations keep."""

    joins: tuple[InboxJoin, ...]
    withdrawn: frozenset[str]
    kept: frozenset[str] = frozenset()

    @classmethod
    def read(cls, lake: Lake, kept: Collection[str] = ()) -> GenerationKeys:
        """The names by the inbox as it stands. Of names in `kept` those that are UUIDs stay. Reads no tokens."""
        columns = ["event_id", "kind", "generation_id", "host_id", "address", "created_at"]
        rows = lake.read(BOOTSTRAP_EVENTS, columns).sort_by([("created_at", "ascending"), ("event_id", "ascending")])
        kinds, generations, hosts, addresses = (rows[name].to_pylist() for name in columns[1:5])
        making = [place for place, kind in enumerate(kinds) if kind in GENERATION_EVENTS]
        joins = tuple(
            InboxJoin(number, generations[place], hosts[place], addresses[place])
            for number, place in enumerate(making, start=1)
        )
        withdrawn = frozenset(name for name, kind in zip(generations, kinds, strict=True) if kind == WITHDRAWAL_EVENT)
        return cls(joins, withdrawn, frozenset(name for name in kept if _UUID_PATTERN.fullmatch(name)))

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
        if _UUID_PATTERN.fullmatch(key):
            return key
        named = _JOIN_KEY_PATTERN.fullmatch(key)
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
    def by_generation(self) -> dict[str, InboxJoin]:
        """The joins by their generations' UUIDs."""
        return {join.generation_id: join for join in self.joins}


def _short_node_name(address: str) -> str:
    """A node's address, short: an IPv4 address whole, the end of an IPv6 one, the first part of a host's name."""
    if ":" in address:
        return address.replace(":", "-")[-_MAX_NODE_CHARACTERS:]
    return address if address.replace(".", "").isdigit() else address.partition(".")[0][:_MAX_NODE_CHARACTERS]


_UUID_LENGTH, _UUID_DASHES = 36, 4


@dataclass(frozen=True)
class GenerationRows:
    """Rows of a table: those that have these values in these columns."""

    table: Table
    where: PartSelector


@dataclass(frozen=True)
class GenerationNames:
    """By what tables name a generation. `id` None: only its time (ms) is known; `time_ms` None: it has none yet.

    `host_id` is the node of its join, None where no event makes it. `is_v1`: its data is a cell of the first format.
    """

    key: str
    id: str | None
    time_ms: Milliseconds | None
    host_id: str | None
    is_v1: bool = False
    is_removed: bool = False

    def parts(self) -> Iterator[GenerationRows]:
        """Its rows in all tables, those first that are written first."""
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
        """Its rows in the place of a table of the second format; None while it can have none."""
        if table is GENERATION_DESCRIPTIONS_V2 and self.is_v1:
            table = GENERATION_DESCRIPTIONS
        return next((part for part in self.parts() if part.table is table), None)


def list_generation_names(lake: Lake, keys: GenerationKeys) -> list[GenerationNames]:
    """The generations that wait, are or were, oldest first; of those that were withdrawn none."""
    timeline = Timeline.read(lake)
    timed = [
        GenerationNames(
            keys.of(each.id, each.time_ms),
            each.id,
            each.time_ms,
            _joining_host(keys, each.id),
            each.format == "v1",
            each.is_removed,
        )
        for each in timeline.generations
    ]
    known = {each.id for each in timed}
    waiting = (join for join in keys.joins if join.generation_id not in known | keys.withdrawn)
    return [
        *timed,
        *(GenerationNames(keys.of(join.generation_id), join.generation_id, None, join.host_id) for join in waiting),
    ]


def resolve_generation(lake: Lake, keys: GenerationKeys, name: str, now_us: Microseconds) -> str | Milliseconds:
    """Return the generation, by UUID (text) or time (ms), that people call so.

    `name` is its key in a list of partitions, whatever became of it, its UUID or time, the begin of either, `latest`,
    or `operating` (at `now_us`).

    Raises:
        NotFound: there is none, or several begin so.
    """
    try:
        return keys.generation(name.lower() if name.count("-") == _UUID_DASHES else name)
    except InputError:
        if len(name) == _UUID_LENGTH:
            return name
        found = Timeline.read(lake).called(name, now_us)
        return found.id or found.time_ms


def get_generation_names(lake: Lake, keys: GenerationKeys, generation: str | Milliseconds) -> GenerationNames:
    """What tables call a generation, which is given by its UUID (text) or its time (ms), whatever became of it.

    Raises:
        NotFound: nobody knows it.
    """
    found = next((each for each in list_generation_names(lake, keys) if generation in (each.id, each.time_ms)), None)
    if found is not None:
        return found
    if isinstance(generation, str) and generation in keys.by_generation:
        return GenerationNames(keys.of(generation), generation, None, _joining_host(keys, generation))
    Timeline.read(lake).find(generation)
    raise AssertionError("unreachable: what is found has a name")


class GenerationDigests:
    """What the tables hold of generations, each table read once and when it is first asked for."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._slices: dict[str, provenance.PartitionDigests] = {}
        self._rows: dict[str, dict[str, int]] = {}

    def of(self, names: GenerationNames, table: Table) -> int | None:
        """The digest of a generation's rows in the place of a table; None while it has none there.

        Of `cdc_local` it is that of the row that its own node was given: nodes go on to later generations.
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
    """As `Contents.of`, for one generation: only its own rows are read."""
    part = names.part(table)
    if part is None:
        return None
    if table is CDC_LOCAL:
        return _cdc_local_digest(lake, names)
    return provenance.get_part_digest(lake, part.table, part.where)


def _cdc_local_digest(lake: Lake, names: GenerationNames) -> int | None:
    """The digest of the row of `cdc_local` in which a generation's own node keeps its ID; None before it does."""
    if names.time_ms is None or names.host_id is None:
        return None
    row = {
        "host_id": names.host_id,
        "key": "cdc_local",
        "streams_timestamp": datetime_from_ms(names.time_ms),
        "uuid": None if names.is_v1 else names.id,
    }
    rows = pa.Table.from_pylist([row], schema=CDC_LOCAL.schema)
    return row_hash.digest_rows(rows, (), lake.digest_rule(CDC_LOCAL))[""]


def _joining_host(keys: GenerationKeys, generation_id: str | None) -> str | None:
    join = None if generation_id is None else keys.by_generation.get(generation_id)
    return None if join is None else join.host_id
