"""`cdc-platform import`: import ring snapshots and exports, all of them or none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING
from uuid import UUID

import click

from cdc_platform.cli.next_steps import build_next_step
from cdc_platform.cli.output import format_optional_ms, json_option, warn
from cdc_platform.cli.params import IGNORE_MSB, SHARDS
from cdc_platform.cli.progress import show_progress
from cdc_platform.cli.render import View, write_result
from cdc_platform.cli.session import CliSession, pass_session
from cdc_platform.cli.write_rules import IMPORTED_TABLES, WritingCommand
from cdc_platform.delta import WriteSource

if TYPE_CHECKING:
    from cdc_platform.importing import ImportReport, ImportSources


_MAX_ISSUES = 10


@click.command("import", cls=WritingCommand, writes=IMPORTED_TABLES, source=WriteSource.STATED)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option("--shards", type=SHARDS, help="Shards of the nodes of a ring snapshot that does not say.")
@click.option("--ignore-msb", type=IGNORE_MSB, help="ignore_msb of nodes, or of exported streams, that is not known.")
@click.option("--node", metavar="HOST_ID", type=click.UUID, help="The node that an export of cdc_local is of.")
@click.option(
    "--allow-incomplete", is_flag=True, help="Import incomplete metadata, too; nothing can be built on the home then."
)
@click.option("--repair", is_flag=True, help="Restore damaged rows of imported tables from the same files.")
@json_option
@pass_session
@click.pass_context
def import_files(
    ctx: click.Context,
    session: CliSession,
    paths: tuple[str, ...],
    shards: int | None,
    ignore_msb: int | None,
    node: UUID | None,
    allow_incomplete: bool,
    repair: bool,
    as_json: bool,
) -> None:
    """Import files, or all known files in folders. Importing the same files again changes nothing.

    A ring snapshot is a JSON list of nodes and replaces the ring. A cqlsh export is a file that
    COPY ... TO ... WITH HEADER = true wrote, or the output of SELECT or SELECT JSON, of one of these tables:
    cdc_generation_timestamps, cdc_streams_descriptions_v2, cdc_generation_descriptions_v2, the V1 tables
    cdc_streams_descriptions and cdc_generation_descriptions, a node's cdc_local, and cdc_timestamps and cdc_streams of
    tablet-based tables. A file with only a header is an empty table. Also accepted: system.topology,
    cdc_generations_v3, cdc_streams_state and cdc_streams_history, and the output of DESCRIBE SCHEMA, nodetool ring,
    nodetool status and nodetool describering. The content of a file shows its type.

    Incomplete data is refused: missing rows, streams outside their range, streams without their time.
    --allow-incomplete imports it for inspection by check; commands that build on such a home refuse.

    --repair restores rows reported by `check --deep` from the same files; nothing else is imported, and rows must equal
    the committed ones. The exit code is 1 if damage remains.

    \b
    Example:
      cdc-platform import ring.json --shards 8 --ignore-msb 12
      cdc-platform import timestamps.csv streams.csv descriptions.csv
      cdc-platform import local.csv --node 5f0c3c5e-3f6f-4f6e-9a57-0d8b1f1f2a10
      cdc-platform import cdc_timestamps.csv cdc_streams.csv
      cdc-platform import --repair timestamps.csv streams.csv descriptions.csv
    """
    from cdc_platform.delta import Lake
    from cdc_platform.importing import import_sources, read_import_sources

    def read() -> ImportSources:
        return read_import_sources(
            paths, shards, ignore_msb, None if node is None else str(node), allow_incomplete=allow_incomplete
        )

    if repair:
        ctx.exit(_restore_rows(session, read, as_json))
    sources = read()
    with session.making_home() as home, show_progress("importing"):
        report = import_sources(Lake(home.lake), session.clock, sources)
    for warning in report.warnings:
        warn(warning, code="import-incomplete")
    for line in report.turned_off:
        warn(line, code="cdc-turned-off")
    for issue in report.issues[:_MAX_ISSUES]:
        warn(issue, code="flaw")
    if report.issues:
        more = len(report.issues) - _MAX_ISSUES
        warn(
            f"{f'and {more} more; ' if more > 0 else ''}what is not whole was taken in as it is: the home is only "
            "observed until cdc-platform check is clean, and nothing is built on it",
            code="only-observed",
        )
    next_steps = [build_next_step("check")] if report.issues else []
    write_result(build_import_document(report), as_json=as_json, views=IMPORT_VIEWS, next_steps=next_steps)


def _restore_rows(session: CliSession, read: Callable[[], ImportSources], as_json: bool) -> int:
    """Restore damaged rows from the files. Return the exit code."""
    from cdc_platform.importing import restore_rows

    done, remaining = restore_rows(session.lake(), session.clock, read)
    restored = [
        {"table": partition.table, "partition": partition.slice, "version": partition.version} for partition in done
    ]
    views = {"restored": View("table partition version", "Restored rows"), "unrepaired": None}
    next_steps = [build_next_step("check", "--deep")] if restored else []
    document = {"restored": restored, "unrepaired": remaining}
    write_result(document, as_json=as_json, views=views, next_steps=next_steps)
    for line in remaining:
        warn(line, code="stays-damaged")
    return int(bool(remaining))


def build_import_document(report: ImportReport) -> dict[str, object]:
    """Return the result of an import as a JSON document."""
    return {
        "nodes": {"added": report.nodes_added, "changed": report.nodes_changed, "removed": report.nodes_removed},
        "generations": [
            {
                "id": generation.id,
                "time": format_optional_ms(generation.time_ms),
                "expired": format_optional_ms(generation.expired_ms),
                "num_ranges": generation.ranges,
                "num_streams": generation.streams,
                "unordered_ranges": generation.unordered_ranges,
            }
            for generation in report.generations
        ],
        "stream_sets": [
            {
                "table": stream_set.table,
                "timestamp": format_optional_ms(stream_set.time_ms),
                "num_streams": stream_set.streams,
                "num_closed": stream_set.closed,
                "num_opened": stream_set.opened,
                "new": stream_set.new,
            }
            for stream_set in report.stream_sets
        ],
        "issues": report.issues,
        "rows_written": report.rows_written,
    }


IMPORT_VIEWS: Mapping[str, View | None] = {
    "generations": View("time id num_ranges num_streams unordered_ranges expired", "Generations"),
    "stream_sets": View("table timestamp num_streams num_closed num_opened new", "Stream sets of tablets"),
    "issues": None,
}
"""How a screen shows the document of an import."""
