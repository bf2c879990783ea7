"""What threads of Rust print on standard error when they end: of a write that failed there is an error, in one line."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_PANIC = re.compile(
    rb"\n?thread '[^'\n]*' (?:\(\d+\) )?panicked at [^\n]*\n[^\n]*\n"
    rb"(?:stack backtrace:\n(?: ++(?:\d++:|at )[^\n]*+\n)*+)?(?:note: [^\n]*\n)?"
)
_STDERR = 2


@dataclass
class _Kept:
    """Standard error as it was, what is printed meanwhile, by how many blocks, and whether one has failed."""

    real: int
    printed: int
    blocks: int = 0
    has_failed: bool = False


_kept: _Kept | None = None
_changing = threading.Lock()


@contextmanager
def unprinted() -> Iterator[None]:
    """Print what a block brings to standard error at its end, without panics where it has failed.

    deltalake's writers do not bear that a store refuses a file: a thread of theirs ends, beside the error that they
    raise. Blocks of several threads at once are one.
    """
    global _kept
    with _changing:
        if _kept is None:
            _kept = _begun()
        if _kept is not None:
            _kept.blocks += 1
    try:
        yield
    except BaseException:
        if _kept is not None:
            _kept.has_failed = True
        raise
    finally:
        with _changing:
            if _kept is not None:
                _kept.blocks -= 1
                if not _kept.blocks:
                    _ended(_kept)
                    _kept = None


def _begun() -> _Kept | None:
    """None where the process has no standard error, or no file can be made to keep it in."""
    try:
        kept = _Kept(os.dup(_STDERR), os.memfd_create("stderr", os.MFD_CLOEXEC))
    except (OSError, AttributeError):
        return None
    os.dup2(kept.printed, _STDERR)
    return kept


def _ended(kept: _Kept) -> None:
    os.dup2(kept.real, _STDERR)
    os.lseek(kept.printed, 0, os.SEEK_SET)
    with os.fdopen(kept.printed, "rb") as printed:
        said = printed.read()
    os.close(kept.real)
    left = _PANIC.sub(b"", said) if kept.has_failed else said
    while left:
        try:
            left = left[os.write(_STDERR, left) :]
        except OSError:
            return
