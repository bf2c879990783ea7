"""A node restarts: which generation it finds, in either format, and who makes the first one. No Spark."""

from __future__ import annotations

import logging
from functools import partial
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.homes.v1_tables import START_MS, description, nodes, old_cluster, times

from cdc_platform.clock import Milliseconds
from cdc_platform.delta import Lake, stream_lists_to_arrow
from cdc_platform.errors import NotFound
from cdc_platform.generations import GenerationId, TopologyDescription
from cdc_platform.metastore import cdc_local, generations, read_host_ids
from cdc_platform.node.restart import RestartedNode, restart_node, should_propose_first_generation
from cdc_platform.tables import CDC_LOCAL, GENERATION_DESCRIPTIONS_V2

HOSTS = [node.host_id for node in nodes(3)]
V2_ID = UUID("8d3f3f2e-3c61-4b0e-9a59-5a3f7c1de001")


def keep(lake: Lake, host: UUID, time_ms: Milliseconds | None, uuid: UUID | None) -> None:
    """Write a node's row of `cdc_local`."""
    row = cdc_local.NodeLocalRow(str(host), cdc_local.GENERATION_KEY, time_ms, None if uuid is None else str(uuid))
    lake.merge(CDC_LOCAL, cdc_local.cdc_local_rows([row]), update=True)


def restarted(lake: Lake, host: UUID) -> RestartedNode:
    """A node of the lake starts again: the ring, its disk and the descriptions are the lake's."""
    ring = [UUID(each) for each in read_host_ids(lake)]
    return restart_node(
        host, ring, cdc_local.LocalDisk(lake, host), partial(generations.read_generation_description, lake)
    )


def insert_v2(lake: Lake, made: TopologyDescription) -> None:
    """Write V2 descriptions."""
    columns = {
        "id": pa.repeat(str(V2_ID), len(made)),
        "range_end": pa.array(made.range_ends),
        "ignore_msb": pa.array(made.ignore_msbs, pa.int8()),
        "num_ranges": pa.array([len(made)] * len(made), pa.int32()),
        "streams": stream_lists_to_arrow(made.stream_counts, made.streams),
    }
    rows = pa.table(columns).cast(GENERATION_DESCRIPTIONS_V2.schema)
    lake.merge(GENERATION_DESCRIPTIONS_V2, rows, update=True)


def test_nodes_find_their_generation_in_either_format(lake: Lake) -> None:
    """In the middle of an upgrade: one node kept a V1 ID, another a V2 ID; both read the whole description."""
    made = old_cluster(lake, times(2))
    later = START_MS + 10_000_000
    insert_v2(lake, description(Milliseconds(later), nodes(3)))
    keep(lake, HOSTS[0], Milliseconds(times(2)[1]), None)
    keep(lake, HOSTS[1], Milliseconds(later), V2_ID)
    first, second = (restarted(lake, host) for host in HOSTS[:2])
    assert first.generation_id == GenerationId(Milliseconds(times(2)[1]))
    assert first.description is not None
    assert first.description.equals(made[times(2)[1]])
    assert second.generation_id == GenerationId(Milliseconds(later), V2_ID)
    assert second.description is not None
    assert second.description.equals(description(Milliseconds(later), nodes(3)))
    assert (first.warning, second.warning, first.proposes_first) == (None, None, False)


@pytest.mark.parametrize("kept", ["no row", "a row without a time"])
def test_without_an_id_it_warns_and_the_largest_host_id_proposes(
    lake: Lake, kept: str, caplog: pytest.LogCaptureFixture
) -> None:
    """After an upgrade from a version without CDC: every node warns, one of them makes the first generation."""
    old_cluster(lake, [])
    if kept == "a row without a time":
        for host in HOSTS:
            keep(lake, host, None, None)
    found = [restarted(lake, host) for host in HOSTS]
    assert [each.proposes_first for each in found] == [False, False, True]
    assert all(each.generation_id is None for each in found)
    for each in found:
        assert each.warning is not None
        assert "has no generation in cdc_local" in each.warning
    assert "this node proposes the first" in str(found[2].warning)
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 3


def test_an_id_without_readable_data_is_stored_and_reported(lake: Lake) -> None:
    """The cell is gone, or V2 rows are missing: the node knows the ID, has no description, and says why."""
    old_cluster(lake, times(1))
    keep(lake, HOSTS[0], Milliseconds(times(1)[0] + 1), None)
    keep(lake, HOSTS[1], START_MS, V2_ID)
    insert_v2(lake, description(START_MS, nodes(3)))
    lake.delete(GENERATION_DESCRIPTIONS_V2, [("range_end", "=", nodes(3)[0].tokens[0])])
    first, second = (restarted(lake, host) for host in HOSTS[:2])
    assert first.generation_id == GenerationId(Milliseconds(times(1)[0] + 1))
    assert (first.description, second.description) == (None, None)
    assert "has no V1 description" in str(first.warning)
    assert "num_ranges claims 12 rows, 11 are there" in str(second.warning)
    assert not first.proposes_first


def test_a_stranger_is_refused(lake: Lake) -> None:
    """Only a node of the ring restarts."""
    old_cluster(lake, times(1))
    with pytest.raises(NotFound, match="no node 00000000-0000-0000-0000-0000000000ff is in the ring"):
        restarted(lake, UUID(int=255))
    assert cdc_local.read_node_generation_id(lake, UUID(int=255)) is None


@given(st.sets(st.uuids(), min_size=1, max_size=8))
def test_exactly_one_node_proposes(hosts: set[UUID]) -> None:
    """Whichever nodes there are, one of them, and it is the last in the order of the IDs' bytes."""
    proposing = [host for host in hosts if should_propose_first_generation(host, hosts)]
    assert proposing == [max(hosts, key=lambda host: host.bytes)]
