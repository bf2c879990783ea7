"""`cdc-platform consumers`: the readers of CDC logs, how far each has got, and taking one out."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cdc_platform.clock import format_us
from cdc_platform.commands import consumer_plans
from cdc_platform.commands.arguments import TABLE_NAME
from cdc_platform.commands.next_steps import following, write_result
from cdc_platform.commands.output import json_option, write_facts, write_json, write_table
from cdc_platform.commands.session import Session, pass_session
from cdc_platform.errors import InputError

if TYPE_CHECKING:
    from cdc_platform.records.log_gaps import LogGap


@click.group(invoke_without_command=True)
@json_option
@pass_session
@click.pass_context
def consumers(ctx: click.Context, session: Session, as_json: bool) -> None:
    """List the registered readers of CDC logs: the position of each, up to which every row is read.

    A generation, or a stream set of tablets, that a consumer has not read to its end is not removed. One that will
    never come back holds it for ever: take it out with `consumers forget`. Gaps are those of the log that nobody has
    accepted, see `consumers gaps`.

    \b
    Example:
      cdc-platform consumers
      cdc-platform consumers forget audit shop.orders
    """
    if ctx.invoked_subcommand is not None:
        return
    from cdc_platform.log.gaps import log_gaps_of
    from cdc_platform.log.reading.checkpoints import standing_of
    from cdc_platform.records import consumers as registered
    from cdc_platform.records.passed_over import passed_over
    from cdc_platform.timeline import StreamSources

    lake = session.lake()
    passed, sources = passed_over(lake), StreamSources(lake)
    gaps = Counter(gap.full_name for gap in log_gaps_of(lake) if gap.is_open)
    rows = [
        {
            "name": consumer.name,
            "keyspace_name": consumer.keyspace_name,
            "table_name": consumer.table_name,
            "set_timestamp": None if consumer.set_timestamp_us is None else format_us(consumer.set_timestamp_us),
            "position": format_us(consumer.position_us),
            "window_number": consumer.window_number,
            "updated_at": format_us(consumer.updated_at_us),
            "passed_over": [format_us(each) for each in passed.get(consumer.key, ())],
            "gaps": gaps[f"{consumer.keyspace_name}.{consumer.table_name}"],
            "goes_on_in": standing_of(consumer, sources.of(consumer.keyspace_name, consumer.table_name).periods()),
        }
        for consumer in registered.consumers(lake)
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
                    _SAID[row["goes_on_in"]],
                )
                for row in rows
            ],
        )


_SAID = {
    "there": None,
    "removed": "a generation that was removed",
    "gone": "one that is older than all that there are",
    "unknown": "one that nobody knows of",
}
"""Where a checkpoint leads that leads nowhere."""


@consumers.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--table", type=TABLE_NAME, help="The table that is read, where it is a tablet-based one.")
@json_option
@pass_session
@click.pass_context
def checkpoints(ctx: click.Context, session: Session, file: Path, table: tuple[str, str] | None, as_json: bool) -> None:
    """Which checkpoints of FILE lead to generations that are gone: the table of scylla-cdc-go or -rust, as cqlsh
    exports it with its header.

    The exit code is 1 where there are some.

    \b
    Example:
      cdc-platform consumers checkpoints cdc_progress.csv
    """
    from cdc_platform.log.reading.checkpoints import kept_in
    from cdc_platform.timeline import StreamSources
    from cdc_platform.user_files import read_text

    text = read_text(file)
    sources = StreamSources(session.lake())
    source = sources.generations if table is None else sources.of(*table)
    found = kept_in(str(file), text, source.periods())
    rows = [
        {
            "generation": format_us(each.begin_us),
            "checkpoints": each.streams,
            "current": each.is_current,
            "leads_to": each.standing,
        }
        for each in found
    ]
    if as_json:
        write_json(rows)
    else:
        columns = ("generation", ">checkpoints", "a reader is in it", "leads to")
        shown = [(*list(row.values())[:3], _SAID[row["leads_to"]] or "it is there") for row in rows]
        write_table("Checkpoints", columns, shown)
    dead = [each for each in found if each.is_dead]
    if dead and not as_json:
        click.echo(f"{sum(each.streams for each in dead)} checkpoints lead to {len(dead)} generations that are gone")
    ctx.exit(int(bool(dead)))


@consumers.command()
@click.argument("table", type=TABLE_NAME, required=False)
@click.option("--accept", is_flag=True, help="Accept the open gaps of TABLE: no command fails for them any more.")
@click.option("--because", metavar="TEXT", help="Why they are accepted: is kept, and shown from then on.")
@json_option
@pass_session
@click.pass_context
def gaps(
    ctx: click.Context,
    session: Session,
    table: tuple[str, str] | None,
    accept: bool,
    because: str | None,
    as_json: bool,
) -> None:
    """List the intervals of live clusters' logs of which rows may be missing for ever, of TABLE or of all tables.

    The exit code is 1 where there are open ones, which nobody has accepted. What is accepted stays recorded: `complete`
    never proves an interval that overlaps a gap.

    \b
    Example:
      cdc-platform --home .cdc-platform/clusters/prod consumers gaps
      cdc-platform --home .cdc-platform/clusters/prod consumers gaps shop.orders --accept --because "ticket 4711"
    """
    from cdc_platform.log.gaps import log_gaps_of
    from cdc_platform.records import log_gaps

    lake = session.lake()
    if accept != (because is not None) or (accept and table is None):
        raise InputError("--accept and --because TEXT go together, with the TABLE whose gaps are accepted")
    if because is not None and table is not None:
        text = " ".join(because.split())
        if not text:
            raise InputError("--because is empty; say why the gaps are accepted")
        # What follows from the tables of an earlier release alone is recorded first: only that can be accepted.
        unrecorded = [gap for gap in log_gaps_of(lake, [".".join(table)]) if gap.found_at_us is None]
        log_gaps.record(lake, session.clock, unrecorded)
        log_gaps.accept(lake, session.clock, *table, text)
    found = log_gaps_of(lake, None if table is None else [".".join(table)])
    rows = [gap.facts() for gap in found]
    open_ = [gap for gap in found if gap.is_open]
    if as_json:
        write_json(rows)
    else:
        columns = ("table", "reader", "what", "from", "until", "why", "found_at", "accepted")
        shown = [(*(row[name] for name in columns[:-1]), _accepted(gap)) for row, gap in zip(rows, found, strict=True)]
        write_table("Gaps", columns, shown)
        click.echo(f"{len(open_)} open")
    ctx.exit(int(bool(open_)))


def _accepted(gap: LogGap) -> str | None:
    if gap.accepted_at_us is not None:
        return f"{format_us(gap.accepted_at_us)}: {gap.because}"
    return "open" if gap.is_open else None


@consumers.command()
@click.argument("name")
@click.argument("table", type=TABLE_NAME)
@json_option
@pass_session
def forget(session: Session, name: str, table: tuple[str, str], as_json: bool) -> None:
    """Take the consumer NAME of TABLE out: what it has not read may be removed from then on.

    \b
    Example:
      cdc-platform consumers forget audit shop.orders
    """
    from cdc_platform.records import consumers as registered

    registered.forget(session.lake(), name, *table)
    told = {"name": name, "table": ".".join(table), "forgotten": True}
    left = [following("expire", "--dry-run", why="what nobody waits for any more")]
    write_result(told, lambda: write_facts(told.items()), left, as_json=as_json)


consumers.add_command(consumer_plans.plan)
consumers.add_command(consumer_plans.lag)
