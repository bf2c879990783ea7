"""Derived rows: their source is verified against its commits while it is read, and read once."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdc_platform.delta import Batches, Lake, TaskRows, TaskRunner, read_file_batches, tasks
from cdc_platform.errors import InputError, StateError
from cdc_platform.lifecycle.join.bootstrap import to_v2_batch
from cdc_platform.spark import frames
from cdc_platform.tables import GENERATION_DESCRIPTIONS_V2, STREAMS_DESCRIPTIONS_V2, TOPOLOGY_DESCRIPTIONS

ONE = str(uuid.UUID(int=1))
DESCRIBED, INSERTED = {"generation_id": ONE}, {"id": ONE}
TIME = datetime(2026, 1, 1, tzinfo=UTC)
Damage = Callable[[Path], object]


@pytest.fixture
def lake(lake: Lake) -> Lake:
    """A lake with three ranges of a generation, each in its own file."""
    for end in (1, 2, 3):
        row = {
            "generation_id": ONE,
            "range_end": end,
            "range_start": end - 1,
            "vnode_index": end,
            "owner": str(uuid.UUID(int=9)),
            "streams": [bytes([end]) * 16, bytes([end + 10]) * 16],
            "ignore_msb": 12,
        }
        lake.merge(TOPOLOGY_DESCRIPTIONS, pa.Table.from_pylist([row], TOPOLOGY_DESCRIPTIONS.schema), update=False)
    return lake


def insert(workers: TaskRunner, lake: Lake) -> int:
    """Derive V2 descriptions from the rows, as a join does."""
    described = frames.get_verified_partition_rows(lake, TOPOLOGY_DESCRIPTIONS, DESCRIBED)
    return frames.replace_partition(
        workers, lake, GENERATION_DESCRIPTIONS_V2, described.changed(to_v2_batch(ONE, 3)), INSERTED
    )


def replace_value(path: Path, name: str, value: Any) -> None:
    """Rewrite a file with another value in a column of its first row."""
    before = pq.ParquetFile(path).read()
    index = before.schema.get_field_index(name)
    values = [value, *before[name].to_pylist()[1:]]
    pq.write_table(before.set_column(index, name, pa.array(values, before.schema.field(name).type)), path)


DAMAGES: dict[str, Damage] = {
    "another stream": lambda path: replace_value(path, "streams", [b"0123456789abcdef"]),
    # A column that no derived row uses.
    "another owner": lambda path: replace_value(path, "owner", str(uuid.UUID(int=8))),
    "a null that the other table does not take": lambda path: replace_value(path, "range_end", None),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-20]),
}


def one_file(lake: Lake, *, in_parts: bool) -> None:
    """Bring the rows into one file, whose rows are few, or leave them in three, which are written as drafts."""
    if not in_parts:
        rows = lake.read(TOPOLOGY_DESCRIPTIONS).sort_by("range_end")
        task_rows = TaskRows(1, lambda _: iter(rows.to_batches()))
        frames.replace_partition(TaskRunner.alone(), lake, TOPOLOGY_DESCRIPTIONS, task_rows, DESCRIBED)


@pytest.mark.parametrize("in_parts", [False, True], ids=["few", "drafts"])
def test_rows_are_derived_from_committed_rows(either: TaskRunner, lake: Lake, in_parts: bool) -> None:
    """Every committed row is derived; a second run gives the same result."""
    one_file(lake, in_parts=in_parts)
    for _ in range(2):
        insert(either, lake)
        derived = lake.read(GENERATION_DESCRIPTIONS_V2).sort_by("range_end")
        assert derived["range_end"].to_pylist() == [1, 2, 3]
        assert (
            derived["streams"].to_pylist()
            == lake.read(TOPOLOGY_DESCRIPTIONS).sort_by("range_end")["streams"].to_pylist()
        )
        frames.assert_partition_as_committed(either, lake, GENERATION_DESCRIPTIONS_V2, INSERTED)


@pytest.mark.parametrize("in_parts", [False, True], ids=["few", "drafts"])
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_nothing_is_derived_from_damaged_rows(either: TaskRunner, lake: Lake, in_parts: bool, damage: Damage) -> None:
    """One line names the damaged table; the target table and its folder stay unchanged."""
    one_file(lake, in_parts=in_parts)
    lake.ensure(GENERATION_DESCRIPTIONS_V2)
    folder = Path(lake.path(GENERATION_DESCRIPTIONS_V2)).parent
    before = lake.version(GENERATION_DESCRIPTIONS_V2), sorted(folder.rglob("*.parquet"))
    damage(Path(lake.data_files(TOPOLOGY_DESCRIPTIONS)[0].path))
    for work in (
        insert,
        lambda workers, lake: frames.assert_partition_as_committed(workers, lake, TOPOLOGY_DESCRIPTIONS, DESCRIBED),
    ):
        with pytest.raises(StateError, match=r"topology_descriptions .* has other rows than its commits") as refused:
            work(either, Lake(lake.root))
        assert "\n" not in str(refused.value)
    assert (Lake(lake.root).version(GENERATION_DESCRIPTIONS_V2), sorted(folder.rglob("*.parquet"))) == before


def test_misfit_rows_are_an_input_error_without_damage(workers: TaskRunner, lake: Lake) -> None:
    """Derived rows outside the partition raise an InputError, because the caller made them."""
    described = frames.get_verified_partition_rows(lake, TOPOLOGY_DESCRIPTIONS, DESCRIBED)
    other = str(uuid.UUID(int=2))
    with pytest.raises(InputError, match="outside"):
        frames.replace_partition(
            workers, lake, GENERATION_DESCRIPTIONS_V2, described.changed(to_v2_batch(other, 3)), INSERTED
        )


def test_rows_without_commit_info_are_accepted(workers: TaskRunner, lake: Lake) -> None:
    """An old table without CommitInfo has no digest to compare with."""
    log = Path(lake.path(TOPOLOGY_DESCRIPTIONS), "_delta_log")
    for entry in log.glob("*.json"):
        lines = entry.read_text().splitlines()
        entry.write_text("\n".join(line for line in lines if "commitInfo" not in line) + "\n")
    old = Lake(lake.root)
    replace_value(Path(old.data_files(TOPOLOGY_DESCRIPTIONS)[0].path), "owner", str(uuid.UUID(int=8)))
    assert frames.get_verified_partition_rows(old, TOPOLOGY_DESCRIPTIONS, DESCRIBED).expected is None
    insert(workers, old)
    assert old.read(GENERATION_DESCRIPTIONS_V2).num_rows == 3


def test_each_file_is_read_once(workers: TaskRunner, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file is read while it is copied, and not earlier for its digest."""
    read: list[str] = []

    def counted(path: str, *arguments: Any) -> Batches:
        read.append(path)
        return read_file_batches(path, *arguments)

    monkeypatch.setattr(tasks, "read_file_batches", counted)
    insert(workers, lake)
    assert sorted(read) == sorted(file.path for file in lake.data_files(TOPOLOGY_DESCRIPTIONS))
    inserted = frames.get_verified_partition_rows(lake, GENERATION_DESCRIPTIONS_V2, INSERTED)
    read.clear()

    def published(batch: pa.RecordBatch) -> pa.RecordBatch:
        times = pa.repeat(pa.scalar(TIME, pa.timestamp("us", "UTC")), batch.num_rows)
        return pa.RecordBatch.from_pydict({"time": times, "range_end": batch["range_end"], "streams": batch["streams"]})

    frames.replace_partition(workers, lake, STREAMS_DESCRIPTIONS_V2, inserted.changed(published), {"time": TIME})
    assert sorted(read) == sorted(file.path for file in lake.data_files(GENERATION_DESCRIPTIONS_V2))
