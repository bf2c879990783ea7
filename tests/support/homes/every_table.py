"""A lake in which every table of the platform has rows, all written by the program of today; logs and sinks as well.

The rows are those of a home that an earlier program left (tests/data/homes), since they fit each other.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from support.homes.packed import unpack

from cdc_platform.clock import HOUR_US, ONE_US, Clock
from cdc_platform.invariants import known_streams
from cdc_platform.invariants.findings import FILES_WHOLE
from cdc_platform.invariants.judge import Judgement
from cdc_platform.lake import only_observed
from cdc_platform.lake.envelope import Speaker, speaking_for
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import (
    CDC_LOCAL,
    COMMITTED_GENERATIONS,
    CONSUMERS,
    GENERATIONS,
    PASSED_OVER,
    TABLES,
    TOPOLOGY_DESCRIPTIONS,
    VERDICTS,
    Table,
)
from cdc_platform.records import cluster_changes, descriptions, expiry_marks, left_out, log_gaps
from cdc_platform.records.cluster_changes import CLUSTER, Change
from cdc_platform.records.judgements import Judging, keep
from cdc_platform.records.log_gaps import LogGap, Loss

RELEASE = "2026-11"
LOGS = ("shop.carts_scylla_cdc_log", "shop.carts_scylla_cdc_log_audit", "shop.carts_scylla_cdc_log_hourly")


def every_table(folder: Path) -> Path:
    """A home whose lake has a row in each declared table; answers with its folder."""
    old, home = unpack(RELEASE, folder / "old") / "cluster", folder / "home"
    home.mkdir()
    for file in ("home.json", "settings.toml"):
        if (old / file).exists():
            (home / file).write_bytes((old / file).read_bytes())
    before, lake = Lake(old / "lake"), Lake(home / "lake")
    with speaking_for(Speaker("a test", "every table")):
        for place in sorted(before.root.glob("*/*/")):
            table = _table(place)
            lake.ensure(table)
            rows = before.read(table)
            # Two commits, so that a digest has one before it.
            for number, part in enumerate((rows.slice(0, 1), rows.slice(1)), 1):
                lake.append_once(table, part, {"copy": number}, number - 1 or None)
        lake.merge(VERDICTS, _verdict(lake), update=False)
        lake.merge(PASSED_OVER, _passed_over(lake), update=False)
        lake.merge(COMMITTED_GENERATIONS, lake.read(GENERATIONS, ["time", "generation_id"]), update=False)
        left_out.keep(lake, Clock(), ["prod: half of it is missing"])
        known_streams.keep(lake, at_least=1)
        expiry_marks.write(lake, Clock(), [(time_ms, time_ms) for time_ms in descriptions.listed_times(lake)])
        cluster_changes.note(lake, Clock(), lambda before: [Change(CLUSTER, "", "there", "came: there")])
        log_gaps.record(
            lake, Clock(), [LogGap("shop", "carts", Loss.BEFORE_READING, ONE_US, HOUR_US, "a test says so")]
        )
        only_observed.mark(lake, Clock(), ["a row is missing"])
        only_observed.lift(lake, Clock())
        keep(Judging.begin(lake, Clock(), "a test"), [Judgement(FILES_WHOLE, 1, 0, passed=True)])
    return home


def _table(place: Path) -> Table:
    name = f"{place.parent.name}.{place.name}"
    keys = ("cdc$stream_id", "cdc$time", "cdc$batch_seq_no")
    if name in TABLES:
        return TABLES[name]
    return Table(place.parent.name, place.name, pa.schema(DeltaTable(place).schema()), keys, "A log, or a sink of one")


def _passed_over(lake: Lake) -> pa.Table:
    """A note of a consumer that is known, as of a time at which no generation began."""
    consumer = lake.read(CONSUMERS).to_pylist()[0]
    row = {name: consumer[name] for name in ("name", "keyspace_name", "table_name")}
    row |= {"set_timestamp": consumer["updated_at"], "passed_at": consumer["updated_at"]}
    return pa.Table.from_pylist([row], schema=PASSED_OVER.schema)


def _verdict(lake: Lake) -> pa.Table:
    generation = lake.read(TOPOLOGY_DESCRIPTIONS, ["generation_id"])["generation_id"][0].as_py()
    row = {
        "generation_id": generation,
        "step": "topology_descriptions",
        "content": "of another program",
        "invariants": ["row_count"],
        "passed": True,
        "said": None,
        "door": "a test",
        "judged_at": lake.read(CDC_LOCAL, ["streams_timestamp"])["streams_timestamp"].drop_null()[0].as_py(),
    }
    return pa.Table.from_pylist([row], schema=VERDICTS.schema)
