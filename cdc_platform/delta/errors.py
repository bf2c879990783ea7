"""Translate errors of deltalake, Delta on Spark, Spark and Py4J into the platform's own errors.

The module does not import pyspark: a Spark error exists only where Spark is loaded already.
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from types import TracebackType

import pyarrow as pa
from deltalake.exceptions import CommitFailedError, DeltaError, DeltaProtocolError, SchemaMismatchError

from cdc_platform import errors
from cdc_platform.delta.paths import ForeignPath
from cdc_platform.errors import (
    ConflictError,
    EnvironmentProblem,
    InputError,
    PlatformError,
    StateError,
    StoreFailure,
    Unavailable,
    disk_full_error,
    is_disk_full,
)
from cdc_platform.spark_server import list_variables_to_unset
from cdc_platform.storage import clean_message, object_store

OUTSIDE_PARTITION = "rows lie outside that partition"

# Messages of file systems about temporary failures: deltalake passes on only the text. Names in paths do not match.
_TRANSIENT = re.compile(
    r"(?<![\w/.-])(permission denied|timed out|timeout|connection|unreachable|too many open files|no space left)"
    r"(?![\w/])",
    flags=re.IGNORECASE,
)
# The start of errors that deltalake raises as a plain OSError, with messages of its own file systems.
_DELTALAKE_MESSAGE = re.compile(r"^(Kernel|Generic \w+) error")
_DISK_FULL = re.compile(r"no space left on device|disk quota exceeded", flags=re.IGNORECASE)
_SPARK_CONFLICTS = frozenset({"DELTA_METADATA_CHANGED", "DELTA_PROTOCOL_CHANGED"})
# Messages of delta-rs about a log with a gap, and about one without its first entry.
_LOG_GAP = re.compile(r"found gap: .*?\bversion: (\d+),.* -> .*?\bversion: (\d+),")
_UNREADABLE_FILE = re.compile(r"Failed to fetch metadata for file (.+?): (.*)", flags=re.DOTALL)
"""The query engine's message about a data file that it cannot read, and the reason."""
_NO_FIRST_ENTRY = "No table metadata or protocol found in delta log"
_QUERY_SQLSTATES = frozenset({"07", "0A", "20", "21", "22", "42", "44", "54"})
"""The classes of SQLSTATE for what a query asks: unsupported, wrong types or counts, data, syntax, names, limits."""
# Errors in the rows or the SQL of the request.
_REQUEST_ERRORS = (
    "DELTA_VIOLATE_CONSTRAINT",
    "DELTA_NOT_NULL_CONSTRAINT",
    "DELTA_REPLACE_WHERE_MISMATCH",
    "DELTA_FAILED_TO_MERGE_FIELDS",
    "DELTA_MULTIPLE_SOURCE_ROW",
    "PARSE_SYNTAX_ERROR",
    "PARSE_EMPTY_STATEMENT",
    "UNRESOLVED_COLUMN",
    "UNRESOLVED_ROUTINE",
    "TABLE_OR_VIEW_NOT_FOUND",
    "SCHEMA_NOT_FOUND",
    "DATATYPE_MISMATCH",
    "CAST_INVALID_INPUT",
    "DIVIDE_BY_ZERO",
    "ARITHMETIC_OVERFLOW",
    "MISSING_AGGREGATION",
    "AMBIGUOUS_REFERENCE",
    "UNSUPPORTED_",
    "INVALID_",
    "INCOMPATIBLE_",
)
# Errors in the stored data.
_LAKE_ERRORS = ("DELTA_", "PATH_NOT_FOUND", "FAILED_READ_FILE", "CANNOT_READ")


# What Arrow and the readers of Delta's log raise about rows and entries that are not as declared. ArrowInvalid and
# JSONDecodeError are ValueErrors, ArrowKeyError is a KeyError.
_ROW_ERRORS = (pa.ArrowException, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError)
_DAMAGE_HINT = "cdc-platform check --deep names what else is damaged, and what is to be done"


def is_content_error(error: Exception) -> bool:
    """Return True if a file's contents are the reason why it cannot be read.

    Errors about its location come from the system, with a file name or an errno.
    """
    return not isinstance(error, OSError) or (error.filename is None and error.errno is None)


def translate_errors(what: str) -> AbstractContextManager[None]:
    """Run a block and raise its known errors as a `PlatformError` about `what`.

    Any other error is a defect and propagates unchanged.
    """
    return _ErrorTranslation(what)


def translate_query_errors(what: str) -> AbstractContextManager[None]:
    """Run a block that evaluates a user's query, and translate its errors as `translate_errors` does.

    Every error of Spark about the query's syntax, names, types or values is the user's.
    """
    return _ErrorTranslation(what, of_query=True)


def translate_read_errors(what: str) -> AbstractContextManager[None]:
    """Run a block that only reads rows of a table, and translate its errors as `translate_errors` does.

    Rows that do not have the declared columns and types are damage, and raise a `StoreFailure`.
    """
    return _ErrorTranslation(f"reading {what}", of_rows=True)


class _ErrorTranslation(AbstractContextManager[None]):
    """A class, since each read enters two of these blocks and a generator takes four times as long."""

    __slots__ = ("_of_query", "_of_rows", "_what")

    def __init__(self, what: str, *, of_rows: bool = False, of_query: bool = False) -> None:
        self._what, self._of_rows, self._of_query = what, of_rows, of_query

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, Exception) or isinstance(error, PlatformError):
            return
        translated = translate_error(error, self._what)
        if translated is None and self._of_rows and isinstance(error, _ROW_ERRORS):
            translated = StoreFailure(f"{self._what}: {_shorten(str(error))}; {_DAMAGE_HINT}")
        if translated is None and self._of_query:
            translated = _translate_query_error(error, self._what)
        if translated is not None:
            raise translated from error


def translate_error(error: Exception, what: str) -> PlatformError | None:
    """Return the platform's error for a foreign one; None if a user cannot do anything about it."""
    module = type(error).__module__
    if isinstance(error, DeltaError):
        return _translate_deltalake(error, what)
    if module.startswith(("pyspark", "delta", "py4j")):
        return _translate_spark(error, what)
    if type(error) is Exception:
        # deltalake's query engine raises no class of its own, and puts a stack trace under its first line.
        return _translate_store_response(str(error), what) or _translate_store(
            (str(error).splitlines() or [""])[0], what
        )
    if isinstance(error, ForeignPath):
        return StoreFailure(f"{what}: {error}; {_DAMAGE_HINT}")
    if (
        isinstance(error, OSError)
        and error.errno is None
        and (translated := _translate_store_response(str(error), what)) is not None
    ):
        return translated
    if isinstance(error, OSError) and is_disk_full(error):
        return disk_full_error(error.filename or _folder_in_message(str(error)), what)
    if isinstance(error, OSError) and error.filename is not None:
        return Unavailable(f"{what}: {error.strerror}: {error.filename}; check its permissions and free space")
    if isinstance(error, OSError) and error.errno is None and _DELTALAKE_MESSAGE.search(str(error)):
        return _translate_store(str(error), what)
    return None


def error_from_task_trace(error: Exception) -> PlatformError | None:
    """Return the platform's error that a Spark task raised; None if it raised none.

    Spark reports it as the text of a stack trace with the error at its end.
    """
    raised = re.findall(r"^cdc_platform\.errors\.(\w+): ([^\n]*)$", str(error), flags=re.MULTILINE)
    if not raised:
        return None
    return error_from_task_report(*raised[-1])


def error_from_task_report(name: str, message: str) -> PlatformError:
    """Return the platform's error of the class that a task reports by name.

    `WriteRefused` becomes a `StateError`, since the verdict of a write is not part of the report.
    """
    kind = getattr(errors, name, PlatformError)
    return (StateError if kind is errors.WriteRefused else kind)(message)


def _get_spark_conflict_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that Delta on Spark raises when another writer committed first.

    When the later writer runs again, it commits or finds the work done. Importing these exceptions makes pyspark raise
    them, in embedded sessions and on Connect.
    """
    import delta.connect.exceptions  # noqa: F401
    from delta import exceptions

    return (
        exceptions.DeltaConcurrentModificationException,
        exceptions.ConcurrentWriteException,
        exceptions.MetadataChangedException,
        exceptions.ProtocolChangedException,
        exceptions.ConcurrentAppendException,
        exceptions.ConcurrentDeleteReadException,
        exceptions.ConcurrentDeleteDeleteException,
        exceptions.ConcurrentTransactionException,
    )


def _translate_deltalake(error: DeltaError, what: str) -> PlatformError:
    text = str(error)
    if isinstance(error, CommitFailedError):
        return _conflict_error(text, what)
    if isinstance(error, SchemaMismatchError):
        return InputError(f"{what}: the rows do not fit the table ({_shorten(text)})")
    if isinstance(error, DeltaProtocolError):
        return StateError(f"{what}: the table needs features that this version does not know ({_shorten(text)})")
    broken = re.search(r"(\d+) rows failed validation check", text)
    if broken:
        return InputError(f"{what}: {broken[1]} rows break the table's constraints, as this one: {_first_row(text)}")
    return _translate_store(text, what)


def _translate_store(text: str, what: str) -> PlatformError:
    """Translate a store's message about its files: they are unavailable now, or damaged."""
    translated = _translate_store_response(text, what)
    if translated is not None:
        return translated
    if _DISK_FULL.search(text):
        return disk_full_error(_folder_in_message(text), what)
    lost = _describe_missing_file(text)
    if lost is not None:
        return StoreFailure(f"{what}: {lost}; {_DAMAGE_HINT}")
    return (Unavailable if _TRANSIENT.search(text) else StoreFailure)(f"{what}: {_shorten(text)}")


def _describe_missing_file(text: str) -> str | None:
    """Describe the missing log entries or the missing data file; None if the message is about anything else."""
    unread = _UNREADABLE_FILE.search(text)
    if unread is not None and "not found" in unread[2]:
        return f"{unread[1]} is gone"
    if unread is not None and re.search(r"\b416\b|\brange\b", unread[2], flags=re.IGNORECASE):
        return f"{unread[1]} is cut off"
    gap = _LOG_GAP.search(text)
    if gap is None:
        return "the first entries of its log are gone" if _NO_FIRST_ENTRY in text else None
    first, last = int(gap[1]) + 1, int(gap[2]) - 1
    return f"version {first} of its log is gone" if first == last else f"versions {first} to {last} of its log are gone"


def _translate_store_response(text: str, what: str) -> PlatformError | None:
    """Translate an object store's refusal or failure of a request; None for any other text."""
    translated = object_store.classify_store_error(text)
    return None if translated is None else type(translated)(f"{what}: {translated}")


def _folder_in_message(text: str) -> str:
    """Return the folder of the file that a message names."""
    named = re.search(r"(?<![\w/])(/[^\s\"':,;)]+)/", text)
    return named[1] if named else "the device"


def _translate_spark(error: Exception, what: str) -> PlatformError | None:
    """Translate a Spark error, which has its name in brackets (`[NAME] message SQLSTATE: ...`), also within Py4J."""
    text = str(error)
    names = re.findall(r"\[([A-Z][A-Z0-9_.]+)\]\s*([^\n]*)", text)
    for name, message in names:
        if name in _SPARK_CONFLICTS or name.startswith("DELTA_CONCURRENT"):
            return _conflict_error(message, what)
    if isinstance(error, _get_spark_conflict_errors()):
        return _conflict_error(text, what)
    if "CHECK constraint EXPRESSION(" in text:
        return InputError(f"{what}: {OUTSIDE_PARTITION}{_offending_values(text)}")
    raised = error_from_task_trace(error)
    if raised is not None:
        return type(raised)(f"{what}: {raised}")
    for name, message in reversed(names):
        if name.startswith(_REQUEST_ERRORS):
            return InputError(f"{what}: {_without_sqlstate(message) or name}{_offending_values(text)}")
    for name, message in names:
        if name.startswith(_LAKE_ERRORS):
            return StateError(f"{what}: {_without_sqlstate(message) or name}")
    return _translate_spark_failure(error, text, what)


def _translate_query_error(error: Exception, what: str) -> PlatformError | None:
    """Translate a Spark error whose SQLSTATE is of a class for errors of the query."""
    found = re.search(r"\[[A-Z][A-Z0-9_.]+\]\s*([^\n]*?)\s*SQLSTATE: (\w{2})", str(error))
    if found is None or found[2] not in _QUERY_SQLSTATES:
        return None
    return InputError(f"{what}: {_shorten(found[1])}")


def _translate_spark_failure(error: Exception, text: str, what: str) -> PlatformError | None:
    if "OutOfMemoryError" in text:
        return EnvironmentProblem(f"{what}: the JVM ran out of memory; give it more with CDC_PLATFORM_DRIVER_MEMORY=4g")
    if _DISK_FULL.search(text):
        return disk_full_error(_folder_in_message(text), what)
    if type(error).__name__ in ("Py4JNetworkError", "Py4JError") and "java" not in text.lower():
        return EnvironmentProblem(f"{what}: the JVM is gone ({_shorten(text)}); check free memory and run it again")
    if "Connect" in type(error).__name__ and ("UNAVAILABLE" in text or "UNAUTHENTICATED" in text):
        # A restarted server has a different token.
        return EnvironmentProblem(
            f"{what}: the Spark Connect server is gone; start it again, or unset {list_variables_to_unset()}"
        )
    return None


def _conflict_error(text: str, what: str) -> PlatformError:
    return ConflictError(
        f"{what}: other writers committed first every time; run it again when they are done ({_shorten(text)})"
    )


def _without_sqlstate(message: str) -> str:
    return _shorten(re.sub(r"\s*SQLSTATE: \w+.*", "", message))


def _offending_values(text: str) -> str:
    """Return the values that Delta lists under a broken constraint, joined on one line."""
    values = dict.fromkeys(re.findall(r"^ - (\S+ : [^\n]*)", text, flags=re.MULTILINE))
    return f" ({', '.join(values)})" if values else ""


def _first_row(preview: str) -> str:
    """Return `column=value, ...` of the first row in deltalake's preview of rows that break a constraint."""
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in preview.splitlines() if line.startswith("|")
    ]
    if len(lines) < 2 or len(lines[0]) != len(lines[1]):
        return _shorten(preview)
    return ", ".join(f"{name}={value[:60]}" for name, value in zip(lines[0], lines[1], strict=True))


def _shorten(text: str) -> str:
    """Return the first sentence of a foreign message, on one line of at most 300 characters."""
    line = clean_message(text)
    return line if len(line) <= 300 else line[:297] + "..."
