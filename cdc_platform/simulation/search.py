"""Search for the smallest value of a setting without a violation under given assumptions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from cdc_platform.clock import MINUTE_MS, ONE_MS, Microseconds, Milliseconds, us_from_ms
from cdc_platform.errors import InputError
from cdc_platform.generations import SwitchTimes
from cdc_platform.simulation.assumptions import Assumptions
from cdc_platform.simulation.judge import Property, Verdict
from cdc_platform.simulation.node_set import NodeSet
from cdc_platform.simulation.summary import find_failing_seed

STEP_MS = Milliseconds(500)
"""The precision of the search."""
_CEILING_MS = MINUTE_MS * 10


class SearchedSetting(StrEnum):
    """What can be searched for, and what counts as a violation."""

    DELAY = "delay"
    """The delay before a generation begins, by gossip: a write in the wrong generation, or placed in two ways."""
    WINDOW = "window"
    """The reader's confidence window: a row that is not read, or read out of order."""
    LEASE = "lease"
    """The lease of a two-phase switch: a write that is refused as UNDECIDED."""
    LEEWAY = "leeway"
    """How far ahead of its clock a node accepts writes: a write with the clients' clock that is refused as FUTURE."""


@dataclass(frozen=True)
class SmallestValue:
    """The smallest value (ms) without a violation in `seeds` histories.

    `failing_ms` is the greatest value that was tried and failed, with the seed that showed it; None if none failed.
    """

    setting: SearchedSetting
    value_ms: Milliseconds
    seeds: int
    failing_ms: Milliseconds | None
    failing_seed: int | None


def find_smallest(
    assumptions: Assumptions, setting: SearchedSetting, seeds: Sequence[int], nodes: NodeSet | None = None
) -> SmallestValue:
    """Search by bisection, to half a second; the value found is tried with every seed.

    It assumes that what is safe stays safe with a greater value.

    Raises:
        InputError: no value up to ten minutes is safe, or the protocol has no such setting.
    """
    _check_protocol(assumptions, setting)

    def failing(value_ms: Milliseconds) -> int | None:
        return find_failing_seed(_with_value(assumptions, setting, value_ms), seeds, _FAILS[setting], nodes)

    low_ms, high_ms = Milliseconds(0), STEP_MS * 8
    shown: tuple[Milliseconds, int] | None = None
    while (seed := failing(high_ms)) is not None:
        shown, low_ms, high_ms = (high_ms, seed), high_ms, high_ms * 2
        if high_ms > _CEILING_MS:
            raise InputError(
                f"no {setting} up to {high_ms // 2} ms is without a violation: seed {seed} fails even then; look at it "
                "with --trace"
            )
    while high_ms - low_ms > STEP_MS:
        middle_ms = STEP_MS * ((low_ms + high_ms) // STEP_MS // 2)
        if (seed := failing(middle_ms)) is None:
            high_ms = middle_ms
        else:
            shown, low_ms = (middle_ms, seed), middle_ms
    failing_ms, failing_seed = shown or (None, None)
    return SmallestValue(setting, high_ms, len(seeds), failing_ms, failing_seed)


def _check_protocol(assumptions: Assumptions, setting: SearchedSetting) -> None:
    protocol = assumptions.rules.protocol
    if setting is SearchedSetting.DELAY and protocol == "two-phase":
        raise InputError("a two-phase switch has no delay; search for its lease, or use --protocol gossip")
    if setting is SearchedSetting.LEASE and protocol != "two-phase":
        raise InputError(f"{protocol} has no lease; search for the delay, or use --protocol two-phase")


def _with_value(assumptions: Assumptions, setting: SearchedSetting, value_ms: Milliseconds) -> Assumptions:
    rules = assumptions.rules
    if setting is SearchedSetting.LEEWAY:
        assumptions = replace(assumptions, client_error_us=Microseconds(0))
    match setting:
        case SearchedSetting.DELAY:
            rules = replace(rules, delay_ms=value_ms)
        case SearchedSetting.WINDOW:
            rules = replace(rules, window_us=us_from_ms(value_ms))
        case SearchedSetting.LEASE:
            # The margin has to stay below the lease.
            margin_ms = min(rules.switch.margin_ms, max(value_ms - ONE_MS, Milliseconds(0)))
            rules = replace(rules, switch=replace(rules.switch, lease_ms=max(value_ms, ONE_MS), margin_ms=margin_ms))
        case SearchedSetting.LEEWAY:
            switch = SwitchTimes(value_ms, rules.switch.lease_ms, rules.switch.deadline_ms, rules.switch.margin_ms)
            delay_ms = rules.delay_ms - rules.leeway_ms + value_ms
            rules = replace(rules, leeway_ms=value_ms, delay_ms=delay_ms, switch=switch)
    return replace(assumptions, rules=rules)


_FAILS: dict[SearchedSetting, Callable[[Verdict], bool]] = {
    SearchedSetting.DELAY: lambda verdict: bool(verdict.broken & {Property.RIGHT_GENERATION, Property.ONE_PLACEMENT}),
    SearchedSetting.WINDOW: lambda verdict: bool(
        verdict.broken & {Property.READ_ONCE, Property.READ_IN_ORDER, Property.LAST_ROW_READ}
    ),
    SearchedSetting.LEASE: lambda verdict: "UNDECIDED" in verdict.refused,
    SearchedSetting.LEEWAY: lambda verdict: "FUTURE" in verdict.refused,
}
