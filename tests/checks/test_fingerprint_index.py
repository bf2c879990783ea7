"""Stored fingerprints of small generations: a join compares its streams with them and finds the same as without."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.nodes import join_request
from support.worlds.invariant_seeds import ONE, OTHER, SeededLake, generation_rows, populations, violations

from cdc_platform.checks import audit_across, inventory, uniqueness
from cdc_platform.checks.invariants import STREAMS_UNIQUE_ACROSS_GENERATIONS
from cdc_platform.checks.uniqueness import compute_fingerprints
from cdc_platform.clock import HOUR_US, Clock, Microseconds
from cdc_platform.delta import Lake, TaskRunner
from cdc_platform.lifecycle import run_join
from cdc_platform.metastore import inbox
from cdc_platform.settings import Settings
from cdc_platform.tables import GENERATION_DESCRIPTIONS_V2, STREAM_FINGERPRINTS, TOPOLOGY_DESCRIPTIONS, Table

THIRD = "00000000-0000-4000-8000-000000000003"
ODD, WORD = 0x9E3779B97F4A7C15, 2**64
START_US = Microseconds(1_767_225_600_000_000)


def record_generation_reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Record from now on which generations' files are read, one tuple per call."""
    reads: list[tuple[str, ...]] = []
    read_partitions = Lake.read_partitions

    def record_read(lake: Lake, table: Table, columns: list[str], keys: Collection[Any] | None = None) -> object:
        rows, files = read_partitions(lake, table, columns, keys)
        if table in (TOPOLOGY_DESCRIPTIONS, GENERATION_DESCRIPTIONS_V2):
            reads.append(tuple(sorted(rows)))
        return rows, files

    monkeypatch.setattr(Lake, "read_partitions", record_read)
    return reads


@given(st.lists(st.binary(min_size=16, max_size=16), max_size=5))
def test_a_fingerprint_is_the_same_for_ever(streams: list[bytes]) -> None:
    """Tables store (low ^ (high * ODD)) * ODD modulo 2 to the 64, where low and high are the two words of a stream."""
    expected = [
        ((int.from_bytes(stream[:8], "big") ^ (int.from_bytes(stream[8:], "big") * ODD % WORD)) * ODD) % WORD
        for stream in streams
    ]
    assert compute_fingerprints(np.frombuffer(b"".join(streams), dtype=np.uint8).reshape(-1, 16)).tolist() == expected


def test_a_generation_with_stored_fingerprints_is_not_read(seeded: SeededLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only new and changed generations are read; the result is the same."""
    seeded.described(generation_rows())
    seeded.inserted(generation_rows(seed=2), OTHER)
    seeded.described(generation_rows(seed=3), THIRD)
    before = audit_across(TaskRunner.alone(), seeded.lake, ONE)
    assert uniqueness.store_fingerprints(seeded.lake) == 0
    assert not seeded.lake.exists(STREAM_FINGERPRINTS)
    assert uniqueness.store_fingerprints(seeded.lake, at_least=3) == 3
    reads = record_generation_reads(monkeypatch)
    assert audit_across(TaskRunner.alone(), seeded.lake, ONE) == before
    assert {name for names in reads for name in names} == {ONE}
    seeded.inserted(generation_rows(seed=2), OTHER)
    assert audit_across(TaskRunner.alone(), seeded.lake, ONE) == before
    assert {name for names in reads for name in names} == {ONE, OTHER}


def test_fingerprints_are_those_of_the_current_files(seeded: SeededLake) -> None:
    """New fingerprints replace those of other files and of deleted generations; without a change there is no commit."""
    seeded.inserted(generation_rows(), ONE)
    seeded.inserted(generation_rows(seed=2), OTHER)
    assert uniqueness.store_fingerprints(seeded.lake, at_least=1) == 2
    seeded.lake.delete(GENERATION_DESCRIPTIONS_V2, [("id", "=", OTHER)])
    seeded.inserted(generation_rows(seed=3), THIRD)
    assert uniqueness.store_fingerprints(seeded.lake, at_least=2) == 0
    assert uniqueness.store_fingerprints(seeded.lake, at_least=1) == 1
    rows = seeded.lake.read(STREAM_FINGERPRINTS).sort_by("generation_id")
    assert rows["generation_id"].to_pylist() == sorted([ONE, THIRD])
    version = seeded.lake.version(STREAM_FINGERPRINTS)
    assert uniqueness.store_fingerprints(seeded.lake, at_least=1) == 0
    assert seeded.lake.version(STREAM_FINGERPRINTS) == version
    assert uniqueness.check_stored_fingerprints(seeded.lake) == [None, None]


@pytest.mark.parametrize("damage", [None, b""])
@pytest.mark.parametrize("where", ["described", "inserted"])
def test_a_stream_of_a_stored_generation_is_found(seeded: SeededLake, where: str, damage: bytes | None) -> None:
    """A shared stream is found beside damaged ones; both generations are named, as without stored fingerprints."""
    rows, others = generation_rows(), generation_rows(seed=2)
    others[1]["streams"][2:] = rows[1]["streams"][2:]
    others[4]["streams"][0] = damage
    seeded.described(rows)
    getattr(seeded, where)(others, generation=OTHER)
    before = audit_across(TaskRunner.alone(), seeded.lake, ONE)
    assert violations(before) == {STREAMS_UNIQUE_ACROSS_GENERATIONS: 2}
    assert OTHER in before[0].sample
    assert uniqueness.store_fingerprints(seeded.lake, at_least=1) == 2
    assert audit_across(TaskRunner.alone(), seeded.lake, ONE) == before


def test_a_generation_is_not_compared_with_its_own_fingerprints(seeded: SeededLake) -> None:
    """All of its streams are among its stored fingerprints."""
    rows = generation_rows()
    seeded.described(rows)
    assert uniqueness.store_fingerprints(seeded.lake, at_least=1) == 1
    findings = audit_across(TaskRunner.alone(), seeded.lake, ONE)
    assert violations(findings) == {}
    assert populations(findings) == {STREAMS_UNIQUE_ACROSS_GENERATIONS: sum(len(row["streams"]) for row in rows)}


def test_incomplete_fingerprints_are_ignored(seeded: SeededLake) -> None:
    """A row that omits fingerprints would hide streams, so its generation is read."""
    rows, others = generation_rows(), generation_rows(seed=2)
    others[1]["streams"][2:] = rows[1]["streams"][2:]
    seeded.described(rows)
    seeded.described(others, OTHER)
    uniqueness.store_fingerprints(seeded.lake, at_least=1)
    stored_rows = seeded.lake.read(STREAM_FINGERPRINTS).to_pylist()
    truncated = [row | {"fingerprints": row["fingerprints"][:8]} for row in stored_rows]
    seeded.lake.transact(
        STREAM_FINGERPRINTS, lambda before: type(before).from_pylist(truncated, schema=before.schema), whole=True
    )
    assert violations(audit_across(TaskRunner.alone(), seeded.lake, ONE)) == {STREAMS_UNIQUE_ACROSS_GENERATIONS: 2}
    assert all(uniqueness.check_stored_fingerprints(seeded.lake))


def test_joins_store_fingerprints_for_later_joins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Joins store fingerprints once enough generations have none, in one commit and not in one per join."""
    lake = Lake(tmp_path / "lake")
    monkeypatch.setattr(uniqueness, "MIN_GENERATIONS_A_COMMIT", 3)
    for number in range(1, 6):
        clock = Clock(Microseconds(START_US + HOUR_US * number))
        generation_id = inbox.queue_join(lake, clock, join_request(number)).generation_id
        reads = record_generation_reads(monkeypatch)
        run_join(TaskRunner.alone(), lake, clock, Settings(), generation_id)
        others_read = {name for names in reads for name in names} - {generation_id}
        assert len(others_read) == {1: 0, 2: 1, 3: 2, 4: 3, 5: 1}[number]
    assert [commit.operation for commit in lake.commits(STREAM_FINGERPRINTS) if commit.operation == "WRITE"] == [
        "WRITE"
    ]
    assert len(inventory.read_representative_files(lake)) == 5
