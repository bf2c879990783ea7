"""What a materialisation tells: rows, Delta version, seconds, lineage, pictures, a few rows; all of it bounded.

The Delta version is the data version too, so that Dagster's lineage and Delta's history are one story.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from dagster import (
    DataVersion,
    MarkdownMetadataValue,
    MaterializeResult,
    MetadataValue,
    TableColumn,
    TableMetadataValue,
    TableRecord,
    TableSchema,
)

from assets.declared import Sources, column_lineage

MOST_ROWS = 50
"""No table in a materialisation's metadata has more rows: Dagster keeps every one of them for good."""


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def seconds(self) -> float:
        """Seconds so far, to the millisecond."""
        return round(time.perf_counter() - self._start, 3)


def materialized(
    version: int | None, *, rows: int, watch: Stopwatch, sources: Sources, told: Mapping[str, Any] | None = None
) -> MaterializeResult:
    """The result of a step that left `rows` rows of its generation in a table of this Delta version."""
    metadata: dict[str, Any] = {
        "dagster/row_count": rows,
        "dagster/column_lineage": column_lineage(sources),
        "delta_version": MetadataValue.int(-1 if version is None else version),
        "seconds": MetadataValue.float(watch.seconds()),
        **(told or {}),
    }
    return MaterializeResult(metadata=metadata, data_version=DataVersion(str(version)))


def picture(png: bytes, title: str) -> MarkdownMetadataValue:
    """A picture that the UI shows in place."""
    return MetadataValue.md(f"![{title}](data:image/png;base64,{base64.b64encode(png).decode()})")


def few_rows(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> TableMetadataValue:
    """The first rows as a table. Whole numbers become text: tokens are more than a browser's numbers can hold."""
    records = [
        TableRecord({name: _cell(value) for name, value in zip(columns, row, strict=True)})
        for row in islice(rows, MOST_ROWS)
    ]
    return MetadataValue.table(records, TableSchema(columns=[TableColumn(name) for name in columns]))


def _cell(value: Any) -> str | float | bool:
    return value if isinstance(value, (bool, float)) else str(value)
