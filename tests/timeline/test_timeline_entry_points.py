"""All entry points give the same answer about homes in every state."""

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
Answer = bytes | str
"""A stream's ID, or the reason why there is none."""


@dataclass(frozen=True)
class Question:
    """A write at a time (ms), made by the clock: the generation or set that operates, and what the write gets.

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
    """Create every home of `HOMES`; the entry points only read them."""
    folder = tmp_path_factory.mktemp("homes")
    return {name: home_of(folder, name) for name in HOMES}


def expected_answer(lake: Lake, question: Question) -> Answer:
    """Return what the write has to get, by the rules alone."""
    if question.word is not None:
        return question.word
    assert question.operates_ms is not None
    if question.home == "with_tablets":
        sets = tablets.read_stream_sets(lake, "ks", "t")
        stream = tablet_oracle.stream_of([ids.tobytes() for ids in sets[0].ids], TOKEN)
        assert stream is not None
        return stream
    return description(question.operates_ms).streams_of(TOKEN)[0].tobytes()


def answer_of_explain(home: Path, question: Question) -> Answer:
    """Ask `cdc-platform explain --table ks.t`, with the clock at the write."""
    clock = format_us(us_from_ms(question.at_ms))
    answer = run("--home", home, "--clock", clock, "explain", "--key", KEY.hex(), "--table", "ks.t", "--json").json
    if answer["accepted"]:
        return bytes.fromhex(answer["stream_id"][2:])
    return REMOVED if "was removed with its streams" in (answer.get("note") or "") else answer["verdict"]


def answer_of_script(home: Path, question: Question) -> Answer:
    """Ask a dry run of `cdc-platform cql run` with one insert."""
    lake = Lake(home / "lake")
    text = f"{DDL} INSERT INTO ks.t (p, k, v) VALUES (7, 1, 1);"
    outcome = dry_run_script(text, lake, Clock(us_from_ms(question.at_ms)), Settings()).outcomes[-1]
    if isinstance(outcome.error, WriteRefused):
        return str(outcome.error.verdict)
    (row,) = outcome.rows
    stream = row["cdc$stream_id"]
    assert isinstance(stream, bytes)
    return stream


def answer_of_typed_writes(home: Path, question: Question) -> Answer:
    """Ask the encoder of typed writes of `ks.t`, which logs writes in volume."""
    lake = Lake(home / "lake")
    schema = read_table_schema(lake, "ks", "t")
    write = {"operation": 2, "timestamp": us_from_ms(question.at_ms), "p": 7, "k": 1, "v": 1}
    batch = pa.RecordBatch.from_pylist([write], schema=typed_writes_schema(schema))

    def stream() -> bytes | None:
        return encode_log_batch(schema, batch, get_stream_lookup(lake, schema)).column("cdc$stream_id")[0].as_py()

    return answer_of_past(stream)


def answer_of_past(stream: Callable[[], bytes | None]) -> Answer:
    """Translate the errors of entry points that look up past streams to the answers of those that judge a write."""
    try:
        stream_id = stream()
    except WriteRefused as refused:
        return str(refused.verdict)
    except InputError:
        return NO_STREAM
    except (NotFound, StateError):
        return NOT_RETRIEVED
    return NO_STREAM if stream_id is None else stream_id


def answer_of_audit(home: Path, question: Question) -> Answer:
    """Ask the periods by which log audits judge a row of that time."""
    at_us = us_from_ms(question.at_ms)
    periods = StreamSources(Lake(home / "lake")).of("ks", "t").periods()
    current = [
        period_at
        for period_at in periods
        if period_at.begin_us <= at_us and (period_at.end_us is None or at_us < period_at.end_us)
    ]
    if not current:
        return NO_STREAM
    (period,) = current
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
    "door",
    [answer_of_explain, answer_of_script, answer_of_typed_writes, answer_of_audit],
    ids=lambda each: each.__name__,
)
def test_every_entry_point_gives_the_same_stream(
    homes: dict[str, Path], door: Callable[[Path, Question], Answer], question: Question
) -> None:
    """Each entry point returns the stream that the rules give, or the one reason why there is none."""
    answer, expected = (
        door(homes[question.home], question),
        expected_answer(Lake(homes[question.home] / "lake"), question),
    )
    if door is answer_of_audit and expected == UNDECIDED:
        # The audit judges existing rows; an undecided switch concerns future writes only.
        expected = description(FIRST_MS).streams_of(TOKEN)[0].tobytes()
    if (door is answer_of_typed_writes and expected == REMOVED) or (door is answer_of_script and expected == REMOVED):
        # Typed writes get a null; a script reports that the streams cannot be retrieved.
        expected = NO_STREAM if door is answer_of_typed_writes else NOT_RETRIEVED
    assert answer == expected


@pytest.mark.parametrize("question", QUESTIONS, ids=str)
def test_readers_follow_the_timeline(homes: dict[str, Path], question: Question) -> None:
    """A consumer reads a time by the generation that operates then, or not at all."""
    lake, at_us = Lake(homes[question.home] / "lake"), us_from_ms(question.at_ms)
    schema = read_table_schema(lake, "ks", "t")
    if question.is_shown and question.word in (REMOVED, NOT_RETRIEVED):
        reason = "has been removed" if question.word == REMOVED else "are not all published yet"
        with pytest.raises(StateError, match=reason):
            list(iter_complete_windows(lake, schema, Microseconds(at_us - 1), at_us, at_us))
        return
    window_sets = [
        window.set_us for window in iter_complete_windows(lake, schema, Microseconds(at_us - 1), at_us, at_us)
    ]
    assert window_sets == (
        [us_from_ms(question.operates_ms)] if question.is_shown and question.operates_ms is not None else []
    )


@pytest.mark.parametrize("question", [each for each in QUESTIONS if each.home != "with_tablets"], ids=str)
def test_the_list_shows_which_generation_operates(homes: dict[str, Path], question: Question) -> None:
    """`cdc-platform generations` at the time of the write marks the operating generation; it omits a removed one."""
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
    """The list, repair, the purge plan, the audit and the choice of the next timestamp agree on the newest one."""
    home = home_of(tmp_path, name)
    lake, clock = Lake(home / "lake"), Clock(us_from_ms(FIRST_MS))
    ring_of(lake, [1])
    listed = run("--home", home, "generations", "--json").rows
    assert listed[0]["time"] == format_ms(newest_ms)
    latest = repair.check_newest_generation(lake, streams=False).latest
    assert latest is not None
    assert latest.time_ms == newest_ms
    assert expiry.plan_expiry(lake, clock, Settings())[-1].time_ms == newest_ms
    if not name.endswith("_v1"):  # the checks of the first format judge those
        assert max(entry.time_ms or 0 for entry in inventory.read_inventory(lake)) == newest_ms
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
    """With a ring of one node, all agree on unreadable generations, the newest one's fit, and the need for repair."""
    home = home_of(tmp_path, name)
    lake = Lake(home / "lake")
    ring_of(lake, [1])
    results = {result.invariant: result for result in audit_ring_fit(lake)}
    assert results["generations_retrievable"].violations == unread
    ring_fit = results.get("streams_fit_the_ring")
    assert (None if ring_fit is None else ring_fit.violations == 0) == fits
    dry = run("--home", home, "repair", "--dry-run", "--json")
    needed = "cannot tell" if dry.json["undetermined"] else "yes" if dry.json["needed"] else "no"
    assert (needed, dry.exit_code) == (repair, int(repair == "yes"))
    status = run("--home", home, "status", "--json").json
    assert status["repair"]["needed"] == {"yes": True, "no": False, "cannot tell": None}[repair]
    assert len(status["generations"]["not_retrievable"]) == unread


def test_a_table_that_was_not_imported_is_undetermined(tmp_path: Path) -> None:
    """Repair cannot tell from clients' tables alone; with descriptions of others it reports missing rows."""
    described = {ID: generation(ID)}
    (tmp_path / "times.csv").write_text(timestamps_csv({TIME_MS: None}), encoding="utf-8", newline="")
    (tmp_path / "streams.csv").write_text(streams_csv({TIME_MS: described[ID]}), encoding="utf-8", newline="")
    (tmp_path / "ring.json").write_text(json.dumps(SNAPSHOT), encoding="utf-8")
    (tmp_path / "v2.csv").write_text(v2_csv({OTHER_ID: generation(OTHER_ID)}), encoding="utf-8", newline="")
    home = tmp_path / "home"
    imported = [tmp_path / name for name in ("times.csv", "streams.csv", "ring.json")]
    assert run("--home", home, "import", *imported).exit_code == 0
    answer = run("--home", home, "repair", "--dry-run", "--json")
    assert (answer.exit_code, answer.json["needed"], answer.json["reasons"]) == (0, False, [])
    assert answer.json["undetermined"].startswith("cannot tell without cdc_generation_descriptions_v2")
    assert [item.invariant for item in audit_ring_fit(Lake(home / "lake"))] == ["generations_retrievable"]
    assert run("--home", home, "import", tmp_path / "v2.csv").exit_code == 0
    answer = run("--home", home, "repair", "--dry-run", "--json")
    assert (answer.exit_code, [item["condition"] for item in answer.json["reasons"]]) == (1, ["missing-data"])
    assert [item.violations for item in audit_ring_fit(Lake(home / "lake"))] == [1]


def test_a_coordinator_waits_for_the_decision_as_well(homes: dict[str, Path]) -> None:
    """A coordinator accepts a write just before the first lease end, and none from then on."""
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
    """Return writes of the one key at these times (µs), in one partition."""
    return spark.createDataFrame([(KEY, at) for at in times], "key binary, timestamp bigint").coalesce(1)


@pytest.mark.spark
def test_base_writes_get_the_same_streams(spark: SparkSession, homes: dict[str, Path]) -> None:
    """Spark's executors assign the same streams in every home without tablets, as a DataFrame and by appending."""
    for name in {question.home: None for question in QUESTIONS if question.home != "with_tablets"}:
        lake = Lake(homes[name] / "lake")
        expected = {
            us_from_ms(question.at_ms): expected_answer(lake, question)
            for question in QUESTIONS
            if question.home == name
        }
        refused = [at for at, answer in expected.items() if answer in (UNDECIDED, NOT_RETRIEVED)]
        streams = {
            at: None if isinstance(answer, str) else answer for at, answer in expected.items() if at not in refused
        }
        for at in refused:
            writes = writes_at(spark, [at])
            with pytest.raises(Exception, match=NO_ANSWER):
                assign_streams(lake, writes).collect()
            with pytest.raises(PlatformError, match=NO_ANSWER):
                append_with_streams(lake, writes, "ks.writes")
        if streams:
            writes = writes_at(spark, list(streams))
            rows = [row.asDict() for row in assign_streams(lake, writes).collect()]
            assert {row["timestamp"]: row["stream_id"] for row in rows} == streams
            append_with_streams(lake, writes, "ks.writes")
            assert DeltaTable(f"{lake.location}/ks/writes").to_pyarrow_table().to_pylist() == rows


def test_an_applied_script_waits_for_the_decision_too(workers: TaskRunner, tmp_path: Path) -> None:
    """A script applies what `explain` accepts and omits the rest; after the decision all rows fit their generations."""
    home = home_of(tmp_path, "undecided")
    lake, clock = Lake(home / "lake"), Clock(us_from_ms(LEASE_END_MS))
    times_us = [us_from_ms(LEASE_END_MS) - ONE_US, us_from_ms(LEASE_END_MS)]
    text = "\n".join(
        f"INSERT INTO ks.t (p, k, v) VALUES (7, {number}, 1) USING TIMESTAMP {at};"
        for number, at in enumerate(times_us)
    )
    first_run = commit_script(text, lake, clock, Settings())
    explanations = [StreamSources(lake).of("ks", "t").explain(TOKEN, at, clock.now_us()).facts() for at in times_us]
    assert [item["verdict"] for item in explanations] == ["OK", UNDECIDED]
    assert [outcome.accepted for outcome in first_run.outcomes] == [True, False]
    rows = lake.read(log_table(read_table_schema(lake, "ks", "t"))).to_pylist()
    assert [row["cdc$stream_id"] for row in rows] == [explanations[0]["stream_id"]]
    decide(lake)
    second_run = commit_script(text.splitlines()[1], lake, clock, Settings())
    assert second_run.outcomes[0].accepted
    findings = audit_log(lake, read_table_schema(lake, "ks", "t"), workers)
    assert [(item.population > 0, item.violations) for item in findings] == [(True, 0)] * len(findings)
