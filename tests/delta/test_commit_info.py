"""Every commit has its envelope: whoever writes, by whichever method, and what it tells of slices is what they hold."""

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
    """Rows of cdc_generation_timestamps."""
    rows = [{"key": "timestamps", "time": TIME + hour * HOUR, "expired": expired} for hour in hours]
    return pa.Table.from_pylist(rows, schema=GENERATION_TIMESTAMPS.schema)


def streams(hour: int, *ends: int, stream: bytes = b"0123456789abcdef") -> pa.Table:
    """Rows of cdc_streams_descriptions_v2, of one slice."""
    rows = [{"time": TIME + hour * HOUR, "range_end": end, "streams": [stream]} for end in ends]
    return pa.Table.from_pylist(rows, schema=STREAMS_DESCRIPTIONS_V2.schema)


def consumer(window: int) -> pa.Table:
    """A consumer that has read so many windows."""
    row = {"name": "a", "keyspace_name": "k", "table_name": "t", "position": TIME, "window_number": window}
    return pa.Table.from_pylist([row | {"set_timestamp": None, "updated_at": TIME}], schema=CONSUMERS.schema)


def _grown(lake: Lake) -> None:
    lake.ensure(NARROW)
    lake.append_once(NARROW, pa.table({"k": [1, 2]}), {"app": 1}, None)
    lake.widen(WIDER)
    lake.append_once(WIDER, pa.table({"k": [1, 3], "v": ["x", None]}), {"app": 2}, 1)


def _vacuumed(lake: Lake) -> None:
    left = Path(lake.path(GENERATION_TIMESTAMPS), "left.parquet")
    left.touch()
    os.utime(left, (0, 0))
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
"""Each method of `Lake` that commits: the table, and a write that changes something of what `filled` has."""


def changed() -> pa.Table:
    """Of two slices a row that is there, one that changes and one that is new."""
    first, other = streams(0, 1), streams(0, 2, stream=b"fedcba9876543210")
    return pa.concat_tables([first, other, streams(0, 8), streams(1, 1, stream=b"fedcba9876543210"), streams(2, 1)])


@pytest.fixture(params=DigestRule)
def rule(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> DigestRule:
    """How tables that the test makes digest their rows: as those of today do, and as those of before."""
    monkeypatch.setattr(row_hash, "NEWEST_DIGEST_RULE", request.param)
    return request.param


@pytest.fixture
def filled(lake: Lake, rule: DigestRule) -> Lake:
    """A lake with some rows, one of its files unused since a row was replaced."""
    lake.merge(STREAMS_DESCRIPTIONS_V2, pa.concat_tables([streams(0, 1, 2, 3), streams(1, 1, 5)]), update=False)
    lake.merge(GENERATION_TIMESTAMPS, stamps(0, 1, 2), update=False)
    lake.merge(GENERATION_TIMESTAMPS, stamps(2, expired=TIME), update=True)
    lake.merge(CONSUMERS, consumer(0), update=False)
    assert lake.digest_rule(CONSUMERS) == rule
    return lake


def assert_sealed(lake: Lake, table: Table) -> list[Commit]:
    """Every commit has an envelope of its own, and all slices hold what their newest ones say; the commits."""
    found = lake.commits(table)
    assert found
    assert [commit.version for commit in found] == list(range(lake.version(table) or 0, -1, -1))
    seals = [commit.info for commit in found]
    assert None not in seals
    # A vacuum is two commits of Delta.
    once = [seal.id for seal, commit in zip(seals, found, strict=True) if seal and commit.operation != "VACUUM END"]
    assert len(set(once)) == len(once)
    for each in verify_tables(lake, deep=True):
        assert (each.damage, each.unexpected, each.foreign, each.unknown, each.unread) == ([], [], [], 0, 0), each.name
    return found


def test_every_writing_method_is_walked() -> None:
    """A method that commits stands in the list above."""
    commits = ("self._write(", "create.create_table(", "compaction.", "writer.", "transaction_log.commit")
    writing = {
        name
        for name, method in inspect.getmembers(Lake, inspect.isfunction)
        if not name.startswith("_") and any(word in inspect.getsource(method) for word in commits)
    }
    assert writing == {name.partition(" ")[0] for name in METHODS}


@pytest.mark.parametrize("name", METHODS)
def test_a_commit_has_its_envelope(filled: Lake, name: str) -> None:
    """Who, by which door, with which program; and the digests of all slices that it changes, and of no others."""
    table, write = METHODS[name]
    before = filled.version(table) if filled.exists(table) else -1
    held = {each.key: each for each in filled.partitions(table)} if table.partition_by else {}
    with commit_as(ME):
        write(filled)
    new = [commit for commit in assert_sealed(filled, table) if commit.version > (before or 0)]
    assert new
    for commit in new:
        seal = commit.info
        assert seal is not None
        assert (seal.author, seal.program, bool(seal.user)) == (ME, __version__, True)
    assert held.keys() or not table.partition_by


def test_slices_that_a_write_does_not_touch_are_not_named(filled: Lake) -> None:
    """A commit names the slices whose content it changes; a column of nulls that a table gets changes none."""
    filled.merge(STREAMS_DESCRIPTIONS_V2, streams(1, 9), update=False)
    seal = filled.commits(STREAMS_DESCRIPTIONS_V2)[0].info
    assert seal is not None
    assert set(seal.digests) == {"time=2021-11-02T20:45:26.384Z"}
    filled.delete(STREAMS_DESCRIPTIONS_V2, [("time", "=", TIME)])
    seal = filled.commits(STREAMS_DESCRIPTIONS_V2)[0].info
    assert seal is not None
    assert seal.digests == {"time=2021-11-02T19:45:26.384Z": 0}


def test_numbers_of_consumers_are_told(filled: Lake) -> None:
    """Which window of which consumer a commit brought."""
    filled.append_once(CONSUMERS, consumer(3), {"audit": 7, "audit until": 99}, None)
    seal = filled.commits(CONSUMERS)[0].info
    assert seal is not None
    assert seal.numbers == {"audit": 7, "audit until": 99}


def test_a_merge_of_rows_that_are_there_twice_keeps_count(filled: Lake) -> None:
    """A row that a stranger doubled is found, and is found as well after the platform has written beside it."""
    write_deltalake(filled.path(GENERATION_TIMESTAMPS), stamps(1), mode="append")
    filled.merge(GENERATION_TIMESTAMPS, stamps(1, expired=TIME), update=True)
    [found] = [each for each in verify_tables(filled) if each.name == GENERATION_TIMESTAMPS.full_name]
    assert len(found.foreign) == 1
    [line] = found.unexpected
    assert line.startswith(f"{found.name} has other rows than its commits recorded, in version ")


def test_racing_writers_leave_right_digests(filled: Lake) -> None:
    """Whoever has to try again tells of the version that it then writes."""
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda hour: filled.merge(GENERATION_TIMESTAMPS, stamps(hour, 20), update=False), range(4, 10)))
    assert filled.read(GENERATION_TIMESTAMPS).num_rows == 10
    assert_sealed(filled, GENERATION_TIMESTAMPS)


def _lost_answer(write: Any) -> Any:
    """A store that does what it is asked to, and says that it did not."""

    def lost(*given: Any, **named: Any) -> None:
        write(*given, **named)
        raise CommitFailedError("Failed to commit transaction: 0")

    return lost


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
def test_a_writer_looks_for_its_own_commit_before_it_says_that_it_lost(
    filled: Lake, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is lost, the commit is there: it is told as done, and is in the history once."""
    table, write, due = ANSWERS[name]
    before = filled.version(table)
    assert before is not None
    monkeypatch.setattr(writer, "write_deltalake", _lost_answer(write_deltalake))
    assert write(filled) == due
    assert filled.version(table) == before + 1
    assert_sealed(filled, table)


def test_who_really_lost_is_told_so(filled: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: others commit each time, the writer's own mark is nowhere."""

    def overtaken(table: Any, *given: Any, **named: Any) -> None:
        write_deltalake(filled.path(CONSUMERS), consumer(1).slice(0, 0), mode="append")
        write_deltalake(table, *given, **named)

    monkeypatch.setattr(writer, "write_deltalake", overtaken)
    monkeypatch.setattr("cdc_platform.delta.commit_retry.ATTEMPTS", 3)
    with pytest.raises(ConflictError, match="other writers committed first"):
        filled.append_once(CONSUMERS, consumer(1), {"reader": 1}, None)
    assert filled.read(CONSUMERS).num_rows == 1


def test_a_table_of_before_is_unknown_until_the_platform_writes(lake: Lake) -> None:
    """What lies behind the first envelope is no complaint; from it on the digest is that of all rows."""
    lake.ensure(GENERATION_TIMESTAMPS)
    for entry in Path(lake.path(GENERATION_TIMESTAMPS), "_delta_log").glob("*.json"):
        lines = [json.loads(line) for line in entry.read_text(encoding="utf-8").splitlines()]
        for line in lines:
            line.get("commitInfo", {}).pop(COMMIT_INFO_KEY, None)
        entry.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    write_deltalake(lake.path(GENERATION_TIMESTAMPS), stamps(0, 1), mode="append")
    [found] = verify_tables(lake)
    assert (found.unexpected, found.foreign, found.unknown, found.commits) == ([], [], 1, 0)
    lake.merge(GENERATION_TIMESTAMPS, stamps(1, 2), update=False)
    [found] = verify_tables(lake)
    assert (found.unexpected, found.foreign, found.unknown, found.commits) == ([], [], 0, 1)


def test_a_rule_of_a_later_version_is_refused_in_one_line(lake: Lake) -> None:
    """Digests that this version cannot make are told of no table: neither written into it nor held against it."""
    lake.ensure(GENERATION_TIMESTAMPS)
    DeltaTable(lake.path(GENERATION_TIMESTAMPS)).alter.set_table_properties(
        {row_hash.DIGEST_RULE_PROPERTY: "words-512"}, raise_if_not_exists=False
    )
    told = "system_distributed.cdc_generation_timestamps digests rows by 'words-512', this version knows "
    with pytest.raises(StateError, match=f"^{re.escape(told)}"):
        lake.merge(GENERATION_TIMESTAMPS, stamps(1), update=False)
    [found] = verify_tables(lake)
    assert [told in line for line in found.damage] == [True]
    assert lake.read(GENERATION_TIMESTAMPS).num_rows == 0


def test_a_strange_envelope_is_none(filled: Lake) -> None:
    """What others write under that name, or a program of later, is a commit without one and no failure."""
    for said in ("", "[]", "{}", '{"id": 1, "digests": {"": "x"}}'):
        properties = CommitProperties(custom_metadata={COMMIT_INFO_KEY: said})
        write_deltalake(filled.path(CONSUMERS), consumer(1), mode="append", commit_properties=properties)
        assert filled.commits(CONSUMERS)[0].info is None


def test_commands_are_named(tmp_path: Path) -> None:
    """The command line is the door, the command what came through it, without its arguments."""
    node = tmp_path / "node.json"
    node.write_text(node_text(1), encoding="utf-8")
    assert run("--home", tmp_path / "home", "bootstrap", node).exit_code == 0
    assert run("--home", tmp_path / "home", "tables", "add", "ks.t", "--ttl", "0").exit_code == 0
    found = [
        each
        for each in verify_tables(Lake(tmp_path / "home" / "lake"))
        if each.damage or each.unexpected or each.foreign
    ]
    assert found == []
    told = {
        commit.info.author
        for table in ("bootstrap_events", "cdc_tables")
        for commit in Lake(tmp_path / "home" / "lake").commits(Table("platform", table, pa.schema([]), (), ""))
        if commit.info
    }
    assert told == {CommitAuthor("command line", "bootstrap"), CommitAuthor("command line", "tables add")}


def test_runs_of_dagster_are_named(tmp_path: Path) -> None:
    """A run says who it is and who clicked, whoever started its process; after it the process is who it was."""

    @op
    def write(home: HomeResource) -> None:
        home.lake().merge(CONSUMERS, consumer(0), update=False)

    @job
    def writing() -> None:
        write()

    with commit_as(ME):
        done = writing.execute_in_process(resources={"home": HomeResource(path=str(tmp_path))})
        Lake(tmp_path / "lake").merge(CONSUMERS, consumer(1), update=True)
        asked = {USER_TAG: "ada@example.com"}
        writing.execute_in_process(resources={"home": HomeResource(path=str(tmp_path / "clicked"))}, tags=asked)
    clicked = Lake(tmp_path / "clicked" / "lake").commits(CONSUMERS)[0].info
    assert clicked is not None
    assert clicked.user == "ada@example.com"
    mine, runs, *_ = [each.info for each in Lake(tmp_path / "lake").commits(CONSUMERS)]
    assert mine is not None
    assert runs is not None
    assert mine.author == ME
    assert mine.user == runs.user == getpass.getuser()
    assert runs.author == CommitAuthor("Dagster", "writing", done.run_id)


@pytest.mark.spark
def test_rows_in_volume_have_their_envelopes(spark: SparkSession, filled: Lake) -> None:
    """Slices replaced, rows appended and whole tables rewritten by Spark's tasks, in several files and slices."""
    table, where = STREAMS_DESCRIPTIONS_V2, {"time": TIME}

    def rows(*some: pa.Table) -> Any:
        return spark.createDataFrame(pa.concat_tables(some)).repartition(3, "range_end")

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


def test_a_lost_answer_to_a_slice_is_found(filled: Lake, rule: DigestRule, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that Spark's tasks wrote: the commit that is there is not made again."""
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
