"""Errors that people see, each with a stable code and one line that names the value, the rule and the remedy.

The command line and Dagster turn them into one line and an exit code. Any other exception is a defect.
"""

from __future__ import annotations

import errno
import re

_MAX_LENGTH = 4000
"""The characters of a message; a longer one, which has a name or value of that length, keeps its begin and its end."""
_HEAD_LENGTH, _TAIL_LENGTH = 3000, 900


_DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)
# Rust libraries append their stack to the text of an error where RUST_BACKTRACE is set: numbered frames, each with or
# without a line `at FILE`.
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
    """Base of every error the platform raises on purpose. The message is one line, fit to be shown to a person."""

    exit_code = 2
    code = "refused"
    """What kind of refusal it is. It stays, whatever the message says; docs/codes.md has a row for each."""

    def __init__(self, message: str, *, lacks: str | None = None) -> None:
        """Make the error; `lacks` names what CQL does not find: `keyspace ks`, `table ks.t` or `column ks.t.c`."""
        self.lacks = lacks
        text = to_one_line(message)
        super().__init__(text if len(text) <= _MAX_LENGTH else f"{text[:_HEAD_LENGTH]} ... {text[-_TAIL_LENGTH:]}")


class InputError(PlatformError, ValueError):
    """What was handed in breaks a rule; nothing was written."""

    code = "input"


class NotFound(PlatformError, LookupError):
    """What was asked for is not there: an unknown generation, timestamp, table or file."""

    code = "not-found"


class UnknownTable(NotFound):
    """A table is named that is not known here."""

    code = "unknown-table"


class UnknownGeneration(NotFound):
    """A generation is named that is not known here, or has been removed."""

    code = "unknown-generation"


class StateError(PlatformError):
    """The lake is in a state in which the step must not run: an earlier join is unfinished, rows are missing."""

    code = "state"


class NotAsCommitted(StateError):
    """A step that cannot be undone would decide by a table that does not hold what its commits put there."""

    code = "not-as-committed"


class UnfinishedJoin(StateError):
    """An earlier join, or a repair, is unfinished and comes first."""

    code = "join-unfinished"


class ClockRefused(StateError):
    """The clock cannot be right: a generation that is made now would start too far before the newest one."""

    code = "clock"


class NoConditionalWrites(StateError):
    """The store lets two writers both put one object, so nothing may be written to it."""

    code = "no-conditional-writes"


class StoreFailure(StateError):
    """The files of a table could not be read or written as they are: one is gone, cut off, or not what its log says."""

    code = "store"


class EnvironmentProblem(PlatformError):
    """The machine lacks something: Java, the JARs, a writable home, disk."""

    code = "environment"


class NoJava(EnvironmentProblem):
    """There is no Java that Spark can run on."""

    code = "java"


class NewerLayout(EnvironmentProblem):
    """A newer version wrote the home."""

    code = "newer-layout"


class Unavailable(EnvironmentProblem):
    """The machine does not let files be read or written now: no permission, no answer, no space. It is no damage."""

    code = "unavailable"


class NotLetIn(Unavailable):
    """A store refuses the credentials that it is asked with: there are none, they are wrong, or they have expired."""

    code = "credentials"


def is_valid_utf8(given: str) -> bool:
    """Whether a text from the system, as an argument or a path, was UTF-8: Python has other bytes as surrogates."""
    return given.isascii() or not any("\ud800" <= each <= "\udfff" for each in given)


def disk_full_error(place: object, what: str = "") -> Unavailable:
    """What is said of a full disk, wherever it shows: `place` is on it, `what` was being done."""
    return Unavailable(f"{what}: no space left on {place}; free some and run again".removeprefix(": "))


def is_store_full(said: str) -> bool:
    """Whether an object store says that it takes nothing more: it has no room, or the bucket's quota is reached."""
    return re.search(r"\b507 Insufficient Storage|StorageFull|QuotaExceeded", said) is not None


def is_disk_full(error: OSError) -> bool:
    """Whether an error of the system says that a disk, or a user's part of it, is full."""
    # deltalake raises some with a text alone.
    return error.errno in _DISK_FULL_ERRNOS or any(f"(os error {code})" in str(error) for code in _DISK_FULL_ERRNOS)


class ConflictError(PlatformError):
    """Other writers kept winning for as long as the bounded retries lasted; running the step again is safe."""

    code = "conflict"


class AuditFailed(PlatformError):
    """An invariant of a generation is violated; the step that would rely on it was not taken."""

    exit_code = 1
    code = "audit-failed"


class WriteRefused(PlatformError):
    """The acceptance rule refuses a write. `verdict` is the rule's class, see generations.metadata.Verdict."""

    exit_code = 1
    code = "write-refused"

    def __init__(self, verdict: str, message: str) -> None:
        super().__init__(message)
        self.verdict = verdict
