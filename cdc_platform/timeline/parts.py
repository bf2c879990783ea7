"""Which rows of which tables are a generation's, and what they hold: for events, for histories, for data versions.

It names the rows; who wrote them is told by `lake.provenance`, and what a step does with them by `lifecycle`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from cdc_platform.clock import Microseconds, Milliseconds, ms_to_datetime
from cdc_platform.errors import InputError
from cdc_platform.lake import digests, provenance
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.provenance import Where
from cdc_platform.lake.tables import (
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
from cdc_platform.timeline.keys import Keys
from cdc_platform.timeline.timeline import Timeline

_UUID_LENGTH, _DASHES_OF_UUID = 36, 4


@dataclass(frozen=True)
class Part:
    """Rows of a table: those that have these values in these columns."""

    table: Table
    where: Where


@dataclass(frozen=True)
class Names:
    """By what tables name a generation. `id` None: only its time (ms) is known; `time_ms` None: it has none yet.

    `host_id` is the node of its join, None where no event makes it. `is_v1`: its data is a cell of the first format.
    """

    key: str
    id: str | None
    time_ms: Milliseconds | None
    host_id: str | None
    is_v1: bool = False
    is_removed: bool = False

    def parts(self) -> Iterator[Part]:
        """Its rows in all tables, those first that are written first."""
        if self.id is not None:
            named = {"generation_id": self.id}
            yield Part(BOOTSTRAP_EVENTS, named)
            yield Part(TOPOLOGY_DESCRIPTIONS, named)
            yield Part(GENERATION_SWITCHES, named)
            yield Part(GENERATION_DESCRIPTIONS_V2, {"id": self.id})
            yield Part(GENERATIONS, named)
            yield Part(VERDICTS, named)
        if self.time_ms is None:
            return
        at = {"time": ms_to_datetime(self.time_ms)}
        yield Part(GENERATION_DESCRIPTIONS, at)
        if self.host_id is not None:
            yield Part(CDC_LOCAL, {"host_id": self.host_id, "streams_timestamp": at["time"]})
            yield Part(NODES, {"host_id": self.host_id})
        yield Part(STREAMS_DESCRIPTIONS, at)
        yield Part(STREAMS_DESCRIPTIONS_V2, at)
        yield Part(GENERATION_TIMESTAMPS, at)
        yield Part(REMOVED_GENERATIONS, at)

    def part(self, table: Table) -> Part | None:
        """Its rows in the place of a table of the second format; None while it can have none."""
        if table is GENERATION_DESCRIPTIONS_V2 and self.is_v1:
            table = GENERATION_DESCRIPTIONS
        return next((part for part in self.parts() if part.table is table), None)


def all_names(lake: Lake, keys: Keys) -> list[Names]:
    """The generations that wait, are or were, oldest first; of those that were withdrawn none."""
    timeline = Timeline.read(lake)
    timed = [
        Names(
            keys.of(each.id, each.time_ms),
            each.id,
            each.time_ms,
            _host(keys, each.id),
            each.format == "v1",
            each.is_removed,
        )
        for each in timeline.generations
    ]
    known = {each.id for each in timed}
    waiting = (join for join in keys.joins if join.generation_id not in known | keys.withdrawn)
    return [*timed, *(Names(keys.of(join.generation_id), join.generation_id, None, join.host_id) for join in waiting)]


def generation_called(lake: Lake, keys: Keys, name: str, now_us: Microseconds) -> str | Milliseconds:
    """Return the generation, by UUID (text) or time (ms), that people call so.

    `name` is its key in a list of partitions, whatever became of it, its UUID or time, the begin of either, `latest`,
    or `operating` (at `now_us`).

    Raises:
        NotFound: there is none, or several begin so.
    """
    try:
        return keys.generation(name.lower() if name.count("-") == _DASHES_OF_UUID else name)
    except InputError:
        if len(name) == _UUID_LENGTH:
            return name
        found = Timeline.read(lake).called(name, now_us)
        return found.id or found.time_ms


def names_of(lake: Lake, keys: Keys, generation: str | Milliseconds) -> Names:
    """What tables call a generation, which is given by its UUID (text) or its time (ms), whatever became of it.

    Raises:
        NotFound: nobody knows it.
    """
    found = next((each for each in all_names(lake, keys) if generation in (each.id, each.time_ms)), None)
    if found is not None:
        return found
    if isinstance(generation, str) and generation in keys.by_generation:
        return Names(keys.of(generation), generation, None, _host(keys, generation))
    Timeline.read(lake).find(generation)
    raise AssertionError("unreachable: what is found has a name")


class Contents:
    """What the tables hold of generations, each table read once and when it is first asked for."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._slices: dict[str, provenance.Slices] = {}
        self._rows: dict[str, dict[str, int]] = {}

    def of(self, names: Names, table: Table) -> int | None:
        """The digest of a generation's rows in the place of a table; None while it has none there.

        Of `cdc_local` it is that of the row that its own node was given: nodes go on to later generations.
        """
        part = names.part(table)
        if part is None:
            return None
        if table is CDC_LOCAL:
            return kept(self._lake, names)
        columns = tuple(part.where)
        name = digests.slice_of(columns, part.where)
        if columns == part.table.partition_by:
            if part.table.full_name not in self._slices:
                self._slices[part.table.full_name] = provenance.Slices(self._lake, part.table)
            return self._slices[part.table.full_name].digest(name)
        if part.table.full_name not in self._rows:
            self._rows[part.table.full_name] = digests.of_rows(
                self._lake.read(part.table), columns, self._lake.digest_rule(part.table)
            )
        return self._rows[part.table.full_name].get(name)


def content(lake: Lake, names: Names, table: Table) -> int | None:
    """As `Contents.of`, for one generation: only its own rows are read."""
    part = names.part(table)
    if part is None:
        return None
    if table is CDC_LOCAL:
        return kept(lake, names)
    return provenance.held(lake, part.table, part.where)


def kept(lake: Lake, names: Names) -> int | None:
    """The digest of the row of `cdc_local` in which a generation's own node keeps its ID; None before it does."""
    if names.time_ms is None or names.host_id is None:
        return None
    row = {
        "host_id": names.host_id,
        "key": "cdc_local",
        "streams_timestamp": ms_to_datetime(names.time_ms),
        "uuid": None if names.is_v1 else names.id,
    }
    rows = pa.Table.from_pylist([row], schema=CDC_LOCAL.schema)
    return digests.of_rows(rows, (), lake.digest_rule(CDC_LOCAL))[""]


def _host(keys: Keys, generation_id: str | None) -> str | None:
    join = None if generation_id is None else keys.by_generation.get(generation_id)
    return None if join is None else join.host_id
