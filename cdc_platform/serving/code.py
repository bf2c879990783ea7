"""Dagster's code server, as `python -m cdc_platform.serving.code` with the options of `dagster api grpc`.

Each of its runs is a process of its own and ends with `up`, as the code server does. On Linux the runs are forked from
a process that has imported everything already: imports take longer than most of what a run does.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

from cdc_platform.errors import PlatformError
from cdc_platform.lease import bind
from cdc_platform.serving.console_commands import console_command
from cdc_platform.serving.ready import make_ready
from cdc_platform.supervisor import end_with_parent

PRELOADED = "cdc_platform.serving.preloaded"

if __name__ == "__mp_main__":
    bind()
    end_with_parent()


def serve() -> None:
    """Serve until the process is asked to end."""
    bind()
    command = console_command("dagster")
    try:
        make_ready(Path(os.environ["DAGSTER_HOME"]))
    except PlatformError as error:
        sys.exit(str(error))  # `up` shows the last line of the log of a part that has ended
    if sys.platform == "linux":
        fork_runs()
    sys.argv[:1] = ["dagster", "api", "grpc"]
    command()


def fork_runs() -> None:
    """Fork the runs of this code server from a process that has imported what they import.

    Dagster starts each run in multiprocessing's context "spawn" and has no option for another one. Here that name gives
    the context "forkserver". Its process starts with the first run: an `up` without runs needs no memory for it.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([PRELOADED])
    get_context: Any = multiprocessing.get_context

    def forking(method: str | None = None) -> Any:
        return context if method == "spawn" else get_context(method)

    multiprocessing.get_context = forking


if __name__ == "__main__":
    serve()
