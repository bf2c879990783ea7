"""Restarted nodes: the generation that they find, in either format, and the node that proposes the first. No Spark."""

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


def store_id(lake: Lake, host: UUID, time_ms: Milliseconds | None, uuid: UUID | None) -> None:
    """Write a node's row of `cdc_local`."""
    row = cdc_local.NodeLocalRow(str(host), cdc_local.GENERATION_KEY, time_ms, None if uuid is None else str(uuid))
    lake.merge(CDC_LOCAL, cdc_local.cdc_local_rows([row]), update=True)


def restart(lake: Lake, host: UUID) -> RestartedNode:
    """Restart a node whose ring, disk and descriptions are the lake's."""
    ring = [UUID(text) for text in read_host_ids(lake)]
    return restart_node(
        host, ring, cdc_local.LocalDisk(lake, host), partial(generations.read_generation_description, lake)
    )


def insert_v2(lake: Lake, description_to_insert: TopologyDescription) -> None:
    """Insert V2 descriptions."""
    columns = {
        "id": pa.repeat(str(V2_ID), len(description_to_insert)),
        "range_end": pa.array(description_to_insert.range_ends),
        "ignore_msb": pa.array(description_to_insert.ignore_msbs, pa.int8()),
        "num_ranges": pa.array([len(description_to_insert)] * len(description_to_insert), pa.int32()),
        "streams": stream_lists_to_arrow(description_to_insert.stream_counts, description_to_insert.streams),
    }
    rows = pa.table(columns).cast(GENERATION_DESCRIPTIONS_V2.schema)
    lake.merge(GENERATION_DESCRIPTIONS_V2, rows, update=True)


def test_nodes_find_their_generation_in_either_format(lake: Lake) -> None:
    """During an upgrade, one node has a V1 ID and another a V2 ID; both read the whole description."""
    descriptions = old_cluster(lake, times(2))
    later = START_MS + 10_000_000
    insert_v2(lake, description(Milliseconds(later), nodes(3)))
    store_id(lake, HOSTS[0], Milliseconds(times(2)[1]), None)
    store_id(lake, HOSTS[1], Milliseconds(later), V2_ID)
    first, second = (restart(lake, host) for host in HOSTS[:2])
    assert first.generation_id == GenerationId(Milliseconds(times(2)[1]))
    assert first.description is not None
    assert first.description.equals(descriptions[times(2)[1]])
    assert second.generation_id == GenerationId(Milliseconds(later), V2_ID)
    assert second.description is not None
    assert second.description.equals(description(Milliseconds(later), nodes(3)))
    assert (first.warning, second.warning, first.proposes_first) == (None, None, False)


@pytest.mark.parametrize("kept", ["no row", "a row without a time"])
def test_without_an_id_it_warns_and_the_largest_host_id_proposes(
    lake: Lake, kept: str, caplog: pytest.LogCaptureFixture
) -> None:
    """After an upgrade from a version without CDC, every node warns, and one proposes the first generation."""
    old_cluster(lake, [])
    if kept == "a row without a time":
        for host in HOSTS:
            store_id(lake, host, None, None)
    restarted_nodes = [restart(lake, host) for host in HOSTS]
    assert [restarted_node.proposes_first for restarted_node in restarted_nodes] == [False, False, True]
    assert all(restarted_node.generation_id is None for restarted_node in restarted_nodes)
    for restarted_node in restarted_nodes:
        assert restarted_node.warning is not None
        assert "has no generation in cdc_local" in restarted_node.warning
    assert "this node proposes the first" in str(restarted_nodes[2].warning)
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 3


def test_an_id_without_readable_data_is_stored_and_reported(lake: Lake) -> None:
    """The node knows its ID, has no description because the cell or V2 rows are missing, and gives the reason."""
    old_cluster(lake, times(1))
    store_id(lake, HOSTS[0], Milliseconds(times(1)[0] + 1), None)
    store_id(lake, HOSTS[1], START_MS, V2_ID)
    insert_v2(lake, description(START_MS, nodes(3)))
    lake.delete(GENERATION_DESCRIPTIONS_V2, [("range_end", "=", nodes(3)[0].tokens[0])])
    first, second = (restart(lake, host) for host in HOSTS[:2])
    assert first.generation_id == GenerationId(Milliseconds(times(1)[0] + 1))
    assert (first.description, second.description) == (None, None)
    assert "has no V1 description" in str(first.warning)
    assert "num_ranges claims 12 rows, 11 are there" in str(second.warning)
    assert not first.proposes_first


def test_an_unknown_node_is_refused(lake: Lake) -> None:
    """Only a node of the ring restarts."""
    old_cluster(lake, times(1))
    with pytest.raises(NotFound, match="no node 00000000-0000-0000-0000-0000000000ff is in the ring"):
        restart(lake, UUID(int=255))
    assert cdc_local.read_node_generation_id(lake, UUID(int=255)) is None


@given(st.sets(st.uuids(), min_size=1, max_size=8))
def test_exactly_one_node_proposes(hosts: set[UUID]) -> None:
    """Exactly one node proposes: the last in the order of the IDs' bytes."""
    proposing = [host for host in hosts if should_propose_first_generation(host, hosts)]
    assert proposing == [max(hosts, key=lambda host: host.bytes)]
