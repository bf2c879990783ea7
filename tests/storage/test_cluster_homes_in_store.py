"""The home of a live cluster in a store has the tables there, and the connection only on each machine."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from support.store.s3 import S3

from cdc_platform.clock import Clock, Microseconds, Milliseconds
from cdc_platform.delta import Lake, WriteSource, read_mirrored_cluster, write_as
from cdc_platform.delta.home_mode import HomeIsMirror
from cdc_platform.errors import NotFound, StateError
from cdc_platform.home_location import STATE_VARIABLE, open_home_location
from cdc_platform.metastore import cdc_tables
from cdc_platform.scylla import Connection, registry
from cdc_platform.scylla.registry import ClusterIdentity
from cdc_platform.storage import parse_path

CONNECTION = Connection(contacts=("127.0.0.1:1",), user_env="CDC_USER", password_env="CDC_PASSWORD")
IDENTITY = ClusterIdentity(cluster_name="prod", host_ids=(UUID(int=1),), newest_ms=Milliseconds(5_000))
OTHER = IDENTITY.model_copy(update={"cluster_name": "restored"})


def test_tables_are_shared_and_connections_are_local(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another machine adds its own connection and finds the observed data; a third one knows no cluster."""
    address = f"{s3.bucket()}/home"
    first = registry.add_cluster(open_home_location(address), "prod", CONNECTION)
    assert (first.at, first.open_home().lake) == (f"{address}/clusters/prod", f"{address}/clusters/prod/lake")
    registry.store_identity(first, IDENTITY)
    registry.store_future_log(first, "ks.t", Milliseconds(7))
    with write_as(WriteSource.OBSERVED):
        cdc_tables.add_cdc_table(Lake(first.open_home().lake), Clock(), "ks", "t", ttl_seconds=60)
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "another machine"))
    second = registry.add_cluster(
        open_home_location(address), "prod", CONNECTION.model_copy(update={"contacts": ("10.0.0.1:9042",)})
    )
    assert (second.identity, second.at) == (IDENTITY, first.at)
    assert registry.read_future_logs(second) == {"ks.t": 7}
    assert [table.full_name for table in cdc_tables.read_cdc_tables(Lake(second.open_home().lake))] == ["ks.t"]
    with pytest.raises(HomeIsMirror, match="the live cluster prod"):
        cdc_tables.drop_cdc_table(Lake(second.open_home().lake), Clock(), "ks", "t")
    with pytest.raises(StateError, match="calls itself restored"):
        registry.assert_same_cluster(second, OTHER)
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "a third machine"))
    with pytest.raises(NotFound, match="no cluster prod is known"):
        registry.find_cluster(open_home_location(address), "prod")
    names = {name for name, _ in (parse_path(f"{address}/clusters/prod")).files()}
    shared = {"platform.json", "mirror.json", "identity.json", "logs-ahead.json", "columns.json"}
    assert names == {*shared, ".lake.contract.json"}


def test_renewed_cluster_has_another_home_for_every_machine(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The earlier home stays usable, other machines use the new one, and a second renewal works."""
    address = f"{s3.bucket()}/home"
    first = registry.add_cluster(open_home_location(address), "prod", CONNECTION)
    assert registry.renew_cluster(open_home_location(address), "prod", Clock()) is None
    registry.store_identity(first, IDENTITY)
    assert registry.renew_cluster(open_home_location(address), "prod", Clock(Microseconds(1_000_000))) == first.at
    second = registry.find_cluster(open_home_location(address), "prod")
    assert (second.identity, second.at) == (None, f"{address}/clusters/prod.since-19700101T000001000Z")
    assert second.home != first.home
    assert read_mirrored_cluster(parse_path(first.at)) == read_mirrored_cluster(parse_path(second.at)) == "prod"
    registry.store_identity(second, OTHER)
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "another machine"))
    assert registry.add_cluster(open_home_location(address), "prod", CONNECTION).identity == OTHER
    assert registry.renew_cluster(open_home_location(address), "prod", Clock(Microseconds(2_000_000))) == second.at
    assert registry.find_cluster(open_home_location(address), "prod").at.endswith("prod.since-19700101T000002000Z")
    assert registry.get_own_hosts(open_home_location(first.at, create=False)) == IDENTITY.host_ids


def test_home_observed_only_on_this_machine_stays_local(s3: S3, tmp_path: Path) -> None:
    """Earlier versions stored it in this machine's part; its positions and rows stay in use."""
    home = open_home_location(f"{s3.bucket()}/home")
    (home.path / "clusters" / "prod" / "lake").mkdir(parents=True)
    cluster = registry.add_cluster(home, "prod", CONNECTION)
    assert (cluster.address, cluster.home) == (None, home.path / "clusters" / "prod")
    registry.store_identity(cluster, IDENTITY)
    assert registry.find_cluster(home, "prod").identity == IDENTITY
