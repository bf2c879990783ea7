"""The kinds of small simulated worlds, and the plan of each seed."""

from __future__ import annotations

from dataclasses import replace

from cdc_platform.clock import SECOND_US, Microseconds
from cdc_platform.simulation import Assumptions, HistoryPlan, Rules, draw_plan

Kind = tuple[str, str, str, str]
"""Protocol, format, acceptance policy, and conditions: calm, faults or storm."""

GOSSIP = [("gossip", format, policy) for format in ("v1", "v2") for policy in ("strict", "recent-past")]
TWO_PHASE = [("two-phase", "v2", policy) for policy in ("strict", "recent-past")]
TABLETS = ("tablets", "v2", "strict")
KINDS: list[Kind] = [
    *((*rules, weather) for rules in GOSSIP for weather in ("calm", "faults")),
    *((*rules, weather) for rules in TWO_PHASE for weather in ("calm", "faults", "storm")),
    *((*TABLETS, weather) for weather in ("calm", "faults")),
]
"""A storm breaks gossip's assumptions: concurrent generations, and outages longer than the delay."""


def assume(kind: Kind, seed: int) -> Assumptions:
    """Return the assumptions of a kind; sizes vary with the seed."""
    protocol, format, policy, weather = kind
    rules = Rules(protocol, format, policy)  # pyrefly: ignore[bad-argument-type]
    if protocol == "tablets":
        operations = {"joins": 0, "splits": 1 + seed % 2, "merges": seed // 2 % 2}
    else:
        operations = {"joins": 1 + seed % 2, "repairs": seed // 2 % 2}
    late = seed % 5 == 0 and protocol != "tablets"
    calm = Assumptions(
        rules,
        nodes=3 + seed % 3,
        writes=50,
        late_publication_us=Microseconds(SECOND_US * 200 * late),
        **operations,  # pyrefly: ignore[bad-argument-type]
    )
    if protocol == "tablets":
        # Raft orders concurrent changes.
        calm = replace(calm, spacing_us=Microseconds(0) if seed % 4 == 0 else calm.spacing_us)
    elif seed % 3 == 0:
        # Rows expire, and generations are removed.
        rules = replace(rules, ttl_us=SECOND_US * 120, expiry_grace_us=SECOND_US * 10)
        calm = replace(calm, rules=rules, late_publication_us=Microseconds(0))
    if weather == "calm":
        return calm
    faults = replace(calm, outages=3, partitions=1, crashes=2)
    if weather == "faults":
        return faults
    return replace(
        faults,
        joins=1 + seed % 3,
        spacing_us=Microseconds(0),
        outages=6,
        partitions=2,
        crashes=4,
        outage_us=SECOND_US * 150,
        rules=replace(faults.rules, window_us=SECOND_US * 60, ttl_us=Microseconds(0)),
    )


def plan_of(kind: Kind, seed: int) -> HistoryPlan:
    """Return the plan of a seed."""
    return draw_plan(assume(kind, seed), seed)
