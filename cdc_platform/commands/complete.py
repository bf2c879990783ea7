"""`cdc-platform complete`: was everything between two times read by a consumer; what has to hold for it, one by one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cdc_platform.clock import ONE_US, Microseconds, format_us
from cdc_platform.commands.arguments import TABLE_NAME, TIME
from cdc_platform.commands.next_steps import Next, following, write_result
from cdc_platform.commands.output import escaped, json_option
from cdc_platform.commands.session import Session, pass_session
from cdc_platform.cql.names import written_table_name
from cdc_platform.errors import InputError, NotFound

if TYPE_CHECKING:
    from cdc_platform.lake.lake import Lake
    from cdc_platform.records.consumers import Consumer


@click.command()
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
def complete(
    ctx: click.Context,
    session: Session,
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
      cdc-platform complete 2026-01-31T12:00:00Z 2026-01-31T13:00:00Z --consumer audit
      cdc-platform complete 2026-01-31T00:00:00Z 2026-02-01T00:00:00Z --consumer audit --against search --json
    """
    from cdc_platform.log.audit.wholeness import judge
    from cdc_platform.log.ddl import schema_of
    from cdc_platform.records import consumers

    lake = session.lake()
    consumer = _consumer(lake, name, table)
    others = [consumers.find(lake, each, *consumer.key[1:]) for each in against]
    schema = schema_of(lake, *consumer.key[1:])
    held = judge(lake, session.clock, schema, consumer, since, until, others)
    if base is not None:
        from cdc_platform.log.audit.base import judge_base
        from cdc_platform.user_files import read_text

        held.append(judge_base(lake, session.clock, schema, str(base), read_text(base)))
    whole = all(each.holds for each in held)
    told = {"consumer": name, "table": schema.full_name, "from": format_us(since), "until": format_us(until)}
    checks = [{"check": each.what, "holds": each.holds, "found": each.found} for each in held]
    answer = "everything was read" if whole else "it is not proved that everything was read"

    def show() -> None:
        width = max(len(each.what) for each in held)
        for each in held:
            mark = click.style("✓", fg="green") if each.holds else click.style("✗", fg="red")
            click.echo(f"{mark} {each.what:<{width}}  {escaped(each.found)}")
        click.echo(f"{answer}: {schema.full_name} from {format_us(since)} until {format_us(until)} by {name}")

    left = _left(consumer, until)
    write_result({**told, "complete": whole, "checks": checks}, show, left, as_json=as_json)
    ctx.exit(0 if whole else 1)


def _left(consumer: Consumer, until: Microseconds) -> list[Next]:
    """A reader of this home that is not there yet goes on; of what a live cluster is read by, `ingest` knows."""
    from cdc_platform.log.reading.reader import FROM_CLUSTER

    if consumer.position_us >= until - ONE_US or consumer.name == FROM_CLUSTER:
        return []
    table = written_table_name(*consumer.key[1:])
    return [following("consume", table, "--name", consumer.name, why="it has not come that far")]


def _consumer(lake: Lake, name: str, table: tuple[str, str] | None) -> Consumer:
    """The reader of this name, of the only table that it reads unless one is named.

    Raises:
        NotFound: there is none.
        InputError: it reads several tables, and none is named.
    """
    from cdc_platform.records import consumers

    if table is not None:
        return consumers.find(lake, name, *table)
    found = [each for each in consumers.consumers(lake) if each.name == name]
    if not found:
        raise NotFound(f"no consumer {name} is registered; list them with: cdc-platform consumers")
    if len(found) > 1:
        names = ", ".join(f"{each.keyspace_name}.{each.table_name}" for each in found)
        raise InputError(f"consumer {name} reads {names}; say which with --table KS.T")
    return found[0]
