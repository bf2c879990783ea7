"""A home in an object store does what one in a folder does, by the same commands, to the same rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dagster import DagsterInstance
from support.command_line import run
from support.nodes import node_text
from support.processes.nursery import Nursery
from support.store.profiles import INSTEAD_OF, by_profile
from support.store.s3 import S3, SECRET
from support.worlds.rehearsal import Rehearsal

from cdc_platform import home_migration
from cdc_platform.delta import IN_PROCESS_VARIABLE, Lake, lake_copy, list_stored_tables, read_newest_versions
from cdc_platform.home_location import HOME_VARIABLE, LAYOUT_VERSION, HomeLocation, open_home_location
from cdc_platform.storage import ObjectStorePath, leases, object_store, parse_path
from cdc_platform.tables import GENERATION_TIMESTAMPS, Table

# Drawn at random, by the machine's clock, or by the names of files.
_OWN = frozenset({"generation_id", "id", "uuid", "content", "created_at", "published_at", "judged_at", "versions"})
_SCRIPT = """
CREATE KEYSPACE shop WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 1};
CREATE TABLE shop.orders (customer text, number int, total decimal, PRIMARY KEY (customer, number))
    WITH cdc = {'enabled': true};
INSERT INTO shop.orders (customer, number, total) VALUES ('ada', 1, 9.50);
UPDATE shop.orders SET total = 10 WHERE customer = 'ada' AND number = 1;
DELETE FROM shop.orders WHERE customer = 'ada' AND number = 1;
"""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of two nodes and of a script."""
    folder = tmp_path_factory.mktemp("inputs")
    for number in (1, 2):
        (folder / f"node{number}.json").write_text(node_text(number, 4, 2), encoding="utf-8")
    (folder / "orders.cql").write_text(_SCRIPT, encoding="utf-8")
    return folder


def life(home: str, inputs: Path) -> list[Any]:
    """A join, a table with its log, what is read of it, a look from every side; what was answered."""
    clock = "2026-01-01T00:00:00Z"
    joined = run("--home", home, "--clock", clock, "bootstrap", inputs / "node1.json", "--run", "--json")
    assert joined.exit_code == 0, joined
    told: list[Any] = [joined.json["num_streams"]]
    at = ("--home", home, "--clock", "2026-01-03T00:00:00Z")
    for words in (
        ("cql", "run", inputs / "orders.cql", "--apply", "--json"),
        ("consume", "shop.orders", "--name", "reader", "--json"),
        ("generations", "--json"),
        ("explain", "--token", "1", "--json"),
        ("repair", "--dry-run", "--json"),
        ("expire", "--dry-run", "--json"),
        ("sql", 'SELECT "cdc$operation" AS op FROM shop.orders_scylla_cdc_log ORDER BY op', "--json"),
    ):
        done = run(*at, *words)
        assert done.exit_code == 0, (words, done)
        told.append((words[0], keys(done.stdout)))
    checked = run(*at, "check", "--deep", "--json")
    assert checked.exit_code == 0, checked
    return told


def keys(answer: str) -> list[str]:
    """What an answer tells, whatever it says: the names in its JSON, and how many lines it has."""
    lines = answer.strip().splitlines()
    found = (
        json.loads(answer) if answer.strip()[:1] in "[{" and len(lines) > 1 else [json.loads(each) for each in lines]
    )
    rows = found if isinstance(found, list) else [found]
    return [",".join(sorted(row)) for row in rows if isinstance(row, Mapping)]


def rows(lake: Lake) -> dict[str, list[str]]:
    """The rows of every table, without what no two homes have in common."""
    found = {}
    for keyspace, name in list_stored_tables(lake):
        table = Table(keyspace, name, pa.schema([]), (), "")
        some = lake.read_version(table, lake.version(table) or 0).to_pylist()
        found[f"{keyspace}.{name}"] = sorted(
            repr([(name, value) for name, value in sorted(row.items()) if name not in _OWN and not name.endswith("id")])
            for row in some
        )
    return found


def test_it_lives_as_one_in_a_folder_does(s3: S3, inputs: Path, tmp_path: Path) -> None:
    """The same commands answer alike and leave the same rows; on this machine lies nothing of the tables."""
    address = f"{s3.bucket()}/team/home"
    assert life(address, inputs) == life(str(tmp_path / "twin"), inputs)
    there, twin = rows(Lake(f"{address}/lake")), rows(Lake(tmp_path / "twin" / "lake"))
    assert there.keys() == twin.keys()
    same = [name for name in twin if there[name] == twin[name]]
    # Scripts are kept as they are, with the generations they met; streams end in random bits.
    assert {"platform.nodes", "system_distributed.cdc_generation_timestamps"} <= set(same)
    assert {name: len(some) for name, some in there.items()} == {name: len(some) for name, some in twin.items()}
    assert not [path for path in (tmp_path / "state").rglob("*") if path.suffix in (".parquet", ".json")]


def test_it_lives_through_faults(s3: S3, inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the requests is refused, cut or late: every command does what it was asked, nothing stands twice."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.environment("faulty")["AWS_ENDPOINT_URL"])
    address = f"{s3.bucket()}/home"
    life(address, inputs)
    found = rows(Lake(f"{address}/lake"))
    assert len(found["system_distributed.cdc_generation_timestamps"]) == 1
    assert len(found["shop.orders_scylla_cdc_log"]) == 3


def test_settings_and_layout_lie_in_the_store(s3: S3, tmp_path: Path) -> None:
    """Who opens it from another machine has the same settings; a newer layout is refused there too."""
    address = f"{s3.bucket()}/home"
    home = open_home_location(address)
    assert (home.name, home.lake) == (address, f"{address}/lake")
    assert home.path.is_relative_to(tmp_path / "state")
    assert home.path.stat().st_mode & 0o077 == 0
    put(home, "settings.toml", "ring_delay_ms = 7\n", tmp_path)
    assert open_home_location(address).settings.ring_delay_ms == 7
    put(home, "settings.toml", "ring_delay_ms = 'x'\n", tmp_path)
    refused = run("--home", address, "status")
    assert (refused.exit_code, "settings.toml: ring_delay_ms" in refused.stderr) == (2, True)
    put(home, "platform.json", '{"layout": 99}', tmp_path)
    refused = run("--home", address, "generations")
    assert (refused.exit_code, "has layout 99, written by a newer version" in refused.stderr) == (2, True)


def put(home: HomeLocation, name: str, text: str, tmp_path: Path) -> None:
    """Give a file of a home this text."""
    (tmp_path / "draft").write_text(text, encoding="utf-8")
    (parse_path(home.name) / name).receive(tmp_path / "draft")


@pytest.mark.parametrize(
    ("door", "home", "due"),
    [
        ("expired", "s3://b-expired/h", "does not respond like an object store (403 Forbidden)"),
        ("skewed", "s3://b-skewed/h", "this machine's clock is wrong (RequestTimeTooSkewed); set it by NTP"),
        ("elsewhere", "s3://b-elsewhere/h", "s3://b-elsewhere lies in another region, eu-central-1; set AWS_REGION"),
        ("redirected", "s3://b-redirected/h", "s3://b-redirected lies in another region; set AWS_REGION"),
        ("readonly", None, "does not respond like an object store (403 Forbidden)"),
        ("plain", "s3://no-such-bucket/h", "404"),
        ("plain", "s3://no-such-bucket/h", "s3://no-such-bucket does not exist (404 Not Found); make the bucket"),
        ("plain", "ftp://host/h", "ftp:// is no store that is known"),
        ("plain", "s3://user:word@b/h", "names a place as s3://bucket/prefix"),
    ],
)
def test_a_path_that_cannot_be_a_home_is_refused_in_one_line(
    s3: S3, inputs: Path, monkeypatch: pytest.MonkeyPatch, door: str, home: str | None, due: str
) -> None:
    """Exit code 2, what the store said, no secret, and no folder on this machine."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.environment(door)["AWS_ENDPOINT_URL"])
    done = run("--home", home or f"{s3.bucket()}/h", "bootstrap", inputs / "node1.json", "--run")
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1), done
    assert due in done.stderr
    assert SECRET not in done.stderr
    assert "word@" not in done.stderr


def test_doctor_reports_an_unusable_store(s3: S3, inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket that is not there, and one that was found out to let two writers win, before anything is made there."""
    assert of_doctor(f"{s3.bucket()}/h") == (True, None)
    ok, mend = of_doctor("s3://no-such-bucket/h")
    assert (ok, "no-such-bucket does not exist" in str(mend)) == (False, True)
    address = f"{s3.bucket()}/h"
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.environment("careless")["AWS_ENDPOINT_URL"])
    assert run("--home", address, "bootstrap", inputs / "node1.json").exit_code == 2
    ok, mend = of_doctor(address)
    assert (ok, "enable conditional writes in the store" in str(mend)) == (False, True)


def of_doctor(home: str) -> tuple[bool, str | None]:
    """What doctor says of a home, and how it is mended."""
    told = run("--home", home, "doctor", "--json")
    (of_home,) = (each for each in told.rows if each["check"] == "home")
    assert told.exit_code == int(not all(each["ok"] for each in told.rows))
    return of_home["ok"], of_home["remedy"]


def test_a_full_store_is_reported_in_one_line(s3: S3, inputs: Path) -> None:
    """Looking goes on; with room again the same join ends, and every byte of the home is right."""
    address = f"{s3.bucket()}/h"
    assert run("--home", address, "bootstrap", inputs / "node1.json", "--run").exit_code == 0
    join = ("--home", address, "bootstrap", inputs / "node2.json", "--run")
    s3.has_room(0)
    try:
        stopped, looked = run(*join), run("--home", address, "generations")
    finally:
        s3.has_room(None)
    assert (stopped.exit_code, stopped.stderr.count("\n"), looked.exit_code) == (2, 1, 0), stopped
    assert f"no space left on {address.removesuffix('/h')}; free some and run again" in stopped.stderr
    assert run(*join).exit_code == 0
    assert run("--home", address, "check", "--deep").exit_code == 0


@pytest.mark.grid("capacities of a store", 1)
@pytest.mark.parametrize("writes", [*range(60), *range(60, 94, 3)])
def test_a_store_is_full_at_any_write(s3: S3, inputs: Path, monkeypatch: pytest.MonkeyPatch, writes: int) -> None:
    """While it is tried out, and in the middle of a join: one line, nothing waits; with room again the same goes on."""
    monkeypatch.setattr(object_store, "_RETRIES", 1)
    monkeypatch.setattr(leases, "STALE_SECONDS", 1.0)  # of the turn that the full store does not take back
    address = f"{s3.bucket()}/h"
    join = ("--home", address, "bootstrap", inputs / "node1.json", "--run")
    s3.has_room(writes)
    try:
        stopped = run(*join)
    finally:
        s3.has_room(None)
    assert (stopped.exit_code, stopped.stderr.count("\n")) == (2, 1), stopped
    assert "no space left on " in stopped.stderr
    assert not (parse_path(address) / ".contract").is_folder()
    again = run(*join)
    assert again.exit_code == 0, again
    assert run("--home", address, "check", "--deep").exit_code == 0
    assert Lake(f"{address}/lake").read(GENERATION_TIMESTAMPS).num_rows == 1


def test_drafts_lie_in_this_machines_part_of_the_home(s3: S3, nursery: Nursery, inputs: Path, tmp_path: Path) -> None:
    """Rows on their way into the store are written there first, and nowhere else; nothing of them is left."""
    if nursery.refusal:
        pytest.skip(nursery.refusal)
    places = {"CDC_PLATFORM_STATE": str(tmp_path / "state"), "TMPDIR": str(tmp_path / "tmp")}
    (tmp_path / "tmp").mkdir()
    written = {}
    for name in ("state", "tmp"):
        command = ["--home", f"{s3.bucket()}/home", "bootstrap", str(inputs / "node1.json"), "--run"]
        joined = nursery.traced(command, tmp_path / name, environment=s3.environment() | places)
        assert joined.exit_code == 0, joined
        opened = {path for call, path in joined.operations if call == "openat"}
        written[name] = [path for path in opened if ".parquet" in path]
        assert not [path for path in (tmp_path / name).rglob("*") if "draft" in path.name]
    assert written["tmp"] == []
    assert written["state"]
    assert all(".draft/" in path for path in written["state"])


def test_one_that_is_not_there_is_not_made_by_looking(s3: S3, tmp_path: Path) -> None:
    """As of a folder: what only looks makes nothing, in the store or here."""
    address = f"{s3.bucket()}/home"
    done = run("--home", address, "generations")
    assert (done.exit_code, f"home {address} does not exist" in done.stderr) == (2, True)
    assert not parse_path(address).is_folder()
    assert not (tmp_path / "state").exists()


def test_a_home_is_copied_and_copied_back(s3: S3, inputs: Path, tmp_path: Path) -> None:
    """Folder to store to folder: the same commits, rows and settings; begun again it finds what it brought."""
    first, there, back = str(tmp_path / "first"), f"{s3.bucket()}/copy", str(tmp_path / "back")
    joined = run("--home", first, "--clock", "2026-01-01T00:00:00Z", "bootstrap", inputs / "node1.json", "--run")
    assert joined.exit_code == 0, joined
    (tmp_path / "first" / "settings.toml").write_text("ring_delay_ms = 7\n", encoding="utf-8")
    # As if it had been interrupted: the note is there, and a part of the files.
    [begun] = lake_copy.read_settled_versions(Lake(f"{first}/lake"))
    parts = [{"path": "", "source": first, "versions": begun}]
    lake_copy.put_file(lake_copy.get_copy_note_path(there), json.dumps({"from": first, "parts": parts}).encode())
    some = next((tmp_path / "first" / "lake" / "platform").rglob("*.parquet")).relative_to(tmp_path / "first")
    (tmp_path / "draft").write_bytes((tmp_path / "first" / some).read_bytes())
    (parse_path(there) / str(some)).receive(tmp_path / "draft")
    found = run("home", "copy", first, there, "--json")
    assert (found.exit_code, found.json["already_copied"]) == (0, 1), found
    assert run("home", "copy", there, back).exit_code == 0
    twins = [Lake(f"{each}/lake") for each in (first, there, back)]
    assert read_newest_versions(twins[0]) == read_newest_versions(twins[1]) == read_newest_versions(twins[2])
    assert rows(twins[0]) == rows(twins[1]) == rows(twins[2])
    assert [open_home_location(each).settings.ring_delay_ms for each in (there, back)] == [7, 7]
    assert parse_path(there).names() == [".lake.contract.json", "platform.json", "settings.toml"]
    assert run("--home", there, "check", "--deep").exit_code == 0
    for target, due in ((first, "is the home itself"), (back, "already exists"), (there, "already exists")):
        refused = run("home", "copy", first, target)
        assert (refused.exit_code, due in refused.stderr) == (2, True), refused


def test_a_home_is_not_copied_into_a_store_that_lets_two_writers_win(
    s3: S3, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line, as of every write, and nothing of the home is there; also where the store was tried out before."""
    first, bucket = str(tmp_path / "first"), s3.bucket()
    assert run("--home", first, "bootstrap", inputs / "node1.json").exit_code == 0
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.environment("careless")["AWS_ENDPOINT_URL"])
    for _ in range(2):
        refused = run("home", "copy", first, f"{bucket}/copy")
        assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1), refused
        assert f"copying to {bucket}/copy: {bucket} lets two writers create the same object" in refused.stderr
        assert (parse_path(f"{bucket}/copy").names(), parse_path(f"{bucket}/copy").folders()) == (
            [".lake.contract.json"],
            [],
        )


_ON_BOTH = (
    "SELECT time, count(*) AS n, min(range_end) AS e, sum(cardinality(streams)) AS s"
    " FROM cdc_streams_descriptions_v2 GROUP BY time ORDER BY time",
    "SELECT * FROM cdc_generation_timestamps ORDER BY time",
    "SELECT count(*) AS n FROM cdc_generation_descriptions_v2",
    "SELECT g.generation_id, d.range_end FROM generations AS g JOIN cdc_generation_descriptions_v2 AS d"
    " ON g.generation_id = d.id ORDER BY 1, 2",
    "SELECT host_id FROM system.cdc_local",
)


@pytest.fixture(scope="module")
def made_on_spark(s3_process: S3, inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[Any]]:
    """A home that one process made on a session of its own, and what queries were answered there.

    By a profile of AWS's, which Spark's tasks look up themselves: by another key, or none, nothing of it is let in.
    """
    address = f"{s3_process.bucket()}/home"
    environment = {name: value for name, value in os.environ.items() if name not in {"SPARK_REMOTE", *INSTEAD_OF}}
    environment |= by_profile(s3_process, tmp_path_factory.mktemp("of") / "user")
    environment |= {"CDC_PLATFORM_STATE": str(tmp_path_factory.mktemp("state"))}
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
    code += "from storage.test_store_homes import print_what_spark_does\nprint_what_spark_does(*sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", code, address, inputs],
        env=environment | {IN_PROCESS_VARIABLE: "0"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return address, json.loads(done.stdout)


def print_what_spark_does(address: str, inputs: str) -> None:
    """Let two nodes join, and print what all queries answer with, as the command says it: in a process of its own.

    Whose standard error is what the JVM writes, if anything: also where a query is wrong.
    """
    for number in (1, 2):
        joined = run("--home", address, "bootstrap", f"{inputs}/node{number}.json", "--run")
        assert (joined.exit_code, joined.stderr) == (0, ""), joined
    refused = run("--home", address, "sql", "SELECT nowhere FROM nodes", "--spark")
    assert (refused.exit_code, refused.stdout, refused.stderr.count("\n")) == (2, "", 1), refused
    assert ("error: " in refused.stderr, "nowhere" in refused.stderr) == (True, True), refused
    print(json.dumps([run("--home", address, "sql", query, "--spark", "--json").rows for query in _ON_BOTH]))


@pytest.mark.spark
@pytest.mark.long("a JVM, by which two nodes join and all is asked")
def test_tasks_of_spark_write_into_a_store(s3: S3, made_on_spark: tuple[str, list[Any]]) -> None:
    """A join whose rows are all made, written and audited by Spark's workers, by a profile, without hadoop-aws."""
    address, _ = made_on_spark
    assert run("--home", address, "check", "--deep").exit_code == 0


@pytest.mark.spark
def test_queries_on_spark_read_a_store(s3: S3, made_on_spark: tuple[str, list[Any]]) -> None:
    """Of all tables by one session: the answers of the embedded engine, by the names that a query has for columns."""
    address, told = made_on_spark
    assert told == [run("--home", address, "sql", query, "--json").rows for query in _ON_BOTH]
    assert [len(rows) for rows in told[:4]] == [2, 2, 1, told[2][0]["n"]]
    assert all(told)


def test_dagster_joins_nodes_in_a_store(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run queues a node and one lets it join; what the UI shows of it lies on this machine, tables in the store."""
    address = f"{s3.bucket()}/home"
    monkeypatch.setenv(HOME_VARIABLE, address)
    with DagsterInstance.ephemeral() as instance:
        rehearsal = Rehearsal(instance, Lake(f"{address}/lake"))
        joined = rehearsal.join(rehearsal.queue(1))
    assert joined.success
    assert [event.check_name for event in joined.get_asset_check_evaluations() if not event.passed] == []
    places = [
        event.materialization.metadata["dagster/uri"].value for event in joined.get_asset_materialization_events()
    ]
    assert all(str(place).startswith(f"{address}/lake/") for place in places)
    shown = [path.suffix for path in (tmp_path / "state").rglob("shown/*/*")]
    assert (shown.count(".html"), shown.count(".png") > 0) == (1, True)
    assert run("--home", address, "check").exit_code == 0


def test_a_home_in_a_store_is_migrated_and_undone(s3: S3) -> None:
    """Its marker and settings are objects; the migration's own objects are removed at the end."""
    address = f"{s3.bucket()}/home"
    before = {"platform.json": b'{"layout": 1}\n', "settings.toml": b"generation_retry_ms = 5\npolicy = 'strict'\n"}
    root = parse_path(address)
    assert isinstance(root, ObjectStorePath)

    def stored() -> dict[str, bytes]:
        objects, _ = root.page("")
        keys = [str(key) for key, _ in objects]
        found = {key.removeprefix("home/"): ObjectStorePath(root.root, key).read() for key in keys}
        return {name: content for name, content in found.items() if name != "up.lease.json"}

    for name, content in before.items():
        (root / name).put(content)
    home_migration._begin(root, root / home_migration.MIGRATION_FOLDER, home_migration.file_steps())
    assert any(name.startswith(f"{home_migration.MIGRATION_FOLDER}/") for name in stored())
    undone = run("--home", address, "home", "migrate", "--undo", "--json")
    assert (undone.exit_code, undone.json["layout"]) == (0, 1), undone.stderr
    assert stored() == before
    done = run("--home", address, "home", "migrate", "--json")
    assert [file["path"] for file in done.json["files"]] == ["settings.toml", "platform.json"], done.stderr
    after = {"platform.json": f'{{"layout": {LAYOUT_VERSION}}}\n'.encode(), "settings.toml": b"policy = 'strict'\n"}
    assert stored() == after
