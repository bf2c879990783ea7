"""A CDC log as ingests of one window per minute leave it, written commit by commit without an ingest."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from cdc_platform.cdclog import WRITTEN_AT, log_table
from cdc_platform.clock import MINUTE_US, Microseconds, datetime_from_us, ms_from_us, us_from_datetime
from cdc_platform.cql import INT, TEXT, CdcOptions, Column, TableSchema, make_timeuuid
from cdc_platform.delta import Lake, row_hash
from cdc_platform.tables import Table

SCHEMA = TableSchema(
    "ks",
    "t",
    (Column("pk", INT, "partition"), Column("ck", INT, "clustering"), Column("a", TEXT)),
    CdcOptions(enabled=True),
)
APPLICATION = "consumer"
"""The application whose transaction number counts the windows."""


@dataclass(frozen=True)
class MinuteLog:
    """A log with one commit per minute: `minutes` of them from `start_us` (µs), with `rows` rows each."""

    start_us: Microseconds
    minutes: int
    rows: int = 10

    @property
    def end_us(self) -> Microseconds:
        """Return the end of the last minute (µs)."""
        return Microseconds(self.start_us + self.minutes * MINUTE_US)

    @property
    def table(self) -> Table:
        """Return the table of the log."""
        return log_table(SCHEMA)

    def minutes_of(self, first: int, count: int) -> pa.Table:
        """Return the rows of `count` minutes, with the minute's number in the column `minute`."""
        numbers = np.arange(first * self.rows, (first + count) * self.rows)
        times = self.start_us + numbers * (MINUTE_US // self.rows)
        columns = {
            "cdc$stream_id": [f"0x{number % 7:032x}" for number in numbers.tolist()],
            "cdc$time": [str(make_timeuuid(Microseconds(int(us)), 1)) for us in times],
            "cdc$batch_seq_no": np.zeros(len(numbers)),
            "cdc$operation": np.full(len(numbers), 2),
            "cdc$end_of_batch": np.ones(len(numbers), bool),
            WRITTEN_AT: times,
            "pk": numbers % 1000,
            "ck": numbers,
            "a": [f"value {number}" for number in numbers],
        }
        fields = self.table.schema.remove_metadata()
        arrays = [
            pa.array(columns[field.name]).cast(field.type)
            if field.name in columns
            else pa.nulls(len(numbers), field.type)
            for field in fields
        ]
        return pa.Table.from_arrays(arrays, schema=fields).append_column("minute", pa.array(numbers // self.rows))

    def write(self, lake: Lake, first: int = 0) -> None:
        """Append the minutes from `first` on, each in a commit with its digest, and then write a checkpoint."""
        table = self.table
        lake.ensure(table)
        folder, version = Path(lake.path(table)), (lake.version(table) or 0) + 1
        infos = (commit.info for commit in lake.commits(table))
        digest = next(info.digests[""] for info in infos if info is not None and info.digests)
        # Once: each call reads the new commits.
        rule = lake.digest_rule(table)
        for begin in range(first, self.minutes, _BLOCK):
            count = min(_BLOCK, self.minutes - begin)
            block = self.minutes_of(begin, count)
            digests = row_hash.digest_rows(block, ("minute",), rule)
            rows = block.drop_columns("minute")
            for number in range(begin, begin + count):
                digest = (digest + digests[f"minute={number}"]) % row_hash.DIGEST_MODULUS
                _commit(folder, version, rows.slice((number - begin) * self.rows, self.rows), digest, number)
                version += 1
        lake.table_cache.revalidate()
        DeltaTable(folder).create_checkpoint()


_BLOCK = 60
"""Minutes that are generated at once."""


def _commit(folder: Path, version: int, rows: pa.Table, digest: int, number: int) -> None:
    name = f"part-00000-{uuid.uuid4()}-c000.parquet"
    pq.write_table(rows, folder / name, compression="none")
    low, high = (datetime_from_us(Microseconds(rows[WRITTEN_AT][index].value)) for index in (0, -1))
    bounds = [{WRITTEN_AT: f"{time:%Y-%m-%dT%H:%M:%S}.{time.microsecond // 1000:03d}Z"} for time in (low, high)]
    stats = {"numRecords": rows.num_rows, "minValues": bounds[0], "maxValues": bounds[1], "nullCount": {}}
    ms = ms_from_us(us_from_datetime(high))
    own = {"id": str(uuid.uuid4()), "user": "a test", "program": "0", "digests": {"": f"{digest:032x}"}}
    info = {"timestamp": ms, "operation": "WRITE", "engineInfo": "a test", "cdc_platform": json.dumps(own)}
    added = {
        "path": name,
        "partitionValues": {},
        "size": (folder / name).stat().st_size,
        "modificationTime": ms,
        "dataChange": True,
        "stats": json.dumps(stats),
    }
    marks = {"appId": APPLICATION, "version": number + 1, "lastUpdated": ms}
    lines = [{"commitInfo": info}, {"txn": marks}, {"add": added}]
    (folder / "_delta_log" / f"{version:020d}.json").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
