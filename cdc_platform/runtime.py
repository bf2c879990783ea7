"""Tune Python and its libraries for the platform's own processes.

Garbage collection takes a fifth of the time of importing Dagster or pandera. OpenBLAS starts a busy thread per core,
which is a third of the CPU of a short command on two cores; the platform multiplies no matrices.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

BLAS_THREADS_VARIABLE = "OPENBLAS_NUM_THREADS"


def tune_short_process() -> None:
    """Prevent OpenBLAS from starting threads in this process and its children, unless the environment sets a number.

    Call it before numpy is imported.
    """
    os.environ.setdefault(BLAS_THREADS_VARIABLE, "1")


@contextmanager
def gc_paused_for_imports() -> Iterator[None]:
    """Disable the garbage collector in a block of imports, then freeze the imported objects and enable it again.

    Frozen objects are not scanned later. A scan also writes to every object that it visits, which would copy the memory
    that forked processes share.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:  # otherwise an enclosing block enables it
            gc.enable()
