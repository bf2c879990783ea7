"""What a person asks to be simulated, and the assumptions and nodes that follow from it and from a home."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, replace
from typing import TypeVar

from cdc_platform.clock import (
    DAY_US,
    HOUR_US,
    MILLISECOND_US,
    MINUTE_US,
    SECOND_US,
    Microseconds,
    Milliseconds,
    ms_from_us,
    us_from_ms,
)
from cdc_platform.errors import InputError
from cdc_platform.generations import AcceptancePolicy, SwitchTimes
from cdc_platform.ring import Ring
from cdc_platform.settings import Settings
from cdc_platform.simulation.assumptions import Assumptions
from cdc_platform.simulation.node_set import NodeSet, nodes_from_ring
from cdc_platform.simulation.plan import Format, Network, Outage, OutageKind, Protocol, ReaderKind, Rules

_DURATION_PATTERN = re.compile(r"(\d+(?:\.\d+)?)(ms|s|min|h)", re.ASCII)
_UNITS_US = {"ms": MILLISECOND_US, "s": SECOND_US, "min": MINUTE_US, "h": HOUR_US}
_LONGEST_US = DAY_US
_Value = TypeVar("_Value")
_OPTION_NAMES = {"joins": "join", "repairs": "repair", "splits": "split", "merges": "merge"}
_DURATIONS = frozenset(
    ("delay", "leeway", "lease", "window", "skew", "latency", "distance", "longest", "spacing", "late", "ttl")
)


def parse_duration(text: str) -> Microseconds:
    """Return a duration such as `500ms`, `3s`, `2min` in µs.

    Raises:
        InputError: it is no such duration, or longer than a day.
    """
    match = _DURATION_PATTERN.fullmatch(text)
    duration_us = round(float(match[1]) * _UNITS_US[match[2]]) if match else -1
    if not 0 <= duration_us <= _LONGEST_US:
        raise InputError(f"{text!r} is no duration of at most a day, such as 500ms, 3s or 2min")
    return Microseconds(duration_us)


def _format_duration(duration_us: Microseconds) -> str:
    """Return a duration as `parse_duration` reads it, in whole milliseconds."""
    return f"{duration_us // SECOND_US}s" if duration_us % SECOND_US == 0 else f"{ms_from_us(duration_us)}ms"


def parse_read_outage(text: str) -> tuple[Microseconds, int]:
    """Return a duration (µs) and the number of a node, from `120s@2`.

    Raises:
        InputError: it is not of this form.
    """
    duration, at, node = text.partition("@")
    if not at or not node.isascii() or not node.isdecimal():
        raise InputError(f"{text!r} is not a duration and the number of a node, such as 120s@2")
    return parse_duration(duration), int(node)


@dataclass(frozen=True)
class SimulationRequest:
    """The options of a simulation. None: the home's setting, or what goes with the protocol. Durations in µs.

    `nodes` None: those of the home's ring. `read_outage` are durations and the nodes that cannot read the tables for
    that long, from the creation of the first generation on. The rest is as in `Assumptions`, `Rules` and `Network`.
    """

    nodes: int | None = None
    shards: int = 2
    joins: int | None = None
    repairs: int = 0
    splits: int | None = None
    merges: int = 0
    protocol: Protocol | None = None
    format: Format = "v2"
    policy: AcceptancePolicy | None = None
    delay: Microseconds | None = None
    leeway: Microseconds | None = None
    lease: Microseconds | None = None
    window: Microseconds = SECOND_US * 30
    reader: ReaderKind = "platform"
    skew: Microseconds = SECOND_US
    latency: Microseconds = MILLISECOND_US * 50
    loss: float = 0.01
    datacenters: int | None = None
    distance: Microseconds = Microseconds(0)
    read_outage: tuple[tuple[Microseconds, int], ...] = field(default=())
    outages: int = 0
    partitions: int = 0
    crashes: int = 0
    longest: Microseconds = SECOND_US * 20
    spacing: Microseconds = MINUTE_US
    late: Microseconds = Microseconds(0)
    ttl: Microseconds = Microseconds(0)
    writes: int = 100
    server_timestamps: bool = False

    def assume(self, settings: Settings, ring: Ring | None) -> tuple[Assumptions, NodeSet | None]:
        """Return the assumptions under a home's settings, and the nodes of its ring; `ring` is None if `nodes` is not.

        Raises:
            InputError: options contradict each other, or a number is out of range.
        """
        protocol: Protocol = self.protocol or ("two-phase" if settings.two_phase_switch else "gossip")
        tablets = protocol == "tablets"
        if tablets and self.policy:
            raise InputError("policies apply to vnode-based tables; tablets have a single rule: leave the policy out")
        joins = _or_default(self.joins, int(not tablets))
        nodes = None if ring is None else nodes_from_ring(ring, joins)
        assumptions = Assumptions(
            self._rules(settings, protocol),
            Network(self.latency, self.loss, _or_default(self.datacenters, 1), self.distance),
            _or_default(self.nodes, 0) if ring is None else len(ring.nodes),
            self.shards,
            joins,
            self.repairs,
            _or_default(self.splits, int(tablets)),
            self.merges,
            self.writes,
            self.skew,
            self.outages,
            self.partitions,
            self.crashes,
            max(self.longest, Microseconds(1)),
            late_publication_us=self.late,
            server_timestamps=self.server_timestamps,
            spacing_us=self.spacing,
        )
        outages = (Outage(Microseconds(0), node, OutageKind.UNREADABLE, time_us) for time_us, node in self.read_outage)
        return replace(assumptions, fixed_outages=tuple(outages)), nodes

    def _rules(self, settings: Settings, protocol: Protocol) -> Rules:
        leeway_ms = _ms_or_default(self.leeway, settings.generation_leeway_ms)
        return Rules(
            protocol,
            self.format,
            self.policy or settings.policy,
            settings.ring_delay_ms,
            _ms_or_default(self.delay, settings.ring_delay_ms * 2 + leeway_ms),
            leeway_ms,
            SwitchTimes(
                leeway_ms,
                _ms_or_default(self.lease, settings.switch_lease_ms),
                settings.switch_deadline_ms,
                settings.switch_margin_ms,
            ),
            self.reader,
            self.window,
            self.ttl,
            expiry_grace_us=MINUTE_US,
            expiry_skew_us=us_from_ms(settings.expiry_skew_margin_ms),
        )

    def options(self) -> list[str]:
        """Return the options of `cdc-platform simulate` that ask for this: those that are not the defaults."""
        words: list[str] = []
        for option in fields(self):
            value = getattr(self, option.name)
            if value == option.default:
                continue
            name = f"--{_OPTION_NAMES.get(option.name, option.name.replace('_', '-'))}"
            if option.name == "read_outage":
                for duration_us, node in value:
                    words += [name, f"{_format_duration(duration_us)}@{node}"]
            elif value is True:
                words.append(name)
            else:
                words += [name, _format_duration(value) if option.name in _DURATIONS else str(value)]
        return words


def _or_default(value: _Value | None, default: _Value) -> _Value:
    return default if value is None else value


def _ms_or_default(duration_us: Microseconds | None, default_ms: Milliseconds) -> Milliseconds:
    return default_ms if duration_us is None else ms_from_us(duration_us)
