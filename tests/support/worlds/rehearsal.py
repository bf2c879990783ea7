"""A platform for one test, driven through Dagster in one process: nodes are queued and join for real."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

import numpy as np
from dagster import AssetKey, DagsterInstance, ExecuteInProcessResult

from cdc_platform.definitions import defs
from cdc_platform.delta import Lake
from cdc_platform_assets.partitions import GENERATIONS_NAME, read_generation_keys

QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
_FIRST_ADDRESS = ip_address("10.0.0.0")


def node_config(number: int, *, tokens: int = 4, shard_count: int = 2) -> dict[str, Any]:
    """Return the config that queues node `number`, with its own tokens, which are the same in every run."""
    drawn = np.random.default_rng(number).integers(-(2**63) + 1, 2**63 - 1, tokens, dtype=np.int64)
    return {
        "host_id": str(uuid.UUID(int=number)),
        "address": str(_FIRST_ADDRESS + number),
        "datacenter": "dc1",
        "rack": "r1",
        "tokens": [str(token) for token in drawn],
        "shard_count": shard_count,
        "ignore_msb": 12,
    }


@dataclass(frozen=True)
class Rehearsal:
    """The actions of a test on its own platform."""

    instance: DagsterInstance
    lake: Lake

    def queue(self, number: int, **shape: int) -> str:
        """Queue node `number` by the job of the inbox; return its generation."""
        result = self.bootstrap(node_config(number, **shape))
        assert result.success
        metadata = result.asset_materializations_for_node("queue_node")[0].metadata
        return str(metadata["generation_id"].value)

    def partition(self, generation_id: str) -> str:
        """Return the name of the generation's partition."""
        return read_generation_keys(self.lake, self.instance).of(generation_id)

    def bootstrap(self, config: dict[str, Any]) -> ExecuteInProcessResult:
        """Run the job of the inbox with this config."""
        run_config = {"ops": {"queue_node": {"config": config}}} if config else {}
        return self._run("bootstrap", run_config, None, None)

    def join(self, generation_id: str, *tables: str) -> ExecuteInProcessResult:
        """Run the join of a generation, or only its assets of `tables` (keyspace.table)."""
        chosen = [AssetKey(table.split(".")) for table in tables]
        partition = self.partition(generation_id)
        self.instance.add_dynamic_partitions(GENERATIONS_NAME, [partition])
        return self._run("join", {}, partition, chosen or None)

    def _run(
        self, job: str, config: dict[str, Any], partition: str | None, chosen: Sequence[AssetKey] | None
    ) -> ExecuteInProcessResult:
        return defs.resolve_job_def(job).execute_in_process(
            run_config=QUIET | config,
            instance=self.instance,
            partition_key=partition,
            asset_selection=chosen,
            raise_on_error=False,
        )


def failures(result: ExecuteInProcessResult) -> list[str]:
    """Return the errors of the failed steps of a run, each with its stack."""
    failed = (event for event in result.all_events if event.is_step_failure)
    return [f"{event.step_key}: {event.step_failure_data.error}" for event in failed]
