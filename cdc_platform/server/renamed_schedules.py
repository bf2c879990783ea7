"""Carry the state of Dagster's schedules over to their new names.

Dagster stores by name whether a person has stopped a schedule. Under its new name it would run again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

SCHEDULES_FILE = "dagster/schedules/schedules.db"
"""The path of Dagster's storage of schedules in SQLite, below a home."""
RENAMED_SCHEDULES: Mapping[str, str] = MappingProxyType(
    {
        "daily_upkeep": "daily_maintenance",
        "daily_audit_of_tables": "hourly_audit_of_tables",
    }
)
"""The schedules that earlier versions had under other names. Assets, jobs with history and sensors kept theirs."""


def carry_over_stopped_schedules(database: bytes) -> bytes:
    """Return Dagster's storage of schedules in which a schedule is stopped if it was stopped under its old name.

    A state under the new name stays. If there is nothing to carry over, the bytes are equal.
    """
    from dagster import DagsterInstance

    with tempfile.TemporaryDirectory(prefix="cdc-platform-schedules-") as folder:
        copy = Path(folder) / "schedules" / "schedules.db"
        copy.parent.mkdir()
        copy.write_bytes(database)
        with DagsterInstance.from_config(folder) as instance:
            states = {state.name: state for state in instance.all_instigator_state()}
            stopped = [
                state
                for old, new in RENAMED_SCHEDULES.items()
                if (state := states.get(old)) is not None and not state.is_running and new not in states
            ]
            for state in stopped:
                origin = state.origin._replace(instigator_name=RENAMED_SCHEDULES[state.name])
                instance.add_instigator_state(state._replace(origin=origin))
        return copy.read_bytes() if stopped else database
