"""Send a window's requests to a cluster from the planning process or from a task of Spark.

A process has one session with a cluster. A task opens its session on first use, with the secrets found on its machine
and one connection, and closes it when the process ends. A failed request is repeated completely, in smaller pages, and
from another node if possible.
"""

from __future__ import annotations

import atexit
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import pyarrow as pa

from cdc_platform.cql import TableSchema
from cdc_platform.delta import Batches, TaskRows
from cdc_platform.ingest.planner import log_name, statement
from cdc_platform.scylla import (
    Connection,
    RawPage,
    ScyllaSession,
    Unreachable,
    decode_log_rows,
    open_session,
    retry_unreachable,
)

AT_ONCE = 4
"""Requests that a process has in flight at once."""
REQUESTS_A_TASK = 200
_SMALLER = 4
Pages = Callable[[], Iterator[RawPage]]
"""Yields the pages of a request that was sent, for one attempt."""
Request = TypeVar("Request")

_sessions: dict[tuple[str, Connection], ScyllaSession] = {}
_opened = ExitStack()
atexit.register(_opened.close)


@dataclass(frozen=True)
class LogQuery:
    """What a task needs to read rows of a log. It travels to executors, so it holds no session and no secret."""

    name: str
    connection: Connection
    schema: TableSchema
    bypass_cache: bool

    @property
    def table(self) -> str:
        """Return the table's name in CQL."""
        return log_name(self.schema)

    def statement(self, condition: str) -> str:
        """Return the SELECT of one request."""
        return statement(self.schema, condition, self.bypass_cache)

    def tasks(self, conditions: Sequence[str]) -> int:
        """Return how many tasks the requests are split into."""
        return -(-len(conditions) // REQUESTS_A_TASK)

    def task_rows(self, conditions: Sequence[str]) -> TaskRows:
        """Return the rows of all requests, in tasks; every part has the column for out-of-range values."""
        parts = [conditions[first : first + REQUESTS_A_TASK] for first in range(0, len(conditions), REQUESTS_A_TASK)]
        return TaskRows(len(parts), lambda number: self.rows_of_task(parts[number], number))

    def rows_of_task(self, conditions: Sequence[str], number: int) -> Batches:
        """Yield the rows of requests, for the task of this number."""
        for pages in self.answers(conditions, number):
            if any(page.rows for page in pages):
                yield from decode_log_rows(self.schema, pages, exact=True).rows.to_batches()

    def answers(self, conditions: Iterable[str], task: int = 0) -> Iterator[list[RawPage]]:
        """Yield the pages of each request, in order, while the next are in flight.

        A process without a session opens one with the node that the task's number selects.
        """
        live = _session(self.name, self.connection, task)
        node_by_condition: dict[str, str | None] = {}

        def ask(condition: str, attempt: int) -> Pages:
            if attempt > 1:
                live.leave(node_by_condition[condition])
            node_by_condition[condition] = live.node
            rows = max(1, self.connection.page_rows // _SMALLER ** (attempt - 1))
            return live.send_request(self.table, self.statement(condition), rows)

        def pages_of(turns: Iterator[tuple[str, list[RawPage]]]) -> Iterator[list[RawPage]]:
            for condition, pages in turns:
                del node_by_condition[condition]
                yield pages

        return pages_of(in_turn(conditions, ask))


def in_turn(
    requests: Iterable[Request], ask: Callable[[Request, int], Pages]
) -> Iterator[tuple[Request, list[RawPage]]]:
    """Yield each request with its pages, in order, while the next are in flight; send the first ones immediately.

    `ask` sends a request, at an attempt counted from 1. A failed request is repeated completely and its earlier pages
    are discarded, so that no row comes twice.
    """
    remaining = iter(requests)
    return _answered(deque((request, _sent(request, ask, 1)) for request in islice(remaining, AT_ONCE)), remaining, ask)


def _answered(
    waiting: deque[tuple[Request, Pages]], left: Iterator[Request], ask: Callable[[Request, int], Pages]
) -> Iterator[tuple[Request, list[RawPage]]]:
    try:
        while waiting:
            request, first = waiting.popleft()
            pages = _whole(request, ask, first)
            waiting.extend((following, _sent(following, ask, 1)) for following in islice(left, 1))
            yield request, pages
    finally:
        waiting.clear()


def _whole(request: Request, ask: Callable[[Request, int], Pages], first: Pages) -> list[RawPage]:
    for attempt in retry_unreachable():
        with attempt:
            number = attempt.retry_state.attempt_number
            return list((first if number == 1 else _sent(request, ask, number))())
    raise AssertionError("unreachable: the last attempt raises")


def _sent(request: Request, ask: Callable[[Request, int], Pages], attempt: int) -> Pages:
    """Send a request; raise a failure to send only when its pages are fetched, as for any other failure."""
    try:
        return ask(request, attempt)
    except Unreachable as error:
        refusal = error

        def failing() -> Iterator[RawPage]:
            raise refusal

        return failing


@contextmanager
def serving(live: ScyllaSession) -> Iterator[None]:
    """Let this process's requests use a session that is already open."""
    key = (live.name, live.connection)
    _sessions[key] = live
    try:
        yield
    finally:
        del _sessions[key]


def _session(name: str, connection: Connection, task: int) -> ScyllaSession:
    if (name, connection) not in _sessions:
        _sessions[name, connection] = _opened.enter_context(open_session(name, connection, one_node=task))
    return _sessions[name, connection]


def empty_rows(schema: TableSchema) -> pa.Table:
    """Return an empty table with the columns of a log."""
    return decode_log_rows(schema, []).rows
