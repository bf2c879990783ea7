"""The generations that there are and were, read once from everything that tells of them: small tables, never a stream.

Ledger, V1 and V2 tables, published timestamps, every node's `cdc_local`, switches and removals. What it says holds for
the moment in which it was read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Literal
from uuid import UUID

import numpy as np

from cdc_platform.clock import Microseconds, Milliseconds, format_ms, us_of
from cdc_platform.errors import NotFound, UnknownGeneration
from cdc_platform.generations import GenerationId, operating_index
from cdc_platform.generations.metadata import Undecided
from cdc_platform.generations.switch import Switch
from cdc_platform.lake.arrow import known_milliseconds, milliseconds
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import (
    GENERATION_DESCRIPTIONS,
    GENERATION_DESCRIPTIONS_V2,
    GENERATION_TIMESTAMPS,
    STREAMS_DESCRIPTIONS,
)
from cdc_platform.records import cdc_local, descriptions, ledger, removals, switches
from cdc_platform.records.ledger import Entry
from cdc_platform.records.removals import Removal
from cdc_platform.ring.tokens import Int64s
from cdc_platform.timeline.generation import Generation, Held


@dataclass(frozen=True)
class Timeline:
    """Every generation that there ever was, oldest first, the removed ones in their places.

    Who asks which generation operated at some time in the past needs the removed ones: of the others alone, the one
    before a removed one would seem to go on. `undecided` are the switches whose decision writes have to wait for.
    """

    undecided: tuple[Undecided, ...]
    _told: _Told

    @classmethod
    def read(cls, lake: Lake) -> Timeline:
        """The timeline as it stands.

        Each table is read once, those that are written last in a generation's life last: what is decided in between
        is seen as undecided, what is removed in between as there, and nothing is missed.
        """
        known_switches = switches.switches(lake)
        undecided = switches.undecided(lake, known_switches)
        named = {time_ms: GenerationId(time_ms, UUID(id_)) for time_ms, id_ in ledger.committed_elsewhere(lake).items()}
        kept = named | _kept(lake)
        entries = ledger.entries(lake)
        cells = descriptions.row_times(lake, GENERATION_DESCRIPTIONS)
        shown_v1 = descriptions.row_times(lake, STREAMS_DESCRIPTIONS)
        times = lake.read(GENERATION_TIMESTAMPS, ["time", "expired"])
        listed = dict(zip(known_milliseconds(times["time"]), milliseconds(times["expired"]), strict=True))
        gone = removals.decided(removals.noted(lake), listed)
        told = _Told(known_switches, kept, entries, cells, shown_v1, listed, gone, _Held(lake, cells))
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
        return np.array([us_of(each.time_ms) for each in self.generations], dtype=np.int64)

    def index_at(self, at_us: Microseconds) -> int:
        """The index in `generations` of the one that operates at a time (µs); -1 before the first."""
        return int(operating_index(self.times_us, at_us))

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
                    f"generation {shown} {Removal(each.time_ms, each.id, each.expired_ms, each.removed_ms)}"
                )


@dataclass(frozen=True)
class _Told:
    """What each of the tables says, by time (ms), before it is put together."""

    known_switches: Iterable[Switch]
    kept: Mapping[Milliseconds, GenerationId]
    entries: Iterable[Entry]
    cells: Set[Milliseconds]
    shown_v1: Set[Milliseconds]
    listed: Mapping[Milliseconds, Milliseconds | None]
    gone: Mapping[Milliseconds, Removal]
    held: Held

    @cached_property
    def entered(self) -> dict[Milliseconds, Entry]:
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

    def _format(self, time_ms: Milliseconds, entry: Entry | None, id_: str | None) -> Literal["v1", "v2"] | None:
        if (entry is not None and entry.format == "v2") or time_ms in self.committed:
            return "v2"
        if time_ms in self.cells:
            return "v1"
        if time_ms in self.listed:
            return None
        return "v1" if id_ is None else "v2"


class _Held:
    """The UUIDs and the V1 times whose data is here; Delta's log tells the UUIDs, once somebody asks for one.

    See `Held`.
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
        return frozenset(descriptions.published_times(self._lake))

    @cached_property
    def _inserted(self) -> frozenset[object]:
        return frozenset(part.key[0] for part in self._lake.slices(GENERATION_DESCRIPTIONS_V2) if part.rows)


def _kept(lake: Lake) -> dict[Milliseconds, GenerationId]:
    """The IDs that nodes keep in `cdc_local`, by time (ms). A row without a time is as good as none."""
    # Of two names of one time the one with a UUID says more.
    ordered = sorted(cdc_local.kept_ids(lake).values(), key=lambda each: (each.time_ms, str(each.uuid or "")))
    return {each.time_ms: each for each in ordered}
