"""What a store has to keep is found out, and a store that does not keep it is not written to, by whichever method."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from support.store.s3 import S3

from cdc_platform.delta import Lake, TaskRows, TaskRunner
from cdc_platform.errors import NoConditionalWrites
from cdc_platform.spark import frames
from cdc_platform.storage import ObjectStorePath, parse_path, write_check
from cdc_platform.tables import CONSUMERS, GENERATION_TIMESTAMPS, NODES, STREAMS_DESCRIPTIONS_V2, Table, column

TIME = datetime(2021, 11, 2, 19, 45, 26, 384000, tzinfo=UTC)
WIDER = Table(
    "ks", "wide", pa.schema([column("k", pa.int64(), ""), column("v", pa.string(), "", null=True)]), ("k",), ""
)
NARROW = Table("ks", "wide", pa.schema([column("k", pa.int64(), "")]), ("k",), "")
WORKERS = TaskRunner.alone()


def stamps(hour: int, expired: datetime | None = None) -> pa.Table:
    """A row of cdc_generation_timestamps."""
    row = {"key": "timestamps", "time": TIME + timedelta(hours=hour), "expired": expired}
    return pa.Table.from_pylist([row], schema=GENERATION_TIMESTAMPS.schema)


def consumer(window: int) -> pa.Table:
    """A consumer that has read so many windows."""
    row = {"name": "a", "keyspace_name": "k", "table_name": "t", "position": TIME, "window_number": window}
    return pa.Table.from_pylist([row | {"set_timestamp": None, "updated_at": TIME}], schema=CONSUMERS.schema)


def streams(end: int) -> pa.Table:
    """A row of cdc_streams_descriptions_v2."""
    row = {"time": TIME, "range_end": end, "streams": [b"0123456789abcdef"]}
    return pa.Table.from_pylist([row], schema=STREAMS_DESCRIPTIONS_V2.schema)


def tasks(rows: pa.Table) -> TaskRows:
    """Rows as two tasks make them, one of which has none."""
    return TaskRows(2, lambda task: iter(rows.to_batches() if task == 0 else []))


OF_LAKE: dict[str, Callable[[Lake], Any]] = {
    "ensure": lambda lake: lake.ensure(NODES),
    "widen": lambda lake: lake.widen(WIDER),
    "merge": lambda lake: lake.merge(GENERATION_TIMESTAMPS, stamps(5), update=False),
    "delete": lambda lake: lake.delete(GENERATION_TIMESTAMPS, [("time", ">", TIME)]),
    "compare_and_set": lambda lake: lake.compare_and_set(CONSUMERS, consumer(1), ("window_number", 0)),
    "transact": lambda lake: lake.transact(GENERATION_TIMESTAMPS, lambda _: stamps(5)),
    "merge_judged": lambda lake: lake.merge_judged(GENERATION_TIMESTAMPS, lambda: stamps(6)),
    "raise_column": lambda lake: lake.raise_column(GENERATION_TIMESTAMPS, stamps(0, TIME), "expired"),
    "append_once": lambda lake: lake.append_once(CONSUMERS, consumer(0), {"reader": 4}, None),
    "replace_once": lambda lake: lake.replace_once(
        GENERATION_TIMESTAMPS, stamps(1), [("time", ">", TIME)], lake.version(GENERATION_TIMESTAMPS)
    ),
    "vacuum": lambda lake: lake.vacuum(GENERATION_TIMESTAMPS),
}
OF_FRAMES: dict[str, Callable[[Lake], Any]] = {
    "append_to_table": lambda lake: frames.append_to_table(WORKERS, lake, CONSUMERS, tasks(consumer(0))),
    "append_to_table once": lambda lake: frames.append_to_table(
        WORKERS, lake, CONSUMERS, tasks(consumer(0)), transaction=("a", 1)
    ),
    "replace_all_rows": lambda lake: frames.replace_all_rows(WORKERS, lake, CONSUMERS, tasks(consumer(0))),
    "replace_partition": lambda lake: frames.replace_partition(
        WORKERS, lake, STREAMS_DESCRIPTIONS_V2, tasks(streams(7)), {"time": TIME}
    ),
}
"""Each method that writes, by which module; of what `filled` has each of them would change something."""


@pytest.fixture
def filled(s3: S3) -> Lake:
    """A lake with rows, made while its store was one that may be written to."""
    lake = Lake(f"{s3.bucket()}/home/lake")
    lake.ensure(NARROW)
    lake.merge(STREAMS_DESCRIPTIONS_V2, streams(1), update=False)
    for hour in (0, 1, 2):
        lake.merge(GENERATION_TIMESTAMPS, stamps(hour), update=False)
    lake.merge(GENERATION_TIMESTAMPS, stamps(2, TIME), update=True)
    lake.merge(CONSUMERS, consumer(0), update=False)
    return lake


def through(s3: S3, door: str, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """That lake as another process meets it, by another door."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.environment(door)["AWS_ENDPOINT_URL"])
    write_check.has_conditional_writes.cache_clear()
    return Lake(str(lake.location))


def held(folder: ObjectStorePath) -> list[str]:
    """Every object below a folder with its mark."""
    return [
        *(f"{folder}/{name} {seen.mark}" for name, seen in folder.files()),
        *(each for below in folder.folders() if isinstance(below, ObjectStorePath) for each in held(below)),
    ]


def test_every_writing_method_is_walked() -> None:
    """A method that writes stands in the lists above."""
    commits = ("self._write(", "create.create_table(", "compaction.", "writer.", "transaction_log.commit")
    writing = {
        name
        for name, method in inspect.getmembers(Lake, inspect.isfunction)
        if not name.startswith("_") and any(word in inspect.getsource(method) for word in commits)
    }
    assert writing == set(OF_LAKE)
    drafting = {
        name
        for name, method in inspect.getmembers(frames, inspect.isfunction)
        if not name.startswith("_")
        and any(word in inspect.getsource(method) for word in ("_write_rows(", "write_draft("))
    }
    assert drafting == {name.partition(" ")[0] for name in OF_FRAMES}


@pytest.mark.parametrize("was", ["kept", "broken", "untried"])
def test_no_method_writes_into_a_store_that_lets_two_writers_win(
    s3: S3, filled: Lake, monkeypatch: pytest.MonkeyPatch, was: str
) -> None:
    """Whatever was noted of it before: every method is refused in one line, and not one object is another."""
    note = filled.location.folder / ".lake.contract.json"
    if was != "kept":
        note.remove()
    if was == "broken":
        assert isinstance(note, ObjectStorePath)
        note.create(b'{"put_if_absent": "broken"}')
    lake = through(s3, "careless", filled, monkeypatch)
    assert isinstance(lake.location, ObjectStorePath)
    before = held(lake.location)
    for name, write in (OF_LAKE | OF_FRAMES).items():
        with pytest.raises(NoConditionalWrites, match="can be read but not written to") as told:
            write(lake)
        assert "\n" not in str(told.value), name
        assert held(lake.location) == before, name
    assert lake.read(GENERATION_TIMESTAMPS).num_rows == 3
    assert json.loads(note.read()) == {"put_if_absent": "broken"}


def test_each_of_these_writes_where_it_may(s3: S3, filled: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: by the same lists, in a store that keeps the contract, every method leaves something."""
    lake = through(s3, "plain", filled, monkeypatch)
    assert isinstance(lake.location, ObjectStorePath)
    for name, write in (OF_LAKE | OF_FRAMES).items():
        if name == "vacuum":  # files are too young for it here
            continue
        before = held(lake.location)
        write(lake)
        assert held(lake.location) != before, name


@pytest.mark.parametrize("door", ["careless", "hasty"])
def test_a_store_in_which_two_writers_win_is_found_out(s3: S3, monkeypatch: pytest.MonkeyPatch, door: str) -> None:
    """One that takes no notice of conditions, and one that looks first and puts then: each time it is tried."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.environment(door)["AWS_ENDPOINT_URL"])
    bucket = s3.bucket()
    for number in range(3):
        folder = parse_path(f"{bucket}/home{number}")
        assert isinstance(folder, ObjectStorePath)
        assert max(write_check.count_put_winners(folder)) == write_check.PROBE_WRITERS
        assert not folder.is_folder()
    with pytest.raises(NoConditionalWrites):
        Lake(f"{bucket}/home/lake").ensure(CONSUMERS)


def test_a_damaged_note_is_rewritten(s3: S3, filled: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no note says nothing of the store, which is tried out again."""
    for content in (b"", b"[]", b"{}", b"\xff"):
        note = filled.location.folder / ".lake.contract.json"
        note.remove()
        assert isinstance(note, ObjectStorePath)
        note.create(content)
        through(s3, "plain", filled, monkeypatch).ensure(NODES)
        assert json.loads(note.read()) == {"put_if_absent": "kept"}
