"""Work on threads that each see what the one who asks for it sees: what is kept in a block is kept for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import copy_context
from typing import TypeVar

Part = TypeVar("Part")
Made = TypeVar("Made")


def side_by_side(work: Callable[[Part], Made], parts: Iterable[Part], at_once: int) -> list[Made]:
    """What the work makes of each part, in their order, on so many threads; raises what the first failure raised."""
    from concurrent.futures import ThreadPoolExecutor

    contexts = [(copy_context(), part) for part in parts]
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda each: each[0].run(work, each[1]), contexts))
