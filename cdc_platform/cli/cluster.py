"""`cdc-platform cluster`, `observe` and `watch`: register, test, observe and watch live clusters."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from cdc_platform.cli.importing import IMPORT_VIEWS, build_import_document
from cdc_platform.cli.next_steps import NextStep, build_next_step
from cdc_platform.cli.output import escape_unprintable, format_optional_ms, json_option, warn
from cdc_platform.cli.params import CONSISTENCY, RATE, SecondsRange
from cdc_platform.cli.progress import show_progress
from cdc_platform.cli.render import View, show_document, show_rows, write_preflight_results, write_result
from cdc_platform.cli.session import CliSession, pass_session
from cdc_platform.clock import HOUR_SECONDS, SECOND_US, format_ms, format_us

if TYPE_CHECKING:
    from cdc_platform.alerts import AlertQueue
    from cdc_platform.delta import Lake
    from cdc_platform.importing import ImportedGeneration
    from cdc_platform.scylla import ClusterView, Observation, ScyllaCluster, WatchedChange

    Seen = tuple[ClusterView, list[WatchedChange]]

_NAME_ARGUMENT = click.argument("name", metavar="NAME")
_REQUEST_SECONDS = SecondsRange(0, 600, min_open=True)
_CONNECT_SECONDS = SecondsRange(0, 120, min_open=True)


@click.group(invoke_without_command=True)
@json_option
@pass_session
@click.pass_context
def cluster(ctx: click.Context, session: CliSession, as_json: bool) -> None:
    """List the registered clusters. `add` registers one, `test` checks what can be read.

    The platform reads a cluster with SELECT, one request at a time. What it observes goes into a separate home,
    HOME/clusters/NAME; pass that to --home.

    \b
    Example:
      cdc-platform cluster add prod --contact 10.0.0.1:9042 --user-env CDC_USER --password-env CDC_PASSWORD
      cdc-platform cluster test prod
      cdc-platform observe prod
    """
    if ctx.invoked_subcommand is not None:
        if as_json:
            raise click.UsageError(f"--json goes after {ctx.invoked_subcommand}, if it has that option")
        return
    from cdc_platform.scylla import registry

    clusters = registry.list_clusters(session.open_location())
    view = View("name contacts tls cluster_name newest_generation home", "Clusters")
    rows = [
        _cluster_document(entry) | {"contacts": entry.connection.contacts, "tls": entry.connection.tls}
        for entry in clusters
    ]
    document = {"clusters": [_cluster_document(entry) for entry in clusters]}
    write_result(document, as_json=as_json, show=lambda: show_rows(rows, view))


@cluster.command()
@_NAME_ARGUMENT
@click.option("--contact", "contacts", metavar="HOST:PORT", multiple=True, required=True, help="A node. Repeatable.")
@click.option("--user-env", metavar="VARIABLE", help="Environment variable that holds the user.")
@click.option("--password-env", metavar="VARIABLE", help="Environment variable that holds the password.")
@click.option("--credentials-file", metavar="FILE", help="TOML with user and password, mode 0600.")
@click.option("--user-file", metavar="FILE", help="File that holds the user, as an orchestrator mounts it.")
@click.option("--password-file", metavar="FILE", help="File that holds the password, read for each connection.")
@click.option(
    "--address",
    "addresses",
    metavar="NODE=HOST[:PORT]",
    multiple=True,
    help="Where this client reaches a node, by the node's own address. Repeatable.",
)
@click.option("--tls", is_flag=True, help="Connect with TLS.")
@click.option("--tls-ca", metavar="FILE", help="Certificates of the CA, PEM. [default: the system's]")
@click.option("--tls-cert", metavar="FILE", help="Certificate of this client, PEM.")
@click.option("--tls-key", metavar="FILE", help="Key of this client, PEM.")
@click.option("--tls-key-password-file", metavar="FILE", help="File that holds the passphrase of the key.")
@click.option("--no-tls-hostname-check", is_flag=True, help="Accept certificates that do not name the host.")
@click.option("--datacenter", metavar="NAME", help="The local datacenter; log rows are read only there.")
@click.option("--connect-timeout", type=_CONNECT_SECONDS, default=5.0, show_default=True, help="Seconds.")
@click.option("--request-timeout", type=_REQUEST_SECONDS, default=10.0, show_default=True, help="Seconds.")
@click.option(
    "--page-size", "page_rows", type=click.IntRange(1, 100_000), default=5_000, show_default=True, help="Rows a page."
)
@click.option("--consistency", type=CONSISTENCY, help="Level at which rows are read. [default: LOCAL_QUORUM]")
@click.option("--rate", "rows_per_second", type=RATE, help="Read at most so many rows a second. [default: no limit]")
@click.option("--request-rate", "requests_per_second", type=RATE, help="Send at most so many reads of rows a second.")
@click.option(
    "--leave-out", "left_out", metavar="KS.T.COLUMN", multiple=True, help="A column that is never stored. Repeatable."
)
@click.option("--hash", "hashed", metavar="KS.T.COLUMN", multiple=True, help="A column stored as HMAC. Repeatable.")
@click.option("--hash-key-file", metavar="FILE", help="The key of --hash: 16 bytes or more, mode 0600.")
@click.option(
    "--attribute",
    "attribute_types",
    metavar="KS.T.NAME=TYPE",
    multiple=True,
    help="An Alternator table's attribute that views show as a column: S, N, B, BOOL, SS, NS or BS. Repeatable.",
)
@json_option
@pass_session
def add(session: CliSession, name: str, as_json: bool, no_tls_hostname_check: bool, **options: object) -> None:
    """Register a cluster. Connects to nothing, and stores where secrets are found, never the secrets.

    \b
    Example:
      cdc-platform cluster add prod --contact 10.0.0.1:9042 --contact 10.0.0.2:9042 --credentials-file prod.toml
      cdc-platform cluster add prod --contact db.example.org:9142 --tls --tls-ca ca.pem
      cdc-platform cluster add prod --contact 10.0.0.1:9042 --leave-out shop.users.photo --hash shop.users.email \\
        --hash-key-file hash.key
    """
    from pydantic import ValidationError

    from cdc_platform.errors import InputError
    from cdc_platform.scylla import Connection, parse_contact, registry

    contacts = options.pop("contacts")
    assert isinstance(contacts, tuple)
    endpoints = tuple(
        f"{host}:{port}" if ":" not in host else f"[{host}]:{port}" for host, port in map(parse_contact, contacts)
    )
    for file in registry.FILE_FIELDS:
        options[file] = _absolute_path(options[file])
    options["addresses"] = _parse_addresses(options["addresses"])
    try:
        connection = Connection.model_validate(
            {"contacts": endpoints, "tls_host_names": not no_tls_hostname_check, **options}
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"{registry.get_connection_option(str(first['loc'][0]))}: {first['msg']}") from None
    added = registry.add_cluster(session.open_location(create=True), name, connection)
    facts = {"name": added.name, "home": added.at, **connection.model_dump(exclude_none=True)}
    write_result(
        _cluster_document(added),
        as_json=as_json,
        show=lambda: show_document(facts, {}),
        next_steps=[build_next_step("cluster", "test", name)],
    )


@cluster.command("test")
@_NAME_ARGUMENT
@json_option
@pass_session
@click.pass_context
def test_(ctx: click.Context, session: CliSession, name: str, as_json: bool) -> None:
    """Check what can be reached and read: nodes, clocks, tables, logs. Failures name a remedy, GRANTs included.

    The exit code is 1 if a check fails.

    \b
    Example:
      cdc-platform cluster test prod
    """
    from cdc_platform.ingest import examine
    from cdc_platform.scylla import registry

    findings = examine(registry.find_cluster(session.open_location(), name))
    fit = all(finding.ok for finding in findings)
    next_steps = [_observe_step(name)] if fit else [build_next_step("cluster", "test", name, why="once that is fixed")]
    write_preflight_results(findings, as_json=as_json, next_steps=next_steps)
    if not fit:
        ctx.exit(1)


@cluster.command()
@_NAME_ARGUMENT
@json_option
@pass_session
def remove(session: CliSession, name: str, as_json: bool) -> None:
    """Remove a cluster from the registry. Its observed home stays.

    \b
    Example:
      cdc-platform cluster remove prod
    """
    from cdc_platform.scylla import registry

    removed = registry.remove_cluster(session.open_location(), name)
    write_result({"removed": removed.name, "home": removed.at}, as_json=as_json)


@cluster.command("replace")
@_NAME_ARGUMENT
@json_option
@pass_session
def replace_cluster(session: CliSession, name: str, as_json: bool) -> None:
    """Declare that NAME is another cluster now, restored or rebuilt. Its previous observed home is moved aside.

    \b
    Example:
      cdc-platform cluster replace prod
    """
    from cdc_platform.scylla import registry

    moved_to = registry.renew_cluster(session.open_location(), name, session.clock)
    document = {"replaced": name, "previous_home": moved_to}
    write_result(document, as_json=as_json, next_steps=[_observe_step(name)])


def _observe_step(name: str) -> NextStep:
    return build_next_step("observe", name)


def _parse_addresses(texts: object) -> dict[str, str]:
    """Return the addresses of nodes by the node's own address."""
    addresses: dict[str, str] = {}
    assert isinstance(texts, tuple)
    for text in texts:
        node, separator, address = text.partition("=")
        if not (node and separator and address):
            raise click.UsageError(f"--address {text!r} is not NODE=HOST[:PORT], as in 10.0.0.1=203.0.113.7:19042")
        if node in addresses:
            raise click.UsageError(f"--address names {node} twice; give each node one address")
        addresses[node] = address
    return addresses


def _absolute_path(path: object) -> str | None:
    from pathlib import Path

    # An empty text stays empty, since it does not mean the current folder.
    return None if path is None else str(path) and str(Path(str(path)).expanduser().absolute())


def _cluster_document(found: ScyllaCluster) -> dict[str, object]:
    identity = found.identity
    return {
        "name": found.name,
        "home": found.at,
        "connection": found.connection.model_dump(mode="json"),
        "cluster_name": None if identity is None else identity.cluster_name,
        "host_ids": [] if identity is None else [str(host) for host in identity.host_ids],
        "newest_generation": None if identity is None else format_optional_ms(identity.newest_ms),
    }


@click.command()
@click.argument("name", metavar="NAME")
@json_option
@pass_session
@click.pass_context
def observe(ctx: click.Context, session: CliSession, name: str, as_json: bool) -> None:
    """Observe the cluster NAME once: its nodes, CDC-enabled tables, generations and stream sets.

    The result goes into HOME/clusters/NAME, a separate home. Observing an unchanged cluster changes nothing. A
    generation is imported when two reads agree; an incomplete one is skipped with a warning and exit code 1. While the
    topology changes, the nodes stay as they were, with a warning.

    \b
    Example:
      cdc-platform observe prod
      cdc-platform --home .cdc-platform/clusters/prod generations
      cdc-platform --home .cdc-platform/clusters/prod repair --dry-run
    """
    from cdc_platform.delta import Lake
    from cdc_platform.scylla import describe_pending_topology, registry
    from cdc_platform.scylla import run_observation as look

    cluster = registry.find_cluster(session.open_location(), name)
    with show_progress("observing"):
        observation = look(cluster, session.clock)
    observation.imported.generations = _with_stored_sizes(
        Lake(cluster.open_home().lake), observation.imported.generations
    )
    for warning in observation.warnings:
        warn(warning, code="cluster-rows")
    if observation.changing is not None:
        warn(f"{name}: {describe_pending_topology(observation.changing)}", code="topology-changing")
    for entry in observation.incomplete:
        warn(f"left out: {entry}", code="left-out")
    next_steps = (
        [build_next_step("observe", name, why="until two reads answer alike")] if observation.incomplete else []
    )
    next_steps.append(build_next_step("status", home=cluster.at))

    document = _observation_document(observation, cluster.at)
    views = {**IMPORT_VIEWS, "incomplete": None, "changing": None, "changes": None}
    write_result(document, as_json=as_json, views=views, next_steps=next_steps)
    if observation.incomplete:
        ctx.exit(1)


def _with_stored_sizes(lake: Lake, seen: list[ImportedGeneration]) -> list[ImportedGeneration]:
    """Return the generations, with stored sizes for the unchanged ones, whose streams were not read again."""
    from cdc_platform.tables import STREAMS_DESCRIPTIONS_V2, UNORDERED_RANGES
    from cdc_platform.timeline import Timeline, read_generation_sizes

    if all(generation.ranges for generation in seen):
        return seen
    ids = {generation.time_ms: generation.id for generation in Timeline.read(lake).known}
    sizes = {generation.time_ms: generation for generation in read_generation_sizes(lake)}
    marks = lake.read(UNORDERED_RANGES, ["generation"], [("table_name", "=", STREAMS_DESCRIPTIONS_V2.full_name)])
    unordered = Counter(marks["generation"].to_pylist())

    def with_size(each: ImportedGeneration) -> ImportedGeneration:
        if each.ranges or each.time_ms is None or each.time_ms not in sizes:
            return each
        size, count = sizes[each.time_ms], unordered[format_ms(each.time_ms)]
        counts = {"ranges": size.num_ranges, "streams": size.num_streams, "unordered_ranges": count}
        return replace(each, id=each.id or ids.get(each.time_ms), **counts)

    return [with_size(generation) for generation in seen]


def _observation_document(seen: Observation, home: str) -> dict[str, object]:
    return {
        "cluster_name": seen.cluster_name,
        "home": home,
        "version": seen.version,
        **build_import_document(seen.imported),
        "tables_changed": seen.tables_changed,
        "incomplete": [entry.line for entry in seen.incomplete],
        "changing": seen.changing,
        "changes": [entry.document() for entry in seen.changes],
    }


_MAX_CHANGES = 12
"""Changes that the screen shows."""


@click.command()
@click.argument("name", metavar="NAME")
@click.option(
    "--interval", type=SecondsRange(0.1, HOUR_SECONDS), default=5.0, show_default=True, help="Seconds between polls."
)
@click.option("--polls", type=click.IntRange(min=1), help="End after so many polls. [default: never]")
@click.option("--hook", metavar="PROGRAM", help="Run it for each change, with the change as JSON on standard input.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON document a line for each change.")
@pass_session
def watch(session: CliSession, name: str, interval: float, polls: int | None, hook: str | None, as_json: bool) -> None:
    """Watch the cluster NAME: nodes, generations, stream sets, CDC-enabled tables, and how far each log is ingested.

    Each poll is a few small queries over one session, and imports changes as `observe` does. Stop it with Ctrl-C.

    --hook PROGRAM runs for each change that happens after the watch began. A hook that fails, or takes longer than the
    setting cluster_hook_ms, is a warning.

    \b
    Example:
      cdc-platform watch prod
      cdc-platform watch prod --interval 30 --json
      cdc-platform watch prod --hook ./alert.sh
    """
    from cdc_platform.alerts import AlertQueue, Hook
    from cdc_platform.scylla import registry
    from cdc_platform.scylla import watch_cluster as watching

    home = session.open_location()
    registry.find_cluster(home, name)
    alerts = None if hook is None else AlertQueue(Hook.find(home, hook, home.settings.cluster_hook_ms), _warn_of_hook)
    views = islice(watching(home, name, session.clock, interval), polls)
    with alerts or nullcontext():
        (_print_json_lines if as_json else partial(_show_live, name))(_alert_hook(views, alerts))


def _warn_of_hook(line: str) -> None:
    warn(line, code="hook-failed")


def _alert_hook(seen: Iterable[Seen], queue: AlertQueue | None) -> Iterator[Seen]:
    """Yield the polls as they come, and pass their new changes to the queue of the hook."""
    for look, changes in seen:
        if queue is not None:
            queue.put([change.document() for change in changes if change.fresh])
        yield look, changes


def _print_json_lines(seen: Iterable[Seen]) -> None:
    for _, changes in seen:
        for change in changes:
            click.echo(json.dumps(change.document()))


def _show_live(name: str, seen: Iterable[Seen]) -> None:
    from rich.live import Live

    latest: list[WatchedChange] = []
    with Live(auto_refresh=False) as screen:
        for look, changes in seen:
            latest = [*latest, *changes][-_MAX_CHANGES:]
            screen.update(_render_screen(name, look, latest), refresh=True)
    if not screen.console.is_terminal:
        screen.console.line()  # output to a file or a pipe would end without a newline


def _render_screen(name: str, look: ClusterView, changes: list[WatchedChange]) -> Any:
    from rich.console import Group
    from rich.table import Table

    state = Table(title=escape_unprintable(f"{name} at {format_us(look.at_us)}"), show_header=False)
    for address, text in sorted(look.named("node").items()):
        state.add_row("node", escape_unprintable(address), escape_unprintable(text))
    times = look.named("generation")
    state.add_row("generations", str(len(times)), f"newest {max(times)}" if times else "none")
    for table, text in sorted(look.named("table").items()):
        position = look.positions.get(table)
        lag = "not brought in" if position is None else f"{(look.at_us - position) / SECOND_US:.0f} s behind"
        state.add_row("log", escape_unprintable(table), escape_unprintable(f"{text}, {lag}"))
    for (who, _), line in sorted(look.problems.items()):
        state.add_row("problem", escape_unprintable(who), escape_unprintable(line))
    latest = Table("at", "who", "what", title="Changes")
    for change in changes:
        latest.add_row(format_us(change.at_us), escape_unprintable(change.who), escape_unprintable(change.what))
    return Group(state, latest)
