"""Progress of work that takes long, on a terminal only."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer

_DELAY_SECONDS = 2.0


@contextmanager
def show_progress(text: str) -> Iterator[None]:
    """Show a spinner with the elapsed time on standard error if the block takes more than two seconds.

    Nothing is written if standard error is not a terminal.
    """
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    progress = Progress(*columns, console=Console(file=sys.stderr), transient=True)
    progress.add_task(text, total=None)
    timer = Timer(_DELAY_SECONDS, progress.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        progress.stop()
