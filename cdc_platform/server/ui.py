"""Dagster's UI behind the authentication middleware: `python -m cdc_platform.server.ui`.

`up` opens the port, so no other process can take it in between. The token is in a file, because every user can read
command lines.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import cast

import click

from cdc_platform.clock import HOUR_SECONDS, SECOND_MS
from cdc_platform.dagster_home import clock_from_environment
from cdc_platform.home_location import open_home_location
from cdc_platform.instance_lock import bind_to_up
from cdc_platform.json_logs import configure_json_logs, get_log_format
from cdc_platform.runtime import gc_paused_for_imports
from cdc_platform.server.addresses import UiAddresses, await_code_server, parse_public_url
from cdc_platform.server.auth import AsgiApplication, AuthMiddleware
from cdc_platform.server.health import HealthApp, code_location_check, home_check, storage_check
from cdc_platform.server.home_files import HomeFilesApp
from cdc_platform.server.metrics_app import MetricsApp

bind_to_up()

STATEMENT_MS = SECOND_MS * 15
POOL_SECONDS = HOUR_SECONDS
POOL_OVERFLOW = 20
POLL_MS = SECOND_MS * 2
"""Dagster's own defaults: statement time limit, pooled connection lifetime, extra connections and poll interval."""


@click.command()
@click.option("--listening", type=int, required=True, help="File descriptor of a socket that listens.")
@click.option("--workspace", type=click.Path(exists=True, dir_okay=False), required=True)
@click.option("--token-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=True)
@click.option("--public-url", help="Where a proxy in front of it answers.")
@click.option("--user-header", default="", help="The header in which that proxy names the user.")
@click.option("--read-only", is_flag=True, help="Nothing can be changed.")
def serve_ui(
    listening: int, workspace: str, token_file: Path, public_url: str | None, user_header: str, read_only: bool
) -> None:
    """Serve the UI at a socket until the process is asked to end."""
    with gc_paused_for_imports():
        import uvicorn
        from dagster import DagsterInstance, __version__

        # Private API. The command `dagster-webserver` can neither serve at an open socket nor run behind middleware.
        # Its UI would listen at a port of its own, without authentication, and serve any client.
        from dagster._core.workspace.context import WorkspaceProcessContext
        from dagster._core.workspace.load_target import WorkspaceFileTarget
        from dagster_webserver.app import create_app_from_workspace_process_context

        from cdc_platform.server.ui_audit import UserOfRequest, tag_launches, user_finder

    configure_json_logs()
    await_code_server(Path(workspace))
    bound = socket.socket(fileno=listening)
    names = UiAddresses(bound.getsockname()[1], parse_public_url(public_url) if public_url else None)
    token = token_file.read_text(encoding="utf-8").strip()
    with (
        DagsterInstance.get() as instance,
        WorkspaceProcessContext(
            instance,
            version=__version__,
            read_only=read_only,
            workspace_load_target=WorkspaceFileTarget([workspace]),
        ) as context,
    ):
        tag_launches(instance)
        instance.optimize_for_webserver(STATEMENT_MS, POOL_SECONDS, POOL_OVERFLOW)
        page = create_app_from_workspace_process_context(context, names.prefix, POLL_MS)
        home = open_home_location(create=False)
        files = HomeFilesApp(cast("AsgiApplication", page), home, names.prefix, store_pages=not read_only)
        metrics = MetricsApp(files, home, clock_from_environment(), names.prefix)
        parts = {
            "home": home_check(home),
            "code_location": code_location_check(context),
            "storage": storage_check(instance),
        }
        health = HealthApp(metrics, parts, names.prefix)
        gate = AuthMiddleware(UserOfRequest(health, user_finder(names, user_header)), names, token)
        # Ignore headers in which a proxy describes its client, because every user of this machine could send them.
        # Its own log configuration is for text.
        log_config = None if get_log_format() == "json" else uvicorn.config.LOGGING_CONFIG
        config = uvicorn.Config(
            gate, log_level="warning", log_config=log_config, proxy_headers=False, server_header=False
        )
        uvicorn.Server(config).run(sockets=[bound])


if __name__ == "__main__":
    serve_ui()
