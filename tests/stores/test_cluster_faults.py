"""What goes wrong among a cluster's workers and between them and the store: nothing is lost, and nothing there twice.

On the cluster of `test_cluster`; the faults are those of its S3 server, of a worker's clock and of what a worker has.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.read_logs import schema
from support.spark.twins import CLIENT, Twins, assert_appended, files_of, log_in_a_store

from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import GENERATION_DESCRIPTIONS_V2
from cdc_platform.log.log_table import log_table

if TYPE_CHECKING:
    from support.spark.cluster import Cluster
    from support.store.s3 import S3

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
_LATE_SECONDS = 25
"""So long that a second attempt of the task ends before: Spark begins one after some seconds."""


@pytest.fixture(scope="module")
def cluster(cluster_process: Cluster) -> Iterator[Cluster]:
    """Two workers that see neither this project nor its environment nor the driver's folder."""
    with cluster_process.entered():
        yield cluster_process


def test_two_attempts_of_a_task_of_a_join(cluster: Cluster, s3_process: S3, tmp_path: Path) -> None:
    """A store answers one of them late: both have written their file, the commit names one, each row is there once."""
    twins = Twins(f"{s3_process.bucket()}/join", tmp_path)
    folder = Lake(f"{twins.address}/lake").path(GENERATION_DESCRIPTIONS_V2)
    before = len(cluster.standalone.second_attempts())
    s3_process.is_slow(folder, _LATE_SECONDS)
    cluster.ends(cluster.start(*twins.join, at=tmp_path))
    assert len(cluster.standalone.second_attempts()) > before
    twins.assert_same()
    assert files_of(twins.address, GENERATION_DESCRIPTIONS_V2) == (2, 1)


def test_two_attempts_of_a_task_of_an_append(cluster: Cluster, s3_process: S3, tmp_path: Path) -> None:
    """As of a join, where the late task is one of two."""
    address = log_in_a_store(f"{s3_process.bucket()}/log", tmp_path)
    table = log_table(schema(Lake(f"{address}/lake")))
    before = len(cluster.standalone.second_attempts())
    s3_process.is_slow(Lake(f"{address}/lake").path(table), _LATE_SECONDS)
    cluster.ends(cluster.start(CLIENT, "append", address))
    assert len(cluster.standalone.second_attempts()) > before
    assert_appended(address)
    written, named = files_of(address, table)
    assert written == named + 1
