"""The audits: of a description before it is inserted, of what was inserted, of what was published, of the whole lake.

Each answers with findings, one an invariant, for `judge` to pass or fail. It knows which invariant is asked of which
rows; how rows are judged is in `rows`, `ranges` and `sharing`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from cdc_platform.clock import Milliseconds, format_ms
from cdc_platform.errors import NotFound, StateError
from cdc_platform.generations import TopologyDescription
from cdc_platform.invariants import first_format, inventory, known_streams, sharing
from cdc_platform.invariants.comparison import differing
from cdc_platform.invariants.findings import (
    INVARIANTS,
    PUBLISHED_EQUALS_DESCRIPTION,
    REFINES_VNODES,
    RING_COVERED_ONCE,
    ROW_COUNT,
    SHARD_COLOCATION,
    STREAM_FORMAT,
    STREAMS_UNIQUE,
    STREAMS_UNIQUE_ACROSS_GENERATIONS,
    TIMESTAMP_COMPLETE,
    VNODE_COLOCATION,
    Finding,
    Tally,
    add_up,
    finding,
)
from cdc_platform.invariants.inventory import HeldGeneration, Holding, RingNodes
from cdc_platform.invariants.one_pass import PassResult, Reading, Sharding, run
from cdc_platform.invariants.ranges import covered_once, refined, row_count
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.mirrors import mend
from cdc_platform.lake.tables import (
    GENERATION_DESCRIPTIONS,
    GENERATION_DESCRIPTIONS_V2,
    NODES,
    STREAMS_DESCRIPTIONS_V2,
    TOPOLOGY_DESCRIPTIONS,
    Table,
)
from cdc_platform.lake.volume import Workers
from cdc_platform.records import generation_data
from cdc_platform.ring import Ring

DESCRIPTION_INVARIANTS = (
    RING_COVERED_ONCE,
    REFINES_VNODES,
    VNODE_COLOCATION,
    SHARD_COLOCATION,
    STREAM_FORMAT,
    STREAMS_UNIQUE,
    ROW_COUNT,
)
"""What `audit_description` answers."""
INSERTED_INVARIANTS = (
    RING_COVERED_ONCE,
    VNODE_COLOCATION,
    SHARD_COLOCATION,
    STREAM_FORMAT,
    STREAMS_UNIQUE,
    ROW_COUNT,
    PUBLISHED_EQUALS_DESCRIPTION,
)
"""What `audit_inserted` answers."""
PUBLISHED_INVARIANTS = (PUBLISHED_EQUALS_DESCRIPTION,)
"""What `audit_published` answers."""
ACROSS_INVARIANTS = (STREAMS_UNIQUE_ACROSS_GENERATIONS,)
"""What `audit_across` answers."""
TIMESTAMP_INVARIANTS = (TIMESTAMP_COMPLETE,)
"""What `audit_timestamps` answers."""

Totals = dict[str, Tally]
_Pair = tuple[Holding, Holding]


def audit_description(
    workers: Workers, lake: Lake, generation_id: str, ring_before: Ring, ring_after: Ring
) -> list[Finding]:
    """Audit a topology description, before it is inserted, against the ring without and with the joining node.

    One Spark job at most, two more where indexes are wrong.
    """
    held = inventory.holding(lake, TOPOLOGY_DESCRIPTIONS, generation_id)
    rows = 0 if held is None else len(held.range_ends)
    counted = row_count(rows, [len(ring_after.tokens)], "the ring after the join")
    if held is None:
        nothing = _no_rows(TOPOLOGY_DESCRIPTIONS, generation_id)
        return _lines(DESCRIPTION_INVARIANTS, [("", {ROW_COUNT: counted})], nothing)
    result = run(workers, [Reading(held, judged=True)])
    tokens = np.concatenate([ring_before.tokens, ring_after.tokens])
    totals = _judged(workers, held, result)
    totals |= {ROW_COUNT: counted, REFINES_VNODES: refined(held.range_ends, tokens)}
    return _lines(DESCRIPTION_INVARIANTS, [("", totals)])


def audit_inserted(workers: Workers, lake: Lake, generation_id: str) -> list[Finding]:
    """Audit the V2 descriptions of a generation, and compare them with its topology description.

    One Spark job at most, two more where indexes are wrong.
    """
    held = inventory.holding(lake, GENERATION_DESCRIPTIONS_V2, generation_id)
    if held is None:
        return _lines(INSERTED_INVARIANTS, [], _no_rows(GENERATION_DESCRIPTIONS_V2, generation_id))
    described = inventory.holding(lake, TOPOLOGY_DESCRIPTIONS, generation_id)
    pairs = [] if described is None else [(described, held)]
    result = run(workers, _readings([held], pairs))
    totals = _judged(workers, held, result) | {ROW_COUNT: _claimed(held)}
    totals |= {PUBLISHED_EQUALS_DESCRIPTION: _compared(pairs, result)}
    return _lines(
        INSERTED_INVARIANTS,
        [("", totals)],
        {PUBLISHED_EQUALS_DESCRIPTION: "there is no topology description to compare the rows with"},
    )


def audit_published(workers: Workers, lake: Lake, generation_id: str) -> list[Finding]:
    """Compare the published streams rows of a generation with its V2 descriptions. One Spark job at most."""
    time = inventory.ledger_times(lake).get(generation_id)
    published = None if time is None else inventory.holding(lake, STREAMS_DESCRIPTIONS_V2, str(time))
    inserted = inventory.holding(lake, GENERATION_DESCRIPTIONS_V2, generation_id)
    if published is None or inserted is None:
        missing = STREAMS_DESCRIPTIONS_V2 if published is None else GENERATION_DESCRIPTIONS_V2
        return _lines(PUBLISHED_INVARIANTS, [], _no_rows(missing, generation_id))
    pairs = [(inserted, published)]
    result = run(workers, _readings([], pairs))
    return _lines(PUBLISHED_INVARIANTS, [("", {PUBLISHED_EQUALS_DESCRIPTION: _compared(pairs, result)})])


def audit_across(
    workers: Workers,
    lake: Lake,
    generation_id: str,
    in_order: Callable[[Sequence[HeldGeneration]], Collection[HeldGeneration]] = lambda _: (),
    described: bool = False,
) -> list[Finding]:
    """Look for streams of a generation that any other generation of the lake has.

    `in_order` tells of which generations it was found already, of the files that stand for them, that each stream lies
    in its range: of those only the ranges are read that could have a stream in common with this one. `described`: it
    was found of the topology description of this one, as it is. Nothing is read of those whose fingerprints are kept,
    unless one of them could have a stream of this one.

    One Spark job, at most four more where streams are shared or outside their ranges.

    Raises:
        NotFound: the lake holds nothing of this generation.
    """
    known = known_streams.known(lake, besides=generation_id)
    held = inventory.standing(lake, known.generations)
    mine = inventory.find(held, generation_id)
    if mine.rows is None:
        return _lines(ACROSS_INVARIANTS, [], "the generation has no rows")
    if known.meets(mine.rows):
        held = inventory.standing(lake)
        mine = inventory.find(held, generation_id)
    others = [each for each in held if each is not mine]
    proven = list(in_order(held))
    if described and mine.rows is not None and mine.rows.table is TOPOLOGY_DESCRIPTIONS:
        proven.append(mine)
    shared = sharing.across(workers, [mine], others, proven)
    return _lines(ACROSS_INVARIANTS, [("", {STREAMS_UNIQUE_ACROSS_GENERATIONS: shared})])


def audit_timestamps(lake: Lake, generation_id: str | None = None) -> list[Finding]:
    """Check that every published timestamp, or that of one generation, has its complete rows. No Spark job.

    Raises:
        NotFound: the lake holds nothing of this generation.
    """
    looked_at = inventory.generations(lake) if generation_id is None else [inventory.one(lake, generation_id)]
    parts: list[tuple[str, Totals]] = [(each.name, {TIMESTAMP_COMPLETE: _timestamp(each)}) for each in looked_at]
    return _lines(TIMESTAMP_INVARIANTS, parts, "no timestamp is published")


def audit_lake(workers: Workers, lake: Lake, generation_id: str | None = None) -> list[Finding]:
    """Audit everything the lake holds of all generations, or of one, named by its UUID or its time.

    Answers with every invariant once, added up over the generations. Each generation is judged by its V2
    descriptions, or where it has none by its topology description or its published streams; where it has several,
    they are compared. Three Spark jobs at most, two more for a generation with wrong indexes, and four more where
    streams are shared or outside their ranges. Ranges whose shard order could not be told on import are judged and
    compared as sets; where it is not known how a range is sharded either, its streams are counted as not judged.

    Raises:
        NotFound: the lake holds nothing of this generation, or no generation at all.
    """
    held = inventory.generations(lake)
    if not held:
        do = mend(lake, "bootstrap a node or import exports first", "first run: cdc-platform observe {cluster}")
        raise NotFound(f"the lake holds no generation; {do}")
    looked_at = held if generation_id is None else [inventory.find(held, generation_id)]
    with_rows = [each for each in looked_at if each.rows is not None]
    ring = inventory.ring_nodes(lake)
    pairs = {each: _pairs(each) for each in with_rows}
    judged = [each.rows for each in with_rows if each.rows is not None]
    newest = _newest(held)
    shardings = {each.published: _sharding(lake, each, ring) for each in with_rows}
    result = run(workers, _readings(judged, [pair for some in pairs.values() for pair in some], shardings))
    parts: list[tuple[str, Totals]] = [(each.name, {TIMESTAMP_COMPLETE: _timestamp(each)}) for each in looked_at]
    for each in with_rows:
        parts.append((each.name, _of_generation(workers, each, pairs[each], result)))
        parts.append((each.name, {REFINES_VNODES: _refined(each, ring, is_newest=each is newest)}))
    parts += first_format.against_v1(lake, looked_at)
    others = [each for each in held if each not in looked_at]
    if len(with_rows) == 1 and not any(each.rows for each in others):
        # Nothing to compare with: the streams that the pass has counted are the whole population.
        counted = result.tallies[judged[0]].get(STREAMS_UNIQUE)
        shared = Tally(STREAMS_UNIQUE_ACROSS_GENERATIONS, counted.population if counted else 0, 0)
    else:
        shared = sharing.across(workers, with_rows, others)
    parts.append(("", {STREAMS_UNIQUE_ACROSS_GENERATIONS: shared}))
    return [_or_unknown(lake, line) for line in _lines(INVARIANTS, parts, _NOTHING)]


def _or_unknown(lake: Lake, line: Finding) -> Finding:
    """Return the line, as unknown where nothing was checked for want of tables that were never exported."""
    needed = _NEEDED.get(line.invariant, ())
    judged = line.population and not line.unjudged
    if judged or line.violations or not needed or any(lake.exists(table) for table in needed):
        return line
    return replace(line, unknown=True, sample=f"not judged: {_NOTHING[line.invariant]}")


_OF_DESCRIPTIONS = (GENERATION_DESCRIPTIONS_V2, GENERATION_DESCRIPTIONS, TOPOLOGY_DESCRIPTIONS)
_NEEDED: Mapping[str, tuple[Table, ...]] = {
    REFINES_VNODES: (NODES,),
    SHARD_COLOCATION: (*_OF_DESCRIPTIONS, NODES),
    ROW_COUNT: (GENERATION_DESCRIPTIONS_V2, TOPOLOGY_DESCRIPTIONS),
    PUBLISHED_EQUALS_DESCRIPTION: _OF_DESCRIPTIONS,
}
"""What an invariant is judged by beside what clients read: without all of these tables it cannot be judged."""

_NOTHING: Mapping[str, str] = {
    RING_COVERED_ONCE: "no generation has rows",
    REFINES_VNODES: "no ring is known that the generation serves; import a ring snapshot",
    VNODE_COLOCATION: "no generation has rows with streams",
    SHARD_COLOCATION: "the shard order of no range is known; import V2 descriptions, or a ring snapshot",
    STREAM_FORMAT: "no generation has rows with streams",
    STREAMS_UNIQUE: "no generation has rows with streams",
    STREAMS_UNIQUE_ACROSS_GENERATIONS: "no generation has rows with streams",
    ROW_COUNT: "no V2 descriptions, whose rows say num_ranges",
    PUBLISHED_EQUALS_DESCRIPTION: "no generation is in two tables that could be compared",
    TIMESTAMP_COMPLETE: "no timestamp is published",
}


def _of_generation(workers: Workers, each: HeldGeneration, pairs: Sequence[_Pair], result: PassResult) -> Totals:
    assert each.rows is not None
    totals = _judged(workers, each.rows, result)
    if each.described is not None and each.described is not each.rows:
        starts = covered_once(each.described.range_ends, each.described.range_starts)
        totals |= add_up([totals[RING_COVERED_ONCE], starts])
    if each.inserted is not None:
        totals[ROW_COUNT] = _claimed(each.inserted)
    return totals | {PUBLISHED_EQUALS_DESCRIPTION: _compared(pairs, result)}


def _judged(workers: Workers, held: Holding, result: PassResult) -> Totals:
    """What the pass found in a generation's rows, and whether its ranges cover the ring.

    Within a row the pass has seen whether a stream comes twice. Two rows can only share one if an index is wrong or
    they are the same range: where neither is so, streams_unique is proven, else every stream is compared.
    """
    totals = dict(result.tallies[held]) | {RING_COVERED_ONCE: covered_once(held.range_ends, held.range_starts)}
    if any(totals[name].violations for name in (STREAM_FORMAT, RING_COVERED_ONCE)):
        totals[STREAMS_UNIQUE] = sharing.within(workers, held)
    return totals


def _claimed(inserted: Holding) -> Tally:
    return row_count(len(inserted.range_ends), inserted.claims, "num_ranges")


def _pairs(each: HeldGeneration) -> list[_Pair]:
    """The tables that have to agree about a generation."""
    pairs = []
    if each.described is not None and each.inserted is not None:
        pairs.append((each.described, each.inserted))
    source = each.inserted or each.described
    if source is not None and each.published is not None:
        pairs.append((source, each.published))
    return pairs


def _sharding(lake: Lake, each: HeldGeneration, ring: RingNodes) -> Sharding:
    """How the ranges of a published generation are sharded: by its V1 cell where it has one, else by the ring."""
    if each.id is None and each.time_ms is not None and (cell := _cell(lake, each.time_ms)) is not None:
        return Sharding(cell.range_ends, cell.stream_counts, cell.ignore_msbs, exact=True)
    return Sharding(ring.normal, ring.shard_counts, ring.ignore_msbs)


def _cell(lake: Lake, time_ms: Milliseconds) -> TopologyDescription | None:
    """A V1 description; None where there is none that can be read, which other invariants say."""
    try:
        entries = generation_data.read_cell(lake, time_ms)
        return None if entries is None else generation_data.parse_cell(time_ms, entries)
    except StateError:
        return None


def _readings(
    judged: Sequence[Holding],
    pairs: Sequence[_Pair],
    shardings: Mapping[Holding | None, Sharding] = MappingProxyType({}),
) -> list[Reading]:
    compared = {held for pair in pairs for held in pair}
    as_sets = {held for pair in pairs if any(len(one.unordered) for one in pair) for held in pair}
    return [
        Reading(
            held,
            judged=held in judged,
            compared=held in compared,
            as_sets=held in as_sets,
            sharding=shardings.get(held) if held.table is STREAMS_DESCRIPTIONS_V2 else None,
        )
        for held in dict.fromkeys([*judged, *(held for pair in pairs for held in pair)])
    ]


def _compared(pairs: Sequence[_Pair], result: PassResult) -> Tally:
    population = violations = 0
    sample = ""
    for one, other in pairs:
        with_msb = STREAMS_DESCRIPTIONS_V2 not in (one.table, other.table)
        ranges, ends = differing(result.digests[one], result.digests[other], with_msb=with_msb)
        population, violations = population + ranges, violations + len(ends)
        if len(ends) and not sample:
            sample = f"range end {ends[0]} is not the same in {one.table.full_name} and {other.table.full_name}"
    return Tally(PUBLISHED_EQUALS_DESCRIPTION, population, violations, 0, sample)


def _refined(each: HeldGeneration, ring: RingNodes, *, is_newest: bool) -> Tally:
    """Whether a generation refines the rings it serves, as far as they are known.

    The newest serves the ring as it stands; one that a join introduced, the joining node; one that has a topology
    description, the nodes that own its ranges.
    """
    assert each.rows is not None
    owners = () if each.described is None else each.described.owners
    tokens = [ring.tokens[owner] for owner in owners if owner in ring.tokens]
    if is_newest:
        tokens.append(ring.normal)
    if each.id in ring.joined:
        tokens.append(ring.joined[each.id])
    return refined(each.rows.range_ends, np.concatenate(tokens) if tokens else np.empty(0, dtype=np.int64))


def _newest(held: Sequence[HeldGeneration]) -> HeldGeneration | None:
    """The generation that the ring as it stands has to be refined by: the last that has a time, or the only one."""
    with_rows = [each for each in held if each.rows is not None]
    timed = [each for each in with_rows if each.time_ms is not None]
    return timed[-1] if timed else with_rows[0] if len(with_rows) == 1 else None


def _timestamp(each: HeldGeneration) -> Tally:
    """Whether the timestamp of a generation, where it is published, has its complete rows."""
    if not each.listed:
        return Tally(TIMESTAMP_COMPLETE, 0, 0)
    due = each.inserted or each.described
    if each.published is None:
        why = "has no streams rows"
    elif due is not None and not np.array_equal(each.published.range_ends, due.range_ends):
        why = f"has {len(each.published.range_ends)} streams rows that are not the {len(due.range_ends)} described ones"
    else:
        return Tally(TIMESTAMP_COMPLETE, 1, 0)
    time = "" if each.time_ms is None else format_ms(each.time_ms)
    return Tally(TIMESTAMP_COMPLETE, 1, 1, each.time_ms or 0, f"timestamp {time} {why}")


def _lines(
    invariants: Sequence[str], parts: Sequence[tuple[str, Totals]], nothing: Mapping[str, str] | str = ""
) -> list[Finding]:
    """A line an invariant out of what was found in each generation; `nothing` says why nothing was checked."""
    return [
        finding(
            invariant,
            [(name, totals[invariant]) for name, totals in parts if invariant in totals],
            nothing if isinstance(nothing, str) else nothing.get(invariant, ""),
        )
        for invariant in invariants
    ]


def _no_rows(table: Table, generation_id: str) -> str:
    return f"{table.full_name} has no rows of generation {generation_id}"
