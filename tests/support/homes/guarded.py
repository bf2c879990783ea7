"""Everything that writes, for tests of a read-only home: every way to write a table, every sensor and schedule."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from dagster import DagsterInstance, ScheduleDefinition, SensorDefinition
from dagster import build_schedule_context as schedule_context
from dagster import build_sensor_context as sensor_context

from cdc_platform.definitions import defs
from cdc_platform.delta import Lake, TaskRunner
from cdc_platform.spark import frames
from cdc_platform.tables import CDC_TABLES, GENERATIONS, STREAMS_DESCRIPTIONS_V2

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def ways_of_writing(lake: Lake) -> list[Callable[[], Any]]:
    """Return each write method of a lake with valid rows; the lake has published streams."""
    one = lake.read(STREAMS_DESCRIPTIONS_V2).slice(0, 1)
    cell = {"time": one["time"][0].as_py()}
    return [
        lambda: lake.ensure(GENERATIONS),
        lambda: lake.widen(GENERATIONS),
        lambda: lake.merge(STREAMS_DESCRIPTIONS_V2, one, update=True),
        lambda: lake.merge_judged(STREAMS_DESCRIPTIONS_V2, lambda: one),
        lambda: lake.delete(STREAMS_DESCRIPTIONS_V2, [("range_end", "=", 100)]),
        lambda: lake.compare_and_set(STREAMS_DESCRIPTIONS_V2, one, ("range_end", 100)),
        lambda: lake.transact(CDC_TABLES, lambda _: pa.Table.from_pylist([], schema=CDC_TABLES.schema), whole=True),
        lambda: lake.raise_column(STREAMS_DESCRIPTIONS_V2, one, "range_end"),
        lambda: lake.append_once(STREAMS_DESCRIPTIONS_V2, one, {"a": 1}, None),
        lambda: lake.replace_once(STREAMS_DESCRIPTIONS_V2, one, [("range_end", "=", 100)], 0),
        lambda: frames.replace_partition(TaskRunner(_no_session), lake, STREAMS_DESCRIPTIONS_V2, None, cell),  # pyrefly: ignore[bad-argument-type]
    ]


def _no_session() -> SparkSession:
    raise AssertionError("Spark was asked for")


def ticks() -> dict[str, SensorDefinition | ScheduleDefinition]:
    """Return every sensor and schedule of the code location, by name."""
    repository = defs.get_repository_def()
    return {definition.name: definition for definition in (*repository.sensor_defs, *repository.schedule_defs)}


def answer_of(name: str) -> Any:
    """Return the result of a tick of one of them, in the home that the environment names."""
    tick = ticks()[name]
    with DagsterInstance.ephemeral() as instance:
        resources = {key: value for key, value in (defs.resources or {}).items() if key != "spark"}
        if isinstance(tick, SensorDefinition):
            repository = defs.get_repository_def()
            with sensor_context(instance=instance, repository_def=repository, resources=resources) as context:
                return tick(context)
        with schedule_context(instance=instance, resources=resources) as context:
            return tick(context)
