"""Report the platform's errors in a Spark worker as one line; Spark would surround them with the worker's stack trace.

A worker reports an error to the JVM and ends. It omits the stack trace if a variable, set here in the worker, says so.
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
    """Run a block or function; if a PlatformError ends it in a Spark worker, suppress the stack trace.

    Other exceptions are defects and keep theirs.
    """
    try:
        yield
    except PlatformError:
        if os.environ.get(_RUNTIME) == _WORKER:
            os.environ[_HIDES] = "1"
        raise
