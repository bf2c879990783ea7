"""Rows of the views of changes and of items: made from the log or the replica of a table when a query reads them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from cdc_platform.cdclog import WRITTEN_AT, changes_from_log, items_from_rows
from cdc_platform.clock import Microseconds, datetime_from_us
from cdc_platform.query.names import ChangeView, QuerySource

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

    assert isinstance(source.view, ChangeView)
    if source.snapshot is None:
        return
    dataset = source.snapshot.dataset()
    for low, high in _time_parts(dataset):
        condition = (arrow.field(WRITTEN_AT) >= low) & (arrow.field(WRITTEN_AT) <= high)
        rows = dataset.to_table(filter=condition)
        yield changes_from_log(source.view.schema, rows, source.view.images)


def iter_view_rows(source: QuerySource) -> Iterator[pa.Table]:
    """Yield the rows of a view: changes in the order of time, or items in no order.

    Raises:
        InputError: a row of the log is not valid, or a batch is incomplete.
    """
    if isinstance(source.view, ChangeView):
        yield from iter_changes(source)
    elif source.snapshot is not None:
        assert source.view is not None
        for batch in source.snapshot.dataset().to_batches(batch_size=ROWS_AT_ONCE):
            yield items_from_rows(source.view.schema, pa.Table.from_batches([batch]))


def write_view_dataset(source: QuerySource, folder: Path) -> arrow_dataset.Dataset:
    """Return the rows of a view as a dataset that can be scanned any number of times, in a file in `folder`."""
    import pyarrow.dataset as arrow
    from pyarrow.parquet import ParquetWriter

    file = folder / "changes.parquet"
    with ParquetWriter(file, source.schema, compression="zstd") as writer:
        for rows in iter_view_rows(source):
            writer.write_table(rows)
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
