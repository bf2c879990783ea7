"""Versions of tables as datasets: which files a filter opens, and that none of its rows is left out. No engine."""

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
    """A table with a file for each list of moments (µs)."""
    lake, number = Lake(folder), 0
    for moments in files:
        keys = list(range(number, number + len(moments)))
        number += len(moments)
        lake.merge(TIMED, pa.table([keys, pa.array(moments, KIND)], schema=TIMED.schema), update=False)
    return lake


def found(lake: Lake, chosen: dataset.Expression) -> list[int | None]:
    """The moments (µs) that pass a filter."""
    snapshot = delta_snapshot.read_newest_snapshot(lake, TIMED)
    assert snapshot is not None
    moments = snapshot.dataset().to_table(filter=chosen)["at"].cast(pa.int64()).to_pylist()
    return sorted(moments, key=lambda moment: (moment is None, moment))


def at(moment: int) -> pa.Scalar[Any]:
    """A moment (µs) as filters have it."""
    return pa.scalar(moment, KIND)


def test_files_of_other_times_are_not_opened(tmp_path: Path) -> None:
    """What the log says of their times is enough: they may be anywhere."""
    lake = filled(tmp_path, [0, 1], [10_000_000, 10_000_001], [20_000_000])
    for file in lake.bounded_files(TIMED, "at"):
        if us_from_datetime(file.low) != 10_000_000:
            Path(file.path).unlink()
    within = (pc.field("at") >= at(9_000_000)) & (pc.field("at") < at(11_000_000))
    assert found(lake, within) == [10_000_000, 10_000_001]
    with pytest.raises(FileNotFoundError):
        found(lake, pc.field("at") >= at(9_000_000))


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
    """Also between the milliseconds to which logs round times, before 1970, in far years, and where there is none."""
    lake = filled(tmp_path_factory.mktemp("lake"), *files)
    moments = [moment for file in files for moment in file]
    there = [moment for moment in moments if moment is not None]
    bound = data.draw(st.sampled_from(there) | st.integers(-3_000, 3_000)) if there else 0
    assert found(lake, pc.field("at") >= at(bound)) == sorted(each for each in there if each >= bound)
    assert found(lake, pc.field("at") <= at(bound)) == sorted(each for each in there if each <= bound)
    assert found(lake, pc.field("at") == at(bound)) == sorted(each for each in there if each == bound)
    assert found(lake, pc.field("at").is_null()) == [None] * moments.count(None)
