"""What Dagster's parts keep of its databases: the same answers, by one engine to a database and scripts read once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_ASK = """
import glob, os, sys
from alembic.script import ScriptDirectory
read, load = [], ScriptDirectory.from_config
def counted(config):
    read.append(config.get_main_option("script_location"))
    return load(config)
ScriptDirectory.from_config = counted
from cdc_platform.serving import databases
databases.keep_open(connections=sys.argv[2] == "kept")
from dagster import DagsterInstance
def opened():
    return sum(".db" in os.readlink(file) for file in glob.glob("/proc/self/fd/*") if os.path.lexists(file))
for turn in range(3):
    with DagsterInstance.local_temp(sys.argv[1]) as instance:
        instance.add_dynamic_partitions("part", [str(turn)])
        assert set(instance.get_dynamic_partitions("part")) == {str(each) for each in range(turn + 1)}
        assert instance.schedule_storage.alembic_version()[0] is not None
        with instance.schedule_storage.connect() as one, instance.schedule_storage.connect() as other:
            assert one.engine is other.engine and one.connection is not other.connection
        assert (opened() == 0) == (sys.argv[2] == "made"), opened()
assert len(read) == len(set(read)) > 0, read
"""


@pytest.mark.skipif(sys.platform != "linux", reason="open files are listed by /proc")
@pytest.mark.parametrize("connections", ["made", "kept"])
def test_engines_and_scripts_are_kept(tmp_path: Path, connections: str) -> None:
    """Instances one after the other see what the ones before wrote; no folder of scripts is read twice."""
    ran = subprocess.run(
        [sys.executable, "-c", _ASK, str(tmp_path), connections],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
