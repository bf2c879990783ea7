"""What an import of V1 tables and of `cdc_local` would write, checked against the lake before any of it is written.

A V1 generation is one cell, so there is no half of one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from cdc_platform.clock import ONE_MS, Milliseconds, format_ms, ms_from_datetime, ms_to_datetime
from cdc_platform.errors import InputError, NotFound, StateError
from cdc_platform.generations import GenerationId
from cdc_platform.lake.arrow import stream_ids
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import (
    CDC_LOCAL,
    GENERATION_DESCRIPTIONS,
    STREAMS,
    STREAMS_DESCRIPTIONS,
    TIMESTAMP,
    Table,
)
from cdc_platform.records import cdc_local, generation_data
from cdc_platform.ring import Ring
from cdc_platform.sources.cqlsh_v1 import LOCAL, LocalRow, V1Exports, V1Generation
from cdc_platform.sources.flaws import Flaws
from cdc_platform.sources.ordering import OrderedRows
from cdc_platform.sources.range_rows import RangeRows, in_byte_order, tell_misplaced

Rows = list[tuple[Table, pa.Table]]


def plan_v1(lake: Lake, exports: V1Exports, ring: Ring, host_id: str | None, flaws: Flaws) -> tuple[Rows, list[str]]:
    """The rows of V1 tables and of `cdc_local` to be written, and what a person should know. The same again: no rows.

    `ring` is the ring as it will stand; `host_id` the node that exports of `cdc_local` are of, where they do not say.

    Raises:
        InputError: the exports say something else than the lake, or a node is missing.
    """
    rows: Rows = []
    for time_ms, each in sorted(exports.descriptions.items()):
        rows += _description_row(lake, time_ms, each, flaws)
    for time_ms, each in sorted(exports.streams.items()):
        rows += _streams_row(lake, time_ms, each)
    local, warnings = _local_rows(lake, exports.local, host_id)
    known = {str(node.host_id) for node in ring.nodes}
    hosts = {host for _, table in local for host in table["host_id"].to_pylist()}
    warnings += [
        f"node {host} of {LOCAL} is not in the ring; import a ring snapshot as well" for host in sorted(hosts - known)
    ]
    return rows + local, _warnings(lake, exports) + warnings


def described_streams(lake: Lake, exports: V1Exports, time_ms: Milliseconds, rows: RangeRows) -> OrderedRows | None:
    """Published rows of a time in the shard order of its V1 description, where both have the same streams."""
    exported = exports.descriptions.get(time_ms)
    description = exported.description if exported else None
    if description is None:
        try:
            description = generation_data.description_of(lake, GenerationId(time_ms))
        except (NotFound, StateError):
            return None
    counts, streams = description.stream_counts, description.streams
    sorted_rows = RangeRows("", description.range_ends, counts, in_byte_order(counts, streams))
    return OrderedRows(rows, np.asarray(streams), {}) if sorted_rows.has_same_streams(rows) else None


def _description_row(lake: Lake, time_ms: Milliseconds, each: V1Generation, flaws: Flaws) -> Rows:
    assert each.description is not None
    existing = _existing(lake, GENERATION_DESCRIPTIONS, time_ms)
    if existing is not None:
        try:
            same = generation_data.description_of(lake, GenerationId(time_ms)).equals(each.description)
        except StateError:
            same = False
        if not same:
            raise _contradiction(each, GENERATION_DESCRIPTIONS, time_ms)
        if each.expired_ms in (None, existing):
            return []
    if existing is None:
        said = each.description
        what = f"{each.source}: {GENERATION_DESCRIPTIONS.name} of {format_ms(time_ms)}"
        tell_misplaced(what, said.range_ends, said.offsets, np.asarray(said.streams), flaws)
    row = generation_data.cell_row(time_ms, each.description)
    return [(GENERATION_DESCRIPTIONS, _expiring(row, each.expired_ms))]


def _streams_row(lake: Lake, time_ms: Milliseconds, each: V1Generation) -> Rows:
    assert each.streams is not None
    flat = stream_ids(each.streams)
    existing = _existing(lake, STREAMS_DESCRIPTIONS, time_ms)
    if existing is not None:
        where = [("time", "=", ms_to_datetime(time_ms))]
        there = lake.read(STREAMS_DESCRIPTIONS, ["streams"], where)["streams"].combine_chunks().flatten()
        if sorted(there.to_pylist()) != flat.to_pylist():
            raise _contradiction(each, STREAMS_DESCRIPTIONS, time_ms)
        if each.expired_ms in (None, existing):
            return []
    cell = pa.ListArray.from_arrays(pa.array([0, len(flat)], pa.int32()), flat, type=STREAMS)
    time = pa.array([ms_to_datetime(time_ms)], TIMESTAMP)
    row = pa.table({"time": time, "streams": cell, "expired": pa.nulls(1, TIMESTAMP)}, STREAMS_DESCRIPTIONS.schema)
    return [(STREAMS_DESCRIPTIONS, _expiring(row, each.expired_ms))]


def _existing(lake: Lake, table: Table, time_ms: Milliseconds) -> Milliseconds | None:
    """When (ms) the row of this time expired, -1 where it did not; None where there is no row. Reads no streams."""
    found = lake.read(table, ["expired"], [("time", "=", ms_to_datetime(time_ms))])["expired"].to_pylist()
    if not found:
        return None
    return -ONE_MS if found[0] is None else ms_from_datetime(found[0])


def _expiring(row: pa.Table, expired_ms: Milliseconds | None) -> pa.Table:
    if expired_ms is None:
        return row
    place = row.schema.get_field_index("expired")
    return row.set_column(place, row.schema.field(place), pa.array([ms_to_datetime(expired_ms)], TIMESTAMP))


def _contradiction(each: V1Generation, table: Table, time_ms: Milliseconds) -> InputError:
    return InputError(
        f"{each.source}: {table.name} of {format_ms(time_ms)} is otherwise in the lake, and a generation never "
        "changes; import it into another --home"
    )


def _warnings(lake: Lake, exports: V1Exports) -> list[str]:
    warnings = []
    described = {*exports.descriptions, *generation_data.described_times(lake).tolist()}
    bare = sorted(exports.streams.keys() - described)
    if bare:
        warnings.append(
            f"{len(bare)} V1 generations without their description, the first {format_ms(bare[0])}; the rewrite needs "
            "it: import cdc_generation_descriptions as well"
        )
    for time_ms, each in exports.streams.items():
        other = exports.descriptions.get(time_ms)
        if other is None or other.description is None or each.streams is None:
            continue
        flat = in_byte_order(np.array([len(other.description.streams)]), np.asarray(other.description.streams))
        if not np.array_equal(flat, each.streams):
            warnings.append(
                f"the V1 tables disagree about {format_ms(time_ms)}: {len(each.streams)} streams in "
                f"cdc_streams_descriptions, {len(flat)} in its description; the rewrite takes the description's"
            )
    return warnings


def _local_rows(lake: Lake, local: Sequence[LocalRow], host_id: str | None) -> tuple[Rows, list[str]]:
    nameless = next((row for row in local if row.host_id is None), None)
    if host_id is not None and nameless is None:
        said = "name their nodes themselves" if local else "are not among the files"
        raise InputError(f"--node {host_id} says which node an export of {LOCAL} is of, and such exports {said}")
    if nameless is not None and host_id is None:
        raise InputError(f"{nameless.place}: {LOCAL} does not say which node it is of; name it with --node HOST_ID")
    rows: dict[tuple[str, str], LocalRow] = {}
    for row in local:
        place = (row.host_id or host_id or "", row.key)
        if place in rows:
            raise InputError(
                f"{row.place}: key {row.key} of node {place[0]} is there twice, first in {rows[place].place}; "
                "import the nodes' exports one by one, each with its --node"
            )
        rows[place] = row
    there = cdc_local.known(lake)
    warnings: list[str] = []
    kept = [
        cdc_local.KeptRow(host, key, row.streams_timestamp_ms, row.uuid)
        for (host, key), row in rows.items()
        if _is_news(host, row, there.get((host, key)), warnings)
    ]
    return ([(CDC_LOCAL, cdc_local.rows_of(kept))] if kept else []), warnings


def _is_news(host: str, row: LocalRow, known: cdc_local.KeptRow | None, warnings: list[str]) -> bool:
    """Whether a row goes in: an ID never goes back to an older one, and a marker that is there stays."""
    if known is None:
        return True
    known_ms = known.time_ms
    if row.key == cdc_local.REWRITTEN or known_ms is None:
        return row.key != cdc_local.REWRITTEN and row.streams_timestamp_ms is not None
    if row.streams_timestamp_ms is None or row.streams_timestamp_ms < known_ms:
        warnings.append(f"node {host} knows generation {format_ms(known_ms)} already; its older ID was left out")
        return False
    if row.streams_timestamp_ms == known_ms and row.uuid != known.uuid:
        raise InputError(
            f"{row.place}: node {host} has generation {format_ms(known_ms)} in the lake with "
            f"{known.uuid or 'no UUID'}, and here with {row.uuid or 'no UUID'}; import it into another --home"
        )
    return row.streams_timestamp_ms > known_ms
