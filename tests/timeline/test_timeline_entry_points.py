"""One answer at every door: homes in every state, the same questions, and what each door makes of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from support.command_line import run
from support.files.export_files import ID, OTHER_ID, SNAPSHOT, TIME_MS, generation, streams_csv, timestamps_csv, v2_csv
from support.homes.timelines import (
    DDL,
    FIRST_MS,
    HOMES,
    HOUR_MS,
    LEASE_END_MS,
    SECOND_MS,
    THIRD_MS,
    decide,
    description,
    home_of,
    uuid_of,
)
from support.oracles import tablet_oracle
from support.worlds.switch_lake import ring_of

from cdc_platform.cdclog import audit_log, commit_script, iter_complete_windows, log_table, read_table_schema
from cdc_platform.cdclog.batch_encoder import encode_log_batch
from cdc_platform.cdclog.dataframe import get_stream_lookup
from cdc_platform.cdclog.schema import typed_writes_schema
from cdc_platform.cdclog.script.run import dry_run_script
from cdc_platform.checks import inventory
from cdc_platform.clock import ONE_US, Clock, Microseconds, Milliseconds, format_ms, format_us, us_from_ms
from cdc_platform.delta import Lake, TaskRunner
from cdc_platform.errors import InputError, NotFound, PlatformError, StateError, WriteRefused
from cdc_platform.generations import GenerationId, WriteVerdict
from cdc_platform.lifecycle import audit_ring_fit, expiry, repair
from cdc_platform.lifecycle.join import bootstrap
from cdc_platform.metastore import read_generation_description, switches, tablets
from cdc_platform.metastore.cdc_local import LocalDisk
from cdc_platform.node.coordinator import Coordinator
from cdc_platform.ring import tokens_from_keys
from cdc_platform.settings import Settings
from cdc_platform.timeline import StreamSources
from cdc_platform.timeline.dataframe import append_with_streams, assign_streams

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEY = (7).to_bytes(4, "big")
TOKEN = int(tokens_from_keys([KEY])[0])
NO_STREAM, NOT_RETRIEVED, UNDECIDED, REMOVED = "NO_STREAM", "NOT_RETRIEVED", "UNDECIDED", "REMOVED"
NO_ANSWER = r"undecided since|known by their timestamp alone|has no V[12] desc"
Told = bytes | str
"""A stream's ID, or why there is none."""


@dataclass(frozen=True)
class Question:
    """A write at a time (ms), made by the clock: which generation or set operates, and what the write gets.

    `is_shown`: readers may read rows of that time. `word`: why there is no stream, None where there is one.
    """

    home: str
    at_ms: Milliseconds
    operates_ms: Milliseconds | None
    word: str | None = None
    is_shown: bool = True

    def __str__(self) -> str:
        return f"{self.home}-{format_ms(self.at_ms)}"


QUESTIONS = [
    Question("plain", Milliseconds(FIRST_MS - 1), None, NO_STREAM),
    Question("plain", FIRST_MS, FIRST_MS),
    Question("three", Milliseconds(SECOND_MS - 1), FIRST_MS),
    Question("three", SECOND_MS, SECOND_MS),
    Question("three", Milliseconds(THIRD_MS - 1), SECOND_MS),
    Question("three", THIRD_MS, THIRD_MS),
    Question("introduced", Milliseconds(SECOND_MS - 1), FIRST_MS),
    Question("introduced", SECOND_MS, SECOND_MS, is_shown=False),
    Question("undecided", Milliseconds(LEASE_END_MS - 1), FIRST_MS),
    Question("undecided", LEASE_END_MS, FIRST_MS, UNDECIDED),
    Question("committed", Milliseconds(SECOND_MS - 1), FIRST_MS),
    Question("committed", SECOND_MS, SECOND_MS, is_shown=False),
    Question("removed", Milliseconds(FIRST_MS + 1), FIRST_MS, REMOVED),
    Question("removed", SECOND_MS, SECOND_MS),
    Question("only_v1", Milliseconds(FIRST_MS - 1), None, NO_STREAM),
    Question("only_v1", Milliseconds(FIRST_MS + 1), FIRST_MS, is_shown=False),
    Question("timestamp_only", Milliseconds(FIRST_MS + 1), FIRST_MS, NOT_RETRIEVED),
    Question("named_by_node", Milliseconds(SECOND_MS - 1), FIRST_MS),
    Question("named_by_node", SECOND_MS, SECOND_MS, NOT_RETRIEVED, is_shown=False),
    Question("named_by_group", Milliseconds(SECOND_MS - 1), FIRST_MS),
    Question("named_by_group", SECOND_MS, SECOND_MS, NOT_RETRIEVED, is_shown=False),
    Question("bare_in_ledger", SECOND_MS, SECOND_MS, NOT_RETRIEVED, is_shown=False),
    Question("bare_timestamp", SECOND_MS, SECOND_MS, NOT_RETRIEVED),
    Question("bare_in_v1", SECOND_MS, SECOND_MS, NOT_RETRIEVED, is_shown=False),
    Question("with_tablets", Milliseconds(SECOND_MS - 1), None, NO_STREAM),
    Question("with_tablets", SECOND_MS, SECOND_MS),
]


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every home of `HOMES`, which the doors only look at."""
    folder = tmp_path_factory.mktemp("homes")
    return {name: home_of(folder, name) for name in HOMES}


def due(lake: Lake, question: Question) -> Told:
    """What the write has to get, by the rules alone."""
    if question.word is not None:
        return question.word
    assert question.operates_ms is not None
    if question.home == "with_tablets":
        sets = tablets.read_stream_sets(lake, "ks", "t")
        given = tablet_oracle.stream_of([each.tobytes() for each in sets[0].ids], TOKEN)
        assert given is not None
        return given
    return description(question.operates_ms).streams_of(TOKEN)[0].tobytes()


def asked_explain(home: Path, question: Question) -> Told:
    """`cdc-platform explain --table ks.t`, with the clock at the write."""
    clock = format_us(us_from_ms(question.at_ms))
    answer = run("--home", home, "--clock", clock, "explain", "--key", KEY.hex(), "--table", "ks.t", "--json").json
    if answer["accepted"]:
        return bytes.fromhex(answer["stream_id"][2:])
    return REMOVED if "was removed with its streams" in (answer.get("note") or "") else answer["verdict"]


def asked_script(home: Path, question: Question) -> Told:
    """`cdc-platform cql run` with one insert, rehearsed."""
    lake = Lake(home / "lake")
    text = f"{DDL} INSERT INTO ks.t (p, k, v) VALUES (7, 1, 1);"
    outcome = dry_run_script(text, lake, Clock(us_from_ms(question.at_ms)), Settings()).outcomes[-1]
    if isinstance(outcome.error, WriteRefused):
        return str(outcome.error.verdict)
    (row,) = outcome.rows
    stream = row["cdc$stream_id"]
    assert isinstance(stream, bytes)
    return stream


def asked_typed(home: Path, question: Question) -> Told:
    """Typed writes of `ks.t`, as they are logged in volume."""
    lake = Lake(home / "lake")
    schema = read_table_schema(lake, "ks", "t")
    write = {"operation": 2, "timestamp": us_from_ms(question.at_ms), "p": 7, "k": 1, "v": 1}
    batch = pa.RecordBatch.from_pylist([write], schema=typed_writes_schema(schema))

    def stream() -> bytes | None:
        return encode_log_batch(schema, batch, get_stream_lookup(lake, schema)).column("cdc$stream_id")[0].as_py()

    return past(stream)


def past(stream: Callable[[], bytes | None]) -> Told:
    """What doors that look the past up answer, in the words of those that judge."""
    try:
        found = stream()
    except WriteRefused as refused:
        return str(refused.verdict)
    except InputError:
        return NO_STREAM
    except (NotFound, StateError):
        return NOT_RETRIEVED
    return NO_STREAM if found is None else found


def asked_audit(home: Path, question: Question) -> Told:
    """The periods by which the audits of logs judge a row of that time."""
    at_us = us_from_ms(question.at_ms)
    periods = StreamSources(Lake(home / "lake")).of("ks", "t").periods()
    now = [each for each in periods if each.begin_us <= at_us and (each.end_us is None or at_us < each.end_us)]
    if not now:
        return NO_STREAM
    (period,) = now
    assert period.begin_us == us_from_ms(Milliseconds(question.operates_ms or 0))
    if period.removed:
        return REMOVED
    try:
        return period.streams().assign(tokens_from_keys([KEY]))[0].tobytes()
    except PlatformError:
        return NOT_RETRIEVED


@pytest.mark.grid("answers of every entry point", 24)
@pytest.mark.parametrize("question", QUESTIONS, ids=str)
@pytest.mark.parametrize(
    "door", [asked_explain, asked_script, asked_typed, asked_audit], ids=lambda each: each.__name__
)
def test_every_entry_point_gives_the_same_stream(
    homes: dict[str, Path], door: Callable[[Path, Question], Told], question: Question
) -> None:
    """The stream that the rules give, or the one reason for which there is none."""
    told, expected = door(homes[question.home], question), due(Lake(homes[question.home] / "lake"), question)
    if door is asked_audit and expected == UNDECIDED:
        # Of rows that are there: the decision on a switch is about writes to come.
        expected = description(FIRST_MS).streams_of(TOKEN)[0].tobytes()
    if (door is asked_typed and expected == REMOVED) or (door is asked_script and expected == REMOVED):
        # A null is a null, and a script is told that the streams cannot be had.
        expected = NO_STREAM if door is asked_typed else NOT_RETRIEVED
    assert told == expected


@pytest.mark.parametrize("question", QUESTIONS, ids=str)
def test_readers_are_where_the_timeline_is(homes: dict[str, Path], question: Question) -> None:
    """A consumer reads a time as of the generation that operates then, or not at all."""
    lake, at_us = Lake(homes[question.home] / "lake"), us_from_ms(question.at_ms)
    schema = read_table_schema(lake, "ks", "t")
    if question.is_shown and question.word in (REMOVED, NOT_RETRIEVED):
        why = "has been removed" if question.word == REMOVED else "are not all published yet"
        with pytest.raises(StateError, match=why):
            list(iter_complete_windows(lake, schema, Microseconds(at_us - 1), at_us, at_us))
        return
    begun = [window.set_us for window in iter_complete_windows(lake, schema, Microseconds(at_us - 1), at_us, at_us)]
    assert begun == (
        [us_from_ms(question.operates_ms)] if question.is_shown and question.operates_ms is not None else []
    )


@pytest.mark.parametrize("question", [each for each in QUESTIONS if each.home != "with_tablets"], ids=str)
def test_the_list_shows_which_generation_operates(homes: dict[str, Path], question: Question) -> None:
    """`cdc-platform generations` at the time of the write; a removed generation is not in the list."""
    clock = format_us(us_from_ms(question.at_ms))
    rows = run("--home", homes[question.home], "--clock", clock, "generations", "--json").rows
    expected = None if question.operates_ms is None or question.word == REMOVED else format_ms(question.operates_ms)
    assert [row["time"] for row in rows if row["operating"]] == ([] if expected is None else [expected])


@pytest.mark.parametrize(
    ("name", "newest_ms"),
    [
        ("plain", FIRST_MS),
        ("three", THIRD_MS),
        ("introduced", SECOND_MS),
        ("undecided", FIRST_MS),
        ("committed", SECOND_MS),
        ("removed", SECOND_MS),
        ("only_v1", FIRST_MS),
        ("timestamp_only", FIRST_MS),
        ("named_by_node", SECOND_MS),
        ("named_by_group", SECOND_MS),
        ("bare_in_ledger", SECOND_MS),
        ("bare_timestamp", SECOND_MS),
        ("bare_in_v1", SECOND_MS),
    ],
)
def test_all_agree_on_the_newest_generation(tmp_path: Path, name: str, newest_ms: Milliseconds) -> None:
    """The list, repair, the purge plan, the audit, the rehearsal, and whoever chooses the next timestamp."""
    home = home_of(tmp_path, name)
    lake, clock = Lake(home / "lake"), Clock(us_from_ms(FIRST_MS))
    ring_of(lake, [1])
    listed = run("--home", home, "generations", "--json").rows
    assert listed[0]["time"] == format_ms(newest_ms)
    latest = repair.check_newest_generation(lake, streams=False).latest
    assert latest is not None
    assert latest.time_ms == newest_ms
    assert expiry.plan_expiry(lake, clock, Settings())[-1].time_ms == newest_ms
    if not name.endswith("_v1"):  # those are judged by the family of the first format
        assert max(each.time_ms or 0 for each in inventory.read_inventory(lake)) == newest_ms
    before = Settings(ring_delay_ms=Milliseconds(0), generation_leeway_ms=Milliseconds(0))
    with pytest.raises(StateError, match="clock is behind"):
        bootstrap._choose_timestamp(lake, Clock(us_from_ms(newest_ms - HOUR_MS)), before, always_delay=False)
    assert (
        bootstrap._choose_timestamp(lake, Clock(us_from_ms(Milliseconds(newest_ms + 1))), before, always_delay=False)
        == newest_ms + 1
    )


@pytest.mark.parametrize(
    ("name", "unread", "fits", "repair"),
    [
        ("plain", 0, True, "no"),
        ("three", 0, False, "yes"),
        ("introduced", 0, False, "yes"),
        ("committed", 0, False, "yes"),
        ("removed", 0, False, "yes"),
        ("only_v1", 0, True, "yes"),
        ("timestamp_only", 0, None, "cannot tell"),
        ("named_by_node", 1, None, "yes"),
        ("named_by_group", 1, None, "yes"),
        ("bare_in_ledger", 1, None, "yes"),
        ("bare_timestamp", 1, None, "yes"),
        ("bare_in_v1", 1, None, "yes"),
    ],
)
def test_check_status_and_repair_agree(tmp_path: Path, name: str, unread: int, fits: bool | None, repair: str) -> None:
    """On a ring of one node: what cannot be read, whether the newest generation fits, whether a new one is due."""
    home = home_of(tmp_path, name)
    lake = Lake(home / "lake")
    ring_of(lake, [1])
    found = {each.invariant: each for each in audit_ring_fit(lake)}
    assert found["generations_retrievable"].violations == unread
    judged = found.get("streams_fit_the_ring")
    assert (None if judged is None else judged.violations == 0) == fits
    dry = run("--home", home, "repair", "--dry-run", "--json")
    said = "cannot tell" if dry.json["undetermined"] else "yes" if dry.json["needed"] else "no"
    assert (said, dry.exit_code) == (repair, int(repair == "yes"))
    told = run("--home", home, "status", "--json").json
    assert told["repair"]["needed"] == {"yes": True, "no": False, "cannot tell": None}[repair]
    assert len(told["generations"]["not_retrievable"]) == unread


def test_a_table_that_was_not_imported_is_unknown(tmp_path: Path) -> None:
    """Only clients' tables: repair cannot tell. With the table that describes others: this one's rows are missing."""
    described = {ID: generation(ID)}
    (tmp_path / "times.csv").write_text(timestamps_csv({TIME_MS: None}), encoding="utf-8", newline="")
    (tmp_path / "streams.csv").write_text(streams_csv({TIME_MS: described[ID]}), encoding="utf-8", newline="")
    (tmp_path / "ring.json").write_text(json.dumps(SNAPSHOT), encoding="utf-8")
    (tmp_path / "v2.csv").write_text(v2_csv({OTHER_ID: generation(OTHER_ID)}), encoding="utf-8", newline="")
    home = tmp_path / "home"
    shown = [tmp_path / name for name in ("times.csv", "streams.csv", "ring.json")]
    assert run("--home", home, "import", *shown).exit_code == 0
    answer = run("--home", home, "repair", "--dry-run", "--json")
    assert (answer.exit_code, answer.json["needed"], answer.json["reasons"]) == (0, False, [])
    assert answer.json["undetermined"].startswith("cannot tell without cdc_generation_descriptions_v2")
    assert [each.invariant for each in audit_ring_fit(Lake(home / "lake"))] == ["generations_retrievable"]
    assert run("--home", home, "import", tmp_path / "v2.csv").exit_code == 0
    answer = run("--home", home, "repair", "--dry-run", "--json")
    assert (answer.exit_code, [each["condition"] for each in answer.json["reasons"]]) == (1, ["missing-data"])
    assert [each.violations for each in audit_ring_fit(Lake(home / "lake"))] == [1]


def test_a_coordinator_waits_for_the_decision_as_well(homes: dict[str, Path]) -> None:
    """It takes the write just before the first lease end, and from then on none."""
    lake = Lake(homes["undecided"] / "lake")
    clock, own = Clock(us_from_ms(LEASE_END_MS)), LocalDisk(lake, UUID(int=9))
    waits = switches.read_undecided_switches(lake)
    node = Coordinator(own.host_id, partial(read_generation_description, lake), own, clock.now_us, undecided=waits)
    assert node.learn(GenerationId(FIRST_MS, UUID(uuid_of(FIRST_MS))))
    assert (
        node.get_stream(Microseconds(us_from_ms(LEASE_END_MS) - 1), TOKEN)
        == description(FIRST_MS).streams_of(TOKEN)[0].tobytes()
    )
    assert node.decide(us_from_ms(LEASE_END_MS)).verdict is WriteVerdict.UNDECIDED
    with pytest.raises(WriteRefused, match="a generation switch is undecided since"):
        node.get_stream(us_from_ms(LEASE_END_MS), TOKEN)


def writes_at(spark: SparkSession, times: list[int]) -> DataFrame:
    """Writes of the one key at these times (µs), in one part."""
    return spark.createDataFrame([(KEY, at) for at in times], "key binary, timestamp bigint").coalesce(1)


@pytest.mark.spark
def test_base_writes_get_the_same_streams(spark: SparkSession, homes: dict[str, Path]) -> None:
    """On Spark's workers, for every home but those with tablets: as a DataFrame, and appended by the workers."""
    for name in {question.home: None for question in QUESTIONS if question.home != "with_tablets"}:
        lake = Lake(homes[name] / "lake")
        expected = {us_from_ms(each.at_ms): due(lake, each) for each in QUESTIONS if each.home == name}
        refused = [at for at, told in expected.items() if told in (UNDECIDED, NOT_RETRIEVED)]
        given = {at: None if isinstance(told, str) else told for at, told in expected.items() if at not in refused}
        for at in refused:
            writes = writes_at(spark, [at])
            with pytest.raises(Exception, match=NO_ANSWER):
                assign_streams(lake, writes).collect()
            with pytest.raises(PlatformError, match=NO_ANSWER):
                append_with_streams(lake, writes, "ks.writes")
        if given:
            writes = writes_at(spark, list(given))
            rows = [row.asDict() for row in assign_streams(lake, writes).collect()]
            assert {row["timestamp"]: row["stream_id"] for row in rows} == given
            append_with_streams(lake, writes, "ks.writes")
            assert DeltaTable(f"{lake.location}/ks/writes").to_pyarrow_table().to_pylist() == rows


def test_an_applied_script_waits_for_the_decision_too(workers: TaskRunner, tmp_path: Path) -> None:
    """It keeps what `explain` accepts and leaves out what it refuses; once decided, all is in its own generation."""
    home = home_of(tmp_path, "undecided")
    lake, clock = Lake(home / "lake"), Clock(us_from_ms(LEASE_END_MS))
    moments = [us_from_ms(LEASE_END_MS) - ONE_US, us_from_ms(LEASE_END_MS)]
    text = "\n".join(
        f"INSERT INTO ks.t (p, k, v) VALUES (7, {number}, 1) USING TIMESTAMP {at};" for number, at in enumerate(moments)
    )
    kept = commit_script(text, lake, clock, Settings())
    told = [StreamSources(lake).of("ks", "t").explain(TOKEN, at, clock.now_us()).facts() for at in moments]
    assert [each["verdict"] for each in told] == ["OK", UNDECIDED]
    assert [outcome.accepted for outcome in kept.outcomes] == [True, False]
    rows = lake.read(log_table(read_table_schema(lake, "ks", "t"))).to_pylist()
    assert [row["cdc$stream_id"] for row in rows] == [told[0]["stream_id"]]
    decide(lake)
    again = commit_script(text.splitlines()[1], lake, clock, Settings())
    assert again.outcomes[0].accepted
    findings = audit_log(lake, read_table_schema(lake, "ks", "t"), workers)
    assert [(each.population > 0, each.violations) for each in findings] == [(True, 0)] * len(findings)
