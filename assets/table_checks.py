"""Checks of a table that has no partitions: one audit judges the home by the invariants of one family."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from dagster import AssetCheckExecutionContext, AssetCheckResult, AssetChecksDefinition, multi_asset_check

from cdc_platform.checks import Finding, Invariant, InvariantFamily
from cdc_platform.clock import Clock
from cdc_platform.delta import Lake
from cdc_platform.settings import Settings
from cdc_platform.tables import Table
from cdc_platform_assets.checks import LOW_PRIORITY_TAGS, check_specs, evaluate_checks
from cdc_platform_assets.specs import pool_from_table
from cdc_platform_resources.clock import ClockResource
from cdc_platform_resources.home import HomeResource


def build_table_checks(
    name: str,
    table: Table,
    family: InvariantFamily,
    audit: Callable[[Lake, Clock, Settings], Sequence[Finding]],
    *,
    invariants: Iterable[Invariant] | None = None,
    low_priority: bool = False,
) -> AssetChecksDefinition:
    """Build the checks of an unpartitioned table: `audit` judges the home by the invariants of one family.

    Checks of `low_priority` take no slot of the table's pool and run when no step is ready.
    """

    @multi_asset_check(
        can_subset=True,
        name=name,
        specs=check_specs(table, family.invariants if invariants is None else invariants),
        pool=None if low_priority else pool_from_table(table),
        op_tags=LOW_PRIORITY_TAGS if low_priority else None,
    )
    def check_table(
        context: AssetCheckExecutionContext, home: HomeResource, clock: ClockResource
    ) -> Iterator[AssetCheckResult]:
        lake, now = home.lake(), clock.clock()
        yield from evaluate_checks(context, table, lake, now, lambda _: [(family, audit(lake, now, home.settings()))])

    return check_table
