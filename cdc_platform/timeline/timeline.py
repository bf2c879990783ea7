"""The timeline: every generation that exists or existed, and its state.

It is read once from small tables (ledger, V1 and V2 descriptions, published timestamps, every node's `cdc_local`,
switches, removals) and never from streams. It is a snapshot of the moment at which it was read.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Literal, Protocol
from uuid import UUID

import numpy as np

from cdc_platform.clock import Microseconds, Milliseconds, format_ms, us_from_ms
from cdc_platform.delta import Lake, to_milliseconds, to_milliseconds_without_nulls
from cdc_platform.errors import NotFound, UnknownGeneration
from cdc_platform.generations import GenerationId, UndecidedSwitch, get_operating_index
from cdc_platform.metastore import GenerationRemoval, LedgerEntry, cdc_local, generations, switches
from cdc_platform.ring import Int64s
from cdc_platform.tables import (
    GENERATION_DESCRIPTIONS,
    GENERATION_DESCRIPTIONS_V2,
    GENERATION_TIMESTAMPS,
    STREAMS_DESCRIPTIONS,
)


class GenerationState(StrEnum):
    """The state of a generation."""

    REMOVED = "removed"
    """It existed and its rows were removed, because no log can still contain rows of it."""
    NOT_RETRIEVABLE = "known but not retrievable"
    """Something names it (a node's `cdc_local`, the ledger, a switch, a V1 row), but its data is missing.

    Writes that belong to it are refused until its data is imported.
    """
    NOT_EXPORTED = "not exported, so unknown"
    """Its timestamp and perhaps its streams are published, but the descriptions were never imported.

    Its origin is unknown. This includes a generation that is named by its UUID while the table of V2 descriptions was
    never imported.
    """
    NOT_DESCRIBED = "published without a description"
    """Clients can read its streams. The table of descriptions was imported and has no row for it."""
    COMMITTED = "committed but not yet in the ledger"
    """Its two-phase switch is committed, which is decisive, but the join that introduces it has not continued yet."""
    ONLY_V1 = "only in V1"
    """Only a V1 description exists; the generation was neither rewritten to V2 nor published."""
    INTRODUCED = "introduced"
    """It has its timestamp and its data, and nodes know it; it is not published yet."""
    PUBLISHED = "published"
    """Its timestamp is published, and its description is present."""


class StoredDescriptions(Protocol):
    """Which descriptions are stored; looked up on demand."""

    def has_description(self, name: str | Milliseconds) -> bool:
        """Return True if rows of a description exist, by its UUID or, for V1, its time (ms)."""
        ...

    def has_published_streams(self, time_ms: Milliseconds) -> bool:
        """Return True if published streams exist for this time."""
        ...

    def has_table(self, format: Literal["v1", "v2"] | None) -> bool:
        """Return True if the table of descriptions of a format (None: either) exists, even without rows."""
        ...


class NoStoredDescriptions:
    """No descriptions are stored."""

    def has_description(self, name: str | Milliseconds) -> bool:
        """Return False."""
        return False

    def has_published_streams(self, time_ms: Milliseconds) -> bool:
        """Return False."""
        return False

    def has_table(self, format: Literal["v1", "v2"] | None) -> bool:
        """Return False."""
        return False


@dataclass(frozen=True)
class Generation:
    """A generation that nodes or readers know or knew. Times in ms.

    `id` is its UUID, None if only its time is known; a V1 generation has one only if it was created here: the UUID of
    its event, which is no part of its V1 ID. `format` says where its data is or must be: `v1` in a cell that its time
    names, `v2` in rows that its UUID names, None if only what is published identifies it. `published`: its timestamp is
    in `cdc_generation_timestamps`; `published_v1`: V1 readers see it. `entered`: it is in the ledger. `node_id` is its
    ID as stored in nodes' `cdc_local`, None if no node stores it. `descriptions` looks up which of its data is stored.
    """

    time_ms: Milliseconds
    id: str | None
    format: Literal["v1", "v2"] | None = None
    expired_ms: Milliseconds | None = None
    published: bool = False
    published_v1: bool = False
    entered: bool = False
    committed: bool = False
    node_id: GenerationId | None = None
    removed_ms: Milliseconds | None = None
    descriptions: StoredDescriptions = field(default_factory=NoStoredDescriptions, compare=False, repr=False)

    @property
    def name(self) -> str:
        """Return its name for people: its UUID, or else its time."""
        return self.id or format_ms(self.time_ms)

    @property
    def is_removed(self) -> bool:
        """Return True if its rows were removed."""
        return self.removed_ms is not None

    @property
    def generation_id(self) -> GenerationId | None:
        """Return the ID by which nodes find its data, or None if it has no such ID."""
        if self.format is None:
            return None
        return GenerationId(self.time_ms, uuid.UUID(self.id) if self.format == "v2" and self.id else None)

    @property
    def gossiped(self) -> GenerationId:
        """Return the ID that nodes gossip, without a UUID if none is known."""
        return self.node_id or self.generation_id or GenerationId(self.time_ms)

    @property
    def has_data(self) -> bool:
        """Return True if part of its description is stored; only reading shows whether it is complete."""
        name = self.time_ms if self.format == "v1" else self.id
        return name is not None and self.descriptions.has_description(name)

    @property
    def has_description_table(self) -> bool:
        """Return True if its table of descriptions is present, so that an absent description is missing, not unknown.

        A V1 generation always counts as present, because what readers see names the cell that must exist.
        """
        return self.format == "v1" or self.descriptions.has_table(self.format)

    @property
    def state(self) -> GenerationState:
        """Return its state."""
        if self.is_removed:
            return GenerationState.REMOVED
        if self.format is None:
            if not self.has_description_table:
                return GenerationState.NOT_EXPORTED
            return (
                GenerationState.NOT_DESCRIBED
                if self.descriptions.has_published_streams(self.time_ms)
                else GenerationState.NOT_RETRIEVABLE
            )
        if not self.has_data:
            return GenerationState.NOT_RETRIEVABLE if self.has_description_table else GenerationState.NOT_EXPORTED
        if self.published:
            return GenerationState.PUBLISHED
        if self.committed and not self.entered:
            return GenerationState.COMMITTED
        return GenerationState.ONLY_V1 if self.format == "v1" and not self.entered else GenerationState.INTRODUCED


@dataclass(frozen=True)
class Timeline:
    """Every generation that ever existed, oldest first, including removed ones.

    Removed generations are needed to find the one that operated at a past time: without them, their predecessors would
    seem to continue. `undecided` are the switches whose decision writes must wait for.
    """

    undecided: tuple[UndecidedSwitch, ...]
    _records: _GenerationRecords

    @classmethod
    def read(cls, lake: Lake) -> Timeline:
        """Read the current timeline.

        Each table is read once, in the order in which a generation's life writes them. A decision made in between
        appears as undecided, and a generation removed in between appears as existing; nothing is missed.
        """
        outcomes = switches.read_switch_outcomes(lake)
        undecided = switches.read_undecided_switches(lake, outcomes)
        named = {
            time_ms: GenerationId(time_ms, UUID(id_))
            for time_ms, id_ in generations.read_committed_elsewhere(lake).items()
        }
        gossiped_ids = named | _read_node_generation_ids(lake)
        entries = generations.read_ledger(lake)
        cells = generations.read_row_times(lake, GENERATION_DESCRIPTIONS)
        published_v1 = generations.read_row_times(lake, STREAMS_DESCRIPTIONS)
        times = lake.read(GENERATION_TIMESTAMPS, ["time", "expired"])
        listed = dict(zip(to_milliseconds_without_nulls(times["time"]), to_milliseconds(times["expired"]), strict=True))
        removals = generations.decided_removals(generations.read_removals(lake), listed)
        records = _GenerationRecords(
            outcomes, gossiped_ids, entries, cells, published_v1, listed, removals, _LakeDescriptions(lake, cells)
        )
        return cls(tuple(undecided), records)

    @cached_property
    def generations(self) -> tuple[Generation, ...]:
        """Return all generations, built on first use: for thousands that takes as long as reading the tables."""
        return tuple(map(self._records.of, self._records.times))

    @cached_property
    def last_assigned_ms(self) -> Milliseconds | None:
        """Return the greatest time (ms) ever assigned, or None.

        It includes the time of a V1 generation that still waits for its data and that no node knows yet.
        """
        return max([*self._records.times[-1:], *(entry.time_ms for entry in self._records.entries)], default=None)

    def with_id(self, id_: str) -> Generation | None:
        """Return the generation with this UUID, even if removed, or None if there never was one."""
        records = self._records
        return next((records.of(time_ms) for time_ms in records.times if records.id_of(time_ms) == id_), None)

    def with_time(self, time_ms: Milliseconds) -> Generation | None:
        """Return the generation with this time (ms), even if removed, or None if there never was one."""
        return self._records.of(time_ms) if time_ms in self._records.time_set else None

    @cached_property
    def known(self) -> list[Generation]:
        """Return the generations that are not removed, oldest first."""
        return [generation for generation in self.generations if not generation.is_removed]

    @cached_property
    def removed(self) -> list[Generation]:
        """Return the removed generations, oldest first; a few rows of the newest may remain briefly."""
        return [generation for generation in self.generations if generation.is_removed]

    @cached_property
    def newest(self) -> Generation | None:
        """Return the known generation with the greatest timestamp, or None."""
        newest_first = map(self._records.of, reversed(self._records.times))
        return next((generation for generation in newest_first if not generation.is_removed), None)

    @cached_property
    def times_us(self) -> Int64s:
        """Return when each of `generations` starts: µs, int64[n] ascending."""
        return np.array([us_from_ms(generation.time_ms) for generation in self.generations], dtype=np.int64)

    def index_at(self, at_us: Microseconds) -> int:
        """Return the index in `generations` of the one that operates at a time (µs); -1 before the first."""
        return int(get_operating_index(self.times_us, at_us))

    def operating(self, at_us: Microseconds) -> Generation | None:
        """Return the generation that operates at a time (µs), the newest that has started by then, even if removed."""
        index = self.index_at(at_us)
        return None if index < 0 else self.generations[index]

    def find(self, name: str | Milliseconds) -> Generation:
        """Return the generation with this UUID (text) or this timestamp (ms).

        Raises:
            NotFound: no generation has it, or it was removed.
        """
        for generation in self.known:
            if name in (generation.id, generation.time_ms):
                return generation
        self.assert_not_removed(name)
        label = name if isinstance(name, str) else format_ms(name)
        raise UnknownGeneration(f"no generation {label} is known; list them with: cdc-platform generations")

    def find_by_name(self, name: str, now_us: Microseconds) -> Generation:
        """Return the generation called `latest`, `operating` (at `now_us`), or by the beginning of its UUID or time.

        Raises:
            NotFound: no generation has this name, or several begin with it.
        """
        if name in ("latest", "operating"):
            generation = self.newest if name == "latest" else self.operating(now_us)
            if generation is None:
                raise UnknownGeneration(f"no generation is {name}; list them with: cdc-platform generations")
            return generation
        matches = [candidate for candidate in self.known if (candidate.id or "").startswith(name)]
        matches = matches or [candidate for candidate in self.known if format_ms(candidate.time_ms).startswith(name)]
        if len(matches) != 1:
            which = ", ".join(candidate.name for candidate in matches[:5]) or "none"
            raise UnknownGeneration(
                f"{len(matches)} generations begin with {name!r} ({which}); name one of them in full"
            )
        return matches[0]

    def find_published(self, name: str | Milliseconds) -> Generation:
        """Return the published generation with this name.

        Raises:
            NotFound: no generation has it, or it is not published; readers rely on rows only after the timestamp.
        """
        generation = self.find(name)
        if not generation.published:
            raise NotFound(
                f"generation {format_ms(generation.time_ms)} is not published yet, so its streams cannot be read"
            )
        return generation

    def assert_not_removed(self, name: str | Milliseconds) -> None:
        """Raise NotFound if the generation with this UUID (text) or timestamp (ms) was removed."""
        for time_ms, removal in sorted(self._records.removals.items()):
            if name in (removal.id, time_ms):
                label = name if isinstance(name, str) else format_ms(name)
                raise UnknownGeneration(f"generation {label} {removal}")


@dataclass(frozen=True)
class _GenerationRecords:
    """The content of each table by time (ms), from which generations are built."""

    outcomes: Iterable[switches.SwitchOutcome]
    node_ids: Mapping[Milliseconds, GenerationId]
    entries: Iterable[LedgerEntry]
    cells: Set[Milliseconds]
    published_v1: Set[Milliseconds]
    listed: Mapping[Milliseconds, Milliseconds | None]
    removals: Mapping[Milliseconds, GenerationRemoval]
    descriptions: StoredDescriptions

    @cached_property
    def entered(self) -> dict[Milliseconds, LedgerEntry]:
        """Return the ledger entries by time, without V1 generations that still wait for their data."""
        return {
            entry.time_ms: entry
            for entry in self.entries
            if entry.format != "v1" or entry.time_ms in self.cells or entry.time_ms in self.listed
        }

    @cached_property
    def committed(self) -> dict[Milliseconds, str]:
        """Return the UUIDs, by time, of committed switches whose generation is not yet in the ledger."""
        ids = {entry.generation_id for entry in self.entries}
        return {
            outcome.time_ms: outcome.generation_id
            for outcome in self.outcomes
            if outcome.time_ms is not None and outcome.generation_id not in ids
        }

    @cached_property
    def times(self) -> list[Milliseconds]:
        """Return the times of all generations, ascending."""
        return sorted(self.time_set)

    @cached_property
    def time_set(self) -> set[Milliseconds]:
        """Return the times of all generations."""
        sources = (
            self.entered,
            self.committed,
            self.node_ids,
            self.cells,
            self.published_v1,
            self.listed,
            self.removals,
        )
        return set().union(*sources)

    def id_of(self, time_ms: Milliseconds) -> str | None:
        """Return the UUID of the generation with this time, or None if only its time is known."""
        removal, entry = self.removals.get(time_ms), self.entered.get(time_ms)
        if removal is not None:
            return removal.id
        if entry is not None:
            return entry.generation_id
        gossiped = self.node_ids.get(time_ms)
        id_ = self.committed.get(time_ms)
        if id_ is None and gossiped is not None and gossiped.uuid is not None and time_ms not in self.cells:
            return str(gossiped.uuid)
        return id_

    def of(self, time_ms: Milliseconds) -> Generation:
        """Build the generation of a time from all records."""
        removal, id_ = self.removals.get(time_ms), self.id_of(time_ms)
        if removal is not None:
            return Generation(time_ms, id_, expired_ms=removal.expired_ms, removed_ms=removal.removed_ms)
        entry, gossiped = self.entered.get(time_ms), self.node_ids.get(time_ms)
        return Generation(
            time_ms,
            id_,
            self._format(time_ms, entry, id_),
            self.listed.get(time_ms),
            published=time_ms in self.listed,
            published_v1=time_ms in self.published_v1,
            entered=entry is not None,
            committed=time_ms in self.committed,
            node_id=gossiped,
            descriptions=self.descriptions,
        )

    def _format(self, time_ms: Milliseconds, entry: LedgerEntry | None, id_: str | None) -> Literal["v1", "v2"] | None:
        if (entry is not None and entry.format == "v2") or time_ms in self.committed:
            return "v2"
        if time_ms in self.cells:
            return "v1"
        if time_ms in self.listed:
            return None
        return "v1" if id_ is None else "v2"


class _LakeDescriptions:
    """The UUIDs and the V1 times whose data is stored. The UUIDs come from Delta's log, on demand.

    See `StoredDescriptions`.
    """

    def __init__(self, lake: Lake, cells: Set[Milliseconds]) -> None:
        self._lake = lake
        self._cells = cells

    def has_description(self, name: str | Milliseconds) -> bool:
        return name in self._cells or name in self._described_ids

    def has_published_streams(self, time_ms: Milliseconds) -> bool:
        return time_ms in self._published_times

    def has_table(self, format: Literal["v1", "v2"] | None) -> bool:
        tables = {"v1": (GENERATION_DESCRIPTIONS,), "v2": (GENERATION_DESCRIPTIONS_V2,)}
        return any(self._lake.exists(table) for table in tables.get(format or "", (*tables["v1"], *tables["v2"])))

    @cached_property
    def _published_times(self) -> frozenset[Milliseconds]:
        return frozenset(generations.read_published_times(self._lake))

    @cached_property
    def _described_ids(self) -> frozenset[object]:
        return frozenset(part.key[0] for part in self._lake.partitions(GENERATION_DESCRIPTIONS_V2) if part.rows)


def _read_node_generation_ids(lake: Lake) -> dict[Milliseconds, GenerationId]:
    """Return the IDs that nodes store in `cdc_local`, by time (ms), ignoring rows without a time."""
    # If two IDs share a time, prefer the one with a UUID.
    ordered = sorted(
        cdc_local.read_node_generation_ids(lake).values(),
        key=lambda generation_id: (generation_id.time_ms, str(generation_id.uuid or "")),
    )
    return {generation_id.time_ms: generation_id for generation_id in ordered}
