"""Sizes of known generations: from the ledger, else from the clients' tables, else from the first format's tables."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from cdc_platform.clock import Microseconds, Milliseconds, datetime_from_ms, datetime_from_us
from cdc_platform.delta import Lake
from cdc_platform.tables import GENERATION_TIMESTAMPS, GENERATIONS, STREAMS_DESCRIPTIONS_V2
from cdc_platform.timeline import read_generation_sizes

LEDGER_MS, IMPORTED_MS, BARE_MS = Milliseconds(1_000_000), 2_000_000, 3_000_000


def test_a_size_is_looked_up_before_it_is_counted(tmp_path: Path) -> None:
    """The ledger's size comes first; a generation missing from it is counted by its rows; without rows it is 0."""
    lake = Lake(tmp_path / "lake")
    for time_ms in (LEDGER_MS, IMPORTED_MS, BARE_MS):
        row = {"key": "timestamps", "time": datetime_from_ms(Milliseconds(time_ms))}
        lake.merge(GENERATION_TIMESTAMPS, pa.Table.from_pylist([row]), update=False)
    streams = [
        {"time": datetime_from_ms(Milliseconds(time_ms)), "range_end": end, "streams": [bytes([end]) * 16] * end}
        for time_ms in (LEDGER_MS, IMPORTED_MS)
        for end in (1, 2, 3)
    ]
    lake.merge(STREAMS_DESCRIPTIONS_V2, pa.Table.from_pylist(streams), update=False)
    ledger_row = {"generation_id": "00000000-0000-0000-0000-00000000000a", "time": datetime_from_ms(LEDGER_MS)}
    ledger_row |= {"num_ranges": 7, "num_streams": 70, "created_at": datetime_from_us(Microseconds(0))}
    lake.merge(GENERATIONS, pa.Table.from_pylist([ledger_row]), update=False)
    sizes = [(size.time_ms, size.num_ranges, size.num_streams) for size in read_generation_sizes(lake)]
    assert sizes == [(LEDGER_MS, 7, 70), (IMPORTED_MS, 3, 6), (BARE_MS, 0, 0)]
    assert read_generation_sizes(Lake(tmp_path / "empty")) == []
