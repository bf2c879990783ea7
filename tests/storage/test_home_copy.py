"""`home copy` includes homes of live clusters, gives equal homes, and overwrites nothing."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from support.command_line import run
from support.drawing import SEED
from support.homes.changed import ALTERNATOR, ITEMS, home_with_changes
from support.next_lines import lines_of, words_of
from support.nodes import node_text
from support.processes.nursery import Nursery
from support.store.s3 import S3

from cdc_platform.clock import Clock, Microseconds, Milliseconds
from cdc_platform.delta import Lake, WriteSource, read_newest_versions, verify_tables, write_as
from cdc_platform.delta.versions import iter_table_folders
from cdc_platform.home_location import open_home_location
from cdc_platform.metastore import cdc_tables
from cdc_platform.scylla import Connection, registry
from cdc_platform.scylla.registry import ClusterIdentity
from cdc_platform.storage import StoragePath, parse_path
from cdc_platform.tables import NODES

OPEN = Connection(contacts=("127.0.0.1:1", "127.0.0.2:1"), datacenter="dc1")
SECRET = Connection(contacts=("10.0.0.1:1",), user_env="CDC_USER", password_env="CDC_PASSWORD", page_rows=7)
TLS = Connection(contacts=("[::1]:9142",), tls=True, tls_ca="/etc/a ca.pem", tls_host_names=False)
KILLS = 2


def identity(number: int) -> ClusterIdentity:
    """Return the identity of an observed cluster."""
    return ClusterIdentity(cluster_name=f"c{number}", host_ids=(UUID(int=number),), newest_ms=Milliseconds(number))


def add_observed_cluster(home: str, name: str, connection: Connection, number: int) -> None:
    """Register a cluster with a connection, and give its home a table."""
    cluster = registry.add_cluster(open_home_location(home), name, connection)
    registry.store_identity(cluster, identity(number))
    registry.store_future_log(cluster, "ks.t", Milliseconds(number))
    with write_as(WriteSource.OBSERVED):
        cdc_tables.add_cdc_table(Lake(cluster.open_home().lake), Clock(), "ks", f"t{number}", ttl_seconds=60)


def add_clusters(home: str) -> None:
    """Give a home three clusters, one of them renewed twice."""
    cdc_tables.add_cdc_table(Lake(open_home_location(home).lake), Clock(), "ks", "own", ttl_seconds=60)
    for number, (name, connection) in enumerate((("open", OPEN), ("secret", SECRET), ("tls", TLS)), 1):
        add_observed_cluster(home, name, connection, number)
    for number in (10, 11):
        registry.renew_cluster(open_home_location(home), "open", Clock(Microseconds(number * 1_000_000)))
        add_observed_cluster(home, "open", OPEN, number)


def table_names(home: str) -> list[str]:
    """Return the names of the registered tables of a home."""
    return [table.full_name for table in cdc_tables.read_cdc_tables(Lake(open_home_location(home, create=False).lake))]


def all_versions(home: str) -> dict[str, dict[str, int]]:
    """Return the versions of all tables in a home and in the homes below it that have tables."""
    clusters = (parse_path(home) / "clusters").folders()
    lakes = {
        folder.name: Lake(str(folder / "lake")) for folder in (parse_path(home), *clusters) if folder.name[0] != "."
    }
    return {name: versions for name, lake in lakes.items() if (versions := read_newest_versions(lake))}


@pytest.mark.grid("copies between stores and folders", 2)
@pytest.mark.parametrize("way", ["to a store", "to a folder", "between stores", "between folders"])
def test_homes_of_clusters_are_copied(s3: S3, tmp_path: Path, way: str) -> None:
    """Observed data and renewed homes are copied; each cluster's name finds its newest home."""
    addresses = {"store": f"{s3.bucket()}/there", "folder": str(tmp_path / "here")}
    source = addresses["store" if way in ("to a folder", "between stores") else "folder"]
    target = f"{s3.bucket()}/copy" if way in ("to a store", "between stores") else str(tmp_path / "copy")
    add_clusters(source)
    copied = run("home", "copy", source, target, "--json")
    assert copied.exit_code == 0, copied
    assert len(copied.json["clusters"]) == 5
    for command in copied.json["next"][:-1]:
        assert run(*words_of(command["command"])).exit_code == 0, command
    home = open_home_location(target, create=False)
    assert table_names(target) == ["ks.own"]
    for name, connection, number in (("open", OPEN, 11), ("secret", SECRET, 2), ("tls", TLS, 3)):
        cluster = registry.find_cluster(home, name)
        decoding = connection.model_copy(update={"decode_attributes": True})
        assert (cluster.identity, cluster.connection) == (identity(number), decoding)
        assert registry.read_future_logs(cluster) == {"ks.t": number}
        assert table_names(cluster.at) == [f"ks.t{number}"]
    renewed = [
        folder
        for folder in (parse_path(target) / "clusters").folders()
        if table_names(str(folder)) in (["ks.t1"], ["ks.t10"])
    ]
    assert len(renewed) == 2
    assert {registry.get_own_hosts(open_home_location(str(folder), create=False)) for folder in renewed} == {
        identity(number).host_ids for number in (1, 10)
    }
    audits = [verify_tables(Lake(str(folder / "lake")), deep=True) for folder in (parse_path(target), *renewed)]
    assert [
        (len(tables), [command for command in tables if command.damage or command.unexpected]) for tables in audits
    ] == [(2, [])] * 3


def relative_files(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder that are in no lake, by path."""
    contents = {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {str(path): content for path, content in contents.items() if not any("lake" in part for part in path.parts)}


def test_files_next_to_tables_are_copied(s3: S3, tmp_path: Path) -> None:
    """A copy between folders has all of them unchanged; a copy through a store has those that people write."""
    source = tmp_path / "home"
    add_clusters(str(source))
    (source / "settings.toml").write_text("confidence_window_ms = 5000\n", encoding="utf-8")
    for name in ("open", "secret"):
        selection = registry.get_selection_path(open_home_location(str(source)), name)
        selection.write_bytes(f'# mine: {name}\ninclude = ["ks.*"]\n'.encode())
    rules = ("columns.json", "identity.json", "logs-ahead.json", "mirror.json", "platform.json", "tables.toml")
    expected = relative_files(source)
    assert {f"clusters/open/{name}" for name in rules} | {"settings.toml", "platform.json"} <= expected.keys()
    assert run("home", "copy", source, tmp_path / "copy").exit_code == 0
    machine_files = {f"clusters/{name}/cluster.json" for name in ("secret", "tls")}
    copied = relative_files(tmp_path / "copy")
    assert {name: copied.get(name) for name in expected.keys() - machine_files} == {
        name: content for name, content in expected.items() if name not in machine_files
    }
    store = f"{s3.bucket()}/there"
    assert run("home", "copy", source, store).exit_code == 0
    assert run("home", "copy", store, tmp_path / "back").exit_code == 0
    people = ("settings.toml", "clusters/open/tables.toml", "clusters/secret/tables.toml")
    for name in people:
        assert (tmp_path / "back" / name).read_bytes() == expected[name]


def test_connection_with_local_names_is_not_copied(s3: S3, tmp_path: Path) -> None:
    """The copy has no name of a variable or local file; a printed command adds the connection again."""
    add_clusters(str(tmp_path / "here"))
    target = f"{s3.bucket()}/copy"
    copied = run("home", "copy", tmp_path / "here", target)
    assert copied.exit_code == 0, copied
    *commands, last = lines_of(copied)
    assert [line.split("# ")[-1] for line in commands] == [
        "on a machine with what it names: user-env, password-env",
        "on a machine with what it names: tls-ca",
    ]
    assert words_of(last)[-1] == "status"
    content = b"".join((folder / name).read() for folder in all_folders(target) for name in folder.names())
    assert not [word for word in (b"CDC_USER", b"CDC_PASSWORD", b"ca.pem") if word in content]
    assert [cluster.name for cluster in registry.list_clusters(open_home_location(target))] == ["open"]


def all_folders(address: str) -> list[StoragePath]:
    """Return a folder of a store, and all below it."""
    folder = parse_path(address)
    return [folder, *(below for child in folder.folders() for below in all_folders(str(child)))]


@pytest.mark.parametrize("there", ["lake/strange.json", "notes.txt", "clusters/prod/platform.json"])
def test_copy_overwrites_nothing(s3: S3, tmp_path: Path, there: str) -> None:
    """In a store as in a folder one line refuses the copy, and existing files stay unchanged."""
    source = str(tmp_path / "home")
    assert run("--home", source, "tables", "add", "ks.t", "--ttl", "60").exit_code == 0
    for target in (f"{s3.bucket()}/there", str(tmp_path / "there")):
        existing = parse_path(target) / there
        if existing.local_path is not None:
            existing.local_path.parent.mkdir(parents=True)
        (tmp_path / "draft").write_text("mine", encoding="utf-8")
        existing.receive(tmp_path / "draft")
        refused = run("home", "copy", source, target)
        assert (refused.exit_code, refused.stderr.count("\n"), "already exists" in refused.stderr) == (2, 1, True)
        assert existing.read() == b"mine"
        assert not parse_path(f"{target}/.copying.json").stat()


def test_home_is_not_copied_into_itself(tmp_path: Path) -> None:
    """A target below it would be one of its own homes."""
    assert run("--home", tmp_path / "home", "tables", "declare-none").exit_code == 0
    for target in (tmp_path / "home" / "clusters" / "twin", tmp_path):
        refused = run("home", "copy", tmp_path / "home", target)
        assert (refused.exit_code, "one lies in the other" in refused.stderr) == (2, True)


def create_home(tmp_path: Path) -> str:
    """Create a home with a generation, and a cluster below it; return its address."""
    (tmp_path / "node.json").write_text(node_text(1, 4, 2), encoding="utf-8")
    home = str(tmp_path / "first")
    assert run("--home", home, "bootstrap", tmp_path / "node.json", "--run").exit_code == 0
    add_observed_cluster(home, "open", OPEN, 1)
    return home


def write_to(home: str, number: int) -> None:
    """Write to a home while it is copied."""
    for at in (home, f"{home}/clusters/open"):
        with write_as(WriteSource.OBSERVED):
            cdc_tables.add_cdc_table(Lake(open_home_location(at).lake), Clock(), "ks", f"later{number}", ttl_seconds=60)


def count_files(address: str) -> int:
    """Return how many files of tables an address has."""
    return sum(
        len((parse_path(folder) / "_delta_log").names()) + len(parse_path(folder).names())
        for below in ("lake", "clusters/open/lake")
        for _, folder in iter_table_folders(parse_path(f"{address}/{below}"))
    )


def test_killed_copy_into_a_store_is_completed(s3: S3, tmp_path: Path) -> None:
    """After kills and writes in between, the completed copy has the versions from when it began."""
    home, target, dice = create_home(tmp_path), f"{s3.bucket()}/copy", random.Random(SEED)
    expected = all_versions(home)
    count = count_files(home)
    for number, files in enumerate(sorted(dice.sample(range(1, count), KILLS))):
        process = subprocess.Popen(
            [sys.executable, "-m", "cdc_platform", "home", "copy", home, target],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while count_files(target) < files and process.poll() is None:
            time.sleep(0.005)
        process.kill()
        assert process.wait(30) == -9, f"it had ended before file {files} of {count}"
        write_to(home, number)
    assert_completed(home, target, expected)


def test_killed_copy_into_a_folder_is_completed(s3: S3, nursery: Nursery, tmp_path: Path) -> None:
    """The kernel kills the copy right before an operation on one of its files, with an equal result."""
    if nursery.refusal:
        pytest.skip(nursery.refusal)
    first, stored, dice = create_home(tmp_path), f"{s3.bucket()}/from", random.Random(SEED)
    assert run("home", "copy", first, stored).exit_code == 0
    environment = {name: value for name, value in os.environ.items() if name.startswith(("AWS_", "CDC_PLATFORM_STATE"))}
    whole = nursery.traced(
        ["home", "copy", stored, str(tmp_path / "whole")], tmp_path / "whole", environment=environment
    )
    assert whole.exit_code == 0, whole
    count = len(whole.operations)
    for number, before in enumerate(sorted(dice.sample(range(count), KILLS))):
        target = tmp_path / f"killed{number}"
        killed = nursery.traced(["home", "copy", stored, str(target)], target, before, environment=environment)
        assert killed.exit_code == -9, f"it had ended before operation {before} of {count}: {killed}"
        expected = all_versions(stored)
        if (target / ".copying.json").exists():  # otherwise the copy starts again
            write_to(stored, number)
        assert_completed(
            stored, str(target), expected, f"killed before operation {before} of {count}: {killed.operations[-1:]}"
        )


def assert_completed(home: str, target: str, expected: dict[str, dict[str, int]], why: str = "") -> None:
    """Assert that another run completes the copy with the versions from its start, and that a deep check passes."""
    answer = run("home", "copy", home, target, "--json")
    assert answer.exit_code == 0, (why, answer)
    names = {Path(home).name: Path(target).name}
    assert all_versions(target) == {names.get(name, name): versions for name, versions in expected.items()}, why
    check = run("--home", target, "check", "--deep")
    assert check.exit_code == 0, (why, check)
    assert not [
        name
        for folder in (parse_path(target), parse_path(f"{target}/lake"))
        for name in folder.names()
        if "draft" in name or "copying" in name
    ]
    for below in ("lake", "clusters/open/lake"):
        for name, version in expected[Path(home).name if below == "lake" else "open"].items():
            folder = f"{below}/{name.replace('.', '/')}/_delta_log/{version:020d}.json"
            assert (parse_path(target) / folder).read() == (parse_path(home) / folder).read()


def test_file_of_equal_length_is_compared_by_content(s3: S3, tmp_path: Path) -> None:
    """Damaged or foreign files, those of earlier versions included, are copied again."""
    home, target = create_home(tmp_path), f"{s3.bucket()}/copy"
    answers = run("--home", home, "tables", "add", "ks.t", "--ttl", "60"), run("--home", home, "tables", "drop", "ks.t")
    assert [answer.exit_code for answer in answers] == [0, 0]
    assert run("home", "copy", home, target).exit_code == 0
    (tmp_path / "note").write_text(json.dumps(copy_note(home)), encoding="utf-8")
    (parse_path(target) / ".copying.json").receive(tmp_path / "note")
    damaged = []
    for _, folder in iter_table_folders(parse_path(f"{home}/lake")):
        for path in (*sorted(Path(folder).rglob("*.parquet"))[:1], *sorted(Path(folder).glob("_delta_log/*.json"))[:1]):
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 1
            (tmp_path / "draft").write_bytes(content)
            damaged.append((path, parse_path(target) / str(path.relative_to(home))))
            damaged[-1][1].receive(tmp_path / "draft")
    repeated = run("home", "copy", home, target, "--json")
    assert repeated.exit_code == 0, repeated
    assert repeated.json["files"] - repeated.json["already_copied"] == len(damaged)
    assert [copied.read() == original.read_bytes() for original, copied in damaged] == [True] * len(damaged)


def test_damaged_home_is_not_accepted_as_a_copy(s3: S3, tmp_path: Path) -> None:
    """One line names table and file, and says that FROM has the same damage and needs a repair."""
    home, target = create_home(tmp_path), f"{s3.bucket()}/copy"
    damaged = Path(min(file.path for file in Lake(f"{home}/lake").data_files(NODES)))
    damaged.write_bytes(damaged.read_bytes()[:-8])
    done = run("home", "copy", home, target)
    assert (done.exit_code, done.stderr.count("error: ")) == (2, 1), done
    message = done.stderr.splitlines()[-1]
    assert f"is not what was copied: platform.nodes: {damaged.name}, a file of version" in message
    assert f"finds that in {home} as well, repair it there, remove {target}, and copy again" in message
    assert run("--home", target, "status").exit_code == 2


def copy_note(home: str) -> dict[str, Any]:
    """Return the note that a copy writes when it begins."""
    parts = [{"path": "", "source": home, "versions": read_newest_versions(Lake(f"{home}/lake"))}]
    below = f"{home}/clusters/open"
    parts += [{"path": "clusters/open", "source": below, "versions": read_newest_versions(Lake(f"{below}/lake"))}]
    return {"from": home, "parts": parts}


def test_alternator_names_work_in_a_store(s3: S3, tmp_path: Path) -> None:
    """A table with a dot and a hyphen in its names is copied, read, consumed and checked there."""
    source, store = str(home_with_changes(tmp_path, ALTERNATOR)), f"{s3.bucket()}/there"
    name = "alternator_my.table-v2.my.table-v2"
    assert run("home", "copy", source, store).exit_code == 0
    for line in (
        ("consume", name, "--name", "audit"),
        ("log", name),
        ("check", "--deep"),
        ("history", "--table", name),
    ):
        answer = run("--home", store, *line)
        assert answer.exit_code == 0, (line, answer.stderr)
    query = f"SELECT new_item FROM {ITEMS.replace('$items', '$changes')}"
    items = [json.loads(row["new_item"]) for row in run("--home", store, "sql", query, "--json").rows]
    assert items == [{"p": {"S": "x"}, "c": {"N": "1.5"}, "a.b": {"S": "1"}}]
