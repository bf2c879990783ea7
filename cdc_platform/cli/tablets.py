"""`cdc-platform tablets`: create, split, merge, show and garbage-collect stream sets of tablet-based tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from cdc_platform.cli.next_steps import NextStep, build_next_step
from cdc_platform.cli.output import json_option, warn
from cdc_platform.cli.params import TABLE_NAME, TTL
from cdc_platform.cli.render import View, show_rows, write_result
from cdc_platform.cli.session import CliSession, pass_session
from cdc_platform.cli.write_rules import CDC_TABLE_TABLES, STREAM_SET_TABLES, WritingCommand
from cdc_platform.clock import Milliseconds, format_ms, format_us
from cdc_platform.cql import format_table_name

if TYPE_CHECKING:
    import numpy as np

    from cdc_platform.delta import Lake
    from cdc_platform.lifecycle import TabletCollection
    from cdc_platform.metastore import StreamSetChange, TabletLayoutChange

_QualifiedName = tuple[str, str]
# The same as in generations.tablets, repeated here so that the command line starts without loading numpy.
_TABLET_COUNT = click.IntRange(1, 1 << 20)
_count_option = click.option("--count", type=_TABLET_COUNT, required=True, help="The new number of tablets.")


@click.group()
def tablets() -> None:
    """Manage the stream sets of tablet-based tables.

    A set has one stream per tablet. Each split or merge creates a new set.

    \b
    Example:
      cdc-platform tablets create shop.orders --count 2
      cdc-platform tablets split shop.orders --count 4
      cdc-platform tablets show shop.orders --json
    """


@tablets.command(cls=WritingCommand, writes=(*STREAM_SET_TABLES, *CDC_TABLE_TABLES))
@click.argument("table", type=TABLE_NAME)
@click.option("--count", type=_TABLET_COUNT, help="This many tablets of one size.")
@click.option(
    "--last-tokens", metavar="FILE", help="Tablets with the last tokens in FILE, a JSON list; - is standard input."
)
@click.option("--ttl", type=TTL, metavar="SECONDS", help="TTL of a new log. [default: 86400]")
@json_option
@pass_session
def create(
    session: CliSession,
    table: _QualifiedName,
    count: int | None,
    last_tokens: str | None,
    ttl: int | None,
    as_json: bool,
) -> None:
    """Give TABLE (keyspace.table) its first stream set. It operates at once.

    Without --count and --last-tokens, a dropped log is created again for the tablets that the table had.

    \b
    Example:
      cdc-platform tablets create shop.orders --count 8 --ttl 3600
    """
    if count is not None and last_tokens is not None:
        raise click.UsageError("name either --count or --last-tokens")
    from cdc_platform.delta import Lake
    from cdc_platform.lifecycle import tablets as lifecycle

    tokens = None if count is None and last_tokens is None else _read_ends(count, last_tokens, table)
    home = session.open_location(create=tokens is not None)
    lake = Lake(home.lake)
    tokens = _ends_before_drop(lake, table) if tokens is None else tokens
    _show_change(
        lifecycle.create_tablets(lake, session.clock, home.settings, *table, tokens, ttl_seconds=ttl), table, as_json
    )


@tablets.command(cls=WritingCommand, writes=STREAM_SET_TABLES)
@click.argument("table", type=TABLE_NAME)
@_count_option
@json_option
@pass_session
def split(session: CliSession, table: _QualifiedName, count: int, as_json: bool) -> None:
    """Split the tablets of TABLE to COUNT tablets.

    If COUNT is the present number times a power of two, every tablet is halved repeatedly. Otherwise COUNT must be a
    power of two, and all tablets get the same size.

    \b
    Example:
      cdc-platform tablets split shop.orders --count 16
    """
    from cdc_platform.lifecycle import tablets as lifecycle

    _apply_change(session, table, as_json, lifecycle.split_tablets, count)


@tablets.command(cls=WritingCommand, writes=STREAM_SET_TABLES)
@click.argument("table", type=TABLE_NAME)
@_count_option
@json_option
@pass_session
def merge(session: CliSession, table: _QualifiedName, count: int, as_json: bool) -> None:
    """Merge the tablets of TABLE to COUNT tablets.

    If the present number is COUNT times a power of two, neighbours are joined. Otherwise COUNT must be a power of two,
    and all tablets get the same size.

    \b
    Example:
      cdc-platform tablets merge shop.orders --count 4
    """
    from cdc_platform.lifecycle import tablets as lifecycle

    _apply_change(session, table, as_json, lifecycle.merge_tablets, count)


@tablets.command(cls=WritingCommand, writes=STREAM_SET_TABLES)
@click.argument("table", type=TABLE_NAME)
@click.option("--last-tokens", metavar="FILE", required=True, help="The last tokens, a JSON list; - is standard input.")
@json_option
@pass_session
def resize(session: CliSession, table: _QualifiedName, last_tokens: str, as_json: bool) -> None:
    """Replace the tablets of TABLE by those of a file.

    The file lists the last token of each tablet.

    \b
    Example:
      cdc-platform tablets resize shop.orders --last-tokens tokens.json
    """
    from cdc_platform.lifecycle import tablets as lifecycle

    _apply_change(session, table, as_json, lifecycle.resize_tablets, _read_ends(None, last_tokens, table))


@tablets.command()
@click.argument("table", type=TABLE_NAME)
@json_option
@pass_session
def show(session: CliSession, table: _QualifiedName, as_json: bool) -> None:
    """Show the stream sets of TABLE, newest first.

    For each set, lists the streams that it closed and opened, in ring order.

    \b
    Example:
      cdc-platform tablets show shop.orders --json
    """
    from cdc_platform.metastore import tablets

    sets = tablets.read_stream_set_changes(session.lake(), *table)[::-1]
    document = {
        "table": ".".join(table),
        "stream_sets": [
            {
                "timestamp": format_ms(change.timestamp_ms),
                "current": _format_stream_ids(change.current),
                "closed": _format_stream_ids(change.closed),
                "opened": _format_stream_ids(change.opened),
            }
            for change in sets
        ],
    }
    write_result(document, as_json=as_json, show=lambda: _show_sets(".".join(table), sets, session.clock.now_ms()))


@tablets.command(cls=WritingCommand, writes=STREAM_SET_TABLES, unless=("dry_run",))
@click.argument("table", type=TABLE_NAME, required=False)
@click.option("--dry-run", is_flag=True, help="List the sets and remove nothing.")
@click.option("--ttl", type=TTL, metavar="SECONDS", help="With --dry-run: as if that were the TTL from now on.")
@json_option
@pass_session
def gc(session: CliSession, table: _QualifiedName | None, dry_run: bool, ttl: int | None, as_json: bool) -> None:
    """Remove expired stream sets of TABLE, or of all tables.

    A set is removed when the one after it has operated for the table's current TTL. Rows written under a larger TTL may
    outlive their set, which is ScyllaDB's rule; a warning says so. The command is refused if tables differ from their
    commits, or if the clock is ahead by more than the grace time (expiry_grace_ms). A set that a consumer has not read
    to its end stays; `consumers remove` takes out a consumer that will never return.

    \b
    Example:
      cdc-platform tablets gc --dry-run
      cdc-platform tablets gc shop.orders --dry-run --ttl 3600
    """
    if ttl is not None and not dry_run:
        raise click.UsageError("--ttl goes with --dry-run: to change it say so with `tables alter KS.T --ttl`")
    from cdc_platform.delta import get_verified_lake
    from cdc_platform.lifecycle import tablets
    from cdc_platform.lifecycle import tablets as lifecycle

    lake, grace_ms = (
        get_verified_lake(session.lake(), tablets.COLLECTION_STEP),
        session.open_location().settings.expiry_grace_ms,
    )
    if table is not None:
        tablets.plan_tablet_collection(lake, session.clock, *table)  # refuse a wrong name before writing anything
    if not dry_run:
        lifecycle.finish_tablet_changes(lake, session.clock)
    names = _known_tables(lake) if table is None else [table]
    planned = [
        tablets.plan_tablet_collection(lake, session.clock, *name, ttl_seconds=ttl)
        if dry_run
        else tablets.collect_tablet_sets(lake, session.clock, *name, grace_ms=grace_ms)
        for name in names
    ]
    next_steps = _gc_next_steps(lake, planned, table, ttl) if dry_run else []
    _write_collections(planned, dry_run, next_steps, as_json)


def _gc_next_steps(
    lake: Lake, planned: list[TabletCollection], table: _QualifiedName | None, ttl: int | None
) -> list[NextStep]:
    """Return the commands that execute a plan only shown so far, preceded by those that set another TTL."""
    going = [
        format_table_name(collection.keyspace, collection.table) for collection in planned if collection.removed_ms
    ]
    named = [] if table is None else [format_table_name(*table)]
    alter = [build_next_step("tables", "alter", name, "--ttl", ttl) for name in going if ttl is not None]
    return [*alter, build_next_step("tablets", "gc", *named)] if going else []


def _apply_change(
    session: CliSession, table: _QualifiedName, as_json: bool, change: Callable[..., TabletLayoutChange], wanted: Any
) -> None:
    from cdc_platform.delta import Lake

    home = session.open_location()
    _show_change(change(Lake(home.lake), session.clock, home.settings, *table, wanted), table, as_json)


def _read_ends(count: int | None, file: str | None, table: _QualifiedName) -> np.ndarray:
    from cdc_platform.generations import check_tablet_ends, uniform_tablet_ends
    from cdc_platform.importing import parse_tablet_ends, read_tablet_ends
    from cdc_platform.storage import STANDARD_INPUT, read_standard_input

    if count is not None:
        return uniform_tablet_ends(count)
    assert file is not None
    if file != "-":
        return check_tablet_ends(read_tablet_ends(file), ".".join(table))
    return check_tablet_ends(parse_tablet_ends(read_standard_input(), STANDARD_INPUT), ".".join(table))


def _ends_before_drop(lake: Lake, table: _QualifiedName) -> np.ndarray:
    from cdc_platform.metastore import read_newest_layout

    newest = read_newest_layout(lake, *table)
    if newest is None:
        raise click.UsageError("name --count or --last-tokens; the tablets of this table were never known")
    return newest.last_tokens


def _show_change(change: TabletLayoutChange, table: _QualifiedName, as_json: bool) -> None:
    time = change.layout.timestamp_ms
    document: dict[str, Any] = {
        "table": ".".join(table),
        "timestamp": None if time is None else format_ms(time),
        "tablets": len(change.layout.last_tokens),
        "changed": change.changed,
    }
    write_result(document, as_json=as_json)


def _show_sets(name: str, sets: list[StreamSetChange], now_ms: Milliseconds) -> None:
    started = [change.timestamp_ms for change in sets if change.timestamp_ms <= now_ms]
    rows = [
        {
            "timestamp": format_ms(change.timestamp_ms),
            "operating": change.timestamp_ms == max(started, default=None),
            "current": len(change.current),
            "closed": len(change.closed),
            "opened": len(change.opened),
        }
        for change in sets
    ]
    show_rows(rows, View("timestamp current closed opened operating", f"Stream sets of {name}"))
    from cdc_platform.generations import get_stream_tokens

    newest = sets[0]
    streams = zip(get_stream_tokens(newest.current).tolist(), _format_stream_ids(newest.current), strict=True)
    title = f"Streams since {format_ms(newest.timestamp_ms)}"
    show_rows([{"last_token": token, "stream": stream} for token, stream in streams], View("last_token stream", title))


def _write_collections(
    planned: list[TabletCollection], dry_run: bool, next_steps: list[NextStep], as_json: bool
) -> None:
    rows = [
        {
            "table": collection.full_name,
            "ttl_seconds": collection.ttl_seconds,
            "base": format_ms(collection.base_ms),
            "removed": [format_ms(time) for time in collection.removed_ms],
            "at_risk": [format_ms(time) for time in collection.at_risk_ms],
            "held_back": [
                {
                    "consumer": hold.consumer.name,
                    "position": format_us(hold.consumer.position_us),
                    "sets": [format_ms(time) for time in hold.sets_ms],
                }
                for hold in collection.held_back
            ],
        }
        for collection in planned
    ]
    for collection in planned:
        if collection.at_risk_ms:
            warn(
                f"{collection.full_name}: rows of {len(collection.at_risk_ms)} stream sets "
                f"{'can be' if dry_run else 'could be'} in the log still: the TTL was larger when they were written",
                code="rows-at-risk",
            )
        for hold in collection.held_back:
            warn(str(hold), code="held-back")
    title = "Stream sets that can be removed" if dry_run else "Removed stream sets"
    views = {"tables": View("table ttl_seconds removed base", title)}
    write_result({"tables": rows}, as_json=as_json, views=views, next_steps=next_steps)


def _known_tables(lake: Lake) -> list[_QualifiedName]:
    """Return the tables with stream sets whose TTL is known, and warn of the others."""
    from cdc_platform.delta import choose_remedy
    from cdc_platform.metastore import cdc_tables, tablets

    known = {(entry.keyspace_name, entry.table_name) for entry in cdc_tables.read_cdc_tables(lake)}
    names = tablets.read_tables_with_stream_sets(lake)
    for keyspace, table in names:
        if (keyspace, table) not in known:
            do = choose_remedy(lake, f"cdc-platform tables add {keyspace}.{table}")
            warn(f"{keyspace}.{table} is left alone: its TTL is not known; {do}", code="ttl-unknown")
    return [name for name in names if name in known]


def _format_stream_ids(ids: np.ndarray) -> list[str]:
    digits = ids.tobytes().hex()
    return ["0x" + digits[start : start + 32] for start in range(0, len(digits), 32)]
