"""`cdc-platform export`: export generations, stream sets, logs and the ring as files or into a test cluster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cdc_platform.cli.next_steps import build_next_step
from cdc_platform.cli.output import json_option, warn
from cdc_platform.cli.progress import show_progress
from cdc_platform.cli.render import View, show_document, show_rows, write_result
from cdc_platform.cli.session import CliSession, pass_session
from cdc_platform.errors import InputError

if TYPE_CHECKING:
    from cdc_platform.cdclog import StoredLog
    from cdc_platform.scylla import ClusterExport


@click.command()
@click.argument("folder", metavar="[DIR]", required=False, type=click.Path(path_type=Path))
@click.option("--cluster", "name", metavar="NAME", help="Write into this test cluster instead.")
@click.option("--dry-run", is_flag=True, help="With --cluster: list what would be written.")
@click.option("--prefix", default="scylla", show_default=True, help="With --cluster: prefix for system tables.")
@click.option("--rate", type=click.IntRange(1, 500_000), default=2_000, show_default=True, help="Rows a second.")
@click.option(
    "--replicas",
    type=click.IntRange(1, 100),
    default=1,
    show_default=True,
    help="Replication factor of keyspaces that it creates.",
)
@json_option
@pass_session
def export(
    session: CliSession,
    folder: Path | None,
    name: str | None,
    dry_run: bool,
    prefix: str,
    rate: int,
    replicas: int,
    as_json: bool,
) -> None:
    """Export the generations, stream sets, logs and the ring of the home into the new folder DIR.

    One file per table, as cqlsh's COPY ... TO writes it; COPY ... FROM and import read it. logs/tables.cql creates
    tables for the logs, and load.cql loads everything into a server with ScyllaDB's tables: run both with cqlsh -f.
    cdc_local, which is per node, is not loaded. The same home gives the same bytes.

    --cluster writes the published tables and the logs into a registered cluster. Its keyspaces must be new, empty, or
    marked by a table cdc_platform_export; in a cluster that was ever observed they must be marked. The home's own
    cluster is always refused. Repeating an export changes nothing; run an interrupted one again to finish it.

    \b
    Example:
      cdc-platform export exported
      cd exported && cqlsh 127.0.0.1 -f logs/tables.cql && cqlsh 127.0.0.1 -f load.cql
      cdc-platform export --cluster rehearsal --dry-run
    """
    if (folder is None) == (name is None):
        raise InputError("export writes into a folder, as in: export DIR, or with --cluster NAME into a cluster")
    if name is None and dry_run:
        raise InputError("--dry-run goes with --cluster; export DIR writes a new folder and nothing else")
    if folder is not None:
        _export_to_folder(session, folder, as_json)
        return
    from cdc_platform.cdclog import list_stored_logs
    from cdc_platform.scylla import export_into_cluster, registry

    home = session.open_location()
    cluster = registry.find_cluster(home, name or "")
    _warn_of_missing_columns(list_stored_logs(session.view()))
    with show_progress("exporting"):
        done = export_into_cluster(home, cluster, prefix=prefix, rate=rate, replicas=replicas, run=not dry_run)

    words = "Would be written" if dry_run else "Written"
    rows = [
        {"table": table.full_name, "keyspace is": done.keyspaces[table.keyspace], "rows": table.rows}
        for table in done.tables
    ]

    def show() -> None:
        show_rows(rows, View("", f"{words} to {done.cluster}"))
        if dry_run:
            show_document({"rows": done.rows, "least_seconds": round(done.rows / rate, 1)}, {})

    context = click.get_current_context()
    values = {"prefix": prefix, "rate": rate, "replicas": replicas}
    given = [name for name in values if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE]
    options = [word for option in given for word in (f"--{option}", values[option])]
    next_steps = [build_next_step("export", "--cluster", cluster.name, *options)] if dry_run else []
    write_result(_export_document(done, dry_run), as_json=as_json, show=show, next_steps=next_steps)


def _export_to_folder(session: CliSession, folder: Path, as_json: bool) -> None:
    from cdc_platform.cdclog import list_stored_logs, log_csv_tables
    from cdc_platform.importing import LOAD_SCRIPT_FILE
    from cdc_platform.importing import export_files as write_files

    lake = session.view()
    logs = list_stored_logs(lake)
    statements = dict.fromkeys(line for log in logs for line in log.ddl)
    with show_progress("exporting"):
        written = write_files(lake, folder, log_csv_tables(logs), list(statements), home=session.open_location().path)
    _warn_of_missing_columns(logs)
    for file in written:
        if file.read_otherwise:
            warn(
                f"{file.name} has {file.read_otherwise} rows with line breaks, or with backslashes in collections, "
                "which not every cqlsh loads as they are; use: cdc-platform export --cluster NAME",
                code="not-for-cqlsh",
            )
    document = {
        "folder": str(folder),
        "script": LOAD_SCRIPT_FILE,
        "files": [{"name": file.name, "table": file.of, "rows": file.rows} for file in written],
    }
    views = {"folder": None, "script": None, "files": View("name table rows", f"Written to {folder}")}
    write_result(document, as_json=as_json, views=views)


def _warn_of_missing_columns(logs: Sequence[StoredLog]) -> None:
    """Warn of the columns whose values no export includes."""
    for log in logs:
        if log.left_out:
            warn(
                f"{log.full_name}: {', '.join(log.left_out)} are not exported: they are of columns that were dropped, "
                "and made again with another type; sql shows them",
                code="left-out",
            )


def _export_document(done: ClusterExport, dry_run: bool) -> dict[str, Any]:
    return {
        "cluster": done.cluster,
        "written": not dry_run,
        "keyspaces": done.keyspaces,
        "tables": [{"table": table.full_name, "rows": table.rows} for table in done.tables],
        "statements": done.statements if dry_run else [],
        "rows": done.rows,
    }
