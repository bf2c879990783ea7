"""Writes that are tried again as long as others come first: a commit is the next version of its table, or none."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from deltalake.exceptions import CommitFailedError

from cdc_platform.lake.translate import translated

ATTEMPTS = 40
PATIENCE_SECONDS = 60
_Result = TypeVar("_Result")


def until_first(
    what: str, write: Callable[[], _Result], *, first_wait: float = 0.02, longest_wait: float = 1
) -> _Result:
    """Run a write, from its look at the table on, until no other writer comes in between; waits are in seconds.

    Raises:
        ConflictError: others kept winning. What else the write raises is said of `what`.
    """
    # Not before something is written: it brings asyncio and SSL along, of which whoever only reads has no use.
    from tenacity import (
        Retrying,
        retry_if_exception_type,
        stop_after_attempt,
        stop_after_delay,
        wait_random_exponential,
    )

    with translated(what):
        for attempt in Retrying(
            retry=retry_if_exception_type(CommitFailedError),
            stop=stop_after_attempt(ATTEMPTS) | stop_after_delay(PATIENCE_SECONDS),
            wait=wait_random_exponential(multiplier=first_wait, max=longest_wait),
            reraise=True,
        ):
            with attempt:
                return write()
    raise AssertionError("unreachable: the last attempt raises")
