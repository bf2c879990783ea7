"""Acts of the demo: its joins, an old cluster's generations until expiry, tablets, and a CDC log around a switch.

Each act runs on stopped clocks, without Spark. The old cluster has its own home inside the demo's, because its
generations would otherwise precede the first join's.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from cdc_platform.clock import (
    DAY_MS,
    DAY_SECONDS,
    HOUR_MS,
    MINUTE_US,
    SECOND_US,
    Clock,
    Microseconds,
    Milliseconds,
    datetime_from_ms,
    format_ms,
    ms_from_us,
    us_from_ms,
)
from cdc_platform.errors import ClockRefused, StateError

if TYPE_CHECKING:
    from pathlib import Path

    from cdc_platform.cdclog import StatementOutcome, TouchedTable
    from cdc_platform.cql import TableSchema
    from cdc_platform.delta import Lake
    from cdc_platform.generations import TopologyDescription
    from cdc_platform.home_location import HomeLocation
    from cdc_platform.lifecycle import RewriteDecision
    from cdc_platform.metastore import BootstrapEvent
    from cdc_platform.ring import Node
    from cdc_platform.settings import Settings


@dataclass(frozen=True)
class DemoJoin:
    """One join of the demo. `checks` maps an invariant to how many items it checked; empty if nothing had to run."""

    event: BootstrapEvent
    seconds: float | None = None
    checks: Mapping[str, int] = field(default_factory=dict)


def get_log_switch_us(lake: Lake, joins: Sequence[DemoJoin]) -> Microseconds:
    """Return the switch (µs) around which the demo writes to a table: the one that moves keys to the second node."""
    return us_from_ms(get_join_time_ms(lake, joins[1]))


def get_join_time_ms(lake: Lake, join: DemoJoin) -> Milliseconds:
    """Return the timestamp (ms) of a finished join's generation.

    Raises:
        StateError: the join is not finished.
    """
    from cdc_platform.metastore import generations

    time_ms = generations.read_generation_time_ms(lake, join.event.generation_id)
    if time_ms is None:
        raise StateError(f"the join of {join.event.node.address} is not finished; run the demo again")
    return time_ms


OLD_HOME = "old_cluster"
"""The folder of the old cluster's home, in the home of the demo."""
ORDERS = ("demo", "orders")
"""The old cluster's table with CDC."""
ORDERS_TTL_SECONDS = DAY_SECONDS
SESSIONS = ("demo", "sessions")
"""The tablet-based table."""
FIRST_TABLETS, LATER_TABLETS = 2, 4
# With a TTL of a day: the first was superseded long before the upgrade, the second a few hours before it.
_JOIN_AGES_MS = (DAY_MS * 30, DAY_MS * 9, DAY_MS * 2)
_UPGRADED_AFTER_MS = HOUR_MS * 4
_SPLIT_AFTER_US = MINUTE_US


@dataclass(frozen=True)
class OldCluster:
    """The final state of the old cluster. `decided` has the rewrite's decisions; empty if an earlier run made them."""

    home: HomeLocation
    lake: Lake
    clock: Clock
    decided: Sequence[RewriteDecision] = ()


def play_old_cluster(home: HomeLocation, events: Sequence[BootstrapEvent]) -> OldCluster:
    """Simulate an old cluster: nodes join in the V1 format, are upgraded, rewrite their generations and expire one.

    All times derive from the demo's first run, so that another run can finish one that died. Expiry removes nothing if
    the clock is ahead of this machine's, and the demo is no exception.
    """
    from cdc_platform.delta import Lake
    from cdc_platform.home_location import open_home_location
    from cdc_platform.lifecycle import expiry, rewrite
    from cdc_platform.metastore import cdc_local

    old = open_home_location(home.path / OLD_HOME)
    lake, settings = Lake(old.lake), old.settings
    now_ms = ms_from_us(events[0].created_at_us)
    times = [now_ms - ago for ago in _JOIN_AGES_MS]
    decided: Sequence[RewriteDecision] = ()
    if not cdc_local.hosts_with_rewrite_marker(lake):
        _write_first_format(lake, events, times)
        upgraded = Clock(us_from_ms(times[-1] + _UPGRADED_AFTER_MS))
        decided = rewrite.rewrite_streams_tables(lake, upgraded, settings).decisions
    clock = Clock(us_from_ms(now_ms))
    if _is_expiry_due(lake, times[0]):
        # One run marks, and another run, a grace time later, removes.
        with suppress(ClockRefused):
            for run in (Clock(us_from_ms(now_ms - settings.expiry_grace_ms)), clock):
                expiry.expire_generations(lake, run, settings)
    return OldCluster(old, lake, clock, decided)


def play_tablets(lake: Lake, settings: Settings, events: Sequence[BootstrapEvent]) -> None:
    """Create the tablet-based table and split its tablets a minute later. Later changes of the table stay."""
    from cdc_platform.generations import uniform_tablet_ends
    from cdc_platform.lifecycle import tablets
    from cdc_platform.metastore import tablets as metastore_tablets

    created_us = events[0].created_at_us
    newest = metastore_tablets.read_newest_layout(lake, *SESSIONS)
    if newest is None:
        tablets.create_tablets(lake, Clock(created_us), settings, *SESSIONS, uniform_tablet_ends(FIRST_TABLETS))
    if newest is None or newest.kind == metastore_tablets.LAYOUT_CREATED:
        tablets.split_tablets(lake, Clock(created_us + _SPLIT_AFTER_US), settings, *SESSIONS, LATER_TABLETS)
    tablets.finish_tablet_change(lake, Clock(created_us + _SPLIT_AFTER_US), *SESSIONS)


def _write_first_format(lake: Lake, events: Sequence[BootstrapEvent], times: Sequence[Milliseconds]) -> None:
    """Write what old servers leave: a generation per join in both V1 tables, the nodes, and their newest generation."""
    import pyarrow as pa

    from cdc_platform.generations import GenerationId, RingLayout, generate_description, limit_streams_for_v1
    from cdc_platform.metastore import STATUS_NORMAL, cdc_local, cdc_tables, generations, write_nodes
    from cdc_platform.ring import Ring
    from cdc_platform.tables import GENERATION_DESCRIPTIONS, STREAMS_DESCRIPTIONS

    nodes: list[Node] = [replace(event.node, status=STATUS_NORMAL) for event in events]
    cdc_tables.add_cdc_table(
        lake, Clock(us_from_ms(times[0])), *ORDERS, ttl_seconds=ORDERS_TTL_SECONDS, created_at_ms=times[0]
    )
    for count, time_ms in enumerate(times, 1):
        layout = limit_streams_for_v1(RingLayout.of(Ring.of(nodes[:count])))
        description = generate_description(layout, uuid.uuid5(nodes[count - 1].host_id, format_ms(time_ms)))
        lake.merge(GENERATION_DESCRIPTIONS, generations.v1_cell_row(time_ms, description), update=False)
        row = {"time": datetime_from_ms(time_ms), "streams": _as_cql_set(description), "expired": None}
        rows = pa.Table.from_pylist([row], schema=STREAMS_DESCRIPTIONS.schema)
        lake.merge(STREAMS_DESCRIPTIONS, rows, update=False)
    cdc_local.store_first_generation_ids(lake, [node.host_id for node in nodes], GenerationId(times[-1]))
    write_nodes(lake, nodes, update=False)


def _as_cql_set(description: TopologyDescription) -> list[bytes]:
    """Return all streams as a CQL set of blobs: sorted by bytes, so that ranges and shards are lost."""
    return sorted(stream.tobytes() for stream in description.streams)


def _is_expiry_due(lake: Lake, oldest_ms: Milliseconds) -> bool:
    """Return True if the demo's removal has not run, or has not finished."""
    from cdc_platform.lifecycle import expiry
    from cdc_platform.metastore import generations

    return oldest_ms not in generations.read_removals(lake) or bool(expiry.read_unfinished_removals(lake))


CARTS_TABLE = "demo.carts"
CARTS_SCRIPTS = ("before_switch.cql", "after_switch.cql")
_HALF_A_MINUTE_US = SECOND_US * 30


@dataclass(frozen=True)
class DemoLogRow:
    """A log row of the lake and the statement that wrote it. `stream_id` has 16 bytes."""

    statement: str
    operation: int
    stream_id: bytes


@dataclass(frozen=True)
class DemoLog:
    """The act's log rows in write order, the base table, and the table rebuilt from those rows alone."""

    rows: Sequence[DemoLogRow]
    base: list[dict[str, object]]
    replayed: list[dict[str, object]]


def get_script_path(name: str) -> Path:
    """Return the path of one of the `CARTS_SCRIPTS`."""
    from pathlib import Path

    return Path(str(files("cdc_platform") / "data" / "carts" / name))


def play_log(lake: Lake, settings: Settings, switch_us: Microseconds) -> None:
    """Commit both scripts, half a minute before and half a minute after a switch (µs).

    Raises:
        StateError: a statement failed or was refused, for example because another table has the name.
    """
    from cdc_platform.cdclog import commit_script
    from cdc_platform.tables import KEPT_SCRIPTS

    noted = {row["text"]: row["finished_at"] for row in lake.read(KEPT_SCRIPTS, ["text", "finished_at"]).to_pylist()}
    for text, clock in _scripts(switch_us):
        if text not in noted:
            _assert_succeeded(commit_script(text, lake, clock, settings).outcomes)
        elif noted[text] is None:
            commit_script("", lake, clock, settings)  # finishes the script that was noted before


def read_demo_log(lake: Lake, settings: Settings, switch_us: Microseconds) -> DemoLog | None:
    """Return the scripts' stored log rows and the resulting tables, or None if the table was dropped."""
    from cdc_platform.cdclog import replay_log
    from cdc_platform.cql import BaseTable
    from cdc_platform.errors import NotFound
    from cdc_platform.metastore import cdc_tables

    try:
        cdc_tables.find_cdc_table(lake, *CARTS_TABLE.split("."))
    except NotFound:
        return None
    schema, statements, table = _rehearse_scripts(lake, settings, switch_us)
    stored = [row for row in _stored_log_rows(lake, schema) if _row_key(row) in statements]
    stored.sort(key=lambda row: list(statements).index(_row_key(row)))
    rows = [DemoLogRow(statements[_row_key(row)], row["cdc$operation"], row["cdc$stream_id"]) for row in stored]
    return DemoLog(rows, table.base, BaseTable(schema, replay_log(schema, stored)).rows())


def _scripts(switch_us: Microseconds) -> Iterator[tuple[str, Clock]]:
    for name, apart in zip(CARTS_SCRIPTS, (-_HALF_A_MINUTE_US, _HALF_A_MINUTE_US), strict=True):
        yield get_script_path(name).read_text(encoding="utf-8"), Clock(switch_us + apart)


def _rehearse_scripts(
    lake: Lake, settings: Settings, switch_us: Microseconds
) -> tuple[TableSchema, dict[tuple[str, int], str], TouchedTable]:
    """Run both scripts in memory from an empty state. Return the schema, each log row's statement, and the table."""
    from cdc_platform.cdclog import Script, StoredTables, state_from_rows
    from cdc_platform.cql import parse_statements

    (before, at), (after, later) = _scripts(switch_us)
    first = Script(lake, settings, at.now_us())
    outcomes = [*first.run(parse_statements(before)).outcomes]
    stored_tables = StoredTables(first.catalog, lambda schema: state_from_rows(schema, first.written[schema.full_name]))
    second = Script(lake, settings, later.now_us(), stored_tables)
    result = second.run(parse_statements(after))
    outcomes += result.outcomes
    _assert_succeeded(outcomes)
    statements = {_row_key(row): outcome.statement.text for outcome in outcomes for row in outcome.rows}
    schema = next(table for table in second.catalog.tables() if table.full_name == CARTS_TABLE)
    return schema, statements, next(table for table in result.tables if table.name == CARTS_TABLE)


def _stored_log_rows(lake: Lake, schema: TableSchema) -> Iterator[dict[str, Any]]:
    from cdc_platform.cdclog import log_rows_from_arrow, log_table

    yield from log_rows_from_arrow(schema, lake.read(log_table(schema)))


def _row_key(row: dict[str, Any]) -> tuple[str, int]:
    """Return the key that identifies a row within this log."""
    return str(row["cdc$time"]), row["cdc$batch_seq_no"]


def _assert_succeeded(outcomes: Sequence[StatementOutcome]) -> None:
    for outcome in outcomes:
        if outcome.error is not None:
            raise StateError(f"the demo's statement {outcome.statement.text!r} did not succeed: {outcome.error}")
