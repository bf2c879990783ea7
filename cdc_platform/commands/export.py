"""`cdc-platform export`: what the home holds of ScyllaDB's own tables, as files."""

from __future__ import annotations

from pathlib import Path

import click

from cdc_platform.commands.output import json_option, write_json, write_table
from cdc_platform.commands.session import Session, pass_session


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@json_option
@pass_session
def export(session: Session, folder: Path, as_json: bool) -> None:
    """Write the generations, stream sets and the ring of the home into DIR, which is made.

    A file a table, as cqlsh's COPY ... TO writes it: COPY ... FROM takes it, and so does import. load.cql loads them
    into a server that has ScyllaDB's tables, for a rehearsal beside production: run it there by cqlsh -f load.cql.
    cdc_local, which is of one node each, is not in it. The same home gives the same bytes.

    \b
    Example:
      cdc-platform export exported
      cd exported && cqlsh 127.0.0.1 -f load.cql
    """
    from cdc_platform.sources.exporting import SCRIPT
    from cdc_platform.sources.exporting import export as write_files

    written = write_files(session.view(), folder)
    told = {
        "folder": str(folder),
        "script": SCRIPT,
        "files": [{"name": each.name, "of": each.of, "rows": each.rows} for each in written],
    }
    columns = ("file", "of", ">rows")
    rows = [(each.name, each.of, each.rows) for each in written]
    write_json(told) if as_json else write_table(f"Written to {folder}", columns, rows)
