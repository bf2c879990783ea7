"""How many connections a cluster has of the platform, and to which nodes, counted where they come in."""

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


def own(standin: StandIn) -> Counter[int]:
    """The connections by node that this process has: Spark's of other tests come and go."""
    return own_connections(standin.proxy.port)


def new(standin: StandIn, before: Counter[int]) -> dict[int, int]:
    """Those that are open now and were not before."""
    now = own(standin)
    return {node: count for node in range(3) if (count := now[node] - before[node])}


def read_by(node: ScyllaSession) -> int:
    """The place of the node that a session asks."""
    assert node.node is not None
    return int(node.node.rpartition(".")[2]) - 1


def test_an_observer_has_one_a_node_and_the_drivers_own(standin: StandIn) -> None:
    """The driver asks a node who is there over one of its own."""
    before = own(standin)
    with open_session("prod", standin.connection()) as live:
        live.select("system.local", "key", at=live.contact)
        await_true(lambda: sorted(new(standin, before).values()) == [1, 1, 2], 20, "its connections")
    await_true(lambda: new(standin, before) == {}, 20, "their end")


@pytest.mark.parametrize("number", range(4))
def test_a_task_has_one_to_the_node_whose_turn_it_is(
    standin: StandIn, log: LiveLog, sessions_of_tasks: ExitStack, number: int
) -> None:
    """By its number, so that many are spread; all rows come over it, at the consistency that the log is read at."""
    log.write([FIRST_US + 1, SWITCH_US + 1])
    before = own(standin)
    asks = LogQuery("prod", standin.connection(), log.schema, True, 4)
    rows = [row for pages in asks.answers(RANGES, number) for row in keys_of(decode_log_rows(log.schema, pages).rows)]
    assert sorted(rows) == log.written_keys()
    await_true(lambda: new(standin, before) == {number % 3: 1}, 20, "its connection")
    assert {node for node, text in standin.proxy.statements if "_scylla_cdc_log" in text} == {number % 3}
    sessions_of_tasks.close()
    await_true(lambda: new(standin, before) == {}, 20, "its end")


@pytest.mark.parametrize("fault", ["dead", "down from the start", "hangs"])
def test_a_task_whose_node_fails_turns_to_the_next(standin: StandIn, log: LiveLog, fault: str) -> None:
    """Its requests are asked again there, whole: no row is lost, none comes twice, and it has one connection again."""
    log.write([FIRST_US + place for place in range(200)])
    proxy, before = standin.proxy, own(standin)
    connection = standin.connection(request_timeout=3.0)
    if fault == "down from the start":
        proxy.kill(1)
    happens = {"dead": lambda: proxy.kill(1), "hangs": lambda: proxy.faults.paused.add(1)}
    if fault in happens:
        proxy.faults.meanwhile[8] = happens[fault]
    asks = LogQuery("prod", connection, log.schema, True, 4)
    rows = [row for pages in asks.answers(RANGES, 1) for row in keys_of(decode_log_rows(log.schema, pages).rows)]
    assert sorted(rows) == log.written_keys()
    (live,) = asking._sessions.values()
    assert read_by(live) == 2
    proxy.faults.paused.clear()
    await_true(lambda: new(standin, before) == {2: 1}, 20, "one connection")


def test_a_session_sees_its_cluster_grow(standin: StandIn) -> None:
    """Opened with one node it reads metadata at ONE; with three, as the driver learns of them, at QUORUM, of each."""
    standin.world.empty()
    standin.world.cluster(nodes(1))
    with open_session("prod", standin.connection()) as live:
        assert (len(live.members), live.consistency) == (1, ConsistencyLevel.ONE)
        standin.world.cluster(nodes(3))
        # As it does when a node tells it of another one.
        driver: Any = live.driver.cluster
        driver.refresh_nodes()
        assert [member.address for member in live.members] == ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
        assert live.consistency == ConsistencyLevel.QUORUM
        for member in live.members:
            await_true(lambda member=member: member.address in reached(live), 20, f"a connection to {member.address}")
            assert live.select("system.local", "host_id", at=member.address)[0]["host_id"] == member.host_id


def test_a_node_is_asked_when_it_is_connected_to(standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session is there with the first connection: who asks a slower node by itself waits for that one's, not long."""
    monkeypatch.setattr(session, "READ_ATTEMPTS", 1)
    standin.proxy.faults.paused.add(1)
    threading.Timer(0.7, standin.proxy.faults.paused.discard, [1]).start()
    told: list[str] = []
    with open_session("prod", standin.connection()) as live:
        find_read_until_us(live, Clock(), ReadPolicy(), told.append)
    assert not told
    monkeypatch.setattr(session, "_SILENT_SECONDS", 0.3)
    standin.proxy.faults.paused.add(1)
    # Where it happens to look at that node's connection first, the driver itself waits for it to the end.
    with open_session("prod", standin.connection(connect_timeout=2.0)) as live:
        find_read_until_us(live, Clock(), ReadPolicy(), told.append)
    assert told == ["node 127.0.0.2 does not report its time; the second pass finds rows that it writes late"]


def test_what_is_opened_while_a_session_ends_is_closed(standin: StandIn) -> None:
    """A node that is back answers a first time behind the session's end."""
    before, proxy = own(standin), standin.proxy
    with open_session("prod", standin.connection()) as live:
        await_true(lambda: len(reached(live)) == 3, 20, "its connections")
        opened = proxy.open[1]
        proxy.faults.paused.add(1)
        (back,) = (host for host in live.driver.get_pool_state() if str(host.address).endswith(".2"))
        live.driver.add_or_renew_pool(back, is_host_addition=False)
        await_true(lambda: proxy.open[1] > opened, 20, "a connection that is being made")
        threading.Timer(0.7, proxy.faults.paused.discard, [1]).start()
    await_true(lambda: new(standin, before) == {}, 20, "their end")


def reached(live: ScyllaSession) -> set[str]:
    """The nodes to which the driver has a connection."""
    return {str(host.address) for host, state in live.driver.get_pool_state().items() if state["open_count"]}
