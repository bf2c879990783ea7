"""Audits of generations: before the insert, after it, after publishing, across generations, and of the whole lake.

Each returns one finding per invariant for `judge`. `scan`, `ranges` and `uniqueness` judge the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from cdc_platform.checks import inventory, uniqueness, v1
from cdc_platform.checks.invariants import (
    GENERATION_INVARIANTS,
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
    InvariantTally,
    finding_from_tallies,
    sum_tallies,
)
from cdc_platform.checks.inventory import InventoryGeneration, KnownNodes, StoredGenerationRows
from cdc_platform.checks.ranges import check_refinement, check_ring_coverage, check_row_count, compare_range_digests
from cdc_platform.checks.scan import OwnerSharding, ScanRequest, ScanResult, run_scan
from cdc_platform.clock import Milliseconds, format_ms
from cdc_platform.delta import Lake, TaskRunner, choose_remedy
from cdc_platform.errors import NotFound, StateError
from cdc_platform.generations import TopologyDescription
from cdc_platform.metastore import generations
from cdc_platform.ring import Ring
from cdc_platform.tables import (
    GENERATION_DESCRIPTIONS,
    GENERATION_DESCRIPTIONS_V2,
    NODES,
    STREAMS_DESCRIPTIONS_V2,
    TOPOLOGY_DESCRIPTIONS,
    Table,
)

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

_TalliesByInvariant = dict[str, InvariantTally]
_ComparedPair = tuple[StoredGenerationRows, StoredGenerationRows]


def audit_description(
    workers: TaskRunner, lake: Lake, generation_id: str, ring_before: Ring, ring_after: Ring
) -> list[Finding]:
    """Audit a topology description, before it is inserted, against the ring without and with the joining node.

    One Spark job at most, two more where indexes are wrong.
    """
    held = inventory.read_generation_rows(lake, TOPOLOGY_DESCRIPTIONS, generation_id)
    rows = 0 if held is None else len(held.range_ends)
    counted = check_row_count(rows, [len(ring_after.tokens)], "the ring after the join")
    if held is None:
        nothing = _no_rows_reason(TOPOLOGY_DESCRIPTIONS, generation_id)
        return _findings(DESCRIPTION_INVARIANTS, [("", {ROW_COUNT: counted})], nothing)
    result = run_scan(workers, [ScanRequest(held, judged=True)])
    tokens = np.concatenate([ring_before.tokens, ring_after.tokens])
    totals = _tallies_of_rows(workers, held, result)
    totals |= {ROW_COUNT: counted, REFINES_VNODES: check_refinement(held.range_ends, tokens)}
    return _findings(DESCRIPTION_INVARIANTS, [("", totals)])


def audit_inserted(workers: TaskRunner, lake: Lake, generation_id: str) -> list[Finding]:
    """Audit the V2 descriptions of a generation, and compare them with its topology description.

    One Spark job at most, two more where indexes are wrong.
    """
    held = inventory.read_generation_rows(lake, GENERATION_DESCRIPTIONS_V2, generation_id)
    if held is None:
        return _findings(INSERTED_INVARIANTS, [], _no_rows_reason(GENERATION_DESCRIPTIONS_V2, generation_id))
    described = inventory.read_generation_rows(lake, TOPOLOGY_DESCRIPTIONS, generation_id)
    pairs = [] if described is None else [(described, held)]
    result = run_scan(workers, _scan_requests([held], pairs))
    totals = _tallies_of_rows(workers, held, result) | {ROW_COUNT: _row_count_tally(held)}
    totals |= {PUBLISHED_EQUALS_DESCRIPTION: _comparison_tally(pairs, result)}
    return _findings(
        INSERTED_INVARIANTS,
        [("", totals)],
        {PUBLISHED_EQUALS_DESCRIPTION: "there is no topology description to compare the rows with"},
    )


def audit_published(workers: TaskRunner, lake: Lake, generation_id: str) -> list[Finding]:
    """Compare the published streams rows of a generation with its V2 descriptions. One Spark job at most."""
    time = inventory.read_ledger_times(lake).get(generation_id)
    published = None if time is None else inventory.read_generation_rows(lake, STREAMS_DESCRIPTIONS_V2, str(time))
    inserted = inventory.read_generation_rows(lake, GENERATION_DESCRIPTIONS_V2, generation_id)
    if published is None or inserted is None:
        missing = STREAMS_DESCRIPTIONS_V2 if published is None else GENERATION_DESCRIPTIONS_V2
        return _findings(PUBLISHED_INVARIANTS, [], _no_rows_reason(missing, generation_id))
    pairs = [(inserted, published)]
    result = run_scan(workers, _scan_requests([], pairs))
    return _findings(PUBLISHED_INVARIANTS, [("", {PUBLISHED_EQUALS_DESCRIPTION: _comparison_tally(pairs, result)})])


def audit_across(
    workers: TaskRunner,
    lake: Lake,
    generation_id: str,
    in_order: Callable[[Sequence[InventoryGeneration]], Collection[InventoryGeneration]] = lambda _: (),
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
    known = uniqueness.read_fingerprint_index(lake, besides=generation_id)
    held = inventory.read_representative_inventory(lake, known.generations)
    mine = inventory.find_inventory_generation(held, generation_id)
    if mine.rows is None:
        return _findings(ACROSS_INVARIANTS, [], "the generation has no rows")
    if known.meets(mine.rows):
        held = inventory.read_representative_inventory(lake)
        mine = inventory.find_inventory_generation(held, generation_id)
    others = [each for each in held if each is not mine]
    proven = list(in_order(held))
    if described and mine.rows is not None and mine.rows.table is TOPOLOGY_DESCRIPTIONS:
        proven.append(mine)
    shared = uniqueness.check_unique_across(workers, [mine], others, proven)
    return _findings(ACROSS_INVARIANTS, [("", {STREAMS_UNIQUE_ACROSS_GENERATIONS: shared})])


def audit_timestamps(lake: Lake, generation_id: str | None = None) -> list[Finding]:
    """Check that every published timestamp, or that of one generation, has its complete rows. No Spark job.

    Raises:
        NotFound: the lake holds nothing of this generation.
    """
    looked_at = (
        inventory.read_inventory(lake)
        if generation_id is None
        else [inventory.read_inventory_generation(lake, generation_id)]
    )
    parts: list[tuple[str, _TalliesByInvariant]] = [
        (each.name, {TIMESTAMP_COMPLETE: _timestamp_tally(each)}) for each in looked_at
    ]
    return _findings(TIMESTAMP_INVARIANTS, parts, "no timestamp is published")


def audit_lake(workers: TaskRunner, lake: Lake, generation_id: str | None = None) -> list[Finding]:
    """Audit everything the lake holds of all generations, or of one, named by its UUID or its time.

    Answers with every invariant once, added up over the generations. Each generation is judged by its V2
    descriptions, or where it has none by its topology description or its published streams; where it has several,
    they are compared. Three Spark jobs at most, two more for a generation with wrong indexes, and four more where
    streams are shared or outside their ranges. Ranges whose shard order could not be told on import are judged and
    compared as sets; where it is not known how a range is sharded either, its streams are counted as not judged.

    Raises:
        NotFound: the lake holds nothing of this generation, or no generation at all.
    """
    held = inventory.read_inventory(lake)
    if not held:
        do = choose_remedy(
            lake, "bootstrap a node or import exports first", "first run: cdc-platform observe {cluster}"
        )
        raise NotFound(f"the lake holds no generation; {do}")
    looked_at = held if generation_id is None else [inventory.find_inventory_generation(held, generation_id)]
    with_rows = [each for each in looked_at if each.rows is not None]
    ring = inventory.read_known_nodes(lake)
    pairs = {each: _compared_pairs(each) for each in with_rows}
    judged = [each.rows for each in with_rows if each.rows is not None]
    newest = _newest_generation(held)
    shardings = {each.published: _sharding(lake, each, ring) for each in with_rows}
    result = run_scan(workers, _scan_requests(judged, [pair for some in pairs.values() for pair in some], shardings))
    parts: list[tuple[str, _TalliesByInvariant]] = [
        (each.name, {TIMESTAMP_COMPLETE: _timestamp_tally(each)}) for each in looked_at
    ]
    for each in with_rows:
        parts.append((each.name, _generation_tallies(workers, each, pairs[each], result)))
        parts.append((each.name, {REFINES_VNODES: _refinement_tally(each, ring, is_newest=each is newest)}))
    parts += v1.audit_against_v1(lake, looked_at)
    others = [each for each in held if each not in looked_at]
    if len(with_rows) == 1 and not any(each.rows for each in others):
        # Nothing to compare with: the streams that the pass has counted are the whole population.
        counted = result.tallies[judged[0]].get(STREAMS_UNIQUE)
        shared = InvariantTally(STREAMS_UNIQUE_ACROSS_GENERATIONS, counted.population if counted else 0, 0)
    else:
        shared = uniqueness.check_unique_across(workers, with_rows, others)
    parts.append(("", {STREAMS_UNIQUE_ACROSS_GENERATIONS: shared}))
    return [_mark_unknown(lake, line) for line in _findings(GENERATION_INVARIANTS, parts, _REASONS_UNCHECKED)]


def _mark_unknown(lake: Lake, line: Finding) -> Finding:
    """Return the line, as unknown where nothing was checked for want of tables that were never exported."""
    needed = _NEEDED_TABLES.get(line.invariant, ())
    judged = line.population and not line.unjudged
    if judged or line.violations or not needed or any(lake.exists(table) for table in needed):
        return line
    return replace(line, unknown=True, sample=f"not judged: {_REASONS_UNCHECKED[line.invariant]}")


_DESCRIPTION_TABLES = (GENERATION_DESCRIPTIONS_V2, GENERATION_DESCRIPTIONS, TOPOLOGY_DESCRIPTIONS)
_NEEDED_TABLES: Mapping[str, tuple[Table, ...]] = {
    REFINES_VNODES: (NODES,),
    SHARD_COLOCATION: (*_DESCRIPTION_TABLES, NODES),
    ROW_COUNT: (GENERATION_DESCRIPTIONS_V2, TOPOLOGY_DESCRIPTIONS),
    PUBLISHED_EQUALS_DESCRIPTION: _DESCRIPTION_TABLES,
}
"""What an invariant is judged by beside what clients read: without all of these tables it cannot be judged."""

_REASONS_UNCHECKED: Mapping[str, str] = {
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


def _generation_tallies(
    workers: TaskRunner, each: InventoryGeneration, pairs: Sequence[_ComparedPair], result: ScanResult
) -> _TalliesByInvariant:
    assert each.rows is not None
    totals = _tallies_of_rows(workers, each.rows, result)
    if each.described is not None and each.described is not each.rows:
        starts = check_ring_coverage(each.described.range_ends, each.described.range_starts)
        totals |= sum_tallies([totals[RING_COVERED_ONCE], starts])
    if each.inserted is not None:
        totals[ROW_COUNT] = _row_count_tally(each.inserted)
    return totals | {PUBLISHED_EQUALS_DESCRIPTION: _comparison_tally(pairs, result)}


def _tallies_of_rows(workers: TaskRunner, held: StoredGenerationRows, result: ScanResult) -> _TalliesByInvariant:
    """What the pass found in a generation's rows, and whether its ranges cover the ring.

    Within a row the pass has seen whether a stream comes twice. Two rows can only share one if an index is wrong or
    they are the same range: where neither is so, streams_unique is proven, else every stream is compared.
    """
    totals = dict(result.tallies[held]) | {RING_COVERED_ONCE: check_ring_coverage(held.range_ends, held.range_starts)}
    if any(totals[name].violations for name in (STREAM_FORMAT, RING_COVERED_ONCE)):
        totals[STREAMS_UNIQUE] = uniqueness.check_unique_within(workers, held)
    return totals


def _row_count_tally(inserted: StoredGenerationRows) -> InvariantTally:
    return check_row_count(len(inserted.range_ends), inserted.claims, "num_ranges")


def _compared_pairs(each: InventoryGeneration) -> list[_ComparedPair]:
    """The tables that have to agree about a generation."""
    pairs = []
    if each.described is not None and each.inserted is not None:
        pairs.append((each.described, each.inserted))
    source = each.inserted or each.described
    if source is not None and each.published is not None:
        pairs.append((source, each.published))
    return pairs


def _sharding(lake: Lake, each: InventoryGeneration, ring: KnownNodes) -> OwnerSharding:
    """How the ranges of a published generation are sharded: by its V1 cell where it has one, else by the ring."""
    if each.id is None and each.time_ms is not None and (cell := _read_v1_description(lake, each.time_ms)) is not None:
        return OwnerSharding(cell.range_ends, cell.stream_counts, cell.ignore_msbs, exact=True)
    return OwnerSharding(ring.normal, ring.shard_counts, ring.ignore_msbs)


def _read_v1_description(lake: Lake, time_ms: Milliseconds) -> TopologyDescription | None:
    """A V1 description; None where there is none that can be read, which other invariants say."""
    try:
        entries = generations.read_v1_cell(lake, time_ms)
        return None if entries is None else generations.parse_v1_cell(time_ms, entries)
    except StateError:
        return None


def _scan_requests(
    judged: Sequence[StoredGenerationRows],
    pairs: Sequence[_ComparedPair],
    shardings: Mapping[StoredGenerationRows | None, OwnerSharding] = MappingProxyType({}),
) -> list[ScanRequest]:
    compared = {held for pair in pairs for held in pair}
    as_sets = {held for pair in pairs if any(len(one.unordered) for one in pair) for held in pair}
    return [
        ScanRequest(
            held,
            judged=held in judged,
            compared=held in compared,
            as_sets=held in as_sets,
            sharding=shardings.get(held) if held.table is STREAMS_DESCRIPTIONS_V2 else None,
        )
        for held in dict.fromkeys([*judged, *(held for pair in pairs for held in pair)])
    ]


def _comparison_tally(pairs: Sequence[_ComparedPair], result: ScanResult) -> InvariantTally:
    population = violations = 0
    sample = ""
    for one, other in pairs:
        with_msb = STREAMS_DESCRIPTIONS_V2 not in (one.table, other.table)
        ranges, ends = compare_range_digests(result.digests[one], result.digests[other], with_msb=with_msb)
        population, violations = population + ranges, violations + len(ends)
        if len(ends) and not sample:
            sample = f"range end {ends[0]} is not the same in {one.table.full_name} and {other.table.full_name}"
    return InvariantTally(PUBLISHED_EQUALS_DESCRIPTION, population, violations, 0, sample)


def _refinement_tally(each: InventoryGeneration, ring: KnownNodes, *, is_newest: bool) -> InvariantTally:
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
    return check_refinement(each.rows.range_ends, np.concatenate(tokens) if tokens else np.empty(0, dtype=np.int64))


def _newest_generation(held: Sequence[InventoryGeneration]) -> InventoryGeneration | None:
    """The generation that the ring as it stands has to be refined by: the last that has a time, or the only one."""
    with_rows = [each for each in held if each.rows is not None]
    timed = [each for each in with_rows if each.time_ms is not None]
    return timed[-1] if timed else with_rows[0] if len(with_rows) == 1 else None


def _timestamp_tally(each: InventoryGeneration) -> InvariantTally:
    """Whether the timestamp of a generation, where it is published, has its complete rows."""
    if not each.listed:
        return InvariantTally(TIMESTAMP_COMPLETE, 0, 0)
    due = each.inserted or each.described
    if each.published is None:
        why = "has no streams rows"
    elif due is not None and not np.array_equal(each.published.range_ends, due.range_ends):
        why = f"has {len(each.published.range_ends)} streams rows that are not the {len(due.range_ends)} described ones"
    else:
        return InvariantTally(TIMESTAMP_COMPLETE, 1, 0)
    time = "" if each.time_ms is None else format_ms(each.time_ms)
    return InvariantTally(TIMESTAMP_COMPLETE, 1, 1, each.time_ms or 0, f"timestamp {time} {why}")


def _findings(
    invariants: Sequence[str], parts: Sequence[tuple[str, _TalliesByInvariant]], nothing: Mapping[str, str] | str = ""
) -> list[Finding]:
    """A line an invariant out of what was found in each generation; `nothing` says why nothing was checked."""
    return [
        finding_from_tallies(
            invariant,
            [(name, totals[invariant]) for name, totals in parts if invariant in totals],
            nothing if isinstance(nothing, str) else nothing.get(invariant, ""),
        )
        for invariant in invariants
    ]


def _no_rows_reason(table: Table, generation_id: str) -> str:
    return f"{table.full_name} has no rows of generation {generation_id}"
