"""Validation that the environment switches off is made all the same: in the driver, in its tasks, at the doors."""

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
    """A generation that breaks all that facts of ranges tell; of one invariant in more ranges than are named."""
    seeded = SeededLake(Lake(tmp_path / "lake"))
    rows = generation_rows()
    for row in rows:
        row["streams"][0] = with_low_bits(row["streams"][0], version=0)
    rows[1]["streams"][1] = with_token(rows[1]["streams"][1], rows[1]["range_end"] + 1)
    rows[1]["streams"][3] = rows[1]["streams"][2]
    seeded.inserted(rows)
    return seeded.lake


def expected(lake: Lake) -> list[list[Any]]:
    """What is judged in this process, where nothing is switched off."""
    judged = judge_findings(audit_lake(TaskRunner.alone(), lake))
    failed = {line.invariant for line in judged if not line.passed and line.violations}
    assert failed == {VNODE_COLOCATION, SHARD_COLOCATION, STREAM_FORMAT, STREAMS_UNIQUE}
    return [[str(line.invariant), line.message, line.passed] for line in judged]


def answer(program: str, lake: Lake, **others: str) -> Any:
    """What a process of its own says, to which validation is switched off."""
    ran = subprocess.run(
        [sys.executable, "-c", program, str(lake.root)],
        env=os.environ | VALIDATION_OFF | others,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


def test_the_first_failures_are_the_sample(damaged: Lake) -> None:
    """Of each range the first stream, of as many ranges as a line names, in their order on the ring."""
    line = next(
        line for line in judge_findings(audit_lake(TaskRunner.alone(), damaged)) if line.invariant == STREAM_FORMAT
    )
    assert line.violations == len(OWNERS)
    told = line.sample.removeprefix("generation 00000000-0000-0000-0000-000000000001: ").split("; ")
    assert [each.split(" (0x")[0] for each in told] == [
        f"range end {end}, stream 0" for end in sorted(OWNERS)[:MAX_SAMPLES]
    ]


def test_a_driver_judges_the_same(damaged: Lake) -> None:
    """Every line, passed or not, is that of a process in which validation is on."""
    assert answer(_HERE, damaged) == expected(damaged)


def test_tasks_and_doors_judge_the_same(server: ConnectServer, damaged: Lake) -> None:
    """The workers have the variable too; writes of another shape are refused with it as without."""
    lines, in_tasks, refused = answer(_ON_SPARK, damaged, **server.environment)
    assert in_tasks == "False"
    assert lines == expected(damaged)
    assert refused == "writes need a column 'key' of type binary; they have ['id']"
