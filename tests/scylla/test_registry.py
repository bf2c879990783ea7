"""The registry of clusters by name, and reads that must agree before they count; without a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.command_line import run

from cdc_platform.cli.cluster import cluster
from cdc_platform.clock import Clock, Microseconds, Milliseconds
from cdc_platform.errors import EnvironmentProblem, InputError, NotFound
from cdc_platform.home_location import open_home_location
from cdc_platform.scylla import Connection, parse_contact, registry, resolve_credentials
from cdc_platform.scylla.generations import read_until_stable
from cdc_platform.scylla.registry import ClusterIdentity


def test_commands_add_list_and_remove_a_cluster(tmp_path: Path) -> None:
    """Adding the same cluster again changes nothing; the home of a removed cluster stays."""
    add = ("--home", tmp_path, "cluster", "add", "prod", "--contact", "10.0.0.1", "--contact", "[::1]:9042", "--json")
    first = run(*add)
    assert first.exit_code == 0
    assert first == run(*add)
    assert first.json["connection"]["contacts"] == ["10.0.0.1:9042", "[::1]:9042"]
    (entry,) = run("--home", tmp_path, "cluster", "--json").rows
    assert entry == {name: value for name, value in first.json.items() if name not in ("version", "next")}
    assert "10.0.0.1:9042" in run("--home", tmp_path, "cluster").stdout
    assert run("--home", tmp_path, "cluster", "remove", "prod").exit_code == 0
    assert run("--home", tmp_path, "cluster", "--json").rows == []
    assert (tmp_path / "clusters" / "prod" / "platform.json").exists()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("db.example.org", ("db.example.org", 9042)),
        ("10.0.0.1:9142", ("10.0.0.1", 9142)),
        ("[fe80::1]:1", ("fe80::1", 1)),
    ],
)
def test_contact_points_are_hosts_with_ports(text: str, expected: tuple[str, int]) -> None:
    """Hosts are names, IPv4, or IPv6 in brackets; the default port is CQL's."""
    assert parse_contact(text) == expected


def test_credentials_file_is_read(tmp_path: Path) -> None:
    """A file with mode 0600 has user and password; the result's `repr` does not show the password."""
    file = tmp_path / "secret.toml"
    file.write_text('user = "observer"\npassword = "s3cret"\n')
    file.chmod(0o600)
    credentials = resolve_credentials(Connection(contacts=("a:1",), credentials_file=str(file)))
    assert credentials is not None
    assert (credentials.user, credentials.password) == ("observer", "s3cret")
    assert "s3cret" not in repr(credentials)


@pytest.mark.parametrize(
    "command", [["observe", "prod"], ["ingest", "prod", "shop.t"], ["cluster", "test", "prod"], ["watch", "prod"]]
)
def test_commands_that_connect_refuse_the_cluster_home(tmp_path: Path, command: list[str]) -> None:
    """Commands that connect to a cluster need the home around it, and the message names that home."""
    assert run("--home", tmp_path, "cluster", "add", "prod", "--contact", "127.0.0.1:1").exit_code == 0
    answer = run("--home", tmp_path / "clusters" / "prod", *command)
    assert answer.exit_code == 2
    assert "this is the home of prod itself" in answer.stderr
    assert answer.stderr.rstrip().endswith(f"run the command with: --home {tmp_path} [not-found]")


def test_damaged_file_is_reported(tmp_path: Path) -> None:
    """A truncated or edited file is an error."""
    home = open_home_location(tmp_path)
    registry.add_cluster(home, "prod", Connection(contacts=("a:1",)))
    (tmp_path / "clusters" / "prod" / "cluster.json").write_text("{")
    with pytest.raises(EnvironmentProblem, match="damaged"):
        registry.find_cluster(home, "prod")


def test_renewal_of_an_unobserved_cluster_moves_nothing(tmp_path: Path) -> None:
    """A renewal moves the observed home, which does not exist here; an unknown name is refused."""
    home = open_home_location(tmp_path)
    registry.add_cluster(home, "prod", Connection(contacts=("a:1",)))
    assert registry.renew_cluster(home, "prod", Clock()) is None
    with pytest.raises(NotFound, match="cluster add"):
        registry.renew_cluster(home, "other", Clock())


@pytest.mark.parametrize(("call", "time"), [("rename", 1), ("rename", 2), ("replace", 1), ("unlink", 1)])
def test_killed_renewal_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, time: int) -> None:
    """A kill before any of its changes leaves exactly one cluster of the name; another renewal completes it."""
    home = open_home_location(tmp_path)
    added = registry.add_cluster(home, "prod", Connection(contacts=("a:1",)))
    registry.store_identity(added, ClusterIdentity(cluster_name="p", host_ids=()))
    real, calls = getattr(Path, call), iter(range(1, 100))

    def die(path: Path, *args: Any, **kwargs: Any) -> Any:
        if path.name.endswith(".draft") == (call == "replace") and next(calls) == time:
            raise KeyboardInterrupt
        return real(path, *args, **kwargs)

    monkeypatch.setattr(Path, call, die)
    with pytest.raises(KeyboardInterrupt):
        registry.renew_cluster(home, "prod", Clock(Microseconds(1_000_000)))
    monkeypatch.undo()
    assert [(listed.name, listed.connection) for listed in registry.list_clusters(home)] == [("prod", added.connection)]
    registry.renew_cluster(home, "prod", Clock(Microseconds(60_000_000)))
    assert registry.find_cluster(home, "prod").identity is None
    assert not (tmp_path / "clusters" / ".prod.renewed").exists()


def test_newest_observed_time_never_decreases(tmp_path: Path) -> None:
    """An observation without a generation leaves the newest observed time as it is."""
    home = open_home_location(tmp_path)
    cluster = registry.add_cluster(home, "prod", Connection(contacts=("a:1",)))
    registry.store_identity(cluster, ClusterIdentity(cluster_name="p", host_ids=(), newest_ms=Milliseconds(5)))
    registry.store_identity(registry.find_cluster(home, "prod"), ClusterIdentity(cluster_name="p", host_ids=()))
    identity = registry.find_cluster(home, "prod").identity
    assert identity is not None
    assert identity.newest_ms == 5


def test_rows_count_once_two_reads_agree() -> None:
    """Growing rows are read until they are stable; rows that never are get refused."""
    growing = iter([[{"a": 1}], [{"a": 1}, {"a": 2}], [{"a": 1}, {"a": 2}]])
    assert read_until_stable(lambda: next(growing), "it") == [{"a": 1}, {"a": 2}]
    number = iter(range(100))
    with pytest.raises(InputError, match="changes while it is read"):
        read_until_stable(lambda: [{"a": next(number)}], "it")


def test_every_field_of_a_connection_has_its_option() -> None:
    """Advice and errors name existing options of `cluster add`."""
    options = {option for parameter in cluster.commands["add"].params for option in parameter.opts}
    fields = Connection.model_fields.keys() - {"contacts", "hash_key_check", "decode_attributes"}
    assert {registry.get_connection_option(name) for name in fields} <= options
