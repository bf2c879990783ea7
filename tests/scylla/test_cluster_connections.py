"""Connections to clusters: node addresses, a port per node, encrypted keys, secrets in files that change."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.command_line import run
from support.ports import free_ports
from support.standin.brought import assert_each_once, bring, rows_in
from support.standin.certificates import make_certificates
from support.standin.cluster import NODES, SHARDS, StandIn, nodes
from support.standin.live_log import LiveLog
from support.standin.proxy import Proxy
from support.standin.world import OBSERVER, PLAIN
from support.waiting import await_true

from cdc_platform.delta import TaskRunner
from cdc_platform.errors import EnvironmentProblem
from cdc_platform.home_location import open_home_location
from cdc_platform.scylla import Connection, ScyllaCluster, create_tls_context, open_session, registry

pytestmark = pytest.mark.cassandra

PRIVATE = ("10.0.0.1", "10.0.0.2", "10.0.0.3")


@pytest.fixture
def other_port(standin: StandIn) -> Iterator[Proxy]:
    """The same nodes at another port."""
    proxy = Proxy(standin.server.port, free_ports(1)[0], NODES, SHARDS)
    yield proxy
    proxy.stop()


def register(standin: StandIn, folder: Path, *options: str) -> Path:
    """Register the stand-in with the command line; return the home."""
    home = folder / "home"
    contact = ("--contact", f"127.0.0.1:{standin.proxy.port}", "--user-env", "CDC_TEST_USER")
    answer = run("--home", home, "cluster", "add", "prod", *contact, "--password-env", "CDC_TEST_PASSWORD", *options)
    assert answer.exit_code == 0, answer.stderr
    return home


def find_cluster(home: Path) -> ScyllaCluster:
    """Return the cluster as a new process reads it."""
    return registry.find_cluster(open_home_location(home), "prod")


def test_nodes_with_private_addresses_are_reached_at_public_ones(
    standin: StandIn, other_port: Proxy, log: LiveLog, workers: TaskRunner, tmp_path: Path
) -> None:
    """A map, with another port for one node, gives the public addresses; the home has the cluster's own addresses."""
    for index in range(NODES):
        for node in nodes():
            standin.world.delete(f"node{index}.peers", "peer = %s", node.address)
    standin.world.cluster([replace(node, address=PRIVATE[index]) for index, node in enumerate(nodes())])
    options = [
        f"--address={PRIVATE[0]}=127.0.0.1",
        f"--address={PRIVATE[1]}=127.0.0.2:{other_port.port}",
        f"--address={PRIVATE[2]}=127.0.0.3:{standin.proxy.port}",
    ]
    home = register(standin, tmp_path, *options)
    log.write([1_790_000_000_000_001])
    check = run("--home", home, "cluster", "test", "prod")
    assert check.exit_code == 0, check.stdout
    assert [address for address in PRIVATE if f"node {address}" not in check.stdout] == [], check.stdout
    bring(find_cluster(home), workers, way="streams")
    assert_each_once(find_cluster(home), log)
    assert find_cluster(home).node_addresses() == sorted(PRIVATE)
    assert {node for node, _ in standin.proxy.statements} == {0, 2}
    assert {node for node, _ in other_port.statements} == {1}
    # A Spark task has one connection; task numbers spread them over the nodes.
    for number in range(3):
        with open_session("prod", find_cluster(home).connection, one_node=number) as live:
            assert live.node == PRIVATE[number]
    # Known nodes are tried at their public addresses as well.
    moved = find_cluster(home).connection.model_copy(update={"contacts": ("127.0.0.1:1",)})
    with open_session("prod", moved, known_nodes=find_cluster(home).node_addresses) as live:
        assert [member.address for member in live.members] == list(PRIVATE)


def test_contact_points_may_have_a_port_each(
    standin: StandIn, other_port: Proxy, log: LiveLog, workers: TaskRunner, tmp_path: Path
) -> None:
    """A node listens at the port of its contact point, and others at that of the first."""
    home = register(standin, tmp_path, "--contact", f"127.0.0.2:{other_port.port}")
    log.write([1_790_000_000_000_001])
    bring(find_cluster(home), workers)
    assert_each_once(find_cluster(home), log)
    assert {node for node, _ in standin.proxy.statements} == {0, 2}
    assert {node for node, _ in other_port.statements} == {1}


def test_stored_connection_has_every_option(standin: StandIn, tmp_path: Path) -> None:
    """The arguments that `home copy` advises give the same connection again."""
    files = ("--tls", "--tls-cert", "c.pem", "--tls-key", "k.pem", "--tls-key-password-file", "pass")
    limits = ("--consistency", "quorum", "--rate", "500", "--request-rate", "20", "--datacenter", "near")
    home = register(standin, tmp_path, *files, *limits, "--address", "10.0.0.1=db.example:19042")
    connection = find_cluster(home).connection
    assert (connection.consistency, connection.rows_per_second, connection.requests_per_second) == ("QUORUM", 500, 20)
    assert connection.addresses == {"10.0.0.1": "db.example:19042"}
    copy = tmp_path / "again"
    answer = run("--home", copy, "cluster", "add", "prod", *registry.connection_options(connection))
    assert answer.exit_code == 0, answer.stderr
    assert find_cluster(copy).connection == connection
    assert hash(find_cluster(copy).connection) == hash(connection)


@pytest.fixture
def encrypted(tmp_path: Path) -> dict[str, str]:
    """A client certificate whose key has a passphrase."""
    certificates = make_certificates(tmp_path)
    certificate, key = certificates.client
    encrypted_key = tmp_path / "closed.key"
    command = ["openssl", "ec", "-in", key, "-out", encrypted_key, "-aes256", "-passout", "pass:open sesame"]
    subprocess.run(list(map(str, command)), check=True, capture_output=True, timeout=60)
    return {"tls_cert": str(certificate), "tls_key": str(encrypted_key), "tls_ca": str(certificates.ca)}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("open sesame", None),
        ("open sesame\n", None),
        ("wrong", "does not open with the password"),
        ("", "is empty"),
        (None, "passphrase"),
    ],
)
def test_passphrase_of_a_key_is_read_from_a_file(
    encrypted: dict[str, str], tmp_path: Path, text: str | None, says: str | None
) -> None:
    """Messages name the file, never its content."""
    file = tmp_path / "passphrase"
    if text is not None:
        file.write_text(text)
        encrypted["tls_key_password_file"] = str(file)
    connection = Connection.model_validate({"contacts": ("a:1",), "tls": True, **encrypted})
    if says is None:
        assert create_tls_context(connection) is not None
        return
    with pytest.raises(EnvironmentProblem, match=says) as refused:
        create_tls_context(connection)
    assert not text or text not in str(refused.value)


class Mounted:
    """User and password as Kubernetes mounts them: links to files in a folder that is replaced atomically."""

    def __init__(self, folder: Path, secret: tuple[str, str]) -> None:
        self._folder, self._versions = folder, 0
        folder.mkdir()
        self.write(secret)
        for name in ("user", "password"):
            (folder / name).symlink_to(Path("..data", name))

    def write(self, secret: tuple[str, str]) -> None:
        """Replace both secrets."""
        self._versions += 1
        version = self._folder / f"..{self._versions}"
        version.mkdir()
        for name, value in zip(("user", "password"), secret, strict=True):
            (version / name).write_text(f"{value}\n")
        (self._folder / "..new").symlink_to(version.name)
        (self._folder / "..new").rename(self._folder / "..data")

    def remove(self) -> None:
        """Leave both links without a file."""
        (self._folder / "..data").unlink()

    def connection(self, standin: StandIn) -> Connection:
        """Return a connection to the stand-in with these secrets."""
        files = {name: str(self._folder / name.removesuffix("_file")) for name in ("user_file", "password_file")}
        return standin.connection(user_env=None, password_env=None, **files)


@pytest.fixture
def mounted(tmp_path: Path) -> Mounted:
    """The mounted secrets of the observer."""
    return Mounted(tmp_path / "secret", OBSERVER)


def test_secrets_come_from_mounted_files(
    standin: StandIn, mounted: Mounted, log: LiveLog, workers: TaskRunner, tmp_path: Path
) -> None:
    """The files may have any mode; no file of the home has the password."""
    log.write([1_790_000_000_000_001])
    cluster = registry.add_cluster(open_home_location(tmp_path / "home"), "prod", mounted.connection(standin))
    bring(cluster, workers)
    assert rows_in(cluster, log).num_rows == 1
    for file in (tmp_path / "home").rglob("*"):
        assert not file.is_file() or OBSERVER[1].encode() not in file.read_bytes()


def test_replaced_secret_is_read_again(standin: StandIn, mounted: Mounted) -> None:
    """The secret changes after it was read and before the cluster rejects it."""
    # A secret that stays wrong is rejected after one retry.
    mounted.write((OBSERVER[0], "outdated"))
    standin.proxy.faults.at_login = [lambda: mounted.write(OBSERVER)]
    with open_session("prod", mounted.connection(standin)) as live:
        assert live.role == OBSERVER[0]
    mounted.write((OBSERVER[0], "outdated"))
    rejected = pytest.raises(EnvironmentProblem, match=f"user {OBSERVER[0]} was rejected")
    with rejected as refused, open_session("prod", mounted.connection(standin)):
        pass
    assert "outdated" not in str(refused.value)


def test_open_session_uses_a_changed_secret(standin: StandIn, mounted: Mounted) -> None:
    """A sensor's session lives for weeks; when its connections end, the next ones use the files' new content."""
    # If the files are gone, the last secret remains in use.
    with open_session("prod", mounted.connection(standin)) as live:
        logins = standin.proxy.logins
        assert {user for user, _ in logins} == {OBSERVER[0]}
        mounted.write(PLAIN)
        logins.clear()
        standin.proxy.restart(0.1)
        await_true(lambda: bool(logins), 30, "a login")
        assert set(logins) == {PLAIN}
        mounted.remove()
        logins.clear()
        standin.proxy.restart(0.1)
        await_true(lambda: bool(logins), 30, "a login while the files are gone")
        assert set(logins) == {PLAIN}
        assert live.role == OBSERVER[0]
