"""The process that forks Spark's Python workers: pyspark's own daemon, preloaded, and ended when idle.

It loads the task writer and the check models (a second) once before the first fork. A Connect server starts such a
process for every session that uses Python and ends none. Spark starts another one if the session returns. Spark runs
this module by a setting of `session.get_local_conf`.
"""

from __future__ import annotations

import importlib
import os
import signal

from pyspark import daemon

from cdc_platform.runtime import gc_paused_for_imports

_TASK_WRITER_MODULE = "cdc_platform.delta.task_writer"
"""The module that is imported for the workers, with pyarrow and deltalake."""
_MODELS_MODULE = "cdc_platform.checks.judge"
"""The module whose models are preloaded; referred to by name, because `spark` imports no checks."""
IDLE_VARIABLE = "CDC_PLATFORM_WORKER_IDLE_SECONDS"
_IDLE_SECONDS = 120.0
"""How long (s) the process waits for the next worker; Spark ends workers without a task for a minute."""
_CHECKS = 4


class IdleTimer:
    """Ends this process after `seconds` without a child; a timer checks periodically."""

    def __init__(self, seconds: float) -> None:
        self._pause = seconds / _CHECKS
        self._remaining_checks = _CHECKS

    def start(self) -> None:
        """Start the timer, which forks do not inherit."""
        signal.signal(signal.SIGALRM, lambda *_: self._check_children())
        signal.setitimer(signal.ITIMER_REAL, self._pause, self._pause)

    def _check_children(self) -> None:
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            self._remaining_checks -= 1
        else:
            self._remaining_checks = _CHECKS
        if not self._remaining_checks:
            os.kill(os.getpid(), signal.SIGTERM)  # pyspark handles this signal and removes its socket


def main() -> None:
    """Serve workers until Spark ends, or until the process is idle."""
    with gc_paused_for_imports():
        importlib.import_module(_TASK_WRITER_MODULE)
        importlib.import_module(_MODELS_MODULE).preload_models()
    IdleTimer(float(os.environ.get(IDLE_VARIABLE) or _IDLE_SECONDS)).start()
    daemon.manager()


if __name__ == "__main__":
    main()
