"""Wait for other processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def await_true(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """Wait until `condition` returns a true value, and return it."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"{what} took more than {seconds} s"
        time.sleep(0.3)
    return answer
