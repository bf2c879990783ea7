"""The record of generations that a report shows, as plain JSON values, the same for the same home and clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pyarrow import ArrowException

from cdc_platform import __version__
from cdc_platform.checks import (
    INVARIANT_FAMILIES,
    CheckResult,
    InvariantFamily,
    audit_lake,
    audit_stored,
    judge_findings,
)
from cdc_platform.checks import invariants as families
from cdc_platform.clock import (
    ONE_US,
    Clock,
    Microseconds,
    format_ms,
    format_us,
    seconds_from_us,
    us_from_datetime,
    us_from_ms,
)
from cdc_platform.delta import (
    Commit,
    Lake,
    PartSelector,
    provenance,
    read_hash_chain,
    read_newest_versions,
    row_hash,
    verify_tables,
)
from cdc_platform.errors import InputError, NotFound, PlatformError, StateError
from cdc_platform.generations import compare_generations
from cdc_platform.lifecycle import PlannedGeneration, plan_expiry
from cdc_platform.metastore import (
    GENERATION_EVENTS,
    JOIN_EVENT,
    check_results,
    generations,
    read_node_columns,
    switches,
)
from cdc_platform.plots import cut_ring_slices
from cdc_platform.ring import Ring
from cdc_platform.settings import Settings
from cdc_platform.spark import get_task_runner
from cdc_platform.tables import BOOTSTRAP_EVENTS, Table
from cdc_platform.timeline import Generation, GenerationKeys, GenerationNames, Timeline, get_generation_names


def acceptance_facts(
    settings: Settings, first_us: Microseconds, own: Generation, after: Generation | None
) -> list[dict[str, str]]:
    """What is asked, the answer and why, a line each. The first of all generations starts at `first_us` (µs)."""
    leeway, start = us_from_ms(settings.generation_leeway_ms), us_from_ms(own.time_ms)
    first, last = acceptance_window_us(settings, first_us, own, after)
    seconds = f"{seconds_from_us(leeway):g} s"
    none_yet = settings.policy == "strict" and first == first_us
    lines = [
        {
            "what": "Write timestamps that belong to it",
            "answer": format_us(start) + (" and later" if after is None else f" to before {format_ms(after.time_ms)}"),
            "why": "A generation operates from its timestamp to just before the next one's.",
        },
        {
            "what": "Taken from, by a coordinator's clock",
            "answer": format_us(first),
            "why": f"A write may be ahead of the clock by less than the leeway, {seconds}"
            + ("; but before it no generation operates." if none_yet else "."),
        },
    ]
    refused = "Refused from, by a coordinator's clock"
    if last is None:
        why = "No generation is known to follow it: its writes are taken until one does."
        return [*lines, {"what": refused, "answer": "not yet", "why": why}]
    why = "Policy strict: once the next generation operates, no write goes to an earlier one."
    if settings.policy != "strict":
        why = f"Policy recent-past: writes to an earlier generation are taken while younger than {seconds}."
    return [*lines, {"what": refused, "answer": format_us(last), "why": why}]


def acceptance_window_us(
    settings: Settings, first_us: Microseconds, own: Generation, after: Generation | None
) -> tuple[Microseconds, Microseconds | None]:
    """When a coordinator's clock (µs) takes the first write of a generation, and from when on none; None: not known."""
    leeway, start = us_from_ms(settings.generation_leeway_ms), us_from_ms(own.time_ms)
    end = None if after is None else us_from_ms(after.time_ms)
    if settings.policy == "recent-past":
        return start - leeway, None if end is None else max(end, end - ONE_US + leeway)
    # The documents' rule takes no write before some generation operates, whatever its timestamp.
    return max(start - leeway + ONE_US, first_us), end


def read_generation_writes(lake: Lake, names: GenerationNames) -> list[dict[str, Any]]:
    """The writes in plain values, oldest first, as far back as logs and files go.

    Beside what `told` says of the commit: `digest`, what the slice holds after it (the whole table where it has no
    slices), as the commit says; None where it says nothing.
    """
    told = []
    for part in names.parts():
        for change in provenance.iter_changes(lake, part.table, part.where):
            line = commit_facts(part.table, change.commit, change.written, change.removed)
            told.append(line | {"digest": _digest_in_commit(change.commit, part.table, part.where)})
    return sorted(told, key=write_sort_key)


def commit_facts(table: Table, commit: Commit, written: int | None, removed: int) -> dict[str, Any]:
    """A commit and how many rows it wrote or removed, in plain values."""
    said = commit.envelope
    door, command = ("", "") if said is None else (said.speaker.door, said.speaker.command)
    return {
        "at": None if commit.at_ms is None else format_ms(commit.at_ms),
        "table": table.full_name,
        "version": commit.version,
        "what": "removed" if removed and not written else "written",
        "rows": removed if removed and not written else written,
        "who": "unknown" if said is None else said.user,
        "by": " ".join(filter(None, (door, command))) or commit.engine,
        "run": None if said is None else said.speaker.run or None,
        "commit": None if said is None else said.id,
        "program": None if said is None else said.program,
    }


def write_sort_key(row: dict[str, Any]) -> tuple[str, str, int]:
    """By what writes are sorted: time, table, version."""
    return (row["at"] or "", row["table"], row["version"])


def _digest_in_commit(commit: Commit, table: Table, where: PartSelector) -> str | None:
    said = {} if commit.envelope is None else commit.envelope.digests
    columns = tuple(where) if set(where) == set(table.partition_by) else ()
    found = said.get(row_hash.partition_name_from_values(columns, where))
    return None if found is None else f"{found:032x}"


CIRCLE_PARTS = 100_000
"""Into so many parts the ring is cut where slices of it are told."""


def read_node_addresses(lake: Lake, keys: GenerationKeys) -> dict[str, str]:
    """The address of every node that joined here, or is in the ring, by its host ID."""
    rows = read_node_columns(lake, ["host_id", "address"])
    now = dict(zip(rows["host_id"].to_pylist(), rows["address"].to_pylist(), strict=True))
    return {join.host_id: join.address for join in keys.joins} | {host: name for host, name in now.items() if name}


def read_generation_ring(lake: Lake, generation_id: str | None) -> Ring | None:
    """The ring that a generation was described for; None where its topology description is not here."""
    try:
        return None if generation_id is None else generations.read_described_ring(lake, generation_id)
    except StateError:
        return None


def ring_facts(ring: Ring | None, before: Ring | None, names: Mapping[str, str], joins: str | None) -> dict[str, Any]:
    """A ring beside the one before it (None: not known), node by node; `joins` is the host ID of the one that is new.

    `after` and `before` are circles: from which part of `CIRCLE_PARTS` on, clockwise from the least token, the ring
    belongs
    to which of the nodes. Empty where the ring is not known.
    """
    if ring is None:
        return {}
    rings = {"after": ring, "before": before}
    hosts = sorted({str(node.host_id) for each in rings.values() if each for node in each.nodes})
    places = {host: number for number, host in enumerate(sorted(hosts, key=lambda host: (names.get(host, ""), host)))}
    nodes: list[dict[str, Any]] = [
        {"host_id": host, "address": names.get(host, ""), "joins": host == joins, "before": None, "after": None}
        for host in places
    ]
    circles: dict[str, Any] = {}
    for when, each in rings.items():
        if each is None:
            circles[when] = None
            continue
        circles[when] = _circle_parts(each, places)
        ranges, shares = np.bincount(each.owner_index, minlength=len(each.nodes)), _token_shares(each)
        for number, node in enumerate(each.nodes):
            nodes[places[str(node.host_id)]][when] = {
                "ranges": int(ranges[number]),
                "shards": node.shard_count,
                "ignore_msb": node.ignore_msb,
                "share": round(float(shares[number]), 5),
            }
    return {"nodes": nodes, **circles}


def change_facts(lake: Lake, before: Generation | None, generation: Generation) -> dict[str, Any]:
    """What changed from the generation before; `unknown` says why where that cannot be told."""
    if before is None:
        return {"unknown": "No generation operated before it."}
    try:
        old, new = (_read_description(lake, each) for each in (before, generation))
    except PlatformError as error:
        return {"unknown": f"What changed cannot be told: {error}."}
    change = compare_generations(old, new)
    return {
        "ranges_added": len(change.ranges_added),
        "ranges_removed": len(change.ranges_removed),
        "streams_kept": change.streams_kept,
        "changed_share": round(change.changed_share, 6),
    }


def _read_description(lake: Lake, generation: Generation) -> Any:
    if generation.generation_id is None:
        raise NotFound(f"generation {generation.name} is known by its time alone")
    return generations.read_generation_description(lake, generation.generation_id)


def _circle_parts(ring: Ring, places: Mapping[str, int]) -> list[tuple[int, int]]:
    """Where each owner's slices begin, in parts of `CIRCLE_PARTS`, and whose they are; neighbours of one owner are
    one.
    """
    if not ring.tokens.size:
        return []
    edges, owners = cut_ring_slices(ring.tokens, ring.owner_index)
    starts = np.rint(edges[:-1] / (2 * np.pi) * CIRCLE_PARTS).astype(int).tolist()
    found: list[tuple[int, int]] = []
    for start, owner in zip(starts, owners.tolist(), strict=True):
        place = places[str(ring.nodes[owner].host_id)]
        if found and found[-1][0] == start:  # thinner than a part
            found.pop()
        if not found or found[-1][1] != place:
            found.append((start, place))
    return found


def _token_shares(ring: Ring) -> np.ndarray:
    """The part (0 to 1) of all tokens that each node owns, float64[nodes]."""
    ends = ring.tokens.astype(np.float64)
    widths = np.diff(ends, prepend=ends[-1:] - 2.0**64)
    return np.bincount(ring.owner_index, weights=widths, minlength=len(ring.nodes)) / 2.0**64


MAX_GENERATIONS = 24
"""One page tells of so many generations at the most."""
_TIMELINE_MARGIN = 12
"""So many generations before and after those of the page are in its timeline."""

ReportRecord = dict[str, Any]


@dataclass(frozen=True)
class ReportSource:
    """What a page is made of: a lake, the clock, the settings; read once for all generations of the page."""

    lake: Lake
    clock: Clock
    settings: Settings

    def told(self) -> tuple[Timeline, GenerationKeys]:
        """The generations, and their names."""
        return Timeline.read(self.lake), GenerationKeys.read(self.lake)


def gather_record(
    home: ReportSource, names: Sequence[GenerationNames], asked: tuple[str, str] | None = None
) -> ReportRecord:
    """The record of some generations, oldest first; `asked` are the times that they were asked for by, as text.

    Raises:
        StoreFailure: a log cannot be read.
    """
    timeline, keys = home.told()
    gathering = _RecordBuilder(home, timeline, keys, {each.time_ms: each for each in _plan(home)})
    tables = {part.table.full_name: part.table for each in names for part in each.parts()}
    chains = {name: read_hash_chain(home.lake, table) for name, table in tables.items()}
    return {
        "program": __version__,
        "made_at": format_us(home.clock.now_us()),
        "asked": asked,
        "timeline": gathering.timeline_of(names),
        "generations": [gathering.generation(each) for each in names],
        "stored": _check_tables(home.lake, tables.keys()),
        "kept": _stored_results(home.lake),
        "tables": [
            {"table": name, "first": kept.first, "last": kept.last, "links": sorted(kept.links.items())}
            for name, kept in chains.items()
            if kept is not None
        ],
    }


def find_generations_between(home: ReportSource, from_us: Microseconds, to_us: Microseconds) -> list[GenerationNames]:
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
    if len(found) > MAX_GENERATIONS:
        raise InputError(f"{len(found)} generations operate then; a page tells of {MAX_GENERATIONS} at most")
    return [get_generation_names(home.lake, keys, each.id or each.time_ms) for each in found]


@dataclass(frozen=True)
class _RecordBuilder:
    """A page while it is gathered: what is read once for all of its generations."""

    home: ReportSource
    timeline: Timeline
    keys: GenerationKeys
    plan: dict[Any, PlannedGeneration]

    def timeline_of(self, names: Sequence[GenerationNames]) -> list[dict[str, Any]]:
        """The generations of the page and some around them, oldest first."""
        every = self.timeline.generations
        shown = {each.time_ms for each in names}
        places = [place for place, each in enumerate(every) if each.time_ms in shown]
        if not places:
            return []
        now = self.timeline.operating(self.home.clock.now_us())
        low, high = max(places[0] - _TIMELINE_MARGIN, 0), places[-1] + _TIMELINE_MARGIN + 1
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

    def generation(self, names: GenerationNames) -> dict[str, Any]:
        """What is told of one."""
        lake = self.home.lake
        place = next((n for n, each in enumerate(self.timeline.generations) if each.time_ms == names.time_ms), None)
        own = None if place is None or names.time_ms is None else self.timeline.generations[place]
        before = self.timeline.generations[place - 1] if place else None
        after = None if place is None else next(iter(self.timeline.generations[place + 1 : place + 2]), None)
        earlier = None if before is None else before.id
        event = _event_facts(lake, names)
        joins = names.host_id if event is not None and event["kind"] == JOIN_EVENT else None
        known = read_node_addresses(lake, self.keys)
        return {
            "key": names.key,
            "id": names.id,
            **self._state(names, own, after),
            "event": event,
            "before": before and self.keys.of(before.id, before.time_ms),
            "ring": ring_facts(read_generation_ring(lake, names.id), read_generation_ring(lake, earlier), known, joins),
            "change": {} if own is None else change_facts(lake, before, own),
            "accepted": []
            if own is None
            else acceptance_facts(self.home.settings, us_from_ms(self.timeline.generations[0].time_ms), own, after),
            "switch": _switch_facts(lake, names),
            "expiry": self._expiry(own),
            "invariants": [] if own is None or own.is_removed else _check_generation(lake, own),
            "writes": read_generation_writes(lake, names),
            "parts": list(_part_facts(lake, names)),
        }

    def _state(self, names: GenerationNames, own: Generation | None, after: Generation | None) -> dict[str, Any]:
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


def _plan(home: ReportSource) -> Iterable[PlannedGeneration]:
    return plan_expiry(home.lake, home.clock, home.settings)


def _event_facts(lake: Lake, names: GenerationNames) -> dict[str, Any] | None:
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
    found = next((row for row in rows if row["kind"] in GENERATION_EVENTS), None)
    if found is None:
        return None
    return {**found, "created_at": format_us(us_from_datetime(found["created_at"]))}


def _switch_facts(lake: Lake, names: GenerationNames) -> dict[str, Any] | None:
    """The two-phase switch to a generation; None where it was switched to without."""
    found = next((each for each in switches.read_switches(lake) if each.generation_id == names.id), None)
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


def _check_generation(lake: Lake, own: Generation) -> list[dict[str, Any]]:
    """Every invariant of one generation, judged now."""
    family = families.GENERATION_FAMILY
    try:
        lines = judge_findings(audit_lake(get_task_runner(), lake, own.name), family.due(()))
    except (PlatformError, ArrowException, OSError, ValueError) as error:
        said = " ".join(str(error).split())
        lines = [CheckResult(name, 0, 0, f"not judged: {said}") for name in family.invariants]
    return [_result_facts(family, line) for line in lines]


def _check_tables(lake: Lake, names: Iterable[str]) -> list[dict[str, Any]]:
    """Whether tables lie there as their commits say, judged now."""
    lines = audit_stored(verify_tables(lake, names=set(names)))
    return [
        _result_facts(families.STORAGE_FAMILY, line)
        for line in judge_findings(lines, families.STORAGE_FAMILY.due(lines))
    ]


def _stored_results(lake: Lake) -> list[dict[str, Any]]:
    """What was judged last of everything else, by whatever door; with whether tables have changed since."""
    now = read_newest_versions(lake)
    beside = [
        family for family in INVARIANT_FAMILIES if family not in (families.GENERATION_FAMILY, families.STORAGE_FAMILY)
    ]
    every = check_results.read_check_results(lake)
    return [
        {
            **_invariant_facts(family, name),
            "asked_of": kept.asked_of,
            "checked": kept.population,
            "violations": kept.violations,
            "passed": kept.passed,
            "sample": "" if kept.passed else kept.said,
            "at": format_us(kept.judged_at_us),
            "door": kept.door,
            "newer": bool(check_results.tables_changed_since([kept], now)),
        }
        for family in beside
        for name in family.invariants
        for kept in every
        if kept.invariant == name
    ]


def _result_facts(family: InvariantFamily, line: CheckResult) -> dict[str, Any]:
    return {
        **_invariant_facts(family, line.invariant),
        "checked": line.population,
        "violations": line.violations,
        "passed": line.passed,
        "sample": line.sample,
    }


def _invariant_facts(family: InvariantFamily, name: str) -> dict[str, str]:
    means = next((each.meaning for each in family.invariants if each == name), "")
    return {"invariant": str(name), "means": means, "page": family.page}


def _part_facts(lake: Lake, names: GenerationNames) -> Iterable[dict[str, Any]]:
    """The generation's rows in each table: what names them, and their digest; None where there are none."""
    for part in names.parts():
        digest = provenance.get_part_digest(lake, part.table, part.where)
        yield {
            "table": part.table.full_name,
            "rows": row_hash.partition_name_from_values(tuple(part.where), part.where),
            "digest": None if digest is None else f"{digest:032x}",
        }
