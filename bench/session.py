"""Shared parts of the rows: a warm heavy session, new folders, the sizes, and the floor of most rows."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from bench.cluster import Size, ring_of
from bench.measure import children
from cdc_platform.clock import Clock, Microseconds
from cdc_platform.delta import Lake, TaskRows, TaskRunner
from cdc_platform.lifecycle.join import bootstrap
from cdc_platform.spark import table_to_spark_schema
from cdc_platform.tables import GENERATION_DESCRIPTIONS_V2

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CLOCK = Clock(Microseconds(1_767_225_600_000_000))
"""Stopped, so that every run has the same times."""
FLOOR = "writing the same rows to Delta from a cache"


@dataclass(frozen=True)
class Sizes:
    """The sizes: `FULL` is what the targets apply to, `QUICK` only shows that the rows run."""

    cluster: Size
    growth: tuple[Size, ...]
    writes: int
    waiting: int
    repeats: int


FULL = Sizes(
    cluster=Size(100, 256, 64),
    growth=(Size(10, 256, 64), Size(100, 256, 64), Size(1000, 256, 64)),
    writes=10_000_000,
    waiting=10_000,
    repeats=5,
)
QUICK = Sizes(
    cluster=Size(6, 16, 8),
    growth=(Size(4, 16, 8), Size(8, 16, 8)),
    writes=100_000,
    waiting=50,
    repeats=1,
)


@dataclass
class Bench:
    """The run: the folder of its files and its sizes. Spark starts when a row first uses it."""

    folder: Path
    sizes: Sizes

    @cached_property
    def spark(self) -> SparkSession:
        """The heavy session, after its first uses."""
        from cdc_platform.spark import get_spark_session

        spark = get_spark_session("cdc-platform bench", heavy=True)
        for _ in range(3):
            v2_frame(spark, QUICK.cluster).count()
        return spark

    @property
    def workers(self) -> TaskRunner:
        """A runner that uses only that session, because rows have volume."""
        return TaskRunner(lambda: self.spark, in_process=0)

    @property
    def default_workers(self) -> TaskRunner:
        """The runner of a user: this process where that is faster, else that session."""
        return TaskRunner(lambda: self.spark)

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Yield a new folder that is removed afterwards."""
        folder = self.folder / uuid.uuid4().hex
        folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def floor_write(self, size: Size) -> Iterator[Callable[[], object]]:
        """Yield the floor: append the V2 rows of a generation, from a cache, to a table of the same shape."""
        with self.scratch() as folder:
            lake = Lake(folder)
            lake.ensure(GENERATION_DESCRIPTIONS_V2)
            path = lake.path(GENERATION_DESCRIPTIONS_V2)
            cached = v2_frame(self.spark, size).persist()
            cached.count()
            try:
                yield lambda: cached.write.format("delta").mode("append").save(path)
            finally:
                cached.unpersist()

    @contextmanager
    def counted_jobs(self) -> Iterator[list[int]]:
        """Yield a list that has the IDs of the block's Spark jobs once the block ends."""
        context, group = self.spark.sparkContext, uuid.uuid4().hex
        context.setJobGroup(group, "counted")
        jobs: list[int] = []
        try:
            yield jobs
        finally:
            jobs.extend(context.statusTracker().getJobIdsForGroup(group))
            context.setLocalProperty("spark.jobGroup.id", "")

    def driver_processes(self) -> list[int]:
        """Return this process and its JVM, which in an embedded session is the driver and its only executor."""
        import os

        self.spark.range(1).count()
        return [os.getpid(), *(pid for pid, name in children(os.getpid()).items() if name == "java")]


def v2_rows(size: Size, generation_id: str) -> TaskRows:
    """Return the V2 descriptions of a generation as they are generated, before any write."""
    ring = ring_of(size)
    rows = bootstrap.description_rows(ring, generation_id)
    return bootstrap.v2_description_rows(rows, generation_id, int(ring.tokens.size))


def v2_frame(spark: SparkSession, size: Size) -> DataFrame:
    """Return the V2 descriptions of a generation as a DataFrame with the table's columns."""
    return v2_rows(size, str(uuid.uuid4())).frame(spark, table_to_spark_schema(GENERATION_DESCRIPTIONS_V2))
