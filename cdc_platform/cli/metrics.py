"""`cdc-platform metrics`: print the metrics of a home."""

from __future__ import annotations

import click

from cdc_platform.cli.output import warn
from cdc_platform.cli.session import CliSession, pass_session


@click.command()
@pass_session
@click.pass_context
def metrics(ctx: click.Context, session: CliSession) -> None:
    """Print the metrics of the home and of its clusters as OpenMetrics text.

    They cover ingests and their lag against the TTL, gaps, generations, the inbox and checks. `up` serves the same at
    /metrics. It starts no JVM and writes nothing. The exit code is 1 if something could not be read; its metrics are
    missing then.

    \b
    Example:
      cdc-platform metrics
      cdc-platform metrics > /var/lib/node_exporter/cdc_platform.prom
    """
    from cdc_platform.metrics import HomeMetrics, format_metrics

    home = session.open_home()
    scrape = HomeMetrics(home.location, home.clock).scrape()
    for problem in scrape.problems:
        warn(problem, code="metrics-incomplete")
    text, _ = format_metrics(scrape)
    click.echo(text.decode(), nl=False)  # as text: click writes bytes past `StandardStream`
    ctx.exit(int(bool(scrape.problems)))
