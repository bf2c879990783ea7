"""A home in an object store behaves like one in a folder, with the same commands and the same rows."""

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

# Random, from the machine's clock, or from the names of files.
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


def run_commands(home: str, inputs: Path) -> list[Any]:
    """Run a join, create a table with its log, consume it and run read-only commands; return the answers."""
    clock = "2026-01-01T00:00:00Z"
    joined = run("--home", home, "--clock", clock, "bootstrap", inputs / "node1.json", "--run", "--json")
    assert joined.exit_code == 0, joined
    answers: list[Any] = [joined.json["num_streams"]]
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
        answers.append((words[0], json_keys(done.stdout)))
    checked = run(*at, "check", "--deep", "--json")
    assert checked.exit_code == 0, checked
    return answers


def json_keys(answer: str) -> list[str]:
    """Return the names in an answer's JSON, one string per row, regardless of values."""
    lines = answer.strip().splitlines()
    parsed = (
        json.loads(answer) if answer.strip()[:1] in "[{" and len(lines) > 1 else [json.loads(line) for line in lines]
    )
    parsed_rows = parsed if isinstance(parsed, list) else [parsed]
    return [",".join(sorted(row)) for row in parsed_rows if isinstance(row, Mapping)]


def comparable_rows(lake: Lake) -> dict[str, list[str]]:
    """Return the rows of every table, without values that differ between any two homes."""
    tables = {}
    for keyspace, name in list_stored_tables(lake):
        table = Table(keyspace, name, pa.schema([]), (), "")
        stored_rows = lake.read_version(table, lake.version(table) or 0).to_pylist()
        tables[f"{keyspace}.{name}"] = sorted(
            repr([(name, value) for name, value in sorted(row.items()) if name not in _OWN and not name.endswith("id")])
            for row in stored_rows
        )
    return tables


def test_home_in_a_store_equals_one_in_a_folder(s3: S3, inputs: Path, tmp_path: Path) -> None:
    """The same commands give equal answers and rows; no table is stored on this machine."""
    address = f"{s3.bucket()}/team/home"
    assert run_commands(address, inputs) == run_commands(str(tmp_path / "twin"), inputs)
    in_store, in_folder = comparable_rows(Lake(f"{address}/lake")), comparable_rows(Lake(tmp_path / "twin" / "lake"))
    assert in_store.keys() == in_folder.keys()
    same = [name for name in in_folder if in_store[name] == in_folder[name]]
    # Scripts are stored unchanged, with the generations that they used; streams end in random bits.
    assert {"platform.nodes", "system_distributed.cdc_generation_timestamps"} <= set(same)
    assert {name: len(table_rows) for name, table_rows in in_store.items()} == {
        name: len(table_rows) for name, table_rows in in_folder.items()
    }
    assert not [path for path in (tmp_path / "state").rglob("*") if path.suffix in (".parquet", ".json")]


def test_home_survives_faults_of_the_store(s3: S3, inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the requests is refused, cut or delayed: every command succeeds, and no row is doubled."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.environment("faulty")["AWS_ENDPOINT_URL"])
    address = f"{s3.bucket()}/home"
    run_commands(address, inputs)
    tables = comparable_rows(Lake(f"{address}/lake"))
    assert len(tables["system_distributed.cdc_generation_timestamps"]) == 1
    assert len(tables["shop.orders_scylla_cdc_log"]) == 3


def test_settings_and_layout_are_in_the_store(s3: S3, tmp_path: Path) -> None:
    """Another machine reads the same settings; a newer layout is refused there, too."""
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
    """Write a file of a home with this text."""
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
def test_unusable_home_address_is_refused_in_one_line(
    s3: S3, inputs: Path, monkeypatch: pytest.MonkeyPatch, door: str, home: str | None, due: str
) -> None:
    """Exit code 2, the store's response, no secret, and no folder on this machine."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.environment(door)["AWS_ENDPOINT_URL"])
    done = run("--home", home or f"{s3.bucket()}/h", "bootstrap", inputs / "node1.json", "--run")
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1), done
    assert due in done.stderr
    assert SECRET not in done.stderr
    assert "word@" not in done.stderr


def test_doctor_reports_an_unusable_store(s3: S3, inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reports a missing bucket, and one without conditional writes, before a home is created there."""
    assert doctor_result(f"{s3.bucket()}/h") == (True, None)
    ok, remedy = doctor_result("s3://no-such-bucket/h")
    assert (ok, "no-such-bucket does not exist" in str(remedy)) == (False, True)
    address = f"{s3.bucket()}/h"
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.environment("careless")["AWS_ENDPOINT_URL"])
    assert run("--home", address, "bootstrap", inputs / "node1.json").exit_code == 2
    ok, remedy = doctor_result(address)
    assert (ok, "enable conditional writes in the store" in str(remedy)) == (False, True)


def doctor_result(home: str) -> tuple[bool, str | None]:
    """Return doctor's result for a home, and the remedy."""
    answer = run("--home", home, "doctor", "--json")
    (home_check,) = (row for row in answer.rows if row["check"] == "home")
    assert answer.exit_code == int(not all(row["ok"] for row in answer.rows))
    return home_check["ok"], home_check["remedy"]


def test_full_store_is_reported_in_one_line(s3: S3, inputs: Path) -> None:
    """Reads continue; once there is space the same join completes, and a deep check passes."""
    address = f"{s3.bucket()}/h"
    assert run("--home", address, "bootstrap", inputs / "node1.json", "--run").exit_code == 0
    join = ("--home", address, "bootstrap", inputs / "node2.json", "--run")
    s3.has_room(0)
    try:
        stopped, read = run(*join), run("--home", address, "generations")
    finally:
        s3.has_room(None)
    assert (stopped.exit_code, stopped.stderr.count("\n"), read.exit_code) == (2, 1, 0), stopped
    assert f"no space left on {address.removesuffix('/h')}; free some and run again" in stopped.stderr
    assert run(*join).exit_code == 0
    assert run("--home", address, "check", "--deep").exit_code == 0


@pytest.mark.grid("capacities of a store", 1)
@pytest.mark.parametrize("writes", [*range(60), *range(60, 94, 3)])
def test_store_that_is_full_at_any_write(s3: S3, inputs: Path, monkeypatch: pytest.MonkeyPatch, writes: int) -> None:
    """At any point of probe or join the command fails with one line; once there is space it succeeds."""
    monkeypatch.setattr(object_store, "_RETRIES", 1)
    monkeypatch.setattr(leases, "STALE_SECONDS", 1.0)  # for the lock, which the full store does not release
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
    repeated = run(*join)
    assert repeated.exit_code == 0, repeated
    assert run("--home", address, "check", "--deep").exit_code == 0
    assert Lake(f"{address}/lake").read(GENERATION_TIMESTAMPS).num_rows == 1


def test_drafts_are_in_the_state_folder_of_the_home(s3: S3, nursery: Nursery, inputs: Path, tmp_path: Path) -> None:
    """Rows for the store are first written there and nowhere else; no draft remains."""
    if nursery.refusal:
        pytest.skip(nursery.refusal)
    variables = {"CDC_PLATFORM_STATE": str(tmp_path / "state"), "TMPDIR": str(tmp_path / "tmp")}
    (tmp_path / "tmp").mkdir()
    written = {}
    for name in ("state", "tmp"):
        command = ["--home", f"{s3.bucket()}/home", "bootstrap", str(inputs / "node1.json"), "--run"]
        joined = nursery.traced(command, tmp_path / name, environment=s3.environment() | variables)
        assert joined.exit_code == 0, joined
        opened = {path for call, path in joined.operations if call == "openat"}
        written[name] = [path for path in opened if ".parquet" in path]
        assert not [path for path in (tmp_path / name).rglob("*") if "draft" in path.name]
    assert written["tmp"] == []
    assert written["state"]
    assert all(".draft/" in path for path in written["state"])


def test_read_only_command_creates_no_home(s3: S3, tmp_path: Path) -> None:
    """Neither the store nor this machine gets an object or a folder of it."""
    address = f"{s3.bucket()}/home"
    done = run("--home", address, "generations")
    assert (done.exit_code, f"home {address} does not exist" in done.stderr) == (2, True)
    assert not parse_path(address).is_folder()
    assert not (tmp_path / "state").exists()


def test_home_is_copied_to_a_store_and_back(s3: S3, inputs: Path, tmp_path: Path) -> None:
    """Commits, rows and settings stay equal; a restarted copy finds what it already copied."""
    first, in_store, back = str(tmp_path / "first"), f"{s3.bucket()}/copy", str(tmp_path / "back")
    joined = run("--home", first, "--clock", "2026-01-01T00:00:00Z", "bootstrap", inputs / "node1.json", "--run")
    assert joined.exit_code == 0, joined
    (tmp_path / "first" / "settings.toml").write_text("ring_delay_ms = 7\n", encoding="utf-8")
    # Simulate an interrupted copy: the note exists, and a part of the files.
    [versions] = lake_copy.read_settled_versions(Lake(f"{first}/lake"))
    parts = [{"path": "", "source": first, "versions": versions}]
    lake_copy.put_file(lake_copy.get_copy_note_path(in_store), json.dumps({"from": first, "parts": parts}).encode())
    file = next((tmp_path / "first" / "lake" / "platform").rglob("*.parquet")).relative_to(tmp_path / "first")
    (tmp_path / "draft").write_bytes((tmp_path / "first" / file).read_bytes())
    (parse_path(in_store) / str(file)).receive(tmp_path / "draft")
    copied = run("home", "copy", first, in_store, "--json")
    assert (copied.exit_code, copied.json["already_copied"]) == (0, 1), copied
    assert run("home", "copy", in_store, back).exit_code == 0
    lakes = [Lake(f"{address}/lake") for address in (first, in_store, back)]
    assert read_newest_versions(lakes[0]) == read_newest_versions(lakes[1]) == read_newest_versions(lakes[2])
    assert comparable_rows(lakes[0]) == comparable_rows(lakes[1]) == comparable_rows(lakes[2])
    assert [open_home_location(address).settings.ring_delay_ms for address in (in_store, back)] == [7, 7]
    assert parse_path(in_store).names() == [".lake.contract.json", "platform.json", "settings.toml"]
    assert run("--home", in_store, "check", "--deep").exit_code == 0
    for target, message in ((first, "is the home itself"), (back, "already exists"), (in_store, "already exists")):
        refused = run("home", "copy", first, target)
        assert (refused.exit_code, message in refused.stderr) == (2, True), refused


def test_home_is_not_copied_into_a_store_without_conditional_writes(
    s3: S3, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line refuses it like any write, also on a second try; nothing of the home is copied."""
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


_QUERIES = (
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
    """A home that one process created in its own Spark session, and the results of queries there.

    The process has an AWS profile, which Spark's tasks resolve themselves; the store accepts no other key.
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
    """Let two nodes join and print the results of all queries as JSON, in a separate process.

    The process's standard error has only what the JVM writes, also for an invalid query.
    """
    for number in (1, 2):
        joined = run("--home", address, "bootstrap", f"{inputs}/node{number}.json", "--run")
        assert (joined.exit_code, joined.stderr) == (0, ""), joined
    refused = run("--home", address, "sql", "SELECT nowhere FROM nodes", "--spark")
    assert (refused.exit_code, refused.stdout, refused.stderr.count("\n")) == (2, "", 1), refused
    assert ("error: " in refused.stderr, "nowhere" in refused.stderr) == (True, True), refused
    print(json.dumps([run("--home", address, "sql", query, "--spark", "--json").rows for query in _QUERIES]))


@pytest.mark.spark
@pytest.mark.long("a JVM, by which two nodes join and all is asked")
def test_spark_tasks_write_into_a_store(s3: S3, made_on_spark: tuple[str, list[Any]]) -> None:
    """Spark's workers write and audit all rows of a join, with a profile and without hadoop-aws."""
    address, _ = made_on_spark
    assert run("--home", address, "check", "--deep").exit_code == 0


@pytest.mark.spark
def test_spark_queries_read_a_store(s3: S3, made_on_spark: tuple[str, list[Any]]) -> None:
    """One session queries all tables and gives the embedded engine's results, with the same column names."""
    address, results = made_on_spark
    assert results == [run("--home", address, "sql", query, "--json").rows for query in _QUERIES]
    assert [len(result) for result in results[:4]] == [2, 2, 1, results[2][0]["n"]]
    assert all(results)


def test_dagster_joins_nodes_in_a_store(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One run queues a node and one lets it join; files for the UI are on this machine, tables in the store."""
    address = f"{s3.bucket()}/home"
    monkeypatch.setenv(HOME_VARIABLE, address)
    with DagsterInstance.ephemeral() as instance:
        rehearsal = Rehearsal(instance, Lake(f"{address}/lake"))
        joined = rehearsal.join(rehearsal.queue(1))
    assert joined.success
    assert [event.check_name for event in joined.get_asset_check_evaluations() if not event.passed] == []
    uris = [event.materialization.metadata["dagster/uri"].value for event in joined.get_asset_materialization_events()]
    assert all(str(uri).startswith(f"{address}/lake/") for uri in uris)
    suffixes = [path.suffix for path in (tmp_path / "state").rglob("shown/*/*")]
    assert (suffixes.count(".html"), suffixes.count(".png") > 0) == (1, True)
    assert run("--home", address, "check").exit_code == 0


def test_home_in_a_store_is_migrated_and_migrated_back(s3: S3) -> None:
    """Its marker and settings are objects; the migration's own objects are removed at the end."""
    address = f"{s3.bucket()}/home"
    before = {"platform.json": b'{"layout": 1}\n', "settings.toml": b"generation_retry_ms = 5\npolicy = 'strict'\n"}
    root = parse_path(address)
    assert isinstance(root, ObjectStorePath)

    def stored() -> dict[str, bytes]:
        objects, _ = root.page("")
        object_keys = [str(key) for key, _ in objects]
        contents = {key.removeprefix("home/"): ObjectStorePath(root.root, key).read() for key in object_keys}
        return {name: content for name, content in contents.items() if name != "up.lease.json"}

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


def test_cluster_homes_of_a_store_home_are_migrated_in_the_store_and_on_this_machine(s3: S3) -> None:
    """A cluster's home is migrated where it is: in the store, or on the machine where an early version put it."""
    address = f"{s3.bucket()}/home"
    root = parse_path(address)
    assert isinstance(root, ObjectStorePath)
    for path in ("platform.json", "clusters/in_store/platform.json"):
        (root / path).put(b'{"layout": 1}\n')
    local = open_home_location(address).path / "clusters" / "on_machine"
    (local / "lake").mkdir(parents=True)
    (local / "platform.json").write_text('{"layout": 1}\n', encoding="utf-8")
    done = run("--home", address, "home", "migrate", "--json")
    markers = ["clusters/on_machine/platform.json", "clusters/in_store/platform.json", "platform.json"]
    assert [file["path"] for file in done.json["files"]] == markers, done.stderr
    for content in ((local / "platform.json").read_bytes(), *((root / path).read() for path in markers[1:])):
        assert json.loads(content)["layout"] == LAYOUT_VERSION
    assert not (local / home_migration.MIGRATION_FOLDER).exists()
    (local / "platform.json").write_text(f'{{"layout": {LAYOUT_VERSION + 1}}}', encoding="utf-8")
    refused = run("--home", address, "home", "migrate")
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert str(local) in refused.stderr
