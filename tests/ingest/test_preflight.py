"""What `cluster test` says of a cluster: ticks where all is well, and mends that mend, against a real CQL server."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.command_line import Answer, run
from support.ports import free_ports
from support.standin.certificates import make_certificates
from support.standin.cluster import NODES, PASSWORD, USER, StandIn
from support.standin.kept_table import bring
from support.standin.live_table import LiveTable
from support.standin.proxy import Proxy, place_of
from support.standin.versions import VERSIONS
from support.standin.world import PLAIN

from cdc_platform.delta import TaskRunner
from cdc_platform.home_location import open_home_location
from cdc_platform.scylla import NotGranted, ScyllaCluster, registry

pytestmark = pytest.mark.cassandra


def tried(cluster: ScyllaCluster) -> tuple[int, dict[str, dict[str, str | None]]]:
    """The exit code of `cluster test` and its findings by what was looked at."""
    answer: Answer = run("--home", cluster.home.parent.parent, "cluster", "test", cluster.name, "--json")
    return answer.exit_code, {each["check"]: each for each in answer.rows}


def test_a_healthy_cluster_has_ticks_alone(standin: StandIn, cluster: ScyllaCluster) -> None:
    """Contacts, login, every node with its shards and clock, topology, tables, logs."""
    standin.world.cdc_options("Shop", "Carts", ttl="60")
    code, found = tried(cluster)
    assert code == 0, found
    for address in ("127.0.0.1", "127.0.0.2", "127.0.0.3"):
        assert "4 shards" in str(found[f"node {address}"]["message"])
        assert found[f"clock of {address}"]["ok"]
    assert "TTL 60 s, CDC on" in str(found["log of Shop.Carts"]["message"])
    assert "version 2026.3.0" in str(found["topology"]["message"])
    table = run("--home", cluster.home.parent.parent, "cluster", "test", cluster.name)
    assert table.stdout.count("✓") == len(found)


def test_a_topology_that_is_changing_is_nothing_to_mend(standin: StandIn, cluster: ScyllaCluster) -> None:
    """It can be observed, and is told of: its nodes are imported once it has settled."""
    standin.world.put("scylla.topology", key="topology", transition_state="write_both_read_old")
    code, found = tried(cluster)
    assert (code, found["topology"]["remedy"]) == (0, None)
    assert str(found["topology"]["message"]).endswith(
        "changing (write_both_read_old), its nodes are imported once it has settled"
    )


def test_the_grants_that_it_names_are_the_ones_that_are_missing(
    standin: StandIn, cluster: ScyllaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain role is told of each GRANT, names in quotes where they need them; with those it has ticks alone."""
    cluster = registry.add_cluster(open_home_location(cluster.home.parent.parent), "plain", standin.connection())
    monkeypatch.setenv(USER, PLAIN[0])
    monkeypatch.setenv(PASSWORD, PLAIN[1])
    code, found = tried(cluster)
    mends = " ".join(str(each["remedy"]) for each in found.values() if not each["ok"])
    grants = {f"{grant.strip()};" for grant in mends.split(";") if grant.strip()}
    assert code == 1
    assert "GRANT SELECT ON system_distributed.cdc_generation_timestamps TO plain;" in grants
    assert 'GRANT SELECT ON "Shop"."Carts_scylla_cdc_log" TO plain;' in grants
    assert all(grant.startswith("GRANT SELECT ON ") for grant in grants), grants
    placed = [_as_cassandra(grant, node) for grant in sorted(grants) for node in range(NODES)]
    try:
        for statement in placed:
            standin.world.run(statement)
        assert tried(cluster)[0] == 0
        home = cluster.home.parent.parent
        assert run("--home", home, "observe", "plain").exit_code == 0
    finally:
        for statement in placed:
            standin.world.run(statement.replace("GRANT", "REVOKE").replace(" TO ", " FROM "))


def test_the_grant_of_a_table_that_is_kept_is_named(
    standin: StandIn, cluster: ScyllaCluster, table: LiveTable, workers: TaskRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one that is not kept it is told beside a tick; of one that is it is something to mend, and mends it."""
    monkeypatch.setenv(USER, PLAIN[0])
    monkeypatch.setenv(PASSWORD, PLAIN[1])
    reads = ["scylla", "scylla_distributed", "scylla_distributed_everywhere", '"Shop"', "node0", "node1", "node2"]
    logs = ["TABLE shop.t_scylla_cdc_log", "TABLE shop.orders_scylla_cdc_log"]
    granted = [*(f"KEYSPACE {name}" for name in reads), *logs]
    grant = "GRANT SELECT ON shop.t TO plain;"
    try:
        for each in granted:
            standin.world.run(f"GRANT SELECT ON {each} TO {PLAIN[0]}")
        code, found = tried(cluster)
        assert (code, found["table shop.t"]["remedy"]) == (0, grant)
        with pytest.raises(NotGranted, match=re.escape(grant)):
            bring(cluster, workers, current=True)
        standin.world.run(grant.rstrip(";"))
        bring(cluster, workers, current=True)
        assert tried(cluster)[1]["table shop.t"]["message"] == "may be read, and is replicated"
        standin.world.run("REVOKE SELECT ON shop.t FROM plain")
        code, found = tried(cluster)
        assert code == 1
        assert [(each["check"], each["remedy"]) for each in found.values() if not each["ok"]] == [
            ("table shop.t", grant)
        ]
    finally:
        for each in granted:
            standin.world.run(f"REVOKE SELECT ON {each} FROM {PLAIN[0]}")


def test_nodes_that_were_observed_are_tried_when_no_contact_point_answers(
    standin: StandIn, cluster: ScyllaCluster
) -> None:
    """The one contact point is down: each command goes on by another node; before a first look there is none."""
    standin.proxy.kill(0)
    home = cluster.home.parent.parent
    assert run("--home", home, "observe", "prod").exit_code == 2
    assert [each["ok"] for each in tried(cluster)[1].values()] == [False]
    standin.proxy.restart(0)
    assert run("--home", home, "observe", "prod").exit_code == 0
    standin.proxy.kill(0)
    assert run("--home", home, "observe", "prod").exit_code == 0
    _, found = tried(cluster)
    assert not found["contact 127.0.0.1"]["ok"]
    assert found["known node 127.0.0.2"]["ok"]
    assert found["login"]["ok"]
    assert found["topology"]["ok"]


def test_a_clock_that_is_off_is_told_of_by_its_node(standin: StandIn, cluster: ScyllaCluster) -> None:
    """One node is 7 s ahead, another 3 s behind: those two, with the sign."""
    standin.proxy.faults.clock_offset_ms = {1: 7_000, 2: -3_000}
    code, found = tried(cluster)
    assert code == 1
    assert [check for check, each in found.items() if not each["ok"]] == ["clock of 127.0.0.2", "clock of 127.0.0.3"]
    offsets = [int(str(found[f"clock of 127.0.0.{last}"]["message"]).split()[0]) for last in (2, 3)]
    assert abs(offsets[0] - 7_000) < 900
    assert abs(offsets[1] + 3_000) < 900


def test_a_dead_node_is_told_of_and_the_others_are_looked_at(standin: StandIn, cluster: ScyllaCluster) -> None:
    """A node that takes no connection fails alone."""
    standin.proxy.kill(2)
    code, found = tried(cluster)
    assert code == 1
    assert [check for check, each in found.items() if not each["ok"]] == ["node 127.0.0.3"]


def test_a_version_without_cdc_is_told_of(standin: StandIn, cluster: ScyllaCluster) -> None:
    """Before 4.3 there is no table of generations that anybody could read."""
    standin.proxy.version = VERSIONS["4.2"]
    code, found = tried(cluster)
    assert code == 1
    assert found["generations"]["message"] == "this version has none"


def test_tls_with_a_certificate_of_its_own_lets_it_in(standin: StandIn, tmp_path: Path) -> None:
    """A server that shows a certificate and wants one: with the CA, the client's and host names all is well."""
    made = make_certificates(tmp_path)
    proxy = Proxy(standin.server.port, free_ports(1)[0], NODES, tls=made.server(wants_client=True))
    try:
        certificate, key = made.client
        files = {"tls_ca": str(made.ca), "tls_cert": str(certificate), "tls_key": str(key)}
        connection = standin.connection(contacts=(f"127.0.0.1:{proxy.port}",), tls=True, **files)
        code, found = tried(registry.add_cluster(open_home_location(tmp_path / "home"), "safe", connection))
        assert code == 0, found
        assert "with TLS" in str(found["contact 127.0.0.1"]["message"])
    finally:
        proxy.stop()


def _as_cassandra(grant: str, node: int) -> str:
    """A GRANT on the table that the stand-in keeps for one of ScyllaDB's."""
    return re.sub(r"ON (system\w*)\.(\w+)", lambda name: f"ON {place_of(node, name[1], name[2])}", grant.rstrip(";"))
