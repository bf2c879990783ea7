"""Inventory of the generations in the lake: which tables hold them, and all that audits need except the streams.

It reads columns other than streams with deltalake, without a JVM. `scan` reads the streams from exactly the files that
are listed here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from cdc_platform.clock import Milliseconds, datetime_from_ms, format_ms, ms_from_datetime, parse_time_ms
from cdc_platform.delta import (
    DataFile,
    Filter,
    Lake,
    compute,
    row_hash,
    to_int64_array,
    to_milliseconds_without_nulls,
    to_python_values,
)
from cdc_platform.errors import InputError, UnknownGeneration
from cdc_platform.metastore import ring
from cdc_platform.ring import Int64s
from cdc_platform.tables import (
    BOOTSTRAP_EVENTS,
    GENERATION_DESCRIPTIONS_V2,
    GENERATION_TIMESTAMPS,
    GENERATIONS,
    NODES,
    STREAMS_DESCRIPTIONS_V2,
    TOPOLOGY_DESCRIPTIONS,
    UNORDERED_RANGES,
    Table,
)
from cdc_platform.timeline import Generation, Timeline

INVENTORY_TABLES = (
    TOPOLOGY_DESCRIPTIONS,
    GENERATION_DESCRIPTIONS_V2,
    STREAMS_DESCRIPTIONS_V2,
    UNORDERED_RANGES,
    GENERATIONS,
    GENERATION_TIMESTAMPS,
    NODES,
    BOOTSTRAP_EVENTS,
)
"""The tables that judging any generation needs."""


@dataclass(frozen=True, eq=False)
class StoredGenerationRows:
    """One generation's rows in one table, without their streams.

    `files` are the data files of the table's newest version. `key` is the generation's UUID, or its time (ms) as text
    for the published streams. `range_ends` int64[n] ascending, including duplicates; `range_starts` and `owners`
    accompany them if the table has these columns. `claims` are the distinct values of `num_ranges`. `unordered` int64[]
    are the range ends of rows whose shard order was unknown when they were imported.
    """

    table: Table
    files: tuple[DataFile, ...]
    key: str
    range_ends: Int64s
    range_starts: Int64s | None
    owners: tuple[str, ...]
    claims: tuple[int | None, ...]
    unordered: Int64s

    @property
    def paths(self) -> list[str]:
        """Return the paths of its files."""
        return [file.path for file in self.files]


@dataclass(frozen=True, eq=False)
class InventoryGeneration:
    """What the lake has of a generation. `id` is None if only its time is known, `time_ms` if it has no time."""

    id: str | None
    time_ms: Milliseconds | None
    listed: bool
    described: StoredGenerationRows | None
    inserted: StoredGenerationRows | None
    published: StoredGenerationRows | None

    @property
    def name(self) -> str:
        """Return its name for people: its UUID, or else its time."""
        return self.id or ("" if self.time_ms is None else format_ms(self.time_ms))

    @property
    def rows(self) -> StoredGenerationRows | None:
        """Return the rows that represent the generation: V2 descriptions, topology description, or streams rows."""
        return self.inserted or self.described or self.published


@dataclass(frozen=True, eq=False)
class KnownNodes:
    """What is known of nodes.

    `normal` are the tokens (int64[], ascending) of the current ring, with their owners' `shard_counts` and
    `ignore_msbs`; `tokens` are those of every node by its host_id; `joined` are the tokens that a generation's
    bootstrap event adds, by generation.
    """

    normal: Int64s
    shard_counts: Int64s
    ignore_msbs: Int64s
    tokens: dict[str, Int64s]
    joined: dict[str, Int64s]


def read_generation_rows(lake: Lake, table: Table, key: str) -> StoredGenerationRows | None:
    """Return the rows of one generation in one table, or None if there are none."""
    return _read_rows(lake, table, [key]).get(key)


def _read_rows_of_all(lake: Lake, table: Table) -> dict[str, StoredGenerationRows]:
    """Return the rows of every generation in one table, by key."""
    return _read_rows(lake, table, None)


def read_inventory(lake: Lake) -> list[InventoryGeneration]:
    """Return every generation of the lake, in the order of their times; those without a time come last."""
    described, inserted, published = (
        _read_rows_of_all(lake, table)
        for table in (TOPOLOGY_DESCRIPTIONS, GENERATION_DESCRIPTIONS_V2, STREAMS_DESCRIPTIONS_V2)
    )
    return _join_by_generation(Timeline.read(lake), described, inserted, published)


def read_representative_inventory(lake: Lake, but_for: Collection[str] = ()) -> list[InventoryGeneration]:
    """Return every generation with only the rows that represent it, reading nothing of its other tables.

    Of the generations `but_for` (UUIDs) no rows are read.
    """
    with lake.table_cache.pin_versions():  # the timeline selects what to read, then describes it
        inserted = _read_rows_except(lake, GENERATION_DESCRIPTIONS_V2, but_for)
        described = _read_rows_except(lake, TOPOLOGY_DESCRIPTIONS, {*inserted, *but_for})
        described_ids = {*inserted, *described, *but_for}
        timeline = Timeline.read(lake)
        times = {str(generation.time_ms) for generation in timeline.generations if generation.id in described_ids}
        published = _read_rows_except(lake, STREAMS_DESCRIPTIONS_V2, times)
    return _join_by_generation(timeline, described, inserted, published)


def read_representative_files(lake: Lake) -> dict[str, tuple[DataFile, ...]]:
    """Return the files of the representative rows of each generation that has a UUID, without opening them."""
    files: dict[str, tuple[DataFile, ...]] = {}
    for table in (TOPOLOGY_DESCRIPTIONS, GENERATION_DESCRIPTIONS_V2):
        files |= _files_by_key(table, lake.data_files(table))
    return files


def _read_rows_except(lake: Lake, table: Table, excluded: Collection[str]) -> dict[str, StoredGenerationRows]:
    """Return the rows of the generations of one table that are not in `excluded`."""
    keys = dict.fromkeys(_key_from_stored(table, file.partition[0]) for file in lake.data_files(table))
    remaining = [key for key in keys if key not in excluded]
    return _read_rows(lake, table, remaining if len(remaining) < len(keys) else None) if remaining else {}


def _join_by_generation(
    timeline: Timeline,
    described: Mapping[str, StoredGenerationRows],
    inserted: Mapping[str, StoredGenerationRows],
    published: Mapping[str, StoredGenerationRows],
) -> list[InventoryGeneration]:
    by_time = {
        generation.time_ms: generation
        for generation in timeline.generations
        if generation.id is not None or generation.published or str(generation.time_ms) in published
    }
    names = [(generation.id, generation.time_ms) for generation in by_time.values()]
    names += [(None, time) for time in map(Milliseconds, published) if time not in by_time]
    named = {id_ for id_, _ in names}
    names += [(id_, None) for id_ in dict.fromkeys([*described, *inserted]) if id_ not in named]
    generations = [
        InventoryGeneration(
            id_,
            time,
            time is not None and time in by_time and by_time[time].published,
            None if id_ is None else described.get(id_),
            None if id_ is None else inserted.get(id_),
            None if time is None else published.get(str(time)),
        )
        for id_, time in names
    ]
    return sorted(generations, key=lambda each: (each.time_ms is None, each.time_ms or 0, each.name))


def read_inventory_generation(lake: Lake, name: str) -> InventoryGeneration:
    """Return the generation with this UUID or time (ISO 8601). If it has both, no other generation's rows are read.

    Raises:
        NotFound: the lake holds nothing of it.
    """
    timeline = Timeline.read(lake)
    generation = find_generation(timeline, name)
    if generation is None:
        return find_inventory_generation(read_inventory(lake), name)
    id_, time_ms = generation.id, generation.time_ms
    published = read_generation_rows(lake, STREAMS_DESCRIPTIONS_V2, str(time_ms))
    if id_ is None:
        if published is None and not generation.published:
            raise _unknown_generation_error(name)
        return InventoryGeneration(id_, time_ms, generation.published, None, None, published)
    return InventoryGeneration(
        id_,
        time_ms,
        generation.published,
        read_generation_rows(lake, TOPOLOGY_DESCRIPTIONS, id_),
        read_generation_rows(lake, GENERATION_DESCRIPTIONS_V2, id_),
        published,
    )


def list_partitions_to_read(lake: Lake, name: str, but_for: Collection[str]) -> dict[Table, set[str]]:
    """Return the Delta partitions, by table, that comparing a generation with all others reads.

    They are those of the generation with this UUID or time (ISO 8601), and those that represent each other one, except
    for those of the generations `but_for` (UUIDs). Only the tables' logs and the timeline are read.
    """
    timeline = Timeline.read(lake)
    generation = find_generation(timeline, name)
    own_id = None if generation is None else generation.id
    own_time = None if generation is None else str(generation.time_ms)
    described, inserted, published = (
        {_key_from_stored(table, file.partition[0]): file.partition for file in lake.data_files(table)}
        for table in (TOPOLOGY_DESCRIPTIONS, GENERATION_DESCRIPTIONS_V2, STREAMS_DESCRIPTIONS_V2)
    )
    excluded = set(but_for)
    with_id = described.keys() | inserted.keys() | excluded
    times = {str(other.time_ms) for other in timeline.generations if other.id in with_id}
    chosen = (
        (GENERATION_DESCRIPTIONS_V2, inserted, inserted.keys() - excluded, own_id),
        (TOPOLOGY_DESCRIPTIONS, described, described.keys() - inserted.keys() - excluded, own_id),
        (STREAMS_DESCRIPTIONS_V2, published, published.keys() - times, own_time),
    )
    return {
        table: {
            row_hash.format_partition_name(table.partition_by, partition)
            for key, partition in partitions.items()
            if key in keys or key == own
        }
        for table, partitions, keys, own in chosen
    }


def find_generation(timeline: Timeline, name: str) -> Generation | None:
    """Return the generation of the timeline with this UUID or time (ISO 8601), or None."""
    generation = timeline.with_id(name.lower())
    if generation is not None:
        return generation
    time_ms = _parse_time(name)
    return None if time_ms is None else timeline.with_time(time_ms)


def _parse_time(name: str) -> Milliseconds | None:
    try:
        return parse_time_ms(name)
    except InputError:
        return None


def find_inventory_generation(inventory: Sequence[InventoryGeneration], name: str) -> InventoryGeneration:
    """Return the generation with this UUID or time (ISO 8601).

    Raises:
        NotFound: the lake holds nothing of it.
    """
    time = _parse_time(name)
    for generation in inventory:
        if generation.id == name.lower() or (time is not None and generation.time_ms == time):
            return generation
    raise _unknown_generation_error(name)


def _unknown_generation_error(name: str) -> UnknownGeneration:
    return UnknownGeneration(f"no generation {name} is known; list them with: cdc-platform generations")


def read_ledger_times(lake: Lake) -> dict[str, Milliseconds]:
    """Return the time (ms) of every generation in the ledger, by its UUID."""
    rows = lake.read(GENERATIONS, ["generation_id", "time"])
    return dict(zip(to_python_values(rows["generation_id"]), to_milliseconds_without_nulls(rows["time"]), strict=True))


def read_known_nodes(lake: Lake) -> KnownNodes:
    """Return what the lake knows of nodes and their tokens."""
    nodes = ring.read_node_columns(lake, ["host_id", "status", "tokens", "shard_count", "ignore_msb"])
    events = lake.read(BOOTSTRAP_EVENTS, ["host_id", "generation_id", "tokens"], [("kind", "=", "join")])
    normal = nodes.filter(compute.equal(nodes["status"], "NORMAL"))
    tokens, widths = _tokens(normal)
    order = np.argsort(tokens)
    counts, msbs = (np.repeat(_integers(normal[name]), widths)[order] for name in ("shard_count", "ignore_msb"))
    by_host = _tokens_by(events, "host_id") | _tokens_by(nodes, "host_id")
    return KnownNodes(tokens[order], counts, msbs, by_host, _tokens_by(events, "generation_id"))


def _tokens(rows: pa.Table) -> tuple[Int64s, Int64s]:
    """Return the concatenated tokens of all rows, and the number of tokens of each row."""
    return _integers(compute.list_flatten(rows["tokens"])), to_int64_array(compute.list_value_length(rows["tokens"]), 0)


def _tokens_by(rows: pa.Table, column: str) -> dict[str, Int64s]:
    tokens, widths = _tokens(rows)
    ends = np.cumsum(widths)
    parts = [tokens[end - width : end] for end, width in zip(ends.tolist(), widths.tolist(), strict=True)]
    return dict(zip(to_python_values(rows[column]), parts, strict=True))


def _read_rows(lake: Lake, table: Table, keys: Sequence[str] | None) -> dict[str, StoredGenerationRows]:
    wanted = [name for name in ("range_start", "owner", "num_ranges") if name in table.schema.names]
    chosen = None if keys is None else {_stored_key(table, key) for key in keys}
    rows, data_files = lake.read_partitions(table, ["range_end", *wanted], chosen)
    files = _files_by_key(table, data_files)
    by_key = {_key_from_stored(table, value): part for value, part in rows.items() if part.num_rows}
    unordered = _unordered(lake, table, keys) if by_key else {}
    return {key: _rows_of_generation(table, files[key], key, part, unordered.get(key)) for key, part in by_key.items()}


def _files_by_key(table: Table, files: Iterable[DataFile]) -> dict[str, tuple[DataFile, ...]]:
    by_key: dict[Any, list[DataFile]] = {}
    for file in files:
        by_key.setdefault(file.partition[0], []).append(file)
    return {_key_from_stored(table, stored): tuple(own_files) for stored, own_files in by_key.items()}


def _rows_of_generation(
    table: Table, files: tuple[DataFile, ...], key: str, rows: pa.Table, unordered: list[int] | None
) -> StoredGenerationRows:
    ends = _integers(rows["range_end"])
    order = np.argsort(ends, kind="stable")
    names = rows.schema.names
    return StoredGenerationRows(
        table,
        files,
        key,
        ends[order],
        _integers(rows["range_start"])[order] if "range_start" in names else None,
        tuple(compute.unique(rows["owner"]).to_pylist()) if "owner" in names else (),
        tuple(compute.unique(rows["num_ranges"]).to_pylist()) if "num_ranges" in names else (),
        np.array(sorted(unordered or []), dtype=np.int64),
    )


def _unordered(lake: Lake, table: Table, keys: Sequence[str] | None) -> dict[str, list[int]]:
    filters: list[Filter] = [("table_name", "=", table.full_name)]
    if keys is not None:
        filters.append(("generation", "in", [_name_in_unordered(table, key) for key in keys]))
    ends_by_key: dict[str, list[int]] = {}
    for row in lake.read(UNORDERED_RANGES, ["generation", "range_end"], filters).to_pylist():
        ends_by_key.setdefault(_key_from_name(table, row["generation"]), []).append(row["range_end"])
    return ends_by_key


def _key_from_stored(table: Table, stored: Any) -> str:
    """Return the key for a value of the generation column; the inverse of `_stored_key`."""
    return str(ms_from_datetime(stored)) if table is STREAMS_DESCRIPTIONS_V2 else stored


def _stored_key(table: Table, key: str) -> object:
    return datetime_from_ms(Milliseconds(key)) if table is STREAMS_DESCRIPTIONS_V2 else key


def _name_in_unordered(table: Table, key: str) -> str:
    """Return the name of a generation in `unordered_ranges`, where times are text."""
    return format_ms(Milliseconds(key)) if table is STREAMS_DESCRIPTIONS_V2 else key


def _key_from_name(table: Table, name: str) -> str:
    return str(parse_time_ms(name)) if table is STREAMS_DESCRIPTIONS_V2 else name


def _integers(column: pa.ChunkedArray) -> Int64s:
    """Return a column as int64[n].

    Nulls, which only a foreign writer can leave, become the minimum token, which no key has.
    """
    return to_int64_array(column, -(2**63))
