"""Retry a write while other writers commit first.

A commit is the next version of its table, or fails.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from deltalake.exceptions import CommitFailedError

from cdc_platform.delta.errors import translate_errors

ATTEMPTS = 40
RETRY_SECONDS = 60
_Result = TypeVar("_Result")


def retry_on_conflict(
    what: str, write: Callable[[], _Result], *, first_wait: float = 0.02, longest_wait: float = 1
) -> _Result:
    """Run a write, including its read of the table, until no other writer commits in between; waits are in seconds.

    Raises:
        ConflictError: other writers kept winning. Other errors of the write are translated, with `what` as their
            subject.
    """
    lost: list[CommitFailedError] = []
    with translate_errors(what):
        try:
            return write()
        except CommitFailedError as error:
            lost.append(error)
        return _retry(write, lost, first_wait, longest_wait)


def _retry(
    write: Callable[[], _Result], lost: list[CommitFailedError], first_wait: float, longest_wait: float
) -> _Result:
    """Retry a write after a first attempt that was `lost` to another writer; that attempt counts."""
    # Imported late: it imports asyncio and SSL, which take as long as a dozen writes.
    from tenacity import (
        Retrying,
        retry_if_exception_type,
        stop_after_attempt,
        stop_after_delay,
        wait_random_exponential,
    )

    for attempt in Retrying(
        retry=retry_if_exception_type(CommitFailedError),
        stop=stop_after_attempt(ATTEMPTS) | stop_after_delay(RETRY_SECONDS),
        wait=wait_random_exponential(multiplier=first_wait, max=longest_wait),
        reraise=True,
    ):
        with attempt:
            if lost:
                raise lost.pop()
            return write()
    raise AssertionError("unreachable: the last attempt raises")
