"""Translate platform errors into Dagster failures, the retry policy of steps, and the reasons of failed runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast, get_args

from dagster import Backoff, DagsterEventType, DagsterInstance, Failure, Jitter, RetryPolicy

from cdc_platform.errors import ConflictError, PlatformError, Recovery, to_one_line

RETRY_POLICY = RetryPolicy(max_retries=3, delay=1, backoff=Backoff.EXPONENTIAL, jitter=Jitter.PLUS_MINUS)
"""For lost races with other writers, and for failures of an executor or a network. Every step is safe to repeat."""

_RECOVERY_KEY = "recovery"
_OUTAGE_CLASSES = frozenset(
    {
        "AdminShutdown",
        "ArrowMemoryError",
        "BrokenPipeError",
        "CannotConnectNow",
        "ConflictError",
        "ConnectionError",
        "ConnectionRefusedError",
        "ConnectionResetError",
        "CrashShutdown",
        "InterfaceError",
        "LockLost",
        "MemoryError",
        "OSError",
        "OperationalError",
        "Py4JNetworkError",
        "RetriesExceeded",
        "SparkConnectGrpcException",
        "TimeoutError",
    }
)
"""The errors of libraries that a machine, a network or a database raises for an outage, by name."""


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
            str(error),
            metadata={"class": type(error).__name__, "code": error.code, _RECOVERY_KEY: error.recovery},
            allow_retries=False,
        ) from None


@dataclass(frozen=True)
class RunFailure:
    """Why a run failed, in one line, and whether a repetition can help."""

    message: str
    recovery: Recovery
    is_worker_lost: bool = False


def read_run_failure(instance: DagsterInstance, run_id: str) -> RunFailure:
    """Return why a run failed, by the last of its steps that failed.

    A run without a failed step ended because its worker was gone or could not start: out of memory, killed, or
    restarted. That is an outage.
    """
    records = instance.get_records_for_run(
        run_id, of_type=DagsterEventType.STEP_FAILURE, limit=1, ascending=False
    ).records
    event = records[0].event_log_entry.dagster_event if records else None
    if event is None:
        return RunFailure("its worker ended or could not start", "outage", is_worker_lost=True)
    failure = event.step_failure_data
    if failure.user_failure_data is not None:
        recovery = failure.user_failure_data.metadata.get(_RECOVERY_KEY)
        value = recovery.value if recovery is not None else "limited"
        known = cast(Recovery, value) if value in get_args(Recovery) else "limited"
        return RunFailure(to_one_line(failure.user_failure_data.description or ""), known)
    error = failure.error
    while error is not None and error.cause is not None:
        error = error.cause
    if error is None:
        return RunFailure(f"step {event.step_key} failed", "limited")
    raised = _find_platform_error(error.cls_name)
    if raised is not None:
        return RunFailure(to_one_line(error.message.partition(": ")[2]), raised.recovery)
    return RunFailure(to_one_line(error.message), "outage" if error.cls_name in _OUTAGE_CLASSES else "limited")


def _find_platform_error(class_name: str | None) -> type[PlatformError] | None:
    """Return the platform's error of this name, which a step raised outside `platform_errors_as_failures`.

    Resources open the home before that block is entered.
    """
    classes: list[type[PlatformError]] = [PlatformError]
    while classes:
        found = classes.pop()
        if found.__name__ == class_name:
            return found
        classes += found.__subclasses__()
    return None
