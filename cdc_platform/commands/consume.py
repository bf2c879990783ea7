"""`cdc-platform consume`: copy what a consumer has not read yet of a table's CDC log into a table of its own."""

from __future__ import annotations

from functools import partial

import click

from cdc_platform.clock import Microseconds, format_us
from cdc_platform.commands.arguments import TABLE_NAME, TIME
from cdc_platform.commands.output import json_option, warn, write_facts, write_json
from cdc_platform.commands.session import Session, pass_session


@click.command()
@click.argument("table", type=TABLE_NAME)
@click.option("--name", required=True, help="Name of the consumer: letters, digits and underscores.")
@click.option("--until", "until_us", type=TIME, help="Read nothing after this time, for example 2026-01-31T12:00:00Z.")
@json_option
@pass_session
def consume(session: Session, table: tuple[str, str], name: str, until_us: Microseconds | None, as_json: bool) -> None:
    """Read what is new in the CDC log of TABLE, generation after generation, into KS.T_scylla_cdc_log_NAME.

    Each row goes in once, whatever happens in between: a run that is killed goes on where it was. Rows younger than 30
    seconds wait for the next run. No JVM is started.

    \b
    Example:
      cdc-platform consume shop.orders --name audit
      cdc-platform consume shop.orders --name audit --until 2026-01-31T12:00:00Z
    """
    from cdc_platform.log.ddl import schema_of
    from cdc_platform.log.gaps import log_gaps_of, told
    from cdc_platform.log.reading import reader

    reader.check_name(name)
    lake = session.lake()
    schema = schema_of(lake, *table)
    consumer, rows = reader.consume(
        lake, session.clock, schema, name, until_us=until_us, tell=partial(warn, code="reading")
    )
    for line in told(lake, [schema.full_name]):
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
        write_json({**facts, "gaps": [gap.facts() for gap in log_gaps_of(lake, [schema.full_name])]})
    else:
        write_facts(facts.items())
