"""Writes to a cluster that is not production: the one module that sends it anything but SELECT.

What may be written, and where, is decided by `exporting`. Rows go as fast as they are let and few at once; each names
its key, so that the same again changes nothing.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from cassandra import InvalidRequest, Unauthorized
from cassandra.cluster import ResponseFuture
from cassandra.query import UNSET_VALUE, BoundStatement, SimpleStatement

from cdc_platform.cluster.refusals import DRIVER_ERRORS, NotGranted, named, server_message, translated
from cdc_platform.cluster.session import LiveCluster, tries
from cdc_platform.cql.names import quoted
from cdc_platform.cql.types import CqlType, Value
from cdc_platform.errors import PlatformError, StateError

AT_ONCE = 8
"""Rows that are under way at once."""


class MayNotWrite(NotGranted):
    """The role may read and not write."""

    code = "may-not-write"

    def __init__(self, table: str, role: str | None) -> None:
        self.grant = f"GRANT CREATE, MODIFY ON ALL KEYSPACES TO {role or 'ROLE'}"
        StateError.__init__(
            self, f"{named(role)} may not write {table}; an administrator of that cluster runs: {self.grant};"
        )


class Writer:
    """Writes through a session, `rows_per_second` at most."""

    def __init__(self, live: LiveCluster, rows_per_second: int) -> None:
        self._live, self._rate = live, rows_per_second
        self._begun, self._sent = time.monotonic(), 0

    def make_keyspace(self, name: str, replicas: int) -> None:
        """Make a keyspace with replicas in the datacenter that is connected to, where it is not there."""
        here = next(each.datacenter for each in self._live.members if each.address == self._live.contact)
        place = "{" + f"'class': 'NetworkTopologyStrategy', '{here}': {replicas}" + "}"
        self._run(f"CREATE KEYSPACE IF NOT EXISTS {quoted(name)} WITH replication = {place}", name)

    def make(self, table: str, statement: str) -> None:
        """Make a type or a table, by a statement that says IF NOT EXISTS."""
        if not statement.startswith(("CREATE TABLE IF NOT EXISTS ", "CREATE TYPE IF NOT EXISTS ")):
            raise AssertionError(f"not a statement that makes a table or type: {statement[:60]}")
        self._run(statement.rstrip(";"), table)

    def put(self, table: str, columns: Sequence[tuple[str, CqlType]], rows: Iterable[Sequence[Value | None]]) -> int:
        """Write rows, by all their columns; what is null stays unset. Answers with how many there were.

        Raises:
            MayNotWrite, StateError, Unreachable: a row was not taken, three times where another try may go better.
        """
        names, marks = ", ".join(quoted(name) for name, _ in columns), ", ".join("?" for _ in columns)
        text = f"INSERT INTO {table} ({names}) VALUES ({marks})"
        prepared = self._told(table, lambda: self._live.driver.prepare(text))
        waiting: deque[tuple[BoundStatement, ResponseFuture]] = deque()
        count = 0
        for row in rows:
            bound = BoundStatement(prepared, consistency_level=self._live.consistency)
            bound.values = [_bytes(kind, value) for (_, kind), value in zip(columns, row, strict=True)]
            bound.is_idempotent = True
            if len(waiting) == AT_ONCE:
                self._done(table, *waiting.popleft())
            self._pace()
            waiting.append((bound, self._live.driver.execute_async(bound)))
            count += 1
        while waiting:
            self._done(table, *waiting.popleft())
        return count

    def _done(self, table: str, bound: BoundStatement, first: ResponseFuture) -> None:
        for attempt in tries():
            with attempt:
                again = attempt.retry_state.attempt_number > 1
                future = self._live.driver.execute_async(bound) if again else first
                self._told(table, future.result)

    def _run(self, statement: str, what: str) -> None:
        level = self._live.consistency
        self._told(what, lambda: self._live.driver.execute(SimpleStatement(statement, consistency_level=level)))

    def _told(self, table: str, send: Callable[[], Any]) -> Any:
        try:
            return send()
        except DRIVER_ERRORS as error:
            raise self._refusal(error, table) from None

    def _refusal(self, error: BaseException, table: str) -> PlatformError:
        if isinstance(error, Unauthorized):
            return MayNotWrite(table, self._live.role)
        if isinstance(error, InvalidRequest):
            return StateError(f"{self._live.name} takes no rows of {table}: {server_message(error)}")
        return translated(error, self._live.name, table, self._live.role)

    def _pace(self) -> None:
        ahead = self._begun + self._sent / self._rate - time.monotonic()
        if ahead > 0:
            time.sleep(ahead)
        self._sent += 1


def _bytes(kind: CqlType, value: Value | None) -> object:
    return UNSET_VALUE if value is None else kind.to_bytes(value)
