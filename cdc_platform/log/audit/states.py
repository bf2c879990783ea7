"""Whether the state that is kept beside a log is what the log tells, row by row; scripts and replay go on from it.

What is held against the log is what they would read: the kept state with what came behind it. One that nobody would
go on from, as its log was written anew, is none, and the next script makes it anew.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from cdc_platform.cql.schema import TableSchema
from cdc_platform.errors import InputError, StateError, Unavailable
from cdc_platform.invariants.findings import STATE_IS_THE_LOGS, Finding
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.row_digests import keys_of
from cdc_platform.log.audit.logs import logged_tables
from cdc_platform.log.log_table import log_table
from cdc_platform.log.reading.reader import ROWS_AT_ONCE
from cdc_platform.log.state.kept import kept_state, logged_state, state_table
from cdc_platform.log.state.of_mutations import partition_keys
from cdc_platform.log.state.shape import STATE


def audit_states(lake: Lake, schema: TableSchema | None = None) -> list[Finding]:
    """Hold every kept state, or that of one table, against its log; nothing where none is kept. Nothing is written.

    Counts states. Those of logs above `ROWS_AT_ONCE` rows are not judged: they are named, and not counted. One whose
    log is damaged cannot be judged, so that the invariant does not hold.
    """
    there = [each for each in (logged_tables(lake) if schema is None else [schema]) if _kept(lake, each)]
    left = {each.full_name: why for each in there if (why := _too_large(lake, each))}
    wrong: list[str] = []
    count = 0
    for each in there:
        if each.full_name in left:
            continue
        try:
            said = _compared(lake, each)
        except InputError as error:
            said = f"the state of {each.full_name} cannot be judged: {error}"
        count += said is not None
        wrong += [said] if said else []
    if not count and not left:
        return []
    apart = [f"the state of {name} is not judged: {why}" for name, why in left.items()]
    return [Finding(STATE_IS_THE_LOGS, count, len(wrong), "; ".join([*wrong[:1], *apart[:1]]))]


def _kept(lake: Lake, schema: TableSchema) -> bool:
    return schema.cdc.delta == "full" and lake.exists(state_table(schema))


def _too_large(lake: Lake, schema: TableSchema) -> str:
    rows = sum(part.rows for part in lake.slices(log_table(schema)))
    return f"its log has {rows} rows, more than {ROWS_AT_ONCE}" if rows > ROWS_AT_ONCE else ""


def _compared(lake: Lake, schema: TableSchema) -> str | None:
    """What is wrong with a kept state, in words; None where nobody would go on from it."""
    version = lake.version(log_table(schema))
    # First, since it reads all of the log: what cannot be read behind it is the state's.
    logged = logged_state(lake, schema, version)
    folder = lake.path(state_table(schema))
    mend = f"remove the folder {folder}: the next script that is kept makes it anew"
    try:
        kept = kept_state(lake, schema, version)
        if not kept.beside:
            return None
        whole = kept.whole(schema)
    except Unavailable:
        raise  # what cannot be read now is not damaged
    except (StateError, pa.ArrowException, OSError, ValueError, KeyError) as error:
        return f"the state of {schema.full_name} cannot be read ({error}); {mend}"
    wrong = _different(schema, whole, logged)
    return f"the state of {schema.full_name} is not what its log tells: {wrong}; {mend}" if wrong else ""


def _different(schema: TableSchema, kept: pa.Table, logged: pa.Table) -> str:
    """What tells two states apart, in words; nothing where they have the same rows."""
    columns = STATE.names
    mine, told = (set(keys_of(each.select(columns), columns)) for each in (kept, logged))
    if mine == told and kept.num_rows == logged.num_rows:
        return ""
    apart = [
        rows.filter(pa.array(np.array([key not in others for key in keys_of(rows.select(columns), columns)], bool)))
        for rows, others in ((kept, told), (logged, mine))
    ]
    foreign, lacking = (each.num_rows for each in apart)
    twice = kept.num_rows - len(mine)
    found = (
        f"{foreign} of {kept.num_rows} rows are not the log's, {lacking} of the log's are missing, {twice} come twice"
    )
    keys = sorted({key for each in apart for key in each["partition"].to_pylist()})
    return f"{found}, the first in {_named(schema, keys[0])}" if keys else found


def _named(schema: TableSchema, key: bytes) -> str:
    (values,) = partition_keys(schema, [key])
    pairs = zip(schema.partition_key, values, strict=True)
    return "the partition " + " and ".join(f"{each.name} = {value!r}" for each, value in pairs)
