"""The timeline: every generation that exists or existed, and its state.

It is read once from small tables (ledger, V1 and V2 descriptions, published timestamps, every node's `cdc_local`,
switches, removals) and never from streams. It describes the moment in which it was read.
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
from cdc_platform.generations import GenerationId, GenerationSwitch, UndecidedSwitch, get_operating_index
from cdc_platform.metastore import GenerationRemoval, LedgerEntry, cdc_local, generations, switches
from cdc_platform.ring import Int64s
from cdc_platform.tables import (
    GENERATION_DESCRIPTIONS,
    GENERATION_DESCRIPTIONS_V2,
    GENERATION_TIMESTAMPS,
    STREAMS_DESCRIPTIONS,
)


class GenerationState(StrEnum):
    """What is known of a generation."""

    REMOVED = "removed"
    """It was here and its rows are gone: no log could hold rows of it any more."""
    NOT_RETRIEVABLE = "known but not retrievable"
    """Something names it (a node's `cdc_local`, the ledger, a switch, the first format's readers); its data is not
    here. A write that belongs to it is refused until its data is brought in.
    """
    NOT_EXPORTED = "not exported, so unknown"
    """Readers have been shown its timestamp, perhaps its streams; its description was never brought here, so that
    nobody can say how it was made. So is one that somebody names by its UUID while the table of such descriptions
    was never brought here.
    """
    NOT_DESCRIBED = "published without a description"
    """Clients can read its streams. The table of descriptions was imported and has no row of it."""
    COMMITTED = "committed but not yet in the ledger"
    """Its two-phase switch is decided, which is what counts; the join that introduces it has not gone on."""
    ONLY_V1 = "only in V1"
    """It is described in the first format alone, and nobody has rewritten or published it."""
    INTRODUCED = "introduced"
    """It has its timestamp and its data, and nodes know it; readers have not been shown it yet."""
    PUBLISHED = "published"
    """Readers have been shown its timestamp, and its description is here."""


class StoredDescriptions(Protocol):
    """What is here of descriptions; looked at when it is asked for."""

    def describes(self, name: str | Milliseconds) -> bool:
        """Whether rows of a description are here, by its UUID, or of the first format its time (ms)."""
        ...

    def shows(self, time_ms: Milliseconds) -> bool:
        """Whether streams are here that readers see of this time."""
        ...

    def was_brought(self, format: Literal["v1", "v2"] | None) -> bool:
        """Whether the table of descriptions of a format, None: of either, is here, were it without rows."""
        ...


class NoStoredDescriptions:
    """Nothing is here."""

    def describes(self, name: str | Milliseconds) -> bool:
        """No."""
        return False

    def shows(self, time_ms: Milliseconds) -> bool:
        """No."""
        return False

    def was_brought(self, format: Literal["v1", "v2"] | None) -> bool:
        """No."""
        return False


@dataclass(frozen=True)
class Generation:
    """A generation that nodes or readers know, or knew. Times in ms.

    `id` is its UUID, None where only its time is known; a V1 generation has one only if it was made here: the UUID of
    its event, which is no part of its V1 ID. `format` says where its data is or has to be: `v1` in a cell that its
    time names, `v2` in rows that its UUID names, None where it has to be told from what readers see.
    `published`: its timestamp is in `cdc_generation_timestamps`; `published_v1`: readers of the first format see it.
    `entered`: it is in the ledger. `kept` is its ID as nodes' `cdc_local` has it, None where none names it.
    `held` says what is here of its data.
    """

    time_ms: Milliseconds
    id: str | None
    format: Literal["v1", "v2"] | None = None
    expired_ms: Milliseconds | None = None
    published: bool = False
    published_v1: bool = False
    entered: bool = False
    committed: bool = False
    kept: GenerationId | None = None
    removed_ms: Milliseconds | None = None
    held: StoredDescriptions = field(default_factory=NoStoredDescriptions, compare=False, repr=False)

    @property
    def name(self) -> str:
        """How people name it: its UUID, or its time where it has none."""
        return self.id or format_ms(self.time_ms)

    @property
    def is_removed(self) -> bool:
        """Whether its rows are gone."""
        return self.removed_ms is not None

    @property
    def generation_id(self) -> GenerationId | None:
        """The ID that nodes find its data by; None where there is none to be found so."""
        if self.format is None:
            return None
        return GenerationId(self.time_ms, uuid.UUID(self.id) if self.format == "v2" and self.id else None)

    @property
    def gossiped(self) -> GenerationId:
        """The ID that nodes tell each other; without a UUID where none is known."""
        return self.kept or self.generation_id or GenerationId(self.time_ms)

    @property
    def has_data(self) -> bool:
        """Whether something of its description is here; whether that is all of it only reading it can tell."""
        name = self.time_ms if self.format == "v1" else self.id
        return name is not None and self.held.describes(name)

    @property
    def is_brought(self) -> bool:
        """Whether the table that would describe it is here: then what is not in it is missing, and not unknown.

        Of the first format what readers see names the cell that has to be there.
        """
        return self.format == "v1" or self.held.was_brought(self.format)

    @property
    def state(self) -> GenerationState:
        """The one word for what is known of it."""
        if self.is_removed:
            return GenerationState.REMOVED
        if self.format is None:
            if not self.is_brought:
                return GenerationState.NOT_EXPORTED
            return GenerationState.NOT_DESCRIBED if self.held.shows(self.time_ms) else GenerationState.NOT_RETRIEVABLE
        if not self.has_data:
            return GenerationState.NOT_RETRIEVABLE if self.is_brought else GenerationState.NOT_EXPORTED
        if self.published:
            return GenerationState.PUBLISHED
        if self.committed and not self.entered:
            return GenerationState.COMMITTED
        return GenerationState.ONLY_V1 if self.format == "v1" and not self.entered else GenerationState.INTRODUCED


@dataclass(frozen=True)
class Timeline:
    """Every generation that there ever was, oldest first, the removed ones in their places.

    Who asks which generation operated at some time in the past needs the removed ones: of the others alone, the one
    before a removed one would seem to go on. `undecided` are the switches whose decision writes have to wait for.
    """

    undecided: tuple[UndecidedSwitch, ...]
    _told: _GenerationRecords

    @classmethod
    def read(cls, lake: Lake) -> Timeline:
        """The timeline as it stands.

        Each table is read once, those that are written last in a generation's life last: what is decided in between
        is seen as undecided, what is removed in between as there, and nothing is missed.
        """
        known_switches = switches.read_switches(lake)
        undecided = switches.read_undecided_switches(lake, known_switches)
        named = {
            time_ms: GenerationId(time_ms, UUID(id_))
            for time_ms, id_ in generations.read_committed_elsewhere(lake).items()
        }
        kept = named | _read_node_generation_ids(lake)
        entries = generations.read_ledger(lake)
        cells = generations.read_row_times(lake, GENERATION_DESCRIPTIONS)
        shown_v1 = generations.read_row_times(lake, STREAMS_DESCRIPTIONS)
        times = lake.read(GENERATION_TIMESTAMPS, ["time", "expired"])
        listed = dict(zip(to_milliseconds_without_nulls(times["time"]), to_milliseconds(times["expired"]), strict=True))
        gone = generations.decided_removals(generations.read_removals(lake), listed)
        told = _GenerationRecords(
            known_switches, kept, entries, cells, shown_v1, listed, gone, _LakeDescriptions(lake, cells)
        )
        return cls(tuple(undecided), told)

    @cached_property
    def generations(self) -> tuple[Generation, ...]:
        """All of them, put together when they are asked for: of thousands that takes as long as to read what tells."""
        return tuple(map(self._told.of, self._told.times))

    @cached_property
    def last_given_ms(self) -> Milliseconds | None:
        """The greatest time (ms) that anything was ever given, None where nothing was: also that of a V1 generation
        that waits for its data, which no node knows before.
        """
        return max([*self._told.times[-1:], *(entry.time_ms for entry in self._told.entries)], default=None)

    def with_id(self, id_: str) -> Generation | None:
        """The generation with this UUID, were it removed since; None where there never was one."""
        told = self._told
        return next((told.of(time_ms) for time_ms in told.times if told.id_of(time_ms) == id_), None)

    @cached_property
    def known(self) -> list[Generation]:
        """Those that are not removed, oldest first."""
        return [each for each in self.generations if not each.is_removed]

    @cached_property
    def removed(self) -> list[Generation]:
        """Those that are gone, oldest first; of the newest of them some rows may be left for a moment."""
        return [each for each in self.generations if each.is_removed]

    @property
    def newest(self) -> Generation | None:
        """The generation with the greatest timestamp that anybody knows; None where there is none."""
        return self.known[-1] if self.known else None

    @cached_property
    def times_us(self) -> Int64s:
        """When each of `generations` starts: µs, int64[n] ascending."""
        return np.array([us_from_ms(each.time_ms) for each in self.generations], dtype=np.int64)

    def index_at(self, at_us: Microseconds) -> int:
        """The index in `generations` of the one that operates at a time (µs); -1 before the first."""
        return int(get_operating_index(self.times_us, at_us))

    def operating(self, at_us: Microseconds) -> Generation | None:
        """The generation that operates at a time (µs): the newest that has started by then, removed since or not."""
        index = self.index_at(at_us)
        return None if index < 0 else self.generations[index]

    def find(self, name: str | Milliseconds) -> Generation:
        """The generation with this UUID (text) or this timestamp (ms).

        Raises:
            NotFound: no generation has it, or it was removed.
        """
        for each in self.known:
            if name in (each.id, each.time_ms):
                return each
        self.assert_not_removed(name)
        shown = name if isinstance(name, str) else format_ms(name)
        raise UnknownGeneration(f"no generation {shown} is known; list them with: cdc-platform generations")

    def called(self, name: str, now_us: Microseconds) -> Generation:
        """The generation that people call so: `latest`, `operating` (at `now_us`), or by the begin of its UUID or time.

        Raises:
            NotFound: there is none, or several begin so.
        """
        if name in ("latest", "operating"):
            found = self.newest if name == "latest" else self.operating(now_us)
            if found is None:
                raise UnknownGeneration(f"no generation is {name}; list them with: cdc-platform generations")
            return found
        several = [each for each in self.known if (each.id or "").startswith(name)]
        several = several or [each for each in self.known if format_ms(each.time_ms).startswith(name)]
        if len(several) != 1:
            which = ", ".join(each.name for each in several[:5]) or "none"
            raise UnknownGeneration(
                f"{len(several)} generations begin with {name!r} ({which}); name one of them in full"
            )
        return several[0]

    def find_published(self, name: str | Milliseconds) -> Generation:
        """The generation of this name, which readers have been shown.

        Raises:
            NotFound: there is none, or readers have not been shown it: they rely on rows only after the timestamp.
        """
        found = self.find(name)
        if not found.published:
            raise NotFound(
                f"generation {format_ms(found.time_ms)} is not published yet; its streams are not to be read"
            )
        return found

    def assert_not_removed(self, name: str | Milliseconds) -> None:
        """Refuse a generation, named by its UUID (text) or timestamp (ms), that is gone.

        Raises:
            NotFound: it was removed.
        """
        for each in self.removed:
            if name in (each.id, each.time_ms) and each.removed_ms is not None and each.expired_ms is not None:
                shown = name if isinstance(name, str) else format_ms(name)
                raise UnknownGeneration(
                    f"generation {shown} {GenerationRemoval(each.time_ms, each.id, each.expired_ms, each.removed_ms)}"
                )


@dataclass(frozen=True)
class _GenerationRecords:
    """What each of the tables says, by time (ms), before it is put together."""

    known_switches: Iterable[GenerationSwitch]
    kept: Mapping[Milliseconds, GenerationId]
    entries: Iterable[LedgerEntry]
    cells: Set[Milliseconds]
    shown_v1: Set[Milliseconds]
    listed: Mapping[Milliseconds, Milliseconds | None]
    gone: Mapping[Milliseconds, GenerationRemoval]
    held: StoredDescriptions

    @cached_property
    def entered(self) -> dict[Milliseconds, LedgerEntry]:
        """The ledger's. A V1 generation has its time before its data: without the data no node knows it yet."""
        return {
            entry.time_ms: entry
            for entry in self.entries
            if entry.format != "v1" or entry.time_ms in self.cells or entry.time_ms in self.listed
        }

    @cached_property
    def committed(self) -> dict[Milliseconds, str]:
        """The UUIDs of those whose switch is committed and which the ledger does not have yet."""
        ids = {entry.generation_id for entry in self.entries}
        return {
            switch.time_ms: switch.generation_id
            for switch in self.known_switches
            if switch.time_ms is not None and switch.generation_id not in ids
        }

    @cached_property
    def times(self) -> list[Milliseconds]:
        """The times of all generations, ascending."""
        sources = (self.entered, self.committed, self.kept, self.cells, self.shown_v1, self.listed, self.gone)
        return sorted(set().union(*sources))

    def id_of(self, time_ms: Milliseconds) -> str | None:
        """The UUID of the generation of a time; None where only its time is known."""
        gone, entry = self.gone.get(time_ms), self.entered.get(time_ms)
        if gone is not None:
            return gone.id
        if entry is not None:
            return entry.generation_id
        kept = self.kept.get(time_ms)
        id_ = self.committed.get(time_ms)
        if id_ is None and kept is not None and kept.uuid is not None and time_ms not in self.cells:
            return str(kept.uuid)
        return id_

    def of(self, time_ms: Milliseconds) -> Generation:
        """Everything that is told of the generation of a time."""
        gone, id_ = self.gone.get(time_ms), self.id_of(time_ms)
        if gone is not None:
            return Generation(time_ms, id_, expired_ms=gone.expired_ms, removed_ms=gone.removed_ms)
        entry, kept = self.entered.get(time_ms), self.kept.get(time_ms)
        return Generation(
            time_ms,
            id_,
            self._format(time_ms, entry, id_),
            self.listed.get(time_ms),
            published=time_ms in self.listed,
            published_v1=time_ms in self.shown_v1,
            entered=entry is not None,
            committed=time_ms in self.committed,
            kept=kept,
            held=self.held,
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
    """The UUIDs and the V1 times whose data is here; Delta's log tells the UUIDs, once somebody asks for one.

    See `StoredDescriptions`.
    """

    def __init__(self, lake: Lake, cells: Set[Milliseconds]) -> None:
        self._lake = lake
        self._cells = cells

    def describes(self, name: str | Milliseconds) -> bool:
        return name in self._cells or name in self._inserted

    def shows(self, time_ms: Milliseconds) -> bool:
        return time_ms in self._shown

    def was_brought(self, format: Literal["v1", "v2"] | None) -> bool:
        tables = {"v1": (GENERATION_DESCRIPTIONS,), "v2": (GENERATION_DESCRIPTIONS_V2,)}
        return any(self._lake.exists(each) for each in tables.get(format or "", (*tables["v1"], *tables["v2"])))

    @cached_property
    def _shown(self) -> frozenset[Milliseconds]:
        return frozenset(generations.read_published_times(self._lake))

    @cached_property
    def _inserted(self) -> frozenset[object]:
        return frozenset(part.key[0] for part in self._lake.slices(GENERATION_DESCRIPTIONS_V2) if part.rows)


def _read_node_generation_ids(lake: Lake) -> dict[Milliseconds, GenerationId]:
    """The IDs that nodes keep in `cdc_local`, by time (ms). A row without a time is as good as none."""
    # Of two names of one time the one with a UUID says more.
    ordered = sorted(
        cdc_local.read_node_generation_ids(lake).values(), key=lambda each: (each.time_ms, str(each.uuid or ""))
    )
    return {each.time_ms: each for each in ordered}
