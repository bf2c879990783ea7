"""Report of the demo: joins, audits, stream assignments around each switch, the other acts, commands to try."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cdc_platform.cli.commands import PROGRAM_NAME
from cdc_platform.cli.demo_acts import get_join_time_ms, get_log_switch_us
from cdc_platform.cli.output import write_table
from cdc_platform.clock import SECOND_US, Microseconds, format_ms, ms_from_datetime, ms_from_us, us_from_ms
from cdc_platform.errors import StateError

if TYPE_CHECKING:
    from cdc_platform.cli.demo_acts import DemoJoin, OldCluster
    from cdc_platform.delta import Lake
    from cdc_platform.settings import Settings
    from cdc_platform.timeline import VnodeExplanation

EXAMPLE_KEYS = ("alice", "bob", "judy")
"""Partition keys whose owners change with the second join, with both, and with none."""
_SWITCH_MOMENTS: tuple[tuple[str, Microseconds, Microseconds], ...] = (
    ("1 s before", -SECOND_US, -SECOND_US),
    ("at the switch", Microseconds(0), Microseconds(0)),
    ("1 s after", SECOND_US, SECOND_US),
    ("2 s late", SECOND_US, -SECOND_US),
)
"""Rows for each switch: the moment, the coordinator's clock and the write's timestamp (both µs after the switch)."""


def write_demo_report(
    lake: Lake, settings: Settings, joins: Sequence[DemoJoin], old: OldCluster, home: str | None
) -> None:
    """Print the report. `home` is the option as given, for use in the commands to try."""
    _write_joins(lake, joins)
    _write_audits(joins)
    _write_switches(lake, settings, joins)
    _write_log(lake, settings, joins)
    _write_rewrite(old)
    _write_expiry(old)
    _write_tablets(lake)
    _write_commands_to_try(home)


def _write_joins(lake: Lake, joins: Sequence[DemoJoin]) -> None:
    from cdc_platform.metastore import generations

    rows = []
    for join in joins:
        description = generations.read_v2_description(lake, join.event.generation_id)
        rows.append(
            (
                join.event.node.address,
                join.event.generation_id,
                format_ms(get_join_time_ms(lake, join)),
                f"{len(description):,}",
                f"{len(description.streams):,}",
                f"{join.seconds:.1f}" if join.seconds is not None else "finished before",
            )
        )
    columns = ("node", "generation", "operates from", ">ranges", ">streams", ">seconds")
    write_table("Three nodes joined. Each join created a generation", columns, rows)


def _write_audits(joins: Sequence[DemoJoin]) -> None:
    """Print how many items each invariant checked. All of them hold, since a violation ends the demo earlier."""
    ran = [join for join in joins if join.checks]
    if not ran:
        click.echo(
            "Every join is finished already. To check the invariants, run: check; to repeat every step: demo --force\n"
        )
        return
    names = list(dict.fromkeys(name for join in ran for name in join.checks))
    rows = [(name, *(f"{join.checks.get(name, 0):,}" for join in ran), 0) for name in names]
    columns = ("invariant", *(f">{join.event.node.address}" for join in ran), ">violations")
    write_table("Items checked before each generation was published, by joining node", columns, rows)


def _write_switches(lake: Lake, settings: Settings, joins: Sequence[DemoJoin]) -> None:
    from cdc_platform.ring import tokens_from_keys
    from cdc_platform.timeline import StreamSources

    tokens = tokens_from_keys([key.encode() for key in EXAMPLE_KEYS]).tolist()
    source = StreamSources(lake, settings).generations
    addresses = {str(join.event.node.host_id): join.event.node.address for join in joins}
    for number, join in enumerate(joins, 1):
        switch_us = us_from_ms(get_join_time_ms(lake, join))
        rows = []
        for moment, now, at in _SWITCH_MOMENTS:
            answers = [source.explain(token, switch_us + at, switch_us + now, "strict") for token in tokens]
            rows.append((moment, *(_describe_placement(answer, addresses) for answer in answers)))
        title = f"Streams of three keys around switch {number}, {format_ms(ms_from_us(switch_us))}"
        write_table(title, ("write", *EXAMPLE_KEYS), rows)
    click.echo(
        "Each switch gives every key a new stream, even if its owner stays. Writes before the timestamp use the\n"
        "previous generation. A write with a timestamp 1 s before the switch that arrives 1 s after it is refused,\n"
        "because readers may have finished its streams.\n"
    )


def _describe_placement(answer: VnodeExplanation, addresses: dict[str, str]) -> str:
    if not answer.accepted:
        return f"refused: {answer.verdict}"
    placement = answer.place
    if placement is None or placement.stream_id is None:
        return answer.reason
    owner = addresses.get(placement.owner or "", placement.owner)
    return f"{owner} shard {placement.shard}  {_shorten_stream(placement.stream_id)}"


def _write_log(lake: Lake, settings: Settings, joins: Sequence[DemoJoin]) -> None:
    """Print the lake's log rows around a switch and the table rebuilt from them.

    Raises:
        StateError: that table differs from the base table.
    """
    from cdc_platform.cdclog import Operation
    from cdc_platform.cli import demo_acts
    from cdc_platform.metastore import generations

    demo_log = demo_acts.read_demo_log(lake, settings, get_log_switch_us(lake, joins))
    if demo_log is None:
        click.echo(f"The table {demo_acts.CARTS_TABLE} was dropped; run the demo in another --home.\n")
        return
    streams = {
        stream.tobytes(): number
        for number, join in enumerate(joins, 1)
        for stream in generations.read_v2_description(lake, join.event.generation_id).streams
    }
    rows, previous = [], None
    for row in demo_log.rows:
        number, operation = streams.get(row.stream_id), Operation(row.operation)
        statement = row.statement if row.statement != previous else ""
        label = f"{operation.value} {operation.name.lower().replace('_', '-')}"
        rows.append((statement, label, _shorten_stream(row.stream_id), f"of join {number}" if number else "unknown"))
        previous = row.statement
    title = f"The CDC log of {demo_acts.CARTS_TABLE}: two writes 30 s before switch 2, and three 30 s after it"
    write_table(title, ("statement", "cdc$operation", "cdc$stream_id", "generation"), rows)
    if demo_log.replayed != demo_log.base:
        raise StateError(f"the log of {demo_acts.CARTS_TABLE} does not yield its base table; run: cdc-platform check")
    click.echo(
        "A consumer reads the streams of one generation to their end, then those of the next. The table rebuilt from\n"
        "these rows alone:"
    )
    for row in demo_log.base:
        click.echo(f"  {', '.join(f'{name} {value}' for name, value in row.items())}")
    click.echo()


def _write_rewrite(old: OldCluster) -> None:
    if not old.decided:
        return
    rows = [(format_ms(decision.time_ms), decision.action, decision.reason) for decision in old.decided]
    columns = ("generation", "action", "reason")
    write_table("Rewrite of the V1 generations of an old cluster", columns, rows)
    click.echo(
        "This home holds the same nodes, whose generations are in V1 tables, which current clients do not read. The\n"
        "rewrite copies the generations that logs can still have rows of to the V2 tables, each timestamp last.\n"
    )


def _write_expiry(old: OldCluster) -> None:
    """Print what became of the old cluster's generations: which were removed, and what keeps the others."""
    from cdc_platform.lifecycle import expiry
    from cdc_platform.tables import REMOVED_GENERATIONS

    removed = old.lake.read(REMOVED_GENERATIONS, ["time", "expired", "rows"]).sort_by("time").to_pylist()
    rows: list[tuple[str | None, ...]] = [
        (
            _format_datetime(row["time"]),
            _format_datetime(row["expired"]),
            "removed",
            f"{row['rows']:,} rows removed from all tables",
        )
        for row in removed
    ]
    for planned in expiry.plan_expiry(old.lake, old.clock, old.home.settings):
        expired = None if planned.expired_ms is None else format_ms(planned.expired_ms)
        rows.append((format_ms(planned.time_ms), expired, planned.action.value, "; ".join(planned.reasons)))
    title = f"The old cluster's generations at {format_ms(old.clock.now_ms())}, after two runs of expiry"
    write_table(title, ("generation", "expired", "action", "reason"), rows)
    click.echo(
        "A generation expires when no CDC log can hold one of its rows: once the next one has started and the longest\n"
        "TTL has passed. One run marks it. A run an hour later removes it, its timestamp first, so that readers never\n"
        "see an incomplete generation.\n"
    )


def _write_tablets(lake: Lake) -> None:
    from cdc_platform.cli import demo_acts
    from cdc_platform.generations import find_tablet_streams
    from cdc_platform.metastore import tablets
    from cdc_platform.ring import tokens_from_keys

    name, keys = ".".join(demo_acts.SESSIONS), EXAMPLE_KEYS[:2]
    if not tablets.has_stream_sets(lake, *demo_acts.SESSIONS):
        click.echo(f"The table {name} was dropped; create it with: tablets create {name}\n")
        return
    sets = tablets.read_stream_sets(lake, *demo_acts.SESSIONS)
    tokens = tokens_from_keys([key.encode() for key in keys])
    rows = []
    for stream_set, change in zip(sets, tablets.read_stream_set_changes(lake, *demo_acts.SESSIONS), strict=True):
        streams = find_tablet_streams(sets, [us_from_ms(stream_set.timestamp_ms)] * len(tokens), tokens)[0]
        stream_ids = (_shorten_stream(stream.tobytes(), 12) for stream in streams)
        counts = (len(change.current), len(change.closed), len(change.opened))
        rows.append((format_ms(stream_set.timestamp_ms), *counts, *stream_ids))
    columns = ("stream set from", ">tablets", ">closed", ">opened", *(f"stream of {key}" for key in keys))
    write_table(f"The tablet-based table {name}: created with two tablets, then split", columns, rows)
    click.echo(
        "A tablet-based table has its own streams, one per tablet, and uses no generation. A split closes all of them\n"
        "and opens new ones.\n"
    )


def _format_datetime(moment: datetime) -> str:
    return format_ms(ms_from_datetime(moment))


def _shorten_stream(stream: bytes, last: int = 8) -> str:
    digits = stream.hex()
    return f"0x{digits[:8]}…{digits[-last:]}"


def _write_commands_to_try(home: str | None) -> None:
    from cdc_platform.cli import demo_acts
    from cdc_platform.home_location import DEFAULT_HOME, HOME_VARIABLE

    bare = _program_as_typed(sys.argv[0])
    program = bare + (f" --home {home}" if home else "")
    old = Path(home or os.environ.get(HOME_VARIABLE) or DEFAULT_HOME) / demo_acts.OLD_HOME
    tried = (
        (
            f"{program} explain --key 0x{EXAMPLE_KEYS[0].encode().hex()}",
            f"the stream of a write of {EXAMPLE_KEYS[0]} now",
        ),
        (f"{program} generations", "the generations, newest first"),
        (f"{program} check", "every invariant over every table"),
        (f"{program} expire --dry-run", "when generations can be removed"),
        (f"{program} tablets show {'.'.join(demo_acts.SESSIONS)}", "the stream sets of the tablet-based table"),
        (
            f"{program} cql run {_relative_path(demo_acts.get_script_path(demo_acts.CARTS_SCRIPTS[1]))}",
            "the log rows of the same writes now",
        ),
        (f"{bare} --home {old} rewrite --force --dry-run", "the rewrite in the old cluster"),
        (f'{program} sql "SELECT time FROM system_distributed.cdc_generation_timestamps"', ""),
        (f"{program} up", "the Dagster UI"),
        (f"{program} --help", "all commands"),
    )
    width = max(len(command) for command, what in tried if what)
    click.echo(
        "\n".join(["What to try next:", *(f"  {command:<{width}}   {what}".rstrip() for command, what in tried)])
    )


def _program_as_typed(program: str) -> str:
    """Return the program as a user would type it in the current folder."""
    path = Path(program)
    return PROGRAM_NAME if path.name != PROGRAM_NAME else _relative_path(path)


def _relative_path(path: Path) -> str:
    """Return the path relative to the current folder, or unchanged if it lies elsewhere."""
    try:
        return str(path.absolute().relative_to(Path.cwd()))
    except ValueError:
        return str(path)
