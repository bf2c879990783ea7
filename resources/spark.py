"""The Spark session as a lazy Dagster resource."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dagster import InitResourceContext
from dagster_pyspark import LazyPySparkResource
from pydantic import Field, PrivateAttr

from cdc_platform.delta import TaskRunner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkResource(LazyPySparkResource):
    """A Spark session that is made when an asset first asks for it, so that definitions load without Java.

    An embedded session is shared by everything in its process and outlives the run: it costs seconds to start. One on
    a Connect server is given back after the run: a server that runs for weeks must not collect them.
    """

    spark_config: dict[str, Any] = Field(
        default_factory=dict, description="Spark settings on top of the platform's own, by their full names."
    )

    _is_used: bool = PrivateAttr(default=False)

    def _init_session(self) -> None:
        # dagster-pyspark calls a bare getOrCreate here: no Delta, no JARs, no Connect.
        if self._spark_session is None:
            from cdc_platform.spark import get_spark_session

            self._spark_session = get_spark_session(  # pyrefly: ignore[bad-assignment]
                "cdc-platform assets", extra_conf=self.spark_config or None
            )

    def workers(self) -> TaskRunner:
        """Return a runner for an asset's rows: this process while they are few, and this session beyond that."""
        self._is_used = False
        return TaskRunner(self._use_session)

    def _use_session(self) -> SparkSession:
        self._is_used = True
        return self.spark_session

    @property
    def kind(self) -> str:
        """Return what has done the work of the last runner: "spark" if it needed the session, otherwise "python"."""
        return "spark" if self._is_used else "python"

    def teardown_after_execution(self, context: InitResourceContext) -> None:
        """Close the session if it is a Connect session."""
        from cdc_platform.spark import is_remote_session

        if self._spark_session is not None and is_remote_session():
            self._spark_session.stop()
        self._spark_session = None
