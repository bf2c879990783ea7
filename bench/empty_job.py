"""The code location with one more job: as many steps and checks as a join has, of one partition, as a join is, none of
which does anything.

What that takes is Dagster's own, and no join in Dagster takes less. The location is otherwise the platform's, so that
it takes as long to load. `python -m bench.empty_job` is the command line of the platform whose `up` has this location.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from dagster import (
    AssetCheckResult,
    AssetChecksDefinition,
    AssetCheckSpec,
    AssetKey,
    AssetsDefinition,
    Definitions,
    DynamicPartitionsDefinition,
    MaterializeResult,
    asset,
    define_asset_job,
    in_process_executor,
    multi_asset_check,
)

from cdc_platform import definitions
from cdc_platform_assets.checks import select_with_own_checks
from cdc_platform_assets.join.steps import JOIN_ASSETS

JOB = "empty"
PARTITION = "nothing"
CODE_SERVER = "bench.empty_job_code"


def _asset(like: AssetsDefinition) -> AssetsDefinition:
    inputs = [_key(each) for each in like.keys_by_input_name.values() if each in _JOINED]

    @asset(key=_key(like.key), deps=inputs, partitions_def=_PARTITIONS)
    def nothing() -> MaterializeResult:
        return MaterializeResult()

    return nothing


def _check(like: AssetChecksDefinition, number: int) -> AssetChecksDefinition:
    specs = [
        AssetCheckSpec(
            spec.name,
            asset=_key(spec.asset_key),
            blocking=spec.blocking,
            partitions_def=_PARTITIONS if spec.partitions_def else None,
        )
        for spec in like.check_specs
        if spec.asset_key in _JOINED
    ]

    @multi_asset_check(name=f"empty_{number}", specs=specs, op_tags=like.node_def.tags)
    def nothing() -> Iterator[AssetCheckResult]:
        for spec in specs:
            yield AssetCheckResult(check_name=spec.name, asset_key=spec.asset_key, passed=True)

    return nothing


def _key(of: AssetKey) -> AssetKey:
    return AssetKey([JOB, *of.path])


_PARTITIONS = DynamicPartitionsDefinition(name=JOB)
_JOINED = {each.key for each in JOIN_ASSETS}
_CHECKS = [
    each
    for each in definitions.defs.asset_checks or ()
    if isinstance(each, AssetChecksDefinition) and {key.asset_key for key in each.check_keys} & _JOINED
]
_EMPTY = [_asset(each) for each in JOIN_ASSETS]

defs = Definitions.merge(
    definitions.defs,
    Definitions(
        assets=_EMPTY,
        asset_checks=[_check(each, number) for number, each in enumerate(_CHECKS)],
        jobs=[define_asset_job(JOB, selection=select_with_own_checks(*_EMPTY), executor_def=in_process_executor)],
    ),
)


def main() -> None:
    """Run a command of the platform."""
    from cdc_platform.cli import program
    from cdc_platform.server import UpServices

    service = UpServices._service

    def with_empty_job(*given: Any) -> Any:
        made = service(*given)
        swapped = {"cdc_platform.server.code_server": CODE_SERVER, "cdc_platform.definitions": "bench.empty_job"}
        return replace(made, command=[swapped.get(word, word) for word in made.command])

    UpServices._service = with_empty_job  # pyrefly: ignore[bad-assignment]
    program.main()


if __name__ == "__main__":
    main()
