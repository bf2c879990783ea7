"""A check without a subject never shows "0 checked": every check of the definitions, with nothing to judge."""

from __future__ import annotations

import pytest
from dagster import (
    AssetCheckEvaluation,
    AssetCheckKey,
    AssetCheckSeverity,
    DynamicPartitionsDefinition,
    ExecuteInProcessResult,
)
from support.homes.ingested import ReadLog, ingested_home
from support.homes.log_lake import split
from support.worlds.rehearsal import QUIET, Rehearsal, failures

from cdc_platform.cdclog import log_table, read_table_schema
from cdc_platform.checks import invariants
from cdc_platform.definitions import defs
from cdc_platform.tables import CDC_TABLES
from cdc_platform_assets.alerts import INBOX_CHECK
from cdc_platform_assets.cluster.lag import LAG_CHECK
from cdc_platform_assets.run_requests import PARTITION_TAG

GRAPH = defs.get_repository_def().asset_graph
PARTITIONS = {
    "cdc_hour": "2026-01-31-12:00",
    "cdc_log": "ks.tabs",
    "cluster": "prod",
    "ingested_log": "prod/shop.new",
    "tablet_table": "ks.t",
    "write_hour": "2026-01-31-12:00",
}
"""For each kind, a partition in which nothing is stored. The inbox creates those of generations."""
EMPTY_LOG = {"there are no rows", "no table with a log has a stored state", "no reader passed any over"}
"""The results of an existing log without rows."""
WITHOUT_COUNT = {INBOX_CHECK: "the inbox is empty", LAG_CHECK: "no log was ingested yet"}
"""The checks of the whole home that count nothing and pass in an empty home, with their messages."""


STORED = {str(name) for name in invariants.STORAGE_FAMILY.invariants}
JUDGED_WHEN_MADE = {key for key in GRAPH.asset_check_keys if key.asset_key.path[-1] == "simulated_switches"}
"""The checks that the materialization of their asset judges, with at least one history."""


def checks_by_partitions() -> dict[str | None, set[AssetCheckKey]]:
    """Return every check of the definitions, by the name of its partitions."""
    by_name: dict[str | None, set[AssetCheckKey]] = {}
    for key in GRAPH.asset_check_keys - JUDGED_WHEN_MADE:
        definition = GRAPH.get(key).partitions_def
        assert definition is None or isinstance(definition, DynamicPartitionsDefinition)
        by_name.setdefault(None if definition is None else str(definition.name), set()).add(key)
    return by_name


CHECKS = checks_by_partitions()


def execute(rehearsal: Rehearsal, kind: str | None, partition: str | None) -> ExecuteInProcessResult:
    """Run all checks of one kind of partition on one partition, or without one."""
    job = defs.get_repository_def().get_implicit_global_asset_job_def()
    subset = job.get_subset(asset_selection=set(), asset_check_selection=CHECKS[kind])
    tags = {} if partition is None else {PARTITION_TAG: partition}
    return subset.execute_in_process(run_config=QUIET, instance=rehearsal.instance, tags=tags, raise_on_error=False)


def counts_nothing(result: AssetCheckEvaluation) -> bool:
    """Return True if a result counts nothing."""
    population = result.metadata.get("population")
    return population is None or population.value == 0


@pytest.fixture
def empty(rehearsal: Rehearsal) -> Rehearsal:
    """Return a home with a table that has an empty log, a registered cluster never observed, and no other row."""
    ingested_home(rehearsal.lake.root.parent, [ReadLog("new", windows=None)])
    split(rehearsal.lake)
    rehearsal.lake.delete(log_table(read_table_schema(rehearsal.lake, "ks", "tabs")), [("cdc$batch_seq_no", ">=", 0)])
    for name, partition in PARTITIONS.items():
        rehearsal.instance.add_dynamic_partitions(name, [partition])
    return rehearsal


def test_every_kind_of_partition_is_covered() -> None:
    """A new kind of partition needs a line in `PARTITIONS`."""
    assert CHECKS.keys() == {*PARTITIONS, "generation", None}


@pytest.mark.parametrize("kind", PARTITIONS)
def test_a_partition_without_content_is_not_green(empty: Rehearsal, kind: str) -> None:
    """Each result of a partition in which nothing is stored is a warning without a verdict, or names what was read."""
    executed = execute(empty, kind, PARTITIONS[kind])
    assert not failures(executed)
    results = executed.get_asset_check_evaluations()
    assert {result.asset_check_key for result in results} == CHECKS[kind]
    for result in results:
        if not counts_nothing(result):
            # Files and commits of the empty log, and of the tables in the cluster's home.
            assert result.passed, result
            assert (kind in ("cdc_log", "cluster"), result.check_name in STORED) == (True, True), result
        elif result.passed:
            assert (kind, result.description in EMPTY_LOG) == ("cdc_log", True), result
        else:
            assert result.severity is AssetCheckSeverity.WARN, result


def test_a_queued_generation_has_no_green_check(rehearsal: Rehearsal) -> None:
    """Its rows are not written yet, so the audits pass only on the row of the inbox."""
    partition = rehearsal.partition(rehearsal.queue(1))
    rehearsal.instance.add_dynamic_partitions("generation", [partition])
    results = execute(rehearsal, "generation", partition).get_asset_check_evaluations()
    assert {result.asset_key.path[-1] for result in results if result.passed} == {"bootstrap_events"}
    assert not [result for result in results if result.passed and counts_nothing(result)]


def test_checks_of_the_whole_home_pass_on_an_empty_home_with_a_reason(rehearsal: Rehearsal) -> None:
    """Such a check names the objects that do not exist, and never shows "0 checked"."""
    results = execute(rehearsal, None, None).get_asset_check_evaluations()
    assert results
    assert {result.asset_check_key for result in results} <= CHECKS[None]
    for result in results:
        assert result.passed, result
        assert counts_nothing(result)
        invariant = invariants.INVARIANTS_BY_NAME.get(result.check_name)
        expected = WITHOUT_COUNT.get(result.check_name) if invariant is None else invariant.family.fine_without
        assert expected, result
        assert result.description == expected
    assert not rehearsal.lake.exists(CDC_TABLES)
