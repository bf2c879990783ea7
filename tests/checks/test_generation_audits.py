"""The audit of the whole lake: each invariant once over all generations; missing imports fail instead of passing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.worlds.invariant_seeds import (
    ONE,
    OTHER,
    OWNERS,
    TIME_MS,
    SeededLake,
    generation_rows,
    populations,
    violations,
    with_low_bits,
)

from cdc_platform.checks import (
    GENERATION_INVARIANTS,
    PUBLISHED_EQUALS_DESCRIPTION,
    STREAM_FORMAT,
    TIMESTAMP_COMPLETE,
    VNODE_COLOCATION,
    Finding,
    audit_lake,
    judge_findings,
)
from cdc_platform.checks.invariants import (
    REFINES_VNODES,
    RING_COVERED_ONCE,
    ROW_COUNT,
    SHARD_COLOCATION,
    STREAMS_UNIQUE_ACROSS_GENERATIONS,
)
from cdc_platform.clock import Milliseconds, datetime_from_ms
from cdc_platform.delta import Lake, TaskRunner
from cdc_platform.errors import NotFound
from cdc_platform.spark import frames, table_to_spark_schema
from cdc_platform.tables import GENERATION_DESCRIPTIONS_V2, STREAMS_DESCRIPTIONS_V2

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


STREAMS = sum(count for count, _ in OWNERS.values())
SMALLER = {token: OWNERS[token] for token in sorted(OWNERS)[1:]}
TIME = "2023-11-14T22:13:20.123Z"


def failed(findings: list[Finding]) -> list[str]:
    """Return the invariants that are judged to have failed."""
    return [line.invariant for line in judge_findings(findings) if not line.passed]


def sample(findings: list[Finding], invariant: str) -> str:
    """Return the sample of an invariant."""
    return next(line.sample for line in findings if line.invariant == invariant)


def seed_two_joins(seeded: SeededLake) -> None:
    """Seed two joins, one after the other, with each generation in every table."""
    first, *rest = sorted(OWNERS)
    seeded.whole(generation_rows(SMALLER), ONE, TIME_MS)
    seeded.event(rest, ONE, number=1)
    seeded.node(rest, number=1)
    seeded.whole(generation_rows(seed=2, of_second=(first,)), OTHER, Milliseconds(TIME_MS + 1000))
    seeded.event([first], OTHER, number=2)
    seeded.node([first], number=2)


@pytest.mark.spark
def test_a_sound_lake_passes_in_three_jobs(spark: SparkSession, on_spark: TaskRunner, seeded: SeededLake) -> None:
    """All invariants are reported once and in order, with the populations of both generations."""
    seed_two_joins(seeded)
    context = spark.sparkContext
    context.setJobGroup("lake", "lake")
    findings = audit_lake(on_spark, seeded.lake)
    jobs = len(context.statusTracker().getJobIdsForGroup("lake"))
    context.setLocalProperty("spark.jobGroup.id", None)  # pyrefly: ignore[bad-argument-type]
    assert jobs <= 3
    assert [line.invariant for line in findings] == list(GENERATION_INVARIANTS)
    assert failed(findings) == []
    streams = STREAMS + STREAMS - 4
    assert populations(findings) == {
        **dict.fromkeys(GENERATION_INVARIANTS, streams),
        RING_COVERED_ONCE: 2 * 11,
        REFINES_VNODES: 11,
        SHARD_COLOCATION: populations(findings)[SHARD_COLOCATION],
        ROW_COUNT: 2,
        PUBLISHED_EQUALS_DESCRIPTION: 2 * 11,
        TIMESTAMP_COMPLETE: 2,
    }


@pytest.mark.parametrize("name", [ONE, TIME])
def test_one_generation_is_audited_by_itself(workers: TaskRunner, seeded: SeededLake, name: str) -> None:
    """A generation is selected by its UUID or its time; the others serve only to compare streams."""
    seed_two_joins(seeded)
    findings = audit_lake(workers, seeded.lake, name)
    assert failed(findings) == []
    assert (
        populations(findings)[STREAM_FORMAT] == populations(findings)[STREAMS_UNIQUE_ACROSS_GENERATIONS] == STREAMS - 4
    )
    assert populations(findings)[TIMESTAMP_COMPLETE] == 1


def test_samples_name_the_generation_and_the_row(workers: TaskRunner, seeded: SeededLake) -> None:
    """With several generations, the sample names the one that is wrong."""
    seeded.whole(generation_rows())
    rows = generation_rows(seed=2)
    rows[1]["streams"][0] = with_low_bits(rows[1]["streams"][0], version=0)
    seeded.whole(rows, OTHER, Milliseconds(TIME_MS + 1))
    seeded.node(sorted(OWNERS))
    findings = audit_lake(workers, seeded.lake)
    assert violations(findings) == {STREAM_FORMAT: 1}
    assert sample(findings, STREAM_FORMAT).startswith(f"generation {OTHER}: range end -1000, stream 0 (0x")
    assert failed(audit_lake(workers, seeded.lake, ONE)) == []


def test_the_newest_generation_has_to_refine_the_current_ring(workers: TaskRunner, seeded: SeededLake) -> None:
    """Older generations have to refine only the rings that they were made for; nodes that left or wait do not count."""
    seed_two_joins(seeded)
    seeded.node([12345], number=3, status="LEFT")
    assert failed(audit_lake(workers, seeded.lake)) == []
    seeded.node([23456], number=4)
    findings = audit_lake(workers, seeded.lake)
    assert violations(findings) == {REFINES_VNODES: 1}
    assert sample(findings, REFINES_VNODES) == f"generation {OTHER}: token 23456 of the ring ends no range"


def test_a_generation_has_to_refine_the_node_that_introduced_it(workers: TaskRunner, seeded: SeededLake) -> None:
    """A generation has to refine the node that introduced it, even when it is no longer the newest."""
    seeded.whole(generation_rows(), ONE, TIME_MS)
    seeded.event([77], ONE, number=5)
    seeded.whole(generation_rows(seed=2), OTHER, Milliseconds(TIME_MS + 1))
    findings = audit_lake(workers, seeded.lake)
    assert violations(findings) == {REFINES_VNODES: 1}
    assert sample(findings, REFINES_VNODES) == f"generation {ONE}: token 77 of the ring ends no range"


def test_a_generation_has_to_refine_the_nodes_that_own_its_ranges(workers: TaskRunner, seeded: SeededLake) -> None:
    """The tokens of every owner in the topology description count, whatever the node's current status."""
    seeded.whole(generation_rows())
    seeded.node([*OWNERS, 77, 78], status="LEFT")
    assert violations(audit_lake(workers, seeded.lake)) == {REFINES_VNODES: 2}


def test_disagreeing_tables_are_found(workers: TaskRunner, seeded: SeededLake) -> None:
    """The topology description, the inserted rows and the published rows have to be equal."""
    rows = generation_rows()
    seeded.described(generation_rows(seed=2))
    seeded.inserted(rows)
    seeded.introduced()
    seeded.published(rows[1:])
    findings = audit_lake(workers, seeded.lake)
    assert violations(findings) == {PUBLISHED_EQUALS_DESCRIPTION: 7}
    assert "platform.topology_descriptions" in sample(findings, PUBLISHED_EQUALS_DESCRIPTION)


def test_streams_shared_by_two_generations_are_counted_once(workers: TaskRunner, seeded: SeededLake) -> None:
    """A generation copied under another ID shares all of its streams."""
    seeded.whole(generation_rows())
    seeded.whole(generation_rows(), OTHER, Milliseconds(TIME_MS + 1))
    assert violations(audit_lake(workers, seeded.lake)) == {STREAMS_UNIQUE_ACROSS_GENERATIONS: STREAMS}


def test_imported_v2_descriptions_are_audited(workers: TaskRunner, seeded: SeededLake) -> None:
    """Without a topology description, ring or published rows, the checks that cannot run fail and state the reason."""
    seeded.inserted(generation_rows())
    findings = audit_lake(workers, seeded.lake)
    assert violations(findings) == {}
    assert failed(findings) == [REFINES_VNODES, PUBLISHED_EQUALS_DESCRIPTION, TIMESTAMP_COMPLETE]
    assert "import a ring snapshot" in sample(findings, REFINES_VNODES)
    seeded.node(sorted(OWNERS))
    assert REFINES_VNODES not in failed(audit_lake(workers, seeded.lake))


def test_imported_streams_alone_are_audited(workers: TaskRunner, seeded: SeededLake) -> None:
    """Shards are judged where the ring shows the sharding of the range's owner, and where there is only one."""
    seeded.published(generation_rows())
    seeded.listed()
    findings = audit_lake(workers, seeded.lake)
    assert violations(findings) == {}
    assert failed(findings) == [REFINES_VNODES, SHARD_COLOCATION, ROW_COUNT, PUBLISHED_EQUALS_DESCRIPTION]
    assert populations(findings)[SHARD_COLOCATION] == 1
    assert "not judged: the shard order of no range is known" in sample(findings, SHARD_COLOCATION)
    seeded.node([-(2**62), -1000])
    seeded.node([0, 3], number=2)  # two shards, unlike the range that ends with 3
    ringed = audit_lake(workers, seeded.lake, TIME)
    assert violations(ringed) == {}
    assert populations(ringed)[SHARD_COLOCATION] == 1 + 4 + 4 + 2
    assert SHARD_COLOCATION in failed(ringed)
    assert "could not be judged: the owner of their range is not known" in sample(ringed, SHARD_COLOCATION)


def test_complete_imports_pass_with_their_ring(workers: TaskRunner, seeded: SeededLake) -> None:
    """V2 descriptions, streams, timestamps and a ring snapshot leave nothing unchecked."""
    rows = generation_rows()
    seeded.inserted(rows)
    seeded.published(rows)
    seeded.introduced()
    seeded.listed()
    seeded.node(sorted(OWNERS))
    assert failed(audit_lake(workers, seeded.lake)) == []


def test_unordered_ranges_are_excluded(workers: TaskRunner, seeded: SeededLake) -> None:
    """Ranges marked as unordered are known to have another order, which is no violation."""
    rows = generation_rows()
    rows[5]["streams"].reverse()
    seeded.inserted(rows)
    seeded.introduced()
    seeded.published(generation_rows())
    assert set(violations(audit_lake(workers, seeded.lake))) == {SHARD_COLOCATION, PUBLISHED_EQUALS_DESCRIPTION}
    before = populations(audit_lake(workers, seeded.lake))
    seeded.unordered(GENERATION_DESCRIPTIONS_V2, ONE, 2**62)
    findings = audit_lake(workers, seeded.lake)
    assert violations(findings) == {}
    assert populations(findings)[SHARD_COLOCATION] < before[SHARD_COLOCATION]
    assert populations(findings)[VNODE_COLOCATION] == before[VNODE_COLOCATION]


def test_unordered_published_streams_are_excluded(workers: TaskRunner, seeded: SeededLake) -> None:
    """Published rows are marked under their time."""
    rows = generation_rows()
    rows[5]["streams"].reverse()
    seeded.published(rows)
    seeded.node(sorted(OWNERS)[5:])
    assert set(violations(audit_lake(workers, seeded.lake))) == {SHARD_COLOCATION}
    seeded.unordered(STREAMS_DESCRIPTIONS_V2, TIME, 2**62)
    assert violations(audit_lake(workers, seeded.lake)) == {}


def test_legacy_streams_are_violations_of_the_format(workers: TaskRunner, seeded: SeededLake) -> None:
    """Streams from before the version field have a token, and no other field to rely on."""
    rows = generation_rows()
    for row in rows:
        row["streams"] = [with_low_bits(stream, version=7) for stream in row["streams"]]
    seeded.inserted(rows)
    findings = audit_lake(workers, seeded.lake)
    assert violations(findings) == {STREAM_FORMAT: STREAMS}
    assert "legacy" in sample(findings, STREAM_FORMAT)


def test_a_timestamp_without_rows_is_found(workers: TaskRunner, seeded: SeededLake) -> None:
    """A generation that has only its timestamp is audited for that alone."""
    seeded.listed()
    findings = audit_lake(workers, seeded.lake)
    assert violations(findings) == {TIMESTAMP_COMPLETE: 1}
    assert f"timestamp {TIME} has no streams rows" in sample(findings, TIMESTAMP_COMPLETE)
    assert failed(findings) == list(GENERATION_INVARIANTS)


def test_an_unknown_generation_is_not_found(workers: TaskRunner, seeded: SeededLake) -> None:
    """An unknown generation raises NotFound in an empty lake as well as in one that has others."""
    with pytest.raises(NotFound, match="no generation"):
        audit_lake(workers, seeded.lake)
    seeded.inserted(generation_rows())
    for name in (OTHER, TIME, "yesterday"):
        with pytest.raises(NotFound, match=name):
            audit_lake(workers, seeded.lake, name)


@pytest.mark.spark
def test_tables_that_spark_wrote_under_a_path_with_spaces_are_audited(
    spark: SparkSession, on_spark: TaskRunner, tmp_path: Path
) -> None:
    """Files are found by name, whichever program wrote them and whatever characters the path has."""
    seeded = SeededLake(Lake(tmp_path / "a b é"))
    rows = generation_rows()
    when = datetime_from_ms(TIME_MS)
    published = [(when, row["range_end"], row["streams"]) for row in rows]
    frame = spark.createDataFrame(published, table_to_spark_schema(STREAMS_DESCRIPTIONS_V2))
    frames.replace_partition(on_spark, seeded.lake, STREAMS_DESCRIPTIONS_V2, frame, {"time": when})
    inserted = [(ONE, row["range_end"], row["ignore_msb"], len(rows), row["streams"]) for row in rows]
    frame = spark.createDataFrame(inserted, table_to_spark_schema(GENERATION_DESCRIPTIONS_V2))
    frames.replace_partition(on_spark, seeded.lake, GENERATION_DESCRIPTIONS_V2, frame, {"id": ONE})
    seeded.described(rows)
    seeded.introduced()
    seeded.listed()
    assert failed(audit_lake(on_spark, seeded.lake, TIME)) == [REFINES_VNODES]
    assert populations(audit_lake(on_spark, seeded.lake))[PUBLISHED_EQUALS_DESCRIPTION] == 12
