"""What is in a log, in numbers: rows by generation or stream set and by operation, bytes, and how far it reaches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from cdc_platform.clock import Microseconds
from cdc_platform.cql.schema import TableSchema
from cdc_platform.generations import operating_index
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.volume import Workers
from cdc_platform.log.audit import one_pass
from cdc_platform.log.audit.rows import LogRows
from cdc_platform.log.log_table import log_table
from cdc_platform.log.rows import Operation
from cdc_platform.timeline import StreamSources

_COUNTS = pa.schema({"period": pa.int64(), "operation": pa.int64(), "rows": pa.int64(), "newest_us": pa.int64()})


@dataclass(frozen=True)
class Overview:
    """The numbers of one log. Times in µs.

    `by_period`: rows by when their generation or stream set began, None for those of no such time; `by_operation`:
    rows by what they are; `newest_us` is None where no row says when it was written.
    """

    rows: int
    bytes: int
    newest_us: Microseconds | None
    by_period: dict[Microseconds | None, int]
    by_operation: dict[str, int]


def overview(lake: Lake, schema: TableSchema, workers: Workers) -> Overview:
    """Count what is in a log."""
    begins = [each.begin_us for each in StreamSources(lake).of(schema.keyspace, schema.name).periods()]
    counts = one_pass.run(lake, schema, workers, partial(_counted, begins), _COUNTS)
    by_period, by_operation = Counter[int](), Counter[int]()
    for each in counts:
        by_period[each["period"]] += each["rows"]
        by_operation[each["operation"]] += each["rows"]
    return Overview(
        sum(by_period.values()),
        sum(each.bytes for each in lake.slices(log_table(schema))),
        max((each["newest_us"] for each in counts if each["newest_us"] is not None), default=None),
        {None if place < 0 else begins[place]: by_period[place] for place in sorted(by_period)},
        {_name(code): by_operation[code] for code in sorted(by_operation)},
    )


def _counted(begins: Sequence[int], rows: LogRows) -> pa.RecordBatch:
    """Rows of a part by period and operation."""
    period = operating_index(begins, rows.times_us)
    period[~rows.timed] = -1
    pairs, which, counts = np.unique(
        np.stack([period, rows.operations], axis=1), axis=0, return_inverse=True, return_counts=True
    )
    newest = np.full(len(pairs), np.iinfo(np.int64).min)
    np.maximum.at(newest, which.reshape(-1), np.where(rows.timed, rows.times_us, np.iinfo(np.int64).min))
    columns = [pairs[:, 0], pairs[:, 1], counts, pa.array(newest, mask=newest == np.iinfo(np.int64).min)]
    return pa.RecordBatch.from_arrays([pa.array(column, pa.int64()) for column in columns], schema=_COUNTS)


def _name(code: int) -> str:
    known = {int(operation): operation.name.lower() for operation in Operation}
    return known.get(code, f"unknown ({code})")
