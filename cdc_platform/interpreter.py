"""Settings of Python and OpenBLAS for the platform's own processes.

Python's garbage collector scans all live objects repeatedly while a process imports Dagster, pandera and what they
need. Nothing that is imported is ever freed, and the scans take three tenths of the CPU time of importing the
definitions.

numpy loads OpenBLAS, which starts one thread per core but one, and each thread spins for a tenth of a second. The
platform multiplies no matrices, so the threads are a third of a short command's CPU time on two cores.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

BLAS_THREADS = "OPENBLAS_NUM_THREADS"


def be_lean() -> None:
    """Have OpenBLAS start no threads in this process and its children, unless the environment says how many.

    Call it before numpy is imported.
    """
    os.environ.setdefault(BLAS_THREADS, "1")


@contextmanager
def importing() -> Iterator[None]:
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
