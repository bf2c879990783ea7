"""A generation, or a stream set of tablets, that nodes use before clients can read it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from support.standin.brought import GENERATIONS, SWITCH_MS
from support.standin.cluster import FIRST_MS, StandIn
from support.standin.versions import VERSIONS, Version
from support.standin.world import World, time_uuid

from cdc_platform.clock import Milliseconds
from cdc_platform.generations import StreamSet, TopologyDescription, uniform_tablet_ends
from cdc_platform.generations.tablets import generate_tablet_streams

TABLE_ID = uuid.UUID(int=7)


@dataclass
class Late:
    """A second generation or stream set that clients can read late; `said` is who knows it before."""

    standin: StandIn
    said: str
    generations: Mapping[Milliseconds, TopologyDescription | StreamSet] = field(default_factory=lambda: GENERATIONS)

    @property
    def world(self) -> World:
        """Return the rows behind the proxy."""
        return self.standin.world

    def begin(self) -> None:
        """List the first one; nodes use the second one from now on."""
        self.standin.proxy.version = VERSION_OF[self.said]
        if self.said == "tablets":
            sets = {}
            for at, count in ((FIRST_MS, 2), (SWITCH_MS, 4)):
                sets[at] = StreamSet.of(at, generate_tablet_streams(TABLE_ID, at, uniform_tablet_ends(count)))
            self.generations = sets
            self.world.stream_set("shop", "t", FIRST_MS, [stream.tobytes() for stream in sets[FIRST_MS].ids])
        elif self.said in ("group", "nodes"):
            second = GENERATIONS[SWITCH_MS]
            self.world.committed(SWITCH_MS, time_uuid(SWITCH_MS), second, by_group=self.said == "group")

    def publish(self) -> None:
        """Let clients read the second one."""
        second = self.generations[SWITCH_MS]
        if isinstance(second, StreamSet):
            before = self.generations[FIRST_MS]
            assert isinstance(before, StreamSet)
            ids = [[stream.tobytes() for stream in stream_set.ids] for stream_set in (before, second)]
            self.world.stream_set("shop", "t", SWITCH_MS, ids[1], closed=ids[0], opened=ids[1])
        elif self.said == "nobody":
            self.world.generation(SWITCH_MS, time_uuid(SWITCH_MS), second)
        else:
            self.world.published(SWITCH_MS, second)


VERSION_OF: Mapping[str, Version] = {
    "group": VERSIONS["2026.3"],
    "nodes": VERSIONS["5.2"],
    "nobody": VERSIONS["2026.3"],
    "tablets": VERSIONS["2026.3"],
}
"""Who knows a generation before it is published, and in which version: the Raft group, each node, or no source.

With tablets the list of stream sets shows it first.
"""
TOLD = ("group", "nodes")
UNTOLD = ("nobody", "tablets")
