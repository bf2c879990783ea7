"""Fixtures for tests of a Spark cluster with a store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from support.spark.twins import log_in_a_store

if TYPE_CHECKING:
    from support.spark.driven import Cluster
    from support.store.s3 import S3


@pytest.fixture(scope="module")
def entered(cluster_process: Cluster) -> Iterator[Cluster]:
    """This process as a driver of the cluster."""
    with cluster_process.entered():
        yield cluster_process


@pytest.fixture
def cluster(entered: Cluster) -> Cluster:
    """Two workers that see neither this project nor its environment nor the driver's folder, and have the store."""
    entered.finds("plain", "plain")
    return entered


@pytest.fixture(scope="module")
def logged(entered: Cluster, s3_process: S3, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A home in the store with two generations and a table whose log is empty."""
    return log_in_a_store(f"{s3_process.bucket()}/logs", tmp_path_factory.mktemp("logs"))
