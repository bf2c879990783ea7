"""Rows without the JVM: files are read in batches that fit the cache, whatever a row's length, and none is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Barrier
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdc_platform.delta import tasks as delta_tasks


def write_file(path: Path, rows: int, streams: int, group: int) -> pa.Table:
    """Write a Parquet file of `rows` rows with `streams` streams each, in row groups of `group` rows."""
    random = np.random.default_rng(1)
    table = pa.table(
        {"range_end": range(rows), "streams": [[random.bytes(16) for _ in range(streams)] for _ in range(rows)]}
    )
    pq.write_table(table, path, row_group_size=group)
    return table


@pytest.mark.parametrize(("rows", "streams", "group"), [(0, 1, 1), (1, 4096, 1), (500, 8, 90), (300, 200, 300)])
def test_a_file_is_read_in_order_and_in_batches(tmp_path: Path, rows: int, streams: int, group: int) -> None:
    """No batch is much larger than the limit, and together the batches are the file."""
    path = tmp_path / "file.parquet"
    table = write_file(path, rows, streams, group)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delta_tasks, "_BATCH_BYTES", 1 << 14)
        batches = list(delta_tasks.read_file_batches(str(path), ["streams", "range_end"]))
    assert sum(batch.num_rows for batch in batches) == rows
    if rows:
        assert pa.Table.from_batches(batches).select(table.schema.names).equals(table)
    assert all(batch.num_rows == 1 or batch.nbytes < 1 << 15 for batch in batches)


@pytest.mark.parametrize("wanted", [[], [-5, 700], [0], [89, 90, 91], [250, 251, 499]])
def test_only_rows_with_wanted_values_are_read(tmp_path: Path, wanted: list[int]) -> None:
    """The rows equal those of the whole file, without empty batches."""
    path = tmp_path / "file.parquet"
    table = write_file(path, 500, 8, 90)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delta_tasks, "_BATCH_BYTES", 1 << 11)
        batches = list(
            delta_tasks.read_file_batches(str(path), ["range_end", "streams"], ("range_end", np.array(wanted, int)))
        )
    rows_read = [row for batch in batches for row in batch.to_pylist()]
    assert rows_read == [row for row in table.to_pylist() if row["range_end"] in wanted]
    assert all(batch.num_rows for batch in batches)


def test_tasks_transform_their_own_rows(tmp_path: Path) -> None:
    """A transformation applies to batches or to a whole task; a second read gives equal rows."""
    for number in range(2):
        write_file(tmp_path / f"{number}.parquet", 3 + number, 1, 10)
    rows = delta_tasks.rows_from_files([str(tmp_path / "0.parquet"), str(tmp_path / "1.parquet")], ["range_end"])
    doubled = rows.map(lambda batch: pa.record_batch({"twice": pa.array([2 * end for end in batch[0].to_pylist()])}))
    last = doubled.through(lambda batches: iter([list(batches)[-1].slice(2)]))
    assert rows.tasks == doubled.tasks == last.tasks == 2
    for _ in range(2):
        assert [batch["twice"].to_pylist() for batch in doubled.batches(1)] == [[0, 2, 4, 6]]
        assert [batch["twice"].to_pylist() for batch in last.batches(1)] == [[4, 6]]


NUMBERS = pa.schema({"number": pa.int64()})


def refuse_spark() -> NoReturn:
    """Fail, as the session for work that must not use Spark."""
    raise AssertionError("Spark was asked")


def four_tasks(barrier: Barrier | None = None) -> delta_tasks.TaskRows:
    """Return four tasks with one row each; with a barrier, tasks wait until its number of them have begun."""

    def batches(number: int) -> Iterator[pa.RecordBatch]:
        if barrier is not None:
            barrier.wait(timeout=30)
        yield pa.record_batch([pa.array([number])], schema=NUMBERS)

    return delta_tasks.TaskRows(4, batches)


def test_a_few_array_tasks_run_in_process_in_parallel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Array tasks run on threads, in task order; other work, or a limit of 0 in process, uses Spark."""
    monkeypatch.setattr(delta_tasks.os, "cpu_count", lambda: 2)
    workers = delta_tasks.TaskRunner(refuse_spark, in_process=1)
    result = workers.for_arrays().table(four_tasks(Barrier(2)), NUMBERS)
    assert result["number"].to_pylist() == [0, 1, 2, 3]
    for runner in (workers, delta_tasks.TaskRunner(refuse_spark, in_process=0).for_arrays()):
        with pytest.raises(AssertionError, match="Spark was asked"):
            runner.table(four_tasks(), NUMBERS)


def test_an_error_of_a_thread_is_raised() -> None:
    """An error of any task is raised unchanged."""

    def batches(number: int) -> Iterator[pa.RecordBatch]:
        if number == 2:
            raise ValueError("the third")
        yield pa.record_batch([pa.array([number])], schema=NUMBERS)

    with pytest.raises(ValueError, match="the third"):
        delta_tasks.TaskRunner(refuse_spark).for_arrays().table(delta_tasks.TaskRows(4, batches), NUMBERS)


@pytest.mark.parametrize(
    ("in_process", "tasks", "threads", "parts"),
    [
        (1, 1, 1, 1),
        (1, 1, 9, 4),
        (1, 3, 9, 4),
        (1, 5, 9, 5),
        (0, 1, 9, 1),
        (6, 1, 9, 6),
        (9, 1, 9, 8),
        (9, 3, 2, 4),
        (1, 4, 3, 3),
    ],
)
def test_work_is_divided_among_threads(
    monkeypatch: pytest.MonkeyPatch, in_process: int, tasks: int, threads: int, parts: int
) -> None:
    """Work has as many parts as cores, but never so many that it would need Spark."""
    monkeypatch.setattr(delta_tasks.os, "cpu_count", lambda: 8)
    workers = delta_tasks.TaskRunner(refuse_spark, in_process=in_process).for_arrays()
    assert workers.parts(tasks, threads) == parts
    assert workers.runs_in_process(parts) == workers.runs_in_process(tasks)


def test_batches_are_coalesced_up_to_a_size() -> None:
    """No row is lost, and each batch but the last has the target size."""
    batches = [pa.RecordBatch.from_pydict({"a": pa.array(range(8 * n, 8 * n + 8), pa.int64())}) for n in range(7)]
    coalesced = list(delta_tasks.coalesce_batches(iter(batches), 150))
    assert [batch.num_rows for batch in coalesced] == [24, 24, 8]
    assert pa.Table.from_batches(coalesced)["a"].to_pylist() == list(range(56))
    assert list(delta_tasks.coalesce_batches(iter(()), 150)) == []


def test_rows_of_one_key_are_grouped_up_to_a_size() -> None:
    """Groups ignore batch boundaries; a key with more rows than the size continues in the next group."""
    keys = [[1, 1, 2], [2, 2, 2], [], [2, 3, 4], [5, 5, 5], [5, 5, 5], [5, 6]]
    batches = [pa.RecordBatch.from_pydict({"k": pa.array(batch_keys, pa.int64())}) for batch_keys in keys]

    def groups(size: int = 1 << 20) -> list[list[int]]:
        return [
            pa.Table.from_batches(group)["k"].to_pylist()
            for group in delta_tasks.group_batches_by_key(iter(batches), "k", size)
        ]

    assert groups() == [[1, 1], [2, 2, 2, 2, 2, 3], [4], [5, 5, 5, 5, 5, 5, 5], [6]]
    assert groups(40) == [[1, 1], [2, 2, 2, 2, 2, 3], [4], [5, 5, 5, 5, 5, 5], [5], [6]]
