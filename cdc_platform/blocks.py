"""What holds for a block of code in its thread, and for what that starts with its context."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

_Value = TypeVar("_Value")


@contextmanager
def during(variable: ContextVar[_Value], value: _Value) -> Iterator[None]:
    """Let a variable with a default have a value in a block, and then the one before, in whatever context that ends."""
    before = variable.get()
    variable.set(value)
    try:
        yield
    finally:
        variable.set(before)
