"""How Python and what it loads go about their work in the platform's own processes.

Python looks for garbage whenever there are 700 objects more, and through ever more of them as they stay. What a process
imports all stays: looking at it again and again is a fifth of the time in which Dagster, or pandera, is imported.

OpenBLAS, which numpy brings, starts a thread for each core but one as it is loaded, and each looks for work without a
pause for a tenth of a second. The platform multiplies no matrices: it is a third of the CPU of a short command on two
cores, and on sixty-four as many threads.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

BLAS_THREADS = "OPENBLAS_NUM_THREADS"
_OBJECTS = 50_000


def be_lean() -> None:
    """Look for garbage once in so many new objects, and have OpenBLAS start no thread, here and in what starts here.

    For a process that is soon gone, in which garbage that waits is ten megabytes; before it imports numpy. Who has said
    how many threads OpenBLAS shall have is heard.
    """
    gc.set_threshold(_OBJECTS)
    os.environ.setdefault(BLAS_THREADS, "1")


@contextmanager
def importing() -> Iterator[None]:
    """Look for nothing in a block that imports what a process serves with, and never again at what is there then.

    A look also writes to all that it looks at: what forks share would be theirs alone. Garbage of imports is next to
    none: ten thousand objects behind Dagster's UI. Behind the block it looks as often as ever, at little.
    """
    looked = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if looked:  # else the block is in another one, which ends later
            gc.enable()
