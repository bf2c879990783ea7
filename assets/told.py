"""What a materialisation tells: rows, commit, digest, seconds, lineage, pictures, a few rows; all of it bounded.

The digest of what a part of a table holds is the data version: the same rows again make nothing stale. The commit is
the one that wrote them, with who made it, so that Dagster's lineage and Delta's history are one story.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
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
from assets.events import Content, told_of, written
from cdc_platform import shown
from cdc_platform.home import state_folder
from cdc_platform.lake.lake import Lake

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
    lake: Lake,
    content: Content,
    *,
    rows: int,
    watch: Stopwatch,
    sources: Sources = MappingProxyType({}),
    told: Mapping[str, Any] | None = None,
) -> MaterializeResult:
    """The result of a step that left this content, for which it speaks of `rows` rows."""
    metadata: dict[str, Any] = {
        "dagster/row_count": rows,
        "dagster/column_lineage": column_lineage(sources),
        **told_of(content, written(lake, content.part)),
        "seconds": MetadataValue.float(watch.seconds()),
        **(told or {}),
    }
    return MaterializeResult(metadata=metadata, data_version=DataVersion(content.version))


def picture(lake: Lake, png: bytes, title: str) -> MarkdownMetadataValue:
    """A picture that the UI of `cdc-platform up` shows; it is kept in the home, and the event names it."""
    kept = shown.picture(state_folder(lake.place.folder), png)
    return MetadataValue.md(f"![{title}]({kept.address})\n\n`{kept.file}`")


def few_rows(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> TableMetadataValue:
    """The first rows as a table. Whole numbers become text: tokens are more than a browser's numbers can hold."""
    records = [
        TableRecord({name: _cell(value) for name, value in zip(columns, row, strict=True)})
        for row in islice(rows, MOST_ROWS)
    ]
    return MetadataValue.table(records, TableSchema(columns=[TableColumn(name) for name in columns]))


def _cell(value: Any) -> str | float | bool:
    return value if isinstance(value, (bool, float)) else str(value)
