"""Observe a live cluster: import its nodes, CDC-enabled tables, generations and stream sets into its home.

Observing an unchanged cluster writes nothing. While the topology changes, which may take hours, the nodes stay as they
were. The observation fails if the home publishes times that the cluster does not list. Generations that the cluster has
removed expire by the purge plan.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from cdc_platform.cdclog import FROM_CLUSTER, load_table_schemas
from cdc_platform.clock import (
    ONE_US,
    SECOND_MS,
    Clock,
    Microseconds,
    Milliseconds,
    ceil_ms_from_us,
    format_ms,
    ms_from_datetime,
    us_from_ms,
)
from cdc_platform.cql import Catalog
from cdc_platform.delta import Lake, WriteSource, write_as
from cdc_platform.errors import ClockRefused, InputError, NotAsCommitted, NotFound, StateError
from cdc_platform.importing import (
    ClusterExports,
    ImportIssues,
    ImportReport,
    ImportSources,
    TopologyExport,
    import_sources,
)
from cdc_platform.lifecycle import ExpiryAction, expiry
from cdc_platform.metastore import (
    CdcTable,
    RecordedClusterChange,
    TableChangeRequest,
    cdc_local,
    cdc_tables,
    cluster_changes,
    consumers,
    parse_alteration,
    ring,
    tablets,
    with_unchanged_until,
    without_unchanged_until,
)
from cdc_platform.metastore import generations as metastore_generations
from cdc_platform.scylla import changes, generations, registry, system_tables
from cdc_platform.scylla.generations import SkippedItem, read_stream_sets
from cdc_platform.scylla.metadata_fingerprint import (
    MetadataSnapshot,
    TableKey,
    read_last_fingerprint,
    store_fingerprint,
    take_metadata_snapshot,
)
from cdc_platform.scylla.registry import ScyllaCluster
from cdc_platform.scylla.schema import LoggedTable, read_logged_tables
from cdc_platform.scylla.session import ScyllaSession, open_session
from cdc_platform.scylla.system_tables import AvailableTables, detect_tables
from cdc_platform.scylla.topology import ClusterTopology, read_topology
from cdc_platform.settings import Settings
from cdc_platform.tables import (
    GENERATION_DESCRIPTIONS,
    GENERATION_DESCRIPTIONS_V2,
    GENERATION_TIMESTAMPS,
    STREAMS_DESCRIPTIONS,
    STREAMS_DESCRIPTIONS_V2,
)


@dataclass(frozen=True)
class PublishedTimes:
    """The times (ms) that a home publishes: generations that have not expired, and the stream sets of each table."""

    times_ms: tuple[Milliseconds, ...]
    sets: tuple[tuple[TableKey, Milliseconds], ...]


def read_published_times(lake: Lake, clock: Clock) -> PublishedTimes:
    """Return what a home publishes now. Call it before reading the cluster: another process may import meanwhile."""
    now_ms = clock.now_ms()
    rows = lake.read(GENERATION_TIMESTAMPS, ["time", "expired"]).to_pylist()
    published = (row["time"] for row in rows if row["expired"] is None or ms_from_datetime(row["expired"]) > now_ms)
    return PublishedTimes(
        tuple(sorted(map(ms_from_datetime, published))), tuple(sorted(tablets.read_listed_stream_sets(lake)))
    )


def assert_listed_by_cluster(
    name: str,
    here: PublishedTimes,
    there: MetadataSnapshot,
    may_be_gone: Callable[[], Collection[Milliseconds]] = frozenset,
) -> None:
    """Raise StateError if the home of the cluster `name` publishes a time that the cluster does not list.

    The cluster may have removed expired generations, and stream sets before the first that it lists. If a generation is
    missing, `may_be_gone` returns further times (ms) that the cluster may have removed.

    Raises:
        StateError: the home publishes a time that the cluster does not list.
    """
    missing = [time_ms for time_ms in here.times_ms if time_ms not in there.times_ms]
    allowed = may_be_gone() if missing else ()
    for time_ms in missing:
        if time_ms not in allowed:
            raise _unlisted_error(name, f"generation {format_ms(time_ms)}")
    for table, time_ms in here.sets:
        listed = there.sets.get(table, ())
        if listed and time_ms > min(listed) and time_ms not in listed:
            raise _unlisted_error(name, f"stream set {format_ms(time_ms)} of {'.'.join(table)}")


def _unlisted_error(name: str, what: str) -> StateError:
    return StateError(
        f"the home of {name} publishes {what}, which the cluster does not list: it was created here, or the cluster "
        "was restored, so readers would look in the wrong streams; start over with: "
        f"cdc-platform cluster replace {name}, which moves the old home aside"
    )


def find_expired_times(lake: Lake, clock: Clock, settings: Settings) -> frozenset[Milliseconds]:
    """Return the times (ms) of generations whose log rows have all expired, even if consumers here still read them.

    An unknown TTL does not mean that a generation was made up here: the TTL seen next stands in for it.
    """
    now_ms, plan = clock.now_ms(), expiry.plan_expiry(lake, clock, settings, observed_only=True)
    return frozenset(item.time_ms for item in plan if item.expired_ms is not None and item.expired_ms <= now_ms)


def follow_removals(lake: Lake, clock: Clock, settings: Settings, listed: Collection[Milliseconds]) -> str | None:
    """Mark expired generations, and remove those that the cluster no longer lists and an earlier observation marked.

    `listed` are the times (ms) that the cluster lists. Return why marking and removing was refused, or None. The next
    observation completes one that was killed, as `expire` does.
    """
    here = metastore_generations.read_listed_times(lake)
    missing = here - set(listed)
    plan = expiry.plan_expiry(lake, clock, settings)
    if not missing and not expiry.read_unfinished_removals(lake) and not any(map(expiry.needs_mark, plan)):
        return None
    try:
        lake, plan = expiry.read_verified_plan(lake, clock, settings)
        expiry.mark_expired(lake, clock, plan)
        gone = [item for item in plan if item.time_ms in missing and item.action is ExpiryAction.REMOVE]
        begun = expiry.begin_removals(lake, clock, gone)
        for table in expiry.REMOVAL_TABLES:
            expiry.remove_generation_rows(lake, table, begun)
    except (NotAsCommitted, ClockRefused) as error:
        return f"expired generations are neither marked nor removed: {error}"
    return None


@dataclass
class Observation:
    """What was seen of a cluster, and what was done with it.

    `tables_changed` are lines; `incomplete` are the items left out. `changing` describes a topology change in progress,
    during which the nodes stay as before; None if the topology has settled. `changes` are the changes recorded now.
    `first_omitted_ms` is the first generation that the cluster lists and the observation left out;
    `first_omitted_sets_ms` is the same for each table's stream sets.
    """

    cluster_name: str
    version: str
    imported: ImportReport = field(default_factory=ImportReport)
    tables_changed: list[str] = field(default_factory=list)
    incomplete: list[SkippedItem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    changing: str | None = None
    changes: list[RecordedClusterChange] = field(default_factory=list)
    first_omitted_ms: Milliseconds | None = None
    first_omitted_sets_ms: dict[str, Milliseconds] = field(default_factory=dict)

    def readable_us(self, table: str, until_us: Microseconds) -> Microseconds:
        """Return up to when (µs) rows of a table (`keyspace.table`) may be read, before the first set left out."""
        omitted_ms = (self.first_omitted_ms, self.first_omitted_sets_ms.get(table))
        ends = [us_from_ms(time_ms) - ONE_US for time_ms in omitted_ms if time_ms is not None]
        return Microseconds(min([until_us, *ends]))


def run_observation(cluster: ScyllaCluster, clock: Clock) -> Observation:
    """Observe a cluster once and import what is new; return what was seen.

    Raises:
        EnvironmentProblem: the cluster cannot be reached, or refuses the login.
        NotGranted: a table with CDC metadata may not be read.
        StateError: it is not the cluster observed before, or has no CDC; or its home publishes what it does not list.
        InputError: it contradicts what it said about a generation before.
    """
    with open_session(cluster.name, cluster.connection, known_nodes=cluster.node_addresses) as live:
        return observe_session(live, cluster, clock)


def refresh_if_changed(live: ScyllaSession, cluster: ScyllaCluster, clock: Clock) -> Observation | None:
    """Observe a connected cluster if its metadata fingerprint changed; return None if it did not.

    Raises:
        EnvironmentProblem, NotGranted, StateError, InputError: as `run_observation`.
    """
    seen = _take_checked_snapshot(live, cluster, clock)
    if seen.mark == read_last_fingerprint(cluster):
        return None
    return observe_session(live, cluster, clock, seen)


def observe_session(
    live: ScyllaSession, cluster: ScyllaCluster, clock: Clock, seen_before: MetadataSnapshot | None = None
) -> Observation:
    """Observe a connected cluster, as `run_observation` does; `seen_before` is the snapshot that prompted it."""
    with write_as(WriteSource.OBSERVED):
        return _observe(live, cluster, clock, seen_before)


def _take_checked_snapshot(live: ScyllaSession, cluster: ScyllaCluster, clock: Clock) -> MetadataSnapshot:
    """Return a snapshot, after checking that it is the known cluster and that it lists what its home publishes."""
    home = cluster.open_home()
    lake = Lake(home.lake)
    here = read_published_times(lake, clock)
    seen = take_metadata_snapshot(live)
    registry.assert_same_cluster(cluster, seen.identity, seen.times_ms)
    assert_listed_by_cluster(cluster.name, here, seen, lambda: find_expired_times(lake, clock, home.settings))
    return seen


def _observe(
    live: ScyllaSession, cluster: ScyllaCluster, clock: Clock, seen_before: MetadataSnapshot | None
) -> Observation:
    lake = Lake(cluster.open_home().lake)
    first = _take_checked_snapshot(live, cluster, clock) if seen_before is None else seen_before
    layout = detect_tables(live)
    layout.assert_readable()
    topology = read_topology(live, layout, {node.host_id: node for node in ring.read_nodes(lake)})
    registry.assert_same_cluster(cluster, topology.identity)
    _assert_has_cdc(live, layout, topology)
    times = generations.read_generation_timestamps(live, layout)
    registry.assert_same_cluster(cluster, topology.identity, list(times))
    observed = generations.read_generations(live, layout, topology, times, _known_generations(lake))
    sets, without, omitted = read_stream_sets(live, layout, _known_sets(lake))
    logged = read_logged_tables(live, layout)
    not_whole = [*observed.incomplete, *without]
    seen = Observation(topology.cluster_name, topology.version, incomplete=not_whole, changing=topology.changing)
    seen.first_omitted_ms = min(set(times) - set(observed.timestamps), default=None)
    seen.first_omitted_sets_ms = {".".join(name): time_ms for name, time_ms in omitted.items()}
    table_names = frozenset(name.rpartition(".")[2] for name in layout.present)
    known_there = TopologyExport(committed=_unpublished_generations(topology, observed))
    exports = ClusterExports(
        observed.descriptions, observed.streams, observed.timestamps, observed.v1, sets, table_names, known_there
    )
    changes.record_initial_state(lake, clock)
    _record_tables(cluster, lake, clock, logged, seen)
    # The cluster itself is the source here, and the next observation may find the issue resolved.
    sources = ImportSources(
        list(topology.nodes) or None,
        exports,
        None,
        [],
        issues=ImportIssues(allow_incomplete=True, makes_read_only=False),
    )
    seen.imported = import_sources(lake, clock, sources)
    refused = (
        follow_removals(lake, clock, cluster.open_home().settings, times)
        if system_tables.TIMESTAMPS in layout
        else None
    )
    cluster_changes.store_omitted_items(lake, clock, [item.line for item in not_whole])
    seen.warnings += [*seen.imported.warnings, *seen.imported.issues, *([refused] if refused else [])]
    newest = max(observed.timestamps, default=None)
    registry.store_identity(cluster, topology.identity.model_copy(update={"newest_ms": newest}))
    seen.changes = changes.record_changes(lake, clock, not_whole, topology.changing, observed.not_read)
    # A change in progress that the snapshot has seen too gets another fingerprint when it has settled.
    if not not_whole and (topology.changing is None or first.changing is not None):
        store_fingerprint(cluster, first)
    return seen


def _unpublished_generations(
    topology: ClusterTopology, found: generations.ObservedGenerations
) -> dict[Milliseconds, str]:
    """Return the UUIDs of the generations that nodes know and clients cannot read yet, by their times (ms).

    Readers wait at the start of such a generation: its rows lie in its own streams from then on. Without Raft each
    node's `cdc_local` names the newest generation that it knows.
    """
    by_nodes = {
        row.streams_timestamp_ms: row.uuid
        for row in found.v1.local
        if row.key == cdc_local.GENERATION_KEY and row.streams_timestamp_ms is not None and row.uuid is not None
    }
    known_there = by_nodes | {time_ms: str(id_) for time_ms, id_ in topology.committed}
    return {time_ms: id_ for time_ms, id_ in known_there.items() if time_ms not in found.timestamps}


def _assert_has_cdc(live: ScyllaSession, layout: AvailableTables, topology: ClusterTopology) -> None:
    if not {system_tables.TIMESTAMPS, system_tables.STREAMS_V1, system_tables.TABLET_TIMESTAMPS} & layout.present:
        raise StateError(
            f"{live.name} is version {topology.version} and has no table of CDC generations; ScyllaDB has them from "
            "4.3 on"
        )


def _known_generations(lake: Lake) -> generations.KnownGenerations:
    ids = lake.read(GENERATION_DESCRIPTIONS_V2, ["id"])["id"].unique().to_pylist()
    # Rows of a removed generation may remain in other tables; importing them would restore half of it.
    gone = metastore_generations.read_removed_generations(lake)
    times = {generation.time_ms for generation in gone}
    return generations.KnownGenerations(
        metastore_generations.read_row_times(lake, STREAMS_DESCRIPTIONS_V2),
        {*ids, *(generation.id for generation in gone if generation.id is not None)},
        metastore_generations.read_row_times(lake, GENERATION_DESCRIPTIONS) | times,
        metastore_generations.read_row_times(lake, STREAMS_DESCRIPTIONS) | times,
    )


def _known_sets(lake: Lake) -> dict[tuple[str, str], set[Milliseconds]]:
    sets: dict[tuple[str, str], set[Milliseconds]] = {}
    for name, time_ms in tablets.read_listed_stream_sets(lake) & tablets.read_stream_sets_with_rows(lake):
        sets.setdefault(name, set()).add(time_ms)
    return sets


def _record_tables(
    cluster: ScyllaCluster, lake: Lake, clock: Clock, logged: list[LoggedTable], seen: Observation
) -> None:
    """Bring the home's registered tables in line with the cluster (added, altered, dropped, recreated), by one commit.

    A refused change is a warning and does not prevent the others.
    """
    # A process may have died after recording a log's end and its recreation: complete them, so that neither is recorded
    # again.
    cdc_tables.complete_cdc_tables(lake)
    existing = {(table.keyspace_name, table.table_name): table for table in cdc_tables.read_cdc_tables(lake)}
    requests: list[tuple[TableChangeRequest, str]] = []
    for table in logged:
        try:
            for change in _table_changes(cluster, lake, clock, table, existing.get((table.keyspace, table.name)), seen):
                requests.append(change)
        except InputError as refusal:
            seen.warnings.append(str(refusal))
    for gone in sorted(existing.keys() - {(table.keyspace, table.name) for table in logged}):
        requests.append((cdc_tables.request_drop(lake, clock, *gone), f"{'.'.join(gone)} dropped"))
    outcomes = cdc_tables.record_table_changes_separately(lake, [request for request, _ in requests])
    for outcome, (_, line) in zip(outcomes, requests, strict=True):
        if isinstance(outcome, InputError):
            seen.warnings.append(str(outcome))
        else:
            seen.tables_changed.append(line)


def _table_changes(
    cluster: ScyllaCluster, lake: Lake, clock: Clock, table: LoggedTable, there: CdcTable | None, seen: Observation
) -> Iterator[tuple[TableChangeRequest, str]]:
    """Yield the changes to record for a table that has a log in the cluster, each with its line for the report."""
    name = f"{table.keyspace}.{table.name}"
    if table.unknown is not None:
        seen.warnings.append(f"{name}: {table.unknown}: its CDC counts as on")
    created_ms = table.created_at_ms
    same = there is not None and (
        created_ms is None
        or there.created_at_ms in (None, created_ms)
        or created_ms == registry.read_future_logs(cluster).get(name)
    )
    if not same and created_ms is not None and created_ms > clock.now_ms():
        # No time later than now is stored. That the stored time differs from the cluster's does not make it another
        # log.
        registry.store_future_log(cluster, name, created_ms)
        created_ms = clock.now_ms()
    if there is not None and not same:
        yield cdc_tables.request_drop(lake, clock, table.keyspace, table.name), f"{name} dropped"
        there = None
    ddl, existing_ddl = _readable_ddl(table, seen), None if there is None else without_unchanged_until(there.ddl)
    options: dict[str, Any] = {"ttl_seconds": table.ttl_seconds, "enabled": table.enabled, "ddl": ddl}
    if there is None:
        options |= {
            "created_at_ms": created_ms,
            "ttl_since_ms": _unaltered_since_ms(clock, table, created_ms),
            "observed": True,
        }
        yield cdc_tables.request_addition(lake, clock, table.keyspace, table.name, **options), f"{name} added"
        return
    if there.created_at_ms is None and created_ms is not None:
        options["created_at_ms"] = min(created_ms, clock.now_ms())
    elif (there.ttl_seconds, there.enabled, existing_ddl) == (table.ttl_seconds, table.enabled, ddl or existing_ddl):
        return
    # Each ingest observes the cluster before it reads on, so nothing was altered up to where it has read.
    read_us = _read_up_to_us(lake, table)
    options |= {"ddl": ddl if ddl is None or read_us is None else with_unchanged_until(ddl, read_us)}
    options |= {"unchanged_until_us": read_us, "observed": True}
    yield cdc_tables.request_alteration(lake, clock, table.keyspace, table.name, **options), f"{name} altered"


_ONE_STATEMENT_MS = SECOND_MS
"""A schema write at most this long after the log's creation belongs to the statement that created the log."""


def _unaltered_since_ms(clock: Clock, table: LoggedTable, created_ms: Milliseconds | None) -> Milliseconds | None:
    """Return since when (ms) a table's options are unchanged, by the last write of its schema; None if unknown."""
    noted = parse_alteration(table.ddl)
    if noted is None:
        return None
    since_ms = min(ceil_ms_from_us(noted.at_us), clock.now_ms())
    return created_ms if created_ms is not None and since_ms - created_ms <= _ONE_STATEMENT_MS else since_ms


def _read_up_to_us(lake: Lake, table: LoggedTable) -> Microseconds | None:
    """Return up to when (µs) a table's log was read from the cluster; None if it never was."""
    try:
        return consumers.find_consumer(lake, FROM_CLUSTER, table.keyspace, table.name).position_us
    except NotFound:
        return None


def _readable_ddl(table: LoggedTable, seen: Observation) -> str | None:
    """Return the definition if the platform's CQL parser understands it; otherwise warn and return None."""
    try:
        load_table_schemas(Catalog(), [table.to_change_request()])
    except StateError as error:
        seen.warnings.append(f"{table.keyspace}.{table.name}: its definition is left out, {error}")
        return None
    return table.ddl
