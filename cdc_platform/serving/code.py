"""Dagster's code server, as `python -m cdc_platform.serving.code` with the options of `dagster api grpc`.

Its runs are processes of their own, forked from one that has imported everything already: to import it takes longer
than most of what a run does. Each of them starts by importing this module again: so runs end with `up` as the code
server does.
"""

from __future__ import annotations

import multiprocessing
import sys
from multiprocessing import forkserver
from typing import Any

from cdc_platform.lease import bind
from cdc_platform.serving import databases
from cdc_platform.supervisor import end_with_parent

PRELOADED = "cdc_platform.serving.preloaded"

bind()
if __name__ == "__mp_main__":
    end_with_parent()
    databases.keep_open()


def serve() -> None:
    """Serve until the end."""
    from dagster._cli.api import grpc_command
    from dagster._grpc import server

    class ForkingServer(server.DagsterApiServer):
        """Dagster's own, which starts its runs by a context of multiprocessing that it makes when it is made."""

        def __init__(self, *args: Any, **named: Any) -> None:
            super().__init__(*args, **named)
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload([PRELOADED])
            self._mp_ctx = context
            forkserver.ensure_running()

    databases.keep_open()
    if sys.platform == "linux":  # where a fork of what has no threads is safe
        server.DagsterApiServer = ForkingServer
    grpc_command()


if __name__ == "__main__":
    serve()
