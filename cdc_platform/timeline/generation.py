"""A generation as the timeline knows it: its time, its names, where its data is, and the one word for its state."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, Protocol

from cdc_platform.clock import Milliseconds, format_ms
from cdc_platform.generations import GenerationId


class State(StrEnum):
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


class Held(Protocol):
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


class Nothing:
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
    held: Held = field(default_factory=Nothing, compare=False, repr=False)

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
    def state(self) -> State:
        """The one word for what is known of it."""
        if self.is_removed:
            return State.REMOVED
        if self.format is None:
            if not self.is_brought:
                return State.NOT_EXPORTED
            return State.NOT_DESCRIBED if self.held.shows(self.time_ms) else State.NOT_RETRIEVABLE
        if not self.has_data:
            return State.NOT_RETRIEVABLE if self.is_brought else State.NOT_EXPORTED
        if self.published:
            return State.PUBLISHED
        if self.committed and not self.entered:
            return State.COMMITTED
        return State.ONLY_V1 if self.format == "v1" and not self.entered else State.INTRODUCED
