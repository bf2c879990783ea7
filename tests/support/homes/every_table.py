"""A lake with rows in every table of the platform, written by the current program, including logs and sinks.

The rows come from a home that an earlier program left (tests/data/homes), since those are consistent.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from support.homes.packed import unpack

from cdc_platform.checks import FILES_WHOLE, CheckResult, record_verifications, uniqueness
from cdc_platform.clock import HOUR_US, ONE_US, Clock
from cdc_platform.delta import CommitAuthor, Lake, commit_as, observed_home, verify_tables
from cdc_platform.metastore import (
    CLUSTER_SUBJECT,
    CheckRun,
    ClusterChange,
    LogGap,
    LogLoss,
    cluster_changes,
    expiry_marks,
    generations,
    log_gaps,
    store_check_results,
)
from cdc_platform.tables import (
    CDC_LOCAL,
    COMMITTED_GENERATIONS,
    CONSUMERS,
    GENERATIONS,
    NODES,
    PASSED_OVER,
    TABLES,
    TOPOLOGY_DESCRIPTIONS,
    VERDICT_COUNTS,
    VERDICTS,
    Table,
)

RELEASE = "2026-11"
LOGS = ("shop.carts_scylla_cdc_log", "shop.carts_scylla_cdc_log_audit", "shop.carts_scylla_cdc_log_hourly")


def every_table(folder: Path) -> Path:
    """Create a home whose lake has a row in each declared table; return its folder."""
    home = rewritten(unpack(RELEASE, folder / "old") / "cluster", folder / "home")
    lake = Lake(home / "lake")
    with commit_as(CommitAuthor("a test", "every table")):
        lake.merge(VERDICTS, _verdict(lake), update=False)
        lake.merge(VERDICT_COUNTS, _counts(lake), update=False)
        lake.merge(PASSED_OVER, _passed_over(lake), update=False)
        lake.merge(COMMITTED_GENERATIONS, lake.read(GENERATIONS, ["time", "generation_id"]), update=False)
        cluster_changes.store_omitted_items(lake, Clock(), ["prod: half of it is missing"])
        uniqueness.store_fingerprints(lake, at_least=1)
        expiry_marks.write_expiry_marks(
            lake, Clock(), [(time_ms, time_ms) for time_ms in generations.read_listed_times(lake)]
        )
        cluster_changes.record_cluster_changes(
            lake, Clock(), lambda before: [ClusterChange(CLUSTER_SUBJECT, "", "there", "came: there")]
        )
        log_gaps.record_log_gaps(
            lake, Clock(), [LogGap("shop", "carts", LogLoss.BEFORE_READING, ONE_US, HOUR_US, "a test says so")]
        )
        observed_home.mark_as_observed(lake, Clock(), ["a row is missing"])
        observed_home.lift_observed_mark(lake, Clock())
        store_check_results(CheckRun.begin(lake, Clock(), "a test"), [CheckResult(FILES_WHOLE, 1, 0, passed=True)])
        record_verifications(CheckRun.begin(lake, Clock(), "a test"), verify_tables(lake, names={NODES.full_name}))
    return home


def rewritten(old: Path, home: Path) -> Path:
    """Write the rows of another home's tables with the current program, two commits per table; return the new home."""
    home.mkdir()
    if (old / "settings.toml").exists():
        (home / "settings.toml").write_bytes((old / "settings.toml").read_bytes())
    before, lake = Lake(old / "lake"), Lake(home / "lake")
    with commit_as(CommitAuthor("a test", "every table")):
        for folder in sorted(before.root.glob("*/*/")):
            table = _table(folder)
            lake.ensure(table)
            rows = before.read(table)
            # Two commits, so that the second digest has a predecessor.
            for number, part in enumerate((rows.slice(0, 1), rows.slice(1)), 1):
                lake.append_once(table, part, {"copy": number}, number - 1 or None)
    return home


def _table(folder: Path) -> Table:
    name = f"{folder.parent.name}.{folder.name}"
    keys = ("cdc$stream_id", "cdc$time", "cdc$batch_seq_no")
    if name in TABLES:
        return TABLES[name]
    return Table(
        folder.parent.name, folder.name, pa.schema(DeltaTable(folder).schema()), keys, "A log, or a sink of one"
    )


def _passed_over(lake: Lake) -> pa.Table:
    """Return a record that a registered consumer skipped a stream set, at a time at which no generation began."""
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


def _counts(lake: Lake) -> pa.Table:
    """Return the counts behind the verdict."""
    verdict = _verdict(lake).to_pylist()[0]
    row = {name: verdict[name] for name in ("generation_id", "step", "content", "invariants")}
    row |= {"populations": [4], "violations": [0], "unjudged": [0], "samples": [""]}
    return pa.Table.from_pylist([row], schema=VERDICT_COUNTS.schema)
