"""The record of generations that a report page shows, as plain JSON values.

The same home and clock give the same record.
"""

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
    """Return one line per acceptance rule of a generation: the rule, its time, and the reason.

    The first of all generations starts at `first_us` (µs).
    """
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
    """Return when a coordinator's clock (µs) starts and stops accepting writes of a generation.

    The end is None while no next generation is known.
    """
    leeway, start = us_from_ms(settings.generation_leeway_ms), us_from_ms(own.time_ms)
    end = None if after is None else us_from_ms(after.time_ms)
    if settings.policy == "recent-past":
        return start - leeway, None if end is None else max(end, end - ONE_US + leeway)
    # The documented rule accepts no write before a generation operates, whatever the write's timestamp.
    return max(start - leeway + ONE_US, first_us), end


def read_generation_writes(lake: Lake, names: GenerationNames) -> list[dict[str, Any]]:
    """Return the writes of a generation as plain values, oldest first, as far back as logs and files reach.

    Each write has the fields of `commit_facts`, and `digest`: the digest that the commit records of the partition (of
    the whole table if it has no partitions) after the write; None if the commit records none.
    """
    writes = []
    for part in names.parts():
        for change in provenance.iter_changes(lake, part.table, part.where):
            line = commit_facts(part.table, change.commit, change.written, change.removed)
            writes.append(line | {"digest": _digest_in_commit(change.commit, part.table, part.where)})
    return sorted(writes, key=write_sort_key)


def commit_facts(table: Table, commit: Commit, written: int | None, removed: int) -> dict[str, Any]:
    """Return a commit and the number of rows that it wrote or removed, as plain values."""
    info = commit.info
    entry_point, command = ("", "") if info is None else (info.author.entry_point, info.author.command)
    return {
        "at": None if commit.at_ms is None else format_ms(commit.at_ms),
        "table": table.full_name,
        "version": commit.version,
        "what": "removed" if removed and not written else "written",
        "rows": removed if removed and not written else written,
        "who": "unknown" if info is None else info.user,
        "by": " ".join(filter(None, (entry_point, command))) or commit.engine,
        "run": None if info is None else info.author.run or None,
        "commit": None if info is None else info.id,
        "program": None if info is None else info.program,
    }


def write_sort_key(row: dict[str, Any]) -> tuple[str, str, int]:
    """Return the sort key of a write: time, table, version."""
    return (row["at"] or "", row["table"], row["version"])


def _digest_in_commit(commit: Commit, table: Table, where: PartSelector) -> str | None:
    digests = {} if commit.info is None else commit.info.digests
    columns = tuple(where) if set(where) == set(table.partition_by) else ()
    digest = digests.get(row_hash.partition_name_from_values(columns, where))
    return None if digest is None else f"{digest:032x}"


CIRCLE_PARTS = 100_000
"""The number of equal parts of the ring in which the record gives the positions of slices."""


def read_node_addresses(lake: Lake, keys: GenerationKeys) -> dict[str, str]:
    """Return the address by host ID of every node that joined here or is in the ring."""
    rows = read_node_columns(lake, ["host_id", "address"])
    now = dict(zip(rows["host_id"].to_pylist(), rows["address"].to_pylist(), strict=True))
    return {join.host_id: join.address for join in keys.joins} | {host: name for host, name in now.items() if name}


def read_generation_ring(lake: Lake, generation_id: str | None) -> Ring | None:
    """Return the ring that a generation was described for; None if its topology description is not stored."""
    try:
        return None if generation_id is None else generations.read_described_ring(lake, generation_id)
    except StateError:
        return None


def ring_facts(ring: Ring | None, before: Ring | None, names: Mapping[str, str], joins: str | None) -> dict[str, Any]:
    """Compare a ring with the one before it (None if unknown), node by node.

    `joins` is the host ID of the joining node. In the result, `after` and `before` are circles: pairs of the first
    part (of `CIRCLE_PARTS`, clockwise from the least token) and the index of the node that owns the ring from there.
    The result is empty if the ring is unknown.
    """
    if ring is None:
        return {}
    rings = {"after": ring, "before": before}
    hosts = sorted({str(node.host_id) for known_ring in rings.values() if known_ring for node in known_ring.nodes})
    node_index = {
        host: number for number, host in enumerate(sorted(hosts, key=lambda host: (names.get(host, ""), host)))
    }
    nodes: list[dict[str, Any]] = [
        {"host_id": host, "address": names.get(host, ""), "joins": host == joins, "before": None, "after": None}
        for host in node_index
    ]
    circles: dict[str, Any] = {}
    for when, known_ring in rings.items():
        if known_ring is None:
            circles[when] = None
            continue
        circles[when] = _circle_parts(known_ring, node_index)
        ranges, shares = np.bincount(known_ring.owner_index, minlength=len(known_ring.nodes)), _token_shares(known_ring)
        for number, node in enumerate(known_ring.nodes):
            nodes[node_index[str(node.host_id)]][when] = {
                "ranges": int(ranges[number]),
                "shards": node.shard_count,
                "ignore_msb": node.ignore_msb,
                "share": round(float(shares[number]), 5),
            }
    return {"nodes": nodes, **circles}


def change_facts(lake: Lake, before: Generation | None, generation: Generation) -> dict[str, Any]:
    """Return what changed since the generation before; `unknown` holds the reason if it cannot be determined."""
    if before is None:
        return {"unknown": "No generation operated before it."}
    try:
        old, new = (_read_description(lake, described) for described in (before, generation))
    except PlatformError as error:
        return {"unknown": f"The change is unknown: {error}."}
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
    """Return the first part (of `CIRCLE_PARTS`) of each owner's slices, with the owner's index in `places`.

    Adjacent slices of one owner are merged.
    """
    if not ring.tokens.size:
        return []
    edges, owners = cut_ring_slices(ring.tokens, ring.owner_index)
    starts = np.rint(edges[:-1] / (2 * np.pi) * CIRCLE_PARTS).astype(int).tolist()
    parts: list[tuple[int, int]] = []
    for start, owner in zip(starts, owners.tolist(), strict=True):
        index = places[str(ring.nodes[owner].host_id)]
        if parts and parts[-1][0] == start:  # the previous slice is thinner than a part
            parts.pop()
        if not parts or parts[-1][1] != index:
            parts.append((start, index))
    return parts


def _token_shares(ring: Ring) -> np.ndarray:
    """Return the share (0 to 1) of all tokens that each node owns, float64[nodes]."""
    ends = ring.tokens.astype(np.float64)
    widths = np.diff(ends, prepend=ends[-1:] - 2.0**64)
    return np.bincount(ring.owner_index, weights=widths, minlength=len(ring.nodes)) / 2.0**64


MAX_GENERATIONS = 24
"""The most generations on one page."""
_TIMELINE_MARGIN = 12
"""The number of generations before and after those of the page that its timeline shows."""

ReportRecord = dict[str, Any]


@dataclass(frozen=True)
class ReportSource:
    """The inputs of a page: a lake, the clock, and the settings.

    They are read once for all generations of the page.
    """

    lake: Lake
    clock: Clock
    settings: Settings

    def timeline_and_keys(self) -> tuple[Timeline, GenerationKeys]:
        """Return the timeline of generations, and their names."""
        return Timeline.read(self.lake), GenerationKeys.read(self.lake)


def gather_record(
    home: ReportSource, names: Sequence[GenerationNames], asked: tuple[str, str] | None = None
) -> ReportRecord:
    """Return the record of some generations, oldest first.

    `asked` are the times of the request as text, if it named a span of time.

    Raises:
        StoreFailure: a log cannot be read.
    """
    timeline, keys = home.timeline_and_keys()
    gathering = _RecordBuilder(home, timeline, keys, {planned.time_ms: planned for planned in _plan(home)})
    tables = {part.table.full_name: part.table for generation in names for part in generation.parts()}
    chains = {name: read_hash_chain(home.lake, table) for name, table in tables.items()}
    return {
        "program": __version__,
        "made_at": format_us(home.clock.now_us()),
        "asked": asked,
        "timeline": gathering.timeline_of(names),
        "generations": [gathering.generation(generation) for generation in names],
        "stored": _check_tables(home.lake, tables.keys()),
        "kept": _stored_results(home.lake),
        "tables": [
            {"table": name, "first": chain.first, "last": chain.last, "links": sorted(chain.links.items())}
            for name, chain in chains.items()
            if chain is not None
        ],
    }


def find_generations_between(home: ReportSource, from_us: Microseconds, to_us: Microseconds) -> list[GenerationNames]:
    """Return the generations, removed ones included, that operate at any time in [from_us, to_us) (µs).

    Raises:
        InputError: the times are out of order, or the generations do not fit on one page.
        NotFound: no generation operates then.
    """
    if from_us >= to_us:
        raise InputError(f"{format_us(from_us)} is not before {format_us(to_us)}; write the earlier time first")
    timeline, keys = home.timeline_and_keys()
    starts = timeline.times_us.tolist()
    ends = [*starts[1:], None]
    matching = [
        generation
        for generation, start, end in zip(timeline.generations, starts, ends, strict=True)
        if start < to_us and (end is None or end > from_us)
    ]
    if not matching:
        raise NotFound(f"no generation operates from {format_us(from_us)} to {format_us(to_us)}")
    if len(matching) > MAX_GENERATIONS:
        raise InputError(f"{len(matching)} generations operate then; a page tells of {MAX_GENERATIONS} at most")
    return [get_generation_names(home.lake, keys, generation.id or generation.time_ms) for generation in matching]


@dataclass(frozen=True)
class _RecordBuilder:
    """Builds a record; holds what is read once for all generations of the page."""

    home: ReportSource
    timeline: Timeline
    keys: GenerationKeys
    plan: dict[Any, PlannedGeneration]

    def timeline_of(self, names: Sequence[GenerationNames]) -> list[dict[str, Any]]:
        """Return the generations of the page and their neighbours in time, oldest first."""
        every = self.timeline.generations
        shown_times = {generation.time_ms for generation in names}
        indexes = [index for index, generation in enumerate(every) if generation.time_ms in shown_times]
        if not indexes:
            return []
        now = self.timeline.operating(self.home.clock.now_us())
        low, high = max(indexes[0] - _TIMELINE_MARGIN, 0), indexes[-1] + _TIMELINE_MARGIN + 1
        return [
            {
                "key": self.keys.of(generation.id, generation.time_ms),
                "time": format_ms(generation.time_ms),
                "until": format_ms(every[index + 1].time_ms) if index + 1 < len(every) else None,
                "state": str(generation.state),
                "operates": generation == now,
                "told": generation.time_ms in shown_times,
            }
            for index, generation in enumerate(every[low:high], start=low)
        ]

    def generation(self, names: GenerationNames) -> dict[str, Any]:
        """Return the record of one generation."""
        lake = self.home.lake
        index = next(
            (n for n, generation in enumerate(self.timeline.generations) if generation.time_ms == names.time_ms), None
        )
        own = None if index is None or names.time_ms is None else self.timeline.generations[index]
        before = self.timeline.generations[index - 1] if index else None
        after = None if index is None else next(iter(self.timeline.generations[index + 1 : index + 2]), None)
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
    """Return the event in the inbox that creates a generation, without its tokens; None if no event does."""
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
    event = next((row for row in rows if row["kind"] in GENERATION_EVENTS), None)
    if event is None:
        return None
    return {**event, "created_at": format_us(us_from_datetime(event["created_at"]))}


def _switch_facts(lake: Lake, names: GenerationNames) -> dict[str, Any] | None:
    """Return the two-phase switch to a generation; None if it operates without one."""
    switch = next(
        (candidate for candidate in switches.read_switches(lake) if candidate.generation_id == names.id), None
    )
    if switch is None:
        return None
    return {
        "phase": str(switch.phase),
        "prepared_at": format_ms(switch.prepared_at_ms),
        "decided_at": None if switch.decided_at_ms is None else format_ms(switch.decided_at_ms),
        "decided_by": switch.decided_by,
        "participants": len(switch.participants),
        "acknowledged": len(switch.leases),
    }


def _check_generation(lake: Lake, own: Generation) -> list[dict[str, Any]]:
    """Check every invariant of one generation now."""
    family = families.GENERATION_FAMILY
    try:
        lines = judge_findings(audit_lake(get_task_runner(), lake, own.name), family.due(()))
    except (PlatformError, ArrowException, OSError, ValueError) as error:
        message = " ".join(str(error).split())
        lines = [CheckResult(name, 0, 0, f"not judged: {message}") for name in family.invariants]
    return [_result_facts(family, line) for line in lines]


def _check_tables(lake: Lake, names: Iterable[str]) -> list[dict[str, Any]]:
    """Check now that stored tables match their commits."""
    lines = audit_stored(verify_tables(lake, names=set(names)))
    return [
        _result_facts(families.STORAGE_FAMILY, line)
        for line in judge_findings(lines, families.STORAGE_FAMILY.due(lines))
    ]


def _stored_results(lake: Lake) -> list[dict[str, Any]]:
    """Return the last stored result of every other invariant, from the CLI or Dagster.

    Each result says whether its tables have changed since.
    """
    now = read_newest_versions(lake)
    other_families = [
        family for family in INVARIANT_FAMILIES if family not in (families.GENERATION_FAMILY, families.STORAGE_FAMILY)
    ]
    every = check_results.read_check_results(lake)
    return [
        {
            **_invariant_facts(family, name),
            "asked_of": result.scope,
            "checked": result.population,
            "violations": result.violations,
            "passed": result.passed,
            "sample": "" if result.passed else result.message,
            "at": format_us(result.judged_at_us),
            "door": result.entry_point,
            "newer": bool(check_results.tables_changed_since([result], now)),
        }
        for family in other_families
        for name in family.invariants
        for result in every
        if result.invariant == name
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
    means = next((invariant.meaning for invariant in family.invariants if invariant == name), "")
    return {"invariant": str(name), "means": means, "page": family.page}


def _part_facts(lake: Lake, names: GenerationNames) -> Iterable[dict[str, Any]]:
    """Yield the selector and the digest of a generation's rows in each table; the digest is None without rows."""
    for part in names.parts():
        digest = provenance.get_part_digest(lake, part.table, part.where)
        yield {
            "table": part.table.full_name,
            "rows": row_hash.partition_name_from_values(tuple(part.where), part.where),
            "digest": None if digest is None else f"{digest:032x}",
        }
