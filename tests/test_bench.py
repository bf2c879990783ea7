"""The benchmarks compare equal work: the plain loop produces exactly the bytes that the platform generates."""

from __future__ import annotations

import uuid
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from bench import empty_job, plain_loop
from bench.__main__ import ROWS
from bench.cluster import IGNORE_MSB, Size, lake_before_join, ring_of
from bench.life import Joins, by_turns
from bench.measure import Pairs, Result
from bench.sensor_tick import ticks
from cdc_platform.clock import Clock
from cdc_platform.delta import Lake, TaskRunner
from cdc_platform.generations import RingLayout, generate_description
from cdc_platform.home_location import open_home_location
from cdc_platform.metastore import generations, inbox, read_current_ring
from cdc_platform_assets.join.inbox import JOIN_JOB


@pytest.mark.parametrize("size", [Size(1, 1, 4), Size(3, 16, 8), Size(5, 7, 64)], ids=str)
def test_the_plain_loop_gives_the_same_bytes(size: Size) -> None:
    """A plain loop produces the same bytes as the platform, so the ratio compares equal work."""
    layout, generation_id = RingLayout.of(ring_of(size)), uuid.UUID(int=7)
    starts, ends = layout.range_starts.tolist(), layout.range_ends.tolist()
    looped = plain_loop.generate(starts, ends, 0, len(layout), size.shards, IGNORE_MSB, generation_id)
    flat = np.frombuffer(b"".join(stream for row in looped for stream in row), dtype=np.uint8)
    assert np.array_equal(flat.reshape(-1, 16), generate_description(layout, generation_id).streams)


def test_the_cluster_waits_for_its_last_node(lake: Lake) -> None:
    """A measured join is a real one: all nodes but the last are in the ring, and the last is next."""
    prepared, generation_id = lake_before_join(lake.root, Size(4, 8, 2), Clock())
    assert len(read_current_ring(prepared).nodes) == 3
    assert [join.generation_id for join in inbox.read_pending_events(prepared)] == [generation_id]


@pytest.mark.parametrize("row", ROWS)
def test_every_row_has_its_function(row: str) -> None:
    """Every row of the table refers to a function that exists."""
    module, _, function = ROWS[row].partition(":")
    assert callable(getattr(import_module(module), function))


def test_ratios_are_those_of_pairs() -> None:
    """A ratio is the median of the pairs' ratios, so one slow pair does not decide."""
    pairs = Pairs(subject=[1.0, 9.0, 2.0], floor=[1.0, 1.0, 1.0])
    assert pairs.ratio == 2.0
    assert Result("row", "at", 1.0, "floor", 1.0, 2.0, 1.5).reached is False
    assert Result("row", "at", 1.0, "floor", 1.0, 2.0, 1.5, at_least=True).reached is True


def test_equal_joins_run_alternately(tmp_path: Path) -> None:
    """Both lakes have run as many joins as were measured, and each join had a queued node."""
    size = Size(2, 4, 2)
    subject, floor = (Joins(TaskRunner.alone(), size, tmp_path / name) for name in ("subject", "floor"))
    pairs = by_turns(subject, floor, repeats=2)
    assert (len(pairs.subject), len(pairs.floor)) == (2, 2)
    for joins in (subject, floor):
        assert not inbox.read_pending_events(joins.lake)
        assert len(generations.read_ledger(joins.lake)) == 3


@pytest.mark.dagster
@pytest.mark.long("a process with Dagster")
def test_ticks_find_the_queued_node(tmp_path: Path) -> None:
    """A measured tick requests a run, in a process without a JVM."""
    home = open_home_location(tmp_path / "home")
    lake_before_join(home.lake, Size(2, 4, 2), Clock())
    assert len(ticks(home, tmp_path / "dagster", 2)) == 2


@pytest.mark.dagster
def test_the_empty_job_is_as_large_as_a_join() -> None:
    """The empty job has a join's steps and, on each asset, its checks, in the join's order."""
    joined, empty = (empty_job.defs.resolve_job_def(name) for name in (JOIN_JOB, empty_job.JOB))
    assert len(empty.graph.node_dict) == len(joined.graph.node_dict) > 6
    graphs = [job.asset_layer.asset_graph for job in (joined, empty)]
    like, unlike = ({key.path[-1]: graph.get(key) for key in graph.materializable_asset_keys} for graph in graphs)
    assert like.keys() == unlike.keys()
    for name, node in like.items():
        assert {check.name for check in node.check_keys} == {check.name for check in unlike[name].check_keys}
        inside = {key.path[-1] for key in node.parent_keys} & like.keys()
        assert inside == {key.path[-1] for key in unlike[name].parent_keys}
