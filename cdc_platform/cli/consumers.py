"""`cdc-platform consumers`, `consume` and `verify-interval`: list CDC log readers, plan, run and verify them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cdc_platform.cli.next_steps import NextStep, build_next_step, write_result
from cdc_platform.cli.output import escape_unprintable, json_option, warn, write_facts, write_json, write_table
from cdc_platform.cli.params import TABLE_NAME, TIME, TTL
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
    """How many windows, requests and checkpoints a client makes that starts without a checkpoint, and then each day.

    Of TABLE, by the generations that its log can have rows of; or of a generation of --streams, or of the ring after
    --add-nodes, that has operated for all of the TTL. Settings left out are the client's defaults.

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
    if as_json:
        write_json(document)
    else:
        _show_plan(client, read_plan, document)
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
    """How long after a generation has begun a client that has caught up sees its first rows, at most, and why.

    Settings left out are the client's defaults; for `java` and `connector` --cycle is the query window.

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
        rows.append({"client": client.name, **asdict(estimate), "most_s": estimate.most_s})
    if as_json:
        write_json(rows)
        return
    columns = ("client", ">behind the clock", ">next read", ">sees the generation", ">writes checkpoints", ">at most")
    write_table("Seconds from a generation's begin to its first row", columns, [list(row.values()) for row in rows])


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


def _show_plan(client: CdcClient, made: ClientReadPlan, told: dict[str, Any]) -> None:
    asks_by_shard = client.name == "alternator"
    behind = f"{client.confidence_s} s behind the clock"
    how = f"a shard each {client.cycle_s} s" if asks_by_shard else f"windows of {client.window_s} s"
    back = f"TTL {told['ttl_seconds']} s" if client.starts_s is None else f"the last {client.starts_s} s"
    sets = f"{told['generations']} generations or stream sets"
    facts: list[tuple[str, object]] = [
        ("client", f"{client.name}: {how}, {behind}"),
        ("reads", f"{told['streams']:,} streams in {made.groups:,} groups, {sets}, {back}"),
        ("cold start", f"{made.windows:,} windows of each group, {made.requests:,} requests in all"),
        ("then", f"{made.requests_a_day:,} requests a day, {made.requests_a_day / DAY_SECONDS:,.1f} a second"),
        ("checkpoints", f"{made.checkpoints:,} kept, at most {made.checkpoint_writes_a_day:,} written a day"),
    ]
    if asks_by_shard:
        facts[2] = ("cold start", f"{made.requests:,} shards, a request for each and more where it has many rows")
        facts.append(("list of shards", f"{made.pages_of_streams:,} calls of DescribeStream each time"))
    write_facts(facts)


@click.group(invoke_without_command=True)
@json_option
@pass_session
@click.pass_context
def consumers(ctx: click.Context, session: CliSession, as_json: bool) -> None:
    """List the registered readers of CDC logs: the position of each, up to which every row is read.

    A generation, or a stream set of tablets, that a consumer has not read to its end is not removed. One that will
    never come back holds it for ever: take it out with `consumers remove`. Gaps are those of the log that nobody has
    accepted, see `consumers gaps`.

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
            "passed_over": [format_us(time_us) for time_us in passed.get(consumer.key, ())],
            "gaps": gaps[f"{consumer.keyspace_name}.{consumer.table_name}"],
            "goes_on_in": get_checkpoint_status(
                consumer, sources.of(consumer.keyspace_name, consumer.table_name).periods()
            ),
        }
        for consumer in registered.read_consumers(lake)
    ]
    if as_json:
        write_json(rows)
    else:
        columns = (
            "name",
            "table",
            "generation or set",
            "position",
            ">windows",
            "updated_at",
            "passed over",
            ">gaps",
            "goes on in",
        )
        write_table(
            "Consumers",
            columns,
            [
                (
                    row["name"],
                    f"{row['keyspace_name']}.{row['table_name']}",
                    row["set_timestamp"],
                    row["position"],
                    row["window_number"],
                    row["updated_at"],
                    ", ".join(row["passed_over"]) or None,
                    row["gaps"],
                    _CHECKPOINT_TARGETS[row["goes_on_in"]],
                )
                for row in rows
            ],
        )


_CHECKPOINT_TARGETS = {
    "there": None,
    "removed": "a generation that was removed",
    "gone": "one that is older than all that there are",
    "unknown": "one that nobody knows of",
}
"""Text for a checkpoint whose generation or set is not here, by its status; None if it is."""


@consumers.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--table", type=TABLE_NAME, help="The table that is read, where it is a tablet-based one.")
@json_option
@pass_session
@click.pass_context
def checkpoints(
    ctx: click.Context, session: CliSession, file: Path, table: tuple[str, str] | None, as_json: bool
) -> None:
    """Which checkpoints of FILE lead to generations that are gone: the table of scylla-cdc-go or -rust, as cqlsh
    exports it with its header.

    The exit code is 1 where there are some.

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
            "leads_to": group.standing,
        }
        for group in groups
    ]
    if as_json:
        write_json(rows)
    else:
        columns = ("generation", ">checkpoints", "a reader is in it", "leads to")
        cells = [(*list(row.values())[:3], _CHECKPOINT_TARGETS[row["leads_to"]] or "it is there") for row in rows]
        write_table("Checkpoints", columns, cells)
    dead = [group for group in groups if group.is_dead]
    if dead and not as_json:
        click.echo(f"{sum(group.streams for group in dead)} checkpoints lead to {len(dead)} generations that are gone")
    ctx.exit(int(bool(dead)))


@consumers.command(cls=WritingCommand, writes=("platform.log_gaps",), only_with="accept")
@click.argument("table", type=TABLE_NAME, required=False)
@click.option("--accept", is_flag=True, help="Accept the open gaps of TABLE: no command fails for them any more.")
@click.option("--reason", metavar="TEXT", help="Why they are accepted: is kept, and shown from then on.")
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
    """List the intervals of live clusters' logs of which rows may be missing for ever, of TABLE or of all tables.

    The exit code is 1 while any gap is not accepted. Accepted gaps stay recorded: `verify-interval` never proves an
    interval that overlaps a gap.

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
    if as_json:
        write_json(rows)
    else:
        columns = ("table", "reader", "what", "from", "until", "why", "found_at", "accepted")
        cells = [
            (*(row[name] for name in columns[:-1]), _gap_state(gap)) for row, gap in zip(rows, listed, strict=True)
        ]
        write_table("Gaps", columns, cells)
        click.echo(f"{len(open_)} open")
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
    """Take the consumer NAME of TABLE out: what it has not read may be removed from then on.

    \b
    Example:
      cdc-platform consumers remove audit shop.orders
    """
    from cdc_platform.metastore import consumers as registered

    registered.forget_consumer(session.lake(), name, *table)
    result = {"name": name, "table": ".".join(table), "forgotten": True}
    next_steps = [build_next_step("expire", "--dry-run", why="what nobody waits for any more")]
    write_result(result, lambda: write_facts(result.items()), next_steps, as_json=as_json)


consumers.add_command(plan)
consumers.add_command(lag)


@click.command(cls=WritingCommand, writes=("platform.consumers", "platform.passed_over"))
@click.argument("table", type=TABLE_NAME)
@click.option("--name", required=True, help="Name of the consumer: letters, digits and underscores.")
@click.option("--until", "until_us", type=TIME, help="Read nothing after this time, for example 2026-01-31T12:00:00Z.")
@json_option
@pass_session
def consume(
    session: CliSession, table: tuple[str, str], name: str, until_us: Microseconds | None, as_json: bool
) -> None:
    """Read what is new in the CDC log of TABLE, generation after generation, into KS.T_scylla_cdc_log_NAME.

    Each row goes in once, whatever happens in between: a run that is killed goes on where it was. Rows younger than 30
    seconds wait for the next run. No JVM is started.

    \b
    Example:
      cdc-platform consume shop.orders --name audit
      cdc-platform consume shop.orders --name audit --until 2026-01-31T12:00:00Z
    """
    from cdc_platform.cdclog import describe_gaps, read_log_gaps, read_table_schema, reader

    reader.validate_consumer_name(name)
    lake = session.lake()
    schema = read_table_schema(lake, *table)
    consumer, rows = reader.consume(
        lake, session.clock, schema, name, until_us=until_us, tell=partial(warn, code="reading")
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
    if as_json:
        write_json({**facts, "gaps": [gap.facts() for gap in read_log_gaps(lake, [schema.full_name])]})
    else:
        write_facts(facts.items())


@click.command("verify-interval")
@click.argument("since", metavar="A", type=TIME)
@click.argument("until", metavar="B", type=TIME)
@click.option("--consumer", "name", required=True, metavar="NAME", help="The reader, as `consumers` lists it.")
@click.option("--table", type=TABLE_NAME, help="Whose log; needed where the reader reads several.")
@click.option("--against", metavar="NAME", multiple=True, help="A second reader of the log, to be compared with.")
@click.option(
    "--base",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="What cqlsh prints of SELECT JSON * FROM the table now: compared with what the whole log amounts to.",
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
    """Prove that the rows from A up to and without B were all read by a consumer, or say what speaks against it.

    Rows are compared one by one: what the log has against what the consumer has, and back, so that a batch which either
    has lost as a whole is found. One that both have lost is found --against a second reader that has it, or by the
    rows of the base table (--base). The exit code is 1 where something does not hold.

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
    document = {"consumer": name, "table": schema.full_name, "from": format_us(since), "until": format_us(until)}
    checks = [{"check": entry.what, "holds": entry.holds, "found": entry.found} for entry in results]
    answer = "everything was read" if whole else "it is not proved that everything was read"

    def show() -> None:
        width = max(len(entry.what) for entry in results)
        for entry in results:
            mark = click.style("✓", fg="green") if entry.holds else click.style("✗", fg="red")
            click.echo(f"{mark} {entry.what:<{width}}  {escape_unprintable(entry.found)}")
        click.echo(f"{answer}: {schema.full_name} from {format_us(since)} until {format_us(until)} by {name}")

    next_steps = _completeness_next_steps(consumer, until)
    write_result({**document, "complete": whole, "checks": checks}, show, next_steps, as_json=as_json)
    ctx.exit(0 if whole else 1)


def _completeness_next_steps(consumer: Consumer, until: Microseconds) -> list[NextStep]:
    """Return `consume` for a reader of this home that has not reached `until`.

    Return nothing for the reader of a live cluster, since `ingest` moves that one.
    """
    from cdc_platform.cdclog import FROM_CLUSTER

    if consumer.position_us >= until - ONE_US or consumer.name == FROM_CLUSTER:
        return []
    table = format_table_name(*consumer.key[1:])
    return [build_next_step("consume", table, "--name", consumer.name, why="it has not come that far")]


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
