"""Metadata of materializations: rows, commit, digest, duration, lineage, plots and previews, all of bounded size."""

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

from assets.data_versions import PartitionContent, build_content_metadata, find_last_write
from assets.specs import ColumnSources, build_column_lineage
from cdc_platform.delta import Lake
from cdc_platform.home import local_state_folder
from cdc_platform.plots import ui_files

MAX_PREVIEW_ROWS = 50
"""No table in a materialisation's metadata has more rows: Dagster keeps every one of them for good."""


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def seconds(self) -> float:
        """Seconds so far, to the millisecond."""
        return round(time.perf_counter() - self._start, 3)


def build_materialize_result(
    lake: Lake,
    content: PartitionContent,
    *,
    rows: int,
    watch: Stopwatch,
    sources: ColumnSources = MappingProxyType({}),
    told: Mapping[str, Any] | None = None,
) -> MaterializeResult:
    """The result of a step that left this content, for which it speaks of `rows` rows."""
    metadata: dict[str, Any] = {
        "dagster/row_count": rows,
        "dagster/column_lineage": build_column_lineage(sources),
        **build_content_metadata(content, find_last_write(lake, content.part)),
        "seconds": MetadataValue.float(watch.seconds()),
        **(told or {}),
    }
    return MaterializeResult(metadata=metadata, data_version=DataVersion(content.version))


def build_plot_metadata(lake: Lake, png: bytes, title: str) -> MarkdownMetadataValue:
    """A picture that the UI of `cdc-platform up` shows; it is kept in the home, and the event names it."""
    kept = ui_files.store_plot(local_state_folder(lake.place.folder), png)
    return MetadataValue.md(f"![{title}]({kept.address})\n\n`{kept.file}`")


def build_rows_preview(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> TableMetadataValue:
    """The first rows as a table. Whole numbers become text: tokens are more than a browser's numbers can hold."""
    records = [
        TableRecord({name: _preview_cell(value) for name, value in zip(columns, row, strict=True)})
        for row in islice(rows, MAX_PREVIEW_ROWS)
    ]
    return MetadataValue.table(records, TableSchema(columns=[TableColumn(name) for name in columns]))


def _preview_cell(value: Any) -> str | float | bool:
    return value if isinstance(value, (bool, float)) else str(value)
