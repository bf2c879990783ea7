"""`cdc-platform consumers`, `consume` and `verify-interval`: list CDC log readers, plan, run and verify them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cdc_platform.cli.next_steps import NextStep, build_next_step
from cdc_platform.cli.output import json_option, warn
from cdc_platform.cli.params import TABLE_NAME, TIME, TTL
from cdc_platform.cli.render import View, format_seconds, show_document, show_mark, show_rows, write_result
from cdc_platform.cli.session import CliSession, pass_session
from cdc_platform.cli.write_rules import WritingCommand
from cdc_platform.clock import DAY_SECONDS, ONE_US, Microseconds, format_us
from cdc_platform.cql import format_table_name
from cdc_platform.errors import InputError, NotFound

if TYPE_CHECKING:
    from cdc_platform.cdclog import BacklogPart, CdcClient, ClientReadPlan
    from cdc_platform.delta import Lake
    from cdc_platform.metastore import Consumer, LogGap

CLIENT_NAMES = ("go", "rust", "java", "connector", "alternator")
_Command = TypeVar("_Command", bound=Callable[..., Any])
_SETTING_HELP = {
    "confidence": "How far it stays behind the clock.",
    "window": "How much time of the log it asks for at once.",
    "cycle": "How long it waits between two reads.",
    "poll": "How often it looks for a new generation.",
    "flush": "How often it writes checkpoints; 0: with each read.",
}


def _setting_options(*names: str) -> Callable[[_Command], _Command]:
    def with_options(command: _Command) -> _Command:
        for name in reversed(names):
            least = 1 if name in ("window", "cycle") else 0
            kind = click.IntRange(least, 366 * DAY_SECONDS)
            command = click.option(f"--{name}", type=kind, metavar="SECONDS", help=_SETTING_HELP[name])(command)
        return command

    return with_options


@click.command()
@click.argument("table", type=TABLE_NAME, required=False)
@click.option("--client", "name", type=click.Choice(CLIENT_NAMES), default="connector", show_default=True)
@click.option("--streams", type=click.IntRange(1), metavar="N", help="Of a generation of this size, without a table.")
@click.option("--ranges", type=click.IntRange(1), metavar="N", help="With --streams: tokens of the ring. [as many]")
@click.option("--add-nodes", type=click.IntRange(1, 10_000), metavar="N", help="As after N more nodes like the ring's.")
@click.option("--ttl", type=TTL, metavar="SECONDS", help="Of the log's rows. [the table's, else 86400]")
@_setting_options("window", "confidence", "cycle", "flush")
@json_option
@pass_session
def plan(
    session: CliSession,
    table: tuple[str, str] | None,
    name: str,
    streams: int | None,
    ranges: int | None,
    add_nodes: int | None,
    ttl: int | None,
    as_json: bool,
    **settings: int | None,
) -> None:
    """Estimate the requests of a client without a checkpoint.

    Also estimates its windows and checkpoints, for the first pass and then for each day. The log is that of TABLE,
    of a generation of --streams, or of the ring after --add-nodes. Settings default to those of the client.

    \b
    Example:
      cdc-platform consumers plan shop.orders --client java
      cdc-platform consumers plan --client connector --streams 73728 --ranges 1024 --ttl 86400 --window 60
      cdc-platform consumers plan --client alternator --add-nodes 10
    """
    if sum((table is not None, streams is not None, add_nodes is not None)) != 1:
        raise click.UsageError("name one of TABLE, --streams and --add-nodes: what is to be read")
    if ranges is not None and streams is None:
        raise click.UsageError("--ranges goes with --streams")
    from cdc_platform.cdclog import clients

    client = _with_settings(clients.CDC_CLIENTS[name], settings)
    seconds, parts = _plan_parts(session, client, table, streams, ranges, add_nodes, ttl)
    read_plan = clients.plan_client_reads(client, parts)
    document = {
        "client": asdict(client),
        "table": None if table is None else ".".join(table),
        "ttl_seconds": seconds,
        "generations": len(parts),
        "streams": parts[-1].streams,
        **asdict(read_plan),
        "refused_by_default": read_plan.is_refused,
    }
    write_result(document, as_json=as_json, show=lambda: _show_plan(client, read_plan, document))
    if read_plan.is_refused and name != "alternator":
        warn(
            f"a query names {read_plan.streams_a_query} streams, and a server takes "
            f"{clients.MAX_STREAMS_PER_QUERY} by default: "
            "raise max_partition_key_restrictions_per_query",
            code="query-too-wide",
        )


@click.command()
@click.option("--client", "name", type=click.Choice(CLIENT_NAMES), help="Only of this one. [all]")
@_setting_options("confidence", "cycle", "poll", "flush")
@json_option
def lag(name: str | None, as_json: bool, **settings: int | None) -> None:
    """Estimate when clients see the rows of a new generation.

    Assumes clients that have caught up. Prints the time from the start of a generation to its first rows, and the
    reason for each part of it. Settings default to those of the client; for `java` and `connector` --cycle is the
    query window.

    \b
    Example:
      cdc-platform consumers lag
      cdc-platform consumers lag --client connector --cycle 10 --flush 10
    """
    from cdc_platform.cdclog import clients

    chosen = [
        _with_settings(preset, settings) for preset in clients.CDC_CLIENTS.values() if name in (None, preset.name)
    ]
    rows = []
    for client in chosen:
        estimate = clients.estimate_switch_lag(client)
        rows.append({"client": client.name, **asdict(estimate), "total_s": estimate.most_s})
    title = "Longest time from the start of a generation to its first row"
    view = View("client total_s confidence_s cycle_s poll_s flush_s", title)
    write_result({"clients": rows}, as_json=as_json, views={"clients": view})


def _with_settings(client: CdcClient, settings: dict[str, int | None]) -> CdcClient:
    changed: dict[str, Any] = {f"{name}_s": value for name, value in settings.items() if value is not None}
    return replace(client, **changed)


def _plan_parts(
    session: CliSession,
    client: CdcClient,
    table: tuple[str, str] | None,
    streams: int | None,
    ranges: int | None,
    add_nodes: int | None,
    ttl: int | None,
) -> tuple[int, list[BacklogPart]]:
    """Return the effective TTL (s) and the parts of the log to read."""
    from cdc_platform.cdclog import clients
    from cdc_platform.metastore import cdc_tables

    if table is not None:
        lake = session.lake()
        cdc_table = cdc_tables.find_cdc_table(lake, *table)
        seconds = cdc_table.ttl_seconds if ttl is None else ttl
        return seconds, clients.read_backlog(lake, cdc_table, client, session.clock.now_us(), seconds)
    seconds = DAY_SECONDS if ttl is None else ttl
    if streams is None:
        from cdc_platform.lifecycle import forecast
        from cdc_platform.metastore import read_current_ring

        assert add_nodes is not None
        ranges, streams = forecast.forecast_next_size(read_current_ring(session.lake()), add_nodes)
    return seconds, clients.estimate_backlog(streams, ranges or streams, seconds, client)


def _show_plan(client: CdcClient, read_plan: ClientReadPlan, document: dict[str, Any]) -> None:
    asks_by_shard = client.name == "alternator"
    how = f"one shard every {client.cycle_s} s" if asks_by_shard else f"windows of {client.window_s} s"
    back = f"the last {format_seconds(document['ttl_seconds'] if client.starts_s is None else client.starts_s)}"
    facts = {
        "client": f"{client.name}: {how}, {client.confidence_s} s behind the clock",
        "reads": (
            f"{document['streams']:,} streams in {read_plan.groups:,} groups, {document['generations']} generations or "
            f"stream sets, {back}"
        ),
        "cold_start": f"{read_plan.windows:,} windows per group, {read_plan.requests:,} requests in total",
        "then": f"{read_plan.requests_a_day:,} requests a day, {read_plan.requests_a_day / DAY_SECONDS:,.1f} a second",
        "checkpoints": f"{read_plan.checkpoints:,}, at most {read_plan.checkpoint_writes_a_day:,} writes a day",
    }
    if asks_by_shard:
        facts["cold_start"] = f"{read_plan.requests:,} shards, at least one request for each"
        facts["list_of_shards"] = f"{read_plan.pages_of_streams:,} calls of DescribeStream each time"
    show_document(facts, {})


@click.group(invoke_without_command=True)
@json_option
@pass_session
@click.pass_context
def consumers(ctx: click.Context, session: CliSession, as_json: bool) -> None:
    """List the registered consumers of CDC logs with their positions, up to which they have read every row.

    A generation or stream set that a consumer has not read to its end is not removed. `consumers remove` takes out a
    consumer that will never return. Gaps are the open ones of the log, see `consumers gaps`.

    \b
    Example:
      cdc-platform consumers
      cdc-platform consumers remove audit shop.orders
    """
    if ctx.invoked_subcommand is not None:
        return
    from cdc_platform.cdclog import get_checkpoint_status, read_log_gaps
    from cdc_platform.metastore import consumers as registered
    from cdc_platform.metastore import read_skipped_sets
    from cdc_platform.timeline import StreamSources

    lake = session.lake()
    passed, sources = read_skipped_sets(lake), StreamSources(lake)
    gaps = Counter(gap.full_name for gap in read_log_gaps(lake) if gap.is_open)
    rows = [
        {
            "name": consumer.name,
            "keyspace_name": consumer.keyspace_name,
            "table_name": consumer.table_name,
            "set_timestamp": None if consumer.set_timestamp_us is None else format_us(consumer.set_timestamp_us),
            "position": format_us(consumer.position_us),
            "window_number": consumer.window_number,
            "updated_at": format_us(consumer.updated_at_us),
            "skipped": [format_us(time_us) for time_us in passed.get(consumer.key, ())],
            "gaps": gaps[f"{consumer.keyspace_name}.{consumer.table_name}"],
            "checkpoint": get_checkpoint_status(
                consumer, sources.of(consumer.keyspace_name, consumer.table_name).periods()
            ),
        }
        for consumer in registered.read_consumers(lake)
    ]
    screen = [
        row
        | {
            "table": f"{row['keyspace_name']}.{row['table_name']}",
            "checkpoint": _CHECKPOINT_TARGETS[row["checkpoint"]],
        }
        for row in rows
    ]
    view = View("name table position gaps checkpoint set_timestamp window_number updated_at skipped", "Consumers")
    write_result({"consumers": rows}, as_json=as_json, show=lambda: show_rows(screen, view))


_CHECKPOINT_TARGETS = {
    "there": "present",
    "removed": "removed",
    "gone": "older than all that exist",
    "unknown": "unknown",
}
"""Text for the state of a checkpoint's generation or stream set."""


@consumers.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--table", type=TABLE_NAME, help="The table that is read, where it is a tablet-based one.")
@json_option
@pass_session
@click.pass_context
def checkpoints(
    ctx: click.Context, session: CliSession, file: Path, table: tuple[str, str] | None, as_json: bool
) -> None:
    """Find checkpoints in FILE whose generations no longer exist.

    FILE is the checkpoint table of scylla-cdc-go or -rust, exported by cqlsh with its header. The exit code is 1 if
    there are such checkpoints.

    \b
    Example:
      cdc-platform consumers checkpoints cdc_progress.csv
    """
    from cdc_platform.cdclog import parse_checkpoints
    from cdc_platform.storage import read_user_text
    from cdc_platform.timeline import StreamSources

    text = read_user_text(file)
    sources = StreamSources(session.lake())
    source = sources.generations if table is None else sources.of(*table)
    groups = parse_checkpoints(str(file), text, source.periods())
    rows = [
        {
            "generation": format_us(group.begin_us),
            "checkpoints": group.streams,
            "current": group.is_current,
            "state": group.standing,
        }
        for group in groups
    ]
    dead = [group for group in groups if group.is_dead]
    screen = [row | {"state": _CHECKPOINT_TARGETS[row["state"]]} for row in rows]

    def show() -> None:
        show_rows(screen, View("generation checkpoints state current", "Checkpoints"))
        if dead:
            count = sum(group.streams for group in dead)
            click.echo(f"{count} checkpoints point to {len(dead)} generations that no longer exist")

    write_result({"generations": rows}, as_json=as_json, show=show)
    ctx.exit(int(bool(dead)))


@consumers.command(cls=WritingCommand, writes=("platform.log_gaps",), only_with="accept")
@click.argument("table", type=TABLE_NAME, required=False)
@click.option("--accept", is_flag=True, help="Accept the open gaps of TABLE; commands then no longer fail.")
@click.option("--reason", metavar="TEXT", help="Why they are accepted; recorded.")
@json_option
@pass_session
@click.pass_context
def gaps(
    ctx: click.Context,
    session: CliSession,
    table: tuple[str, str] | None,
    accept: bool,
    reason: str | None,
    as_json: bool,
) -> None:
    """List the intervals whose log rows may be lost.

    Lists those of TABLE, or of all tables. Only logs of live clusters have such gaps. A gap is open until a person
    accepts it. The exit code is 1 if there are open gaps. Accepted gaps stay recorded, and `verify-interval` never
    proves an interval that overlaps a gap.

    \b
    Example:
      cdc-platform --home .cdc-platform/clusters/prod consumers gaps
      cdc-platform --home .cdc-platform/clusters/prod consumers gaps shop.orders --accept --reason "ticket 4711"
    """
    from cdc_platform.cdclog import read_log_gaps
    from cdc_platform.metastore import log_gaps

    lake = session.lake()
    if accept != (reason is not None) or (accept and table is None):
        raise InputError("--accept and --reason TEXT go together, with the TABLE whose gaps are accepted")
    if reason is not None and table is not None:
        text = " ".join(reason.split())
        if not text:
            raise InputError("--reason is empty; say why the gaps are accepted")
        # Only recorded gaps can be accepted: first record those derived from the tables of an earlier release.
        unrecorded = [gap for gap in read_log_gaps(lake, [".".join(table)]) if gap.found_at_us is None]
        log_gaps.record_log_gaps(lake, session.clock, unrecorded)
        log_gaps.accept_log_gaps(lake, session.clock, *table, text)
    listed = read_log_gaps(lake, None if table is None else [".".join(table)])
    rows = [gap.facts() for gap in listed]
    open_ = [gap for gap in listed if gap.is_open]
    view = View("table from until state reader what why found_at", f"Gaps, {len(open_)} of them open", essential=4)
    screen = [row | {"state": _gap_state(gap)} for row, gap in zip(rows, listed, strict=True)]
    write_result({"gaps": rows}, as_json=as_json, show=lambda: show_rows(screen, view))
    ctx.exit(int(bool(open_)))


def _gap_state(gap: LogGap) -> str | None:
    if gap.accepted_at_us is not None:
        return f"{format_us(gap.accepted_at_us)}: {gap.reason}"
    return "open" if gap.is_open else None


@consumers.command(cls=WritingCommand, writes=("platform.consumers",))
@click.argument("name")
@click.argument("table", type=TABLE_NAME)
@json_option
@pass_session
def remove(session: CliSession, name: str, table: tuple[str, str], as_json: bool) -> None:
    """Remove the consumer NAME of TABLE. What it has not read may then be removed.

    \b
    Example:
      cdc-platform consumers remove audit shop.orders
    """
    from cdc_platform.metastore import consumers as registered

    registered.forget_consumer(session.lake(), name, *table)
    document = {"name": name, "table": ".".join(table), "removed": True}
    next_steps = [build_next_step("expire", "--dry-run", why="lists what no consumer needs any more")]
    write_result(document, as_json=as_json, next_steps=next_steps)


consumers.add_command(plan)
consumers.add_command(lag)


@click.command(cls=WritingCommand, writes=("platform.consumers", "platform.passed_over"))
@click.argument("table", type=TABLE_NAME)
@click.option("--name", required=True, help="Name of the consumer: letters, digits and underscores.")
@click.option("--until", "until_us", type=TIME, help="Read nothing after this time, for example 2026-01-31T12:00:00Z.")
@click.option("--changes", is_flag=True, help="Store changes with the row before and after, in a new sink.")
@json_option
@pass_session
def consume(
    session: CliSession,
    table: tuple[str, str],
    name: str,
    until_us: Microseconds | None,
    changes: bool,
    as_json: bool,
) -> None:
    """Copy new rows of the CDC log of TABLE, generation after generation, into KS.T_scylla_cdc_log_NAME.

    Each row is copied exactly once; an interrupted run resumes where it stopped. Rows younger than 30 seconds wait for
    the next run. With --changes the first run creates a sink of changes (before, after, op, ts), which later runs
    continue with or without the option. No JVM is started.

    \b
    Example:
      cdc-platform consume shop.orders --name audit
      cdc-platform consume shop.orders --name search --changes
      cdc-platform consume shop.orders --name audit --until 2026-01-31T12:00:00Z
    """
    from cdc_platform.cdclog import describe_gaps, read_log_gaps, read_table_schema, reader

    reader.validate_consumer_name(name)
    lake = session.lake()
    schema = read_table_schema(lake, *table)
    consumer, rows = reader.consume(
        lake,
        session.clock,
        schema,
        name,
        until_us=until_us,
        changes=changes,
        on_message=partial(warn, code="reading"),
    )
    for line in describe_gaps(lake, [schema.full_name]):
        warn(line, code="log-gap")
    facts = {
        "name": name,
        "table": schema.full_name,
        "sink": reader.sink_table(schema, name).full_name,
        "rows": rows,
        "windows": consumer.window_number,
        "position": format_us(consumer.position_us),
    }
    document = {**facts, "gaps": [gap.facts() for gap in read_log_gaps(lake, [schema.full_name])]}
    write_result(document, as_json=as_json, views={"gaps": None})


@click.command("verify-interval")
@click.argument("since", metavar="A", type=TIME)
@click.argument("until", metavar="B", type=TIME)
@click.option("--consumer", "name", required=True, metavar="NAME", help="The consumer, as `consumers` lists it.")
@click.option("--table", type=TABLE_NAME, help="The table; needed if the consumer reads several.")
@click.option("--against", metavar="NAME", multiple=True, help="A second consumer to compare with. Repeatable.")
@click.option(
    "--base",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Output of SELECT JSON * FROM the table in cqlsh, to compare with the table rebuilt from the log.",
)
@json_option
@pass_session
@click.pass_context
def verify_interval(
    ctx: click.Context,
    session: CliSession,
    since: Microseconds,
    until: Microseconds,
    name: str,
    table: tuple[str, str] | None,
    against: tuple[str, ...],
    base: Path | None,
    as_json: bool,
) -> None:
    """Verify that a consumer has read every row from A up to but not including B.

    Compares the rows of the log with those of the consumer in both directions, so that a batch which either has lost
    is found. To find one that both have lost, compare with a second consumer (--against) or the base table (--base).
    The exit code is 1 if a check fails.

    \b
    Example:
      cdc-platform verify-interval 2026-01-31T12:00:00Z 2026-01-31T13:00:00Z --consumer audit
      cdc-platform verify-interval 2026-01-31T00:00:00Z 2026-02-01T00:00:00Z --consumer audit --against search --json
    """
    from cdc_platform.cdclog import check_interval_read, read_table_schema
    from cdc_platform.metastore import consumers

    lake = session.lake()
    consumer = _find_consumer(lake, name, table)
    others = [consumers.find_consumer(lake, entry, *consumer.key[1:]) for entry in against]
    schema = read_table_schema(lake, *consumer.key[1:])
    results = check_interval_read(lake, session.clock, schema, consumer, since, until, others)
    if base is not None:
        from cdc_platform.cdclog import check_base_table
        from cdc_platform.storage import read_user_text

        results.append(check_base_table(lake, session.clock, schema, str(base), read_user_text(base)))
    whole = all(entry.holds for entry in results)
    document = {
        "consumer": name,
        "table": schema.full_name,
        "from": format_us(since),
        "until": format_us(until),
        "verified": whole,
        "checks": [{"check": entry.what, "passed": entry.holds, "detail": entry.details} for entry in results],
    }

    def show() -> None:
        width = max(len(entry.what) for entry in results)
        for entry in results:
            show_mark(entry.holds, f"{entry.what:<{width}}  {entry.details}")
        answer = "the consumer read every row" if whole else "not proved that the consumer read every row"
        click.echo(f"{answer}: {schema.full_name} from {format_us(since)} until {format_us(until)} by {name}")

    next_steps = _completeness_next_steps(consumer, until)
    write_result(document, as_json=as_json, show=show, next_steps=next_steps)
    ctx.exit(0 if whole else 1)


def _completeness_next_steps(consumer: Consumer, until: Microseconds) -> list[NextStep]:
    """Return `consume` for a reader of this home that has not reached `until`.

    Return nothing for the reader of a live cluster, since `ingest` moves that one.
    """
    from cdc_platform.cdclog import FROM_CLUSTER

    if consumer.position_us >= until - ONE_US or consumer.name == FROM_CLUSTER:
        return []
    table = format_table_name(*consumer.key[1:])
    return [build_next_step("consume", table, "--name", consumer.name, why="the consumer has not read that far")]


def _find_consumer(lake: Lake, name: str, table: tuple[str, str] | None) -> Consumer:
    """Return the reader with this name: the one of `table`, or else the one of the only table that it reads.

    Raises:
        NotFound: no reader has this name.
        InputError: it reads several tables, and `table` is None.
    """
    from cdc_platform.metastore import consumers

    if table is not None:
        return consumers.find_consumer(lake, name, *table)
    matches = [consumer for consumer in consumers.read_consumers(lake) if consumer.name == name]
    if not matches:
        raise NotFound(f"no consumer {name} is registered; list them with: cdc-platform consumers")
    if len(matches) > 1:
        names = ", ".join(f"{consumer.keyspace_name}.{consumer.table_name}" for consumer in matches)
        raise InputError(f"consumer {name} reads {names}; say which with --table KS.T")
    return matches[0]
