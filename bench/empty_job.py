"""The code location with one more job, as many steps and checks of one partition as a join has, which do nothing.

Its time is Dagster's own overhead, and no join in Dagster takes less. The rest of the location is the platform's, so
it takes as long to load. `python -m bench.empty_job` is the platform's command line with an `up` that has this
location.
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
    inputs = [_key(key) for key in like.keys_by_input_name.values() if key in _JOINED]

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
_JOINED = {joined.key for joined in JOIN_ASSETS}
_CHECKS = [
    check
    for check in definitions.defs.asset_checks or ()
    if isinstance(check, AssetChecksDefinition) and {key.asset_key for key in check.check_keys} & _JOINED
]
_EMPTY = [_asset(joined) for joined in JOIN_ASSETS]

defs = Definitions.merge(
    definitions.defs,
    Definitions(
        assets=_EMPTY,
        asset_checks=[_check(check, number) for number, check in enumerate(_CHECKS)],
        jobs=[define_asset_job(JOB, selection=select_with_own_checks(*_EMPTY), executor_def=in_process_executor)],
    ),
)


def main() -> None:
    """Run a command of the platform."""
    from cdc_platform.cli import program
    from cdc_platform.server import UpServices

    service = UpServices._service

    def with_empty_job(*arguments: Any) -> Any:
        built = service(*arguments)
        swapped = {"cdc_platform.server.code_server": CODE_SERVER, "cdc_platform.definitions": "bench.empty_job"}
        return replace(built, command=[swapped.get(word, word) for word in built.command])

    UpServices._service = with_empty_job  # pyrefly: ignore[bad-assignment]
    program.main()


if __name__ == "__main__":
    main()
