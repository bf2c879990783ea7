"""Sensors of two machines work on one home in a store, as after a failed lease: a node joins once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from dagster import DagsterInstance, SensorResult, build_sensor_context
from support.command_line import run
from support.nodes import node_text
from support.store.s3 import S3
from support.worlds.rehearsal import Rehearsal

from cdc_platform.delta import Lake
from cdc_platform.home_location import HOME_VARIABLE, STATE_VARIABLE, open_home_location
from cdc_platform.metastore import inbox
from cdc_platform.tables import GENERATION_TIMESTAMPS, GENERATIONS, NODES, TOPOLOGY_DESCRIPTIONS
from cdc_platform_assets.join.inbox import waiting_joins
from cdc_platform_resources.home import HomeResource

_MACHINE = """
import sys
sys.path.insert(0, sys.argv[1])
from storage.test_sensors_on_two_machines import machine
machine()
"""


def machine() -> None:
    """Act as the code server of one machine: run a sensor tick or the requested runs for each line of input."""
    with DagsterInstance.ephemeral() as instance:
        rehearsal = Rehearsal(instance, Lake(open_home_location().lake))
        cursor, waiting = None, []
        for line in sys.stdin:
            if line == "tick\n":
                resources = {"home": HomeResource()}
                with build_sensor_context(instance=instance, cursor=cursor, resources=resources) as context:
                    result = waiting_joins(context)
                assert isinstance(result, SensorResult)
                cursor = result.cursor
                waiting = inbox.read_pending_events(rehearsal.lake) if result.run_requests else []
                print(json.dumps(len(result.run_requests or [])), flush=True)
            else:
                join_result = rehearsal.join(waiting[0].generation_id)
                failed = [event.message for event in join_result.all_events if event.is_failure]
                print(json.dumps([join_result.success, failed]), flush=True)


@pytest.mark.long("two processes with Dagster")
def test_concurrent_runs_of_one_join_create_one_generation(s3: S3, tmp_path: Path) -> None:
    """Both sensors request the join before either run begins; both runs leave the home as after one."""
    address = f"{s3.bucket()}/home"
    at = ("--home", address)
    command = [sys.executable, "-c", _MACHINE, str(Path(__file__).parents[1])]
    machines = [
        subprocess.Popen(
            command,
            env=os.environ | {HOME_VARIABLE: address, STATE_VARIABLE: str(tmp_path / f"machine {number}")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in (1, 2)
    ]
    try:
        (tmp_path / "node.json").write_text(node_text(1, 4, 2), encoding="utf-8")
        queued = run(*at, "bootstrap", tmp_path / "node.json")
        assert queued.exit_code == 0, queued
        assert send_to_all(machines, "tick") == [1, 1]
        results = send_to_all(machines, "join")
        # A run that conflicted at every attempt may have failed; its sensor would request it again.
        assert any(success for success, _ in results), results
        lake = Lake(f"{address}/lake")
        assert [lake.read(table).num_rows for table in (GENERATION_TIMESTAMPS, GENERATIONS, NODES)] == [1, 1, 1]
        descriptions = lake.read(TOPOLOGY_DESCRIPTIONS, ["generation_id", "range_end"]).to_pylist()
        assert len({(row["generation_id"], row["range_end"]) for row in descriptions}) == len(descriptions) > 0
        assert send_to_all(machines, "tick") == [0, 0]
    finally:
        for process in machines:
            process.kill()
            process.communicate()
    check = run(*at, "check", "--deep")
    assert check.exit_code == 0, check


def send_to_all(machines: list[subprocess.Popen[str]], word: str) -> list[Any]:
    """Send a word to all machines at once; return their answers."""
    for process in machines:
        assert process.stdin is not None
        process.stdin.write(f"{word}\n")
        process.stdin.flush()
    return [json.loads(process.stdout.readline()) for process in machines if process.stdout is not None]
