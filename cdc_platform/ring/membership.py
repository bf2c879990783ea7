"""Whether a node owns its tokens, from the state names of `system.topology` and nodetool.

Exports, printed rings and live clusters share these rules. An unknown state is an error, because the owner of the
tokens is then unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

from cdc_platform.errors import InputError


class Membership(Enum):
    """What a node's state means for its tokens."""

    OWNS = "owns its tokens"
    LEAVING = "owns its tokens until it has left"
    JOINING = "does not own its tokens yet"
    GONE = "owns nothing"

    @property
    def at_rest(self) -> bool:
        """Return True if the node neither joins nor leaves."""
        return self in (Membership.OWNS, Membership.GONE)

    @property
    def in_ring(self) -> bool:
        """Return True if the node owns its tokens now."""
        return self in (Membership.OWNS, Membership.LEAVING)


NODE_STATES: Mapping[str, Membership] = MappingProxyType(
    {
        "normal": Membership.OWNS,
        "rebuilding": Membership.OWNS,  # it streams data for hours, and no token moves
        "decommissioning": Membership.LEAVING,
        "removing": Membership.LEAVING,
        "rollback to normal": Membership.LEAVING,  # 5.4 and 6.0: a node that could not leave
        "bootstrapping": Membership.JOINING,
        "replacing": Membership.JOINING,
        "left token ring": Membership.GONE,  # 5.4
        "left": Membership.GONE,
        "none": Membership.GONE,
    }
)
"""The values of `node_state` in `system.topology`."""

PRINTED_STATES: Mapping[str, Membership] = MappingProxyType(
    {
        "normal": Membership.OWNS,
        "leaving": Membership.LEAVING,
        "moving": Membership.LEAVING,
        "joining": Membership.JOINING,
    }
)
"""The states that `nodetool ring` and `nodetool status` print."""

RING_TRANSITIONS = frozenset(
    {
        "join group0",
        "commit cdc generation",
        "publish cdc generation",
        "write both read old",
        "write both read new",
        "tablet draining",
        "left token ring",
        "rollback to normal",
    }
)
"""The values of `transition_state` in `system.topology` while nodes or generations change."""

OTHER_TRANSITIONS = frozenset(
    {"tablet migration", "tablet split finalization", "tablet resize finalization", "truncate table", "lock"}
)
"""The values of `transition_state` in `system.topology` while vnodes and generations stay as they are."""


def membership_from_node_state(where: str, state: str | None) -> Membership:
    """Return what a node's `node_state` means; `where` names the node in messages.

    Raises:
        InputError: the state is unknown.
    """
    return _look_up_membership(where, state, NODE_STATES)


def membership_from_printed_state(where: str, state: str) -> Membership:
    """Return what a state printed by nodetool means; `where` names the node in messages.

    Raises:
        InputError: the state is unknown.
    """
    return _look_up_membership(where, state, PRINTED_STATES)


def is_ring_changing(where: str, transition: str | None) -> bool:
    """Return True if nodes or generations change in this transition state of the topology; None means at rest.

    Raises:
        InputError: the state is unknown.
    """
    if not transition:
        return False
    name = _normalize_state(transition)
    if name in RING_TRANSITIONS:
        return True
    if name in OTHER_TRANSITIONS:
        return False
    known = ", ".join(sorted(RING_TRANSITIONS | OTHER_TRANSITIONS))
    raise InputError(
        f"{where}: transition_state {transition[:60]!r} is not known, so it is unclear whether nodes or generations "
        f"change; the known ones are {known}"
    )


def _look_up_membership(where: str, state: str | None, states: Mapping[str, Membership]) -> Membership:
    membership = states.get(_normalize_state(state or ""))
    if membership is None:
        raise InputError(
            f"{where}: state {(state or '')[:60]!r} is not known, so it is unclear whether the node owns its tokens; "
            f"the known ones are {', '.join(states)}"
        )
    return membership


def _normalize_state(name: str) -> str:
    """Return the name as in the tables: ScyllaDB's documentation has underscores instead of spaces."""
    return name.replace("_", " ").lower()
