"""The catalogue is brought to what the tables hold: partitions, events and verdicts that no run of Dagster has told.

All of it follows from the tables and from what Dagster knows; nothing is remembered. A tick tells a bounded number of
events, those of the newest generations first, and each generation's in the order in which they were written, so that
what was made from older rows shows as stale.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from dagster import AssetKey, DagsterEventType, DagsterInstance

from assets.declared import key
from assets.events import DATA_VERSION_TAG, LINEAGE, Asked, Due, event, version_of, written
from assets.partitions import CDC_LOGS, GENERATIONS, HOURS, TABLET_TABLES, hour_partition, keys
from assets.reconcile import held
from assets.reconcile.held import Held
from assets.reconcile.verdicts import missing_results
from cdc_platform.clock import Clock
from cdc_platform.errors import NotAsCommitted
from cdc_platform.lake import provenance
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import BOOTSTRAP_EVENTS
from cdc_platform.lake.verified import verified
from cdc_platform.log.reading import hourly
from cdc_platform.timeline.parts import Contents, Names, all_names

MOST_EVENTS = 200
"""Events that a tick tells: each costs Dagster's storage some ten milliseconds."""
MOST_SECONDS = 20.0
"""A tick that has taken so long leaves the rest to the next one."""
MOST_PARTITIONS = 1000
MOST_HOURS = 24
"""Hours that can be copied and are not which have a partition: as many as a tick of their schedule asks for."""


class AssetGraph(Protocol):
    """What is asked of a repository's `asset_graph`, whose class Dagster does not export."""

    def has(self, key: AssetKey) -> bool:
        """Return True if the code location defines the asset."""
        ...

    def get(self, key: AssetKey) -> Any:
        """Return the asset's node."""
        ...


@dataclass
class Told:
    """What a tick did: events and results told, partitions added and taken away; whether more is `left`.

    `refused`: why no partition was taken away, empty where that was not refused.
    """

    events: int = 0
    results: int = 0
    added: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    left: bool = False
    refused: str = ""

    def __str__(self) -> str:
        return (
            f"told {self.events} events and {self.results} check results, added {len(self.added)} partitions, took "
            f"away {len(self.removed)}"
            + ("; more is left" if self.left else "")
            + (f"; {self.refused}" if self.refused else "")
        )


def reconcile(lake: Lake, instance: DagsterInstance, graph: AssetGraph, *, most: int | None = MOST_EVENTS) -> Told:
    """Tell Dagster what the tables hold and it does not know; at most so many events, or with None all of them."""
    told, deadline = Told(), None if most is None else time.monotonic() + MOST_SECONDS
    names = all_names(lake, keys(lake, instance))
    others = list(held.of_others(lake))
    _bring_partitions(lake, instance, names, others, told)
    contents = Contents(lake)
    known = _Known(instance, graph)
    unfinished = _Runs(instance)
    for several in _in_turn(names, others, contents):
        for each in several:
            if most is not None and told.events + told.results >= most:
                told.left = True
                return told
            _tell(lake, instance, graph, each, list(several), known, unfinished, told)
        if deadline is not None and time.monotonic() > deadline:
            told.left = True
            return told
    for generation in reversed([each for each in names if not each.is_removed]):
        for result in missing_results(lake, instance, generation):
            if most is not None and told.events + told.results >= most:
                told.left = True
                return told
            instance.report_runless_asset_event(result)
            told.results += 1
    return told


def add_hours(lake: Lake, clock: Clock, instance: DagsterInstance) -> None:
    """Add the partitions of the first hours of logs that can be copied by now: time makes them, no commit does."""
    due = [hour_partition(hour_us) for hour_us in hourly.due_hours(lake, clock, MOST_HOURS)]
    if due:
        instance.add_dynamic_partitions(_name(HOURS), due)


def _in_turn(names: Sequence[Names], others: Sequence[Held], contents: Contents) -> Iterator[Sequence[Held]]:
    """What is held, a generation at a time, the newest first; before them what is no generation's."""
    yield from ([each] for each in others)
    for generation in reversed(names):
        if not generation.is_removed:
            yield list(held.of_generation(generation, contents))


def _tell(
    lake: Lake,
    instance: DagsterInstance,
    graph: AssetGraph,
    each: Held,
    beside: Sequence[Held],
    known: _Known,
    unfinished: _Runs,
    told: Told,
) -> None:
    """Tell one event, unless Dagster knows it, or a run that is under way is about to tell it."""
    if not graph.has(each.asset):
        return
    content = each.content(lake)
    if content is None or known.version(each.asset, each.partition) == content.version:
        return
    change = written(lake, each.part)
    said = None if change is None else change.commit.envelope
    if said is not None and unfinished.is_under_way(said.speaker.run):
        told.left = True
        return
    node = graph.get(each.asset)
    asked = Asked(each.asset, sorted(node.parent_keys), node.code_version, node.metadata.get(LINEAGE))
    shared = [parent for parent in node.parent_keys if graph.get(parent).partitions_def != node.partitions_def]
    at_ms = None if change is None else change.commit.at_ms
    due = None if at_ms is None else _due(lake, beside, at_ms)
    made = event(
        instance, asked, each.partition, content, change, due=due, observed=not node.is_materializable, shared=shared
    )
    instance.report_runless_asset_event(made)
    told.events += 1


def _due(lake: Lake, beside: Sequence[Held], at_ms: int) -> Due:
    """Which version each input in a generation had when a commit was made (ms)."""
    inputs = {each.asset: each for each in beside}

    def due(parent: AssetKey) -> str | None:
        found = inputs.get(parent)
        digest = None if found is None else found.digest()
        if found is None or digest is None:
            return None
        change = written(lake, found.part)
        if change is None or change.commit.at_ms is None or change.commit.at_ms <= at_ms:
            return version_of(digest)
        if tuple(found.part.where) != found.part.table.partition_by:
            return version_of(digest)
        then = provenance.said_at(lake, found.part.table, found.part.where, at_ms)
        return None if then is None else version_of(then)

    return due


def _bring_partitions(
    lake: Lake, instance: DagsterInstance, names: Sequence[Names], others: Iterable[Held], told: Told
) -> None:
    """Add the partitions of what is held, and take away those of generations that were withdrawn or removed."""
    there = set(instance.get_dynamic_partitions(_name(GENERATIONS)))
    known = keys(lake, instance)
    wanted = [each.key for each in names if not each.is_removed]
    gone = {each.key for each in names if each.is_removed}
    gone |= {known.of(generation) for generation in known.withdrawn if generation in known.by_generation}
    for partition in _verified_gone(lake, instance, sorted(there & gone - set(wanted))[:MOST_PARTITIONS], told):
        instance.delete_dynamic_partition(_name(GENERATIONS), partition)
        told.removed.append(partition)
    _add(instance, _name(GENERATIONS), [each for each in wanted if each not in there], told)
    for asset, several in held.by_asset(iter(others)).items():
        for definition, of_it in ((TABLET_TABLES, held.OF_TABLETS), (HOURS, (held.CONSUMED_HOURS,))):
            if asset in [key(table) for table in of_it]:
                _add_missing(instance, _name(definition), several, told)
        if asset == held.LOGS:
            _add_missing(instance, _name(CDC_LOGS), several, told)


def _verified_gone(lake: Lake, instance: DagsterInstance, partitions: list[str], told: Told) -> list[str]:
    """The partitions that verified tables say are gone too; none, and why, where these are not as committed."""
    if not partitions:
        return []
    try:
        deciding = verified(lake, "taking partitions away")
        deciding.verify(BOOTSTRAP_EVENTS)
        all_names(deciding, keys(deciding, instance))
    except NotAsCommitted as error:
        told.refused = str(error)
        return []
    return partitions


def _add_missing(instance: DagsterInstance, name: str, several: Iterable[Held], told: Told) -> None:
    there = set(instance.get_dynamic_partitions(name))
    _add(instance, name, [each.partition for each in several if each.partition and each.partition not in there], told)


def _add(instance: DagsterInstance, name: str, partitions: Sequence[str], told: Told) -> None:
    now = list(partitions[:MOST_PARTITIONS])
    if now:
        instance.add_dynamic_partitions(name, now)
        told.added += now
    told.left = told.left or len(partitions) > len(now)


def _name(definition: object) -> str:
    return str(getattr(definition, "name", ""))


class _Known:
    """The data version of the newest event of each partition, asset by asset as they are asked for."""

    def __init__(self, instance: DagsterInstance, graph: AssetGraph) -> None:
        self._instance, self._graph = instance, graph
        self._partitions: dict[AssetKey, dict[str, str]] = {}

    def version(self, asset: AssetKey, partition: str | None) -> str | None:
        """The version; None where there is no event."""
        node = self._graph.get(asset)
        if partition is None:
            record = self._instance.get_latest_data_version_record(asset, not node.is_materializable)
            return None if record is None else (record.event_log_entry.tags or {}).get(DATA_VERSION_TAG)
        if asset not in self._partitions:
            kind = DagsterEventType.ASSET_MATERIALIZATION
            found = self._instance.event_log_storage.get_latest_tags_by_partition(asset, kind, [DATA_VERSION_TAG])
            self._partitions[asset] = {name: tags[DATA_VERSION_TAG] for name, tags in found.items()}
        return self._partitions[asset].get(partition)


class _Runs:
    """Which of Dagster's runs may still tell what they have written."""

    def __init__(self, instance: DagsterInstance) -> None:
        self._instance = instance
        self._under_way: dict[str, bool] = {}

    def is_under_way(self, run_id: str) -> bool:
        """Whether a run, named by its ID, is known here and has not ended."""
        if run_id and run_id not in self._under_way:
            run = self._instance.get_run_by_id(run_id)
            self._under_way[run_id] = run is not None and not run.is_finished
        return self._under_way.get(run_id, False)
