"""The rows about `sql`: over one small table, as whole processes, and over a window of a long log, by the engine."""

from __future__ import annotations

import sys
from pathlib import Path

import duckdb
from deltalake import DeltaTable

from bench.base_writes import five_generations
from bench.log import PLAIN, typed_writes
from bench.look_ups import run
from bench.measure import Result, paired
from bench.session import CLOCK, QUICK, Bench
from cdc_platform.cdclog import log_table
from cdc_platform.cdclog.dataframe import ROWS_PER_FILE, append_writes
from cdc_platform.clock import HOUR_US, Microseconds, format_us, us_from_ms
from cdc_platform.delta import Lake
from cdc_platform.home_location import open_home_location
from cdc_platform.query.duckdb import run_duckdb_query
from cdc_platform.tables import GENERATION_TIMESTAMPS
from cdc_platform.timeline import Timeline

_ROWS, _QUICK_ROWS = 10_000_000, 20_000
_HOURS = 5
_TURNS = 4
"""More repeats than other rows have, because a query takes only a tenth of a second."""
_LIBRARIES = "import sys, click, duckdb, numpy, pyarrow.compute, pyarrow.dataset, deltalake\n"
_OPENS = "for path in sys.argv[1:]:\n    deltalake.DeltaTable(path)\n"


def queries(bench: Bench) -> list[Result]:
    """Query one table, relative to importing the libraries, and a window of a log, relative to the bare engine."""
    count = _QUICK_ROWS if bench.sizes is QUICK else _ROWS
    with bench.scratch() as folder:
        home = open_home_location(folder / "home", create=True)
        lake = five_generations(bench, home.path / "lake")
        start_us = us_from_ms(Timeline.read(lake).known[0].time_ms)
        writes = typed_writes(bench, start_us, HOUR_US * _HOURS, PLAIN, count)
        append_writes(lake, PLAIN, writes, files=max(1, count // ROWS_PER_FILE))
        return [_one_table(bench, home.path, lake), _window(bench, lake, start_us, count)]


def _one_table(bench: Bench, home: Path, lake: Lake) -> Result:
    query = f"SELECT count(*) FROM {GENERATION_TIMESTAMPS.full_name}"
    floor = [sys.executable, "-c", _LIBRARIES + _OPENS, lake.path(GENERATION_TIMESTAMPS)]
    pairs = paired(lambda: run(_sql(home, query)), lambda: run(floor), repeats=bench.sizes.repeats)
    against = "importing its libraries and opening the table"
    return Result("sql-table", "sql of one table", pairs.seconds, against, pairs.floor_seconds, pairs.ratio, 1.5)


def _window(bench: Bench, lake: Lake, start_us: Microseconds, count: int) -> Result:
    """Query the middle percent of the log's time; both sides open an engine, query and close it in this process."""
    table = log_table(PLAIN)
    low, high = (start_us + HOUR_US * _HOURS * part // 100 for part in (50, 51))
    condition = f"\"cdc$timestamp\" >= '{format_us(low)}' AND \"cdc$timestamp\" < '{format_us(high)}'"
    query = f'SELECT "cdc$operation", count(*), sum(a) FROM THE_LOG WHERE {condition} GROUP BY 1 ORDER BY 1'
    own_query = query.replace("THE_LOG", table.full_name)
    files = DeltaTable(lake.path(table)).file_uris()
    alone = query.replace("THE_LOG", f"read_parquet({files!r})")
    answers: dict[str, list[tuple[object, ...]]] = {}

    def query_log() -> None:
        with run_duckdb_query(lake, own_query) as rows:
            answers["mine"] = list(rows.values())

    def asked_alone() -> None:
        with duckdb.connect(":memory:") as engine:
            answers["alone"] = engine.sql(alone).fetchall()

    pairs = paired(query_log, asked_alone, repeats=_TURNS * bench.sizes.repeats)
    assert answers["mine"] == answers["alone"]
    assert answers["mine"]
    at, against = f"1 % of the time of {count:,} log rows", "the same engine on the same files alone"
    return Result("sql-log", at, pairs.seconds, against, pairs.floor_seconds, pairs.ratio, 1.5)


def _sql(home: Path, query: str) -> list[str]:
    program = [sys.executable, "-m", "cdc_platform", "--home", str(home), "--clock", format_us(CLOCK.now_us())]
    return [*program, "sql", query]
