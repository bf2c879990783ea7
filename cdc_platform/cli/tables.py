"""`cdc-platform tables`: register, alter and list CDC-enabled tables with the TTL of their log rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from cdc_platform.cli.output import format_optional_ms, json_option, warn
from cdc_platform.cli.params import CREATION_TIME, GENERATION_TIME, NOW, TABLE_NAME, TTL
from cdc_platform.cli.render import View, write_result
from cdc_platform.cli.session import CliSession, pass_session
from cdc_platform.cli.write_rules import CDC_TABLE_TABLES, STREAM_SET_TABLES, WritingCommand
from cdc_platform.clock import Milliseconds, format_us
from cdc_platform.delta import WriteSource

if TYPE_CHECKING:
    from cdc_platform.metastore import CdcTable

_created_at_option = click.option(
    "--created-at", type=CREATION_TIME, metavar="TIME|now", help="When its log was created. [default: unknown]"
)
_ttl_since_option = click.option(
    "--ttl-since", type=GENERATION_TIME, metavar="TIME", help="Since when its TTL is in force."
)
_ttl_option = click.option("--ttl", type=TTL, metavar="SECONDS", help="TTL of log rows; 0: they never expire.")
_QualifiedName = tuple[str, str]


@click.group(invoke_without_command=True)
@click.option("--history", is_flag=True, help="Every change of every table, oldest first.")
@json_option
@pass_session
@click.pass_context
def tables(ctx: click.Context, session: CliSession, history: bool, as_json: bool) -> None:
    """List the CDC-enabled tables with the TTL of their log rows.

    A generation stays as long as a log can hold a row of it. A row lives for the TTL with which it was written, so
    every change of a TTL is recorded, and a lower TTL shortens nothing. Unknown facts count as the worst case: a log of
    unknown age is older than every generation, and under an unknown TTL rows never expire.

    \b
    Example:
      cdc-platform tables add shop.orders --ttl 86400 --created-at 2026-01-31T12:00:00Z
      cdc-platform tables alter shop.orders --ttl 3600
      cdc-platform tables --history
    """
    if ctx.invoked_subcommand is not None:
        if history or as_json:
            raise click.UsageError(f"--history and --json go after {ctx.invoked_subcommand}, if it has them")
        return
    from cdc_platform.metastore import cdc_tables

    lake = session.lake()
    if history:
        title = "Changes of CDC-enabled tables"
        rows = [
            {
                "table": change.full_name,
                "changed_at": format_us(change.changed_at_us),
                "what": change.what,
                "enabled": change.enabled,
                "ttl_seconds": change.ttl_seconds,
                "created_at": None if change.created_at_us is None else format_us(change.created_at_us),
            }
            for change in cdc_tables.read_table_changes(lake)
        ]
    else:
        title = "CDC-enabled tables"
        rows = [_table_document(table) for table in cdc_tables.read_cdc_tables(lake)]
    from cdc_platform.cdclog import describe_gaps

    for line in describe_gaps(lake):
        warn(line, code="log-gap")
    columns = "table enabled ttl_seconds created_at"
    if history:
        columns = "table changed_at what ttl_seconds enabled created_at"
    name = "changes" if history else "tables"
    write_result({name: rows}, as_json=as_json, views={name: View(columns, title)})


@tables.command(cls=WritingCommand, writes=CDC_TABLE_TABLES, source=WriteSource.STATED)
@click.argument("table", type=TABLE_NAME)
@click.option("--ttl", type=TTL, metavar="SECONDS", required=True, help="TTL of log rows; 0: they never expire.")
@_created_at_option
@_ttl_since_option
@json_option
@pass_session
def add(
    session: CliSession,
    table: _QualifiedName,
    ttl: int,
    created_at: Milliseconds | str | None,
    ttl_since: Milliseconds | None,
    as_json: bool,
) -> None:
    """Register a CDC-enabled table (keyspace.table). Registering it twice changes nothing.

    The TTL is in force since --ttl-since, or else since --created-at. Without either, the log may be older than every
    generation and its rows may never expire, so that every generation stays.

    \b
    Example:
      cdc-platform tables add shop.orders --ttl 86400 --created-at 2026-01-31T12:00:00Z
      cdc-platform tables add shop.orders --ttl 86400 --created-at now
      cdc-platform tables add shop.orders --ttl 86400
    """
    from cdc_platform.delta import Lake
    from cdc_platform.metastore import cdc_tables

    with session.making_home() as home:
        added = cdc_tables.add_cdc_table(
            Lake(home.lake),
            session.clock,
            *table,
            ttl_seconds=ttl,
            created_at_ms=None if isinstance(created_at, str) else created_at,
            created_now=created_at == NOW,
            ttl_since_ms=ttl_since,
        )
    _write_table_facts(added, as_json)


@tables.command(cls=WritingCommand, writes=CDC_TABLE_TABLES, source=WriteSource.STATED)
@json_option
@pass_session
def declare_none(session: CliSession, as_json: bool) -> None:
    """Declare that no table has CDC enabled.

    Expiry and forecasts then need no registered table. `tables add` revokes the declaration.

    \b
    Example:
      cdc-platform tables declare-none
    """
    from cdc_platform.delta import Lake
    from cdc_platform.metastore import cdc_tables

    with session.making_home() as home:
        cdc_tables.declare_no_cdc_tables(Lake(home.lake))
    write_result({"tables": 0}, as_json=as_json)


def _alteration_source(params: Mapping[str, Any]) -> WriteSource:
    """Return the source of an alteration. The current state of a table can be observed; how old its log is cannot."""
    is_current_state = params["ttl"] is not None or params["enabled"] is not None
    return WriteSource.STATED if is_current_state else WriteSource.OBSERVED


@tables.command(cls=WritingCommand, writes=CDC_TABLE_TABLES, source=_alteration_source)
@click.argument("table", type=TABLE_NAME)
@_ttl_option
@click.option("--enabled/--disabled", default=None, help="Whether new writes are logged.")
@_created_at_option
@_ttl_since_option
@json_option
@pass_session
def alter(
    session: CliSession,
    table: _QualifiedName,
    ttl: int | None,
    enabled: bool | None,
    created_at: Milliseconds | str | None,
    ttl_since: Milliseconds | None,
    as_json: bool,
) -> None:
    """Change the TTL of TABLE, or turn its CDC on or off.

    A new TTL applies to new rows; existing rows keep theirs. --created-at and --ttl-since state facts that are not
    known: when the log was created, and since when the TTL is in force. In the home of a live cluster only these
    two are allowed.

    \b
    Example:
      cdc-platform tables alter shop.orders --ttl 3600
      cdc-platform tables alter shop.orders --disabled
      cdc-platform tables alter shop.orders --created-at 2026-01-31T12:00:00Z --ttl-since 2026-01-31T12:00:00Z
    """
    from cdc_platform.metastore import cdc_tables

    if ttl is None and enabled is None and created_at is None and ttl_since is None:
        raise click.UsageError(
            "say what to change: --ttl SECONDS, --enabled or --disabled; or state what is not known: --created-at TIME,"
            " --ttl-since TIME"
        )
    created_ms = session.clock.now_ms() if isinstance(created_at, str) else created_at
    altered = cdc_tables.alter_cdc_table(
        session.lake(),
        session.clock,
        *table,
        ttl_seconds=ttl,
        enabled=enabled,
        created_at_ms=created_ms,
        ttl_since_ms=ttl_since,
    )
    _write_table_facts(altered, as_json)


@tables.command(cls=WritingCommand, writes=(*CDC_TABLE_TABLES, *STREAM_SET_TABLES), source=WriteSource.STATED)
@click.argument("table", type=TABLE_NAME)
@json_option
@pass_session
def drop(session: CliSession, table: _QualifiedName, as_json: bool) -> None:
    """Record that TABLE's log was dropped with all of its rows.

    The table then needs no generation any more. The stream sets of a tablet-based table are removed with it.

    \b
    Example:
      cdc-platform tables drop shop.orders
    """
    from cdc_platform.lifecycle import tablets

    tablets.drop_table_log(session.lake(), session.clock, *table)
    write_result({"table": ".".join(table), "dropped": True}, as_json=as_json)


def _table_document(table: CdcTable) -> dict[str, object]:
    return {
        "keyspace_name": table.keyspace_name,
        "table_name": table.table_name,
        "table": table.full_name,
        "enabled": table.enabled,
        "ttl_seconds": table.ttl_seconds,
        "created_at": format_optional_ms(table.created_at_ms),
        "ddl": table.ddl,
    }


def _write_table_facts(table: CdcTable, as_json: bool) -> None:
    views = {"keyspace_name": None, "table_name": None, "ddl": None}
    write_result(_table_document(table), as_json=as_json, views=views)
