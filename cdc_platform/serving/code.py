"""Dagster's code server, as `python -m cdc_platform.serving.code` with the options of `dagster api grpc`.

Its runs are processes of their own, forked from one that has imported everything already: to import it takes longer
than most of what a run does. That one is itself a fork of the code server, made before it serves: what both have
imported is once in memory. Each run ends with `up` as the code server does.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Sequence
from multiprocessing import forkserver, resource_tracker, util
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from cdc_platform.errors import PlatformError
from cdc_platform.lease import bind
from cdc_platform.serving import databases
from cdc_platform.serving.parent import FORKS, PRELOADED, preload
from cdc_platform.serving.ready import make_ready
from cdc_platform.supervisor import end_with_parent

_STANDARD = 3
"""So many of the first file descriptors are everybody's: input, output, errors."""

if __name__ == "__mp_main__":
    bind()
    end_with_parent()
    databases.keep_open()


def serve() -> None:
    """Serve until the end."""
    if FORKS:
        _fork_the_parent_of_runs()
    bind()
    _make_ready()
    from dagster._cli.api import grpc_command
    from dagster._grpc import server

    class ForkingServer(server.DagsterApiServer):
        """Dagster's own, which starts its runs by a context of multiprocessing that it makes when it is made."""

        def __init__(self, *args: Any, **named: Any) -> None:
            super().__init__(*args, **named)
            self._mp_ctx = multiprocessing.get_context("forkserver")  # pyrefly: ignore[bad-assignment]
            forkserver.ensure_running()

    databases.keep_open()
    if FORKS:
        server.DagsterApiServer = ForkingServer
    grpc_command()


def _make_ready() -> None:
    try:
        make_ready(Path(os.environ["DAGSTER_HOME"]))
    except PlatformError as error:
        sys.exit(str(error))  # `up` tells the last line of a part that has ended


def _fork_the_parent_of_runs() -> None:
    """Import everything and fork the process that runs are forked from, as long as this one has a single thread.

    multiprocessing starts its fork server as a new program; here its first one is a fork, and one that takes the place
    of a dead one, when there are threads, a program as there. Code that does not load is left to Dagster, which tells.
    """
    forkserver.set_forkserver_preload([PRELOADED])
    if not preload():
        return
    resource_tracker.ensure_running()
    spawn = util.spawnv_passfds
    util.spawnv_passfds = _forked  # pyrefly: ignore[bad-assignment]
    try:
        forkserver.ensure_running()
    finally:
        util.spawnv_passfds = spawn


def _forked(_path: object, arguments: Sequence[str], passed: Sequence[int]) -> int:
    """What `util.spawnv_passfds` does with the command line of a fork server, without another program."""
    pid = os.fork()
    if pid == 0:
        _be_the_parent_of_runs(arguments[-1], passed)
    return pid


def _be_the_parent_of_runs(program: str, passed: Sequence[int]) -> NoReturn:
    status = 1
    try:
        first = _STANDARD
        for kept in sorted(passed):
            os.closerange(first, kept)
            first = kept + 1
        os.closerange(first, os.sysconf("SC_OPEN_MAX"))
        # The one lock that is held now, and the module that runs are to import anew as theirs.
        forkserver._forkserver.__init__()
        sys.modules["__main__"] = ModuleType("__main__")
        exec(program, {})  # multiprocessing's own command
        status = 0
    finally:
        os._exit(status)


if __name__ == "__main__":
    serve()
