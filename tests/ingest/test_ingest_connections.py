"""The platform's connections to a cluster, and their nodes, as the stand-in counts them."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import ExitStack
from typing import Any

import pytest
from cassandra import ConsistencyLevel
from support.connections import own_connections
from support.standin.brought import FIRST_US, SWITCH_US
from support.standin.cluster import StandIn, nodes
from support.standin.live_log import LiveLog, keys_of
from support.waiting import await_true

from cdc_platform.clock import Clock
from cdc_platform.ingest import ReadPolicy
from cdc_platform.ingest import requests as asking
from cdc_platform.ingest.policy import find_read_until_us
from cdc_platform.ingest.requests import LogQuery
from cdc_platform.scylla import ScyllaSession, decode_log_rows, open_session, session

pytestmark = pytest.mark.cassandra

TOKENS = [-(2**63) + 2**60 * place for place in range(16)]
RANGES = [f'token("cdc$stream_id") > {low} AND token("cdc$stream_id") <= {low + 2**60 - (low > 0)}' for low in TOKENS]


def count_own_connections(standin: StandIn) -> Counter[int]:
    """Return this process's connections by node; those of Spark in other tests are not stable."""
    return own_connections(standin.proxy.port)


def count_new_connections(standin: StandIn, before: Counter[int]) -> dict[int, int]:
    """Return the connections that were opened since `before`, by node."""
    current = count_own_connections(standin)
    return {node: count for node in range(3) if (count := current[node] - before[node])}


def node_index(node: ScyllaSession) -> int:
    """Return the index of the node that a session reads from."""
    assert node.node is not None
    return int(node.node.rpartition(".")[2]) - 1


def test_observer_has_one_connection_per_node_and_the_drivers_own(standin: StandIn) -> None:
    """The driver uses one more connection to ask a node for the others."""
    before = count_own_connections(standin)
    with open_session("prod", standin.connection()) as live:
        live.select("system.local", "key", at=live.contact)
        await_true(lambda: sorted(count_new_connections(standin, before).values()) == [1, 1, 2], 20, "its connections")
    await_true(lambda: count_new_connections(standin, before) == {}, 20, "their end")


@pytest.mark.parametrize("number", range(4))
def test_task_has_one_connection_to_the_node_of_its_number(
    standin: StandIn, log: LiveLog, sessions_of_tasks: ExitStack, number: int
) -> None:
    """Task numbers spread the tasks over the nodes; all rows come over that connection, at the log's consistency."""
    log.write([FIRST_US + 1, SWITCH_US + 1])
    before = count_own_connections(standin)
    query = LogQuery("prod", standin.connection(), log.schema, True, 4)
    rows = [row for pages in query.answers(RANGES, number) for row in keys_of(decode_log_rows(log.schema, pages).rows)]
    assert sorted(rows) == log.written_keys()
    await_true(lambda: count_new_connections(standin, before) == {number % 3: 1}, 20, "its connection")
    assert {node for node, text in standin.proxy.statements if "_scylla_cdc_log" in text} == {number % 3}
    sessions_of_tasks.close()
    await_true(lambda: count_new_connections(standin, before) == {}, 20, "its end")


@pytest.mark.parametrize("fault", ["dead", "down from the start", "hangs"])
def test_task_continues_at_the_next_node_after_a_failure(standin: StandIn, log: LiveLog, fault: str) -> None:
    """The task repeats its requests completely, without lost or double rows, and again has one connection."""
    log.write([FIRST_US + offset for offset in range(200)])
    proxy, before = standin.proxy, count_own_connections(standin)
    connection = standin.connection(request_timeout=3.0)
    if fault == "down from the start":
        proxy.kill(1)
    happens = {"dead": lambda: proxy.kill(1), "hangs": lambda: proxy.faults.paused.add(1)}
    if fault in happens:
        proxy.faults.meanwhile[8] = happens[fault]
    query = LogQuery("prod", connection, log.schema, True, 4)
    rows = [row for pages in query.answers(RANGES, 1) for row in keys_of(decode_log_rows(log.schema, pages).rows)]
    assert sorted(rows) == log.written_keys()
    (live,) = asking._sessions.values()
    assert node_index(live) == 2
    proxy.faults.paused.clear()
    await_true(lambda: count_new_connections(standin, before) == {2: 1}, 20, "one connection")


def test_session_follows_a_growing_cluster(standin: StandIn) -> None:
    """With one node a session reads metadata at ONE; with three, once the driver knows them, at QUORUM."""
    standin.world.empty()
    standin.world.cluster(nodes(1))
    with open_session("prod", standin.connection()) as live:
        assert (len(live.members), live.consistency) == (1, ConsistencyLevel.ONE)
        standin.world.cluster(nodes(3))
        # The driver does this when a node reports another one.
        driver: Any = live.driver.cluster
        driver.refresh_nodes()
        assert [member.address for member in live.members] == ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
        assert live.consistency == ConsistencyLevel.QUORUM
        for member in live.members:
            await_true(
                lambda member=member: member.address in connected_nodes(live), 20, f"a connection to {member.address}"
            )
            assert live.select("system.local", "host_id", at=member.address)[0]["host_id"] == member.host_id


def test_request_to_a_slow_node_waits_for_its_connection(standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session opens with its first connection; a request to a slower node waits for that node's, for a short time."""
    monkeypatch.setattr(session, "READ_ATTEMPTS", 1)
    standin.proxy.faults.paused.add(1)
    threading.Timer(0.7, standin.proxy.faults.paused.discard, [1]).start()
    messages: list[str] = []
    with open_session("prod", standin.connection()) as live:
        find_read_until_us(live, Clock(), ReadPolicy(), messages.append)
    assert not messages
    monkeypatch.setattr(session, "_SILENT_SECONDS", 0.3)
    standin.proxy.faults.paused.add(1)
    # If the driver happens to check that node's connection first, the driver itself waits for it to the end.
    with open_session("prod", standin.connection(connect_timeout=2.0)) as live:
        find_read_until_us(live, Clock(), ReadPolicy(), messages.append)
    assert messages == ["node 127.0.0.2 does not report its time; the second pass finds rows that it writes late"]


def test_connection_opened_while_a_session_ends_is_closed(standin: StandIn) -> None:
    """A node that is up again responds only after the session has ended."""
    before, proxy = count_own_connections(standin), standin.proxy
    with open_session("prod", standin.connection()) as live:
        await_true(lambda: len(connected_nodes(live)) == 3, 20, "its connections")
        opened = proxy.open[1]
        proxy.faults.paused.add(1)
        (restarted,) = (host for host in live.driver.get_pool_state() if str(host.address).endswith(".2"))
        live.driver.add_or_renew_pool(restarted, is_host_addition=False)
        await_true(lambda: proxy.open[1] > opened, 20, "a connection that is being made")
        threading.Timer(0.7, proxy.faults.paused.discard, [1]).start()
    await_true(lambda: count_new_connections(standin, before) == {}, 20, "their end")


def connected_nodes(live: ScyllaSession) -> set[str]:
    """Return the nodes to which the driver has a connection."""
    return {str(host.address) for host, state in live.driver.get_pool_state().items() if state["open_count"]}
