"""Errors for people, each with a stable code and one line that names the value, the rule and the remedy.

The command line and Dagster turn them into one line and an exit code. Any other exception is a defect.
"""

from __future__ import annotations

import errno
import re
from typing import Literal

Recovery = Literal["outage", "limited", "never"]
"""What a repetition without a person can achieve.

An `outage` ends by itself, so the work is repeated until it succeeds. `limited` errors may be over once other work has
finished, so a few attempts are made. What `never` succeeds by itself is not repeated.
"""

_MAX_LENGTH = 4000
"""The most characters of a message. A longer one keeps its beginning and its end."""
_HEAD_LENGTH, _TAIL_LENGTH = 3000, 900


_DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)
# Rust libraries append their stack to an error's text if RUST_BACKTRACE is set: numbered frames, each with or without a
# line `at FILE`.
_BACKTRACE_HEAD = re.compile(r"\s*(?:stack )?backtrace:\s*", re.IGNORECASE)
_FIRST_FRAME = re.compile(r"\s*0: ")
_NEXT_FRAME = re.compile(r"\s+(?:\d+: |at )")


def to_one_line(text: str) -> str:
    """Return a message on one line, without the backtraces that libraries append."""
    lines: list[str] = []
    in_backtrace = False
    for number, line in enumerate(text.split("\n")):
        in_backtrace = number > 0 and bool(_FIRST_FRAME.match(line) or (in_backtrace and _NEXT_FRAME.match(line)))
        if in_backtrace and len(lines) > 1 and _BACKTRACE_HEAD.fullmatch(lines[-1]):
            lines.pop()
        elif not in_backtrace:
            lines.append(line)
    return " ".join(" ".join(lines).split())


class PlatformError(Exception):
    """Base of every error that the platform raises on purpose. The message is one line, fit to show to a person."""

    exit_code = 2
    code = "refused"
    """The kind of refusal. It is stable regardless of the message; docs/codes.md has a row for each."""
    recovery: Recovery = "limited"
    """How sensors repeat a run that failed with this error."""

    def __init__(self, message: str, *, lacks: str | None = None) -> None:
        """Create the error. `lacks` names what CQL did not find: `keyspace ks`, `table ks.t` or `column ks.t.c`."""
        self.lacks = lacks
        text = to_one_line(message)
        super().__init__(text if len(text) <= _MAX_LENGTH else f"{text[:_HEAD_LENGTH]} ... {text[-_TAIL_LENGTH:]}")


class InputError(PlatformError, ValueError):
    """An input breaks a rule. Nothing was written."""

    code = "input"
    recovery = "never"


class NotFound(PlatformError, LookupError):
    """A requested object does not exist: an unknown generation, timestamp, table or file."""

    code = "not-found"
    recovery = "never"


class UnknownTable(NotFound):
    """The named table is not known here."""

    code = "unknown-table"


class UnknownGeneration(NotFound):
    """The named generation is not known here, or has been removed."""

    code = "unknown-generation"


class StateError(PlatformError):
    """The state of the lake forbids the step: for example, an earlier join is unfinished or rows are missing."""

    code = "state"


class NotAsCommitted(StateError):
    """An irreversible step depends on a table that does not hold what its commits wrote."""

    code = "not-as-committed"


class UnfinishedJoin(StateError):
    """An earlier join or repair is unfinished and must finish first."""

    code = "join-unfinished"


class ClockRefused(StateError):
    """The clock cannot be right: a generation made now would start too far before the newest one."""

    code = "clock"


class NoConditionalWrites(StateError):
    """The store lets two writers both create the same object, so the platform must not write to it."""

    code = "no-conditional-writes"


class StoreFailure(StateError):
    """A table's files cannot be read or written: one is missing, truncated, or differs from what its log says."""

    code = "store"


class EnvironmentProblem(PlatformError):
    """The machine lacks something: Java, the JARs, a writable home or disk space."""

    code = "environment"
    recovery = "outage"


class NoJava(EnvironmentProblem):
    """The machine has no Java that can run Spark."""

    code = "java"


class NewerLayout(EnvironmentProblem):
    """A newer version wrote the home."""

    code = "newer-layout"


class Unavailable(EnvironmentProblem):
    """Files cannot be read or written now: no permission, no response or no space. Nothing is damaged."""

    code = "unavailable"


class NotLetIn(Unavailable):
    """A store rejects the credentials: they are missing, wrong or expired."""

    code = "credentials"


def is_valid_utf8(given: str) -> bool:
    """Return True if a text from the system was UTF-8. Python decodes other bytes to surrogates."""
    return given.isascii() or not any("\ud800" <= character <= "\udfff" for character in given)


def disk_full_error(place: object, what: str = "") -> Unavailable:
    """Build the error for a full disk. `place` is on the disk; `what` is the operation that failed."""
    return Unavailable(f"{what}: no space left on {place}; free some and run again".removeprefix(": "))


def is_store_full(message: str) -> bool:
    """Return True if an object store's message says that it is out of space or that the bucket's quota is reached."""
    return re.search(r"\b507 Insufficient Storage|StorageFull|QuotaExceeded", message) is not None


def is_disk_full(error: OSError) -> bool:
    """Return True if a system error says that the disk, or a user's quota, is full."""
    # deltalake raises some with only a text.
    return error.errno in _DISK_FULL_ERRNOS or any(f"(os error {code})" in str(error) for code in _DISK_FULL_ERRNOS)


class ConflictError(PlatformError):
    """Other writers kept winning until the bounded retries ended. Running the step again is safe."""

    code = "conflict"
    recovery = "outage"


class AuditFailed(PlatformError):
    """A generation violates an invariant, so the step that relies on it did not run."""

    exit_code = 1
    code = "audit-failed"
    recovery = "never"


class WriteRefused(PlatformError):
    """The acceptance rule refuses a write. `verdict` is a `generations.acceptance.WriteVerdict`."""

    exit_code = 1
    code = "write-refused"
    recovery = "never"

    def __init__(self, verdict: str, message: str) -> None:
        super().__init__(message)
        self.verdict = verdict
