"""A session with a cluster: SELECT only, one request at a time, in pages, each with a time limit.

It holds one connection per node and the driver's control connection, or in a Spark task one connection to one node.
Numbered tasks spread over the nodes and turn to the next one if theirs fails. Only `export` uses the driver's
session to write.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from uuid import UUID

from cassandra import ConsistencyLevel
from cassandra.auth import AuthProvider, PlainTextAuthenticator
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable
from cassandra.cluster import Session as DriverSession
from cassandra.connection import DefaultEndPoint, DefaultEndPointFactory
from cassandra.policies import (
    DCAwareRoundRobinPolicy,
    ExponentialReconnectionPolicy,
    FallthroughRetryPolicy,
    HostDistance,
    RoundRobinPolicy,
)
from cassandra.pool import Host
from cassandra.query import BoundStatement, SimpleStatement, Statement, dict_factory
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from cdc_platform.errors import InputError, PlatformError, StateError
from cdc_platform.scylla.connection import (
    Connection,
    Credentials,
    create_tls_context,
    format_contact,
    resolve_credentials,
)
from cdc_platform.scylla.errors import DRIVER_ERRORS, Refused, Unreachable, translate_error
from cdc_platform.scylla.handshake import NodeOptions, probe_node
from cdc_platform.scylla.rate import ReadMeter
from cdc_platform.scylla.raw_pages import RawPage, RawProtocol, build_raw_pages, iter_pages


class _NodeEndPoint(DefaultEndPoint):
    """The host and port at which this client reaches a node, and the node's address in the cluster's own tables."""

    def __init__(self, node: str, host: str, port: int) -> None:
        super().__init__(host, port)
        self.node = node


def _node_address(host: Host) -> str:
    """Return a node's address in the cluster's own tables; a node that was just added has it in its endpoint alone."""
    return str(host.broadcast_rpc_address or getattr(host.endpoint, "node", host.address))


class _CurrentCredentials(AuthProvider):
    """Reads user and password again for each connection, since they may have changed while the session was open."""

    def __init__(self, connection: Connection, secret: Credentials) -> None:
        self._connection, self._secret = connection, secret

    def new_authenticator(self, host: str) -> PlainTextAuthenticator:
        """Return an authenticator with the present secret; with the last one while it cannot be read."""
        with suppress(PlatformError):
            self._secret = resolve_credentials(self._connection) or self._secret
        return PlainTextAuthenticator(self._secret.user, self._secret.password)


class _NodeEndPoints(DefaultEndPointFactory):
    """Maps the address that a node has in the cluster's tables to the one, and the port, that this client uses."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection.port)
        self._connection = connection

    def create(self, row: Any) -> DefaultEndPoint:
        """Return where to connect to the node that a row of `system.local` or `system.peers` describes."""
        node = str(super().create(row).address)
        return _NodeEndPoint(node, *self._connection.endpoint(node))


class SingleNodePolicy(RoundRobinPolicy):
    """Restricts the driver to one node, in the local datacenter if one is configured and has live nodes.

    With `stays_local` it never chooses a node of another datacenter.
    """

    def __init__(self, number: int, datacenter: str | None, *, stays_local: bool = False) -> None:
        super().__init__()
        self._number, self._datacenter, self._stays_local = number, datacenter, stays_local
        self._cluster: Any = None

    def populate(self, cluster: Any, hosts: Iterable[Host]) -> None:
        """Accept the nodes, which the driver has from a contact point."""
        self._cluster = cluster
        super().populate(cluster, hosts)

    def distance(self, host: Host) -> Any:
        """Ignore all nodes but the chosen one, so that the driver opens no connection to them."""
        return HostDistance.LOCAL if host == self.chosen else HostDistance.IGNORED

    def make_query_plan(self, working_keyspace: str | None = None, query: Any = None) -> list[Host]:
        """Return the chosen node, then the others.

        The others have no connection, but the driver reads the node list from one of them.
        """
        return self._in_order()

    @property
    def chosen(self) -> Host | None:
        """Return the chosen node; None if no node is up, or none of the datacenter that reads may not leave."""
        hosts = self._in_order()
        if self._stays_local:
            hosts = [host for host in hosts if host.datacenter == self._datacenter]
        return next(iter(hosts), None)

    def leave(self, address: str | None) -> None:
        """Choose the next node, if this one is the current choice; None always chooses the next."""
        chosen = self.chosen
        if address is None or (chosen is not None and _node_address(chosen) == address):
            self._number += 1

    def _in_order(self) -> list[Host]:
        known = [] if self._cluster is None else self._cluster.metadata.all_hosts()
        hosts = sorted(known, key=_node_address)
        if not hosts:
            return []
        near = [host for host in hosts if self._datacenter in (None, host.datacenter)] or hosts
        first = self._number % len(near)
        ordered = [*near[first:], *near[:first], *(host for host in hosts if host not in near)]
        return [host for host in ordered if host in self._live_hosts]


READ_ATTEMPTS = 3
"""How often to try a read that hits a slow or dead node."""
_PROTOCOL = 4
_EVERY_NODE = 1_000_000
_RAW_PROFILE = "raw"
_POLL_SECONDS = 0.02
_SILENT_SECONDS = 5.0
"""How long to wait for a node's first connection before sending the request anyway."""

CqlRow = dict[str, Any]


@dataclass(frozen=True)
class ClusterMember:
    """A node as the cluster's own tables name it. A node that is not known to be up need not be down."""

    address: str
    host_id: UUID | None
    datacenter: str
    is_up: bool
    is_down: bool = False


def retry_unreachable() -> Retrying:
    """Return the retry policy for reads that hit a slow or dead node."""
    return Retrying(
        retry=retry_if_exception_type(Unreachable),
        stop=stop_after_attempt(READ_ATTEMPTS),
        wait=wait_random_exponential(multiplier=0.1, max=2),
        reraise=True,
    )


class ScyllaSession:
    """A session with a cluster, created by `open_session`.

    `connection` has the contact points that answered. `role` is None if no user is configured.
    """

    def __init__(
        self,
        name: str,
        connection: Connection,
        cluster: Cluster,
        session: DriverSession,
        contact: Host,
        role: str | None,
        one: SingleNodePolicy | None,
    ) -> None:
        self.name = name
        self.connection = connection
        self.role = role
        self._cluster, self._session = cluster, session
        self._contact, self._one = contact, one
        self.meter = ReadMeter(connection.rows_per_second, connection.requests_per_second)
        """Counts the rows that `send_request` reads, and holds their rate."""
        self._prepared: dict[str, Any] = {}
        self._awaited: set[str] = set()

    @property
    def _hosts(self) -> dict[str, Host]:
        """Return the nodes by address, as the driver knows them now: a cluster may grow during a session."""
        metadata = self._cluster.metadata
        return {_node_address(host): host for host in (metadata.all_hosts() if metadata else ())}

    @property
    def contact(self) -> str:
        """Return the address of the node to read cluster-wide state from."""
        if self._one is None:
            self._contact = self._cluster.get_control_connection_host() or self._contact
        return _node_address(self._contact)

    @property
    def node(self) -> str | None:
        """Return the address of the only node to read rows from; None if any node may serve them."""
        chosen = None if self._one is None else self._one.chosen
        return None if chosen is None else _node_address(chosen)

    def leave(self, node: str | None) -> None:
        """Switch to the next node if the failed one is still the current single node, and wait for a connection."""
        if self._one is None:
            return
        self._one.leave(node)
        self._session.update_created_pools()
        _wait_until(lambda: self._is_open(self.node), self.connection.connect_timeout)

    def _await_first_connection(self, host: Host) -> None:
        """Wait, once per session and node, for a connection to the node; the driver only waits for one to any node.

        Do not wait for a node that is known to be down, and only briefly for a silent one.
        """
        address = _node_address(host)
        if self._one is not None or address in self._awaited:
            return
        self._awaited.add(address)
        _wait_until(
            lambda: host.is_up is False or self._is_open(address), min(self.connection.connect_timeout, _SILENT_SECONDS)
        )

    def _is_open(self, address: str | None) -> bool:
        """Return True if a connection to a node is open."""
        state = self._session.get_pool_state()
        pool = {_node_address(host): pool_state for host, pool_state in state.items()}.get(address or "")
        return pool is not None and not pool["shutdown"] and pool["open_count"] > 0

    @property
    def members(self) -> list[ClusterMember]:
        """Return the nodes, by address."""
        return [
            ClusterMember(address, host.host_id, host.datacenter or "", bool(host.is_up), host.is_up is False)
            for address, host in sorted(self._hosts.items())
        ]

    @cached_property
    def is_scylla(self) -> bool:
        """Return True if the contact reports its shards, as ScyllaDB does; only ScyllaDB supports BYPASS CACHE."""
        return self.read_node_options(self.contact).shards is not None

    @property
    def driver(self) -> DriverSession:
        """Return the driver's session, which accepts every statement; only `export` uses it."""
        return self._session

    @property
    def consistency(self) -> int:
        """Return the level for metadata reads: ONE in a cluster of one node, else QUORUM, as the server writes it."""
        return ConsistencyLevel.ONE if len(self._hosts) == 1 else ConsistencyLevel.QUORUM

    @property
    def datacenters(self) -> list[str]:
        """Return the names of the datacenters, sorted."""
        return sorted({member.datacenter for member in self.members})

    @property
    def log_consistency(self) -> str:
        """Return the level at which rows are read: the connection's, else LOCAL_QUORUM.

        It is QUORUM if no datacenter is named and there are several: requests go to all of them then, and LOCAL_QUORUM
        would be that of another one each time.
        """
        several = self.connection.datacenter is None and len(self.datacenters) > 1
        return self.connection.consistency or ("QUORUM" if several else "LOCAL_QUORUM")

    def select(
        self,
        table: str,
        columns: str,
        where: str = "",
        values: Sequence[object] = (),
        *,
        at: str | None = None,
    ) -> list[CqlRow]:
        """Return the rows of `SELECT columns FROM table where`, read page by page.

        With `at` the query goes to the node of that address, at ONE, since node-local tables differ by node. Without it
        the query goes to any node at `consistency`. A read that hits a slow or dead node is tried three times in all.

        Raises:
            NoTable, NotGranted, Refused, Unreachable: the cluster returned an error, or has no such node.
        """
        level = self.consistency if at is None else ConsistencyLevel.ONE
        statement = SimpleStatement(
            f"SELECT {columns} FROM {table} {where}".strip(),
            consistency_level=level,
            fetch_size=self.connection.page_rows,
            is_idempotent=True,
        )
        host = None if at is None else self._hosts.get(at)
        if at is not None and host is None:
            raise Unreachable(f"{at} is no longer a node of {self.name}")
        if host is not None:
            self._await_first_connection(host)
        where_asked = self.name if at is None else f"{self.name}, node {at}"
        return retry_unreachable()(self._read, statement, tuple(values), host, where_asked, table)

    def send_request(
        self,
        table: str,
        statement: str,
        page_rows: int,
        values: Sequence[bytes] | None = None,
        *,
        paging_state: bytes | None = None,
    ) -> Callable[[], Iterator[RawPage]]:
        """Send a SELECT on a table's rows at `log_consistency`; return a function that yields its pages.

        The function serves one attempt. The cluster works on the request meanwhile, so several requests can be in
        flight. `values` are the bytes for the statement's question marks. With `paging_state` only the pages from there
        on are read.

        Raises:
            NoTable, NotGranted, Refused, Unreachable: as pages are fetched, if the cluster returned an error.
        """
        self.meter.await_request()
        bound = self._statement(table, statement, self.meter.limit_page(page_rows), values)
        # A future takes the session's protocol when it is created; one thread creates them all.
        usual = self._session.client_protocol_handler
        self._session.client_protocol_handler = RawProtocol  # pyrefly: ignore[bad-assignment]
        try:
            future = self._session.execute_async(bound, execution_profile=_RAW_PROFILE, paging_state=paging_state)
        except DRIVER_ERRORS as error:
            raise self._row_error(error, table) from None
        finally:
            self._session.client_protocol_handler = usual

        rules = self.connection.column_rules

        def pages() -> Iterator[RawPage]:
            try:
                for page in iter_pages(future, self.meter):
                    yield rules.apply(table, page)
            except DRIVER_ERRORS as error:
                raise self._row_error(error, table) from None

        return pages

    def _row_error(self, error: BaseException, table: str) -> PlatformError:
        """Return the error of a read of rows, which may not leave the local datacenter."""
        near = self.connection.datacenter
        if self.connection.stays_local and not any(
            member.is_up for member in self.members if member.datacenter == near
        ):
            return Unreachable(
                f"{self.name}: no node of datacenter {near} is up, and reads at {self.log_consistency} stay in it; "
                "start one, or read from every datacenter with: --consistency QUORUM"
            )
        return translate_error(error, self.name, table, self.role)

    def _statement(self, table: str, text: str, page_rows: int, values: Sequence[bytes] | None) -> Statement:
        level = getattr(ConsistencyLevel, self.log_consistency)
        if not text.startswith("SELECT "):
            raise AssertionError(f"a cluster is asked by SELECT alone, not by {text[:60]}")
        if values is None:
            return SimpleStatement(text, consistency_level=level, fetch_size=page_rows, is_idempotent=True)
        if text not in self._prepared:
            try:
                self._prepared[text] = self._session.prepare(text)
            except DRIVER_ERRORS as error:
                raise translate_error(error, self.name, table, self.role) from None
            # With this metadata the server would omit the columns' names, and the driver would read them with their
            # types.
            self._prepared[text].update_result_metadata(None, None)
        bound = BoundStatement(self._prepared[text], consistency_level=level, fetch_size=page_rows)
        bound.values, bound.is_idempotent = list(values), True
        return bound

    def read_node_options(self, address: str) -> NodeOptions:
        """Return the options that a node supports, over a short connection of its own.

        Raises:
            Unreachable, Refused: it did not answer.
        """
        connection = self.connection
        return probe_node(*connection.endpoint(address), create_tls_context(connection), connection.connect_timeout)

    def _read(
        self, statement: SimpleStatement, values: tuple[object, ...], host: Host | None, where: str, table: str
    ) -> list[CqlRow]:
        try:
            return list(self._session.execute(statement, values or None, host=host))
        except DRIVER_ERRORS as error:
            raise translate_error(error, where, table, self.role) from None


def _wait_until(happens: Callable[[], bool], seconds: float) -> None:
    """Wait until a condition holds, at most for this time (s)."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not happens():
        time.sleep(_POLL_SECONDS)


@contextmanager
def open_session(
    name: str,
    connection: Connection,
    one_node: int | None = None,
    known_nodes: Callable[[], Sequence[str]] = lambda: (),
) -> Iterator[ScyllaSession]:
    """Open a session with the cluster `name`, and close it when the block exits.

    With the number `one_node` the session has one connection, to the node that the number selects; that suffices for
    `send_request`. If no contact point is reachable, the addresses of `known_nodes` are tried in order.

    Raises:
        EnvironmentProblem: no contact point and no known node is reachable, or all reject the login.
        InputError: the peer is no CQL server.
        StateError: the cluster has no such local datacenter.
    """
    secret = resolve_credentials(connection)
    reachable, connection = _reachable_contacts(connection, known_nodes)
    # The driver logs each failure that it also raises, with stack traces; the caller reports what is raised, once.
    logging.getLogger("cassandra").setLevel(logging.CRITICAL)
    one = None
    if one_node is not None:
        one = SingleNodePolicy(one_node, connection.datacenter, stays_local=connection.stays_local)
    try:
        driver, session = _connect(name, connection, reachable, one, secret)
    except Refused:
        # The secret may have been replaced since it was read.
        before, secret = secret, resolve_credentials(connection)
        if secret == before:
            raise
        driver, session = _connect(name, connection, reachable, one, secret)
    role = None if secret is None else secret.user
    try:
        contact = driver.get_control_connection_host()
        if contact is None:
            raise Unreachable(f"{name}: the connection was lost immediately; try again")
        live = ScyllaSession(name, connection, driver, session, contact, role, one)
        _check_datacenter(live)
        if one is not None and driver.control_connection is not None:
            # It has delivered the node list; the connection to a node itself detects the node's loss.
            driver.control_connection.shutdown()
        yield live
    finally:
        _close(driver)


def _connect(
    name: str,
    connection: Connection,
    reachable: Sequence[tuple[str, int]],
    one: SingleNodePolicy | None,
    secret: Credentials | None,
) -> tuple[Cluster, DriverSession]:
    """Return the driver's objects, connected to the cluster.

    Raises:
        Refused: the cluster rejects the login.
        Unreachable: no node accepts a connection.
    """
    driver = Cluster(
        reachable,
        port=connection.port,
        endpoint_factory=_NodeEndPoints(connection),
        auth_provider=None if secret is None else _CurrentCredentials(connection, secret),
        ssl_context=create_tls_context(connection),
        protocol_version=_PROTOCOL,
        compression=False,
        schema_metadata_enabled=False,
        token_metadata_enabled=False,
        shard_aware_options={"disable": True},
        connect_timeout=connection.connect_timeout,  # seconds, fractions allowed
        control_connection_timeout=connection.request_timeout,
        reconnection_policy=ExponentialReconnectionPolicy(1, 60, None),
        executor_threads=2,
        driver_config_reporting_enabled=False,
        execution_profiles={
            EXEC_PROFILE_DEFAULT: _profile(connection, one, dict_factory, stays_local=False),
            _RAW_PROFILE: _profile(connection, one, build_raw_pages, stays_local=connection.stays_local),
        },
    )
    try:
        return driver, _open_driver_session(driver, one)
    except DRIVER_ERRORS as error:
        _close(driver)
        raise translate_error(error, name, "system.local", None if secret is None else secret.user) from None
    except BaseException:
        _close(driver)
        raise


def _close(driver: Cluster) -> None:
    driver.shutdown()
    # The driver waits for pools that it was connecting meanwhile, and leaves them open.
    for ended in tuple(driver.sessions or ()):
        for pool in tuple(ended.get_pools()):
            pool.shutdown()


def _open_driver_session(driver: Cluster, one: SingleNodePolicy | None) -> DriverSession:
    """Return the driver's session; if the single node accepts no connection, try the next one."""
    failed = 0
    while True:
        try:
            return driver.connect()
        except NoHostAvailable:
            failed += 1
            hosts = driver.metadata.all_hosts() if driver.metadata else []
            if one is None or driver.is_shutdown or failed >= len(hosts):
                raise
            one.leave(None)


def _profile(
    connection: Connection, one: SingleNodePolicy | None, row_factory: Callable[..., Any], *, stays_local: bool
) -> ExecutionProfile:
    balancing = one or (
        RoundRobinPolicy()
        if connection.datacenter is None
        # Connect to every node, even remote ones: node-local tables are read from each.
        else DCAwareRoundRobinPolicy(connection.datacenter, used_hosts_per_remote_dc=0 if stays_local else _EVERY_NODE)
    )
    return ExecutionProfile(
        load_balancing_policy=balancing,
        retry_policy=FallthroughRetryPolicy(),
        request_timeout=connection.request_timeout,
        row_factory=row_factory,
    )


def _reachable_contacts(
    connection: Connection, known_nodes: Callable[[], Sequence[str]]
) -> tuple[list[tuple[str, int]], Connection]:
    """Return the (host, port) that answer, and a connection that leads to them; tasks on other machines use it."""
    try:
        return _first_contacts(connection), connection
    except Unreachable as refusal:
        for address in known_nodes():
            endpoint = connection.endpoint(address)
            if endpoint in connection.endpoints:
                continue
            other = connection.model_copy(update={"contacts": (format_contact(*endpoint),)})
            try:
                return _first_contacts(other), other
            except PlatformError:
                continue
        raise refusal from None


def _first_contacts(connection: Connection) -> list[tuple[str, int]]:
    """Return the contact points where a CQL server answers; the driver's single error would hide each failure."""
    tls = create_tls_context(connection)
    reachable: list[tuple[str, int]] = []
    failures: list[PlatformError] = []
    for host, port in connection.endpoints:
        try:
            probe_node(host, port, tls, connection.connect_timeout)
            reachable.append((host, port))
        except PlatformError as error:
            failures.append(error)
    if not reachable:
        more = f" (and {len(failures) - 1} other contact points failed)" if len(failures) > 1 else ""
        raise type(failures[0])(f"{failures[0]}{more}")
    return reachable


def _check_datacenter(live: ScyllaSession) -> None:
    wanted = live.connection.datacenter
    known = live.datacenters
    if wanted is not None and wanted not in known:
        raise StateError(
            f"{live.name} has no datacenter {wanted}, but {', '.join(known)}; add the cluster again with one of them "
            "as --datacenter"
        )


def require_row(rows: Sequence[CqlRow], what: str) -> CqlRow:
    """Return the single row that a table must have.

    Raises:
        InputError: the table has none.
    """
    if not rows:
        raise InputError(f"{what} has no row, which every running server has; is a proxy in between?")
    return rows[0]
