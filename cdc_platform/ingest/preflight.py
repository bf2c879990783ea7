"""Check what of a cluster can be reached and read, each with a result or a remedy. Nothing is written anywhere."""

from __future__ import annotations

from collections.abc import Iterator

from cdc_platform.cdclog import load_table_schemas
from cdc_platform.clock import SECOND_MS, ms_from_us, system_time_us
from cdc_platform.cql import Catalog, quote_name
from cdc_platform.delta import Lake
from cdc_platform.errors import PlatformError, StateError
from cdc_platform.ingest.policy import describe_unnamed_datacenter
from cdc_platform.ingest.replica.snapshot import base_name, token
from cdc_platform.ingest.replica.tables import is_replicated
from cdc_platform.preflight import PreflightResult
from cdc_platform.ring import Node
from cdc_platform.scylla import (
    AvailableTables,
    ClusterMember,
    Connection,
    LoggedTable,
    NotGranted,
    ScyllaCluster,
    ScyllaSession,
    create_tls_context,
    created_ms_from_id,
    detect_tables,
    open_session,
    probe_node,
    read_logged_tables,
    read_topology,
    registry,
    require_row,
    system_tables,
)

CLOCK_TOLERANCE_MS = SECOND_MS
"""How far a node's clock may be off before it is reported; CDC rejects writes 5 s ahead."""
_EITHER = (
    ("published generations", (system_tables.TIMESTAMPS, system_tables.STREAMS_V2)),
    ("descriptions", (system_tables.DESCRIPTIONS_V2, system_tables.DESCRIPTIONS_V3, system_tables.DESCRIPTIONS_V1)),
    ("V1 tables", (system_tables.STREAMS_V1,)),
    ("cdc_local of the nodes", (system_tables.LOCAL,)),
    ("stream sets of tablets", (system_tables.TABLET_TIMESTAMPS, system_tables.TABLET_STREAMS)),
)


def examine(cluster: ScyllaCluster) -> list[PreflightResult]:
    """Try everything that an observation needs; leave out what cannot be tried because of an earlier failure."""
    findings = list(_contacts(cluster.connection))
    if not any(finding.ok for finding in findings):
        known_nodes = list(_known_nodes(cluster))
        findings += known_nodes
        if not any(finding.ok for finding in known_nodes):
            return findings
    try:
        with open_session(cluster.name, cluster.connection, known_nodes=cluster.node_addresses) as live:
            findings.append(
                PreflightResult(
                    "login",
                    True,
                    f"{'without a user' if live.role is None else f'as {live.role}'}, {len(live.members)} nodes",
                )
            )
            findings += _datacenters(live)
            findings += _inside(cluster, live)
    except PlatformError as error:
        findings.append(_failed("login", error))
    return findings


def _contacts(connection: Connection) -> Iterator[PreflightResult]:
    try:
        tls = create_tls_context(connection)
    except PlatformError as error:
        yield _failed("TLS", error)
        return
    for host, port in connection.endpoints:
        try:
            probe_node(host, port, tls, connection.connect_timeout)
        except PlatformError as error:
            yield _failed(f"contact {host}", error)
        else:
            yield PreflightResult(f"contact {host}", True, f"speaks CQL at port {port}{', with TLS' if tls else ''}")


def _known_nodes(cluster: ScyllaCluster) -> Iterator[PreflightResult]:
    """Try the nodes that were observed before, since no contact point answers; stop at the first that answers."""
    connection = cluster.connection
    try:
        tls = create_tls_context(connection)
    except PlatformError:
        return  # reported already
    for address in cluster.node_addresses():
        host, port = connection.endpoint(address)
        if (host, port) in connection.endpoints:
            continue
        try:
            probe_node(host, port, tls, connection.connect_timeout)
        except PlatformError as error:
            yield _failed(f"known node {address}", error)
        else:
            yield PreflightResult(
                f"known node {address}",
                True,
                f"speaks CQL at port {port}; used instead of the contact points",
            )
            return


def _datacenters(live: ScyllaSession) -> Iterator[PreflightResult]:
    """Report where and at which consistency rows are read, if the cluster has several datacenters."""
    if len(live.datacenters) > 1:
        unnamed = describe_unnamed_datacenter(live)
        local = "which reads stay in" if live.connection.stays_local else "which is asked first"
        named = f"{', '.join(live.datacenters)}; local is {live.connection.datacenter}, {local}"
        message = f"{named}, at {live.log_consistency}" if unnamed is None else unnamed.partition("; ")[0]
        yield PreflightResult("datacenters", True, message, None if unnamed is None else unnamed.partition("; ")[2])


def _inside(cluster: ScyllaCluster, live: ScyllaSession) -> Iterator[PreflightResult]:
    for member in live.members:
        yield from _node(live, member)
    layout = detect_tables(live)
    try:
        topology = read_topology(live, layout, {})
    except PlatformError as error:
        yield _failed("topology", error)
    else:
        changing = f"changing ({topology.changing}), its nodes are imported once it has settled"
        counts = changing if topology.changing else _counted(topology.nodes)
        yield PreflightResult("topology", True, f"{topology.cluster_name}, version {topology.version}, {counts}")
        yield _same(cluster, topology.identity)
    yield from _tables(layout)
    yield from _logs(cluster, live, layout)


def _node(live: ScyllaSession, member: ClusterMember) -> Iterator[PreflightResult]:
    """Check whether a node answers, which sharding it reports, and how far its clock is off."""
    check = f"node {member.address}"
    try:
        options = live.read_node_options(member.address)
        before = ms_from_us(system_time_us())
        rows = live.select("system.local", "now() AS now", "WHERE key = 'local'", at=member.address)
        after = ms_from_us(system_time_us())
    except PlatformError as error:
        yield _failed(check, error)
        return
    shards = "reports no shards" if options.shards is None else f"{options.shards} shards"
    yield PreflightResult(check, True, f"{member.datacenter}, {shards}, ignore_msb {options.ignore_msb}")
    now = created_ms_from_id(require_row(rows, "system.local")["now"]) or 0
    # The node's clock was read between the two readings of ours.
    off = now - before if now < before else max(0, now - after)
    ok = abs(off) <= CLOCK_TOLERANCE_MS
    remedy = None if ok else "synchronize it with NTP: CDC rejects writes that are 5 s ahead of the node's clock"
    yield PreflightResult(f"clock of {member.address}", ok, f"{off:+d} ms against this machine", remedy)


def _same(cluster: ScyllaCluster, seen: registry.ClusterIdentity) -> PreflightResult:
    try:
        registry.assert_same_cluster(cluster, seen)
    except PlatformError as error:
        return _failed("identity", error)
    return PreflightResult("identity", True, "as observed before" if cluster.identity else "not observed before")


def _tables(layout: AvailableTables) -> Iterator[PreflightResult]:
    for what, names in _EITHER:
        refused = [layout.refused[name] for name in names if name in layout.refused]
        if refused:
            yield PreflightResult(what, False, "may not be read", " ".join(f"{refusal.grant};" for refusal in refused))
        present = [name for name in names if name in layout]
        if present and not refused:
            yield PreflightResult(what, True, ", ".join(present))
    reported = {name for _, names in _EITHER for name in names}
    for table, refusal in layout.refused.items():
        if table not in reported:
            yield PreflightResult(table, False, "may not be read", f"{refusal.grant};")
    if not {system_tables.TIMESTAMPS, system_tables.STREAMS_V1, system_tables.TABLET_TIMESTAMPS} & {
        *layout.present,
        *layout.refused,
    }:
        yield PreflightResult(
            "generations", False, "this version has none", "ScyllaDB has them from 4.3 on: upgrade it"
        )


def _logs(cluster: ScyllaCluster, live: ScyllaSession, layout: AvailableTables) -> Iterator[PreflightResult]:
    """Check whether each log may be read. A key that is no stream ID has no rows, so the query costs nothing."""
    logged = read_logged_tables(live, layout)
    if not logged:
        yield PreflightResult("logs", True, "no table has one")
    lake = Lake(cluster.open_home().lake)
    for table in logged:
        yield from _base(lake, live, table)
        name = f"{quote_name(table.keyspace)}.{quote_name(table.name + '_scylla_cdc_log')}"
        state = f"TTL {table.ttl_seconds} s, CDC {'on' if table.enabled else 'off'}"
        try:
            live.select(name, '"cdc$time"', 'WHERE "cdc$stream_id" = 0x00')
            yield PreflightResult(f"log of {table.keyspace}.{table.name}", True, state)
        except NotGranted as refusal:
            yield PreflightResult(
                f"log of {table.keyspace}.{table.name}", False, "may not be read", f"{refusal.grant};"
            )
        except PlatformError as error:
            yield _failed(f"log of {table.keyspace}.{table.name}", error)


def _base(lake: Lake, live: ScyllaSession, table: LoggedTable) -> Iterator[PreflightResult]:
    """Check whether a replicated base table may be read; for others, report only what `ingest --current` would need."""
    table_record = table.to_change_request()
    try:
        (schema,) = load_table_schemas(Catalog(), [table_record])
    except StateError:
        return  # the observation reports a definition that is not understood
    check, needed = f"table {table_record.full_name}", is_replicated(lake, schema)
    name = base_name(schema)
    try:
        live.select(name, quote_name(schema.partition_key[0].name), f"WHERE {token(schema)} = 0")
    except NotGranted as refusal:
        detail = "may not be read, and is replicated" if needed else "may not be read (only ingest --current needs it)"
        yield PreflightResult(check, not needed, detail, f"{refusal.grant};")
    except PlatformError as error:
        yield _failed(check, error)
    else:
        yield from [PreflightResult(check, True, "may be read, and is replicated")] if needed else []


def _counted(nodes: tuple[Node, ...]) -> str:
    return f"{len(nodes)} nodes with {sum(len(node.tokens) for node in nodes)} tokens"


def _failed(check: str, error: PlatformError) -> PreflightResult:
    what, _, remedy = str(error).partition("; ")
    return PreflightResult(check, False, what, remedy or "see the server's log")
