"""The plan of an import: the rows that it writes, checked against the lake before any write, and what it reports.

`planner` fills the plan with one function per kind of metadata.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from cdc_platform.clock import Milliseconds, format_ms
from cdc_platform.errors import InputError
from cdc_platform.importing.formats.exports import ClusterExports
from cdc_platform.importing.import_issues import ImportIssues
from cdc_platform.importing.range_rows import OrderedRangeRows
from cdc_platform.metastore import cdc_tables
from cdc_platform.tables import UNORDERED_RANGES, Table

OTHER_HOME = "import it into another --home"
_MAX_SHOWN = 5


@dataclass(frozen=True)
class ImportedStreamSet:
    """One stream set of an import with its numbers of streams. `new`: the lake did not have it before the import."""

    table: str
    time_ms: Milliseconds
    streams: int
    closed: int
    opened: int
    new: bool


@dataclass
class ImportPlan:
    """Everything that the import writes of `exports`.

    `ids` maps times (ms) to generations that were identified by equal streams. `marks` are rows of ranges whose streams
    have no known order; `unmarked` are the ranges (table, generation, range ends) whose order is known now.
    """

    exports: ClusterExports
    issues: ImportIssues
    descriptions: dict[str, OrderedRangeRows] = field(default_factory=dict)
    streams: dict[Milliseconds, OrderedRangeRows] = field(default_factory=dict)
    ids: dict[Milliseconds, str] = field(default_factory=dict)
    rows: list[tuple[Table, pa.Table]] = field(default_factory=list)
    marks: list[pa.Table] = field(default_factory=list)
    unmarked: list[tuple[Table, str, list[int]]] = field(default_factory=list)
    table_changes: list[cdc_tables.TableChangeRequest] = field(default_factory=list)
    stream_sets: list[ImportedStreamSet] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def write(self, table: Table, rows: pa.Table | Sequence[Mapping[str, Any]]) -> None:
        """Plan rows of a table; no rows are planned if there are none."""
        if isinstance(rows, pa.Table):
            self.rows.append((table, rows))
        elif rows:
            self.rows.append((table, pa.Table.from_pylist([dict(row) for row in rows], schema=table.schema)))

    def mark_unordered(self, table: Table, generation: str, reasons: Mapping[int, str]) -> None:
        """Plan marks for the ranges of a generation (by range end) whose streams have no known order."""
        rows = [
            {"table_name": table.full_name, "generation": generation, "range_end": end, "reason": reason}
            for end, reason in reasons.items()
        ]
        if rows:
            self.marks.append(pa.Table.from_pylist(rows, schema=UNORDERED_RANGES.schema))


def contradiction(source: str, what: str) -> InputError:
    """Return the error for an export that differs from the lake about a generation."""
    return InputError(f"{source}: {what} differs from the lake, and a generation never changes; {OTHER_HOME}")


def format_times(times: Sequence[Milliseconds]) -> str:
    """Format the first times (ms), and the number of those omitted."""
    omitted = f" and {len(times) - _MAX_SHOWN} more" if len(times) > _MAX_SHOWN else ""
    return ", ".join(map(format_ms, times[:_MAX_SHOWN])) + omitted
