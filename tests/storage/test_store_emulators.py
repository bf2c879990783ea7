"""Installed store servers and emulators meet the contract of a store, and commits of several writers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from support.command_line import run
from support.nodes import node_text
from support.store.azurite import Azurite
from support.store.fake_gcs import FakeGcs
from support.store.large_place import assert_listed_as_it_is
from support.store.s3_programs import Minio, Versity

from cdc_platform.delta import Lake, verify_tables
from cdc_platform.storage import ObjectStorePath, parse_path, write_check
from cdc_platform.tables import Table, column

pytestmark = [pytest.mark.processes, pytest.mark.long("an emulator of a store, a process of its own")]

EMULATORS = {"Azurite": Azurite, "fake-gcs-server": FakeGcs, "MinIO": Minio, "versitygw": Versity}
Emulator = Azurite | FakeGcs | Minio | Versity
COUNTS = Table("ks", "counts", pa.schema([column("k", pa.int64(), ""), column("v", pa.int64(), "")]), ("k",), "")


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=pytest.mark.skipif(each.PROGRAM is None, reason=each.HOW_TO_HAVE_IT))
        for name, each in EMULATORS.items()
    ],
)
def emulator(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """One of each for all of these tests."""
    shared = EMULATORS[request.param](tmp_path_factory.mktemp("emulator"))
    yield shared
    shared.stop()


@pytest.fixture
def container(
    emulator: Emulator,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> str:
    """The address of a container for one test."""
    for name, value in emulator.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CDC_PLATFORM_STATE", str(tmp_path / "state"))
    return emulator.container(request.node.originalname.replace("_", "-")[:60].strip("-"))


def test_store_meets_the_contract(container: str, tmp_path: Path) -> None:
    """One of two writers creates or replaces an object; lists, ranges and missing objects behave as in S3."""
    folder = parse_path(f"{container}/some/where")
    file = folder / "a"
    assert isinstance(folder, ObjectStorePath)
    assert isinstance(file, ObjectStorePath)
    assert write_check.count_put_winners(folder) == [1] * write_check.PROBE_KEYS
    mark = file.create(b"0123456789")
    assert mark is not None
    assert (file.create(b"again"), file.read(), file.read_range(2, 5)) == (None, b"0123456789", b"234")
    results = [file.replace(content, mark) for content in (b"first", b"second")]
    assert (results[0] is not None, results[1], file.read()) == (True, None, b"first")
    (tmp_path / "b").write_bytes(b"b")
    (folder / "deep/b").receive(tmp_path / "b")
    assert (folder.names(), [child.name for child in folder.folders()]) == (["a"], ["deep"])
    assert [name for name, _ in (folder / "deep").files(after="a")] == ["b"]
    status = file.stat()
    assert status is not None
    assert file.replace(b"third", status.mark) is not None
    file.remove()
    file.remove()
    assert (file.stat(), folder.names()) == (None, [])
    with pytest.raises(FileNotFoundError):
        file.read()


def test_concurrent_writers_lose_no_increment(container: str) -> None:
    """Three writers increment twice each; no increment is lost, and every commit exists once."""
    address = f"{container}/home/lake"
    Lake(address).merge(COUNTS, counts(0), update=False)
    barrier = threading.Barrier(3)

    def grow(lake: Lake) -> None:
        barrier.wait()
        for _ in range(2):
            lake.transact(COUNTS, lambda rows: counts(rows["v"][0].as_py() + 1))

    with ThreadPoolExecutor(3) as writers:
        list(writers.map(grow, [Lake(address) for _ in range(3)]))
    assert Lake(address).read(COUNTS)["v"].to_pylist() == [6]
    [audit] = verify_tables(Lake(address), deep=True)
    assert (audit.damage, audit.unexpected, audit.foreign, audit.commits) == ([], [], [], 8)


def test_large_folder_is_listed_completely(container: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds even if a store cannot start a list after a name."""
    lake = parse_path(f"{container}/lake")
    assert isinstance(lake, ObjectStorePath)
    assert_listed_as_it_is(lake, monkeypatch)


@pytest.fixture(scope="module")
def minio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Minio]:
    """One server for buckets of all kinds."""
    shared = Minio(tmp_path_factory.mktemp("minio"))
    yield shared
    shared.stop()


@pytest.mark.skipif(Minio.PROGRAM is None, reason=Minio.HOW_TO_HAVE_IT)
@pytest.mark.grid("bucket configurations", 1)
@pytest.mark.parametrize("kind", ["versioned", "locked", "encrypted"])
def test_versioned_locked_or_encrypted_bucket(
    minio: Minio, kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Contract, join, deep check and copy work although replaced or removed objects stay."""
    for name, value in minio.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_CHECKSUM_ALGORITHM", "SHA256")  # as a locked bucket of Amazon's requires
    monkeypatch.setenv("CDC_PLATFORM_STATE", str(tmp_path / "state"))
    address = getattr(minio, kind)(kind)
    folder = parse_path(f"{address}/some/where")
    assert isinstance(folder, ObjectStorePath)
    assert write_check.count_put_winners(folder) == [1] * write_check.PROBE_KEYS
    assert (folder / ".contract").names() == []
    (tmp_path / "node1.json").write_text(node_text(1, 4, 2), encoding="utf-8")
    at = ("--home", f"{address}/home", "--clock", "2026-01-01T00:00:00Z")
    joined = run(*at, "bootstrap", tmp_path / "node1.json", "--run")
    assert joined.exit_code == 0, joined
    assert run(*at, "check", "--deep").exit_code == 0
    copied = run("home", "copy", f"{address}/home", str(folder))
    assert copied.exit_code == 0, copied
    versions = minio.client().list_object_versions(Bucket=kind)
    assert bool(versions.get("DeleteMarkers")) == (kind != "encrypted")
    if kind == "encrypted":
        entry, *_ = (version["Key"] for version in versions["Versions"])
        assert minio.client().head_object(Bucket=kind, Key=entry)["ServerSideEncryption"] == "aws:kms"


def counts(value: int) -> pa.Table:
    """Return the table's single row."""
    return pa.Table.from_pylist([{"k": 1, "v": value}], schema=COUNTS.schema)


def test_node_joins_in_a_store(container: str, tmp_path: Path) -> None:
    """The command line makes the join, and a deep check passes."""
    (tmp_path / "node1.json").write_text(node_text(1, 4, 2), encoding="utf-8")
    at = ("--home", f"{container}/home", "--clock", "2026-01-01T00:00:00Z")
    joined = run(*at, "bootstrap", tmp_path / "node1.json", "--run")
    assert joined.exit_code == 0, joined
    assert run(*at, "check", "--deep").exit_code == 0
