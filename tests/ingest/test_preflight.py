"""`cluster test` shows ticks for a healthy cluster, and remedies that work for others, on a real CQL server."""

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


def run_cluster_test(cluster: ScyllaCluster) -> tuple[int, dict[str, dict[str, str | None]]]:
    """Return the exit code of `cluster test` and its results by check."""
    answer: Answer = run("--home", cluster.home.parent.parent, "cluster", "test", cluster.name, "--json")
    return answer.exit_code, {row["check"]: row for row in answer.rows}


def test_healthy_cluster_has_only_ticks(standin: StandIn, cluster: ScyllaCluster) -> None:
    """The checks are contacts, login, shards and clock of each node, topology, tables and logs."""
    standin.world.cdc_options("Shop", "Carts", ttl="60")
    code, results = run_cluster_test(cluster)
    assert code == 0, results
    for address in ("127.0.0.1", "127.0.0.2", "127.0.0.3"):
        assert "4 shards" in str(results[f"node {address}"]["message"])
        assert results[f"clock of {address}"]["ok"]
    assert "TTL 60 s, CDC on" in str(results["log of Shop.Carts"]["message"])
    assert "version 2026.3.0" in str(results["topology"]["message"])
    table = run("--home", cluster.home.parent.parent, "cluster", "test", cluster.name)
    assert table.stdout.count("✓") == len(results)


def test_changing_topology_is_no_failure(standin: StandIn, cluster: ScyllaCluster) -> None:
    """The cluster can be observed; the message says that nodes are imported once the topology has settled."""
    standin.world.put("scylla.topology", key="topology", transition_state="write_both_read_old")
    code, results = run_cluster_test(cluster)
    assert (code, results["topology"]["remedy"]) == (0, None)
    assert str(results["topology"]["message"]).endswith(
        "changing (write_both_read_old), its nodes are imported once it has settled"
    )


def test_remedies_are_the_missing_grants(
    standin: StandIn, cluster: ScyllaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain role gets each GRANT, with names quoted where needed; after those all checks pass."""
    cluster = registry.add_cluster(open_home_location(cluster.home.parent.parent), "plain", standin.connection())
    monkeypatch.setenv(USER, PLAIN[0])
    monkeypatch.setenv(PASSWORD, PLAIN[1])
    code, results = run_cluster_test(cluster)
    remedies = " ".join(str(result["remedy"]) for result in results.values() if not result["ok"])
    grants = {f"{grant.strip()};" for grant in remedies.split(";") if grant.strip()}
    assert code == 1
    assert "GRANT SELECT ON system_distributed.cdc_generation_timestamps TO plain;" in grants
    assert 'GRANT SELECT ON "Shop"."Carts_scylla_cdc_log" TO plain;' in grants
    assert all(grant.startswith("GRANT SELECT ON ") for grant in grants), grants
    statements = [_to_stand_in_grant(grant, node) for grant in sorted(grants) for node in range(NODES)]
    try:
        for statement in statements:
            standin.world.run(statement)
        assert run_cluster_test(cluster)[0] == 0
        home = cluster.home.parent.parent
        assert run("--home", home, "observe", "plain").exit_code == 0
    finally:
        for statement in statements:
            standin.world.run(statement.replace("GRANT", "REVOKE").replace(" TO ", " FROM "))


def test_grant_of_a_replicated_table_is_named(
    standin: StandIn, cluster: ScyllaCluster, table: LiveTable, workers: TaskRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For other tables it appears next to a tick; for a replicated table the check fails, and the GRANT repairs it."""
    monkeypatch.setenv(USER, PLAIN[0])
    monkeypatch.setenv(PASSWORD, PLAIN[1])
    reads = ["scylla", "scylla_distributed", "scylla_distributed_everywhere", '"Shop"', "node0", "node1", "node2"]
    logs = ["TABLE shop.t_scylla_cdc_log", "TABLE shop.orders_scylla_cdc_log"]
    granted = [*(f"KEYSPACE {name}" for name in reads), *logs]
    grant = "GRANT SELECT ON shop.t TO plain;"
    try:
        for resource in granted:
            standin.world.run(f"GRANT SELECT ON {resource} TO {PLAIN[0]}")
        code, results = run_cluster_test(cluster)
        assert (code, results["table shop.t"]["remedy"]) == (0, grant)
        with pytest.raises(NotGranted, match=re.escape(grant)):
            bring(cluster, workers, current=True)
        standin.world.run(grant.rstrip(";"))
        bring(cluster, workers, current=True)
        assert run_cluster_test(cluster)[1]["table shop.t"]["message"] == "may be read, and is replicated"
        standin.world.run("REVOKE SELECT ON shop.t FROM plain")
        code, results = run_cluster_test(cluster)
        assert code == 1
        assert [(resource["check"], resource["remedy"]) for resource in results.values() if not resource["ok"]] == [
            ("table shop.t", grant)
        ]
    finally:
        for resource in granted:
            standin.world.run(f"REVOKE SELECT ON {resource} FROM {PLAIN[0]}")


def test_observed_nodes_are_tried_if_all_contact_points_are_down(standin: StandIn, cluster: ScyllaCluster) -> None:
    """With its only contact point down each command uses another node; before a first observation none is known."""
    standin.proxy.kill(0)
    home = cluster.home.parent.parent
    assert run("--home", home, "observe", "prod").exit_code == 2
    assert [result["ok"] for result in run_cluster_test(cluster)[1].values()] == [False]
    standin.proxy.restart(0)
    assert run("--home", home, "observe", "prod").exit_code == 0
    standin.proxy.kill(0)
    assert run("--home", home, "observe", "prod").exit_code == 0
    _, results = run_cluster_test(cluster)
    assert not results["contact 127.0.0.1"]["ok"]
    assert results["known node 127.0.0.2"]["ok"]
    assert results["login"]["ok"]
    assert results["topology"]["ok"]


def test_wrong_clock_fails_by_node(standin: StandIn, cluster: ScyllaCluster) -> None:
    """One node is 7 s ahead, another 3 s behind: only those two fail, with the sign."""
    standin.proxy.faults.clock_offset_ms = {1: 7_000, 2: -3_000}
    code, results = run_cluster_test(cluster)
    assert code == 1
    assert [check for check, result in results.items() if not result["ok"]] == [
        "clock of 127.0.0.2",
        "clock of 127.0.0.3",
    ]
    offsets = [int(str(results[f"clock of 127.0.0.{number}"]["message"]).split()[0]) for number in (2, 3)]
    assert abs(offsets[0] - 7_000) < 900
    assert abs(offsets[1] + 3_000) < 900


def test_dead_node_fails_alone(standin: StandIn, cluster: ScyllaCluster) -> None:
    """A node that accepts no connection fails; the others are checked."""
    standin.proxy.kill(2)
    code, results = run_cluster_test(cluster)
    assert code == 1
    assert [check for check, result in results.items() if not result["ok"]] == ["node 127.0.0.3"]


def test_version_without_cdc_fails(standin: StandIn, cluster: ScyllaCluster) -> None:
    """Versions before 4.3 have no readable table of generations."""
    standin.proxy.version = VERSIONS["4.2"]
    code, results = run_cluster_test(cluster)
    assert code == 1
    assert results["generations"]["message"] == "this version has none"


def test_tls_with_a_client_certificate_passes(standin: StandIn, tmp_path: Path) -> None:
    """A server that requires a client's certificate passes with the CA, that certificate and host names."""
    certificates = make_certificates(tmp_path)
    proxy = Proxy(standin.server.port, free_ports(1)[0], NODES, tls=certificates.server(wants_client=True))
    try:
        certificate, key = certificates.client
        files = {"tls_ca": str(certificates.ca), "tls_cert": str(certificate), "tls_key": str(key)}
        connection = standin.connection(contacts=(f"127.0.0.1:{proxy.port}",), tls=True, **files)
        code, results = run_cluster_test(
            registry.add_cluster(open_home_location(tmp_path / "home"), "safe", connection)
        )
        assert code == 0, results
        assert "with TLS" in str(results["contact 127.0.0.1"]["message"])
    finally:
        proxy.stop()


def _to_stand_in_grant(grant: str, node: int) -> str:
    """Return a GRANT on the table that the stand-in has for one of ScyllaDB's."""
    return re.sub(r"ON (system\w*)\.(\w+)", lambda match: f"ON {place_of(node, match[1], match[2])}", grant.rstrip(";"))
