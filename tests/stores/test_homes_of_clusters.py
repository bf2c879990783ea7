"""The home of a live cluster where its own home is in a store: the tables lie there too, the way to it does not."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from support.store.s3 import S3

from cdc_platform.clock import Clock, Microseconds, Milliseconds
from cdc_platform.cluster import known
from cdc_platform.cluster.connection import Connection
from cdc_platform.cluster.known import Identity
from cdc_platform.errors import NotFound, StateError
from cdc_platform.home import STATE_VARIABLE, open_home
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.looking import mirroring
from cdc_platform.lake.mirrors import OnlyMirrors, mirror_at
from cdc_platform.places import place_of
from cdc_platform.records import cdc_tables

WAY = Connection(contacts=("127.0.0.1:1",), user_env="CDC_USER", password_env="CDC_PASSWORD")
SEEN = Identity(cluster_name="prod", host_ids=(UUID(int=1),), newest_ms=Milliseconds(5_000))
OTHER = SEEN.model_copy(update={"cluster_name": "restored"})


def test_its_tables_are_every_machines_and_the_way_to_it_is_one_machines(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another machine adds the cluster by its own way, and finds what was observed; a third one knows no cluster."""
    address = f"{s3.bucket()}/home"
    first = known.add(open_home(address), "prod", WAY)
    assert (first.at, first.open_home().lake) == (f"{address}/clusters/prod", f"{address}/clusters/prod/lake")
    known.remember(first, SEEN)
    known.keep_log_ahead(first, "ks.t", Milliseconds(7))
    with mirroring():
        cdc_tables.add(Lake(first.open_home().lake), Clock(), "ks", "t", ttl_seconds=60)
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "another machine"))
    second = known.add(open_home(address), "prod", WAY.model_copy(update={"contacts": ("10.0.0.1:9042",)}))
    assert (second.identity, second.at) == (SEEN, first.at)
    assert known.logs_ahead(second) == {"ks.t": 7}
    assert [each.full_name for each in cdc_tables.cdc_tables(Lake(second.open_home().lake))] == ["ks.t"]
    with pytest.raises(OnlyMirrors, match="the live cluster prod"):
        cdc_tables.drop(Lake(second.open_home().lake), Clock(), "ks", "t")
    with pytest.raises(StateError, match="calls itself restored"):
        known.assert_same(second, OTHER)
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "a third machine"))
    with pytest.raises(NotFound, match="no cluster prod is known"):
        known.find(open_home(address), "prod")
    found = {name for name, _ in (place_of(f"{address}/clusters/prod")).files()}
    assert found == {"platform.json", "mirror.json", "identity.json", "logs-ahead.json", ".lake.contract.json"}


def test_a_renewed_cluster_has_another_place_for_every_machine(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was observed before stays where it is, a home still; other machines follow; a second renewal goes on."""
    address = f"{s3.bucket()}/home"
    first = known.add(open_home(address), "prod", WAY)
    assert known.renew(open_home(address), "prod", Clock()) is None
    known.remember(first, SEEN)
    assert known.renew(open_home(address), "prod", Clock(Microseconds(1_000_000))) == first.at
    second = known.find(open_home(address), "prod")
    assert (second.identity, second.at) == (None, f"{address}/clusters/prod.since-19700101T000001000Z")
    assert second.home != first.home
    assert mirror_at(place_of(first.at)) == mirror_at(place_of(second.at)) == "prod"
    known.remember(second, OTHER)
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "another machine"))
    assert known.add(open_home(address), "prod", WAY).identity == OTHER
    assert known.renew(open_home(address), "prod", Clock(Microseconds(2_000_000))) == second.at
    assert known.find(open_home(address), "prod").at.endswith("prod.since-19700101T000002000Z")
    assert known.seen_of(open_home(first.at, create=False)) == SEEN.host_ids


def test_what_was_observed_on_this_machine_alone_stays_there(s3: S3, tmp_path: Path) -> None:
    """Versions before kept it in this machine's part: positions and rows are not left behind."""
    home = open_home(f"{s3.bucket()}/home")
    (home.path / "clusters" / "prod" / "lake").mkdir(parents=True)
    cluster = known.add(home, "prod", WAY)
    assert (cluster.address, cluster.home) == (None, home.path / "clusters" / "prod")
    known.remember(cluster, SEEN)
    assert known.find(home, "prod").identity == SEEN
