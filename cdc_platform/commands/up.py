"""`cdc-platform up`: a warm Spark Connect server, Dagster's UI and its daemon on loopback, until Ctrl-C.

It knows what a person asks for and is told; the parts are `serving`'s, keeping them together is `supervisor`'s, and
that there is one `up` to a home is `lease`'s.
"""

from __future__ import annotations

import os
import socket
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import click

from cdc_platform import drafts
from cdc_platform.commands.output import json_option, write_facts, write_json
from cdc_platform.commands.session import Session, pass_session
from cdc_platform.errors import EnvironmentProblem, InputError
from cdc_platform.home import Home, owners_alone
from cdc_platform.lease import Lease, alone
from cdc_platform.serving.addresses import LOOPBACK, Names, PublicUrl, listening, parse_public_url
from cdc_platform.supervisor import Supervisor, until_the_end

if TYPE_CHECKING:
    from cdc_platform.lake.leases import Held

DEFAULT_PORT = 3000
START_SECONDS = 180


@click.command()
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Port of the UI, 0 for any. [default: 3000, or any if it is taken]"
)
@click.option("--public-url", help="Address of a proxy in front of the UI, as https://HOST/PATH; others are refused.")
@click.option("--read-only", is_flag=True, help="Nothing can be changed in the UI: for those who only look.")
@json_option
@pass_session
def up(session: Session, port: int | None, public_url: str | None, read_only: bool, as_json: bool) -> None:
    """Start a warm Spark Connect server, the Dagster UI and its daemon; Ctrl-C ends all three.

    Prints a link to the UI when all of them answer; the link has a token in it, and without that nobody is let in.
    Spark is started again if it dies, and sleeps when nobody has wanted it for a quarter of an hour (spark_sleep_ms
    in settings.toml) until somebody does; if one of the others dies all end, with exit code 1. Everything listens
    on 127.0.0.1 only, and serves only you: docs/trust.md.

    \b
    Example:
      cdc-platform up
      cdc-platform --home /tmp/rehearsal up --port 0
      cdc-platform up --public-url https://dagster.example.com --read-only
    """
    public = parse_public_url(public_url) if public_url else None
    home = session.open_home(create=True)
    _refuse_open_home(home)
    with (
        alone(home) as held,
        _alone_in_store(home) as lease,
        _port(port) as bound,
        until_the_end() as supervisor,
    ):
        parts = _start(supervisor, session, home, held, bound, public, read_only, quiet=as_json)
        if as_json:
            write_json(parts)
        else:
            write_facts([(name.replace("_", " "), value) for name, value in parts.items()])
            click.echo("Ctrl-C ends all of it")
        supervisor.await_end(lambda: lease and lease.assert_had(f"home {home.name} is up"))
    if not as_json:
        click.echo("all ended")


def _alone_in_store(home: Home) -> AbstractContextManager[Held | None]:
    """A home in a store is held against other machines by a lease there; a folder by its locks alone."""
    from cdc_platform.lake.leases import held_alone
    from cdc_platform.places import Stored, place_of

    place = place_of(home.name) / "up.lease.json"
    return held_alone(place, f"home {home.name} is up") if isinstance(place, Stored) else nullcontext()


def _start(
    supervisor: Supervisor,
    session: Session,
    home: Home,
    held: Lease,
    bound: socket.socket,
    public: PublicUrl | None,
    read_only: bool,
    *,
    quiet: bool,
) -> dict[str, object]:
    """Start all of it and wait until it answers; what a person is told then."""
    from cdc_platform.lake.jars import jars
    from cdc_platform.lake.java import find_java
    from cdc_platform.lake.session import LOG_VARIABLE
    from cdc_platform.serving.parts import Parts, new_token

    find_java()
    jars()
    if not quiet:
        click.echo("starting Spark, the Dagster UI and its daemon ...")
    names = Names(bound.getsockname()[1], public)
    parts = Parts(home, held, session.clock, names, read_only, new_token())
    owners_alone(parts.logs)
    drafts.write(parts.token_file, parts.token, mode=drafts.OWNER_ONLY)
    parts.spark_file.withdraw()
    for service in parts.services(bound):
        supervisor.start(service)
    bound.close()  # only the UI listens from now on: when it dies, nobody waits for an answer
    log = parts.logs / "spark.log"
    log.unlink(missing_ok=True)
    os.environ[LOG_VARIABLE] = str(log)
    # Spark last: it waits for itself, and the others come up meanwhile.
    server = parts.connect_server()
    supervisor.adopt(
        "the Spark Connect server",
        log,
        server,
        lambda: parts.start_spark(server),
        told=lambda text: click.echo(text, err=True),
        needed=parts.sleeping(server).needed,
    )
    supervisor.await_answers(START_SECONDS)
    held.note([os.getpid(), *supervisor.pids])
    return {
        "url": names.url,
        "link": parts.link,
        "token_file": parts.token_file,
        "spark": server.remote,
        "spark_file": parts.spark_file.path,
        "home": home.name,
        "logs": parts.logs,
    }


def _refuse_open_home(home: Home) -> None:
    """Whoever can write into a home can have code run by whoever brings it up.

    Raises:
        EnvironmentProblem: that is everybody on this machine.
    """
    if home.path.stat().st_mode & 0o002:
        raise EnvironmentProblem(
            f"everybody on this machine can write into home {home.path}, and what is in it is run in your name; "
            f"close it with chmod 700 {home.path}"
        )


def _port(wanted: int | None) -> socket.socket:
    """A socket that listens at the port that is asked for; without one at the default, or any where that is taken.

    Raises:
        InputError: the port that is asked for is taken.
    """
    try:
        return listening(DEFAULT_PORT if wanted is None else wanted)
    except OSError:
        if wanted is None:
            return listening(0)
        raise InputError(f"port {wanted} of {LOOPBACK} is taken; name another with --port, or 0 for any") from None
