"""A block opens each small file once for all readers, and cached reads equal reads in batches."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.command_line import run
from support.homes.questions import HOME, home_for

from cdc_platform.delta import file_cache, tasks


def written(path: Path, rows: int) -> str:
    """Write a file of rows with one stream each."""
    random = np.random.default_rng(rows)
    pq.write_table(pa.table({"range_end": range(rows), "streams": [[random.bytes(16)] for _ in range(rows)]}), path)
    return str(path)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The number of openings of each file."""
    counts: Counter[str] = Counter()

    class Counting(pq.ParquetFile):
        def __init__(self, source: Any, **options: Any) -> None:
            counts[str(source)] += 1
            super().__init__(source, **options)

    monkeypatch.setattr(pq, "ParquetFile", Counting)
    return counts


@pytest.mark.parametrize("only", [None, ("range_end", np.array([3, 7, 99]))])
def test_rows_are_those_of_the_file(tmp_path: Path, opened: Counter[str], only: tuple[str, np.ndarray] | None) -> None:
    """The cached rows have the requested columns and values; three reads open the file once."""
    path = written(tmp_path / "file", 10)
    outside = pa.Table.from_batches(tasks.read_file_batches(path, ["streams", "range_end"], only))
    opened.clear()
    with file_cache.cache_file_reads():
        for _ in range(3):
            inside = pa.Table.from_batches(tasks.read_file_batches(path, ["streams", "range_end"], only))
            assert inside.select(outside.schema.names).equals(outside)
    assert opened == {path: 1}
    assert file_cache.read_cached_file(path) is None


def test_large_files_are_not_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a large file nor one beyond the cache's size is cached; an inner block shares the outer cache."""
    paths = [written(tmp_path / str(rows), rows) for rows in (10, 12, 2000)]
    size = pq.ParquetFile(paths[1]).metadata.row_group(0).total_byte_size
    monkeypatch.setattr(file_cache, "_FILE_BYTES", size)
    monkeypatch.setattr(file_cache, "_CACHE_BYTES", 2 * size - 1)
    with file_cache.cache_file_reads():
        with file_cache.cache_file_reads():
            cached = [file_cache.read_cached_file(path) is not None for path in paths]
        assert cached == [file_cache.read_cached_file(path) is not None for path in paths] == [True, True, False]
    monkeypatch.setattr(file_cache, "_CACHE_BYTES", size)
    with file_cache.cache_file_reads():
        assert [file_cache.read_cached_file(path) is not None for path in paths] == [True, False, False]


def test_a_check_opens_no_file_twice(tmp_path: Path, opened: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A deep check of all tables, with all families of checks and the digests, opens no file twice."""
    monkeypatch.setenv("COLUMNS", "160")
    home = home_for(tmp_path, "old generations") / HOME
    opened.clear()
    result = run("--home", home, "check", "--deep")
    assert (result.exit_code, result.stdout.count("1 not checked, because")) == (0, 1), result  # no ring was imported
    generations = [path for path in opened if "cdc_generation_descriptions_v2" in path]
    assert len(generations) > 1
    assert {path: count for path, count in opened.items() if count > 1} == {}
