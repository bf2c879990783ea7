"""Rows past the JVM: files come in pieces that fit the cache, whatever a row's length, and nothing is lost between."""

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


def written(path: Path, rows: int, streams: int, group: int) -> pa.Table:
    """A Parquet file of `rows` rows with `streams` streams each, in row groups of `group` rows."""
    random = np.random.default_rng(1)
    table = pa.table(
        {"range_end": range(rows), "streams": [[random.bytes(16) for _ in range(streams)] for _ in range(rows)]}
    )
    pq.write_table(table, path, row_group_size=group)
    return table


@pytest.mark.parametrize(("rows", "streams", "group"), [(0, 1, 1), (1, 4096, 1), (500, 8, 90), (300, 200, 300)])
def test_a_file_comes_in_order_and_in_pieces(tmp_path: Path, rows: int, streams: int, group: int) -> None:
    """No piece is much larger than it should be, and together they are the file."""
    path = tmp_path / "file.parquet"
    table = written(path, rows, streams, group)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delta_tasks, "_BATCH_BYTES", 1 << 14)
        batches = list(delta_tasks.read_file_batches(str(path), ["streams", "range_end"]))
    assert sum(batch.num_rows for batch in batches) == rows
    if rows:
        assert pa.Table.from_batches(batches).select(table.schema.names).equals(table)
    assert all(batch.num_rows == 1 or batch.nbytes < 1 << 15 for batch in batches)


@pytest.mark.parametrize("wanted", [[], [-5, 700], [0], [89, 90, 91], [250, 251, 499]])
def test_rows_with_some_values_come_alone(tmp_path: Path, wanted: list[int]) -> None:
    """The same rows as out of the whole file, with nothing of the pieces that hold none of them."""
    path = tmp_path / "file.parquet"
    table = written(path, 500, 8, 90)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delta_tasks, "_BATCH_BYTES", 1 << 11)
        batches = list(
            delta_tasks.read_file_batches(str(path), ["range_end", "streams"], ("range_end", np.array(wanted, int)))
        )
    held = [row for batch in batches for row in batch.to_pylist()]
    assert held == [row for row in table.to_pylist() if row["range_end"] in wanted]
    assert all(batch.num_rows for batch in batches)


def test_parts_are_changed_where_they_are_made(tmp_path: Path) -> None:
    """Batch by batch or as a whole; asked for again they are the same."""
    for number in range(2):
        written(tmp_path / f"{number}.parquet", 3 + number, 1, 10)
    rows = delta_tasks.rows_from_files([str(tmp_path / "0.parquet"), str(tmp_path / "1.parquet")], ["range_end"])
    doubled = rows.map(lambda batch: pa.record_batch({"twice": pa.array([2 * end for end in batch[0].to_pylist()])}))
    last = doubled.through(lambda batches: iter([list(batches)[-1].slice(2)]))
    assert rows.tasks == doubled.tasks == last.tasks == 2
    for _ in range(2):
        assert [batch["twice"].to_pylist() for batch in doubled.batches(1)] == [[0, 2, 4, 6]]
        assert [batch["twice"].to_pylist() for batch in last.batches(1)] == [[4, 6]]


NUMBERS = pa.schema({"number": pa.int64()})


def asked() -> NoReturn:
    """The session of who must not need one."""
    raise AssertionError("Spark was asked")


def one_each(meeting: Barrier | None = None) -> delta_tasks.TaskRows:
    """Four tasks with a row each; with a meeting, no task ends before as many as it is for have begun."""

    def batches(number: int) -> Iterator[pa.RecordBatch]:
        if meeting is not None:
            meeting.wait(timeout=30)
        yield pa.record_batch([pa.array([number])], schema=NUMBERS)

    return delta_tasks.TaskRows(4, batches)


def test_a_few_tasks_of_arrays_are_done_here_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the tasks, on threads; of other work, and by who gives Spark everything, Spark is asked."""
    monkeypatch.setattr(delta_tasks.os, "cpu_count", lambda: 2)
    workers = delta_tasks.TaskRunner(asked, in_process=1)
    found = workers.for_arrays().table(one_each(Barrier(2)), NUMBERS)
    assert found["number"].to_pylist() == [0, 1, 2, 3]
    for left in (workers, delta_tasks.TaskRunner(asked, in_process=0).for_arrays()):
        with pytest.raises(AssertionError, match="Spark was asked"):
            left.table(one_each(), NUMBERS)


def test_what_one_of_several_threads_raises_is_raised() -> None:
    """As it is, by whichever task."""

    def batches(number: int) -> Iterator[pa.RecordBatch]:
        if number == 2:
            raise ValueError("the third")
        yield pa.record_batch([pa.array([number])], schema=NUMBERS)

    with pytest.raises(ValueError, match="the third"):
        delta_tasks.TaskRunner(asked).for_arrays().table(delta_tasks.TaskRows(4, batches), NUMBERS)


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
def test_work_is_shared_out_as_far_as_threads_can_do_it(
    monkeypatch: pytest.MonkeyPatch, in_process: int, tasks: int, threads: int, parts: int
) -> None:
    """Into as many parts as there are cores, but never so many that Spark would have to be asked for it."""
    monkeypatch.setattr(delta_tasks.os, "cpu_count", lambda: 8)
    workers = delta_tasks.TaskRunner(asked, in_process=in_process).for_arrays()
    assert workers.parts(tasks, threads) == parts
    assert workers.runs_in_process(parts) == workers.runs_in_process(tasks)


def test_rows_are_put_together_up_to_a_size() -> None:
    """None is lost, and each batch but the last one has the size."""
    batches = [pa.RecordBatch.from_pydict({"a": pa.array(range(8 * n, 8 * n + 8), pa.int64())}) for n in range(7)]
    found = list(delta_tasks.coalesce_batches(iter(batches), 150))
    assert [batch.num_rows for batch in found] == [24, 24, 8]
    assert pa.Table.from_batches(found)["a"].to_pylist() == list(range(56))
    assert list(delta_tasks.coalesce_batches(iter(()), 150)) == []


def test_rows_of_one_value_come_together_up_to_a_size() -> None:
    """Wherever batches end; of a value with more rows than that, what there is goes on."""
    keys = [[1, 1, 2], [2, 2, 2], [], [2, 3, 4], [5, 5, 5], [5, 5, 5], [5, 6]]
    batches = [pa.RecordBatch.from_pydict({"k": pa.array(each, pa.int64())}) for each in keys]

    def groups(size: int = 1 << 20) -> list[list[int]]:
        return [
            pa.Table.from_batches(group)["k"].to_pylist()
            for group in delta_tasks.group_batches_by_key(iter(batches), "k", size)
        ]

    assert groups() == [[1, 1], [2, 2, 2, 2, 2, 3], [4], [5, 5, 5, 5, 5, 5, 5], [6]]
    assert groups(40) == [[1, 1], [2, 2, 2, 2, 2, 3], [4], [5, 5, 5, 5, 5, 5], [5], [6]]
