"""JSON logs of the services: one object a line, with the run and the generation that the line is about.

`LOG_FORMAT_VARIABLE` selects the format in every process. Each process formats its own log records. `up` also wraps the
lines that its services print without a logger, such as warnings of the JVM.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, ClassVar

from cdc_platform.errors import InputError

LOG_FORMAT_VARIABLE = "CDC_PLATFORM_LOG_FORMAT"
LOG_FORMATS = ("text", "json")
_MAX_LINE_BYTES = 1 << 20
_DRAIN_SECONDS = 5.0
_SPARK_LINE = re.compile(r"\d\d:\d\d:\d\d (TRACE|DEBUG|INFO|WARN|ERROR|FATAL) ([\w.$]+): (.*)")
"""A line in the pattern of spark/log4j2.properties."""
_LEVELS = {"WARN": "warning", "FATAL": "critical"}


def get_log_format() -> str:
    """Return the requested format, by default text.

    Raises:
        InputError: the variable has another value than `LOG_FORMATS`.
    """
    requested = os.environ.get(LOG_FORMAT_VARIABLE) or LOG_FORMATS[0]
    if requested not in LOG_FORMATS:
        raise InputError(f"{LOG_FORMAT_VARIABLE} is {requested!r}; set it to {' or '.join(LOG_FORMATS)}")
    return requested


class JsonFormatter(logging.Formatter):
    """Formats records as JSON lines: timestamp (UTC), level, logger, event, process, and exception if there is one.

    Records of a Dagster run also have `run`, `job`, and where they exist `step`, `event_type`, `partition` and
    `generation`. Later records of the process without a run, such as those of the platform's own loggers, get the
    fields of its run: a process has one run.
    """

    names_generation: ClassVar[Callable[[str], bool] | None] = None
    _run: ClassVar[dict[str, str]] = {}

    def __init__(self, *_: Any, **__: Any) -> None:
        """Ignore the patterns that callers pass for text."""
        super().__init__()

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
        line: dict[str, Any] = {
            "timestamp": _format_timestamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            "process": record.process,
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        # Dagster documents this attribute for loggers that users define.
        about = getattr(record, "dagster_meta", None) or {}
        if about.get("run_id"):
            line |= self._describe_run(about)
        return json.dumps(JsonFormatter._run | line)

    @staticmethod
    def _describe_run(about: dict[str, Any]) -> dict[str, str]:
        fields = {"run": about["run_id"], "job": about.get("job_name")}
        fields["partition"] = partition = (about.get("job_tags") or {}).get("dagster/partition")
        names_generation = JsonFormatter.names_generation
        if partition is not None and names_generation is not None and names_generation(partition):
            fields["generation"] = partition
        JsonFormatter._run = {name: value for name, value in fields.items() if value}
        fields |= {"step": about.get("step_key"), "event": about.get("orig_message")}
        event = about.get("dagster_event")
        if event is not None:
            fields["event_type"] = event.event_type_value
            error = getattr(event.event_specific_data, "error", None)
            if error is not None:
                fields["exception"] = error.to_string()
        return {name: value for name, value in fields.items() if value}


def configure_json_logs(names_generation: Callable[[str], bool] | None = None) -> None:
    """Log as JSON in this process, if that is requested: the root logger, and the handlers that Dagster will create.

    `names_generation` returns True for a partition key that names a generation. The code location passes it. Calls
    without it leave it as it is.
    Dagster gives its loggers handlers with formatters of coloredlogs, in services and in runs, and has no option for
    those of runs.

    Raises:
        InputError: the requested format is unknown.
    """
    if get_log_format() != "json":
        return
    import coloredlogs

    JsonFormatter.names_generation = names_generation or JsonFormatter.names_generation
    formatters: Any = coloredlogs
    formatters.ColoredFormatter = formatters.BasicFormatter = JsonFormatter
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    handler.addFilter(_has_no_other_handler)
    logging.getLogger().handlers[:] = [handler]
    logging.captureWarnings(True)


def _has_no_other_handler(record: logging.LogRecord) -> bool:
    """Return True unless a handler below the root has written the record already."""
    logger: logging.Logger | None = logging.getLogger(record.name)
    while logger is not None and logger is not logging.root:
        if logger.handlers:
            return False
        logger = logger.parent
    return True


@contextmanager
def open_service_log(path: Path, service: str, *, append: bool = False) -> Iterator[IO[bytes]]:
    """Yield a file for the output of a process that is started in the block.

    In text it is the log itself. In JSON it is a pipe, from which a thread of this process copies the lines to the log:
    JSON lines with the name of their service, others wrapped. The thread ends with the last process that has the pipe.

    Raises:
        InputError: the requested format is unknown.
    """
    if not append:
        path.unlink(missing_ok=True)
    with path.open("ab") as log:  # at its end, also after maintenance has shortened it
        if get_log_format() != "json":
            yield log
            return
        read_end, write_end = os.pipe()
        copier = threading.Thread(
            target=_copy_lines, args=[read_end, os.dup(log.fileno()), service], name=f"log of {service}", daemon=True
        )
        copier.start()
        _copiers[path] = copier
        with os.fdopen(write_end, "wb") as output:
            yield output


_copiers: dict[Path, threading.Thread] = {}


def await_service_log(path: Path) -> None:
    """Wait until the output of a process that has ended is in its log."""
    if path in _copiers:
        _copiers[path].join(_DRAIN_SECONDS)


@atexit.register
def _await_all_logs() -> None:
    for path in list(_copiers):
        await_service_log(path)


def _copy_lines(read_end: int, log: int, service: str) -> None:
    with os.fdopen(read_end, "rb") as lines, os.fdopen(log, "ab") as output:
        while line := lines.readline(_MAX_LINE_BYTES):
            if text := line.decode(errors="replace").strip():
                with suppress(OSError):  # a full disk must not stop the service, which would wait for the pipe
                    output.write(f"{to_json_line(text, service)}\n".encode())
                    output.flush()


def to_json_line(text: str, service: str) -> str:
    """Return a line of a service's output as a JSON line. One that is JSON already gets the name of the service."""
    document = _parse_json_line(text)
    if document is not None:
        return json.dumps(document | {"service": service})
    line = {"timestamp": _format_timestamp(time.time()), "level": "info", "event": text}
    if (match := _SPARK_LINE.fullmatch(text)) is not None:
        level, line["logger"], line["event"] = match.groups()
        line["level"] = _LEVELS.get(level, level.lower())
    return json.dumps(line | {"service": service})


def to_text_line(line: str) -> str:
    """Return the message of a JSON line, and any other line as it is."""
    document = _parse_json_line(line)
    return line if document is None else str(document["event"])


def _parse_json_line(text: str) -> dict[str, Any] | None:
    if not text.startswith("{"):
        return None
    with suppress(ValueError):
        document = json.loads(text)
        if isinstance(document, dict) and {"timestamp", "level", "event"} <= document.keys():
            return document
    return None


def _format_timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
