"""Set context variables for a block, and run work in threads that inherit them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import TypeVar

_Value = TypeVar("_Value")


@contextmanager
def set_for_block(variable: ContextVar[_Value], value: _Value) -> Iterator[None]:
    """Set a variable for the block and restore it afterwards, in whatever context the block ends."""
    before = variable.get()
    variable.set(value)
    try:
        yield
    finally:
        variable.set(before)


_Item = TypeVar("_Item")
_Output = TypeVar("_Output")


def map_in_threads(work: Callable[[_Item], _Output], parts: Iterable[_Item], max_workers: int) -> list[_Output]:
    """Return the work's results in the order of the parts, on `max_workers` threads; raise the first failure."""
    from concurrent.futures import ThreadPoolExecutor

    contexts = [(copy_context(), part) for part in parts]
    with ThreadPoolExecutor(max_workers) as pool:
        return list(pool.map(lambda each: each[0].run(work, each[1]), contexts))
