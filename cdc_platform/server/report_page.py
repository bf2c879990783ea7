"""Generate one report page for the UI: `python -m cdc_platform.server.report_page --home HOME NAME`.

A separate process returns its memory when it ends. It prints the generation's key on the first line, and then the page
if NAME is that key.
"""

from __future__ import annotations

import sys

import click

from cdc_platform.clock import Clock
from cdc_platform.errors import PlatformError
from cdc_platform.home_location import open_home_location
from cdc_platform.plots import ui_files
from cdc_platform.runtime import tune_short_process
from cdc_platform.storage import atomic


@click.command()
@click.option("--home", required=True)
@click.option("--store", is_flag=True, help="Store the page in the home, if it has none yet.")
@click.argument("name")
def report_page(home: str, store: bool, name: str) -> None:
    """Print the key of the generation that goes by NAME, and the page if that is NAME."""
    from cdc_platform.delta import Lake
    from cdc_platform.reporting import ReportSource, make_page
    from cdc_platform.timeline import GenerationKeys, get_generation_names, resolve_generation

    opened, clock = open_home_location(home, create=False), Clock()
    lake = Lake(opened.lake)
    keys = GenerationKeys.read(lake)
    names = get_generation_names(lake, keys, resolve_generation(lake, keys, name, clock.now_us()))
    click.echo(names.key)
    page = ui_files.report_file(opened.path, names.key)
    if page is None or page != ui_files.report_file(opened.path, name):
        return
    if page.file.exists():
        content = page.file.read_bytes()
    else:
        content = make_page(ReportSource(lake, clock, opened.settings), [names])[1].encode()
        if store:
            page.file.parent.mkdir(parents=True, exist_ok=True)
            atomic.write_bytes_atomically(page.file, content)
    sys.stdout.buffer.write(content)


def _main() -> None:
    tune_short_process()
    try:
        report_page(standalone_mode=False)
    except (PlatformError, click.ClickException, OSError) as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    _main()
