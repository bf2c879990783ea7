"""Find out whether some sequential order explains the results and the final state of several processes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

_Command = TypeVar("_Command")
_State = TypeVar("_State", bound=Hashable)


def some_order_explains(
    rule: Callable[[_State, _Command], tuple[_State, bool]],
    before: _State,
    outcomes: Sequence[tuple[_Command, bool]],
    after: _State,
) -> bool:
    """Return True if some order of the commands gives each its result and ends in `after`.

    `rule` returns for a state and a command the next state, and whether the command succeeds.
    """
    visited: set[tuple[_State, frozenset[int]]] = set()
    pending = [(before, frozenset(range(len(outcomes))))]
    while pending:
        state, remaining = pending.pop()
        if not remaining and state == after:
            return True
        for number in remaining:
            command, succeeded = outcomes[number]
            then, is_taken = rule(state, command)
            following = (then, remaining - {number})
            if is_taken == succeeded and following not in visited:
                visited.add(following)
                pending.append(following)
    return False
