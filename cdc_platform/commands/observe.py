"""`cdc-platform observe`: what a live cluster holds goes into the home of that cluster, without a JVM."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from cdc_platform.clock import format_ms
from cdc_platform.commands.import_files import document_of_import, show_import
from cdc_platform.commands.next_steps import following, write_result
from cdc_platform.commands.output import json_option, warn, write_facts
from cdc_platform.commands.session import Session, pass_session

if TYPE_CHECKING:
    from cdc_platform.cluster.observing import Observation
    from cdc_platform.lake.lake import Lake
    from cdc_platform.sources.importing import ImportedGeneration


@click.command()
@click.argument("name", metavar="NAME")
@json_option
@pass_session
@click.pass_context
def observe(ctx: click.Context, session: Session, name: str, as_json: bool) -> None:
    """Look at the cluster NAME once: its nodes, its tables with a log, its generations and stream sets.

    They go into HOME/clusters/NAME, a home of its own, as an import would take them in; the same again changes
    nothing. A generation goes in when two reads have answered alike, and one that is not whole is told of with exit
    code 1. While the topology changes its nodes stay as they were, with a warning. Then every command works on that
    home.

    \b
    Example:
      cdc-platform observe prod
      cdc-platform --home .cdc-platform/clusters/prod generations
      cdc-platform --home .cdc-platform/clusters/prod repair --dry-run
    """
    from cdc_platform.cluster import known
    from cdc_platform.cluster.changes import as_before
    from cdc_platform.cluster.observing import observe as look
    from cdc_platform.lake.lake import Lake

    cluster = known.find(session.open_home(), name)
    seen = look(cluster, session.clock)
    seen.imported.generations = _with_sizes(Lake(cluster.open_home().lake), seen.imported.generations)
    for warning in seen.warnings:
        warn(warning, code="cluster-rows")
    if seen.changing is not None:
        warn(f"{name}: {as_before(seen.changing)}", code="topology-changing")
    for each in seen.incomplete:
        warn(f"left out: {each}", code="left-out")
    left = [following("observe", name, why="until two reads answer alike")] if seen.incomplete else []
    left.append(following("status", home=cluster.at))

    def show() -> None:
        show_import(seen.imported)
        write_facts(
            [
                ("cluster", seen.cluster_name),
                ("version", seen.version),
                *(("table", line) for line in seen.tables_changed),
                ("home", cluster.at),
            ]
        )

    write_result(_document(seen), show, left, as_json=as_json)
    if seen.incomplete:
        ctx.exit(1)


def _with_sizes(lake: Lake, seen: list[ImportedGeneration]) -> list[ImportedGeneration]:
    """Generations with what the home has of those that did not change: their streams were not read again."""
    from cdc_platform.lake.tables import STREAMS_DESCRIPTIONS_V2, UNORDERED_RANGES
    from cdc_platform.timeline import Timeline
    from cdc_platform.timeline.generation_sizes import generation_sizes

    if all(each.ranges for each in seen):
        return seen
    ids = {each.time_ms: each.id for each in Timeline.read(lake).known}
    sizes = {each.time_ms: each for each in generation_sizes(lake)}
    marks = lake.read(UNORDERED_RANGES, ["generation"], [("table_name", "=", STREAMS_DESCRIPTIONS_V2.full_name)])
    unordered = Counter(marks["generation"].to_pylist())

    def with_size(each: ImportedGeneration) -> ImportedGeneration:
        if each.ranges or each.time_ms is None or each.time_ms not in sizes:
            return each
        size, count = sizes[each.time_ms], unordered[format_ms(each.time_ms)]
        counts = {"ranges": size.num_ranges, "streams": size.num_streams, "unordered_ranges": count}
        return replace(each, id=each.id or ids.get(each.time_ms), **counts)

    return [with_size(each) for each in seen]


def _document(seen: Observation) -> dict[str, object]:
    return {
        "cluster_name": seen.cluster_name,
        "version": seen.version,
        **document_of_import(seen.imported),
        "tables_changed": seen.tables_changed,
        "incomplete": [each.line for each in seen.incomplete],
        "changing": seen.changing,
        "changes": [each.document() for each in seen.changes],
    }
