"""The requests of a window, asked of a cluster where this code runs: the process that plans, or a task of Spark.

A process has one session with a cluster, which a task opens when it needs it first, with the secrets as they are found
there and one connection, and closes as the process ends. A request that failed is asked again, whole, in smaller pages,
where it can be of another node.
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
"""Requests that a process has under way at once."""
REQUESTS_A_TASK = 200
_SMALLER = 4
Pages = Callable[[], Iterator[RawPage]]
"""Gives the pages of a request that was sent; a try of each."""
Request = TypeVar("Request")

_sessions: dict[tuple[str, Connection], ScyllaSession] = {}
_opened = ExitStack()
atexit.register(_opened.close)


@dataclass(frozen=True)
class LogQuery:
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
        return TaskRows(len(parts), lambda number: self.rows_of_task(parts[number], number))

    def rows_of_task(self, conditions: Sequence[str], number: int) -> Batches:
        """The rows of requests, as the task of this number has them."""
        for pages in self.answers(conditions, number):
            if any(page.rows for page in pages):
                yield from decode_log_rows(self.schema, pages, exact=True).rows.to_batches()

    def answers(self, conditions: Iterable[str], task: int = 0) -> Iterator[list[RawPage]]:
        """The pages of each request, in their order, while the next are under way.

        A process that has no session yet opens one with the node whose turn it is by the number of the task.
        """
        live = _session(self.name, self.connection, task)
        asked: dict[str, str | None] = {}

        def ask(condition: str, attempt: int) -> Pages:
            if attempt > 1:
                live.leave(asked[condition])
            asked[condition] = live.node
            rows = max(1, self.connection.page_rows // _SMALLER ** (attempt - 1))
            return live.ask_raw(self.table, self.statement(condition), rows)

        def pages_of(turns: Iterator[tuple[str, list[RawPage]]]) -> Iterator[list[RawPage]]:
            for condition, pages in turns:
                del asked[condition]
                yield pages

        return pages_of(in_turn(conditions, ask))


def in_turn(
    requests: Iterable[Request], ask: Callable[[Request, int], Pages]
) -> Iterator[tuple[Request, list[RawPage]]]:
    """Each request with its pages, in their order, while the next are under way; the first are sent at once.

    `ask` sends one, at an attempt from 1; one that failed is asked again, whole, and what came of it is thrown away: a
    row must not come twice.
    """
    left = iter(requests)
    return _answered(deque((request, _sent(request, ask, 1)) for request in islice(left, AT_ONCE)), left, ask)


def _answered(
    waiting: deque[tuple[Request, Pages]], left: Iterator[Request], ask: Callable[[Request, int], Pages]
) -> Iterator[tuple[Request, list[RawPage]]]:
    try:
        while waiting:
            request, first = waiting.popleft()
            pages = _whole(request, ask, first)
            waiting.extend((each, _sent(each, ask, 1)) for each in islice(left, 1))
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
    """A request that is under way; that it could not be sent is told when its pages are asked for, as of any other."""
    try:
        return ask(request, attempt)
    except Unreachable as error:
        refusal = error

        def failing() -> Iterator[RawPage]:
            raise refusal

        return failing


@contextmanager
def serving(live: ScyllaSession) -> Iterator[None]:
    """Let what this process asks go through a session that is open already."""
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
    """No rows of a log."""
    return decode_log_rows(schema, []).rows
