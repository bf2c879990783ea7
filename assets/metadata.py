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

from cdc_platform.delta import Lake, PartFiles, find_replaced_rows
from cdc_platform.home_location import local_state_folder
from cdc_platform.plots import ui_files
from cdc_platform_assets.data_versions import (
    KIND_METADATA_KEY,
    LINEAGE_METADATA_KEY,
    PartitionContent,
    build_content_metadata,
    find_last_write,
)
from cdc_platform_assets.specs import ColumnSources, build_column_lineage

MAX_PREVIEW_ROWS = 50
"""The most rows of a table in a materialization's metadata, because Dagster stores all of them forever."""


class Stopwatch:
    """Measures the seconds since its creation."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def seconds(self) -> float:
        """Return the seconds so far, rounded to the millisecond."""
        return round(time.perf_counter() - self._start, 3)


def build_materialize_result(
    lake: Lake,
    content: PartitionContent,
    *,
    rows: int,
    watch: Stopwatch,
    sources: ColumnSources = MappingProxyType({}),
    metadata: Mapping[str, Any] | None = None,
) -> MaterializeResult:
    """Build the result of a step that wrote this content and processed `rows` rows.

    Its kind is python unless `metadata` has another.
    """
    described: dict[str, Any] = {
        "dagster/row_count": rows,
        **({LINEAGE_METADATA_KEY: build_column_lineage(sources)} if sources else {}),
        KIND_METADATA_KEY: "python",
        **build_content_metadata(content, find_last_write(lake, content.part)),
        "seconds": MetadataValue.float(watch.seconds()),
        **(metadata or {}),
    }
    return MaterializeResult(metadata=described, data_version=DataVersion(content.version))


def build_replaced_metadata(lake: Lake, before: PartFiles | None) -> dict[str, Any]:
    """Return metadata of the rows that a step replaced: their number and keys, and the foreign commits behind them.

    The same rows written again, or a part without rows before (None), replace nothing and give no metadata.
    """
    replaced = None if before is None else find_replaced_rows(lake, before)
    if replaced is None or replaced.rows == 0:
        return {}
    keys = replaced.keys
    return {
        "replaced_rows": replaced.unread if replaced.rows is None else replaced.rows,
        **({"replaced_keys": build_rows_preview([*keys[0]], ([*row.values()] for row in keys))} if keys else {}),
        **({"replaced_foreign_commits": "; ".join(replaced.commits)} if replaced.commits else {}),
    }


def build_plot_metadata(lake: Lake, png: bytes, title: str) -> MarkdownMetadataValue:
    """Store a plot in the home and return Markdown that shows it in the UI of `cdc-platform up` and names its file."""
    stored = ui_files.store_plot(local_state_folder(lake.location.folder), png)
    return MetadataValue.md(f"![{title}]({stored.address})\n\n`{stored.file}`")


def build_rows_preview(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> TableMetadataValue:
    """Return the first rows as a table. Integers become text, because tokens exceed the numbers of a browser."""
    records = [
        TableRecord({name: _preview_cell(value) for name, value in zip(columns, row, strict=True)})
        for row in islice(rows, MAX_PREVIEW_ROWS)
    ]
    return MetadataValue.table(records, TableSchema(columns=[TableColumn(name) for name in columns]))


def _preview_cell(value: Any) -> str | float | bool:
    if isinstance(value, bytes):
        return value.hex()
    return value if isinstance(value, (bool, float)) else str(value)
