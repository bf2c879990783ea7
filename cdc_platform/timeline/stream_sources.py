"""Which kind of streams a table has: those of the generations, or of its own tablets. Nobody else asks that.

What the lake holds is read once, when it is asked for first. So is what reads it imported: who asks of a home without
tables has no use for either kind.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from cdc_platform.clock import Microseconds, ms_of
from cdc_platform.lake.lake import Lake
from cdc_platform.settings import Settings

if TYPE_CHECKING:
    from cdc_platform.timeline.stream_source import StreamSource
    from cdc_platform.timeline.vnode_streams import VnodeStreams

_Name = tuple[str, str]


@dataclass(frozen=True)
class StreamSources:
    """The sources of streams of all tables, as the lake has them."""

    lake: Lake
    settings: Settings = field(default_factory=Settings)
    _given: dict[_Name, StreamSource] = field(default_factory=dict)
    _read: dict[_Name, StreamSource] = field(default_factory=dict)

    @cached_property
    def generations(self) -> VnodeStreams:
        """That of every table without tablets."""
        from cdc_platform.timeline.vnode_streams import VnodeStreams

        return VnodeStreams(self.lake, self.settings)

    @cached_property
    def _with_tablets(self) -> frozenset[_Name]:
        from cdc_platform.records import tablet_sets

        return frozenset(tablet_sets.tables(self.lake))

    def of(self, keyspace: str, table: str) -> StreamSource:
        """The source of a table's streams: its tablets, where readers see a stream set of it, else the generations."""
        name = (keyspace, table)
        if name in self._given:
            return self._given[name]
        if name not in self._with_tablets:
            return self.generations
        if name not in self._read:
            from cdc_platform.timeline.tablet_streams import TabletStreams

            self._read[name] = TabletStreams(self.lake, self.settings, *name)
        return self._read[name]

    def give_tablets(self, keyspace: str, table: str, count: int, now_us: Microseconds) -> None:
        """Give a table that is made now, and not in the lake, `count` tablets of one size, as from a leeway ago.

        A table of its name that has tablets in the lake has those.
        """
        if (keyspace, table) in self._with_tablets:
            return
        from cdc_platform.generations import tablets
        from cdc_platform.records import tablet_ledger
        from cdc_platform.timeline.tablet_streams import TabletStreams

        time_ms = tablets.base_timestamp(ms_of(now_us), self.settings.generation_leeway_ms)
        table_id = tablet_ledger.table_id_of(keyspace, table, 0)
        ids = tablets.new_streams(table_id, time_ms, tablets.uniform_ends(count))
        sets = [tablets.StreamSet.of(time_ms, ids)]
        self._given[keyspace, table] = TabletStreams(self.lake, self.settings, keyspace, table, sets)

    def forget(self, keyspace: str, table: str) -> None:
        """Forget the tablets that a table was given here."""
        self._given.pop((keyspace, table), None)
