"""Carry the state of Dagster's schedules over to their new names.

Dagster stores by name whether a person has stopped a schedule. Under its new name it would run again.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dagster import DagsterInstance

RENAMED_SCHEDULES: Mapping[str, str] = MappingProxyType(
    {
        "daily_upkeep": "daily_maintenance",
        "daily_audit_of_tables": "hourly_audit_of_tables",
    }
)
"""The schedules that earlier versions had under other names. Assets, jobs with history and sensors kept theirs."""


def carry_over_stopped_schedules(instance: DagsterInstance) -> None:
    """Stop each schedule that was stopped under its old name. A state under the new name stays.

    Nothing that starts schedules may run meanwhile.
    """
    states = {state.name: state for state in instance.all_instigator_state()}
    for old, new in RENAMED_SCHEDULES.items():
        if old in states and not states[old].is_running and new not in states:
            origin = states[old].origin._replace(instigator_name=new)
            instance.add_instigator_state(states[old]._replace(origin=origin))
