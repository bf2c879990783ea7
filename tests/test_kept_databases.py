"""What Dagster's parts keep of its databases: the same answers, by engines and connections that are made once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_ASK = """
import sys
from alembic.script import ScriptDirectory
read, made, load = [], set(), ScriptDirectory.from_config
def counted(config):
    read.append(config.get_main_option("script_location"))
    return load(config)
ScriptDirectory.from_config = counted
from cdc_platform.serving import databases
databases.keep_open()
from dagster import DagsterInstance
for turn in range(3):
    with DagsterInstance.local_temp(sys.argv[1]) as instance:
        instance.add_dynamic_partitions("part", [str(turn)])
        assert set(instance.get_dynamic_partitions("part")) == {str(each) for each in range(turn + 1)}
        assert instance.schedule_storage.alembic_version()[0] is not None
        with instance.schedule_storage.connect() as one, instance.schedule_storage.connect() as other:
            assert one.engine is other.engine and one.connection is not other.connection
            made.update((id(one.connection.dbapi_connection), id(other.connection.dbapi_connection)))
assert len(made) == 2, "what asks of ticks takes the connections that there are"
assert len(read) == len(set(read)) > 0, read
"""


def test_engines_and_scripts_are_kept(tmp_path: Path) -> None:
    """Instances see what those before them wrote; scripts are read once, and looks at ticks share their connections."""
    ran = subprocess.run(
        [sys.executable, "-c", _ASK, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
