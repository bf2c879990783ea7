"""Homes of earlier programs still open: every table is readable, every query answers the same, and work continues.

`data/homes/` contains them packed, with the answers of that program; its README describes how they were made. To add
homes with a date: PYTHONPATH=tests python tests/test_older_homes.py YYYY-MM-DD
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from support.command_line import Answer, run
from support.homes.damaged import healthy_home
from support.homes.every_table import every_table, rewritten
from support.homes.packed import PACKED, unpack
from support.nodes import node_fields

from cdc_platform.cli.output import to_json_value
from cdc_platform.clock import HOUR_MS, format_ms, parse_time_ms
from cdc_platform.delta import Lake, verify_tables
from cdc_platform.tables import CDC_TABLES, STREAMS_DESCRIPTIONS_V2, TABLES, Table

RELEASES = sorted(path.name.removesuffix(".tar.xz") for path in PACKED.glob("*.tar.xz"))
OLDEST = "2026-11"
"""The release whose homes recorded no time of a mark and wrote partition times without a zone."""
HOMES = {OLDEST: ("cluster", "first_format")}
ALL_HOMES = ("cluster", "first_format", "logged")
NEWER: Mapping[str, frozenset[str]] = {
    "2026-11": frozenset(
        {
            "platform.verdicts",
            "platform.verdict_counts",
            "platform.passed_over",
            "platform.judgements",
            "platform.table_checks",
            "platform.only_observed",
            "platform.committed_generations",
            "platform.left_out",
            "platform.stream_fingerprints",
            "platform.cluster_changes",
            "platform.expiry_marks",
            "platform.log_gaps",
        }
    ),
    "2026-11-28": frozenset({"platform.table_checks", "platform.verdict_counts"}),
}
"""The tables that were declared after a release's homes were made, so those homes do not have them."""
WORDS = frozenset({"reason", "reasons", "detail", "blocked_by"})
"""Fields with sentences, whose wording may improve."""
RENAMED = {
    "row_lies": "row_location",
    "stream_lies": "stream_location",
    "cannot_tell": "undetermined",
    "goes_on_in": "checkpoint",
    "passed_over": "skipped",
    "bytes": "bytes_in_lake",
    "bytes_with_expiry": "bytes_in_lake_with_expiry",
    "published_bytes_in_scylladb": "bytes_in_scylladb",
}
"""Fields that had other names when the answers were recorded."""
LISTS = (
    "generations",
    "ranges",
    "decisions",
    "switches",
    "tables",
    "changes",
    "stream_sets",
    "consumers",
    "forecast",
    "rows",
)
"""The names of lists in documents. When the answers were recorded, the list itself was the document."""
BEFORE, BETWEEN, NOW, LATE = (
    "2026-09-01T00:00:00Z",
    "2026-11-01T10:00:00Z",
    "2026-11-01T14:00:15Z",
    "2026-11-01T14:05:00Z",
)
"""Before all generations, in the middle, before the first lease of the undecided switch ends, and after that."""
LATER = "2026-11-01T14:10:00Z"
WATCHER = "watch"
"""A consumer of the home `logged` that has read everything before the last script."""
LOG_ORDER = "`cdc$time`, `cdc$batch_seq_no`, `cdc$stream_id`"
LOGGED, LOG_SUFFIX = ("shop.carts", "shop.visits", "tabs.sessions"), "_scylla_cdc_log"
IMPORTED, UNDECIDED = "8d3f3f2e-3c61-4b0e-9a59-5a3f7c1de001", "@UNDECIDED@"
FIRST_FORMAT_NOW = "2026-10-02T10:05:00Z"
SCRIPT = """UPDATE shop.carts SET count = 9 WHERE customer = 'ada' AND item = 1;
INSERT INTO tabs.sessions (id, agent) VALUES (9, 'new');
INSERT INTO shop.visits (page, seen, from_page) VALUES ('cart', 1, 'home');"""
# The nodes whose joins are queued in the cluster, with their original files.
WAITING = {
    6: ("66666666-6666-4666-8666-666666666666", [3_000_000_000_000_000_000, 9_000_000_000_000_000_000]),
    7: ("77777777-7777-4777-8777-777777777777", [-2_000_000_000_000_000_000]),
}

Question = tuple[str, str, tuple[str, ...]]
QUESTION = ("home", "clock", "command")
Answers = list[dict[str, Any]]
Files = dict[str, int]
"""The time of each file's last change."""


def questions() -> list[Question]:
    """Return the questions for each home: its name, the clock and the command. None of them starts a JVM."""
    explained = [
        (at, at, *lookup)
        for at in ("2026-10-05T00:00:00Z", "2026-11-01T09:01:04.999Z", "2026-11-01T09:01:05Z", NOW, LATE)
        for lookup in (("--token", "42"), ("--token", "101"), ("--key", "0x616461", "--key", "0x00000001"))
    ]
    explained += [(at, at, "--token", "-7", "--table", "tabs.sessions") for at in (BEFORE, BETWEEN, NOW, LATE)]
    explained += [
        (NOW, at, "--token", "42", "--policy", policy)
        for at in ("2026-10-03T00:00:00Z", "2026-11-01T14:00:14Z", "2026-11-01T14:00:21Z")
        for policy in ("strict", "recent-past")
    ]
    explained += [(BEFORE, BEFORE, "--token", "42"), ("2026-10-01T09:00:00Z",) * 2 + ("--token", "42")]
    times = ("2026-10-02T08:00:00.000Z", "2026-10-10T00:00:00.384Z", "2026-11-01T09:01:05.000Z")
    cluster = [
        *((clock, ("generations",)) for clock in (BEFORE, BETWEEN, NOW, LATE)),
        *((NOW, ("generations", "--since", since)) for since in (BEFORE, BETWEEN, LATE)),
        *((clock, ("explain", "--at", at, *rest)) for clock, at, *rest in explained),
        *((NOW, ("streams", time)) for time in (*times, IMPORTED, "2026-10-01T08:00:00.000Z")),
        *((NOW, ("diff", old, "2026-11-01T09:01:05.000Z")) for old in (*times, "2026-10-01T08:00:00.000Z")),
        *((clock, ("expire", "--dry-run")) for clock in (BEFORE, NOW, "2027-03-01T00:00:00Z")),
        (NOW, ("expire", "--forecast", "3")),
        *((NOW, ("repair", "--dry-run", strict)) for strict in ("--strict", "--no-strict")),
        *((NOW, ("rewrite", *again, "--dry-run")) for again in ((), ("--force",))),
        (NOW, ("ring",)),
        (NOW, ("switch", "show")),
        (NOW, ("switch", "show", UNDECIDED)),
        (NOW, ("tables",)),
        (NOW, ("tables", "--history")),
        (NOW, ("tablets", "show", "tabs.sessions")),
        *((clock, ("tablets", "gc", "--dry-run")) for clock in (NOW, "2027-03-01T00:00:00Z")),
        (NOW, ("consumers",)),
    ]
    old = ("2021-03-01T08:00:00.000Z", "2021-03-09T10:15:00.000Z", "2026-10-02T10:01:05.000Z")
    first_format = [
        *((clock, ("generations",)) for clock in ("2021-03-05T00:00:00Z", FIRST_FORMAT_NOW)),
        *((FIRST_FORMAT_NOW, ("streams", time)) for time in old),
        *((time, ("explain", "--token", "42")) for time in (*old, FIRST_FORMAT_NOW)),
        (FIRST_FORMAT_NOW, ("diff", old[1], old[2])),
        *((FIRST_FORMAT_NOW, ("rewrite", *again, "--dry-run")) for again in ((), ("--force",))),
        *((FIRST_FORMAT_NOW, (command, "--dry-run")) for command in ("expire", "repair")),
        *((FIRST_FORMAT_NOW, (command,)) for command in ("ring", "tables", "consumers")),
    ]
    logged = [
        *((NOW, ("sql", f"SELECT * FROM {table}{LOG_SUFFIX} ORDER BY {LOG_ORDER}")) for table in LOGGED),
        *((NOW, (command,)) for command in ("consumers", "tables", "generations")),
    ]
    return [
        *(("cluster", clock, tuple(command)) for clock, command in cluster),
        *(("first_format", clock, tuple(command)) for clock, command in first_format),
        *(("logged", clock, tuple(command)) for clock, command in logged),
    ]


def homes_of(release: str) -> tuple[str, ...]:
    """Return the names of a release's homes."""
    return HOMES.get(release, ALL_HOMES)


def questions_to(release: str) -> list[Question]:
    """Return the questions that the homes of a release can answer."""
    return [question for question in questions() if question[0] in homes_of(release)]


def answer_of(homes: Path, question: Question) -> dict[str, Any]:
    """Return the program's answer in the recorded form."""
    home, clock, command = question
    named = [undecided(homes / home) if word == UNDECIDED else word for word in command]
    answer = run("--home", homes / home, "--clock", clock, *named, "--json")
    document = (
        without_sentences(json.loads(answer.stdout.replace(str(homes / home), "HOME"))) if answer.stdout else None
    )
    return {"home": home, "clock": clock, "command": list(command), "exit_code": answer.exit_code, "answer": document}


def without_sentences(document: Any) -> Any:
    """Return a document without its sentences."""
    if isinstance(document, dict):
        return {name: without_sentences(value) for name, value in document.items() if name not in WORDS}
    return [without_sentences(value) for value in document] if isinstance(document, list) else document


def undecided(home: Path) -> str:
    """Return the generation whose switch is undecided."""
    (switch,) = [switched for switched in ask(home, NOW, "switch", "show") if switched["phase"] == "preparing"]
    return switch["generation_id"]


def rows_of(home: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of every existing declared table, in a fixed order."""
    lake = Lake(home / "lake")
    rows_by_table = {name: lake.read(table).to_pylist() for name, table in TABLES.items() if lake.exists(table)}
    return {name: sorted(map(_plain, rows), key=json.dumps) for name, rows in rows_by_table.items()}


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps({name: to_json_value(value) for name, value in sorted(row.items())}))


def recorded(release: str) -> dict[str, Any]:
    """Return the answers of that release's program, and the rows of its homes."""
    return json.loads((PACKED / f"{release}.json").read_text(encoding="utf-8"))


def record(release: str) -> None:
    """Record the answers of a release's homes, one row or answer per line."""
    with tempfile.TemporaryDirectory() as folder:
        homes = unpack(release, Path(folder))
        answers = [answer_of(homes, question) for question in questions_to(release)]
        tables = {home: rows_of(homes / home) for home in homes_of(release)}
    lines_by_table = {
        f"{home} {name}": [json.dumps(row) for row in rows]
        for home in homes_of(release)
        for name, rows in tables[home].items()
    }
    listed = _lines(f"{json.dumps(name)}: [{_lines(rows)}]" for name, rows in lines_by_table.items())
    text = f'{{"answers": [{_lines(json.dumps(answer) for answer in answers)}],\n"tables": {{{listed}}}}}\n'
    (PACKED / f"{release}.json").write_text(text, encoding="utf-8")


def pack(release: str) -> None:
    """Build the homes of the current program, pack them, and record their answers."""
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder)
        (built / "homes").mkdir()
        old = unpack(OLDEST, built / "oldest")
        every_table(built / "every").rename(built / "homes" / "cluster")
        rewritten(old / "first_format", built / "homes" / "first_format")
        healthy_home(built / "healthy").rename(built / "homes" / "logged")
        script = built / "script.cql"
        script.write_text(SCRIPT, encoding="utf-8")
        assert ask(built / "homes" / "logged", NOW, "consume", "shop.visits", "--name", WATCHER)["rows"] == 2
        ask(built / "homes" / "logged", NOW, "cql", "run", script, "--apply")
        for home in ALL_HOMES:
            command_on(built / "homes" / home, NOW, "generations")  # this marks the home with its layout
        with tarfile.open(PACKED / f"{release}.tar.xz", "w:xz") as packed:
            for home in ALL_HOMES:
                packed.add(built / "homes" / home, home)
    record(release)


def _lines(entries: Iterable[str]) -> str:
    return "\n" + ",\n".join(entries) + "\n"


@pytest.fixture(scope="module", params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    """Return a release with packed homes."""
    return request.param


@pytest.fixture(scope="module")
def homes(release: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the release's homes, unpacked once and used without writes."""
    return unpack(release, tmp_path_factory.mktemp("older") / release)


@pytest.fixture(scope="module")
def looked(homes: Path) -> tuple[Answers, Files, Files]:
    """Return the homes' answers to all questions, and their files before and after."""
    before = _files(homes)
    return [answer_of(homes, question) for question in questions_to(homes.name)], before, _files(homes)


@pytest.fixture
def cluster(homes: Path, tmp_path: Path) -> Path:
    """Return a copy of the larger home for tests that write."""
    return shutil.copytree(homes / "cluster", tmp_path / "cluster")


def ask(home: Path, clock: str, *command: str | Path) -> Any:
    """Run a command that must succeed; return its document, or the list in it."""
    answer = command_on(home, clock, *command, "--json")
    assert answer.exit_code == 0, answer.stderr
    return rows_of_document(answer.json)


def command_on(home: Path, clock: str, *command: str | Path) -> Answer:
    """Run a command on a home at a time."""
    return run("--home", home, "--clock", clock, *command)


def test_every_declared_table_is_in_them(release: str, homes: Path) -> None:
    """A table missing from these homes must be listed as newer; a new table needs a new home."""
    filled = {name for home in homes_of(release) for name, rows in rows_of(homes / home).items() if rows}
    assert set(TABLES) - filled == NEWER[release]


def test_every_table_is_read_as_it_was_written(release: str, homes: Path) -> None:
    """The homes have exactly the recorded tables, with all rows in every column of that time."""
    rows = {
        f"{home} {name}": table_rows for home in homes_of(release) for name, table_rows in rows_of(homes / home).items()
    }
    then = recorded(release)["tables"]
    assert set(rows) == set(then)
    for name, old_rows in then.items():
        columns = set(old_rows[0]) if old_rows else set()
        assert [{k: v for k, v in row.items() if k in columns} for row in rows[name]] == old_rows, name


def _label(question: Question) -> str:
    home, clock, command = question
    return f"{home} {clock} {' '.join(command)}"


@pytest.mark.parametrize("question", questions(), ids=[_label(question) for question in questions()])
@pytest.mark.long("a command as a whole process")
def test_recorded_answers_are_unchanged(release: str, looked: tuple[Answers, Files, Files], question: Question) -> None:
    """Every read-only command gives the recorded answer and exit code; later fields are ignored."""
    if question[0] not in homes_of(release):
        pytest.skip(f"{release} has no home {question[0]}")
    asked_then = [question[0], question[1], list(question[2])]
    (answer,) = [reply for reply in looked[0] if [reply[name] for name in QUESTION] == asked_then]
    (then,) = [reply for reply in recorded(release)["answers"] if [reply[name] for name in QUESTION] == asked_then]
    if release == OLDEST and answer["command"] == ["expire", "--dry-run"]:
        then = then | {"answer": [unmarked(plan, answer["clock"]) for plan in then["answer"]]}
    then = without_sentences(renamed(then))
    assert with_fields_of(answer, then) == then


def unmarked(planned: dict[str, Any], clock: str) -> dict[str, Any]:
    """Return a recorded plan by the current rule: the grace period starts at a mark, which they do not record."""
    now_ms = parse_time_ms(clock)
    expired = None if planned["expired"] is None else parse_time_ms(planned["expired"])
    removable = None if expired is None else format_ms(max(expired, now_ms) + HOUR_MS)
    action = "mark" if planned["action"] == "remove" else planned["action"]
    return planned | {"action": action, "removable_at": removable}


def renamed(document: Any) -> Any:
    """Return a recorded document with current names; the refusal of writes to the past had two codes."""
    if isinstance(document, dict):
        entries = {RENAMED.get(name, name): renamed(value) for name, value in document.items()}
        return entries | {"verdict": "PAST"} if entries.get("verdict") == "EARLIER" else entries
    return [renamed(value) for value in document] if isinstance(document, list) else document


def rows_of_document(document: Any) -> Any:
    """Return the list that a document is about, or the document itself."""
    name = next((name for name in LISTS if isinstance(document, dict) and isinstance(document.get(name), list)), None)
    return document if name is None else document[name]


def with_fields_of(now: Any, then: Any) -> Any:
    """Return the current document with only the fields of the recorded one."""
    if isinstance(now, dict) and isinstance(then, list):
        return with_fields_of(rows_of_document(now), then)
    if isinstance(now, dict) and isinstance(then, dict):
        return {name: with_fields_of(value, then[name]) for name, value in now.items() if name in then}
    if isinstance(now, list) and isinstance(then, list) and len(now) == len(then):
        return [with_fields_of(*pair) for pair in zip(now, then, strict=True)]
    return now


def test_questions_change_no_file(looked: tuple[Answers, Files, Files]) -> None:
    """No question writes a file."""
    _, before, after = looked
    assert before
    assert after == before


def _files(folder: Path) -> Files:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_consumer_continues(release: str, homes: Path, tmp_path: Path) -> None:
    """A consumer reads what it had not read, and then finds nothing more."""
    if "logged" not in homes_of(release):
        pytest.skip(f"{release} has no home logged")
    home = shutil.copytree(homes / "logged", tmp_path / "home")
    assert [ask(home, LATER, "consume", "shop.visits", "--name", WATCHER)["rows"] for _ in range(2)] == [4, 0]


def test_consumers_continue_over_a_switch(release: str, cluster: Path) -> None:
    """Consumers read what they had not read, over a switch and a split, and then find nothing more."""
    if release != OLDEST:
        pytest.skip("its home `cluster` was copied table by table, without the commits of consumers")
    for table, name, rows in (("shop.carts", "audit", 7), ("tabs.sessions", "feed", 2)):
        assert ask(cluster, NOW, "consume", table, "--name", name)["rows"] == rows
        assert ask(cluster, NOW, "consume", table, "--name", name)["rows"] == 0


def test_hourly_copies_continue(cluster: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job copies the missing hour, and its consumer's position moves past the hour that was already copied."""
    from dagster import DagsterInstance

    from cdc_platform.clock import Clock, parse_time_us
    from cdc_platform.definitions import defs
    from cdc_platform.home_location import HOME_VARIABLE
    from cdc_platform_assets.catalog_sync.sync import add_hour_partitions

    def position() -> str:
        return next(
            consumer["position"]
            for consumer in ask(cluster, NOW, "consumers")
            if (consumer["name"], consumer["table_name"]) == ("hourly", "carts")
        )

    monkeypatch.setenv(HOME_VARIABLE, str(cluster))
    config = {
        "loggers": {"console": {"config": {"log_level": "CRITICAL"}}},
        "resources": {"clock": {"config": {"stopped_at": NOW}}},
    }
    assert position() == "2026-11-01T10:59:59.999999Z"
    job = defs.resolve_job_def("consume_hours")
    with DagsterInstance.ephemeral() as instance:
        add_hour_partitions(Lake(cluster / "lake"), Clock(parse_time_us(NOW)), instance)
        assert "2026-11-01-11:00" in instance.get_dynamic_partitions("cdc_hour")
        assert job.execute_in_process(run_config=config, instance=instance, partition_key="2026-11-01-11:00").success
    assert position() == "2026-11-01T12:59:59.999999Z"


def test_an_undecided_switch_can_be_decided(cluster: Path) -> None:
    """The recorded acknowledgements count: once the other nodes acknowledge, the switch is committed."""
    generation = undecided(cluster)
    missing = ask(cluster, NOW, "switch", "show", generation)["missing"]
    assert len(missing) == 3
    for host in missing:
        ask(cluster, NOW, "switch", "ack", generation, "--node", host)
    done = ask(cluster, NOW, "switch", "commit", generation)
    assert (done["phase"], done["time"]) == ("committed", "2026-11-01T14:01:25.000Z")


def test_first_format_generations_are_rewritten(homes: Path, tmp_path: Path) -> None:
    """A cluster that was not upgraded can be: generations with a description are published and every node is marked."""
    home = shutil.copytree(homes / "first_format", tmp_path / "home")
    before = {generation["time"] for generation in ask(home, FIRST_FORMAT_NOW, "generations")}
    actions = {decision["time"]: decision["action"] for decision in ask(home, FIRST_FORMAT_NOW, "rewrite")}
    rewritten = {time for time, action in actions.items() if action == "rewrite"}
    assert rewritten
    assert {"missing-data"} <= set(actions.values())
    assert before | rewritten <= {generation["time"] for generation in ask(home, FIRST_FORMAT_NOW, "generations")}
    assert all(ask(home, FIRST_FORMAT_NOW, "streams", time) for time in rewritten)
    assert ask(home, FIRST_FORMAT_NOW, "rewrite") == []


def test_times_of_partitions_stay_valid(release: str, cluster: Path) -> None:
    """A published generation written again beside the earlier ones has the same rows and verifies."""
    lake = Lake(cluster / "lake")
    before, old = rows_of(cluster), set(_partition_times(lake))
    assert {value.endswith("Z") for value in old} == {release != OLDEST}
    rows = lake.read(STREAMS_DESCRIPTIONS_V2)
    time = rows["time"][0].as_py()
    of_time = lake.read(STREAMS_DESCRIPTIONS_V2, filters=[("time", "=", time)])
    assert 0 < of_time.num_rows < rows.num_rows
    lake.delete(STREAMS_DESCRIPTIONS_V2, [("time", "=", time), ("range_end", "=", of_time["range_end"][0].as_py())])
    lake.merge(STREAMS_DESCRIPTIONS_V2, of_time, update=True)
    spelt = f"{time:%Y-%m-%dT%H:%M:%S.%fZ}"
    assert set(_partition_times(lake)) == old | {spelt}
    assert (spelt in old) == (release != OLDEST)
    assert rows_of(cluster) == before
    assert not [
        verification
        for verification in verify_tables(lake, deep=True)
        if verification.damage or verification.unexpected
    ]


def _partition_times(lake: Lake) -> list[str]:
    """Return the times of all files that the table ever had, as Delta's log writes them."""
    log = sorted(Path(lake.path(STREAMS_DESCRIPTIONS_V2), "_delta_log").glob("*.json"))
    actions = [json.loads(line) for file in log for line in file.read_text(encoding="utf-8").splitlines()]
    return [action["add"]["partitionValues"]["time"] for action in actions if "add" in action]


def waiting_node(number: int, folder: Path) -> Path:
    """Write the file of a node whose join is queued in the cluster."""
    host_id, tokens = WAITING[number]
    node = node_fields(number, host_id=host_id, address=f"127.0.0.{number}", rack=f"r{number}", tokens=tokens)
    path = folder / f"node{number}.json"
    path.write_text(json.dumps(node), encoding="utf-8")
    return path


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_joins_are_finished(release: str, cluster: Path, tmp_path: Path) -> None:
    """The join with the undecided switch completes, then the next one, and every check passes."""
    generation = undecided(cluster)
    joined = ask(cluster, NOW, "bootstrap", waiting_node(6, tmp_path), "--run")
    assert joined["generation_id"] == generation
    ask(cluster, "2026-11-01T14:10:00Z", "bootstrap", waiting_node(7, tmp_path), "--run")
    listed = ask(cluster, "2026-11-01T14:20:00Z", "generations")
    assert [each["operating"] for each in listed] == [True, *[False] * 5]
    assert listed[1]["id"] == generation
    judged = command_on(cluster, "2026-11-01T14:20:00Z", "check", "--json")
    noted = set() if release == OLDEST else {"observed_whole"}
    assert {line["invariant"] for line in judged.rows if not line["passed"]} == noted


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_kept_logs_go_on(cluster: Path, tmp_path: Path) -> None:
    """New rows follow the old ones and have an earlier script's rows as their preimages, also with tablets."""
    script = tmp_path / "script.cql"
    script.write_text(SCRIPT, encoding="utf-8")
    before = {name: logged(cluster, name) for name in ("shop.carts", "tabs.sessions")}
    statements = ask(cluster, NOW, "cql", "run", script, "--apply")["statements"]
    assert [statement["accepted"] for statement in statements] == [True] * 3
    assert [(row["cdc$operation"], row["count"]) for row in statements[0]["rows"]] == [(0, 3), (1, 9)]
    for name, rows in before.items():
        after = logged(cluster, name)
        assert rows
        assert [row for row in after if row in rows] == rows
        assert len(after) == len(rows) + (2 if name == "shop.carts" else 1)
    assert [row["from_page"] for row in logged(cluster, "shop.visits")] == [None, None, "home", "home"]


def logged(home: Path, table: str) -> list[dict[str, Any]]:
    """Return the rows of a table's log."""
    return ask(home, NOW, "sql", f"SELECT * FROM {table}_scylla_cdc_log ORDER BY `cdc$timestamp`, `cdc$batch_seq_no`")


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_states_go_on(release: str, homes: Path, tmp_path: Path) -> None:
    """A write to a row that an earlier program stored in a table's state has that row as its preimage."""
    if "logged" not in homes_of(release):
        pytest.skip(f"{release} has no home logged")
    home, script = shutil.copytree(homes / "logged", tmp_path / "home"), tmp_path / "script.cql"
    script.write_text("UPDATE shop.carts SET count = 9 WHERE customer = 'a' AND item = 1;", encoding="utf-8")
    (statement,) = ask(home, NOW, "cql", "run", script, "--apply")["statements"]
    assert [(row["cdc$operation"], row["count"]) for row in statement["rows"]] == [(0, 2), (1, 9)]


if __name__ == "__main__":
    os.environ["TZ"] = "UTC"
    for name in sys.argv[1:]:
        pack(name)


def test_earlier_comments_stay(cluster: Path) -> None:
    """Tables with comments of earlier wording are used unchanged: no write changes their metadata."""
    lake = Lake(cluster / "lake")
    before = {name: _metadata(lake, table) for name, table in TABLES.items() if lake.exists(table)}
    declared = {name: _declared_comments(TABLES[name]) for name in before}
    assert {name for name, (_, *comments) in before.items() if comments != declared[name]} >= {CDC_TABLES.full_name}
    for name in before:
        lake.ensure(TABLES[name])
    version = lake.version(CDC_TABLES)
    ask(cluster, NOW, "tables", "add", "shop.more", "--ttl", "60")
    lake = Lake(cluster / "lake")
    assert (lake.version(CDC_TABLES) or 0) > (version or 0)
    assert {name: _metadata(lake, TABLES[name]) for name in before} == before


def _metadata(lake: Lake, table: Table) -> tuple[str, str, dict[str, str]]:
    opened = DeltaTable(str(lake.path(table)))
    comments = {field.name: str(field.metadata.get("comment")) for field in opened.schema().fields}
    return str(opened.metadata().id), str(opened.metadata().description), comments


def _declared_comments(table: Table) -> list[Any]:
    fields = [table.schema.field(name) for name in table.schema.names]
    return [table.comment, {field.name: (field.metadata or {})[b"comment"].decode() for field in fields}]
