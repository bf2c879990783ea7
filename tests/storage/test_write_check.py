"""The required properties of a store are probed; no method writes to a store that does not have them."""

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
    """Return a row of cdc_generation_timestamps."""
    row = {"key": "timestamps", "time": TIME + timedelta(hours=hour), "expired": expired}
    return pa.Table.from_pylist([row], schema=GENERATION_TIMESTAMPS.schema)


def consumer(window: int) -> pa.Table:
    """Return a consumer that has read `window` windows."""
    row = {"name": "a", "keyspace_name": "k", "table_name": "t", "position": TIME, "window_number": window}
    return pa.Table.from_pylist([row | {"set_timestamp": None, "updated_at": TIME}], schema=CONSUMERS.schema)


def streams(end: int) -> pa.Table:
    """Return a row of cdc_streams_descriptions_v2."""
    row = {"time": TIME, "range_end": end, "streams": [b"0123456789abcdef"]}
    return pa.Table.from_pylist([row], schema=STREAMS_DESCRIPTIONS_V2.schema)


def tasks(rows: pa.Table) -> TaskRows:
    """Return rows as two tasks create them, one of them without rows."""
    return TaskRows(2, lambda task: iter(rows.to_batches() if task == 0 else []))


LAKE_WRITES: dict[str, Callable[[Lake], Any]] = {
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
FRAME_WRITES: dict[str, Callable[[Lake], Any]] = {
    "append_to_table": lambda lake: frames.append_to_table(WORKERS, lake, CONSUMERS, tasks(consumer(0))),
    "append_to_table once": lambda lake: frames.append_to_table(
        WORKERS, lake, CONSUMERS, tasks(consumer(0)), transaction=("a", 1)
    ),
    "replace_all_rows": lambda lake: frames.replace_all_rows(WORKERS, lake, CONSUMERS, tasks(consumer(0))),
    "replace_partition": lambda lake: frames.replace_partition(
        WORKERS, lake, STREAMS_DESCRIPTIONS_V2, tasks(streams(7)), {"time": TIME}
    ),
}
"""All methods that write, by module; each of them would change something in `filled`."""


@pytest.fixture
def filled(s3: S3) -> Lake:
    """A lake with rows, written while its store allowed writes."""
    lake = Lake(f"{s3.bucket()}/home/lake")
    lake.ensure(NARROW)
    lake.merge(STREAMS_DESCRIPTIONS_V2, streams(1), update=False)
    for hour in (0, 1, 2):
        lake.merge(GENERATION_TIMESTAMPS, stamps(hour), update=False)
    lake.merge(GENERATION_TIMESTAMPS, stamps(2, TIME), update=True)
    lake.merge(CONSUMERS, consumer(0), update=False)
    return lake


def reopen(s3: S3, endpoint: str, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """Return the lake as another process opens it through another endpoint."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.environment(endpoint)["AWS_ENDPOINT_URL"])
    write_check.has_conditional_writes.cache_clear()
    return Lake(str(lake.location))


def list_objects(folder: ObjectStorePath) -> list[str]:
    """Return every object below a folder with its mark."""
    return [
        *(f"{folder}/{name} {status.mark}" for name, status in folder.files()),
        *(
            object_mark
            for below in folder.folders()
            if isinstance(below, ObjectStorePath)
            for object_mark in list_objects(below)
        ),
    ]


def test_every_writing_method_is_covered() -> None:
    """The lists above have every method that writes."""
    commits = ("self._write(", "create.create_table(", "compaction.", "writer.", "transaction_log.commit")
    writing = {
        name
        for name, method in inspect.getmembers(Lake, inspect.isfunction)
        if not name.startswith("_") and any(word in inspect.getsource(method) for word in commits)
    }
    assert writing == set(LAKE_WRITES)
    frame_functions = {
        name
        for name, method in inspect.getmembers(frames, inspect.isfunction)
        if not name.startswith("_")
        and any(word in inspect.getsource(method) for word in ("_write_rows(", "write_draft("))
    }
    assert frame_functions == {name.partition(" ")[0] for name in FRAME_WRITES}


@pytest.mark.parametrize("was", ["kept", "broken", "untried"])
def test_no_method_writes_into_a_store_without_conditional_writes(
    s3: S3, filled: Lake, monkeypatch: pytest.MonkeyPatch, was: str
) -> None:
    """Whatever the stored note says, every method is refused in one line and no object changes."""
    note = filled.location.folder / ".lake.contract.json"
    if was != "kept":
        note.remove()
    if was == "broken":
        assert isinstance(note, ObjectStorePath)
        note.create(b'{"put_if_absent": "broken"}')
    lake = reopen(s3, "careless", filled, monkeypatch)
    assert isinstance(lake.location, ObjectStorePath)
    before = list_objects(lake.location)
    for name, write in (LAKE_WRITES | FRAME_WRITES).items():
        with pytest.raises(NoConditionalWrites, match="can be read but not written to") as refusal:
            write(lake)
        assert "\n" not in str(refusal.value), name
        assert list_objects(lake.location) == before, name
    assert lake.read(GENERATION_TIMESTAMPS).num_rows == 3
    assert json.loads(note.read()) == {"put_if_absent": "broken"}


def test_each_method_writes_into_a_suitable_store(s3: S3, filled: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a control, each method of the same lists changes something in a suitable store."""
    lake = reopen(s3, "plain", filled, monkeypatch)
    assert isinstance(lake.location, ObjectStorePath)
    for name, write in (LAKE_WRITES | FRAME_WRITES).items():
        if name == "vacuum":  # the files are too young to be removed
            continue
        before = list_objects(lake.location)
        write(lake)
        assert list_objects(lake.location) != before, name


@pytest.mark.parametrize("door", ["careless", "hasty"])
def test_store_without_conditional_writes_is_detected(s3: S3, monkeypatch: pytest.MonkeyPatch, door: str) -> None:
    """Each probe detects a store that ignores conditions, and one that checks before it puts."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.environment(door)["AWS_ENDPOINT_URL"])
    bucket = s3.bucket()
    for number in range(3):
        folder = parse_path(f"{bucket}/home{number}")
        assert isinstance(folder, ObjectStorePath)
        assert max(write_check.count_put_winners(folder)) == write_check.PROBE_WRITERS
        assert not folder.is_folder()
    with pytest.raises(NoConditionalWrites):
        Lake(f"{bucket}/home/lake").ensure(CONSUMERS)


def test_damaged_note_is_rewritten(s3: S3, filled: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """An invalid note is ignored, and the store is probed again."""
    for content in (b"", b"[]", b"{}", b"\xff"):
        note = filled.location.folder / ".lake.contract.json"
        note.remove()
        assert isinstance(note, ObjectStorePath)
        note.create(content)
        reopen(s3, "plain", filled, monkeypatch).ensure(NODES)
        assert json.loads(note.read()) == {"put_if_absent": "kept"}
