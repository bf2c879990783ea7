"""Every commit has a CommitInfo, whatever method writes, and its digests are those of the partitions."""

from __future__ import annotations

import getpass
import inspect
import json
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from dagster import job, op
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError
from support.command_line import run
from support.nodes import node_text

from cdc_platform import __version__
from cdc_platform.dagster_home import USER_TAG
from cdc_platform.delta import (
    Commit,
    CommitAuthor,
    Lake,
    TaskRunner,
    commit_as,
    row_hash,
    task_writer,
    verify_tables,
    writer,
)
from cdc_platform.delta.commit_info import COMMIT_INFO_KEY
from cdc_platform.delta.row_hash import DigestRule
from cdc_platform.errors import ConflictError, StateError
from cdc_platform.spark import frames
from cdc_platform.tables import CONSUMERS, GENERATION_TIMESTAMPS, NODES, STREAMS_DESCRIPTIONS_V2, Table, column
from cdc_platform_resources.home import HomeResource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIME = datetime(2021, 11, 2, 19, 45, 26, 384000, tzinfo=UTC)
HOUR = timedelta(hours=1)
ME = CommitAuthor("a test", "writing")
WIDER = Table(
    "ks", "wide", pa.schema([column("k", pa.int64(), ""), column("v", pa.string(), "", null=True)]), ("k",), ""
)
NARROW = Table("ks", "wide", pa.schema([column("k", pa.int64(), "")]), ("k",), "")


def stamps(*hours: int, expired: datetime | None = None) -> pa.Table:
    """Return rows of cdc_generation_timestamps."""
    rows = [{"key": "timestamps", "time": TIME + hour * HOUR, "expired": expired} for hour in hours]
    return pa.Table.from_pylist(rows, schema=GENERATION_TIMESTAMPS.schema)


def streams(hour: int, *ends: int, stream: bytes = b"0123456789abcdef") -> pa.Table:
    """Return rows of one partition of cdc_streams_descriptions_v2."""
    rows = [{"time": TIME + hour * HOUR, "range_end": end, "streams": [stream]} for end in ends]
    return pa.Table.from_pylist(rows, schema=STREAMS_DESCRIPTIONS_V2.schema)


def consumer(window: int) -> pa.Table:
    """Return a consumer that has read `window` windows."""
    row = {"name": "a", "keyspace_name": "k", "table_name": "t", "position": TIME, "window_number": window}
    return pa.Table.from_pylist([row | {"set_timestamp": None, "updated_at": TIME}], schema=CONSUMERS.schema)


def _grown(lake: Lake) -> None:
    lake.ensure(NARROW)
    lake.append_once(NARROW, pa.table({"k": [1, 2]}), {"app": 1}, None)
    lake.widen(WIDER)
    lake.append_once(WIDER, pa.table({"k": [1, 3], "v": ["x", None]}), {"app": 2}, 1)


def _vacuumed(lake: Lake) -> None:
    stray = Path(lake.path(GENERATION_TIMESTAMPS), "left.parquet")
    stray.touch()
    os.utime(stray, (0, 0))
    assert lake.vacuum(GENERATION_TIMESTAMPS) == 1


METHODS: dict[str, tuple[Table, Callable[[Lake], object]]] = {
    "ensure": (NODES, lambda lake: lake.ensure(NODES)),
    "widen": (WIDER, _grown),
    "merge": (STREAMS_DESCRIPTIONS_V2, lambda lake: lake.merge(STREAMS_DESCRIPTIONS_V2, changed(), update=True)),
    "delete": (STREAMS_DESCRIPTIONS_V2, lambda lake: lake.delete(STREAMS_DESCRIPTIONS_V2, [("range_end", "<", 3)])),
    "delete a slice": (
        STREAMS_DESCRIPTIONS_V2,
        lambda lake: lake.delete(STREAMS_DESCRIPTIONS_V2, [("time", "=", TIME)]),
    ),
    "compare_and_set": (CONSUMERS, lambda lake: lake.compare_and_set(CONSUMERS, consumer(1), ("window_number", 0))),
    "transact": (GENERATION_TIMESTAMPS, lambda lake: lake.transact(GENERATION_TIMESTAMPS, lambda _: stamps(0, 9))),
    "merge_judged": (
        GENERATION_TIMESTAMPS,
        lambda lake: lake.merge_judged(GENERATION_TIMESTAMPS, lambda: stamps(0, 9)),
    ),
    "raise_column": (
        GENERATION_TIMESTAMPS,
        lambda lake: lake.raise_column(GENERATION_TIMESTAMPS, stamps(0, 1, 7, expired=TIME), "expired"),
    ),
    "append_once": (CONSUMERS, lambda lake: lake.append_once(CONSUMERS, consumer(0), {"reader": 4}, None)),
    "replace_once": (
        GENERATION_TIMESTAMPS,
        lambda lake: lake.replace_once(
            GENERATION_TIMESTAMPS, stamps(1, 5, 6), [("time", ">", TIME)], lake.version(GENERATION_TIMESTAMPS)
        ),
    ),
    "vacuum": (GENERATION_TIMESTAMPS, _vacuumed),
}
"""Each committing method of `Lake`: the table, and a write that changes something in the `filled` lake."""


def changed() -> pa.Table:
    """Return for two partitions an existing row, a changed row and a new row."""
    first, other = streams(0, 1), streams(0, 2, stream=b"fedcba9876543210")
    return pa.concat_tables([first, other, streams(0, 8), streams(1, 1, stream=b"fedcba9876543210"), streams(2, 1)])


@pytest.fixture(params=DigestRule)
def rule(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> DigestRule:
    """The digest rule of tables that the test creates: today's or the earlier one."""
    monkeypatch.setattr(row_hash, "NEWEST_DIGEST_RULE", request.param)
    return request.param


@pytest.fixture
def filled(lake: Lake, rule: DigestRule) -> Lake:
    """A lake with some rows; one of its files is unused since a row was replaced."""
    lake.merge(STREAMS_DESCRIPTIONS_V2, pa.concat_tables([streams(0, 1, 2, 3), streams(1, 1, 5)]), update=False)
    lake.merge(GENERATION_TIMESTAMPS, stamps(0, 1, 2), update=False)
    lake.merge(GENERATION_TIMESTAMPS, stamps(2, expired=TIME), update=True)
    lake.merge(CONSUMERS, consumer(0), update=False)
    assert lake.digest_rule(CONSUMERS) == rule
    return lake


def assert_sealed(lake: Lake, table: Table) -> list[Commit]:
    """Assert that every commit has its own CommitInfo with correct digests, and return the commits."""
    commits = lake.commits(table)
    assert commits
    assert [commit.version for commit in commits] == list(range(lake.version(table) or 0, -1, -1))
    seals = [commit.info for commit in commits]
    assert None not in seals
    # A vacuum is two commits in Delta.
    once = [seal.id for seal, commit in zip(seals, commits, strict=True) if seal and commit.operation != "VACUUM END"]
    assert len(set(once)) == len(once)
    for verification in verify_tables(lake, deep=True):
        assert (
            verification.damage,
            verification.unexpected,
            verification.foreign,
            verification.unknown,
            verification.unread,
        ) == ([], [], [], 0, 0), verification.name
    return commits


def test_every_writing_method_is_listed() -> None:
    """METHODS has every method of `Lake` that commits."""
    commits = ("self._write(", "create.create_table(", "compaction.", "writer.", "transaction_log.commit")
    writing = {
        name
        for name, method in inspect.getmembers(Lake, inspect.isfunction)
        if not name.startswith("_") and any(word in inspect.getsource(method) for word in commits)
    }
    assert writing == {name.partition(" ")[0] for name in METHODS}


@pytest.mark.parametrize("name", METHODS)
def test_every_commit_has_its_commit_info(filled: Lake, name: str) -> None:
    """A commit has its author, program and user, and the digests of exactly the partitions that it changes."""
    table, write = METHODS[name]
    before = filled.version(table) if filled.exists(table) else -1
    partitions = {partition.key: partition for partition in filled.partitions(table)} if table.partition_by else {}
    with commit_as(ME):
        write(filled)
    new = [commit for commit in assert_sealed(filled, table) if commit.version > (before or 0)]
    assert new
    for commit in new:
        seal = commit.info
        assert seal is not None
        assert (seal.author, seal.program, bool(seal.user)) == (ME, __version__, True)
    assert partitions.keys() or not table.partition_by


def test_unchanged_partitions_are_not_named(filled: Lake) -> None:
    """A commit names the partitions whose content it changes; a new column of nulls changes none."""
    filled.merge(STREAMS_DESCRIPTIONS_V2, streams(1, 9), update=False)
    seal = filled.commits(STREAMS_DESCRIPTIONS_V2)[0].info
    assert seal is not None
    assert set(seal.digests) == {"time=2021-11-02T20:45:26.384Z"}
    filled.delete(STREAMS_DESCRIPTIONS_V2, [("time", "=", TIME)])
    seal = filled.commits(STREAMS_DESCRIPTIONS_V2)[0].info
    assert seal is not None
    assert seal.digests == {"time=2021-11-02T19:45:26.384Z": 0}


def test_numbers_of_consumers_are_recorded(filled: Lake) -> None:
    """A commit records the consumers' numbers that it was given."""
    filled.append_once(CONSUMERS, consumer(3), {"audit": 7, "audit until": 99}, None)
    seal = filled.commits(CONSUMERS)[0].info
    assert seal is not None
    assert seal.numbers == {"audit": 7, "audit until": 99}


def test_a_merge_over_duplicate_rows_does_not_hide_them(filled: Lake) -> None:
    """A row that a foreign commit duplicated is found, also after the platform has updated rows of the table."""
    write_deltalake(filled.path(GENERATION_TIMESTAMPS), stamps(1), mode="append")
    filled.merge(GENERATION_TIMESTAMPS, stamps(1, expired=TIME), update=True)
    [result] = [
        verification for verification in verify_tables(filled) if verification.name == GENERATION_TIMESTAMPS.full_name
    ]
    assert len(result.foreign) == 1
    [line] = result.unexpected
    assert line.startswith(f"{result.name} has other rows than its commits recorded, in version ")


def test_racing_writers_leave_right_digests(filled: Lake) -> None:
    """A writer that retries records the digests of the version that it then writes."""
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda hour: filled.merge(GENERATION_TIMESTAMPS, stamps(hour, 20), update=False), range(4, 10)))
    assert filled.read(GENERATION_TIMESTAMPS).num_rows == 10
    assert_sealed(filled, GENERATION_TIMESTAMPS)


def _lost_answer(write: Any) -> Any:
    """Return a write that succeeds, but reports a failure."""

    def write_and_fail(*arguments: Any, **options: Any) -> None:
        write(*arguments, **options)
        raise CommitFailedError("Failed to commit transaction: 0")

    return write_and_fail


ANSWERS: dict[str, tuple[Table, Callable[[Lake], object], object]] = {
    "append_once": (CONSUMERS, METHODS["append_once"][1], True),
    "replace_once": (GENERATION_TIMESTAMPS, METHODS["replace_once"][1], True),
    "merge": (
        GENERATION_TIMESTAMPS,
        lambda lake: lake.merge(GENERATION_TIMESTAMPS, stamps(7), update=False).inserted,
        1,
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_writer_looks_for_its_own_commit_before_it_reports_a_conflict(
    filled: Lake, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the response is lost but the commit exists, the write succeeds, and the history has it once."""
    table, write, due = ANSWERS[name]
    before = filled.version(table)
    assert before is not None
    monkeypatch.setattr(writer, "write_deltalake", _lost_answer(write_deltalake))
    assert write(filled) == due
    assert filled.version(table) == before + 1
    assert_sealed(filled, table)


def test_a_writer_that_really_lost_gets_a_conflict(filled: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a control, others commit at each attempt, and the log never has the writer's own mark."""

    def overtaken(table: Any, *arguments: Any, **options: Any) -> None:
        write_deltalake(filled.path(CONSUMERS), consumer(1).slice(0, 0), mode="append")
        write_deltalake(table, *arguments, **options)

    monkeypatch.setattr(writer, "write_deltalake", overtaken)
    monkeypatch.setattr("cdc_platform.delta.commit_retry.ATTEMPTS", 3)
    with pytest.raises(ConflictError, match="other writers committed first"):
        filled.append_once(CONSUMERS, consumer(1), {"reader": 1}, None)
    assert filled.read(CONSUMERS).num_rows == 1


def test_a_table_without_commit_info_is_unknown_until_the_platform_writes(lake: Lake) -> None:
    """Commits before the first CommitInfo raise no complaint; from it on the digest covers all rows."""
    lake.ensure(GENERATION_TIMESTAMPS)
    for entry in Path(lake.path(GENERATION_TIMESTAMPS), "_delta_log").glob("*.json"):
        lines = [json.loads(line) for line in entry.read_text(encoding="utf-8").splitlines()]
        for line in lines:
            line.get("commitInfo", {}).pop(COMMIT_INFO_KEY, None)
        entry.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    write_deltalake(lake.path(GENERATION_TIMESTAMPS), stamps(0, 1), mode="append")
    [result] = verify_tables(lake)
    assert (result.unexpected, result.foreign, result.unknown, result.commits) == ([], [], 1, 0)
    lake.merge(GENERATION_TIMESTAMPS, stamps(1, 2), update=False)
    [result] = verify_tables(lake)
    assert (result.unexpected, result.foreign, result.unknown, result.commits) == ([], [], 0, 1)


def test_an_unknown_digest_rule_is_refused_in_one_line(lake: Lake) -> None:
    """Neither write to a table with an unknown digest rule nor verify it."""
    lake.ensure(GENERATION_TIMESTAMPS)
    DeltaTable(lake.path(GENERATION_TIMESTAMPS)).alter.set_table_properties(
        {row_hash.DIGEST_RULE_PROPERTY: "words-512"}, raise_if_not_exists=False
    )
    message = "system_distributed.cdc_generation_timestamps digests rows by 'words-512', this version knows "
    with pytest.raises(StateError, match=f"^{re.escape(message)}"):
        lake.merge(GENERATION_TIMESTAMPS, stamps(1), update=False)
    [result] = verify_tables(lake)
    assert [message in line for line in result.damage] == [True]
    assert lake.read(GENERATION_TIMESTAMPS).num_rows == 0


def test_an_invalid_commit_info_is_ignored(filled: Lake) -> None:
    """An invalid CommitInfo from another or a later program counts as no CommitInfo, without a failure."""
    for text in ("", "[]", "{}", '{"id": 1, "digests": {"": "x"}}'):
        properties = CommitProperties(custom_metadata={COMMIT_INFO_KEY: text})
        write_deltalake(filled.path(CONSUMERS), consumer(1), mode="append", commit_properties=properties)
        assert filled.commits(CONSUMERS)[0].info is None


def test_commands_are_named(tmp_path: Path) -> None:
    """The entry point is the command line, and the command is stored without its arguments."""
    node = tmp_path / "node.json"
    node.write_text(node_text(1), encoding="utf-8")
    assert run("--home", tmp_path / "home", "bootstrap", node).exit_code == 0
    assert run("--home", tmp_path / "home", "tables", "add", "ks.t", "--ttl", "0").exit_code == 0
    complaints = [
        result
        for result in verify_tables(Lake(tmp_path / "home" / "lake"))
        if result.damage or result.unexpected or result.foreign
    ]
    assert complaints == []
    authors = {
        commit.info.author
        for table in ("bootstrap_events", "cdc_tables")
        for commit in Lake(tmp_path / "home" / "lake").commits(Table("platform", table, pa.schema([]), (), ""))
        if commit.info
    }
    assert authors == {CommitAuthor("command line", "bootstrap"), CommitAuthor("command line", "tables add")}


def test_runs_of_dagster_are_named(tmp_path: Path) -> None:
    """A run names itself and its user, whatever started its process; afterwards the process has its own author."""

    @op
    def write(home: HomeResource) -> None:
        home.lake().merge(CONSUMERS, consumer(0), update=False)

    @job
    def writing() -> None:
        write()

    with commit_as(ME):
        result = writing.execute_in_process(resources={"home": HomeResource(path=str(tmp_path))})
        Lake(tmp_path / "lake").merge(CONSUMERS, consumer(1), update=True)
        tags = {USER_TAG: "ada@example.com"}
        writing.execute_in_process(resources={"home": HomeResource(path=str(tmp_path / "clicked"))}, tags=tags)
    clicked = Lake(tmp_path / "clicked" / "lake").commits(CONSUMERS)[0].info
    assert clicked is not None
    assert clicked.user == "ada@example.com"
    mine, runs, *_ = [commit.info for commit in Lake(tmp_path / "lake").commits(CONSUMERS)]
    assert mine is not None
    assert runs is not None
    assert mine.author == ME
    assert mine.user == runs.user == getpass.getuser()
    assert runs.author == CommitAuthor("Dagster", "writing", result.run_id)


@pytest.mark.spark
def test_spark_writes_have_commit_info(spark: SparkSession, filled: Lake) -> None:
    """Spark tasks replace partitions, append rows and rewrite whole tables, in several files and partitions."""
    table, where = STREAMS_DESCRIPTIONS_V2, {"time": TIME}

    def rows(*tables: pa.Table) -> Any:
        return spark.createDataFrame(pa.concat_tables(tables)).repartition(3, "range_end")

    with commit_as(ME):
        frames.replace_partition(TaskRunner(lambda: spark), filled, table, rows(streams(0, *range(40))), where)
        assert_sealed(filled, table)
        assert frames.append_to_table(
            TaskRunner(lambda: spark), filled, table, rows(streams(1, 77), streams(3, 1, 2)), ("app", 3)
        )
        newest = assert_sealed(filled, table)[0].info
        assert newest is not None
        assert (newest.author, newest.numbers, len(newest.digests)) == (ME, {"app": 3}, 2)
        frames.replace_partition(TaskRunner(lambda: spark), filled, table, rows(streams(0, 1)).limit(0), where)
        assert_sealed(filled, table)
        assert frames.replace_all_rows(TaskRunner(lambda: spark), filled, table, rows(streams(5, 1)), ("app", 4))
        assert_sealed(filled, table)


def test_a_lost_response_to_a_draft_commit_is_found(
    filled: Lake, rule: DigestRule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit of files that Spark tasks wrote is not repeated if the log already has it."""
    table = STREAMS_DESCRIPTIONS_V2
    folder = Path(filled.path(table)).with_name(f".{table.name}.draft")
    folder.mkdir()
    part = task_writer._TaskWriter(table, str(folder), writer.make_empty_log(table), {"time": TIME}, "a test", rule)
    lines = [line for batch in part.write(iter(streams(0, 4).to_batches())) for line in batch.to_pylist()]
    draft = task_writer.WriteDraft(folder, tuple(json.loads(line["file"]) for line in lines))
    opened = DeltaTable
    monkeypatch.setattr(opened, "create_write_transaction", _lost_answer(opened.create_write_transaction))
    before = filled.version(table)
    assert before is not None
    assert task_writer.commit_draft(filled, table, draft, {"time": TIME}) == before + 1 == filled.version(table)
    assert_sealed(filled, table)
