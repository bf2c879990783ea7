"""Send a window's requests to a cluster from the planning process or from a task of Spark, and read them page by page.

A process has one session with a cluster. A task opens its session on first use, with the secrets found on its machine
and one connection, and closes it when the process ends. A failed page is requested again from its paging state, in
smaller pages, and from another node if possible, so no row comes twice.
"""

from __future__ import annotations

import atexit
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

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

_SMALLER = 4
Pages = Callable[[], Iterator[RawPage]]
"""Yields the pages of a request that was sent, for one attempt."""
Request = TypeVar("Request")
SendRequest = Callable[[Request, int, bytes | None], Pages]
"""Sends a request at an attempt (from 1), for the pages from a paging state on; None for all pages."""

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
    concurrency: int

    @property
    def table(self) -> str:
        """Return the table's name in CQL."""
        return log_name(self.schema)

    def statement(self, condition: str) -> str:
        """Return the SELECT of one request."""
        return statement(self.schema, condition, self.bypass_cache)

    def task_rows(self, tasks: Sequence[Sequence[str]]) -> TaskRows:
        """Return the rows of each task's requests; every part has the column for out-of-range values."""
        return TaskRows(len(tasks), lambda number: self.rows_of_task(tasks[number], number))

    def rows_of_task(self, conditions: Sequence[str], number: int) -> Batches:
        """Yield the rows of requests, for the task of this number."""
        for page in self.pages(conditions, number):
            if page.rows:
                yield from decode_log_rows(self.schema, [page], exact=True).rows.to_batches()

    def pages(
        self, conditions: Iterable[str], task: int = 0, *, on_retry: Callable[[], None] | None = None
    ) -> Iterator[RawPage]:
        """Yield the pages of all requests as they arrive, `concurrency` requests at once.

        A process without a session opens one with the node that the task's number selects. `on_retry` is called for
        each request that is repeated after a failure.
        """
        for _, page in iter_request_pages(conditions, self._sender(task, on_retry), self.concurrency):
            yield page

    def answers(self, conditions: Iterable[str], task: int = 0) -> Iterator[list[RawPage]]:
        """Yield all pages of each request, in order; send the first requests immediately."""
        answers = start_requests(conditions, self._sender(task), self.concurrency)
        return (pages for _, pages in answers)

    def _sender(self, task: int, on_retry: Callable[[], None] | None = None) -> SendRequest[str]:
        live = _session(self.name, self.connection, task)
        node_by_condition: dict[str, str | None] = {}

        def send(condition: str, attempt: int, paging_state: bytes | None) -> Pages:
            if attempt > 1:
                if on_retry is not None:
                    on_retry()
                live.leave(node_by_condition[condition])
            node_by_condition[condition] = live.node
            rows = limit_page_rows(self.connection, attempt)
            return live.send_request(self.table, self.statement(condition), rows, paging_state=paging_state)

        return send


class _PagedRequest(Generic[Request]):
    """A request in flight. Its next page is requested before the previous one is used."""

    def __init__(self, request: Request, send: SendRequest[Request]) -> None:
        self.request = request
        self.is_complete = False
        self._send_request = send
        self._paging_state: bytes | None = None
        self._pages = self._send(1)

    def next_page(self) -> RawPage:
        """Return the next page; request it again if a node fails.

        Raises:
            Unreachable: all attempts failed.
        """
        for attempt in retry_unreachable():
            with attempt:
                number = attempt.retry_state.attempt_number
                if number > 1:
                    self._pages = self._send(number)
                page = next(self._pages)
                self._paging_state = page.paging_state
                self.is_complete = page.paging_state is None
                return page
        raise AssertionError("unreachable: the last attempt raises")

    def remaining_pages(self) -> Iterator[RawPage]:
        """Yield all pages that are left."""
        while not self.is_complete:
            yield self.next_page()

    def _send(self, attempt: int) -> Iterator[RawPage]:
        """Send the request; a failure to send is raised by the first page, like any other failure."""
        try:
            return self._send_request(self.request, attempt, self._paging_state)()
        except Unreachable as error:
            return _raise_at_first_page(error)


def _raise_at_first_page(error: Unreachable) -> Iterator[RawPage]:
    yield from ()
    raise error


def limit_page_rows(connection: Connection, attempt: int) -> int:
    """Return the most rows of a page at an attempt (from 1) of a request."""
    return max(1, connection.page_rows // _SMALLER ** (attempt - 1))


def iter_request_pages(
    requests: Iterable[Request], send: SendRequest[Request], concurrency: int
) -> Iterator[tuple[Request, RawPage]]:
    """Yield each page with its request, `concurrency` requests at once in rotation.

    Memory holds one page of each of them, whatever the size of an answer.
    """
    remaining = iter(requests)
    in_flight = deque(_PagedRequest(request, send) for request in islice(remaining, concurrency))
    while in_flight:
        paged = in_flight.popleft()
        page = paged.next_page()
        if paged.is_complete:
            in_flight.extend(_PagedRequest(request, send) for request in islice(remaining, 1))
        else:
            in_flight.append(paged)
        yield paged.request, page


def start_requests(
    requests: Iterable[Request], send: SendRequest[Request], concurrency: int
) -> Iterator[tuple[Request, list[RawPage]]]:
    """Send the first `concurrency` requests; return an iterator of each request, in order, with all of its pages."""
    remaining = iter(requests)
    in_flight = deque(_PagedRequest(request, send) for request in islice(remaining, concurrency))

    def answers() -> Iterator[tuple[Request, list[RawPage]]]:
        while in_flight:
            paged = in_flight.popleft()
            pages = list(paged.remaining_pages())
            in_flight.extend(_PagedRequest(request, send) for request in islice(remaining, 1))
            yield paged.request, pages

    return answers()


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
