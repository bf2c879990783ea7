"""`cdc-platform history`: who wrote what of a generation, or to the log of a base table; or what a run has written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from cdc_platform.clock import Milliseconds
from cdc_platform.commands.arguments import TABLE_NAME
from cdc_platform.commands.output import json_option, write_json, write_table
from cdc_platform.commands.session import Session, pass_session
from cdc_platform.errors import NotFound

if TYPE_CHECKING:
    from cdc_platform.lake.commits import Commit
    from cdc_platform.lake.lake import Lake
    from cdc_platform.lake.tables import Table
    from cdc_platform.timeline.keys import Keys

_COLUMNS = ("at", "table", ">version", "what", ">rows", "who", "by", "run")
_OF_CLUSTER = ("at", "who", "what", "seen_by", "by", "run")


@click.command()
@click.argument("generation", required=False)
@click.option("--run", metavar="RUN_ID", help="What this run of Dagster has committed, in every table.")
@click.option(
    "--table",
    type=TABLE_NAME,
    metavar="KS.T",
    help="The log of this base table, and the table itself where it is kept.",
)
@click.option(
    "--cluster", "of_cluster", is_flag=True, help="What became other in the live cluster that this home is of."
)
@json_option
@pass_session
def history(
    session: Session,
    generation: str | None,
    run: str | None,
    table: tuple[str, str] | None,
    of_cluster: bool,
    as_json: bool,
) -> None:
    """Who wrote what of GENERATION: each commit that changed its rows in any table, oldest first, with its run.

    GENERATION is a UUID or its begin, a time, latest, operating, or the name of its partition in Dagster; one that was
    withdrawn or removed has its history still. --run RUN_ID goes the other way: from a run to its commits. --table KS.T
    tells the commits to the table's log, and to what `ingest --current` keeps of it, with the slices of the ring that
    each has changed. What is told goes back as far as Delta keeps its log and its files. --cluster tells what became
    other in the live cluster from one look to the next, who has looked and by which door: all of it, from the first
    look on.

    \b
    Example:
      cdc-platform history latest
      cdc-platform history 12_10.0.0.4_5f0c3c5e
      cdc-platform history --run 2f9c2f6e-2b5e-4e0c-9d1c-9c1f3f0a7c11 --json
      cdc-platform history --table shop.orders
      cdc-platform --home .cdc-platform/clusters/prod history --cluster
    """
    if sum(each is not None for each in (generation, run, table, of_cluster or None)) != 1:
        raise click.UsageError("name one of: a GENERATION, --run RUN_ID, --table KS.T, --cluster")
    lake = session.lake()
    if of_cluster:
        _show_cluster(lake, as_json)
        return
    if run is not None:
        from cdc_platform.report.writes import order

        title, told = f"Commits of run {run}", sorted(_of_run(lake, run), key=order)
    elif table is not None:
        title, told = f"Commits to {'.'.join(table)}", _of_table(lake, *table)
    else:
        title, told = _of_generation(session, lake, generation or "")
    if as_json:
        write_json(told)
        return
    rows = [[row[name.strip(">")] for name in _COLUMNS] for row in told]
    write_table(title, _COLUMNS, rows)


def _show_cluster(lake: Lake, as_json: bool) -> None:
    """What became other in a live cluster, a line each, oldest first.

    Raises:
        NotFound: this home is of none that was observed.
    """
    from cdc_platform.records.cluster_changes import noted

    told = [each.facts() for each in noted(lake)]
    if not told:
        raise NotFound(
            "no live cluster was observed into this home; each has its own, HOME/clusters/NAME: name it by --home"
        )
    if as_json:
        write_json(told)
        return
    write_table("What became other", _OF_CLUSTER, [[row[name] for name in _OF_CLUSTER] for row in told])


def _of_generation(session: Session, lake: Lake, name: str) -> tuple[str, list[dict[str, Any]]]:
    from cdc_platform.report.writes import writes_of
    from cdc_platform.timeline import keys, parts

    known = keys.Keys.read(lake)
    names = parts.names_of(lake, known, named_once(session, known, name))
    shown = names.key if names.id is None else f"{names.key}, {names.id}"
    return f"Generation {shown}", writes_of(lake, names)


def named_once(session: Session, known: Keys, name: str) -> str | Milliseconds:
    """The generation of a partition, which may be withdrawn or removed, or by a name that every command takes."""
    from cdc_platform.timeline.parts import generation_called

    return generation_called(session.lake(), known, name, session.clock.now_us())


def _of_run(lake: Lake, run: str) -> Iterator[dict[str, Any]]:
    """The commits of a run, a line each.

    Raises:
        NotFound: no table has any.
    """
    from cdc_platform.lake.tables import TABLES

    found = False
    for table in TABLES.values():
        for commit in lake.envelopes(table):
            if commit.envelope is not None and commit.envelope.speaker.run == run:
                found = True
                yield _with_slices(table, commit)
    if not found:
        raise NotFound(f"no table has a commit of run {run}; runs and their IDs are in the Dagster UI: cdc-platform up")


def _of_table(lake: Lake, keyspace: str, name: str) -> list[dict[str, Any]]:
    """The commits to the log of a base table and to the table itself, a line each, oldest first.

    Raises:
        NotFound: neither is here.
    """
    from cdc_platform.ingest.replica.tables import current_table
    from cdc_platform.log.ddl import schema_of
    from cdc_platform.log.log_table import log_table
    from cdc_platform.report.writes import order

    schema = schema_of(lake, keyspace, name)
    tables = (log_table(schema), current_table(schema))
    told = [_with_slices(each, commit) for each in tables for commit in lake.envelopes(each)]
    if not told:
        raise NotFound(
            f"{schema.full_name} has no log here and is not kept; a live cluster's comes by: cdc-platform ingest"
        )
    return sorted(told, key=order)


def _with_slices(table: Table, commit: Commit) -> dict[str, Any]:
    from cdc_platform.report.writes import told_of

    digests = () if commit.envelope is None else commit.envelope.digests
    return told_of(table, commit, None, 0) | {"slices": sorted(filter(None, digests))}
