"""`cdc-platform up`: run a Spark Connect server, Dagster's UI and its daemon on loopback until Ctrl-C."""

from __future__ import annotations

import os
import socket
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import click

from cdc_platform.cli.output import json_option
from cdc_platform.cli.render import write_result
from cdc_platform.cli.session import CliSession, pass_session
from cdc_platform.errors import EnvironmentProblem, InputError
from cdc_platform.home_location import HomeLocation, make_private_folder
from cdc_platform.instance_lock import InstanceLock, lock_home_exclusively
from cdc_platform.json_logs import LOG_FORMAT_VARIABLE, LOG_FORMATS, get_log_format, to_json_line
from cdc_platform.processes import Supervisor, supervise
from cdc_platform.server import LOOPBACK, PublicUrl, UiAddresses, listen_on_loopback, parse_public_url
from cdc_platform.storage import atomic

if TYPE_CHECKING:
    from cdc_platform.storage import StoreLock

DEFAULT_PORT = 3000
START_SECONDS = 180


@click.command()
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Port of the UI, 0 for any. [default: 3000, or any if it is taken]"
)
@click.option("--public-url", help="Address of a proxy in front of the UI, as https://HOST/PATH; others are refused.")
@click.option("--read-only", is_flag=True, help="Make the UI read-only.")
@click.option(
    "--log-format",
    type=click.Choice(LOG_FORMATS),
    help=f"Format of the logs in <home>/logs. [default: ${LOG_FORMAT_VARIABLE}, or text]",
)
@json_option
@pass_session
def up(
    session: CliSession,
    port: int | None,
    public_url: str | None,
    read_only: bool,
    log_format: str | None,
    as_json: bool,
) -> None:
    """Start a Spark Connect server, the Dagster UI and its daemon; Ctrl-C stops all three.

    Prints a link to the UI once all of them answer; the link contains the token that the UI requires. Spark is
    restarted if it dies, and stops after a quarter of an hour without use (spark_sleep_ms in settings.toml) until it is
    needed. If another service dies, all stop with exit code 1. Everything listens on 127.0.0.1 only: docs/trust.md.

    \b
    Example:
      cdc-platform up
      cdc-platform --home /tmp/rehearsal up --port 0
      cdc-platform up --public-url https://dagster.example.com --read-only
    """
    public = parse_public_url(public_url) if public_url else None
    if log_format is not None:
        os.environ[LOG_FORMAT_VARIABLE] = log_format
    get_log_format()
    home = session.open_location(create=True)
    _refuse_world_writable_home(home)
    with (
        lock_home_exclusively(home) as instance_lock,
        _hold_store_lease(home) as lease,
        _open_port(port) as bound,
        supervise() as supervisor,
    ):
        parts = _start_services(supervisor, session, home, instance_lock, bound, public, read_only, quiet=as_json)
        write_result(parts, as_json=as_json)
        if not as_json:
            click.echo("press Ctrl-C to stop")
        supervisor.await_end(lambda: lease and lease.assert_held(f"home {home.name} is up"))
    if not as_json:
        click.echo("stopped")


def _hold_store_lease(home: HomeLocation) -> AbstractContextManager[StoreLock | None]:
    """Hold a lease on a home in an object store, against other machines. Locks alone protect a home in a folder."""
    from cdc_platform.storage import ObjectStorePath, hold_store_lock, parse_path

    path = parse_path(home.name) / "up.lease.json"
    return hold_store_lock(path, f"home {home.name} is up") if isinstance(path, ObjectStorePath) else nullcontext()


def _start_services(
    supervisor: Supervisor,
    session: CliSession,
    home: HomeLocation,
    held: InstanceLock,
    bound: socket.socket,
    public: PublicUrl | None,
    read_only: bool,
    *,
    quiet: bool,
) -> dict[str, object]:
    """Start all services and wait until they answer. Return the facts to print then."""
    from cdc_platform.server import UpServices, generate_token
    from cdc_platform.spark import LOG_VARIABLE, find_java, get_jars

    find_java()
    get_jars()
    if not quiet:
        click.echo("starting Spark, the Dagster UI and its daemon ...")
    names = UiAddresses(bound.getsockname()[1], public)
    parts = UpServices(home, held, session.clock, names, read_only, generate_token())
    make_private_folder(parts.logs)
    atomic.write_text_atomically(parts.token_file, parts.token, mode=atomic.OWNER_ONLY_MODE)
    parts.spark_file.withdraw()
    for service in parts.services(bound):
        supervisor.start(service)
    bound.close()  # only the UI listens from now on, so that clients do not wait for an answer if it dies
    log = parts.logs / "spark.log"
    log.unlink(missing_ok=True)
    os.environ[LOG_VARIABLE] = str(log)
    # Spark last: this waits until it has started, and the others come up meanwhile.
    server = parts.connect_server()
    supervisor.adopt(
        "the Spark Connect server",
        log,
        server,
        lambda: parts.start_spark(server),
        on_message=_report_message,
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


def _report_message(text: str) -> None:
    click.echo(to_json_line(text, "cdc-platform up") if get_log_format() == "json" else text, err=True)


def _refuse_world_writable_home(home: HomeLocation) -> None:
    """Raise if everybody on this machine can write to the home.

    Anybody who can write to a home can run code as the user who brings it up.

    Raises:
        EnvironmentProblem: the home is world-writable.
    """
    if home.path.stat().st_mode & 0o002:
        raise EnvironmentProblem(
            f"everybody on this machine can write into home {home.path}, and what is in it is run in your name; "
            f"close it with chmod 700 {home.path}"
        )


def _open_port(wanted: int | None) -> socket.socket:
    """Return a socket that listens at the port `wanted`; if None, at the default port, or at any port if that is taken.

    Raises:
        InputError: the port `wanted` is taken.
    """
    try:
        return listen_on_loopback(DEFAULT_PORT if wanted is None else wanted)
    except OSError:
        if wanted is None:
            return listen_on_loopback(0)
        raise InputError(f"port {wanted} of {LOOPBACK} is taken; name another with --port, or 0 for any") from None
