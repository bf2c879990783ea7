"""The stream that a log mutation gets, and whether its write is accepted: by generation, or by a table's tablets.

Asks the rules of `generations` about what the lake holds, which is read once a script; nothing here writes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from cdc_platform.clock import format_ms
from cdc_platform.cql.schema import TableSchema
from cdc_platform.errors import NotFound, StateError, WriteRefused
from cdc_platform.generations import Decision, TopologyDescription, decide, operating_index, tablets
from cdc_platform.generations.metadata import Verdict
from cdc_platform.generations.tablets import StreamSet
from cdc_platform.lake.lake import Lake
from cdc_platform.lifecycle import explain
from cdc_platform.records import generation_data, reading, tablet_ledger, tablet_sets
from cdc_platform.settings import Settings


@dataclass
class Streams:
    """What the lake knows of streams, for a coordinator whose clock shows `now_us` (µs)."""

    lake: Lake
    settings: Settings
    now_us: int
    _descriptions: dict[int, TopologyDescription | None] = field(default_factory=dict)
    _sets: dict[str, list[StreamSet]] = field(default_factory=dict)

    @property
    def _leeway_us(self) -> int:
        return self.settings.generation_leeway_ms * 1000

    @cached_property
    def _generations(self) -> list[reading.KnownGeneration]:
        return reading.timeline(self.lake)

    @cached_property
    def _times_us(self) -> list[int]:
        return [generation.time_ms * 1000 for generation in self._generations]

    @cached_property
    def _tablet_tables(self) -> set[tuple[str, str]]:
        return set(tablet_sets.tables(self.lake))

    def give_tablets(self, schema: TableSchema, count: int) -> None:
        """Give a table that is made here `count` tablets of one size, with streams as from a leeway ago.

        A table of its name that has tablets in the lake has those.
        """
        if (schema.keyspace, schema.name) in self._tablet_tables:
            return
        time_ms = tablets.base_timestamp(self.now_us // 1000, self.settings.generation_leeway_ms)
        table_id = tablet_ledger.table_id_of(schema.keyspace, schema.name, 0)
        ids = tablets.new_streams(table_id, time_ms, tablets.uniform_ends(count))
        self._sets[schema.full_name] = [StreamSet.of(time_ms, ids)]

    def forget(self, schema: TableSchema) -> None:
        """Forget the tablets that a table was given here."""
        self._sets.pop(schema.full_name, None)

    def stream_of(self, schema: TableSchema, timestamp: int, token: int) -> bytes:
        """The stream ID (16 bytes) of a write with this timestamp (µs) to the partition of a token.

        Raises:
            WriteRefused: the write is not accepted; its message says why and what to do.
        """
        sets = self._tablets_of(schema)
        return self._vnode_stream(timestamp, token) if sets is None else self._tablet_stream(sets, timestamp, token)

    def _tablets_of(self, schema: TableSchema) -> list[StreamSet] | None:
        name = schema.full_name
        if name not in self._sets and (schema.keyspace, schema.name) in self._tablet_tables:
            self._sets[name] = tablet_sets.stream_sets(self.lake, schema.keyspace, schema.name)
        return self._sets.get(name)

    def _tablet_stream(self, sets: list[StreamSet], timestamp: int, token: int) -> bytes:
        times_ms = [each.timestamp_ms for each in sets]
        _assert_ok(tablets.decide_write(times_ms, timestamp, self.now_us, leeway_us=self._leeway_us))
        return tablets.streams_for(sets, [timestamp], [token])[0][0].tobytes()

    def _vnode_stream(self, timestamp: int, token: int) -> bytes:
        row = int(operating_index(self._times_us, timestamp))
        known = row < 0 or self._is_described(row)
        retrieved = [number != row or known for number in range(len(self._times_us))]
        _assert_ok(
            decide(
                self._times_us,
                timestamp,
                self.now_us,
                leeway_us=self._leeway_us,
                policy=self.settings.policy,
                retrieved=retrieved,
            )
        )
        description = self._description(row)
        return self._placed(row, token) if description is None else description.streams_of(token)[0].tobytes()

    def _is_described(self, row: int) -> bool:
        if self._generations[row].generation_id is None:
            return reading.published_range_ends(self.lake, self._generations[row].time_ms).size > 0
        return self._description(row) is not None

    def _description(self, row: int) -> TopologyDescription | None:
        """The description of a known generation; None where it cannot be read, or only its streams rows are known."""
        if row not in self._descriptions:
            generation_id = self._generations[row].generation_id
            try:
                self._descriptions[row] = (
                    None if generation_id is None else generation_data.description_of(self.lake, generation_id)
                )
            except (NotFound, StateError):
                self._descriptions[row] = None
        return self._descriptions[row]

    def _placed(self, row: int, token: int) -> bytes:
        """The stream of a generation of which only the streams rows are known."""
        generation = self._generations[row]
        place = explain.place_of(self.lake, generation, token)
        if place.stream_id is None:
            raise StateError(
                f"the stream of token {token} in the generation of {format_ms(generation.time_ms)} cannot be told:"
                f" {place.note}; import its V2 descriptions"
            )
        return place.stream_id


def _assert_ok(decision: Decision) -> None:
    if decision.verdict is not Verdict.OK:
        raise WriteRefused(decision.verdict, decision.reason)
