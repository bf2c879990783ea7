"""What the platform refuses in a worker of Spark, handed on as one line: Spark would put the worker's stack around it.

A worker tells the JVM of an error and ends; what it reads to know whether with its stack is set here, in the worker.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from cdc_platform.errors import PlatformError

_RUNTIME, _WORKER = "SPARK_PYTHON_RUNTIME", "PYTHON_WORKER"
_HIDES = "SPARK_HIDE_TRACEBACK"


@contextmanager
def in_one_line() -> Iterator[None]:
    """Run a block, or a function; where it is refused in a worker, that ends without a stack, but not of a defect."""
    try:
        yield
    except PlatformError:
        if os.environ.get(_RUNTIME) == _WORKER:
            os.environ[_HIDES] = "1"
        raise
