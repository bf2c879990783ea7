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
from cdc_platform.checks.judge import failed_rows
from cdc_platform.checks.ranges import check_refinement, check_ring_coverage, check_row_count, compare_range_digests
from cdc_platform.checks.scan import OwnerSharding, ScanRequest, ScanResult, run_scan
from cdc_platform.checks.uniqueness import FingerprintIndex
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
"""The invariants that `audit_description` checks."""
INSERTED_INVARIANTS = (
    RING_COVERED_ONCE,
    VNODE_COLOCATION,
    SHARD_COLOCATION,
    STREAM_FORMAT,
    STREAMS_UNIQUE,
    ROW_COUNT,
    PUBLISHED_EQUALS_DESCRIPTION,
)
"""The invariants that `audit_inserted` checks."""
PUBLISHED_INVARIANTS = (PUBLISHED_EQUALS_DESCRIPTION,)
"""The invariants that `audit_published` checks."""
ACROSS_INVARIANTS = (STREAMS_UNIQUE_ACROSS_GENERATIONS,)
"""The invariants that `audit_across` checks."""
TIMESTAMP_INVARIANTS = (TIMESTAMP_COMPLETE,)
"""The invariants that `audit_timestamps` checks."""

_EMPTY = np.empty(0, dtype=np.int64)
_TalliesByInvariant = dict[str, InvariantTally]
_ComparedPair = tuple[StoredGenerationRows, StoredGenerationRows]


def audit_description(
    workers: TaskRunner, lake: Lake, generation_id: str, ring_before: Ring, ring_after: Ring
) -> list[Finding]:
    """Audit a topology description, before it is inserted, against the ring without and with the joining node.

    It runs at most one Spark job, and two more if indexes are wrong.
    """
    stored = inventory.read_generation_rows(lake, TOPOLOGY_DESCRIPTIONS, generation_id)
    rows = 0 if stored is None else len(stored.range_ends)
    counted = check_row_count(rows, [len(ring_after.tokens)], "the ring after the join")
    if stored is None:
        nothing = _no_rows_reason(TOPOLOGY_DESCRIPTIONS, generation_id)
        return _findings(DESCRIPTION_INVARIANTS, [("", {ROW_COUNT: counted})], nothing)
    result = run_scan(workers, [ScanRequest(stored, audited=True)])
    tokens = np.concatenate([ring_before.tokens, ring_after.tokens])
    totals = _tallies_of_rows(workers, stored, result)
    totals |= {ROW_COUNT: counted, REFINES_VNODES: check_refinement(stored.range_ends, tokens)}
    return _findings(DESCRIPTION_INVARIANTS, [("", totals)])


def audit_inserted(workers: TaskRunner, lake: Lake, generation_id: str) -> list[Finding]:
    """Audit the V2 descriptions of a generation, and compare them with its topology description.

    It runs at most one Spark job, and two more if indexes are wrong.
    """
    stored = inventory.read_generation_rows(lake, GENERATION_DESCRIPTIONS_V2, generation_id)
    if stored is None:
        return _findings(INSERTED_INVARIANTS, [], _no_rows_reason(GENERATION_DESCRIPTIONS_V2, generation_id))
    described = inventory.read_generation_rows(lake, TOPOLOGY_DESCRIPTIONS, generation_id)
    pairs = [] if described is None else [(described, stored)]
    result = run_scan(workers, _scan_requests([stored], pairs))
    totals = _tallies_of_rows(workers, stored, result) | {ROW_COUNT: _row_count_tally(stored)}
    totals |= {PUBLISHED_EQUALS_DESCRIPTION: _comparison_tally(pairs, result)}
    return _findings(
        INSERTED_INVARIANTS,
        [("", totals)],
        {PUBLISHED_EQUALS_DESCRIPTION: "there is no topology description to compare the rows with"},
    )


def audit_published(workers: TaskRunner, lake: Lake, generation_id: str) -> list[Finding]:
    """Compare the published streams rows of a generation with its V2 descriptions, in at most one Spark job."""
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
    """Search for streams of a generation that also belong to another generation of the lake.

    `in_order` selects, of the generations to read, those whose streams are already known to lie in their ranges; of
    these, only the ranges that could share a stream with this generation are read. `described`: True if that is also
    known of this generation's topology description in its current state. Generations with stored fingerprints are read
    only if one of them could share a stream.

    It runs one Spark job, and at most four more if streams are shared or outside their ranges.

    Raises:
        NotFound: the lake holds nothing of this generation.
    """
    known = uniqueness.read_fingerprint_index(lake, besides=generation_id)
    inventory_generations = inventory.read_representative_inventory(lake, known.generations)
    mine = inventory.find_inventory_generation(inventory_generations, generation_id)
    if mine.rows is None:
        return _findings(ACROSS_INVARIANTS, [], "the generation has no rows")
    if known.may_share_stream(mine.rows):
        inventory_generations = inventory.read_representative_inventory(lake)
        mine = inventory.find_inventory_generation(inventory_generations, generation_id)
    others = [other for other in inventory_generations if other is not mine]
    proven = list(in_order(inventory_generations))
    if described and mine.rows is not None and mine.rows.table is TOPOLOGY_DESCRIPTIONS:
        proven.append(mine)
    shared = uniqueness.check_unique_across(workers, [mine], others, proven)
    return _findings(ACROSS_INVARIANTS, [("", {STREAMS_UNIQUE_ACROSS_GENERATIONS: shared})])


def audit_timestamps(lake: Lake, generation_id: str | None = None) -> list[Finding]:
    """Check that every published timestamp, or that of one generation, has its complete rows. No Spark job.

    Raises:
        NotFound: the lake holds nothing of this generation.
    """
    audited = (
        inventory.read_inventory(lake)
        if generation_id is None
        else [inventory.read_inventory_generation(lake, generation_id)]
    )
    parts: list[tuple[str, _TalliesByInvariant]] = [
        (generation.name, {TIMESTAMP_COMPLETE: _timestamp_tally(generation)}) for generation in audited
    ]
    return _findings(TIMESTAMP_INVARIANTS, parts, "no timestamp is published")


def audit_lake(
    workers: TaskRunner,
    lake: Lake,
    generation_id: str | None = None,
    index: FingerprintIndex = uniqueness.EMPTY_INDEX,
) -> list[Finding]:
    """Audit everything that the lake holds of all generations, or of one, named by its UUID or its time.

    Return one finding per invariant, summed over the generations. A generation is judged by its V2 descriptions, or
    else by its topology description or its published streams; if it has several of these, they are compared. It runs at
    most three Spark jobs, two more for a generation with wrong indexes, and four more if streams are shared or outside
    their ranges. Ranges whose shard order was unknown on import are judged and compared as sets. If a range's sharding
    is unknown too, its streams count as not judged.

    One generation is compared with the rows of all others, except those in `index`: if its streams differ from theirs
    by their fingerprints, those rows are not read. Of the generation's nodes it reads the ring and the inbox.

    Raises:
        NotFound: the lake holds nothing of this generation, or no generation at all.
    """
    if generation_id is None:
        audited, others = inventory.read_inventory(lake), list[InventoryGeneration]()
        newest = _newest_generation(audited)
    else:
        mine, others, is_newest = _read_with_others(lake, generation_id, index)
        audited, newest = [mine], mine if is_newest else None
    if not audited:
        remedy = choose_remedy(
            lake, "bootstrap a node or import exports first", "first run: cdc-platform observe {cluster}"
        )
        raise NotFound(f"the lake holds no generation; {remedy}")
    with_rows = [generation for generation in audited if generation.rows is not None]
    ring = inventory.read_known_nodes(lake)
    pairs = {generation: _compared_pairs(generation) for generation in with_rows}
    judged = [generation.rows for generation in with_rows if generation.rows is not None]
    shardings = {generation.published: _sharding(lake, generation, ring) for generation in with_rows}
    result = run_scan(
        workers,
        _scan_requests(judged, [pair for generation_pairs in pairs.values() for pair in generation_pairs], shardings),
    )
    parts: list[tuple[str, _TalliesByInvariant]] = [
        (generation.name, {TIMESTAMP_COMPLETE: _timestamp_tally(generation)}) for generation in audited
    ]
    for generation in with_rows:
        parts.append((generation.name, _generation_tallies(workers, generation, pairs[generation], result)))
        parts.append(
            (generation.name, {REFINES_VNODES: _refinement_tally(generation, ring, is_newest=generation is newest)})
        )
    parts += v1.audit_against_v1(lake, audited)
    if len(with_rows) == 1 and not any(generation.rows for generation in others):
        # There are no other rows to compare: the scan has counted the whole population of streams.
        counted = result.tallies[judged[0]].get(STREAMS_UNIQUE)
        shared = InvariantTally(STREAMS_UNIQUE_ACROSS_GENERATIONS, counted.population if counted else 0, 0)
    else:
        shared = uniqueness.check_unique_across(workers, with_rows, others)
    parts.append(("", {STREAMS_UNIQUE_ACROSS_GENERATIONS: shared}))
    return [_mark_unknown(lake, line) for line in _findings(GENERATION_INVARIANTS, parts, _REASONS_UNCHECKED)]


def _read_with_others(
    lake: Lake, name: str, index: FingerprintIndex
) -> tuple[InventoryGeneration, list[InventoryGeneration], bool]:
    """Return a generation, all others with the rows to compare with, and whether it is the newest with rows."""
    mine = inventory.read_inventory_generation(lake, name)
    if mine.rows is not None and index.may_share_stream(mine.rows):
        index = uniqueness.EMPTY_INDEX  # the rows decide, and name the stream
    unread = index.generations - {mine.id}
    others = [
        other
        for other in inventory.read_representative_inventory(lake, {*unread, *([mine.id] if mine.id else [])})
        if other.name != mine.name
    ]
    with_rows = [other for other in others if other.rows is not None or other.id in unread]
    if mine.rows is None:
        return mine, others, False
    if mine.time_ms is None:
        return mine, others, not with_rows
    later = (other for other in with_rows if other.time_ms is not None and other.time_ms > mine.time_ms)
    return mine, others, next(later, None) is None


def _mark_unknown(lake: Lake, line: Finding) -> Finding:
    """Return the finding, marked unknown if nothing was checked because the needed tables were never exported."""
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
"""The tables that an invariant needs besides those that clients read; without all of them it cannot be judged."""

_REASONS_UNCHECKED: Mapping[str, str] = {
    RING_COVERED_ONCE: "no generation has rows",
    REFINES_VNODES: "no ring is known that the generation serves; import a ring snapshot",
    VNODE_COLOCATION: "no generation has rows with streams",
    SHARD_COLOCATION: "the shard order of no range is known; import V2 descriptions, or a ring snapshot",
    STREAM_FORMAT: "no generation has rows with streams",
    STREAMS_UNIQUE: "no generation has rows with streams",
    STREAMS_UNIQUE_ACROSS_GENERATIONS: "no generation has rows with streams",
    ROW_COUNT: "there are no V2 descriptions, whose rows have num_ranges",
    PUBLISHED_EQUALS_DESCRIPTION: "no generation is in two tables that could be compared",
    TIMESTAMP_COMPLETE: "no timestamp is published",
}


def _generation_tallies(
    workers: TaskRunner, generation: InventoryGeneration, pairs: Sequence[_ComparedPair], result: ScanResult
) -> _TalliesByInvariant:
    assert generation.rows is not None
    totals = _tallies_of_rows(workers, generation.rows, result)
    if generation.described is not None and generation.described is not generation.rows:
        starts = check_ring_coverage(generation.described.range_ends, generation.described.range_starts)
        totals |= sum_tallies([totals[RING_COVERED_ONCE], starts])
    if generation.inserted is not None:
        totals[ROW_COUNT] = _row_count_tally(generation.inserted)
    return totals | {PUBLISHED_EQUALS_DESCRIPTION: _comparison_tally(pairs, result)}


def _tallies_of_rows(workers: TaskRunner, rows: StoredGenerationRows, result: ScanResult) -> _TalliesByInvariant:
    """Return the tallies of the scan for a generation's rows, with the coverage of the ring.

    The scan has checked each row for repeated streams. Two rows can share a stream only if an index is wrong or both
    are the same range. If neither is so, streams_unique is proven; otherwise every stream is compared.
    """
    totals = dict(result.tallies[rows]) | {RING_COVERED_ONCE: check_ring_coverage(rows.range_ends, rows.range_starts)}
    if any(totals[name].violations for name in (STREAM_FORMAT, RING_COVERED_ONCE)):
        totals[STREAMS_UNIQUE] = uniqueness.check_unique_within(workers, rows)
    return totals


def _row_count_tally(inserted: StoredGenerationRows) -> InvariantTally:
    return check_row_count(len(inserted.range_ends), inserted.claims, "num_ranges")


def _compared_pairs(generation: InventoryGeneration) -> list[_ComparedPair]:
    """Return the pairs of tables that must agree about a generation."""
    pairs = []
    if generation.described is not None and generation.inserted is not None:
        pairs.append((generation.described, generation.inserted))
    source = generation.inserted or generation.described
    if source is not None and generation.published is not None:
        pairs.append((source, generation.published))
    return pairs


def _sharding(lake: Lake, generation: InventoryGeneration, ring: KnownNodes) -> OwnerSharding:
    """Return the sharding of a published generation's ranges, from its V1 cell or else from the ring."""
    if (
        generation.id is None
        and generation.time_ms is not None
        and (cell := _read_v1_description(lake, generation.time_ms)) is not None
    ):
        return OwnerSharding(cell.range_ends, cell.stream_counts, cell.ignore_msbs, exact=True)
    return OwnerSharding(ring.normal, ring.shard_counts, ring.ignore_msbs)


def _read_v1_description(lake: Lake, time_ms: Milliseconds) -> TopologyDescription | None:
    """Return a V1 description, or None if it is missing or unreadable, which other invariants report."""
    try:
        entries = generations.read_v1_cell(lake, time_ms)
        return None if entries is None else generations.parse_v1_cell(time_ms, entries)
    except StateError:
        return None


def _scan_requests(
    audited: Sequence[StoredGenerationRows],
    pairs: Sequence[_ComparedPair],
    shardings: Mapping[StoredGenerationRows | None, OwnerSharding] = MappingProxyType({}),
) -> list[ScanRequest]:
    compared = {rows for pair in pairs for rows in pair}
    as_sets = {rows for pair in pairs if any(len(one.unordered) for one in pair) for rows in pair}
    return [
        ScanRequest(
            rows,
            audited=rows in audited,
            compared=rows in compared,
            as_sets=rows in as_sets,
            sharding=shardings.get(rows) if rows.table is STREAMS_DESCRIPTIONS_V2 else None,
        )
        for rows in dict.fromkeys([*audited, *(rows for pair in pairs for rows in pair)])
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


def _refinement_tally(generation: InventoryGeneration, ring: KnownNodes, *, is_newest: bool) -> InvariantTally:
    """Check that a generation refines the rings that it serves, as far as they are known.

    The newest generation serves the current ring. One that a join introduced serves the joining node. One that has a
    topology description serves the nodes that own its ranges.
    """
    assert generation.rows is not None
    owners = () if generation.described is None else generation.described.owners
    tokens = [ring.tokens[owner] for owner in owners if owner in ring.tokens]
    if is_newest:
        tokens.append(ring.normal)
    if generation.id in ring.joined:
        tokens.append(ring.joined[generation.id])
    return check_refinement(
        generation.rows.range_ends, np.concatenate(tokens) if tokens else np.empty(0, dtype=np.int64)
    )


def _newest_generation(generations: Sequence[InventoryGeneration]) -> InventoryGeneration | None:
    """Return the generation that must refine the current ring: the last one with a time, or the only one."""
    with_rows = [generation for generation in generations if generation.rows is not None]
    timed = [generation for generation in with_rows if generation.time_ms is not None]
    return timed[-1] if timed else with_rows[0] if len(with_rows) == 1 else None


def _timestamp_tally(generation: InventoryGeneration) -> InvariantTally:
    """Check that the timestamp of a generation, if published, has its complete rows."""
    if not generation.listed:
        return InvariantTally(TIMESTAMP_COMPLETE, 0, 0)
    from cdc_platform.checks.models import PublishedTimestampModel

    due = generation.inserted or generation.described
    published = _EMPTY if generation.published is None else generation.published.range_ends
    described = published if due is None else due.range_ends
    columns = {
        "published": np.array([len(published)]),
        "described": np.array([len(described)]),
        "common": np.array([int(np.count_nonzero(np.isin(published, described)))]),
    }
    if not failed_rows(PublishedTimestampModel, columns):
        return InvariantTally(TIMESTAMP_COMPLETE, 1, 0)
    why = f"has {len(published)} streams rows that are not the {len(described)} described ones"
    if generation.published is None:
        why = "has no streams rows"
    time = "" if generation.time_ms is None else format_ms(generation.time_ms)
    return InvariantTally(TIMESTAMP_COMPLETE, 1, 1, generation.time_ms or 0, f"timestamp {time} {why}")


def _findings(
    invariants: Sequence[str],
    parts: Sequence[tuple[str, _TalliesByInvariant]],
    reasons_unchecked: Mapping[str, str] | str = "",
) -> list[Finding]:
    """Return one finding per invariant from the tallies of each generation.

    `reasons_unchecked` has the reason why nothing was checked, by invariant or for all.
    """
    return [
        finding_from_tallies(
            invariant,
            [(name, totals[invariant]) for name, totals in parts if invariant in totals],
            reasons_unchecked if isinstance(reasons_unchecked, str) else reasons_unchecked.get(invariant, ""),
        )
        for invariant in invariants
    ]


def _no_rows_reason(table: Table, generation_id: str) -> str:
    return f"{table.full_name} has no rows of generation {generation_id}"
