"""A home that is copied: homes of live clusters go along, what is there is what was copied, nothing is copied over."""

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
    """A cluster that was seen."""
    return ClusterIdentity(cluster_name=f"c{number}", host_ids=(UUID(int=number),), newest_ms=Milliseconds(number))


def observed(home: str, name: str, way: Connection, number: int) -> None:
    """A cluster that is known by a way, and whose home has a table."""
    cluster = registry.add_cluster(open_home_location(home), name, way)
    registry.store_identity(cluster, identity(number))
    registry.store_future_log(cluster, "ks.t", Milliseconds(number))
    with write_as(WriteSource.OBSERVED):
        cdc_tables.add_cdc_table(Lake(cluster.open_home().lake), Clock(), "ks", f"t{number}", ttl_seconds=60)


def with_clusters(home: str) -> None:
    """A home with three clusters, of which one was renewed twice."""
    cdc_tables.add_cdc_table(Lake(open_home_location(home).lake), Clock(), "ks", "own", ttl_seconds=60)
    for number, (name, way) in enumerate((("open", OPEN), ("secret", SECRET), ("tls", TLS)), 1):
        observed(home, name, way, number)
    for number in (10, 11):
        registry.renew_cluster(open_home_location(home), "open", Clock(Microseconds(number * 1_000_000)))
        observed(home, "open", OPEN, number)


def told(home: str) -> list[str]:
    """The tables of which a home was told."""
    return [each.full_name for each in cdc_tables.read_cdc_tables(Lake(open_home_location(home, create=False).lake))]


def every_version(home: str) -> dict[str, dict[str, int]]:
    """The versions of all tables in a home and in those below it, in which there are some."""
    clusters = (parse_path(home) / "clusters").folders()
    lakes = {place.name: Lake(str(place / "lake")) for place in (parse_path(home), *clusters) if place.name[0] != "."}
    return {name: found for name, lake in lakes.items() if (found := read_newest_versions(lake))}


@pytest.mark.grid("copies between stores and folders", 2)
@pytest.mark.parametrize("way", ["to a store", "to a folder", "between stores", "between folders"])
def test_homes_of_clusters_go_along(s3: S3, tmp_path: Path, way: str) -> None:
    """With what was seen of each, and those before a renewal; the newest is found by the cluster's name everywhere."""
    places = {"store": f"{s3.bucket()}/there", "folder": str(tmp_path / "here")}
    source = places["store" if way in ("to a folder", "between stores") else "folder"]
    target = f"{s3.bucket()}/copy" if way in ("to a store", "between stores") else str(tmp_path / "copy")
    with_clusters(source)
    copied = run("home", "copy", source, target, "--json")
    assert copied.exit_code == 0, copied
    assert len(copied.json["clusters"]) == 5
    for each in copied.json["next"][:-1]:
        assert run(*words_of(each["command"])).exit_code == 0, each
    home = open_home_location(target, create=False)
    assert told(target) == ["ks.own"]
    for name, way_, number in (("open", OPEN, 11), ("secret", SECRET, 2), ("tls", TLS, 3)):
        cluster = registry.find_cluster(home, name)
        decoding = way_.model_copy(update={"decode_attributes": True})
        assert (cluster.identity, cluster.connection) == (identity(number), decoding)
        assert registry.read_future_logs(cluster) == {"ks.t": number}
        assert told(cluster.at) == [f"ks.t{number}"]
    aside = [
        place for place in (parse_path(target) / "clusters").folders() if told(str(place)) in (["ks.t1"], ["ks.t10"])
    ]
    assert len(aside) == 2
    assert {registry.get_own_hosts(open_home_location(str(place), create=False)) for place in aside} == {
        identity(number).host_ids for number in (1, 10)
    }
    looked = [verify_tables(Lake(str(place / "lake")), deep=True) for place in (parse_path(target), *aside)]
    assert [(len(some), [each for each in some if each.damage or each.unexpected]) for some in looked] == [(2, [])] * 3


def relative_files(folder: Path) -> dict[str, bytes]:
    """The files of a folder that are in no lake, by path."""
    found = {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {str(path): content for path, content in found.items() if not any("lake" in part for part in path.parts)}


def test_every_file_that_people_or_commands_leave_beside_tables_goes_along(s3: S3, tmp_path: Path) -> None:
    """Between folders all of them, as they are; by way of a store those that people write, too."""
    source = tmp_path / "home"
    with_clusters(str(source))
    (source / "settings.toml").write_text("confidence_window_ms = 5000\n", encoding="utf-8")
    for name in ("open", "secret"):
        selection = registry.get_selection_path(open_home_location(str(source)), name)
        selection.write_bytes(f'# mine: {name}\ninclude = ["ks.*"]\n'.encode())
    rules = ("columns.json", "identity.json", "logs-ahead.json", "mirror.json", "platform.json", "tables.toml")
    expected = relative_files(source)
    assert {f"clusters/open/{name}" for name in rules} | {"settings.toml", "platform.json"} <= expected.keys()
    assert run("home", "copy", source, tmp_path / "copy").exit_code == 0
    of_machine = {f"clusters/{name}/cluster.json" for name in ("secret", "tls")}
    copied = relative_files(tmp_path / "copy")
    assert {name: copied.get(name) for name in expected.keys() - of_machine} == {
        name: content for name, content in expected.items() if name not in of_machine
    }
    store = f"{s3.bucket()}/there"
    assert run("home", "copy", source, store).exit_code == 0
    assert run("home", "copy", store, tmp_path / "back").exit_code == 0
    people = ("settings.toml", "clusters/open/tables.toml", "clusters/secret/tables.toml")
    for name in people:
        assert (tmp_path / "back" / name).read_bytes() == expected[name]


def test_a_way_that_names_what_is_of_this_machine_stays_here(s3: S3, tmp_path: Path) -> None:
    """No variable and no file's name is in the copy; the line that says what is to be given again gives it."""
    with_clusters(str(tmp_path / "here"))
    target = f"{s3.bucket()}/copy"
    copied = run("home", "copy", tmp_path / "here", target)
    assert copied.exit_code == 0, copied
    *again, last = lines_of(copied)
    assert [line.split("# ")[-1] for line in again] == [
        "on a machine with what it names: user-env, password-env",
        "on a machine with what it names: tls-ca",
    ]
    assert words_of(last)[-1] == "status"
    held = b"".join((place / name).read() for place in all_folders(target) for name in place.names())
    assert not [word for word in (b"CDC_USER", b"CDC_PASSWORD", b"ca.pem") if word in held]
    assert [each.name for each in registry.list_clusters(open_home_location(target))] == ["open"]


def all_folders(address: str) -> list[StoragePath]:
    """A folder of a store, and all below it."""
    place = parse_path(address)
    return [place, *(found for each in place.folders() for found in all_folders(str(each)))]


@pytest.mark.parametrize("there", ["lake/strange.json", "notes.txt", "clusters/prod/platform.json"])
def test_nothing_is_copied_over_what_is_there(s3: S3, tmp_path: Path, there: str) -> None:
    """In a store as in a folder: one line, and what lies there is as it was."""
    source = str(tmp_path / "home")
    assert run("--home", source, "tables", "add", "ks.t", "--ttl", "60").exit_code == 0
    for target in (f"{s3.bucket()}/there", str(tmp_path / "there")):
        place = parse_path(target) / there
        if place.local_path is not None:
            place.local_path.parent.mkdir(parents=True)
        (tmp_path / "draft").write_text("mine", encoding="utf-8")
        place.receive(tmp_path / "draft")
        refused = run("home", "copy", source, target)
        assert (refused.exit_code, refused.stderr.count("\n"), "already exists" in refused.stderr) == (2, 1, True)
        assert place.read() == b"mine"
        assert not parse_path(f"{target}/.copying.json").stat()


def test_a_home_is_not_copied_into_itself(tmp_path: Path) -> None:
    """A place below it would be one of its own homes."""
    assert run("--home", tmp_path / "home", "tables", "declare-none").exit_code == 0
    for target in (tmp_path / "home" / "clusters" / "twin", tmp_path):
        refused = run("home", "copy", tmp_path / "home", target)
        assert (refused.exit_code, "one lies in the other" in refused.stderr) == (2, True)


def joined(tmp_path: Path) -> str:
    """A home with a generation, and a cluster below it."""
    (tmp_path / "node.json").write_text(node_text(1, 4, 2), encoding="utf-8")
    home = str(tmp_path / "first")
    assert run("--home", home, "bootstrap", tmp_path / "node.json", "--run").exit_code == 0
    observed(home, "open", OPEN, 1)
    return home


def written_to(home: str, number: int) -> None:
    """Somebody goes on in a home while it is copied."""
    for at in (home, f"{home}/clusters/open"):
        with write_as(WriteSource.OBSERVED):
            cdc_tables.add_cdc_table(Lake(open_home_location(at).lake), Clock(), "ks", f"later{number}", ttl_seconds=60)


def objects(address: str) -> int:
    """How many files of tables lie there."""
    return sum(
        len((parse_path(folder) / "_delta_log").names()) + len(parse_path(folder).names())
        for below in ("lake", "clusters/open/lake")
        for _, folder in iter_table_folders(parse_path(f"{address}/{below}"))
    )


def test_a_copy_that_is_killed_into_a_store_goes_on(s3: S3, tmp_path: Path) -> None:
    """Killed after some files, again and again, with writes in between: what it ends with is what there was first."""
    home, target, dice = joined(tmp_path), f"{s3.bucket()}/copy", random.Random(SEED)
    due = every_version(home)
    count = objects(home)
    for number, files in enumerate(sorted(dice.sample(range(1, count), KILLS))):
        process = subprocess.Popen(
            [sys.executable, "-m", "cdc_platform", "home", "copy", home, target],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while objects(target) < files and process.poll() is None:
            time.sleep(0.005)
        process.kill()
        assert process.wait(30) == -9, f"it had ended before file {files} of {count}"
        written_to(home, number)
    ended(home, target, due)


def test_a_copy_that_is_killed_into_a_folder_goes_on(s3: S3, nursery: Nursery, tmp_path: Path) -> None:
    """Killed by the kernel right before an operation on a file of the copy, the same."""
    if nursery.refusal:
        pytest.skip(nursery.refusal)
    first, stored, dice = joined(tmp_path), f"{s3.bucket()}/from", random.Random(SEED)
    assert run("home", "copy", first, stored).exit_code == 0
    environment = {name: value for name, value in os.environ.items() if name.startswith(("AWS_", "CDC_PLATFORM_STATE"))}
    whole = nursery.traced(
        ["home", "copy", stored, str(tmp_path / "whole")], tmp_path / "whole", environment=environment
    )
    assert whole.exit_code == 0, whole
    count = len(whole.operations)
    for number, before in enumerate(sorted(dice.sample(range(count), KILLS))):
        target = tmp_path / f"killed{number}"
        died = nursery.traced(["home", "copy", stored, str(target)], target, before, environment=environment)
        assert died.exit_code == -9, f"it had ended before operation {before} of {count}: {died}"
        due = every_version(stored)
        if (target / ".copying.json").exists():  # else it begins anew
            written_to(stored, number)
        ended(stored, str(target), due, f"killed before operation {before} of {count}: {died.operations[-1:]}")


def ended(home: str, target: str, due: dict[str, dict[str, int]], why: str = "") -> None:
    """Run again it ends, with the versions with which it began, and every byte of that is right."""
    again = run("home", "copy", home, target, "--json")
    assert again.exit_code == 0, (why, again)
    names = {Path(home).name: Path(target).name}
    assert every_version(target) == {names.get(name, name): found for name, found in due.items()}, why
    checked = run("--home", target, "check", "--deep")
    assert checked.exit_code == 0, (why, checked)
    assert not [
        name
        for place in (parse_path(target), parse_path(f"{target}/lake"))
        for name in place.names()
        if "draft" in name or "copying" in name
    ]
    for below in ("lake", "clusters/open/lake"):
        for name, version in due[Path(home).name if below == "lake" else "open"].items():
            folder = f"{below}/{name.replace('.', '/')}/_delta_log/{version:020d}.json"
            assert (parse_path(target) / folder).read() == (parse_path(home) / folder).read()


def test_a_file_of_equal_length_is_not_taken_for_equal(s3: S3, tmp_path: Path) -> None:
    """Files of earlier versions as well: what was spoilt there, or is another's, is brought again."""
    home, target = joined(tmp_path), f"{s3.bucket()}/copy"
    dropped = run("--home", home, "tables", "add", "ks.t", "--ttl", "60"), run("--home", home, "tables", "drop", "ks.t")
    assert [each.exit_code for each in dropped] == [0, 0]
    assert run("home", "copy", home, target).exit_code == 0
    (tmp_path / "note").write_text(json.dumps(begun(home)), encoding="utf-8")
    (parse_path(target) / ".copying.json").receive(tmp_path / "note")
    spoilt = []
    for _, folder in iter_table_folders(parse_path(f"{home}/lake")):
        for path in (*sorted(Path(folder).rglob("*.parquet"))[:1], *sorted(Path(folder).glob("_delta_log/*.json"))[:1]):
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 1
            (tmp_path / "draft").write_bytes(content)
            spoilt.append((path, parse_path(target) / str(path.relative_to(home))))
            spoilt[-1][1].receive(tmp_path / "draft")
    again = run("home", "copy", home, target, "--json")
    assert again.exit_code == 0, again
    assert again.json["files"] - again.json["already_copied"] == len(spoilt)
    assert [there.read() == here.read_bytes() for here, there in spoilt] == [True] * len(spoilt)


def test_a_damaged_home_is_not_accepted_as_a_copy(s3: S3, tmp_path: Path) -> None:
    """One line names table and file, and says that FROM is to be mended, where the same is found."""
    home, target = joined(tmp_path), f"{s3.bucket()}/copy"
    damaged = Path(min(file.path for file in Lake(f"{home}/lake").data_files(NODES)))
    damaged.write_bytes(damaged.read_bytes()[:-8])
    done = run("home", "copy", home, target)
    assert (done.exit_code, done.stderr.count("error: ")) == (2, 1), done
    said = done.stderr.splitlines()[-1]
    assert f"is not what was copied: platform.nodes: {damaged.name}, a file of version" in said
    assert f"finds that in {home} as well, repair it there, remove {target}, and copy again" in said
    assert run("--home", target, "status").exit_code == 2


def begun(home: str) -> dict[str, Any]:
    """What is noted of a copy as it begins."""
    parts = [{"path": "", "source": home, "versions": read_newest_versions(Lake(f"{home}/lake"))}]
    below = f"{home}/clusters/open"
    parts += [{"path": "clusters/open", "source": below, "versions": read_newest_versions(Lake(f"{below}/lake"))}]
    return {"from": home, "parts": parts}


def test_names_of_alternator_are_addresses_of_a_store(s3: S3, tmp_path: Path) -> None:
    """A table with a dot and a hyphen in its names: copied, read, consumed and checked there."""
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
