"""Plan the rows of the V1 tables and of `cdc_local`. A V1 generation is one cell, so it is never half-written."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from cdc_platform.clock import ONE_MS, Milliseconds, datetime_from_ms, format_ms, ms_from_datetime
from cdc_platform.delta import Lake, stream_ids_to_arrow
from cdc_platform.errors import InputError, NotFound, StateError
from cdc_platform.generations import GenerationId, TopologyDescription
from cdc_platform.importing.formats.exports import CdcLocalRow, V1Exports, V1Generation
from cdc_platform.importing.plan import OTHER_HOME, ImportPlan, contradiction
from cdc_platform.importing.range_rows import (
    OrderedRangeRows,
    RangeRows,
    report_misplaced_streams,
    sort_in_byte_order,
)
from cdc_platform.metastore import cdc_local, generations
from cdc_platform.ring import Ring
from cdc_platform.tables import (
    CDC_LOCAL,
    GENERATION_DESCRIPTIONS,
    STREAMS_DESCRIPTIONS,
    STREAMS_TYPE,
    TIMESTAMP,
    Table,
)


def plan_v1(plan: ImportPlan, lake: Lake, ring: Ring, host_id: str | None) -> None:
    """Plan V1 generations and `cdc_local`. A repeated import plans no rows.

    `ring` is the ring after the import. `host_id` names the node of exported `cdc_local` rows that do not name one.

    Raises:
        InputError: the exports contradict the lake, or a node is missing.
    """
    exports = plan.exports.v1
    for time_ms, generation in sorted(exports.descriptions.items()):
        _plan_description(plan, lake, time_ms, generation)
    for time_ms, generation in sorted(exports.streams.items()):
        _plan_streams(plan, lake, time_ms, generation)
    _warn_of_missing_descriptions(plan, lake)
    _warn_of_differing_tables(plan)
    _plan_local(plan, lake, ring, host_id)


def streams_from_v1_description(
    lake: Lake, exports: V1Exports, time_ms: Milliseconds, rows: RangeRows
) -> OrderedRangeRows | None:
    """Return published rows in the shard order of the time's V1 description, or None if their streams differ."""
    exported = exports.descriptions.get(time_ms)
    description = exported.description if exported else _stored_description(lake, time_ms)
    if description is None:
        return None
    counts, streams = description.stream_counts, description.streams
    sorted_rows = RangeRows("", description.range_ends, counts, sort_in_byte_order(counts, streams))
    return OrderedRangeRows(rows, np.asarray(streams), {}) if sorted_rows.has_same_streams(rows) else None


def _stored_description(lake: Lake, time_ms: Milliseconds) -> TopologyDescription | None:
    """Return the lake's description, or None if it has none or a damaged one."""
    try:
        return generations.read_generation_description(lake, GenerationId(time_ms))
    except (NotFound, StateError):
        return None


def _plan_description(plan: ImportPlan, lake: Lake, time_ms: Milliseconds, generation: V1Generation) -> None:
    description = generation.description
    assert description is not None
    expiry_ms = _stored_expiry_ms(lake, GENERATION_DESCRIPTIONS, time_ms)
    what = f"{GENERATION_DESCRIPTIONS.name} of {format_ms(time_ms)}"
    if expiry_ms is None:
        what = f"{generation.source}: {what}"
        streams = np.asarray(description.streams)
        report_misplaced_streams(what, description.range_ends, description.offsets, streams, plan.issues)
    else:
        stored = _stored_description(lake, time_ms)
        if stored is None or not stored.equals(description):
            raise contradiction(generation.source, what)
    _plan_row(plan, GENERATION_DESCRIPTIONS, generations.v1_cell_row(time_ms, description), generation, expiry_ms)


def _plan_streams(plan: ImportPlan, lake: Lake, time_ms: Milliseconds, generation: V1Generation) -> None:
    assert generation.streams is not None
    streams = stream_ids_to_arrow(generation.streams)
    expiry_ms = _stored_expiry_ms(lake, STREAMS_DESCRIPTIONS, time_ms)
    if expiry_ms is not None:
        time_filter = [("time", "=", datetime_from_ms(time_ms))]
        stored = lake.read(STREAMS_DESCRIPTIONS, ["streams"], time_filter)["streams"].combine_chunks().flatten()
        if sorted(stored.to_pylist()) != streams.to_pylist():
            raise contradiction(generation.source, f"{STREAMS_DESCRIPTIONS.name} of {format_ms(time_ms)}")
    cell = pa.ListArray.from_arrays(pa.array([0, len(streams)], pa.int32()), streams, type=STREAMS_TYPE)
    time = pa.array([datetime_from_ms(time_ms)], TIMESTAMP)
    row = pa.table({"time": time, "streams": cell, "expired": pa.nulls(1, TIMESTAMP)}, STREAMS_DESCRIPTIONS.schema)
    _plan_row(plan, STREAMS_DESCRIPTIONS, row, generation, expiry_ms)


def _stored_expiry_ms(lake: Lake, table: Table, time_ms: Milliseconds) -> Milliseconds | None:
    """Return when (ms) the row of this time expired: -1 if it has not, None if there is no row. Reads no streams."""
    expiry_times = lake.read(table, ["expired"], [("time", "=", datetime_from_ms(time_ms))])["expired"].to_pylist()
    if not expiry_times:
        return None
    return -ONE_MS if expiry_times[0] is None else ms_from_datetime(expiry_times[0])


def _plan_row(
    plan: ImportPlan, table: Table, row: pa.Table, generation: V1Generation, stored_expiry_ms: Milliseconds | None
) -> None:
    """Plan a generation's row, unless the lake has it with this expiry."""
    if stored_expiry_ms is not None and generation.expired_ms in (None, stored_expiry_ms):
        return
    if generation.expired_ms is not None:
        index = row.schema.get_field_index("expired")
        expired = pa.array([datetime_from_ms(generation.expired_ms)], TIMESTAMP)
        row = row.set_column(index, row.schema.field(index), expired)
    plan.write(table, row)


def _warn_of_missing_descriptions(plan: ImportPlan, lake: Lake) -> None:
    exports = plan.exports.v1
    described = {*exports.descriptions, *generations.read_v1_times(lake).tolist()}
    missing = sorted(exports.streams.keys() - described)
    if missing:
        plan.warnings.append(
            f"{len(missing)} V1 generations without their description, the first {format_ms(missing[0])}; the rewrite "
            f"needs it: import {GENERATION_DESCRIPTIONS.name} as well"
        )


def _warn_of_differing_tables(plan: ImportPlan) -> None:
    exports = plan.exports.v1
    for time_ms in sorted(exports.streams.keys() & exports.descriptions.keys()):
        streams, description = exports.streams[time_ms].streams, exports.descriptions[time_ms].description
        assert streams is not None
        assert description is not None
        described = sort_in_byte_order(np.array([len(description.streams)]), np.asarray(description.streams))
        if not np.array_equal(described, streams):
            plan.warnings.append(
                f"the V1 tables disagree about {format_ms(time_ms)}: {len(streams)} streams in "
                f"{STREAMS_DESCRIPTIONS.name}, {len(described)} in its description; the rewrite uses the description's"
            )


def _plan_local(plan: ImportPlan, lake: Lake, ring: Ring, host_id: str | None) -> None:
    rows = _local_rows_by_key(plan.exports.v1, host_id)
    stored = cdc_local.read_cdc_local(lake)
    new = [
        cdc_local.NodeLocalRow(host, key, row.streams_timestamp_ms, row.uuid)
        for (host, key), row in rows.items()
        if _is_newer(plan, host, row, stored.get((host, key)))
    ]
    if new:
        plan.write(CDC_LOCAL, cdc_local.cdc_local_rows(new))
    for host in sorted({row.host_id for row in new} - {str(node.host_id) for node in ring.nodes}):
        plan.warnings.append(f"node {host} of {CDC_LOCAL.name} is not in the ring; import a ring snapshot as well")


def _local_rows_by_key(exports: V1Exports, host_id: str | None) -> Mapping[tuple[str, str], CdcLocalRow]:
    """Return the exported rows by node and key; `host_id` is the node of rows that do not name one."""
    nameless = next((row for row in exports.local if row.host_id is None), None)
    if host_id is not None and nameless is None:
        state = "name their nodes" if exports.local else "are not among the files"
        raise InputError(f"--node {host_id} names the node of an export of {CDC_LOCAL.name}, but such exports {state}")
    if nameless is not None and host_id is None:
        raise InputError(f"{nameless.location}: {CDC_LOCAL.name} does not name its node; name it with --node HOST_ID")
    rows: dict[tuple[str, str], CdcLocalRow] = {}
    for row in exports.local:
        first = rows.setdefault((row.host_id or host_id or "", row.key), row)
        if first is not row:
            raise InputError(
                f"{row.location}: key {row.key} of node {row.host_id or host_id} is also in {first.location}; "
                "import the nodes' exports one by one, each with its --node HOST_ID"
            )
    return rows


def _is_newer(plan: ImportPlan, host: str, row: CdcLocalRow, stored: cdc_local.NodeLocalRow | None) -> bool:
    """Return True if the row should be written: an ID never replaces a newer one, and an existing marker stays."""
    if stored is None:
        return True
    if row.key == cdc_local.REWRITTEN_KEY or stored.time_ms is None:
        return row.key != cdc_local.REWRITTEN_KEY and row.streams_timestamp_ms is not None
    if row.streams_timestamp_ms is None or row.streams_timestamp_ms < stored.time_ms:
        plan.warnings.append(
            f"node {host} knows generation {format_ms(stored.time_ms)} already; its older ID was left out"
        )
        return False
    if row.streams_timestamp_ms == stored.time_ms and row.uuid != stored.uuid:
        raise InputError(
            f"{row.location}: node {host} has generation {format_ms(stored.time_ms)} in the lake with "
            f"{stored.uuid or 'no UUID'}, and here with {row.uuid or 'no UUID'}; {OTHER_HOME}"
        )
    return row.streams_timestamp_ms > stored.time_ms
