"""Everything that a page tells, gathered into plain values: what JSON holds, the same for the same home and clock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pyarrow import ArrowException

from cdc_platform import __version__
from cdc_platform.clock import Clock, Microseconds, format_ms, format_us, from_datetime, us_of
from cdc_platform.errors import InputError, NotFound, PlatformError
from cdc_platform.invariants import audit_lake
from cdc_platform.invariants import findings as families
from cdc_platform.invariants.families import Family
from cdc_platform.invariants.findings import FAMILIES
from cdc_platform.invariants.judge import Judgement, judge
from cdc_platform.invariants.stored import audit_stored
from cdc_platform.lake import digests, provenance
from cdc_platform.lake.chain import chain
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.session import workers
from cdc_platform.lake.tables import BOOTSTRAP_EVENTS
from cdc_platform.lake.verification import verify
from cdc_platform.lake.versions import versions
from cdc_platform.lifecycle.expiry.purge_plan import PlannedGeneration, plan
from cdc_platform.records import judgements, switches
from cdc_platform.records.inbox import JOIN, MAKING
from cdc_platform.report.accepted import accepted
from cdc_platform.report.ring import addresses, ring_of, told_change, told_ring
from cdc_platform.report.writes import writes_of
from cdc_platform.settings import Settings
from cdc_platform.timeline import Generation, Timeline
from cdc_platform.timeline.keys import Keys
from cdc_platform.timeline.parts import Names, names_of

MOST_GENERATIONS = 24
"""One page tells of so many generations at the most."""
_AROUND = 12
"""So many generations before and after those of the page are in its timeline."""

Record = dict[str, Any]


@dataclass(frozen=True)
class Home:
    """What a page is made of: a lake, the clock, the settings; read once for all generations of the page."""

    lake: Lake
    clock: Clock
    settings: Settings

    def told(self) -> tuple[Timeline, Keys]:
        """The generations, and their names."""
        return Timeline.read(self.lake), Keys.read(self.lake)


def gathered(home: Home, names: Sequence[Names], asked: tuple[str, str] | None = None) -> Record:
    """The record of some generations, oldest first; `asked` are the times that they were asked for by, as text.

    Raises:
        StoreFailure: a log cannot be read.
    """
    timeline, keys = home.told()
    gathering = _Gathering(home, timeline, keys, {each.time_ms: each for each in _planned(home)})
    tables = {part.table.full_name: part.table for each in names for part in each.parts()}
    chains = {name: chain(home.lake, table) for name, table in tables.items()}
    return {
        "program": __version__,
        "made_at": format_us(home.clock.now_us()),
        "asked": asked,
        "timeline": gathering.timeline_of(names),
        "generations": [gathering.generation(each) for each in names],
        "stored": _stored(home.lake, tables.keys()),
        "kept": _kept(home.lake),
        "tables": [
            {"table": name, "first": kept.first, "last": kept.last, "links": sorted(kept.links.items())}
            for name, kept in chains.items()
            if kept is not None
        ],
    }


def between(home: Home, from_us: Microseconds, to_us: Microseconds) -> list[Names]:
    """The generations that operate at any time from `from_us` to before `to_us` (µs), removed ones among them.

    Raises:
        InputError: the times are not in order, or the generations are too many for a page.
        NotFound: there are none.
    """
    if from_us >= to_us:
        raise InputError(f"{format_us(from_us)} is not before {format_us(to_us)}; write the earlier time first")
    timeline, keys = home.told()
    starts = timeline.times_us.tolist()
    ends = [*starts[1:], None]
    found = [
        each
        for each, start, end in zip(timeline.generations, starts, ends, strict=True)
        if start < to_us and (end is None or end > from_us)
    ]
    if not found:
        raise NotFound(f"no generation operates from {format_us(from_us)} to {format_us(to_us)}")
    if len(found) > MOST_GENERATIONS:
        raise InputError(f"{len(found)} generations operate then; a page tells of {MOST_GENERATIONS} at most")
    return [names_of(home.lake, keys, each.id or each.time_ms) for each in found]


@dataclass(frozen=True)
class _Gathering:
    """A page while it is gathered: what is read once for all of its generations."""

    home: Home
    timeline: Timeline
    keys: Keys
    plan: dict[Any, PlannedGeneration]

    def timeline_of(self, names: Sequence[Names]) -> list[dict[str, Any]]:
        """The generations of the page and some around them, oldest first."""
        every = self.timeline.generations
        shown = {each.time_ms for each in names}
        places = [place for place, each in enumerate(every) if each.time_ms in shown]
        if not places:
            return []
        now = self.timeline.operating(self.home.clock.now_us())
        low, high = max(places[0] - _AROUND, 0), places[-1] + _AROUND + 1
        return [
            {
                "key": self.keys.of(each.id, each.time_ms),
                "time": format_ms(each.time_ms),
                "until": format_ms(every[place + 1].time_ms) if place + 1 < len(every) else None,
                "state": str(each.state),
                "operates": each == now,
                "told": each.time_ms in shown,
            }
            for place, each in enumerate(every[low:high], start=low)
        ]

    def generation(self, names: Names) -> dict[str, Any]:
        """What is told of one."""
        lake = self.home.lake
        place = next((n for n, each in enumerate(self.timeline.generations) if each.time_ms == names.time_ms), None)
        own = None if place is None or names.time_ms is None else self.timeline.generations[place]
        before = self.timeline.generations[place - 1] if place else None
        after = None if place is None else next(iter(self.timeline.generations[place + 1 : place + 2]), None)
        earlier = None if before is None else before.id
        event = _event(lake, names)
        joins = names.host_id if event is not None and event["kind"] == JOIN else None
        known = addresses(lake, self.keys)
        return {
            "key": names.key,
            "id": names.id,
            **self._state(names, own, after),
            "event": event,
            "before": before and self.keys.of(before.id, before.time_ms),
            "ring": told_ring(ring_of(lake, names.id), ring_of(lake, earlier), known, joins),
            "change": {} if own is None else told_change(lake, before, own),
            "accepted": []
            if own is None
            else accepted(self.home.settings, us_of(self.timeline.generations[0].time_ms), own, after),
            "switch": _switch(lake, names),
            "expiry": self._expiry(own),
            "invariants": [] if own is None or own.is_removed else _judged(lake, own),
            "writes": writes_of(lake, names),
            "parts": list(_parts(lake, names)),
        }

    def _state(self, names: Names, own: Generation | None, after: Generation | None) -> dict[str, Any]:
        if own is None:
            state = "withdrawn" if names.id in self.keys.withdrawn else "waits in the inbox"
            return {"time": None, "until": None, "state": state, "operates": False, "published": False}
        return {
            "time": format_ms(own.time_ms),
            "until": after and format_ms(after.time_ms),
            "state": str(own.state),
            "operates": own == self.timeline.operating(self.home.clock.now_us()),
            "published": own.published,
        }

    def _expiry(self, own: Generation | None) -> dict[str, Any]:
        if own is None:
            return {}
        planned = self.plan.get(own.time_ms)
        expired = planned.expired_ms if planned is not None else own.expired_ms
        removable = None if planned is None else planned.removable_ms
        return {
            "rows_until": None if expired is None else format_ms(expired),
            "removable": None if removable is None else format_ms(removable),
            "removed": None if own.removed_ms is None else format_ms(own.removed_ms),
            "reasons": [] if planned is None else list(planned.reasons),
        }


def _planned(home: Home) -> Iterable[PlannedGeneration]:
    return plan(home.lake, home.clock, home.settings)


def _event(lake: Lake, names: Names) -> dict[str, Any] | None:
    """The event in the inbox that makes a generation, without its tokens; None where none does."""
    if names.id is None:
        return None
    columns = [
        "kind",
        "event_id",
        "host_id",
        "address",
        "datacenter",
        "rack",
        "shard_count",
        "ignore_msb",
        "created_at",
    ]
    rows = lake.read(BOOTSTRAP_EVENTS, columns, [("generation_id", "=", names.id)]).to_pylist()
    found = next((row for row in rows if row["kind"] in MAKING), None)
    if found is None:
        return None
    return {**found, "created_at": format_us(from_datetime(found["created_at"]))}


def _switch(lake: Lake, names: Names) -> dict[str, Any] | None:
    """The two-phase switch to a generation; None where it was switched to without."""
    found = next((each for each in switches.switches(lake) if each.generation_id == names.id), None)
    if found is None:
        return None
    return {
        "phase": str(found.phase),
        "prepared_at": format_ms(found.prepared_at_ms),
        "decided_at": None if found.decided_at_ms is None else format_ms(found.decided_at_ms),
        "decided_by": found.decided_by,
        "participants": len(found.participants),
        "acknowledged": len(found.leases),
    }


def _judged(lake: Lake, own: Generation) -> list[dict[str, Any]]:
    """Every invariant of one generation, judged now."""
    family = families.GENERATIONS
    try:
        lines = judge(audit_lake(workers(), lake, own.name), family.due(()))
    except (PlatformError, ArrowException, OSError, ValueError) as error:
        said = " ".join(str(error).split())
        lines = [Judgement(name, 0, 0, f"not judged: {said}") for name in family.invariants]
    return [_line(family, line) for line in lines]


def _stored(lake: Lake, names: Iterable[str]) -> list[dict[str, Any]]:
    """Whether tables lie there as their commits say, judged now."""
    lines = audit_stored(verify(lake, names=set(names)))
    return [_line(families.STORED, line) for line in judge(lines, families.STORED.due(lines))]


def _kept(lake: Lake) -> list[dict[str, Any]]:
    """What was judged last of everything else, by whatever door; with whether tables have changed since."""
    now = versions(lake)
    beside = [family for family in FAMILIES if family not in (families.GENERATIONS, families.STORED)]
    every = judgements.kept(lake)
    return [
        {
            **_meaning(family, name),
            "asked_of": kept.asked_of,
            "checked": kept.population,
            "violations": kept.violations,
            "passed": kept.passed,
            "sample": "" if kept.passed else kept.said,
            "at": format_us(kept.judged_at_us),
            "door": kept.door,
            "newer": bool(judgements.newer_tables([kept], now)),
        }
        for family in beside
        for name in family.invariants
        for kept in every
        if kept.invariant == name
    ]


def _line(family: Family, line: Judgement) -> dict[str, Any]:
    return {
        **_meaning(family, line.invariant),
        "checked": line.population,
        "violations": line.violations,
        "passed": line.passed,
        "sample": line.sample,
    }


def _meaning(family: Family, name: str) -> dict[str, str]:
    means = next((each.meaning for each in family.invariants if each == name), "")
    return {"invariant": str(name), "means": means, "page": family.page}


def _parts(lake: Lake, names: Names) -> Iterable[dict[str, Any]]:
    """The generation's rows in each table: what names them, and their digest; None where there are none."""
    for part in names.parts():
        digest = provenance.held(lake, part.table, part.where)
        yield {
            "table": part.table.full_name,
            "rows": digests.slice_of(tuple(part.where), part.where),
            "digest": None if digest is None else f"{digest:032x}",
        }
