"""Whether what several processes were told, and what they left, is what some order of them would have given."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

_Command = TypeVar("_Command")
_State = TypeVar("_State", bound=Hashable)


def some_order_explains(
    rule: Callable[[_State, _Command], tuple[_State, bool]],
    before: _State,
    told: Sequence[tuple[_Command, bool]],
    after: _State,
) -> bool:
    """Whether commands, one after the other in some order, would all be told what they were, and end in `after`.

    `rule` answers for a state and a command with the state then, and whether the command was taken.
    """
    seen: set[tuple[_State, frozenset[int]]] = set()
    reached = [(before, frozenset(range(len(told))))]
    while reached:
        state, left = reached.pop()
        if not left and state == after:
            return True
        for number in left:
            command, taken = told[number]
            then, is_taken = rule(state, command)
            following = (then, left - {number})
            if is_taken == taken and following not in seen:
                seen.add(following)
                reached.append(following)
    return False
