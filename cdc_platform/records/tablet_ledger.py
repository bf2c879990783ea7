"""The ledger of tablets: which change of a table's tablets comes next is one row, which one process wins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import NAMESPACE_URL, UUID, uuid5

import numpy as np
import pyarrow as pa

from cdc_platform import failpoints
from cdc_platform.clock import (
    Microseconds,
    Milliseconds,
    from_datetime,
    ms_from_datetime,
    ms_to_datetime,
    to_datetime,
    us_of,
)
from cdc_platform.errors import ConflictError
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import TABLET_LAYOUTS
from cdc_platform.records import cdc_tables, table_history, tablet_rows
from cdc_platform.records.tablet_rows import of_table
from cdc_platform.records.tablet_sets import stream_sets

CREATED, RESIZED, DROPPED = "created", "resized", "dropped"


@dataclass(frozen=True, eq=False)
class Layout:
    """The tablets of a table as one change left them: a row of `platform.tablet_layouts`.

    `timestamp_ms` is that of the stream set which belongs to them, None where the log was dropped. `last_tokens` is
    int64[n] ascending.
    """

    keyspace: str
    table: str
    number: int
    kind: str
    table_id: UUID
    timestamp_ms: Milliseconds | None
    last_tokens: np.ndarray
    decided_at_us: Microseconds

    @property
    def full_name(self) -> str:
        """`keyspace.table`."""
        return f"{self.keyspace}.{self.table}"


@dataclass(frozen=True)
class TabletChange:
    """What a change left: the table's newest set. `changed` is False where the tablets were like that already."""

    layout: Layout
    changed: bool


def layouts(lake: Lake, keyspace: str | None = None, table: str | None = None) -> list[Layout]:
    """The changes of one table's tablets, or of all tables', in the order in which they were decided."""
    where = None if keyspace is None or table is None else of_table(keyspace, table)
    rows = lake.read(TABLET_LAYOUTS, filters=where)
    ends = rows["last_tokens"]
    found = [
        Layout(
            row["keyspace_name"],
            row["table_name"],
            row["number"],
            row["kind"],
            UUID(row["table_id"]),
            None if row["timestamp"] is None else ms_from_datetime(row["timestamp"]),
            ends[at].values.to_numpy(),
            from_datetime(row["decided_at"]),
        )
        for at, row in enumerate(rows.drop_columns(["last_tokens"]).to_pylist())
    ]
    return sorted(found, key=lambda each: (each.keyspace, each.table, each.number))


def newest_layout(lake: Lake, keyspace: str, table: str) -> Layout | None:
    """The last change of a table's tablets; of a table whose sets another writer made, what its newest set says."""
    known = layouts(lake, keyspace, table)
    if known:
        return known[-1]
    times = tablet_rows.listed_times(lake, keyspace, table)
    if not times:
        return None
    sets = stream_sets(lake, keyspace, table)
    if not sets:
        return None
    newest, table_id = sets[-1], table_id_of(keyspace, table, 0)
    return Layout(keyspace, table, 0, CREATED, table_id, newest.timestamp_ms, newest.tokens, us_of(times[0]))


def table_id_of(keyspace: str, table: str, number: int) -> UUID:
    """The UUID of a log that comes into being by change `number` of its table."""
    return uuid5(NAMESPACE_URL, f"{keyspace}.{table}/{number}")


def unfinished(lake: Lake) -> list[Layout]:
    """The newest change of each table whose stream set is not there yet, or whose log is gone and not its sets."""
    known = layouts(lake)
    newest = {(each.keyspace, each.table): each for each in known}
    gone = {name for name, each in newest.items() if each.kind == DROPPED} | _let_go(lake, known)
    sets = tablet_rows.listed_sets(lake)
    left_over = {name for name, _ in sets} | tablet_rows.tables_with_streams(lake, [name for _, name in gone])
    left_over |= {(each.keyspace, each.table) for each in known if each.number < _number_of_drop(newest, each)}
    return [
        each
        for name, each in newest.items()
        if (name in left_over if name in gone else (name, each.timestamp_ms) not in sets)
    ]


def log_is_gone(lake: Lake, layout: Layout) -> bool:
    """Whether the log for which these tablets were noted has been dropped since, whatever was made after it."""
    name = (layout.keyspace, layout.table)
    return layout.kind == DROPPED or name in _let_go(lake, layouts(lake, *name) or [layout])


def live(lake: Lake, keyspace: str, table: str) -> Layout | None:
    """The tablets that the table has, None where it has none or its log was dropped."""
    newest = newest_layout(lake, keyspace, table)
    return None if newest is None or log_is_gone(lake, newest) else newest


def is_left(lake: Lake, newest: Layout) -> bool:
    """Whether anything of a table's sets is there still, or of the changes before its drop."""
    name = (newest.keyspace, newest.table)
    if name in tablet_rows.tables_with_streams(lake, [newest.table]) or tablet_rows.listed_times(lake, *name):
        return True
    return any(each.number < newest.number for each in layouts(lake, *name)) or newest.kind != DROPPED


def is_done(lake: Lake, layout: Layout) -> bool:
    """Whether a set is listed, or not to be listed any more because another change of its table came after it."""
    known = layouts(lake, layout.keyspace, layout.table)
    if known and known[-1].number != layout.number:
        return True
    return layout.timestamp_ms in tablet_rows.listed_times(lake, layout.keyspace, layout.table)


def decide(lake: Lake, wanted: Layout) -> TabletChange:
    """Make a change the next one of its table, unless another process's is: then that one, where it asks for the same.

    Raises:
        ConflictError: the other one asks for something else.
    """
    inserted = note(lake, wanted)
    failpoints.reached(failpoints.AFTER_TABLET_DECISION)
    if inserted:
        return TabletChange(wanted, changed=True)
    winners = [each for each in layouts(lake, wanted.keyspace, wanted.table) if each.number == wanted.number]
    if winners and (winners[0].kind, winners[0].last_tokens.tolist()) == (wanted.kind, wanted.last_tokens.tolist()):
        return TabletChange(winners[0], changed=True)
    raise ConflictError(
        f"{wanted.full_name} got other tablets from another process at the same moment; look at: cdc-platform tablets "
        f"show {wanted.full_name}, and run it again if that is not what you want"
    )


def note(lake: Lake, layout: Layout) -> bool:
    """Put a change into the ledger; whether it was not there, under its number, before."""
    return lake.merge(TABLET_LAYOUTS, rows_of([layout]), update=False).inserted > 0


def rows_of(changes: Sequence[Layout]) -> pa.Table:
    """Changes as rows of the ledger."""
    rows = [
        {
            "keyspace_name": layout.keyspace,
            "table_name": layout.table,
            "number": layout.number,
            "kind": layout.kind,
            "table_id": str(layout.table_id),
            "timestamp": None if layout.timestamp_ms is None else ms_to_datetime(layout.timestamp_ms),
            "last_tokens": pa.array(layout.last_tokens),
            "decided_at": to_datetime(layout.decided_at_us),
        }
        for layout in changes
    ]
    return pa.Table.from_pylist(rows, schema=TABLET_LAYOUTS.schema)


def _number_of_drop(newest: Mapping[tuple[str, str], Layout], each: Layout) -> int:
    """The number of the change that was the drop of a table's log; 0 where its newest change is none."""
    last = newest[each.keyspace, each.table]
    return last.number if last.kind == DROPPED else 0


def _let_go(lake: Lake, known: list[Layout]) -> set[tuple[str, str]]:
    """The tables whose newest log has been dropped after its tablets were noted. `known` are in their order."""
    made = {(each.keyspace, each.table): each.decided_at_us for each in known if each.kind == CREATED}
    return {
        name
        for change in cdc_tables.changes(lake)
        if (name := (change.keyspace_name, change.table_name)) in made
        and change.what == table_history.DROPPED
        and change.changed_at_us > made[name]
    }
