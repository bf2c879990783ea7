"""Pandera validation that the environment disables runs all the same in the driver, in its tasks and in commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.spark.warm_server import VALIDATION_OFF
from support.worlds.invariant_seeds import OWNERS, SeededLake, generation_rows, with_low_bits, with_token

from cdc_platform.checks import STREAM_FORMAT, VNODE_COLOCATION, audit_lake, judge_findings
from cdc_platform.checks.invariants import MAX_SAMPLES, SHARD_COLOCATION, STREAMS_UNIQUE
from cdc_platform.delta import Lake, TaskRunner
from cdc_platform.spark import ConnectServer

_SAID = """
def said(workers, lake):
    from cdc_platform.checks.generations import audit_lake
    from cdc_platform.checks.judge import judge_findings
    return [[str(line.invariant), line.message, line.passed] for line in judge_findings(audit_lake(workers, lake))]
"""
_HERE = (
    _SAID
    + """
import json, sys
from pathlib import Path
from cdc_platform.delta.lake import Lake
from cdc_platform.delta.tasks import TaskRunner
print(json.dumps(said(TaskRunner.alone(), Lake(Path(sys.argv[1])))))
"""
)
_ON_SPARK = (
    _SAID
    + """
import json, os, sys
from pathlib import Path
from cdc_platform.errors import InputError
from cdc_platform.delta.lake import Lake
from cdc_platform.spark.session import get_spark_session
from cdc_platform.delta.tasks import TaskRunner
from cdc_platform.timeline.dataframe import assign_streams
spark = get_spark_session("forced")
lake = Lake(Path(sys.argv[1]))
def off(batches):
    import os
    import pyarrow
    yield pyarrow.record_batch([pyarrow.array([os.environ["PANDERA_VALIDATION_ENABLED"]])], names=["off"])
in_tasks = spark.range(0, 1, 1, 1).mapInArrow(off, "off string").collect()[0]["off"]
try:
    assign_streams(lake, spark.range(1))
    refused = "no"
except InputError as error:
    refused = str(error)
print(json.dumps([said(TaskRunner(lambda: spark, in_process=0), lake), in_tasks, refused]))
"""
)


@pytest.fixture
def damaged(tmp_path: Path) -> Lake:
    """Create a generation that violates the invariants of ranges, one of them in more ranges than a sample names."""
    seeded = SeededLake(Lake(tmp_path / "lake"))
    rows = generation_rows()
    for row in rows:
        row["streams"][0] = with_low_bits(row["streams"][0], version=0)
    rows[1]["streams"][1] = with_token(rows[1]["streams"][1], rows[1]["range_end"] + 1)
    rows[1]["streams"][3] = rows[1]["streams"][2]
    seeded.inserted(rows)
    return seeded.lake


def expected(lake: Lake) -> list[list[Any]]:
    """Return the results of this process, in which validation is enabled."""
    results = judge_findings(audit_lake(TaskRunner.alone(), lake))
    failed = {line.invariant for line in results if not line.passed and line.violations}
    assert failed == {VNODE_COLOCATION, SHARD_COLOCATION, STREAM_FORMAT, STREAMS_UNIQUE}
    return [[str(line.invariant), line.message, line.passed] for line in results]


def results_of_process(program: str, lake: Lake, **others: str) -> Any:
    """Return the results of a separate process in which the environment disables validation."""
    completed = subprocess.run(
        [sys.executable, "-c", program, str(lake.root)],
        env=os.environ | VALIDATION_OFF | others,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    return json.loads(completed.stdout.splitlines()[-1])


def test_the_first_failures_are_the_sample(damaged: Lake) -> None:
    """The sample has the first stream of each range, for as many ranges as it names, in ring order."""
    line = next(
        line for line in judge_findings(audit_lake(TaskRunner.alone(), damaged)) if line.invariant == STREAM_FORMAT
    )
    assert line.violations == len(OWNERS)
    cases = line.sample.removeprefix("generation 00000000-0000-0000-0000-000000000001: ").split("; ")
    assert [case.split(" (0x")[0] for case in cases] == [
        f"range end {end}, stream 0" for end in sorted(OWNERS)[:MAX_SAMPLES]
    ]


def test_a_driver_gives_the_same_results(damaged: Lake) -> None:
    """Every result, passed or failed, equals that of a process with validation enabled."""
    assert results_of_process(_HERE, damaged) == expected(damaged)


def test_tasks_and_entry_points_give_the_same_results(server: ConnectServer, damaged: Lake) -> None:
    """Executors have the variable too; writes of another shape are refused with and without it."""
    lines, in_tasks, refused = results_of_process(_ON_SPARK, damaged, **server.environment)
    assert in_tasks == "False"
    assert lines == expected(damaged)
    assert refused == "writes need a column 'key' of type binary; they have ['id']"
