"""The demo's act of the CDC log: the same table is written before and after a switch, and its log rows are kept.

It knows the two scripts and their clocks; statements, streams and log rows are `log`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from cdc_platform.clock import SECOND_US, Clock, Microseconds
from cdc_platform.errors import StateError

if TYPE_CHECKING:
    from pathlib import Path

    from cdc_platform.cql.schema import TableSchema
    from cdc_platform.lake.lake import Lake
    from cdc_platform.log.scripts.outcomes import Outcome, TouchedTable
    from cdc_platform.settings import Settings

CARTS = "demo.carts"
SCRIPTS = ("before_switch.cql", "after_switch.cql")
_HALF_A_MINUTE_US = SECOND_US * 30


@dataclass(frozen=True)
class LoggedRow:
    """A log row as the lake has it, and the statement that left it; `stream_id` has 16 bytes."""

    statement: str
    operation: int
    stream_id: bytes


@dataclass(frozen=True)
class Logged:
    """The act's log rows in the order of their writes; the base table, and the same rebuilt from those rows alone."""

    rows: Sequence[LoggedRow]
    base: list[dict[str, object]]
    replayed: list[dict[str, object]]


def script(name: str) -> Path:
    """Where one of the `SCRIPTS` is."""
    from pathlib import Path

    return Path(str(files("cdc_platform") / "data" / "carts" / name))


def play(lake: Lake, settings: Settings, switch_us: Microseconds) -> None:
    """Keep both scripts, half a minute before and after a switch (µs).

    Raises:
        StateError: a statement was wrong or refused, say because of another table of that name.
    """
    from cdc_platform.lake.tables import KEPT_SCRIPTS
    from cdc_platform.log.scripts.keeping import keep

    noted = {row["text"]: row["finished_at"] for row in lake.read(KEPT_SCRIPTS, ["text", "finished_at"]).to_pylist()}
    for text, clock in _scripts(switch_us):
        if text not in noted:
            _insist(keep(text, lake, clock, settings).outcomes)
        elif noted[text] is None:
            keep("", lake, clock, settings)  # finishes what was noted before it


def logged(lake: Lake, settings: Settings, switch_us: Microseconds) -> Logged | None:
    """What the lake's log has of the scripts, beside what their statements come to; None where the table is gone."""
    from cdc_platform.cql.base_table import BaseTable
    from cdc_platform.errors import NotFound
    from cdc_platform.log.replay.partitions import replay
    from cdc_platform.records import cdc_tables

    try:
        cdc_tables.find(lake, *CARTS.split("."))
    except NotFound:
        return None
    schema, statements, table = _rehearsed(lake, settings, switch_us)
    stored = [row for row in _stored(lake, schema) if _name(row) in statements]
    stored.sort(key=lambda row: list(statements).index(_name(row)))
    rows = [LoggedRow(statements[_name(row)], row["cdc$operation"], row["cdc$stream_id"]) for row in stored]
    return Logged(rows, table.base, BaseTable(schema, replay(schema, stored)).rows())


def _scripts(switch_us: Microseconds) -> Iterator[tuple[str, Clock]]:
    for name, apart in zip(SCRIPTS, (-_HALF_A_MINUTE_US, _HALF_A_MINUTE_US), strict=True):
        yield script(name).read_text(encoding="utf-8"), Clock(switch_us + apart)


def _rehearsed(
    lake: Lake, settings: Settings, switch_us: Microseconds
) -> tuple[TableSchema, dict[tuple[str, int], str], TouchedTable]:
    """Both scripts in the process, from nothing: the table, the statement of every log row, the table's rows."""
    from cdc_platform.cql.parser import parse
    from cdc_platform.log.scripts.script import Kept, Script
    from cdc_platform.log.state.kept import state_of_rows

    (before, at), (after, later) = _scripts(switch_us)
    first = Script(lake, settings, at.now_us())
    outcomes = [*first.run(parse(before)).outcomes]
    told = Kept(first.catalog, lambda schema: state_of_rows(schema, first.written[schema.full_name]))
    second = Script(lake, settings, later.now_us(), told)
    result = second.run(parse(after))
    outcomes += result.outcomes
    _insist(outcomes)
    statements = {_name(row): outcome.statement.text for outcome in outcomes for row in outcome.rows}
    schema = next(table for table in second.catalog.tables() if table.full_name == CARTS)
    return schema, statements, next(table for table in result.tables if table.name == CARTS)


def _stored(lake: Lake, schema: TableSchema) -> Iterator[dict[str, Any]]:
    from cdc_platform.log.log_table import log_table
    from cdc_platform.log.log_values import table_rows

    yield from table_rows(schema, lake.read(log_table(schema)))


def _name(row: dict[str, Any]) -> tuple[str, int]:
    """What tells a row of this log from all others."""
    return str(row["cdc$time"]), row["cdc$batch_seq_no"]


def _insist(outcomes: Sequence[Outcome]) -> None:
    for outcome in outcomes:
        if outcome.error is not None:
            raise StateError(f"the demo's statement {outcome.statement.text!r} did not succeed: {outcome.error}")
