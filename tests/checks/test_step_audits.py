"""The audits of a generation's stages on Spark: sound rows pass, and a seeded violation fails its invariant alone."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.oracles import oracle
from support.worlds.invariant_seeds import (
    CROWDED,
    ONE,
    OTHER,
    OWNERS,
    TIME_MS,
    Row,
    SeededLake,
    generation_rows,
    populations,
    violations,
    with_low_bits,
    with_token,
)

from cdc_platform.checks import (
    DESCRIPTION_INVARIANTS,
    INSERTED_INVARIANTS,
    PUBLISHED_EQUALS_DESCRIPTION,
    PUBLISHED_INVARIANTS,
    STREAM_FORMAT,
    TIMESTAMP_COMPLETE,
    VNODE_COLOCATION,
    Finding,
    InventoryGeneration,
    audit_across,
    audit_description,
    audit_inserted,
    audit_published,
    audit_timestamps,
    judge_findings,
    uniqueness,
)
from cdc_platform.checks.invariants import (
    REFINES_VNODES,
    RING_COVERED_ONCE,
    ROW_COUNT,
    SHARD_COLOCATION,
    STREAMS_UNIQUE,
    STREAMS_UNIQUE_ACROSS_GENERATIONS,
)
from cdc_platform.clock import Milliseconds
from cdc_platform.delta import Batches, TaskRunner, read_file_batches
from cdc_platform.errors import NotFound, StateError
from cdc_platform.ring import Node, Ring
from cdc_platform.tables import GENERATION_DESCRIPTIONS_V2, STREAMS_DESCRIPTIONS_V2

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


InOrder = Callable[[Sequence[InventoryGeneration]], Collection[InventoryGeneration]]
STREAMS = sum(count for count, _ in OWNERS.values())
Damage = Callable[[list[Row]], Any]


def ring_of(tokens: list[int]) -> Ring:
    """Return a ring of one node; the audit uses only its tokens."""
    return Ring.of([Node(uuid.UUID(int=1), tuple(tokens), 4, 12)]) if tokens else Ring.of([])


AFTER = ring_of(sorted(OWNERS))
BEFORE = ring_of(sorted(OWNERS)[::2])


def audit_seeded(workers: TaskRunner, seeded: SeededLake) -> list[Finding]:
    """Audit the description that was seeded."""
    return audit_description(workers, seeded.lake, ONE, BEFORE, AFTER)


def passes(findings: list[Finding], expected: tuple[str, ...]) -> bool:
    """Return True if every invariant passes."""
    return all(line.passed for line in judge_findings(findings, expected))


def count_jobs(spark: SparkSession, name: str, run: Callable[[], object]) -> int:
    """Return how many Spark jobs a function runs."""
    context = spark.sparkContext
    context.setJobGroup(name, name)
    try:
        run()
        return len(context.statusTracker().getJobIdsForGroup(name))
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)  # pyrefly: ignore[bad-argument-type]


@pytest.mark.spark
def test_a_sound_description_passes_in_one_job(spark: SparkSession, on_spark: TaskRunner, seeded: SeededLake) -> None:
    """Every invariant has its population, and the rows are read once."""
    seeded.described(generation_rows())
    seeded.described(generation_rows(seed=9), OTHER)
    findings: list[Finding] = []
    assert count_jobs(spark, "description", lambda: findings.extend(audit_seeded(on_spark, seeded))) == 1
    assert passes(findings, DESCRIPTION_INVARIANTS)
    assert populations(findings) == {
        RING_COVERED_ONCE: 6,
        REFINES_VNODES: 6,
        VNODE_COLOCATION: STREAMS,
        SHARD_COLOCATION: 4 + 4 + 2 + 1 + 1 + 8,
        STREAM_FORMAT: STREAMS,
        STREAMS_UNIQUE: STREAMS,
        ROW_COUNT: 1,
    }


def start_later(rows: list[Row]) -> None:
    """Start a range after the end of the previous one."""
    rows[2]["range_start"] += 1


def leave_range(rows: list[Row]) -> None:
    """Move a stream of the only shard of its range into another range."""
    rows[4]["streams"][0] = with_token(rows[4]["streams"][0], -5)


def leave_shard(rows: list[Row]) -> None:
    """Give a stream the token of its neighbour."""
    rows[1]["streams"][2] = with_token(rows[1]["streams"][2], oracle.unpack_stream_id(rows[1]["streams"][1])[0])


def duplicate_idle_stream(rows: list[Row]) -> None:
    """Give two shards that own nothing the same stream."""
    rows[CROWDED]["streams"][7] = rows[CROWDED]["streams"][6]


def replace(number: int, stream: int, value: bytes | None) -> Damage:
    """Return a change that replaces a stream by any value."""
    return lambda rows: rows[number]["streams"].__setitem__(stream, value)


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (start_later, {RING_COVERED_ONCE: 1}),
        (leave_range, {VNODE_COLOCATION: 1}),
        (leave_shard, {SHARD_COLOCATION: 1}),
        (duplicate_idle_stream, {STREAMS_UNIQUE: 1}),
        (lambda rows: rows[1].update(ignore_msb=None), {SHARD_COLOCATION: 4}),
        (lambda rows: rows[1].update(streams=[]), {STREAM_FORMAT: 1}),
        (lambda rows: rows[1].update(streams=None), {STREAM_FORMAT: 1}),
        (replace(1, 0, None), {STREAM_FORMAT: 1}),
        (replace(1, 0, b""), {STREAM_FORMAT: 1}),
        (replace(1, 0, bytes(17)), {STREAM_FORMAT: 1}),
    ],
)
def test_a_seeded_violation_trips_its_invariant_alone(
    either: TaskRunner, seeded: SeededLake, damage: Damage, found: dict[str, int]
) -> None:
    """One damage in the description fails one invariant, whatever rows it affects."""
    rows = generation_rows()
    damage(rows)
    seeded.described(rows)
    assert violations(audit_seeded(either, seeded)) == found


def test_a_token_of_either_ring_that_ends_no_range_trips_refinement_alone(
    workers: TaskRunner, seeded: SeededLake
) -> None:
    """The ring before the join counts as much as the ring after it."""
    seeded.described(generation_rows())
    before = ring_of([*sorted(OWNERS)[:3], 17])
    findings = audit_description(workers, seeded.lake, ONE, before, AFTER)
    assert violations(findings) == {REFINES_VNODES: 1}
    assert populations(findings)[REFINES_VNODES] == 7


def test_an_extra_range_trips_the_row_count_alone(workers: TaskRunner, seeded: SeededLake) -> None:
    """More ranges than tokens still refine the vnodes."""
    seeded.described(generation_rows())
    fewer = ring_of(sorted(OWNERS)[1:])
    assert violations(audit_description(workers, seeded.lake, ONE, BEFORE.of([]), fewer)) == {ROW_COUNT: 1}


def test_a_stream_in_two_ranges_is_found(workers: TaskRunner, seeded: SeededLake) -> None:
    """A stream in two ranges has a wrong index in one of them, which triggers a comparison of all streams."""
    rows = generation_rows()
    rows[1]["streams"][0] = rows[2]["streams"][0]
    seeded.described(rows)
    findings = audit_seeded(workers, seeded)
    assert violations(findings)[STREAMS_UNIQUE] == 1
    assert populations(findings)[STREAMS_UNIQUE] == STREAMS
    sample = next(line.sample for line in findings if line.invariant == STREAMS_UNIQUE)
    assert sample == f"stream 0x{rows[2]['streams'][0].hex()} comes more than once"


def test_a_wrong_index_alone_does_not_trip_uniqueness(workers: TaskRunner, seeded: SeededLake) -> None:
    """The full comparison finds that all streams differ."""
    rows = generation_rows()
    rows[1]["streams"][0] = with_low_bits(rows[1]["streams"][0], index=2)
    seeded.described(rows)
    findings = audit_seeded(workers, seeded)
    assert violations(findings) == {STREAM_FORMAT: 1}
    assert populations(findings)[STREAMS_UNIQUE] == STREAMS


def test_a_duplicate_row_breaks_several_invariants(workers: TaskRunner, seeded: SeededLake) -> None:
    """Delta enforces no key, so the coverage, the row count and the streams all show a duplicate row."""
    rows = generation_rows()
    seeded.described([*rows, rows[1]])
    violated = violations(audit_seeded(workers, seeded))
    assert violated == {RING_COVERED_ONCE: 1, STREAMS_UNIQUE: 4, ROW_COUNT: 1}


def test_a_null_range_end_is_a_violation(workers: TaskRunner, seeded: SeededLake) -> None:
    """A null range end is a violation and does not make the audit itself fail."""
    rows = generation_rows()
    rows[0]["range_end"] = None
    seeded.described(rows)
    assert violations(audit_seeded(workers, seeded))[RING_COVERED_ONCE] >= 1


def test_no_description_fails_everything(workers: TaskRunner, seeded: SeededLake) -> None:
    """An empty description fails every invariant, and the sample names the empty table."""
    findings = audit_seeded(workers, seeded)
    assert {line.invariant for line in findings if line.population == 0} == set(DESCRIPTION_INVARIANTS) - {ROW_COUNT}
    assert not any(line.passed for line in judge_findings(findings, DESCRIPTION_INVARIANTS))
    assert "platform.topology_descriptions has no rows" in findings[0].sample


@pytest.mark.spark
def test_a_sound_insert_passes_in_one_job(spark: SparkSession, on_spark: TaskRunner, seeded: SeededLake) -> None:
    """One pass audits V2 rows and compares them with the description."""
    rows = generation_rows()
    seeded.described(rows)
    seeded.inserted(rows)
    findings: list[Finding] = []
    assert count_jobs(spark, "inserted", lambda: findings.extend(audit_inserted(on_spark, seeded.lake, ONE))) == 1
    assert passes(findings, INSERTED_INVARIANTS)
    assert populations(findings)[PUBLISHED_EQUALS_DESCRIPTION] == 6


@pytest.mark.parametrize("claim", [5, 7, -6, None])
def test_a_wrong_num_ranges_trips_the_row_count_alone(
    workers: TaskRunner, seeded: SeededLake, claim: int | None
) -> None:
    """The claimed number of ranges has to be the number of rows."""
    seeded.described(generation_rows())
    seeded.inserted(generation_rows(), num_ranges=claim)
    assert violations(audit_inserted(workers, seeded.lake, ONE)) == {ROW_COUNT: 1}


def change_random_bits(rows: list[Row]) -> None:
    """Replace a stream by one with other random bits."""
    token, _, index, random = oracle.unpack_stream_id(rows[1]["streams"][0])
    rows[1]["streams"][0] = oracle.pack_stream_id(token, index, random ^ 1)


def swap_idle_shards(rows: list[Row]) -> None:
    """Swap the streams of two shards that own nothing."""
    streams = rows[CROWDED]["streams"]
    streams[6], streams[7] = streams[7], streams[6]


@pytest.mark.parametrize("damage", [change_random_bits, swap_idle_shards, lambda rows: rows[4].update(ignore_msb=3)])
def test_v2_rows_that_differ_from_the_description_trip_the_comparison_alone(
    workers: TaskRunner, seeded: SeededLake, damage: Damage
) -> None:
    """Streams, their order, and ignore_msb are compared."""
    rows = generation_rows()
    seeded.described(rows)
    changed = generation_rows()
    damage(changed)
    seeded.inserted(changed)
    findings = audit_inserted(workers, seeded.lake, ONE)
    assert violations(findings) == {PUBLISHED_EQUALS_DESCRIPTION: 1}


def test_an_insert_without_a_description_has_nothing_to_compare(workers: TaskRunner, seeded: SeededLake) -> None:
    """The comparison fails because there are no rows; all other invariants are checked."""
    seeded.inserted(generation_rows())
    failed = [
        line.invariant
        for line in judge_findings(audit_inserted(workers, seeded.lake, ONE), INSERTED_INVARIANTS)
        if not line.passed
    ]
    assert failed == [PUBLISHED_EQUALS_DESCRIPTION]
    assert not passes(audit_inserted(workers, seeded.lake, OTHER), INSERTED_INVARIANTS)


@pytest.mark.spark
def test_published_rows_equal_the_descriptions_in_one_job(
    spark: SparkSession, on_spark: TaskRunner, seeded: SeededLake
) -> None:
    """The order of streams is compared; ignore_msb is not published."""
    seeded.whole(generation_rows())
    findings: list[Finding] = []
    assert count_jobs(spark, "published", lambda: findings.extend(audit_published(on_spark, seeded.lake, ONE))) == 1
    assert passes(findings, PUBLISHED_INVARIANTS)
    assert populations(findings) == {PUBLISHED_EQUALS_DESCRIPTION: 6}


@pytest.mark.parametrize(
    ("damage", "population", "wrong"),
    [
        (change_random_bits, 6, 1),
        (swap_idle_shards, 6, 1),
        (lambda rows: rows[1]["streams"].reverse(), 6, 1),
        (lambda rows: rows[1]["streams"].pop(), 6, 1),
        (lambda rows: rows[1].update(streams=None), 6, 1),
        (lambda rows: rows.pop(), 6, 1),
        (lambda rows: rows.append(rows[0] | {"range_end": 77}), 7, 1),
        (lambda rows: rows.append(rows[0]), 6, 1),
        (lambda rows: rows[1].update(range_end=-1001), 7, 2),
    ],
)
def test_published_rows_that_differ_are_counted(
    workers: TaskRunner, seeded: SeededLake, damage: Damage, population: int, wrong: int
) -> None:
    """A row that is missing, extra, duplicate, or has other streams or another order is a violation."""
    rows = generation_rows()
    seeded.inserted(rows)
    seeded.introduced()
    changed = generation_rows()
    damage(changed)
    seeded.published(changed)
    findings = audit_published(workers, seeded.lake, ONE)
    assert (populations(findings), violations(findings)) == (
        {PUBLISHED_EQUALS_DESCRIPTION: population},
        {PUBLISHED_EQUALS_DESCRIPTION: wrong},
    )


def test_the_order_of_unordered_ranges_is_not_compared(workers: TaskRunner, seeded: SeededLake) -> None:
    """Unordered ranges are compared as sets; elsewhere the order counts."""
    seeded.inserted(generation_rows())
    seeded.introduced()
    changed = generation_rows()
    for number in (1, 5):
        changed[number]["streams"].reverse()
    seeded.published(changed)
    assert violations(audit_published(workers, seeded.lake, ONE)) == {PUBLISHED_EQUALS_DESCRIPTION: 2}
    seeded.unordered(STREAMS_DESCRIPTIONS_V2, "2023-11-14T22:13:20.123Z", -1000)
    assert violations(audit_published(workers, seeded.lake, ONE)) == {PUBLISHED_EQUALS_DESCRIPTION: 1}
    seeded.unordered(GENERATION_DESCRIPTIONS_V2, ONE, 2**62)
    assert violations(audit_published(workers, seeded.lake, ONE)) == {}


def test_nothing_published_fails(workers: TaskRunner, seeded: SeededLake) -> None:
    """Neither a missing timestamp nor missing rows pass."""
    assert not passes(audit_published(workers, seeded.lake, ONE), PUBLISHED_INVARIANTS)
    seeded.introduced()
    seeded.inserted(generation_rows())
    findings = audit_published(workers, seeded.lake, ONE)
    assert not passes(findings, PUBLISHED_INVARIANTS)
    assert "cdc_streams_descriptions_v2 has no rows" in findings[0].sample


def test_a_single_generation_shares_no_stream(workers: TaskRunner, seeded: SeededLake) -> None:
    """A single generation has nothing to compare with, and the population is its streams."""
    seeded.described(generation_rows())
    findings = audit_across(workers, seeded.lake, ONE)
    assert (populations(findings), violations(findings)) == ({STREAMS_UNIQUE_ACROSS_GENERATIONS: STREAMS}, {})


@pytest.mark.spark
def test_generations_on_one_ring_share_no_stream(spark: SparkSession, on_spark: TaskRunner, seeded: SeededLake) -> None:
    """Tokens and indexes are the same on one ring, and only random bits differ. The audit takes one job."""
    seeded.described(generation_rows())
    seeded.inserted(generation_rows(seed=2), OTHER)
    seeded.published(generation_rows(seed=3))
    findings: list[Finding] = []
    assert count_jobs(spark, "across", lambda: findings.extend(audit_across(on_spark, seeded.lake, ONE))) == 1
    assert (populations(findings), violations(findings)) == ({STREAMS_UNIQUE_ACROSS_GENERATIONS: STREAMS}, {})


@pytest.fixture(params=[1 << 14, 5], ids=["in one part", "in parts"])
def parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare the streams that two generations may share all at once, or in parts."""
    monkeypatch.setattr(uniqueness, "_RANGES_A_TASK", request.param)


@pytest.mark.parametrize("in_order", [lambda _: (), list], ids=["of any order", "in order"])
@pytest.mark.parametrize("where", ["described", "inserted", "published"])
def test_a_stream_of_another_generation_is_found_in_any_table(
    workers: TaskRunner, seeded: SeededLake, parts: None, where: str, in_order: InOrder
) -> None:
    """Each shared stream counts once, however many generations have it; the sample names both generations."""
    rows = generation_rows()
    seeded.described(rows)
    others = generation_rows(seed=2)
    others[1]["streams"][2:] = rows[1]["streams"][2:]
    getattr(seeded, where)(others, **({} if where == "published" else {"generation": OTHER}))
    findings = audit_across(workers, seeded.lake, ONE, in_order)
    assert (populations(findings), violations(findings)) == (
        {STREAMS_UNIQUE_ACROSS_GENERATIONS: STREAMS},
        {STREAMS_UNIQUE_ACROSS_GENERATIONS: 2},
    )
    assert ONE in findings[0].sample
    assert ("2023-11-14T22:13:20.123Z" if where == "published" else OTHER) in findings[0].sample


def test_a_stream_outside_its_range_is_found_in_another_generation(
    workers: TaskRunner, seeded: SeededLake, parts: None
) -> None:
    """For a stream outside its own range, no range of another generation can be skipped."""
    rows = generation_rows()
    seeded.described(rows)
    # No range of this other ring overlaps the range with the same index, but one contains a stream of this generation.
    others = generation_rows(dict.fromkeys(range(100, 106), (2, 0)), seed=2)
    others[5]["streams"][1] = rows[1]["streams"][0]
    seeded.described(others, OTHER)
    assert violations(audit_across(workers, seeded.lake, ONE)) == {STREAMS_UNIQUE_ACROSS_GENERATIONS: 1}
    assert violations(audit_across(workers, seeded.lake, OTHER)) == {STREAMS_UNIQUE_ACROSS_GENERATIONS: 1}


@pytest.mark.parametrize("own", [False, True], ids=["the others", "all"])
@pytest.mark.parametrize(("ends", "shared"), [(sorted(OWNERS), 2), (range(100, 106), 0)])
def test_only_contested_ranges_of_ordered_generations_are_read(
    workers: TaskRunner,
    seeded: SeededLake,
    monkeypatch: pytest.MonkeyPatch,
    ends: Sequence[int],
    shared: int,
    own: bool,
) -> None:
    """Contested ranges are read twice, others not at all; a generation already audited is not read for itself."""
    read: list[int] = []

    def counted(path: str, columns: Sequence[str], only: tuple[str, Any] | None = None) -> Batches:
        for batch in read_file_batches(path, columns, only):
            if list(columns) == ["range_end", "streams"]:
                read.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(uniqueness, "read_file_batches", counted)
    rows = generation_rows()
    seeded.described(rows)
    others = generation_rows(dict.fromkeys(ends, (2, 0)) if not shared else OWNERS, seed=2)
    if shared:
        others[1]["streams"][2:] = rows[1]["streams"][2:]
    seeded.described(others, OTHER)

    def of_others(candidates: Sequence[InventoryGeneration]) -> list[InventoryGeneration]:
        return [candidate for candidate in candidates if candidate.name != ONE]

    findings = audit_across(workers, seeded.lake, ONE, of_others, described=own)
    assert sum(violations(findings).values()) == shared
    assert populations(findings) == {STREAMS_UNIQUE_ACROSS_GENERATIONS: STREAMS}
    own_rows = 0 if own else len(rows)
    assert sum(read) == own_rows + (len(rows) + 2 * len(others) if shared else 2)


def test_an_unknown_generation_cannot_be_compared(workers: TaskRunner, seeded: SeededLake) -> None:
    """An unknown generation raises NotFound."""
    with pytest.raises(NotFound, match=OTHER):
        audit_across(workers, seeded.lake, OTHER)


@pytest.mark.spark
def test_tables_with_features_that_hide_rows_are_refused(
    spark: SparkSession, on_spark: TaskRunner, seeded: SeededLake
) -> None:
    """With deletion vectors a file contains rows that the table does not have."""
    seeded.described(generation_rows())
    path = seeded.lake.path(GENERATION_DESCRIPTIONS_V2)
    frame = spark.createDataFrame([(ONE, 1)], "id string, range_end bigint")
    frame.write.format("delta").partitionBy("id").option("delta.enableDeletionVectors", "true").save(path)
    with pytest.raises(StateError, match="deletionVectors"):
        audit_inserted(on_spark, seeded.lake, ONE)


def test_every_published_timestamp_has_its_rows(seeded: SeededLake) -> None:
    """The population is the timestamps; no Spark session is needed."""
    seeded.whole(generation_rows())
    seeded.whole(generation_rows(seed=2), OTHER, Milliseconds(TIME_MS + 1))
    findings = audit_timestamps(seeded.lake)
    assert (populations(findings), violations(findings)) == ({TIMESTAMP_COMPLETE: 2}, {})
    assert populations(audit_timestamps(seeded.lake, ONE)) == {TIMESTAMP_COMPLETE: 1}


def test_a_timestamp_without_its_complete_rows_is_a_violation(seeded: SeededLake) -> None:
    """Missing all rows, missing one, or having one too many is a violation; an unlisted generation does not count."""
    seeded.listed()
    seeded.introduced()
    assert violations(audit_timestamps(seeded.lake)) == {TIMESTAMP_COMPLETE: 1}
    seeded.published(generation_rows()[:5])
    assert violations(audit_timestamps(seeded.lake)) == {}
    seeded.inserted(generation_rows())
    findings = audit_timestamps(seeded.lake)
    assert violations(findings) == {TIMESTAMP_COMPLETE: 1}
    assert "timestamp 2023-11-14T22:13:20.123Z has 5 streams rows" in findings[0].sample
    seeded.published(generation_rows()[5:])
    seeded.whole(generation_rows(seed=2)[:3], OTHER, Milliseconds(TIME_MS + 1))
    assert violations(audit_timestamps(seeded.lake)) == {}
    seeded.published(generation_rows(seed=2)[3:4], Milliseconds(TIME_MS + 1))
    assert violations(audit_timestamps(seeded.lake, OTHER)) == {TIMESTAMP_COMPLETE: 1}
    assert violations(audit_timestamps(seeded.lake, ONE)) == {}


def test_no_timestamp_fails(seeded: SeededLake) -> None:
    """Without a timestamp nothing is checked, which fails."""
    findings = audit_timestamps(seeded.lake)
    assert findings == [Finding(TIMESTAMP_COMPLETE, 0, 0, "nothing was checked: no timestamp is published")]


def test_rows_in_many_batches_and_generations_are_counted_once(workers: TaskRunner, seeded: SeededLake) -> None:
    """More rows than a batch takes, in two files beside another generation, are counted once."""
    ends = (np.arange(3000) * 2**50).tolist()
    rows = generation_rows({end: (1 + end // 2**50 % 2, 12) for end in ends})
    rows[2500]["streams"][0] = with_low_bits(rows[2500]["streams"][0], version=9)
    seeded.described(rows[:1700])
    seeded.described(rows[1700:])
    seeded.described(generation_rows(), OTHER)
    findings = audit_description(workers, seeded.lake, ONE, ring_of(ends[:5]), ring_of(ends))
    assert violations(findings) == {STREAM_FORMAT: 1}
    assert populations(findings)[STREAM_FORMAT] == 4500
    assert next(line for line in findings if line.violations).sample.startswith(f"range end {ends[2500]}, stream 0 ")
