"""Every write to a generation: the commits that changed its rows in any table, with who, by what door, which run."""

from __future__ import annotations

from typing import Any

from cdc_platform.clock import format_ms
from cdc_platform.lake import digests, provenance
from cdc_platform.lake.commits import Commit
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.provenance import Where
from cdc_platform.lake.tables import Table
from cdc_platform.timeline.parts import Names


def writes_of(lake: Lake, names: Names) -> list[dict[str, Any]]:
    """The writes in plain values, oldest first, as far back as logs and files go.

    Beside what `told` says of the commit: `digest`, what the slice holds after it (the whole table where it has no
    slices), as the commit says; None where it says nothing.
    """
    told = []
    for part in names.parts():
        for change in provenance.changes(lake, part.table, part.where):
            line = told_of(part.table, change.commit, change.written, change.removed)
            told.append(line | {"digest": _said(change.commit, part.table, part.where)})
    return sorted(told, key=order)


def told_of(table: Table, commit: Commit, written: int | None, removed: int) -> dict[str, Any]:
    """A commit and how many rows it wrote or removed, in plain values."""
    said = commit.envelope
    door, command = ("", "") if said is None else (said.speaker.door, said.speaker.command)
    return {
        "at": None if commit.at_ms is None else format_ms(commit.at_ms),
        "table": table.full_name,
        "version": commit.version,
        "what": "removed" if removed and not written else "written",
        "rows": removed if removed and not written else written,
        "who": "unknown" if said is None else said.user,
        "by": " ".join(filter(None, (door, command))) or commit.engine,
        "run": None if said is None else said.speaker.run or None,
        "commit": None if said is None else said.id,
        "program": None if said is None else said.program,
    }


def order(row: dict[str, Any]) -> tuple[str, str, int]:
    """By what writes are sorted: time, table, version."""
    return (row["at"] or "", row["table"], row["version"])


def _said(commit: Commit, table: Table, where: Where) -> str | None:
    said = {} if commit.envelope is None else commit.envelope.digests
    columns = tuple(where) if set(where) == set(table.partition_by) else ()
    found = said.get(digests.slice_of(columns, where))
    return None if found is None else f"{found:032x}"
