"""`cdc-platform cluster`: the live clusters that are known by name, how each is reached, and whether it can be read."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from cdc_platform.commands.arguments import Seconds
from cdc_platform.commands.next_steps import Next, following, write_result
from cdc_platform.commands.output import json_option, time_of, write_facts, write_json, write_table, write_trials
from cdc_platform.commands.session import Session, pass_session

if TYPE_CHECKING:
    from cdc_platform.cluster.known import KnownCluster

_CLUSTER = click.argument("name", metavar="NAME")
_SECONDS = Seconds(0, 600, min_open=True)
_CONNECT_SECONDS = Seconds(0, 120, min_open=True)


@click.group(invoke_without_command=True)
@json_option
@pass_session
@click.pass_context
def cluster(ctx: click.Context, session: Session, as_json: bool) -> None:
    """List the live clusters that are known by name; `add` tells of one, `test` tries what of it can be read.

    Everything is read by SELECT, one request at a time. What is observed of a cluster goes into a home of its own,
    HOME/clusters/NAME: look at it with --home.

    \b
    Example:
      cdc-platform cluster add prod --contact 10.0.0.1:9042 --user-env CDC_USER --password-env CDC_PASSWORD
      cdc-platform cluster test prod
      cdc-platform observe prod
    """
    if ctx.invoked_subcommand is not None:
        if as_json:
            raise click.UsageError(f"--json stands behind {ctx.invoked_subcommand}, where it takes it")
        return
    from cdc_platform.cluster import known

    found = known.clusters(session.open_home())
    if as_json:
        write_json([_document(each) for each in found])
        return
    rows = [
        (
            each.name,
            ", ".join(each.connection.contacts),
            "yes" if each.connection.tls else "no",
            None if each.identity is None else each.identity.cluster_name,
            None if each.identity is None else time_of(each.identity.newest_ms),
            each.at,
        )
        for each in found
    ]
    write_table("Clusters", ("name", "contacts", "TLS", "calls itself", "newest generation", "home"), rows)


@cluster.command()
@_CLUSTER
@click.option(
    "--contact", "contacts", metavar="HOST:PORT", multiple=True, required=True, help="A node; again for more."
)
@click.option("--user-env", metavar="VARIABLE", help="Environment variable that holds the user.")
@click.option("--password-env", metavar="VARIABLE", help="Environment variable that holds the password.")
@click.option("--credentials-file", metavar="FILE", help="TOML with user and password, mode 0600.")
@click.option("--tls", is_flag=True, help="Speak TLS.")
@click.option("--tls-ca", metavar="FILE", help="Certificates of the CA, PEM. [default: the system's]")
@click.option("--tls-cert", metavar="FILE", help="Certificate of this client, PEM.")
@click.option("--tls-key", metavar="FILE", help="Key of this client, PEM, without a passphrase.")
@click.option("--no-tls-host-names", is_flag=True, help="Take certificates that do not name the host.")
@click.option("--datacenter", metavar="NAME", help="The local datacenter, whose nodes are asked first.")
@click.option("--connect-timeout", type=_CONNECT_SECONDS, default=5.0, show_default=True, help="Seconds.")
@click.option("--request-timeout", type=_SECONDS, default=10.0, show_default=True, help="Seconds.")
@click.option("--page-rows", type=click.IntRange(1, 100_000), default=5_000, show_default=True, help="Rows a page.")
@json_option
@pass_session
def add(session: Session, name: str, as_json: bool, no_tls_host_names: bool, **options: object) -> None:
    """Tell of a cluster. Nothing is connected to; no secret is kept but the name of where it is.

    \b
    Example:
      cdc-platform cluster add prod --contact 10.0.0.1:9042 --contact 10.0.0.2:9042 --credentials-file prod.toml
      cdc-platform cluster add prod --contact db.example.org:9142 --tls --tls-ca ca.pem
    """
    from pydantic import ValidationError

    from cdc_platform.cluster import known
    from cdc_platform.cluster.connection import Connection, parse_contact
    from cdc_platform.errors import InputError

    contacts = options.pop("contacts")
    assert isinstance(contacts, tuple)
    endpoints = tuple(
        f"{host}:{port}" if ":" not in host else f"[{host}]:{port}" for host, port in map(parse_contact, contacts)
    )
    for file in ("credentials_file", "tls_ca", "tls_cert", "tls_key"):
        options[file] = _absolute(options[file])
    try:
        connection = Connection.model_validate(
            {"contacts": endpoints, "tls_host_names": not no_tls_host_names, **options}
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"--{str(first['loc'][0]).replace('_', '-')}: {first['msg']}") from None
    added = known.add(session.open_home(create=True), name, connection)
    facts = {"name": added.name, "home": added.at, **connection.model_dump(exclude_none=True)}
    left = [following("cluster", "test", name)]
    write_result(_document(added), lambda: write_facts(facts.items()), left, as_json=as_json)


@cluster.command("test")
@_CLUSTER
@json_option
@pass_session
@click.pass_context
def test_(ctx: click.Context, session: Session, name: str, as_json: bool) -> None:
    """Try what can be reached and read: nodes, clocks, tables, logs; each with a tick or the mend, GRANTs included.

    The exit code is 1 when something has to be mended.

    \b
    Example:
      cdc-platform cluster test prod
    """
    from cdc_platform.cluster import known
    from cdc_platform.ingest.preflight import examine

    findings = examine(known.find(session.open_home(), name))
    fit = all(finding.ok for finding in findings)
    left = [_look(name)] if fit else [following("cluster", "test", name, why="once that is mended")]
    told = [asdict(finding) for finding in findings]
    write_result(told, lambda: write_trials(findings), left, as_json=as_json)
    if not fit:
        ctx.exit(1)


@cluster.command()
@_CLUSTER
@json_option
@pass_session
def remove(session: Session, name: str, as_json: bool) -> None:
    """Forget how a cluster is reached. What was observed of it stays in its home.

    \b
    Example:
      cdc-platform cluster remove prod
    """
    from cdc_platform.cluster import known

    removed = known.remove(session.open_home(), name)
    if as_json:
        write_json({"removed": removed.name, "home": removed.at})
    else:
        write_facts([("removed", removed.name), ("what was observed stays in", removed.at)])


@cluster.command()
@_CLUSTER
@json_option
@pass_session
def renew(session: Session, name: str, as_json: bool) -> None:
    """Say that another cluster goes by NAME now, restored or rebuilt: what was observed before is moved aside.

    \b
    Example:
      cdc-platform cluster renew prod
    """
    from cdc_platform.cluster import known

    aside = known.renew(session.open_home(), name, session.clock)
    told = {"renewed": name, "aside": aside}
    facts = [("renewed", name), ("what was observed before", aside)]
    write_result(told, lambda: write_facts(facts), [_look(name)], as_json=as_json)


def _look(name: str) -> Next:
    return following("observe", name)


def _absolute(path: object) -> str | None:
    from pathlib import Path

    # No path is not the folder in which we are.
    return None if path is None else str(path) and str(Path(str(path)).expanduser().absolute())


def _document(found: KnownCluster) -> dict[str, object]:
    identity = found.identity
    return {
        "name": found.name,
        "home": found.at,
        "connection": found.connection.model_dump(mode="json"),
        "cluster_name": None if identity is None else identity.cluster_name,
        "host_ids": [] if identity is None else [str(host) for host in identity.host_ids],
        "newest_generation": None if identity is None else time_of(identity.newest_ms),
    }
