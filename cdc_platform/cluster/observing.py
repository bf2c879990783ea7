"""Takes what a live cluster holds into its home: nodes, tables with a log, generations and stream sets.

The same cluster again writes nothing. While its topology changes, which may take hours, its nodes are left as they
were, and the rest is taken in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from cdc_platform.clock import ONE_US, SECOND_MS, Clock, Microseconds, Milliseconds, ms_not_before, us_of
from cdc_platform.cluster import changes, generations, known, made_up, removed, tables
from cdc_platform.cluster.generations import LeftOut
from cdc_platform.cluster.glance import Glance, glance, last_mark, remember
from cdc_platform.cluster.known import KnownCluster
from cdc_platform.cluster.schemas import LoggedTable, read_logged_tables
from cdc_platform.cluster.session import LiveCluster, connected
from cdc_platform.cluster.tables import Layout, layout_of
from cdc_platform.cluster.tablets import read_stream_sets
from cdc_platform.cluster.topology import Topology, read_topology
from cdc_platform.cql.catalog import Catalog
from cdc_platform.errors import InputError, NotFound, StateError
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.looking import mirroring
from cdc_platform.lake.tables import (
    GENERATION_DESCRIPTIONS,
    GENERATION_DESCRIPTIONS_V2,
    STREAMS_DESCRIPTIONS,
    STREAMS_DESCRIPTIONS_V2,
)
from cdc_platform.log.ddl import known_tables
from cdc_platform.log.reading.reader import FROM_CLUSTER
from cdc_platform.records import cdc_local, cdc_tables, consumers, descriptions, left_out, removals, ring, tablet_rows
from cdc_platform.records.alterations import altered, as_before, as_looked_at
from cdc_platform.records.cdc_tables import Saying
from cdc_platform.records.cluster_changes import Noted
from cdc_platform.records.table_history import CdcTable
from cdc_platform.sources.cqlsh import Exports
from cdc_platform.sources.flaws import Flaws
from cdc_platform.sources.importing import ImportReport, ImportSources, import_sources
from cdc_platform.sources.topology_rows import TopologyExport


@dataclass
class Observation:
    """What was seen of a cluster, and what became of it. `tables_changed` are lines; `incomplete` was left out.

    `changing`: what goes on in a topology that is changing, whose nodes are as before; None: it has settled.
    `changes` are those that were noted. `lacking_ms` is the first generation that is listed and was left out,
    `lacking_sets_ms` of a table's stream sets.
    """

    cluster_name: str
    version: str
    imported: ImportReport = field(default_factory=ImportReport)
    tables_changed: list[str] = field(default_factory=list)
    incomplete: list[LeftOut] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    changing: str | None = None
    changes: list[Noted] = field(default_factory=list)
    lacking_ms: Milliseconds | None = None
    lacking_sets_ms: dict[str, Milliseconds] = field(default_factory=dict)

    def readable_us(self, table: str, horizon_us: Microseconds) -> Microseconds:
        """Up to when (µs) rows of a table (`keyspace.table`) may be read: no streams that are listed are lacking."""
        lacking = (self.lacking_ms, self.lacking_sets_ms.get(table))
        ends = [us_of(each) - ONE_US for each in lacking if each is not None]
        return Microseconds(min([horizon_us, *ends]))


def observe(cluster: KnownCluster, clock: Clock) -> Observation:
    """Look at a cluster once and take in what is new; answers with what was seen.

    Raises:
        EnvironmentProblem: it cannot be reached, or does not let us in.
        NotGranted: a table that tells of CDC may not be read.
        StateError: it is another cluster than before, or has no CDC; or its home publishes what it does not list.
        InputError: it says something else about a generation than it did before.
    """
    with connected(cluster.name, cluster.connection, known_nodes=cluster.node_addresses) as live:
        return look(live, cluster, clock)


def refresh(live: LiveCluster, cluster: KnownCluster, clock: Clock) -> Observation | None:
    """Observe a cluster that is connected to, where a glance says that anything changed; None where nothing did.

    Raises:
        As `observe`.
    """
    seen = _glance(live, cluster, clock)
    if seen.mark == last_mark(cluster):
        return None
    return look(live, cluster, clock, seen)


def look(live: LiveCluster, cluster: KnownCluster, clock: Clock, seen_before: Glance | None = None) -> Observation:
    """As `observe`, of a cluster that is connected to. `seen_before` is the glance that it was looked at for."""
    with mirroring():
        return _look(live, cluster, clock, seen_before)


def _glance(live: LiveCluster, cluster: KnownCluster, clock: Clock) -> Glance:
    """A glance, by which it is the cluster of before, and its home's generations and stream sets are its own."""
    home = cluster.open_home()
    lake = Lake(home.lake)
    here = made_up.published(lake, clock)
    seen = glance(live)
    known.assert_same(cluster, seen.identity, seen.times_ms)
    made_up.assert_none(cluster.name, here, seen, lambda: removed.may_be_gone(lake, clock, home.settings))
    return seen


def _look(live: LiveCluster, cluster: KnownCluster, clock: Clock, seen_before: Glance | None) -> Observation:
    lake = Lake(cluster.open_home().lake)
    first = _glance(live, cluster, clock) if seen_before is None else seen_before
    layout = layout_of(live)
    layout.assert_readable()
    topology = read_topology(live, layout, {node.host_id: node for node in ring.members(lake)})
    known.assert_same(cluster, topology.identity)
    _assert_has_cdc(live, layout, topology)
    times = generations.read_timestamps(live, layout)
    known.assert_same(cluster, topology.identity, list(times))
    found = generations.read_generations(live, layout, topology, times, _known(lake))
    sets, without, lacking = read_stream_sets(live, layout, _known_sets(lake))
    logged = read_logged_tables(live, layout)
    not_whole = [*found.incomplete, *without]
    seen = Observation(topology.cluster_name, topology.version, incomplete=not_whole, changing=topology.changing)
    seen.lacking_ms = min(set(times) - set(found.timestamps), default=None)
    seen.lacking_sets_ms = {".".join(name): time_ms for name, time_ms in lacking.items()}
    held = frozenset(name.rpartition(".")[2] for name in layout.present)
    known_there = TopologyExport(committed=_committed(topology, found))
    exports = Exports(found.descriptions, found.streams, found.timestamps, found.v1, sets, held, known_there)
    changes.begin(lake, clock)
    _note_tables(cluster, lake, clock, logged, seen)
    # It is the cluster itself that says so, and the next look may find it mended.
    sources = ImportSources(list(topology.nodes) or None, exports, None, [], flaws=Flaws(as_is=True, marks=False))
    seen.imported = import_sources(lake, clock, sources)
    refused = removed.follow(lake, clock, cluster.open_home().settings, times) if tables.TIMESTAMPS in layout else None
    left_out.keep(lake, clock, [each.line for each in not_whole])
    seen.warnings += [*seen.imported.warnings, *seen.imported.flaws, *([refused] if refused else [])]
    newest = max(found.timestamps, default=None)
    known.remember(cluster, topology.identity.model_copy(update={"newest_ms": newest}))
    seen.changes = changes.note(lake, clock, not_whole, topology.changing, found.not_read)
    # What is changing by the glance too has another mark when it has settled.
    if not not_whole and (topology.changing is None or first.changing is not None):
        remember(cluster, first)
    return seen


def _committed(topology: Topology, found: generations.Generations) -> dict[Milliseconds, str]:
    """The UUIDs of the generations that nodes know and clients cannot read yet, by their times (ms).

    Readers wait at the start of such a generation: its rows lie in its own streams from then on. Without Raft each
    node's `cdc_local` names the newest generation that it knows.
    """
    by_nodes = {
        row.streams_timestamp_ms: row.uuid
        for row in found.v1.local
        if row.key == cdc_local.GENERATION and row.streams_timestamp_ms is not None and row.uuid is not None
    }
    known_there = by_nodes | {time_ms: str(id_) for time_ms, id_ in topology.committed}
    return {time_ms: id_ for time_ms, id_ in known_there.items() if time_ms not in found.timestamps}


def _assert_has_cdc(live: LiveCluster, layout: Layout, topology: Topology) -> None:
    if not {tables.TIMESTAMPS, tables.STREAMS_V1, tables.TABLET_TIMESTAMPS} & layout.present:
        raise StateError(
            f"{live.name} is version {topology.version} and has no table of CDC generations; ScyllaDB has them from "
            "4.3 on"
        )


def _known(lake: Lake) -> generations.Known:
    ids = lake.read(GENERATION_DESCRIPTIONS_V2, ["id"])["id"].unique().to_pylist()
    # Of a generation that has gone from the list rows may be left elsewhere: they would bring half of it back.
    gone = removals.gone(lake)
    times = {each.time_ms for each in gone}
    return generations.Known(
        descriptions.row_times(lake, STREAMS_DESCRIPTIONS_V2),
        {*ids, *(each.id for each in gone if each.id is not None)},
        descriptions.row_times(lake, GENERATION_DESCRIPTIONS) | times,
        descriptions.row_times(lake, STREAMS_DESCRIPTIONS) | times,
    )


def _known_sets(lake: Lake) -> dict[tuple[str, str], set[Milliseconds]]:
    found: dict[tuple[str, str], set[Milliseconds]] = {}
    for name, time_ms in tablet_rows.listed_sets(lake) & tablet_rows.sets_with_rows(lake):
        found.setdefault(name, set()).add(time_ms)
    return found


def _note_tables(cluster: KnownCluster, lake: Lake, clock: Clock, logged: list[LoggedTable], seen: Observation) -> None:
    """Bring the home's tables with a log to what the cluster has: added, altered, dropped, made anew; by one commit.

    What is refused of a table is a warning, and keeps no other back.
    """
    # Who died behind a log's end and its new beginning has said both, and they are not to be said again.
    cdc_tables.complete(lake)
    there = {(table.keyspace_name, table.table_name): table for table in cdc_tables.cdc_tables(lake)}
    sayings: list[tuple[Saying, str]] = []
    for table in logged:
        try:
            for news in _news_of(cluster, lake, clock, table, there.get((table.keyspace, table.name)), seen):
                sayings.append(news)
        except InputError as refusal:
            seen.warnings.append(str(refusal))
    for gone in sorted(there.keys() - {(table.keyspace, table.name) for table in logged}):
        sayings.append((cdc_tables.ending(lake, clock, *gone), f"{'.'.join(gone)} dropped"))
    outcomes = cdc_tables.say_apart(lake, [saying for saying, _ in sayings])
    for outcome, (_, line) in zip(outcomes, sayings, strict=True):
        if isinstance(outcome, InputError):
            seen.warnings.append(str(outcome))
        else:
            seen.tables_changed.append(line)


def _news_of(
    cluster: KnownCluster, lake: Lake, clock: Clock, table: LoggedTable, there: CdcTable | None, seen: Observation
) -> Iterator[tuple[Saying, str]]:
    """What is to be said of a table that has a log in the cluster, each with the line that tells of it."""
    name = f"{table.keyspace}.{table.name}"
    if table.unknown is not None:
        seen.warnings.append(f"{name}: {table.unknown}: its CDC counts as on")
    created_ms = table.created_at_ms
    same = there is not None and (
        created_ms is None
        or there.created_at_ms in (None, created_ms)
        or created_ms == known.logs_ahead(cluster).get(name)
    )
    if not same and created_ms is not None and created_ms > clock.now_ms():
        # Nothing is kept as of later than now; that it is another time than the cluster's makes no other log of it.
        known.keep_log_ahead(cluster, name, created_ms)
        created_ms = clock.now_ms()
    if there is not None and not same:
        yield cdc_tables.ending(lake, clock, table.keyspace, table.name), f"{name} dropped"
        there = None
    ddl, told = _readable_ddl(table, seen), None if there is None else as_looked_at(there.ddl)
    options: dict[str, Any] = {"ttl_seconds": table.ttl_seconds, "enabled": table.enabled, "ddl": ddl}
    if there is None:
        options |= {
            "created_at_ms": created_ms,
            "ttl_since_ms": _unaltered_since_ms(clock, table, created_ms),
            "seen": True,
        }
        yield cdc_tables.addition(lake, clock, table.keyspace, table.name, **options), f"{name} added"
        return
    if there.created_at_ms is None and created_ms is not None:
        options["created_at_ms"] = min(created_ms, clock.now_ms())
    elif (there.ttl_seconds, there.enabled, told) == (table.ttl_seconds, table.enabled, ddl or told):
        return
    # Each ingest looks before it reads on: up to where it has read, nothing was altered.
    read_us = _read_up_to_us(lake, table)
    options |= {"ddl": ddl if ddl is None or read_us is None else as_before(ddl, read_us)}
    options |= {"stood_until_us": read_us, "seen": True}
    yield cdc_tables.alteration(lake, clock, table.keyspace, table.name, **options), f"{name} altered"


_ONE_STATEMENT_MS = SECOND_MS
"""A table that was written to the schema no later than this after its log was created was written by that statement."""


def _unaltered_since_ms(clock: Clock, table: LoggedTable, created_ms: Milliseconds | None) -> Milliseconds | None:
    """Since when (ms) the options of a table are as they are, by the time at which its schema was written last."""
    noted = altered(table.ddl)
    if noted is None:
        return None
    since_ms = min(ms_not_before(noted.at_us), clock.now_ms())
    return created_ms if created_ms is not None and since_ms - created_ms <= _ONE_STATEMENT_MS else since_ms


def _read_up_to_us(lake: Lake, table: LoggedTable) -> Microseconds | None:
    """Up to when (µs) the log of a table was read from the cluster; None where it was not."""
    try:
        return consumers.find(lake, FROM_CLUSTER, table.keyspace, table.name).position_us
    except NotFound:
        return None


def _readable_ddl(table: LoggedTable, seen: Observation) -> str | None:
    """The definition, if the platform's own CQL understands it."""
    try:
        known_tables(Catalog(), [table.as_told()])
    except StateError as error:
        seen.warnings.append(f"{table.keyspace}.{table.name}: its definition is left out, {error}")
        return None
    return table.ddl
