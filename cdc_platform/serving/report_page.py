"""The page of a generation for the UI, as `python -m cdc_platform.serving.report_page --home HOME NAME`.

It is a process of its own, whose memory goes with it. The first line of what it prints is the key of the generation
that goes by the name; the page follows where that is the key itself.
"""

from __future__ import annotations

import sys

import click

from cdc_platform import drafts, shown
from cdc_platform.clock import Clock
from cdc_platform.errors import PlatformError
from cdc_platform.home import open_home
from cdc_platform.interpreter import be_lean


@click.command()
@click.option("--home", required=True)
@click.option("--keep", is_flag=True, help="Keep the page in the home, if it has none yet.")
@click.argument("name")
def report_page(home: str, keep: bool, name: str) -> None:
    """Print the key of the generation that goes by NAME, and the page if that is NAME."""
    from cdc_platform.lake.lake import Lake
    from cdc_platform.report.making import make
    from cdc_platform.report.record import Home
    from cdc_platform.timeline.keys import Keys
    from cdc_platform.timeline.parts import generation_called, names_of

    opened, clock = open_home(home, create=False), Clock()
    lake = Lake(opened.lake)
    keys = Keys.read(lake)
    names = names_of(lake, keys, generation_called(lake, keys, name, clock.now_us()))
    click.echo(names.key)
    page = shown.report(opened.path, names.key)
    if page is None or page != shown.report(opened.path, name):
        return
    if page.file.exists():
        content = page.file.read_bytes()
    else:
        content = make(Home(lake, clock, opened.settings), [names])[1].encode()
        if keep:
            page.file.parent.mkdir(parents=True, exist_ok=True)
            drafts.write_bytes(page.file, content)
    sys.stdout.buffer.write(content)


def _main() -> None:
    be_lean()
    try:
        report_page(standalone_mode=False)
    except (PlatformError, click.ClickException, OSError) as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    _main()
