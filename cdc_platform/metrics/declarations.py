"""Every metric, declared once: name, type, labels and meaning.

Names and units follow Prometheus: base units, `_total` for counters, `_seconds` and `_timestamp_seconds` for times. The
label `cluster` is the live cluster that a home mirrors, empty for a home of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MetricKind = Literal["gauge", "counter", "info"]
_SUFFIXES: dict[MetricKind, str] = {"gauge": "", "counter": "_total", "info": "_info"}
_LOG = ("cluster", "keyspace", "table")
_CHECK = ("cluster", "check", "asset")


@dataclass(frozen=True)
class MetricDeclaration:
    """A metric: its name without the suffix that its type adds, its meaning, and its labels."""

    family: str
    kind: MetricKind
    meaning: str
    labels: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return the name of its samples, as queries use it."""
        return self.family + _SUFFIXES[self.kind]


BUILD = MetricDeclaration("cdc_platform_build", "info", "Version of the program.", ("version",))
SECTION_READABLE = MetricDeclaration(
    "cdc_platform_section_readable",
    "gauge",
    "Whether a section of the metrics could be read; metrics of an unreadable section may be missing.",
    ("cluster", "section"),
)
INGEST_LOGS = MetricDeclaration(
    "cdc_platform_ingest_logs", "gauge", "CDC logs that are ingested or can be.", ("cluster",)
)
INGEST_LAG = MetricDeclaration(
    "cdc_platform_ingest_lag_seconds", "gauge", "Time by which the position of the ingest is behind now.", _LOG
)
INGEST_TTL = MetricDeclaration(
    "cdc_platform_ingest_ttl_seconds", "gauge", "Shortest TTL of unread rows of the log; 0: they never expire.", _LOG
)
INGEST_LAG_RATIO = MetricDeclaration(
    "cdc_platform_ingest_lag_ttl_ratio", "gauge", "Share of the TTL of unread rows that has passed.", _LOG
)
INGEST_LAG_STATE = MetricDeclaration(
    "cdc_platform_ingest_lag_state",
    "gauge",
    "1 for the state of the lag against the TTL, 0 for the others.",
    (*_LOG, "state"),
)
INGEST_LAST_ADVANCE = MetricDeclaration(
    "cdc_platform_ingest_last_advance_timestamp_seconds",
    "gauge",
    "When an ingest last moved the position of the log.",
    _LOG,
)
INGEST_WINDOWS = MetricDeclaration("cdc_platform_ingest_windows", "counter", "Windows of the log that were read.", _LOG)
INGEST_ROWS = MetricDeclaration("cdc_platform_ingest_rows", "counter", "Rows of the log that were ingested.", _LOG)
INGEST_LATE_ROWS = MetricDeclaration(
    "cdc_platform_ingest_late_rows", "counter", "Rows that were found when windows were read a second time.", _LOG
)
INGEST_REQUESTS = MetricDeclaration("cdc_platform_ingest_requests", "counter", "Requests for pages of the log.", _LOG)
INGEST_RETRIES = MetricDeclaration(
    "cdc_platform_ingest_request_retries", "counter", "Requests that were repeated after a failure.", _LOG
)
LOG_GAPS = MetricDeclaration(
    "cdc_platform_log_gaps",
    "gauge",
    "Recorded intervals of the log whose rows were lost before they were read, open or accepted.",
    (*_LOG, "state"),
)
GENERATIONS = MetricDeclaration("cdc_platform_generations", "gauge", "CDC generations by state.", ("cluster", "state"))
INBOX_EVENTS = MetricDeclaration(
    "cdc_platform_inbox_events", "gauge", "Unfinished joins and repairs of the inbox.", ("cluster",)
)
INBOX_AGE = MetricDeclaration(
    "cdc_platform_inbox_oldest_event_age_seconds",
    "gauge",
    "Time since the oldest unfinished join or repair was queued; absent if there is none.",
    ("cluster",),
)
CHECK_FAILURES = MetricDeclaration(
    "cdc_platform_check_failures",
    "gauge",
    "Subjects (the home, a generation, table, hour or cluster) whose last result of a check is a failure.",
    _CHECK,
)
CHECK_LAST_SUCCESS = MetricDeclaration(
    "cdc_platform_check_last_success_timestamp_seconds", "gauge", "When a check last passed.", _CHECK
)
METRICS = (
    BUILD,
    SECTION_READABLE,
    INGEST_LOGS,
    INGEST_LAG,
    INGEST_TTL,
    INGEST_LAG_RATIO,
    INGEST_LAG_STATE,
    INGEST_LAST_ADVANCE,
    INGEST_WINDOWS,
    INGEST_ROWS,
    INGEST_LATE_ROWS,
    INGEST_REQUESTS,
    INGEST_RETRIES,
    LOG_GAPS,
    GENERATIONS,
    INBOX_EVENTS,
    INBOX_AGE,
    CHECK_FAILURES,
    CHECK_LAST_SUCCESS,
)
"""All metrics, in the order in which they are written."""
