"""Translate platform errors into Dagster failures, and the retry policy of steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dagster import Backoff, Failure, Jitter, RetryPolicy

from cdc_platform.errors import ConflictError, PlatformError

RETRY_POLICY = RetryPolicy(max_retries=3, delay=1, backoff=Backoff.EXPONENTIAL, jitter=Jitter.PLUS_MINUS)
"""For lost races with other writers, and for failures of an executor or a network. Every step is safe to repeat."""


@contextmanager
def platform_errors_as_failures() -> Iterator[None]:
    """Turn the platform's errors into failures that Dagster does not retry; conflicts stay errors and are retried.

    Raises:
        dagster.Failure: the step refused. Its description is the one line that says why and how to fix it.
    """
    try:
        yield
    except ConflictError:
        raise
    except PlatformError as error:
        raise Failure(
            str(error), metadata={"class": type(error).__name__, "code": error.code}, allow_retries=False
        ) from None
