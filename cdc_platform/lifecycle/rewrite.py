"""The rewrite of the V1 streams table into the V2 one, as design document 000 describes it, and client readiness.

Every node of an upgraded cluster runs it, and the first one does the work. Decisions need times alone, and one
generation is one cell, so no Spark. Clients may switch once every node's `cdc_local` has the row `rewritten`, for which
scylla-cdc-go and -java wait (scylla-cdc-java PR #21), and the new tables have every generation that can have rows in a
log.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import numpy as np
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt, wait_fixed

from cdc_platform import failpoints
from cdc_platform.clock import (
    Clock,
    Microseconds,
    Milliseconds,
    ceil_ms_from_us,
    format_ms,
    ms_from_seconds,
    ms_from_us,
    seconds_from_ms,
    us_from_ms,
)
from cdc_platform.delta import Lake, choose_remedy
from cdc_platform.errors import ConflictError, NotFound, StateError, StoreFailure, Unavailable
from cdc_platform.generations import BEGINNING_US, NEVER_US, LogLifetime, get_oldest_live_ms, may_have_live_rows
from cdc_platform.lifecycle.join import publish
from cdc_platform.metastore import CdcTable, cdc_local, cdc_tables, generations, read_host_ids, read_node_statuses
from cdc_platform.settings import Settings
from cdc_platform.tables import STREAMS_DESCRIPTIONS

log = logging.getLogger(__name__)

RewriteAction = Literal["rewrite", "skip-too-old", "skip-present", "missing-data"]

OnMessage = Callable[[str], object]
_Result = TypeVar("_Result")
# Errors of a read or a write that may succeed on a retry, unlike a violated rule.
_RETRYABLE = (Unavailable, StoreFailure, ConflictError)


@dataclass(frozen=True)
class RewriteDecision:
    """The decision about a V1 generation, named by its time (ms), and the reason."""

    time_ms: Milliseconds
    action: RewriteAction
    reason: str


@dataclass(frozen=True)
class RewriteResult:
    """The result of a rewrite, or what a dry run would do.

    `hosts` are the nodes for which it ran, `marked` those of them that have the marker now, `decisions` has one entry
    per timestamp of the old table, oldest first, and `ended` says in words why it stopped.
    """

    hosts: tuple[str, ...]
    marked: tuple[str, ...]
    decisions: tuple[RewriteDecision, ...]
    ended: str

    @property
    def missing(self) -> list[RewriteDecision]:
        """Return the decisions about generations whose data could not be found."""
        return [decision for decision in self.decisions if decision.action == "missing-data"]


def nodes_without_rewrite_marker(lake: Lake) -> list[str]:
    """Return the host IDs of the ring's nodes that have not rewritten, ascending."""
    return sorted(set(read_host_ids(lake)) - cdc_local.hosts_with_rewrite_marker(lake))


def has_no_v1_streams(lake: Lake) -> bool:
    """Return True if there is no old streams table.

    An empty one counts as none, because SQL setup creates all tables.
    """
    return lake.read(STREAMS_DESCRIPTIONS, ["time"]).num_rows == 0


def plan_rewrite(lake: Lake, clock: Clock, settings: Settings) -> list[RewriteDecision]:
    """Decide, in steps 4 to 6.1, about every timestamp of the old table, oldest first. Reads times, no streams."""
    times = np.array(sorted(generations.read_row_times(lake, STREAMS_DESCRIPTIONS)), dtype=np.int64)
    now_ms = clock.now_ms()
    logs = _log_lives(lake, now_ms)
    creation, margin = settings.use_creation_time, settings.clock_margin_ms
    live = may_have_live_rows(times, logs, now_ms, use_creation_time=creation, clock_margin_ms=margin)
    standing = [log for log in logs if log.until_ms is None]
    oldest = (
        get_oldest_live_ms(standing, now_ms, use_creation_time=creation, clock_margin_ms=margin) if logs else now_ms
    )
    listed = generations.read_listed_times(lake)
    described = set(generations.read_v1_times(lake).tolist())
    ends = [*times[1:].tolist(), None][: times.size]
    return [
        _decision(lake, time_ms, end, oldest, listed, described)
        if is_live
        else RewriteDecision(time_ms, "skip-too-old", _too_old_reason(lake, end if logs else None, oldest))
        for time_ms, end, is_live in zip(times.tolist(), ends, live.tolist(), strict=True)
    ]


def rewrite_streams_tables(
    lake: Lake,
    clock: Clock,
    settings: Settings,
    hosts: Sequence[str] | None = None,
    *,
    dry_run: bool = False,
    force: bool = False,
    on_message: OnMessage = log.info,
    sleep: Callable[[float], None] = time.sleep,
) -> RewriteResult:
    """Rewrite for these nodes (host IDs), by default for every node of the ring that is not marked.

    Nodes share the lake, so that one pass serves every node; concurrent processes end with the same rows. `force`
    includes marked nodes. `on_message` receives every step with its reason.

    Raises:
        NotFound: a host is not known, or the ring has no nodes and none is named.
        StateError: generations could not be read, or are not as committed, after all attempts; the others are
            rewritten, and no node is marked.
    """
    chosen = _chosen_hosts(lake, hosts)
    run = _RewriteRun(lake, clock, settings, dry_run, on_message, sleep)
    if has_no_v1_streams(lake):
        return run.finish(chosen, (), "step 1: there is no cdc_streams_descriptions, so there is nothing to rewrite")
    marked = set() if force else cdc_local.hosts_with_rewrite_marker(lake)
    todo = tuple(host for host in chosen if host not in marked)
    for host in (host for host in chosen if host in marked):
        on_message(f"step 2: node {host} is marked as rewritten already")
    if not todo:
        return run.finish(chosen, (), "step 2: every node is marked as rewritten already")
    if settings.dont_rewrite_streams:
        return run.finish(chosen, (), "dont_rewrite_streams is set: an administrator must handle the old table")
    tables = _enabled_tables(lake)
    if not tables:
        ended = "step 3: no table has CDC enabled, so old generations are not needed"
        return run.finish(todo, (), ended, mark_as=run.mark(todo, None))
    on_message(f"step 3: {len(tables)} tables have CDC enabled, the first {tables[0].full_name}")
    return run.steps_4_to_7(todo)


@dataclass(frozen=True)
class _RewriteRun:
    """One run of the procedure, with its inputs."""

    lake: Lake
    clock: Clock
    settings: Settings
    dry_run: bool
    on_message: OnMessage
    sleep: Callable[[float], None]
    failures: list[str] = field(default_factory=list)

    def steps_4_to_7(self, hosts: tuple[str, ...]) -> RewriteResult:
        planned = self.retry("the scan of times", lambda: plan_rewrite(self.lake, self.clock, self.settings))
        old = sum(decision.action == "skip-too-old" for decision in planned)
        self.on_message(f"step 4: the old table has {len(planned)} timestamps; step 5: {old} of them are too old")
        done = tuple(self._step_6(decision) for decision in planned)
        if self.failures:
            raise StateError(
                f"{len(self.failures)} of {len(planned)} V1 generations could not be read or written, so no node is "
                f"marked; the first: {self.failures[0]}; run it again"
            )
        failpoints.kill_if_selected(failpoints.BEFORE_MARKER)
        missing = sum(decision.action == "missing-data" for decision in done)
        ended = f"finished, but {missing} generations could not be rewritten" if missing else "finished"
        return self.finish(hosts, done, f"step 7: {ended}", mark_as=self.mark(hosts, planned[-1].time_ms))

    def _step_6(self, decision: RewriteDecision) -> RewriteDecision:
        """Carry out a decision; return the resulting decision."""
        name = format_ms(decision.time_ms)
        if decision.action == "rewrite" and not self.dry_run:
            try:
                decision = self.retry(f"generation {name}", lambda: self._rewrite_generation(decision))
            except _RETRYABLE as error:
                self.failures.append(f"{name}: {error}")
                self.on_message(f"step 6: {name}: not rewritten in {self.settings.rewrite_attempts} attempts: {error}")
                return decision
        self.on_message(f"step 6: {name}: {decision.action}: {decision.reason}")
        return decision

    def _rewrite_generation(self, decision: RewriteDecision) -> RewriteDecision:
        time_ms = decision.time_ms
        if publish.is_timestamp_listed(self.lake, time_ms):
            return RewriteDecision(time_ms, "skip-present", "another node has rewritten it in the meantime")
        generations.verify_v1_cell(self.lake, time_ms)
        cell = generations.read_v1_cell(self.lake, time_ms)
        if cell is None:
            return _missing_data(self.lake, time_ms)
        try:
            description = generations.parse_v1_cell(time_ms, cell)
        except StateError as error:
            return RewriteDecision(time_ms, "missing-data", str(error))
        publish.write_published_streams(self.lake, time_ms, description)
        failpoints.kill_if_selected(failpoints.AFTER_REWRITTEN_STREAMS)
        publish.write_published_timestamp(self.lake, time_ms)
        failpoints.kill_if_selected(failpoints.AFTER_REWRITTEN_TIMESTAMP)
        return decision

    def mark(self, hosts: tuple[str, ...], newest_ms: Milliseconds | None) -> tuple[str, ...]:
        """Write the marker of each node; existing markers remain unchanged."""
        if self.dry_run:
            return ()
        self.retry("the marker", lambda: cdc_local.write_rewrite_markers(self.lake, hosts, newest_ms))
        return hosts

    def finish(
        self, hosts: tuple[str, ...], decisions: tuple[RewriteDecision, ...], reason: str, mark_as: tuple[str, ...] = ()
    ) -> RewriteResult:
        marked = f"; nodes marked as rewritten: {', '.join(mark_as)}" if mark_as else ""
        self.on_message(f"{reason}{marked}{' (dry run: nothing is written)' if self.dry_run else ''}")
        return RewriteResult(hosts, mark_as, decisions, reason)

    def retry(self, what: str, work: Callable[[], _Result]) -> _Result:
        def again(state: RetryCallState) -> None:
            error = state.outcome.exception() if state.outcome else None
            self.on_message(f"{what}: attempt {state.attempt_number} failed: {error}; trying again")

        for attempt in Retrying(
            retry=retry_if_exception_type(_RETRYABLE),
            stop=stop_after_attempt(self.settings.rewrite_attempts),
            wait=wait_fixed(seconds_from_ms(self.settings.rewrite_retry_ms)),
            sleep=self.sleep,
            before_sleep=again,
            reraise=True,
        ):
            with attempt:
                return work()
        raise AssertionError("unreachable: the last attempt raises")


def _decision(
    lake: Lake,
    time_ms: Milliseconds,
    end_ms: Milliseconds | None,
    oldest: Milliseconds | None,
    listed: Collection[Milliseconds],
    described: Collection[Milliseconds],
) -> RewriteDecision:
    since = _since_text(oldest)
    if time_ms in listed:
        return RewriteDecision(time_ms, "skip-present", "cdc_generation_timestamps has it already")
    if time_ms not in described:
        return _missing_data(lake, time_ms)
    if end_ms is None:
        return RewriteDecision(time_ms, "rewrite", "it is the newest of the old table, and not in the new one")
    reason = f"superseded at {format_ms(end_ms)}, and logs can have rows from {since} on"
    return RewriteDecision(time_ms, "rewrite", reason)


def _since_text(oldest: Milliseconds | None) -> str:
    return "the beginning, for a log never expires" if oldest is None else format_ms(oldest)


def _too_old_reason(lake: Lake, end_ms: Milliseconds | None, oldest: Milliseconds | None) -> str:
    """Explain why no log can have rows of a generation.

    `end_ms` is None if no log is known; then the newest generation is skipped too.
    """
    if end_ms is None:
        do = choose_remedy(lake, "import the schema, or if no table has one: cdc-platform tables declare-none")
        return f"no table with a CDC log is known here; {do}"
    return f"superseded at {format_ms(end_ms)}, and logs have rows only from {_since_text(oldest)} on"


def _missing_data(lake: Lake, time_ms: Milliseconds) -> RewriteDecision:
    reason = "cdc_generation_descriptions has no row of this time, which alone tells the ranges of its streams"
    do = choose_remedy(lake, "import that table and run: cdc-platform rewrite --force")
    return RewriteDecision(time_ms, "missing-data", f"{reason}; {do}")


def _chosen_hosts(lake: Lake, hosts: Sequence[str] | None) -> tuple[str, ...]:
    if hosts is None:
        normal = read_host_ids(lake)
        if not normal:
            raise NotFound("the ring has no nodes; import a ring snapshot, or name one with --node HOST_ID")
        return tuple(normal)
    known = read_node_statuses(lake).keys() | cdc_local.hosts_with_cdc_local(lake)
    for host in hosts:
        if host not in known:
            raise NotFound(f"no node {host} is known; list the nodes with: cdc-platform ring")
    return tuple(dict.fromkeys(hosts))


def _log_lives(lake: Lake, now_ms: Milliseconds) -> list[LogLifetime]:
    """Return the lifetimes of the rows that the enabled tables may still hold, one per TTL of written rows.

    Rows of a time with an unknown TTL are assumed to live forever.
    """
    histories, lifetimes = cdc_tables.read_log_histories(lake), list[LogLifetime]()
    for table in _enabled_tables(lake):
        lifetimes.append(LogLifetime(ms_from_seconds(table.ttl_seconds), table.created_at_ms))
        for period in histories[table.keyspace_name, table.table_name].periods:
            ttl_us = period.ttl_us or Microseconds(0)
            if not ttl_us or period.until_us + ttl_us > us_from_ms(now_ms):
                begun_ms = None if period.from_us == BEGINNING_US else ms_from_us(period.from_us)
                until_ms = None if period.until_us == NEVER_US else ceil_ms_from_us(period.until_us)
                lifetimes.append(LogLifetime(ceil_ms_from_us(ttl_us), begun_ms, until_ms))
    return lifetimes


def _enabled_tables(lake: Lake) -> list[CdcTable]:
    return [table for table in cdc_tables.read_cdc_tables(lake) if table.enabled]


@dataclass(frozen=True)
class ClientReadiness:
    """Whether clients may switch.

    The new tables have all streams of rows from `from_ms` (ms) on; None means of no rows.

    `missing` are the V1 generations that are missing in the new tables and can have rows in a log. `unmarked` are the
    nodes without the row for which clients wait. `has_old_table` is False if there is no old table.
    """

    has_old_table: bool
    from_ms: Milliseconds | None
    missing: tuple[RewriteDecision, ...]
    unmarked: tuple[str, ...]

    @property
    def may_switch(self) -> bool:
        """Return True if clients that need all rows, and ScyllaDB's own clients, may switch."""
        return self.from_ms is not None and not self.missing and not (self.has_old_table and self.unmarked)


def check_client_readiness(lake: Lake, clock: Clock, settings: Settings) -> ClientReadiness:
    """Judge by times alone. If the CDC-enabled tables are not known, every old generation counts."""
    listed = sorted(generations.read_listed_times(lake))
    if has_no_v1_streams(lake):
        return ClientReadiness(False, listed[0] if listed else None, (), ())
    done = ("skip-present", "skip-too-old") if cdc_tables.are_cdc_tables_known(lake) else ("skip-present",)
    published = set(listed)
    missing = tuple(
        decision
        for decision in plan_rewrite(lake, clock, settings)
        if decision.action not in done and decision.time_ms not in published
    )
    whole = [time_ms for time_ms in listed if not missing or time_ms > missing[-1].time_ms]
    return ClientReadiness(True, whole[0] if whole else None, missing, tuple(nodes_without_rewrite_marker(lake)))
