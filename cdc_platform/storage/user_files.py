"""Read files that a user names, with a size limit and a time limit.

A path can name a device without an end, or a pipe that no process writes to.
"""

from __future__ import annotations

import os
import select
import stat
import sys
import time
from pathlib import Path

from cdc_platform.clock import DAY_SECONDS, SECOND_MS
from cdc_platform.errors import InputError, NotFound

STANDARD_INPUT = "standard input"
PIPE_SECONDS_VARIABLE = "CDC_PLATFORM_PIPE_SECONDS"
"""How long (s) to wait for data from a pipe or device."""
_PIPE_SECONDS = 30.0
_CHUNK_BYTES = 1 << 20
DEFAULT_MAX_BYTES = 64 << 20
"""The default size limit of a file, in bytes."""


def read_user_bytes(path: Path, most: int = DEFAULT_MAX_BYTES, what: str = "") -> bytes:
    """Return the content of a file of at most `most` bytes; errors name it `what`, by default its path.

    A pipe or device is read to its end. The read fails if no data arrives for `CDC_PLATFORM_PIPE_SECONDS`.

    Raises:
        NotFound: there is no such file.
        InputError: it is no readable file, it is larger, or no data arrives.
    """
    source = what or str(path)
    try:
        # Open without blocking: opening a pipe without a writer would wait for one.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return _read_descriptor(descriptor, source, most)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise NotFound(f"{source}: no such file; check the path") from None
    except IsADirectoryError:
        raise InputError(f"{source} is a folder; name a file in it") from None
    except OSError as error:
        raise InputError(f"{source} cannot be read: {error.strerror}") from None


def read_user_text(path: Path, most: int = DEFAULT_MAX_BYTES) -> str:
    """Return the text of a file in UTF-8, with or without a byte order mark, like `read_user_bytes`.

    Raises:
        NotFound: there is no such file.
        InputError: it is no readable file, not UTF-8, it is larger, or no data arrives.
    """
    return _decode_utf8(read_user_bytes(path, most), str(path))


def read_standard_input() -> str:
    """Return the text on standard input, like `read_user_text`; wait for it without a time limit.

    Raises:
        InputError: standard input is closed, it is not UTF-8, or larger than `DEFAULT_MAX_BYTES`.
    """
    if sys.stdin is None:
        raise InputError("standard input is closed; name a file, or pipe one in")
    content = sys.stdin.buffer.read(DEFAULT_MAX_BYTES + 1)
    if len(content) > DEFAULT_MAX_BYTES:
        raise too_large_error(STANDARD_INPUT, DEFAULT_MAX_BYTES)
    return _decode_utf8(content, STANDARD_INPUT)


def too_large_error(source: str, most: int) -> InputError:
    """Return the error for a file or text of more than `most` bytes."""
    bound = f"{most >> 20} MiB" if most >= 1 << 20 else f"{most >> 10} KiB"
    return InputError(
        f"{source} has more than {bound}, which is the most that is read here at once; split it, or name another"
    )


def _read_descriptor(descriptor: int, source: str, most: int) -> bytes:
    kind = os.fstat(descriptor).st_mode
    waits = not (stat.S_ISREG(kind) or stat.S_ISDIR(kind) or stat.S_ISBLK(kind))
    parts, size = [], 0
    while size <= most:
        if waits:
            _wait_for_data(descriptor, source)
        try:
            part = os.read(descriptor, min(_CHUNK_BYTES, most + 1 - size))
        except BlockingIOError:
            continue
        if not part:
            return b"".join(parts)
        parts.append(part)
        size += len(part)
    raise too_large_error(source, most)


def _wait_for_data(descriptor: int, source: str) -> None:
    """Wait until a pipe or device has data or ends."""
    seconds = _pipe_seconds()
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    deadline = time.monotonic() + seconds
    while not waiting.poll(max(0, (deadline - time.monotonic()) * SECOND_MS)):
        if time.monotonic() >= deadline:
            raise InputError(
                f"{source} is a pipe or a device that has sent nothing for {seconds:g} s; write to it, name a "
                f"file, or wait longer with {PIPE_SECONDS_VARIABLE}"
            )


def _pipe_seconds() -> float:
    given = os.environ.get(PIPE_SECONDS_VARIABLE)
    if not given:
        return _PIPE_SECONDS
    try:
        seconds = float(given)
    except ValueError:
        seconds = -1
    if not 0 < seconds <= DAY_SECONDS:
        raise InputError(
            f"{PIPE_SECONDS_VARIABLE}={given} is no number of seconds from 0 to {DAY_SECONDS}; unset it for 30"
        )
    return seconds


def _decode_utf8(content: bytes, source: str) -> str:
    try:
        # Preserve line ends: a missing one shows that the file is truncated.
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{source} is no text: byte {error.start} is not UTF-8; save it as UTF-8") from None
