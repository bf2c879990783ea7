"""Table versions as datasets: which files a filter opens, with none of its rows missing, without a query engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import dataset

from cdc_platform.clock import us_from_datetime
from cdc_platform.delta import Lake
from cdc_platform.delta import snapshot as delta_snapshot
from cdc_platform.tables import Table, column

FAR_US = 8_000_000_000_000_000
KIND = pa.timestamp("us", "UTC")
TIMED = Table("ks", "timed", pa.schema([column("k", pa.int64(), ""), column("at", KIND, "", null=True)]), ("k",), "")


def filled(folder: Path, *files: list[int | None]) -> Lake:
    """Return a lake whose table has one file for each list of times (µs)."""
    lake, number = Lake(folder), 0
    for times in files:
        keys = list(range(number, number + len(times)))
        number += len(times)
        lake.merge(TIMED, pa.table([keys, pa.array(times, KIND)], schema=TIMED.schema), update=False)
    return lake


def find_times(lake: Lake, chosen: dataset.Expression) -> list[int | None]:
    """Return the times (µs) that pass a filter."""
    snapshot = delta_snapshot.read_newest_snapshot(lake, TIMED)
    assert snapshot is not None
    times = snapshot.dataset().to_table(filter=chosen)["at"].cast(pa.int64()).to_pylist()
    return sorted(times, key=lambda time: (time is None, time))


def as_scalar(time: int) -> pa.Scalar[Any]:
    """Return a time (µs) as a scalar for filters."""
    return pa.scalar(time, KIND)


def test_files_of_other_times_are_not_opened(tmp_path: Path) -> None:
    """Statistics in the log exclude those files, which may be missing."""
    lake = filled(tmp_path, [0, 1], [10_000_000, 10_000_001], [20_000_000])
    for file in lake.bounded_files(TIMED, "at"):
        if us_from_datetime(file.low) != 10_000_000:
            Path(file.path).unlink()
    within = (pc.field("at") >= as_scalar(9_000_000)) & (pc.field("at") < as_scalar(11_000_000))
    assert find_times(lake, within) == [10_000_000, 10_000_001]
    with pytest.raises(FileNotFoundError):
        find_times(lake, pc.field("at") >= as_scalar(9_000_000))


@given(
    st.lists(
        st.lists(st.none() | st.integers(-FAR_US, FAR_US) | st.integers(-3_000, 3_000), min_size=1, max_size=4),
        min_size=1,
        max_size=3,
    ),
    st.data(),
)
def test_every_row_that_passes_is_found(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[int | None]], data: st.DataObject
) -> None:
    """Also between the milliseconds of the log's statistics, before 1970, in far years, and for null."""
    lake = filled(tmp_path_factory.mktemp("lake"), *files)
    times = [time for file in files for time in file]
    known = [time for time in times if time is not None]
    bound = data.draw(st.sampled_from(known) | st.integers(-3_000, 3_000)) if known else 0
    assert find_times(lake, pc.field("at") >= as_scalar(bound)) == sorted(time for time in known if time >= bound)
    assert find_times(lake, pc.field("at") <= as_scalar(bound)) == sorted(time for time in known if time <= bound)
    assert find_times(lake, pc.field("at") == as_scalar(bound)) == sorted(time for time in known if time == bound)
    assert find_times(lake, pc.field("at").is_null()) == [None] * times.count(None)
