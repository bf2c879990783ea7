"""Clusters by name: what is kept of each, and reads that have to agree before they count; no server."""

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


def test_a_cluster_is_added_listed_and_removed_by_the_command_line(tmp_path: Path) -> None:
    """The same again is the same cluster; what was observed of one that is removed stays in its home."""
    add = ("--home", tmp_path, "cluster", "add", "prod", "--contact", "10.0.0.1", "--contact", "[::1]:9042", "--json")
    first = run(*add)
    assert first.exit_code == 0
    assert first == run(*add)
    assert first.json["connection"]["contacts"] == ["10.0.0.1:9042", "[::1]:9042"]
    (listed,) = run("--home", tmp_path, "cluster", "--json").rows
    assert listed == {name: value for name, value in first.json.items() if name not in ("version", "next")}
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
    """Names, IPv4 and IPv6 in brackets, with a port or CQL's own."""
    assert parse_contact(text) == expected


def test_a_credentials_file_is_read_when_it_is_used(tmp_path: Path) -> None:
    """User and password of a file with mode 0600; no text of what was read shows the password."""
    file = tmp_path / "secret.toml"
    file.write_text('user = "observer"\npassword = "s3cret"\n')
    file.chmod(0o600)
    found = resolve_credentials(Connection(contacts=("a:1",), credentials_file=str(file)))
    assert found is not None
    assert (found.user, found.password) == ("observer", "s3cret")
    assert "s3cret" not in repr(found)


@pytest.mark.parametrize(
    "command", [["observe", "prod"], ["ingest", "prod", "shop.t"], ["cluster", "test", "prod"], ["watch", "prod"]]
)
def test_the_home_of_a_cluster_is_not_the_one_that_knows_it(tmp_path: Path, command: list[str]) -> None:
    """Most commands want the cluster's own home, those that reach the cluster the one around it, and say so."""
    assert run("--home", tmp_path, "cluster", "add", "prod", "--contact", "127.0.0.1:1").exit_code == 0
    answer = run("--home", tmp_path / "clusters" / "prod", *command)
    assert answer.exit_code == 2
    assert "this is the home of prod itself" in answer.stderr
    assert answer.stderr.rstrip().endswith(f"run the command with: --home {tmp_path} [not-found]")


def test_a_damaged_file_says_so(tmp_path: Path) -> None:
    """What was cut or edited is not guessed at."""
    home = open_home_location(tmp_path)
    registry.add_cluster(home, "prod", Connection(contacts=("a:1",)))
    (tmp_path / "clusters" / "prod" / "cluster.json").write_text("{")
    with pytest.raises(EnvironmentProblem, match="damaged"):
        registry.find_cluster(home, "prod")


def test_a_cluster_that_was_never_looked_at_has_nothing_to_move_aside(tmp_path: Path) -> None:
    """`renew` moves aside what was observed, and there is nothing; a name that nobody knows is refused."""
    home = open_home_location(tmp_path)
    registry.add_cluster(home, "prod", Connection(contacts=("a:1",)))
    assert registry.renew_cluster(home, "prod", Clock()) is None
    with pytest.raises(NotFound, match="cluster add"):
        registry.renew_cluster(home, "other", Clock())


@pytest.mark.parametrize(("call", "time"), [("rename", 1), ("rename", 2), ("replace", 1), ("unlink", 1)])
def test_a_renewal_that_died_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, time: int) -> None:
    """Before whichever of its changes it dies, the cluster is known by its name, and by it alone; `renew` ends it."""
    home = open_home_location(tmp_path)
    added = registry.add_cluster(home, "prod", Connection(contacts=("a:1",)))
    registry.store_identity(added, ClusterIdentity(cluster_name="p", host_ids=()))
    real, calls = getattr(Path, call), iter(range(1, 100))

    def die(path: Path, *args: Any, **named: Any) -> Any:
        if path.name.endswith(".draft") == (call == "replace") and next(calls) == time:
            raise KeyboardInterrupt
        return real(path, *args, **named)

    monkeypatch.setattr(Path, call, die)
    with pytest.raises(KeyboardInterrupt):
        registry.renew_cluster(home, "prod", Clock(Microseconds(1_000_000)))
    monkeypatch.undo()
    assert [(each.name, each.connection) for each in registry.list_clusters(home)] == [("prod", added.connection)]
    registry.renew_cluster(home, "prod", Clock(Microseconds(60_000_000)))
    assert registry.find_cluster(home, "prod").identity is None
    assert not (tmp_path / "clusters" / ".prod.renewed").exists()


def test_times_that_were_seen_never_go_back(tmp_path: Path) -> None:
    """A look that took in no generation does not forget the newest that was seen."""
    home = open_home_location(tmp_path)
    cluster = registry.add_cluster(home, "prod", Connection(contacts=("a:1",)))
    registry.store_identity(cluster, ClusterIdentity(cluster_name="p", host_ids=(), newest_ms=Milliseconds(5)))
    registry.store_identity(registry.find_cluster(home, "prod"), ClusterIdentity(cluster_name="p", host_ids=()))
    identity = registry.find_cluster(home, "prod").identity
    assert identity is not None
    assert identity.newest_ms == 5


def test_rows_count_when_two_reads_agree() -> None:
    """Rows that grow are read until they stand; rows that never stand are refused."""
    growing = iter([[{"a": 1}], [{"a": 1}, {"a": 2}], [{"a": 1}, {"a": 2}]])
    assert read_until_stable(lambda: next(growing), "it") == [{"a": 1}, {"a": 2}]
    number = iter(range(100))
    with pytest.raises(InputError, match="changes while it is read"):
        read_until_stable(lambda: [{"a": next(number)}], "it")


def test_every_field_of_a_connection_has_its_option() -> None:
    """Advice and errors name options of `cluster add` that exist."""
    options = {option for parameter in cluster.commands["add"].params for option in parameter.opts}
    fields = Connection.model_fields.keys() - {"contacts", "hash_key_check", "decode_attributes"}
    assert {registry.get_connection_option(name) for name in fields} <= options
