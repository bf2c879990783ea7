"""The requests of a window, asked of a cluster where this code runs: the process that plans, or a task of Spark.

A process has one session with a cluster, which a task opens when it needs it first, with the secrets as they are found
there, and closes as the process ends. A request that failed is asked again, whole, in smaller pages.
"""

from __future__ import annotations

import atexit
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pyarrow as pa

from cdc_platform.cluster.cells import log_rows
from cdc_platform.cluster.connection import Connection
from cdc_platform.cluster.ingest.planning import log_name, statement
from cdc_platform.cluster.raw import RawPage
from cdc_platform.cluster.refusals import Unreachable
from cdc_platform.cluster.session import LiveCluster, connected, tries
from cdc_platform.cql.schema import TableSchema
from cdc_platform.lake.volume import Batches, TaskRows

AT_ONCE = 4
"""Requests that a process has under way at once."""
REQUESTS_A_TASK = 200
_SMALLER = 4

_sessions: dict[tuple[str, Connection], LiveCluster] = {}
_opened = ExitStack()
atexit.register(_opened.close)


@dataclass(frozen=True)
class Asking:
    """What a task needs to ask for rows of a log. Travels to executors: it holds no session and no secret."""

    name: str
    connection: Connection
    schema: TableSchema
    bypass_cache: bool

    @property
    def table(self) -> str:
        """What is asked, as CQL names it."""
        return log_name(self.schema)

    def statement(self, condition: str) -> str:
        """The SELECT of one request."""
        return statement(self.schema, condition, self.bypass_cache)

    def tasks(self, conditions: Sequence[str]) -> int:
        """How many tasks the requests are for."""
        return -(-len(conditions) // REQUESTS_A_TASK)

    def task_rows(self, conditions: Sequence[str]) -> TaskRows:
        """The rows of all requests, in tasks; every part has the column for values that no native one holds."""
        parts = [conditions[first : first + REQUESTS_A_TASK] for first in range(0, len(conditions), REQUESTS_A_TASK)]

        def batches(number: int) -> Batches:
            for pages in self.answers(parts[number]):
                if any(page.rows for page in pages):
                    yield from log_rows(self.schema, pages, exact=True).rows.to_batches()

        return TaskRows(len(parts), batches)

    def answers(self, conditions: Sequence[str]) -> Iterator[list[RawPage]]:
        """The pages of each request, in their order, while the next are under way."""
        live = _session(self.name, self.connection)
        waiting: deque[tuple[str, Callable[[], Iterator[RawPage]]]] = deque()
        left = iter(conditions)
        try:
            while True:
                while len(waiting) < AT_ONCE and (condition := next(left, None)) is not None:
                    waiting.append((condition, self._ask(live, condition, self.connection.page_rows)))
                if not waiting:
                    return
                condition, pages = waiting.popleft()
                yield self._whole(live, condition, pages)
        finally:
            waiting.clear()

    def _whole(self, live: LiveCluster, condition: str, first: Callable[[], Iterator[RawPage]]) -> list[RawPage]:
        """All pages of a request. What came of a try that failed is thrown away: a row must not come twice."""
        pages, rows = first, self.connection.page_rows
        for attempt in tries():
            with attempt:
                if attempt.retry_state.attempt_number > 1:
                    rows = max(1, rows // _SMALLER)
                    pages = self._ask(live, condition, rows)
                return list(pages())
        raise AssertionError("unreachable: the last attempt raises")

    def _ask(self, live: LiveCluster, condition: str, page_rows: int) -> Callable[[], Iterator[RawPage]]:
        try:
            return live.ask_raw(self.table, self.statement(condition), page_rows)
        except Unreachable as error:
            refusal = error

            def failing() -> Iterator[RawPage]:
                raise refusal

            return failing


@contextmanager
def serving(live: LiveCluster) -> Iterator[None]:
    """Let what this process asks go through a session that is open already."""
    key = (live.name, live.connection)
    _sessions[key] = live
    try:
        yield
    finally:
        del _sessions[key]


def _session(name: str, connection: Connection) -> LiveCluster:
    if (name, connection) not in _sessions:
        _sessions[name, connection] = _opened.enter_context(connected(name, connection))
    return _sessions[name, connection]


def empty_rows(schema: TableSchema) -> pa.Table:
    """No rows of a log."""
    return log_rows(schema, []).rows
