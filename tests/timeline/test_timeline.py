"""The timeline by itself: its states and names, what it reads, and that no other module answers for it."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from support.homes import timelines
from support.homes.timelines import FIRST_MS, HOMES, SECOND_MS, THIRD_MS, uuid_of

from cdc_platform.clock import Milliseconds, datetime_from_ms, format_ms
from cdc_platform.delta import Lake
from cdc_platform.errors import NotFound
from cdc_platform.generations import GenerationId
from cdc_platform.tables import CDC_LOCAL, GENERATIONS, STREAMS_DESCRIPTIONS, Table
from cdc_platform.timeline import GenerationState, Timeline

ROOT = Path(__file__).resolve().parents[2]
STATES = {
    "plain": [GenerationState.PUBLISHED],
    "three": [GenerationState.PUBLISHED] * 3,
    "introduced": [GenerationState.PUBLISHED, GenerationState.INTRODUCED],
    "undecided": [GenerationState.PUBLISHED],
    "committed": [GenerationState.PUBLISHED, GenerationState.COMMITTED],
    "removed": [GenerationState.REMOVED, GenerationState.PUBLISHED],
    "only_v1": [GenerationState.ONLY_V1],
    "timestamp_only": [GenerationState.NOT_EXPORTED],
    "named_by_node": [GenerationState.PUBLISHED, GenerationState.NOT_RETRIEVABLE],
    "named_by_group": [GenerationState.PUBLISHED, GenerationState.NOT_RETRIEVABLE],
    "bare_in_ledger": [GenerationState.PUBLISHED, GenerationState.NOT_RETRIEVABLE],
    "bare_timestamp": [GenerationState.PUBLISHED, GenerationState.NOT_RETRIEVABLE],
    "bare_in_v1": [GenerationState.PUBLISHED, GenerationState.NOT_RETRIEVABLE],
    "with_tablets": [GenerationState.PUBLISHED],
}


@pytest.mark.parametrize("name", HOMES)
def test_every_generation_has_one_state(lake: Lake, name: str) -> None:
    """Each home's generations have the expected states, oldest first."""
    HOMES[name](lake)
    assert [generation.state for generation in Timeline.read(lake).generations] == STATES[name]


def test_a_first_format_generation_is_known(lake: Lake) -> None:
    """A row of streams without a description makes a generation known, but not retrievable."""
    row = {"time": datetime_from_ms(FIRST_MS), "streams": [bytes(16)]}
    lake.merge(STREAMS_DESCRIPTIONS, pa.Table.from_pylist([row]), update=False)
    (only,) = Timeline.read(lake).known
    assert (only.state, only.published_v1, only.gossiped) == (
        GenerationState.NOT_RETRIEVABLE,
        True,
        GenerationId(FIRST_MS),
    )


def test_the_ledger_without_rows_is_not_enough(lake: Lake) -> None:
    """A generation whose V2 rows are lost is still named, but no longer retrievable."""
    timelines.plain(lake)
    row = lake.read(GENERATIONS).to_pylist()[0]
    lost = row | {"generation_id": uuid_of(SECOND_MS), "time": datetime_from_ms(SECOND_MS)}
    lake.merge(GENERATIONS, pa.Table.from_pylist([lost], schema=GENERATIONS.schema), update=False)
    newest = Timeline.read(lake).newest
    assert newest is not None
    assert (newest.name, newest.state) == (uuid_of(SECOND_MS), GenerationState.NOT_RETRIEVABLE)


def test_a_v1_generation_without_its_data_is_not_listed(lake: Lake) -> None:
    """A V1 generation is unknown until its data arrives, but its time is assigned and stays the latest one."""
    timelines.plain(lake)
    row = lake.read(GENERATIONS).to_pylist()[0]
    waits = row | {"generation_id": uuid_of(THIRD_MS), "time": datetime_from_ms(THIRD_MS), "format": "v1"}
    lake.merge(GENERATIONS, pa.Table.from_pylist([waits], schema=GENERATIONS.schema), update=False)
    timeline = Timeline.read(lake)
    assert [generation.time_ms for generation in timeline.generations] == [FIRST_MS]
    assert timeline.last_assigned_ms == THIRD_MS


def test_names_are_uuids_or_times(lake: Lake) -> None:
    """A node's `cdc_local` gives a UUID to a generation whose timestamp alone was exported."""
    timelines.timestamp_only(lake)
    (only,) = Timeline.read(lake).known
    assert (only.name, only.gossiped) == (format_ms(FIRST_MS), GenerationId(FIRST_MS))
    local_row = {"host_id": str(UUID(int=1)), "key": "cdc_local", "streams_timestamp": datetime_from_ms(FIRST_MS)}
    rows = pa.Table.from_pylist([local_row | {"uuid": uuid_of(FIRST_MS)}], schema=CDC_LOCAL.schema)
    lake.merge(CDC_LOCAL, rows, update=False)
    timeline = Timeline.read(lake)
    (only,) = timeline.known
    assert (only.name, only.state) == (uuid_of(FIRST_MS), GenerationState.NOT_EXPORTED)
    assert only.gossiped == GenerationId(FIRST_MS, UUID(uuid_of(FIRST_MS)))
    assert timeline.find(uuid_of(FIRST_MS)) == timeline.find(FIRST_MS) == only


@pytest.mark.parametrize("name", HOMES)
def test_a_generation_is_found_by_its_uuid(lake: Lake, name: str) -> None:
    """Every generation is found by its UUID, removed ones too; an unknown UUID finds none."""
    HOMES[name](lake)
    timeline = Timeline.read(lake)
    for generation in timeline.generations:
        assert generation.id is None or timeline.with_id(generation.id) == generation
    assert timeline.with_id(str(UUID(int=0))) is None


def test_missing_generations_are_refused_by_their_reason(lake: Lake) -> None:
    """Unknown, removed and unpublished generations are each refused with their own reason."""
    timelines.removed(lake)
    timelines.enter(lake, THIRD_MS)
    timeline = Timeline.read(lake)
    with pytest.raises(NotFound, match=r"no generation 2023-11-14T22:13:20\.001Z is known"):
        timeline.find(Milliseconds(FIRST_MS + 1))
    for name in (FIRST_MS, uuid_of(FIRST_MS)):
        with pytest.raises(NotFound, match=r"was removed at .*: since .* no CDC log could hold rows of it"):
            timeline.find(name)
    with pytest.raises(NotFound, match="is not published yet"):
        timeline.find_published(THIRD_MS)
    assert timeline.find_published(SECOND_MS).id == uuid_of(SECOND_MS)


def test_each_small_table_is_read_once_and_no_streams(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a timeline reads each small table once and no streams, so it is cheap enough for a sensor's tick."""
    timelines.three(lake)
    read, names = Lake.read, []

    def record_read(self: Lake, table: Table, *args: Any, **kwargs: Any) -> pa.Table:
        rows = read(self, table, *args, **kwargs)
        assert "streams" not in rows.column_names
        names.append(table.full_name)
        return rows

    monkeypatch.setattr(Lake, "read", record_read)
    assert len(Timeline.read(lake).known) == 3
    assert len(names) == len(set(names)) == 8


ALLOWED = {
    "cdc_platform/timeline/sources.py": "the one place",
    "cdc_platform/cli/demo_report.py": "whether the chapter's table is still there",
    "assets/tablets/stream_sets.py": "whether a tablet-based table has its first set yet",
}
"""The modules that may ask whether a table has stream sets, each with its reason."""


def test_one_function_distinguishes_tablets_from_generations() -> None:
    """No other module asks which kind of streams a table has, by its sets or by the class of its source."""
    modules = set()
    for path in [*(ROOT / "cdc_platform").rglob("*.py"), *(ROOT / "assets").rglob("*.py")]:
        if any(_distinguishes_kinds(node) for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))):
            modules.add(str(path.relative_to(ROOT)))
    assert modules == set(ALLOWED)


def _distinguishes_kinds(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        called = ast.unparse(node.func)
        if called in ("isinstance", "issubclass"):
            return any(kind in ast.unparse(node) for kind in ("VnodeStreams", "TabletStreams", "StreamSet"))
        return called.endswith("has_stream_sets")
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
        return any(
            function in ast.unparse(node.comparators[0])
            for function in ("read_tables_with_stream_sets", "_with_tablets", "tablet_tables", "listed_sets")
        )
    return False
