"""The process that forks Spark's Python workers: pyspark's own, ready for the platform's tasks, and gone when idle.

What tasks need is loaded before the first fork, once for all workers: what writes slices, and the models by which
audits judge, which take a second. A Connect server starts such a process for every session that uses Python, and ends
none of them: without workers it ends by itself, and Spark, which takes that for an accident, starts another if the
session comes back. Run as a module by Spark, see `session.local_conf`.
"""

from __future__ import annotations

import importlib
import os
import signal

from pyspark import daemon

from cdc_platform.interpreter import importing

SLICES = "cdc_platform.lake.slices"
"""What is imported for the workers, with pyarrow and deltalake."""
MODELS = "cdc_platform.invariants.models"
"""What `load` is called of; by name, as the lake itself knows nobody's models."""
IDLE_VARIABLE = "CDC_PLATFORM_WORKER_IDLE_SECONDS"
IDLE_SECONDS = 120.0
"""How long the process waits for the next worker. Spark ends workers that have had no task for a minute."""
_LOOKS = 4


class Idleness:
    """Ends this process when it has had no child for `seconds`; asked again and again by a timer."""

    def __init__(self, seconds: float) -> None:
        self._pause = seconds / _LOOKS
        self._left = _LOOKS

    def start(self) -> None:
        """Start the timer, which forks do not inherit."""
        signal.signal(signal.SIGALRM, lambda *_: self._look())
        signal.setitimer(signal.ITIMER_REAL, self._pause, self._pause)

    def _look(self) -> None:
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            self._left -= 1
        else:
            self._left = _LOOKS
        if not self._left:
            os.kill(os.getpid(), signal.SIGTERM)  # pyspark's own end: it removes its socket


def main() -> None:
    """Serve workers until Spark ends, or until nobody wants one."""
    with importing():
        importlib.import_module(SLICES)
        importlib.import_module(MODELS).load()
    Idleness(float(os.environ.get(IDLE_VARIABLE) or IDLE_SECONDS)).start()
    daemon.manager()


if __name__ == "__main__":
    main()
