"""The stream source of each table: the generations, or its own tablets.

Tables are read on first use. Modules are imported on first use, since a home without tables needs neither kind.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from cdc_platform.clock import Microseconds, ms_from_us
from cdc_platform.delta import Lake
from cdc_platform.settings import Settings

if TYPE_CHECKING:
    from cdc_platform.timeline.streams import StreamSource
    from cdc_platform.timeline.vnodes import VnodeStreams

_TableName = tuple[str, str]


@dataclass(frozen=True)
class StreamSources:
    """The stream sources of all tables in the lake."""

    lake: Lake
    settings: Settings = field(default_factory=Settings)
    _given: dict[_TableName, StreamSource] = field(default_factory=dict)
    _read: dict[_TableName, StreamSource] = field(default_factory=dict)

    @cached_property
    def generations(self) -> VnodeStreams:
        """Return the source of all tables without tablets."""
        from cdc_platform.timeline.vnodes import VnodeStreams

        return VnodeStreams(self.lake, self.settings)

    @cached_property
    def _with_tablets(self) -> frozenset[_TableName]:
        from cdc_platform.metastore import tablets

        return frozenset(tablets.read_tables_with_stream_sets(self.lake))

    def of(self, keyspace: str, table: str) -> StreamSource:
        """Return the source of a table's streams: its tablets if a stream set is published, else the generations."""
        name = (keyspace, table)
        if name in self._given:
            return self._given[name]
        if name not in self._with_tablets:
            return self.generations
        if name not in self._read:
            from cdc_platform.timeline.tablets import TabletStreams

            self._read[name] = TabletStreams(self.lake, self.settings, *name)
        return self._read[name]

    def assign_tablets(self, keyspace: str, table: str, count: int, now_us: Microseconds) -> None:
        """Assign `count` tablets of one size, from a leeway ago, to a new table that is not in the lake.

        A table that already has tablets in the lake keeps those.
        """
        if (keyspace, table) in self._with_tablets:
            return
        from cdc_platform.generations import tablets
        from cdc_platform.metastore import tablets as metastore_tablets
        from cdc_platform.timeline.tablets import TabletStreams

        time_ms = tablets.first_set_timestamp(ms_from_us(now_us), self.settings.generation_leeway_ms)
        table_id = metastore_tablets.derive_table_id(keyspace, table, 0)
        ids = tablets.generate_tablet_streams(table_id, time_ms, tablets.uniform_tablet_ends(count))
        sets = [tablets.StreamSet.of(time_ms, ids)]
        self._given[keyspace, table] = TabletStreams(self.lake, self.settings, keyspace, table, sets)

    def forget(self, keyspace: str, table: str) -> None:
        """Forget the tablets that `assign_tablets` assigned to a table."""
        self._given.pop((keyspace, table), None)
