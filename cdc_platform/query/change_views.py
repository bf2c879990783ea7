"""Rows of the views of changes: the log of a table joined when a query reads it, part by part in memory."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from cdc_platform.cdclog import WRITTEN_AT, changes_from_log
from cdc_platform.clock import Microseconds, datetime_from_us
from cdc_platform.query.names import QuerySource

if TYPE_CHECKING:
    from pathlib import Path

    from pyarrow import dataset as arrow_dataset

ROWS_AT_ONCE = 500_000
"""Approximate number of log rows that are joined at once."""


def iter_changes(source: QuerySource) -> Iterator[pa.Table]:
    """Yield the changes of a view in the order of time; a batch of the log is never divided.

    Raises:
        InputError: a row of the log is not valid, or a batch is incomplete.
    """
    import pyarrow.dataset as arrow

    assert source.view is not None
    if source.snapshot is None:
        return
    dataset = source.snapshot.dataset()
    for low, high in _time_parts(dataset):
        condition = (arrow.field(WRITTEN_AT) >= low) & (arrow.field(WRITTEN_AT) <= high)
        rows = dataset.to_table(filter=condition)
        yield changes_from_log(source.view.schema, rows, source.view.images)


def write_change_dataset(source: QuerySource, folder: Path) -> arrow_dataset.Dataset:
    """Return the changes of a view as a dataset that can be scanned any number of times, in a file in `folder`."""
    import pyarrow.dataset as arrow
    from pyarrow.parquet import ParquetWriter

    file = folder / "changes.parquet"
    with ParquetWriter(file, source.schema, compression="zstd") as writer:
        for changes in iter_changes(source):
            writer.write_table(changes)
    return arrow.dataset(file, source.schema)


def _time_parts(dataset: arrow_dataset.Dataset) -> list[tuple[datetime, datetime]]:
    """Return the first and last time of parts of about `ROWS_AT_ONCE` rows; rows of one time are in one part."""
    times = np.sort(np.asarray(dataset.to_table([WRITTEN_AT])[WRITTEN_AT].cast(pa.int64())))
    parts: list[tuple[datetime, datetime]] = []
    first = 0
    while first < len(times):
        last = int(np.searchsorted(times, times[min(first + ROWS_AT_ONCE, len(times)) - 1], side="right"))
        low, high = (datetime_from_us(Microseconds(int(at))) for at in times[[first, last - 1]])
        parts.append((low, high))
        first = last
    return parts
