"""A session with a cluster: SELECT only, one request at a time, in pages, each with a time limit.

It holds one connection per node and the driver's control connection, or in a Spark task one connection to one node.
Numbered tasks spread over the nodes and turn to the next one if theirs fails. Only `export` uses the driver's
session to write.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from uuid import UUID

from cassandra import ConsistencyLevel
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable
from cassandra.cluster import Session as DriverSession
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
from cdc_platform.scylla.connection import Connection, create_tls_context, format_contact, resolve_credentials
from cdc_platform.scylla.errors import DRIVER_ERRORS, Unreachable, translate_error
from cdc_platform.scylla.handshake import NodeOptions, probe_node
from cdc_platform.scylla.raw_pages import RawPage, RawProtocol, build_raw_pages, iter_pages


class SingleNodePolicy(RoundRobinPolicy):
    """Lets the driver connect to one node; in the local datacenter, where one is named and has nodes that are up."""

    def __init__(self, number: int, datacenter: str | None) -> None:
        super().__init__()
        self._number, self._datacenter = number, datacenter
        self._cluster: Any = None

    def populate(self, cluster: Any, hosts: Iterable[Host]) -> None:
        """Take the nodes, which the driver has from a contact point."""
        self._cluster = cluster
        super().populate(cluster, hosts)

    def distance(self, host: Host) -> Any:
        """To all others nothing is opened."""
        return HostDistance.LOCAL if host == self.chosen else HostDistance.IGNORED

    def make_query_plan(self, working_keyspace: str | None = None, query: Any = None) -> list[Host]:
        """The one, then the others: they have no connection, but the driver asks one of them who is there."""
        return self._in_order()

    @property
    def chosen(self) -> Host | None:
        """The node; None where none is up."""
        return next(iter(self._in_order()), None)

    def leave(self, address: str | None) -> None:
        """Let it be the next one's turn, if this is the node; None: whichever it is."""
        chosen = self.chosen
        if address is None or (chosen is not None and str(chosen.address) == address):
            self._number += 1

    def _in_order(self) -> list[Host]:
        known = [] if self._cluster is None else self._cluster.metadata.all_hosts()
        hosts = sorted(known, key=lambda host: str(host.address))
        if not hosts:
            return []
        near = [host for host in hosts if self._datacenter in (None, host.datacenter)] or hosts
        first = self._number % len(near)
        found = [*near[first:], *near[:first], *(host for host in hosts if host not in near)]
        return [host for host in found if host in self._live_hosts]


READ_ATTEMPTS = 3
"""How often a read is tried that ran into a node that is slow or down."""
_PROTOCOL = 4
_EVERY_NODE = 1_000_000
_RAW_PROFILE = "raw"
_POLL_SECONDS = 0.02
_SILENT_SECONDS = 5.0
"""How long a node may take to its first connection, before it is asked all the same."""

CqlRow = dict[str, Any]


@dataclass(frozen=True)
class ClusterMember:
    """A node as the cluster's own tables name it. One that is not known to be up need not be down."""

    address: str
    host_id: UUID | None
    datacenter: str
    is_up: bool
    is_down: bool = False


def retry_unreachable() -> Retrying:
    """How a read that ran into a slow or dead node is tried again."""
    return Retrying(
        retry=retry_if_exception_type(Unreachable),
        stop=stop_after_attempt(READ_ATTEMPTS),
        wait=wait_random_exponential(multiplier=0.1, max=2),
        reraise=True,
    )


class ScyllaSession:
    """A cluster that is connected to. Made by `open_session`.

    `connection` has the contact points that answered. `role` is None where no user is configured.
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
        self._prepared: dict[str, Any] = {}
        self._awaited: set[str] = set()

    @property
    def _hosts(self) -> dict[str, Host]:
        """The nodes by address, as the driver knows them now: a session may see a cluster grow."""
        metadata = self._cluster.metadata
        return {str(host.address): host for host in (metadata.all_hosts() if metadata else ())}

    @property
    def contact(self) -> str:
        """Address of the node that is asked what every node knows."""
        if self._one is None:
            self._contact = self._cluster.get_control_connection_host() or self._contact
        return str(self._contact.address)

    @property
    def node(self) -> str | None:
        """Address of the node that is asked for rows, where that is one alone; None: any is."""
        chosen = None if self._one is None else self._one.chosen
        return None if chosen is None else str(chosen.address)

    def leave(self, node: str | None) -> None:
        """Turn to the next node, if the one that is asked alone is still the one that failed; wait for a connection."""
        if self._one is None:
            return
        self._one.leave(node)
        self._session.update_created_pools()
        _wait_until(lambda: self._is_open(self.node), self.connection.connect_timeout)

    def _await_first_connection(self, host: Host) -> None:
        """Wait for one to a node that is asked by itself, once a session: the driver's is there with one to any.

        A node that is known to be down is not waited for, and one that stays silent not for long.
        """
        address = str(host.address)
        if self._one is not None or address in self._awaited:
            return
        self._awaited.add(address)
        _wait_until(
            lambda: host.is_up is False or self._is_open(address), min(self.connection.connect_timeout, _SILENT_SECONDS)
        )

    def _is_open(self, address: str | None) -> bool:
        """Whether a connection is open to a node."""
        state = self._session.get_pool_state()
        found = {str(host.address): each for host, each in state.items()}.get(address or "")
        return found is not None and not found["shutdown"] and found["open_count"] > 0

    @property
    def members(self) -> list[ClusterMember]:
        """The nodes, by address."""
        return [
            ClusterMember(address, host.host_id, host.datacenter or "", bool(host.is_up), host.is_up is False)
            for address, host in sorted(self._hosts.items())
        ]

    @cached_property
    def is_scylla(self) -> bool:
        """Whether the contact says of its shards, as ScyllaDB does: only it knows BYPASS CACHE."""
        return self.greeting(self.contact).shards is not None

    @property
    def driver(self) -> DriverSession:
        """The driver's session, which takes every statement: for `writing`."""
        return self._session

    @property
    def consistency(self) -> int:
        """What metadata is read at: ONE in a cluster of one node, else QUORUM, as the server writes it."""
        return ConsistencyLevel.ONE if len(self._hosts) == 1 else ConsistencyLevel.QUORUM

    def select(
        self,
        table: str,
        columns: str,
        where: str = "",
        values: Sequence[object] = (),
        *,
        at: str | None = None,
    ) -> list[CqlRow]:
        """The rows of `SELECT columns FROM table where`, read page by page.

        Asked of the node with address `at`, at ONE, since tables that are local to a node are that node's; without it
        of any node at `consistency`. A read that ran into a slow or dead node is tried again, three times in all.

        Raises:
            NoTable, NotGranted, Refused, Unreachable: the cluster's answer was no rows, or it has no such node.
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
            raise Unreachable(f"{at} is no node of {self.name} any more")
        if host is not None:
            self._await_first_connection(host)
        where_asked = self.name if at is None else f"{self.name}, node {at}"
        return retry_unreachable()(self._read, statement, tuple(values), host, where_asked, table)

    def ask_raw(
        self, table: str, statement: str, page_rows: int, values: Sequence[bytes] | None = None
    ) -> Callable[[], Iterator[RawPage]]:
        """Send a SELECT on a table's rows, at LOCAL_QUORUM; what is answered with gives its pages, a try of each.

        Between the two the cluster works on it, so that several can be under way. `values` are the bytes of what the
        statement has question marks for.

        Raises:
            NoTable, NotGranted, Refused, Unreachable: when a page is asked for and the answer was no rows.
        """
        asked = self._statement(table, statement, page_rows, values)
        # A future takes the session's protocol as it is made; one thread makes them all.
        usual = self._session.client_protocol_handler
        self._session.client_protocol_handler = RawProtocol  # pyrefly: ignore[bad-assignment]
        try:
            future = self._session.execute_async(asked, execution_profile=_RAW_PROFILE)
        except DRIVER_ERRORS as error:
            raise translate_error(error, self.name, table, self.role) from None
        finally:
            self._session.client_protocol_handler = usual

        def pages() -> Iterator[RawPage]:
            try:
                yield from iter_pages(future)
            except DRIVER_ERRORS as error:
                raise translate_error(error, self.name, table, self.role) from None

        return pages

    def _statement(self, table: str, text: str, page_rows: int, values: Sequence[bytes] | None) -> Statement:
        level = ConsistencyLevel.LOCAL_QUORUM
        if not text.startswith("SELECT "):
            raise AssertionError(f"a cluster is asked by SELECT alone, not by {text[:60]}")
        if values is None:
            return SimpleStatement(text, consistency_level=level, fetch_size=page_rows, is_idempotent=True)
        if text not in self._prepared:
            try:
                self._prepared[text] = self._session.prepare(text)
            except DRIVER_ERRORS as error:
                raise translate_error(error, self.name, table, self.role) from None
            # With it the server would leave the columns' names out, and the driver would read them as their types.
            self._prepared[text].update_result_metadata(None, None)
        bound = BoundStatement(self._prepared[text], consistency_level=level, fetch_size=page_rows)
        bound.values, bound.is_idempotent = list(values), True
        return bound

    def greeting(self, address: str) -> NodeOptions:
        """What a node supports, over a short connection of its own.

        Raises:
            Unreachable, Refused: it did not answer.
        """
        connection = self.connection
        return probe_node(address, connection.port, create_tls_context(connection), connection.connect_timeout)

    def _read(
        self, statement: SimpleStatement, values: tuple[object, ...], host: Host | None, where: str, table: str
    ) -> list[CqlRow]:
        try:
            return list(self._session.execute(statement, values or None, host=host))
        except DRIVER_ERRORS as error:
            raise translate_error(error, where, table, self.role) from None


def _wait_until(happens: Callable[[], bool], seconds: float) -> None:
    """Wait until something has happened, or for so long."""
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
    """A session with the cluster called `name`, closed at the end.

    With the number `one_node` it has one connection, to the node whose turn that is: enough for `ask_raw`. Where no
    contact point can be reached, `known_nodes` gives the addresses of other nodes, which are tried in their order.

    Raises:
        EnvironmentProblem: no contact point and no known node can be reached, or none lets us in.
        InputError: what answers is no CQL server.
        StateError: the local datacenter is none of the cluster's.
    """
    secret = resolve_credentials(connection)
    role = None if secret is None else secret.user
    reachable, connection = _reachable_contacts(connection, known_nodes)
    # The driver logs each failure that it also raises, with stacks; what is raised is told once, by the caller.
    logging.getLogger("cassandra").setLevel(logging.CRITICAL)
    one = None if one_node is None else SingleNodePolicy(one_node, connection.datacenter)
    driver = Cluster(
        reachable,
        port=connection.port,
        auth_provider=None if secret is None else PlainTextAuthProvider(secret.user, secret.password),
        ssl_context=create_tls_context(connection),
        protocol_version=_PROTOCOL,
        compression=False,
        schema_metadata_enabled=False,
        token_metadata_enabled=False,
        shard_aware_options={"disable": True},
        connect_timeout=connection.connect_timeout,  # seconds, a part of one too
        control_connection_timeout=connection.request_timeout,
        reconnection_policy=ExponentialReconnectionPolicy(1, 60, None),
        executor_threads=2,
        driver_config_reporting_enabled=False,
        execution_profiles={
            EXEC_PROFILE_DEFAULT: _profile(connection, one),
            _RAW_PROFILE: _profile(connection, one, build_raw_pages),
        },
    )
    try:
        try:
            session = _open_driver_session(driver, one)
        except DRIVER_ERRORS as error:
            raise translate_error(error, name, "system.local", role) from None
        contact = driver.get_control_connection_host()
        if contact is None:
            raise Unreachable(f"{name}: the connection was lost at once; try again")
        live = ScyllaSession(name, connection, driver, session, contact, role, one)
        _check_datacenter(live)
        if one is not None and driver.control_connection is not None:
            # It has told who is there; that a node is lost is seen by the connection to it.
            driver.control_connection.shutdown()
        yield live
    finally:
        driver.shutdown()
        # What the driver was connecting to meanwhile it has waited for, and keeps open.
        for ended in tuple(driver.sessions or ()):
            for pool in tuple(ended.get_pools()):
                pool.shutdown()


def _open_driver_session(driver: Cluster, one: SingleNodePolicy | None) -> DriverSession:
    """The driver's session; where the node that is asked alone takes no connection, with the next one."""
    failed = 0
    while True:
        try:
            return driver.connect()
        except NoHostAvailable:
            failed += 1
            there = driver.metadata.all_hosts() if driver.metadata else []
            if one is None or driver.is_shutdown or failed >= len(there):
                raise
            one.leave(None)


def _profile(
    connection: Connection, one: SingleNodePolicy | None, row_factory: Callable[..., Any] = dict_factory
) -> ExecutionProfile:
    balancing = one or (
        RoundRobinPolicy()
        if connection.datacenter is None
        # Every node is connected to, also far ones: each is asked for the tables that are its own.
        else DCAwareRoundRobinPolicy(connection.datacenter, used_hosts_per_remote_dc=_EVERY_NODE)
    )
    return ExecutionProfile(
        load_balancing_policy=balancing,
        retry_policy=FallthroughRetryPolicy(),
        request_timeout=connection.request_timeout,
        row_factory=row_factory,
    )


def _reachable_contacts(
    connection: Connection, known_nodes: Callable[[], Sequence[str]]
) -> tuple[list[str], Connection]:
    """Return the hosts that answer, and the connection with a way to them, which tasks on other machines take."""
    try:
        return _first_contacts(connection), connection
    except Unreachable as refusal:
        given = {host for host, _ in connection.endpoints}
        for address in known_nodes():
            other = connection.model_copy(update={"contacts": (format_contact(address, connection.port),)})
            if address in given:
                continue
            try:
                return _first_contacts(other), other
            except PlatformError:
                continue
        raise refusal from None


def _first_contacts(connection: Connection) -> list[str]:
    """The contact points that a CQL server answers at; the driver would hide in one error why the others do not."""
    tls = create_tls_context(connection)
    reachable: list[str] = []
    failures: list[PlatformError] = []
    for host, port in connection.endpoints:
        try:
            probe_node(host, port, tls, connection.connect_timeout)
            reachable.append(host)
        except PlatformError as error:
            failures.append(error)
    if not reachable:
        more = f" (and {len(failures) - 1} other contact points failed)" if len(failures) > 1 else ""
        raise type(failures[0])(f"{failures[0]}{more}")
    return reachable


def _check_datacenter(live: ScyllaSession) -> None:
    wanted = live.connection.datacenter
    known = sorted({member.datacenter for member in live.members})
    if wanted is not None and wanted not in known:
        raise StateError(
            f"{live.name} has no datacenter {wanted}, but {', '.join(known)}; add it again with one of those as "
            "--datacenter"
        )


def require_row(rows: Sequence[CqlRow], what: str) -> CqlRow:
    """The one row that a table must have.

    Raises:
        InputError: it has none.
    """
    if not rows:
        raise InputError(f"{what} has no row, which no running server shows; is a proxy in between?")
    return rows[0]
