"""`cdc-platform history` and `report`: list commits, and write or verify the auditor's page of generations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cdc_platform.cli.next_steps import build_next_step
from cdc_platform.cli.output import json_option
from cdc_platform.cli.params import TABLE_NAME, TIME
from cdc_platform.cli.render import View, show_rows, write_result
from cdc_platform.cli.session import CliSession, pass_session
from cdc_platform.clock import Milliseconds, format_us
from cdc_platform.errors import InputError, NotFound
from cdc_platform.storage import atomic

if TYPE_CHECKING:
    from cdc_platform.delta import Commit, Lake
    from cdc_platform.reporting import ReportSource
    from cdc_platform.tables import Table
    from cdc_platform.timeline import GenerationKeys, GenerationNames

_COLUMNS = "at table what version rows who by run"
_CLUSTER_COLUMNS = "at who what seen_by by run"


@click.command()
@click.argument("generation", required=False)
@click.option("--run", metavar="RUN_ID", help="The commits of this Dagster run, in every table.")
@click.option(
    "--table",
    type=TABLE_NAME,
    metavar="KS.T",
    help="The log of this base table, and its copy if there is one.",
)
@click.option("--cluster", "of_cluster", is_flag=True, help="The observed changes of the live cluster of this home.")
@json_option
@pass_session
def history(
    session: CliSession,
    generation: str | None,
    run: str | None,
    table: tuple[str, str] | None,
    of_cluster: bool,
    as_json: bool,
) -> None:
    """List the commits that changed rows of GENERATION in any table, oldest first, with author and run.

    GENERATION is a UUID or its prefix, a time, latest, operating, or the name of its partition in Dagster; withdrawn
    and removed generations have a history, too. --run lists the commits of a Dagster run. --table lists the commits to
    a table's log and to its copy (`ingest --current`), with the changed partitions. History goes back as far as Delta
    retains its log. --cluster lists all observed changes of the live cluster.

    \b
    Example:
      cdc-platform history latest
      cdc-platform history 12_10.0.0.4_5f0c3c5e
      cdc-platform history --run 2f9c2f6e-2b5e-4e0c-9d1c-9c1f3f0a7c11 --json
      cdc-platform history --table shop.orders
      cdc-platform --home .cdc-platform/clusters/prod history --cluster
    """
    if sum(option is not None for option in (generation, run, table, of_cluster or None)) != 1:
        raise click.UsageError("name one of: a GENERATION, --run RUN_ID, --table KS.T, --cluster")
    lake = session.lake()
    if of_cluster:
        _write_cluster_changes(lake, as_json)
        return
    if run is not None:
        from cdc_platform.reporting import write_sort_key

        title, writes = f"Commits of run {run}", sorted(_run_writes(lake, run), key=write_sort_key)
    elif table is not None:
        title, writes = f"Commits to {'.'.join(table)}", _table_writes(lake, *table)
    else:
        title, writes = _generation_writes(session, lake, generation or "")
    screen = [row | {"table": _shorten_table(row["table"])} for row in writes]
    write_result({"commits": writes}, as_json=as_json, show=lambda: show_rows(screen, View(_COLUMNS, title)))


def _shorten_table(name: str) -> str:
    """Return a table's name without the keyspaces that only ScyllaDB and the platform use."""
    keyspace, _, table = name.partition(".")
    return table if keyspace.startswith("system") or keyspace == "platform" else name


def _write_cluster_changes(lake: Lake, as_json: bool) -> None:
    """Print the changes observed in a live cluster, one per line, oldest first.

    Raises:
        NotFound: no live cluster was observed into this home.
    """
    from cdc_platform.metastore import read_cluster_changes

    changes = [change.facts() for change in read_cluster_changes(lake)]
    if not changes:
        raise NotFound(
            "no live cluster was observed into this home; each has its own, HOME/clusters/NAME: name it by --home"
        )
    view = View(_CLUSTER_COLUMNS, "Changes in the cluster", essential=3)
    write_result({"changes": changes}, as_json=as_json, views={"changes": view})


def _generation_writes(session: CliSession, lake: Lake, name: str) -> tuple[str, list[dict[str, Any]]]:
    from cdc_platform.reporting import read_generation_writes
    from cdc_platform.timeline import generation_names

    known = generation_names.GenerationKeys.read(lake)
    names = generation_names.get_generation_names(lake, known, resolve_generation_name(session, known, name))
    text = names.key if names.id is None else f"{names.key}, {names.id}"
    return f"Generation {text}", read_generation_writes(lake, names)


def resolve_generation_name(session: CliSession, known: GenerationKeys, name: str) -> str | Milliseconds:
    """Return the generation of a partition, even if withdrawn or removed, or of any name that commands accept."""
    from cdc_platform.timeline import resolve_generation

    return resolve_generation(session.lake(), known, name, session.clock.now_us())


def _run_writes(lake: Lake, run: str) -> Iterator[dict[str, Any]]:
    """Yield the commits of a run, one dict each.

    Raises:
        NotFound: no table has a commit of the run.
    """
    from cdc_platform.tables import TABLES

    has_commits = False
    for table in TABLES.values():
        for commit in lake.commits(table):
            if commit.info is not None and commit.info.author.run == run:
                has_commits = True
                yield _write_with_partitions(table, commit)
    if not has_commits:
        raise NotFound(f"no table has a commit of run {run}; runs and their IDs are in the Dagster UI: cdc-platform up")


def _table_writes(lake: Lake, keyspace: str, name: str) -> list[dict[str, Any]]:
    """Return the commits to the log of a base table and to the table itself, one dict each, oldest first.

    Raises:
        NotFound: this home has neither.
    """
    from cdc_platform.cdclog import log_table, read_table_schema
    from cdc_platform.ingest import current_table
    from cdc_platform.reporting import write_sort_key

    schema = read_table_schema(lake, keyspace, name)
    tables = (log_table(schema), current_table(schema))
    writes = [_write_with_partitions(table, commit) for table in tables for commit in lake.commits(table)]
    if not writes:
        raise NotFound(
            f"{schema.full_name} has no log and no copy here; ingest a live cluster's with: cdc-platform ingest"
        )
    return sorted(writes, key=write_sort_key)


def _write_with_partitions(table: Table, commit: Commit) -> dict[str, Any]:
    from cdc_platform.reporting import commit_facts

    digests = () if commit.info is None else commit.info.digests
    return commit_facts(table, commit, None, 0) | {"partitions": sorted(filter(None, digests))}


_PATH_TYPE = click.Path(path_type=Path)


@click.command()
@click.argument("generation", metavar="[GENERATION | FROM TO]", nargs=-1)
@click.option("--html", "file", type=_PATH_TYPE, help="Write the page into this file, which must not exist.")
@click.option(
    "--sign", "key_file", type=_PATH_TYPE, help="Sign it with the Ed25519 key in this file (OpenSSL or OpenSSH)."
)
@click.option("--verify", "page", type=_PATH_TYPE, help="Verify this page against its seal and the home.")
@click.option("--key", "public_file", type=_PATH_TYPE, help="With --verify: the public key that must have signed it.")
@json_option
@pass_session
@click.pass_context
def report(
    ctx: click.Context,
    session: CliSession,
    generation: tuple[str, ...],
    file: Path | None,
    key_file: Path | None,
    page: Path | None,
    public_file: Path | None,
    as_json: bool,
) -> None:
    """Write a report for an auditor about GENERATION, or about all that operate between the times FROM and TO.

    The report is one HTML file: ring, timeline, accepted writes, every invariant, commits with their authors, and
    digests with which --verify detects later changes of the page or the history.

    --verify prints a result for each check: holds, newer (it held, and the home has changed since), unknown (the data
    to decide is gone) or differs. The exit code is 1 if anything differs or is unknown.

    \b
    Example:
      cdc-platform report latest --html generation.html
      cdc-platform report 2026-01-01T00:00:00Z 2026-02-01T00:00:00Z --html january.html --sign auditor.pem
      cdc-platform report --verify january.html --key auditor.pub
    """
    if page is not None:
        if generation or file is not None or key_file is not None:
            raise click.UsageError("--verify FILE stands alone, or with --key")
        ctx.exit(_verify_page(session, page, public_file, as_json))
    if file is None or not 1 <= len(generation) <= 2 or public_file is not None:
        raise click.UsageError("write GENERATION, or FROM and TO, and --html FILE; or --verify FILE")
    _write_page(session, generation, file, key_file, as_json)


def _write_page(session: CliSession, asked: tuple[str, ...], file: Path, key_file: Path | None, as_json: bool) -> None:
    from cdc_platform.reporting import ReportSource, make_page, read_private_key

    key = None if key_file is None else read_private_key(key_file)
    opened = session.open_location()
    with atomic.new_file(file, home=opened.path) as draft:
        home = ReportSource(session.lake(), session.clock, opened.settings)
        names, times = _requested_generations(session, home, asked)
        record, page = make_page(home, names, asked=times, key=key)
        size = draft.write_bytes(page.encode())
    broken = [
        line["invariant"]
        for generation_record in record["generations"]
        for line in generation_record["invariants"]
        if not line["passed"]
    ]
    result: dict[str, Any] = {
        "file": str(file),
        "bytes": size,
        "generations": [generation_record["key"] for generation_record in record["generations"]],
        "failed": list(dict.fromkeys(broken)),
        "key": record["key"],
    }
    next_steps = [build_next_step("report", "--verify", file, why="verifies it, now or later")]
    write_result(result, as_json=as_json, next_steps=next_steps)


def _requested_generations(
    session: CliSession, home: ReportSource, asked: tuple[str, ...]
) -> tuple[list[GenerationNames], tuple[str, str] | None]:
    from cdc_platform.reporting import find_generations_between
    from cdc_platform.timeline import GenerationKeys, get_generation_names

    if len(asked) == 2:
        begin, end = TIME.read(asked[0]), TIME.read(asked[1])
        return find_generations_between(home, begin, end), (format_us(begin), format_us(end))
    keys = GenerationKeys.read(home.lake)
    return [get_generation_names(home.lake, keys, resolve_generation_name(session, keys, asked[0]))], None


def _verify_page(session: CliSession, page: Path, public_file: Path | None, as_json: bool) -> int:
    """Verify a page, print the answers and return the exit code."""
    from cdc_platform.delta import ChainStatus
    from cdc_platform.reporting import read_public_key, verify_page
    from cdc_platform.storage import read_user_bytes

    key = None if public_file is None else read_public_key(public_file)
    try:
        text = read_user_bytes(page).decode()
    except UnicodeDecodeError:
        raise InputError(f"{page} is no page of cdc-platform report: it is no text") from None
    home = session.open_location()
    try:
        lines = verify_page(session.lake(), home.settings, text, key)
    except InputError as error:
        raise InputError(f"{page}: {error}") from None
    results = [{"check": line.check, "result": str(line.result), "detail": line.detail} for line in lines]
    write_result(
        {"checks": results}, as_json=as_json, views={"checks": View("check result detail", str(page), essential=3)}
    )
    return int(any(line.result in (ChainStatus.DIFFERS, ChainStatus.UNKNOWN) for line in lines))
