"""Collect the metrics of a home and of its clusters when they are asked for.

A scrape reads small tables and Delta's logs, never rows of a log or streams. Its work is bounded: at most `MAX_LOGS`
logs of each home have series, and what is not reached within `SCRAPE_SECONDS` is left out. What cannot be read is left
out as well; `cdc_platform_section_readable` is 0 then.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from cdc_platform import __version__
from cdc_platform.cdclog import IngestLag, TtlLag, read_ingest_lags
from cdc_platform.clock import Clock, Microseconds, seconds_from_us
from cdc_platform.delta import Lake, get_mirrored_cluster
from cdc_platform.errors import PlatformError, to_one_line
from cdc_platform.home_location import HomeLocation
from cdc_platform.ingest import read_ingest_totals
from cdc_platform.metastore import INGEST_CONSUMER, LogLoss, check_results, consumers, log_gaps, read_join_progress
from cdc_platform.metrics import declarations as metrics
from cdc_platform.metrics.check_assets import find_check_asset
from cdc_platform.metrics.declarations import MetricDeclaration
from cdc_platform.scylla import registry
from cdc_platform.storage import parse_path
from cdc_platform.timeline import GenerationState, Timeline

MAX_LOGS = 1_000
"""The most logs of a home that have series; `cdc_platform_ingest_logs` counts all of them."""
SCRAPE_SECONDS = 10.0
"""After this time a scrape begins no more sections and opens no more tables of logs."""
OPENMETRICS_TYPE = CONTENT_TYPE_LATEST
_log = logging.getLogger(__name__)


@dataclass
class Scrape:
    """The samples of one scrape, by metric, and what could not be read."""

    now_us: Microseconds
    deadline: float
    cluster: str = ""
    samples: dict[str, list[tuple[tuple[str, ...], float]]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    lags: Sequence[IngestLag] | None = None
    """The logs of the current home that have series; None if they could not be read."""

    def add(self, metric: MetricDeclaration, *labels: str, value: float) -> None:
        """Add a sample of the current cluster; `labels` are the values of the metric's labels after `cluster`."""
        self.samples.setdefault(metric.family, []).append(((self.cluster, *labels), value))


Section = Callable[[Lake, Scrape], bool]
"""Adds the samples of one section; returns False if some of it could not be read."""


def _add_ingest(lake: Lake, scrape: Scrape) -> bool:
    """Add the positions of ingests and their lag, from small tables."""
    known = read_ingest_lags(lake, scrape.now_us)
    lags = known[:MAX_LOGS]
    scrape.add(metrics.INGEST_LOGS, value=len(known))
    for lag in lags:
        name, status = (lag.keyspace_name, lag.table_name), lag.status
        if lag.lag_us is not None:
            scrape.add(metrics.INGEST_LAG, *name, value=seconds_from_us(lag.lag_us))
        if status.ttl_us is not None:
            scrape.add(metrics.INGEST_TTL, *name, value=seconds_from_us(status.ttl_us))
        if status.share is not None:
            scrape.add(metrics.INGEST_LAG_RATIO, *name, value=status.share)
        for state in TtlLag:
            scrape.add(metrics.INGEST_LAG_STATE, *name, state.name.lower(), value=state is status.lag)
    exported = {(lag.keyspace_name, lag.table_name) for lag in lags}
    for consumer in consumers.read_consumers(lake):
        if consumer.name == INGEST_CONSUMER and (name := consumer.key[1:]) in exported:
            scrape.add(metrics.INGEST_LAST_ADVANCE, *name, value=seconds_from_us(consumer.updated_at_us))
            scrape.add(metrics.INGEST_WINDOWS, *name, value=consumer.window_number)
    scrape.lags = lags
    return True


def _add_gaps(lake: Lake, scrape: Scrape) -> bool:
    """Add the recorded gaps of ingested logs."""
    if scrape.lags is None:
        return False
    found = Counter(
        (gap.keyspace_name, gap.table_name, "open" if gap.is_open else "accepted")
        for gap in log_gaps.read_recorded_gaps(lake)
        if gap.reader == INGEST_CONSUMER and gap.what != LogLoss.BEFORE_READING
    )
    for lag in scrape.lags:
        for state in ("open", "accepted") if lag.position_us is not None else ():
            name = lag.keyspace_name, lag.table_name, state
            scrape.add(metrics.LOG_GAPS, *name, value=found[name])
    return True


def _add_logs(lake: Lake, scrape: Scrape) -> bool:
    """Add the totals of ingested logs, each from the Delta log of its table."""
    if scrape.lags is None:
        return False
    complete = True
    for lag in scrape.lags:
        if lag.position_us is None:
            continue
        if time.monotonic() > scrape.deadline:
            scrape.problems.append(f"the logs from {lag.full_name} on were not reached in {SCRAPE_SECONDS:g} s")
            return False
        name = lag.keyspace_name, lag.table_name
        try:
            totals = read_ingest_totals(lake, *name)
        except (PlatformError, OSError) as error:
            scrape.problems.append(to_one_line(str(error)))
            complete = False
            continue
        scrape.add(metrics.INGEST_ROWS, *name, value=totals.rows)
        scrape.add(metrics.INGEST_LATE_ROWS, *name, value=totals.late)
        for metric, total in ((metrics.INGEST_REQUESTS, totals.requests), (metrics.INGEST_RETRIES, totals.retries)):
            if total is not None:
                scrape.add(metric, *name, value=total)
    return complete


def _add_generations(lake: Lake, scrape: Scrape) -> bool:
    """Add the number of generations by state."""
    timeline = Timeline.read(lake)
    found = Counter(generation.state for generation in timeline.known)
    found[GenerationState.REMOVED] = len(timeline.removed)
    for state in GenerationState:
        scrape.add(metrics.GENERATIONS, state.name.lower(), value=found[state])
    return True


def _add_inbox(lake: Lake, scrape: Scrape) -> bool:
    """Add the unfinished events of the inbox and the age of the oldest."""
    waiting = [event.queued_at_us for event in read_join_progress(lake) if event.is_open]
    scrape.add(metrics.INBOX_EVENTS, value=len(waiting))
    if waiting:
        scrape.add(metrics.INBOX_AGE, value=seconds_from_us(Microseconds(max(scrape.now_us - min(waiting), 0))))
    return True


def _add_checks(lake: Lake, scrape: Scrape) -> bool:
    """Add the stored results of checks, all subjects of a check together: generations and hours arrive without end."""
    failures, passed_us = Counter[str](), dict[str, Microseconds]()
    for result in check_results.read_check_results(lake):
        failures[result.invariant] += not result.passed
        if result.passed:
            passed_us[result.invariant] = max(result.judged_at_us, passed_us.get(result.invariant, Microseconds(0)))
    for name, count in sorted(failures.items()):
        asset = find_check_asset(name)
        scrape.add(metrics.CHECK_FAILURES, name, asset, value=count)
        if name in passed_us:
            scrape.add(metrics.CHECK_LAST_SUCCESS, name, asset, value=seconds_from_us(passed_us[name]))
    return True


SECTIONS: Mapping[str, Section] = {
    "ingest": _add_ingest,
    "gaps": _add_gaps,
    "logs": _add_logs,
    "generations": _add_generations,
    "inbox": _add_inbox,
    "checks": _add_checks,
}
"""The sections of each home, in order: `gaps` and `logs` need the logs that `ingest` found."""


class HomeMetrics(Collector):
    """Collects the metrics of a home and of its clusters. It is for one thread, whose open tables it keeps."""

    def __init__(self, home: HomeLocation, clock: Clock) -> None:
        self._home, self._clock = home, clock
        self._lakes: dict[str, Lake] = {}

    def scrape(self) -> Scrape:
        """Read the home and its clusters once; never fail."""
        scrape = Scrape(self._clock.now_us(), time.monotonic() + SCRAPE_SECONDS)
        own, cluster = self._open(str(self._home.lake)), None
        try:
            cluster = get_mirrored_cluster(own)
        except (PlatformError, OSError) as error:
            scrape.problems.append(to_one_line(str(error)))
        self._read_home(own, cluster or "", scrape)
        for name, location in self._clusters(scrape).items():
            self._read_home(self._open(location), name, scrape)
        return scrape

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics, also those without a sample."""
        yield from build_families(self.scrape())

    def _open(self, location: str) -> Lake:
        """Return a lake, the same one at each scrape, so that its tables stay open."""
        if location not in self._lakes:
            self._lakes[location] = Lake(location)
        return self._lakes[location]

    def _clusters(self, scrape: Scrape) -> dict[str, str]:
        """Return the lakes of the registered clusters by name."""
        scrape.cluster, known = "", dict[str, str]()
        try:
            known = {c.name: str(parse_path(c.at) / "lake") for c in registry.list_clusters(self._home)}
        except (PlatformError, OSError) as error:
            scrape.problems.append(to_one_line(str(error)))
            scrape.add(metrics.SECTION_READABLE, "clusters", value=0)
        else:
            scrape.add(metrics.SECTION_READABLE, "clusters", value=1)
        return known

    def _read_home(self, lake: Lake, cluster: str, scrape: Scrape) -> None:
        scrape.cluster, scrape.lags = cluster, None
        for name, section in SECTIONS.items():
            readable = time.monotonic() <= scrape.deadline and _read_section(lake, name, section, scrape)
            scrape.add(metrics.SECTION_READABLE, name, value=readable)


def _read_section(lake: Lake, name: str, section: Section, scrape: Scrape) -> bool:
    """Add a section's samples, none of them if it fails; return False if something could not be read."""
    before = {family: len(samples) for family, samples in scrape.samples.items()}
    try:
        with lake.table_cache.pin_versions():
            return section(lake, scrape)
    except Exception as error:  # noqa: BLE001 - damaged rows may raise anything; other sections must still be read
        if not isinstance(error, (PlatformError, OSError)):
            _log.warning("section %s cannot be read", name, exc_info=True)
        scrape.problems.append(f"{name}: {to_one_line(str(error)) or type(error).__name__}")
        for family, samples in scrape.samples.items():
            del samples[before.get(family, 0) :]
        return False


def build_families(scrape: Scrape) -> Iterator[Metric]:
    """Yield the metrics of a scrape in the client library's form."""
    for metric in metrics.METRICS:
        if metric.kind == "info":
            yield InfoMetricFamily(metric.family, metric.meaning, value={"version": __version__})
            continue
        kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
        family = kind(metric.family, metric.meaning, labels=metric.labels)
        for labels, value in scrape.samples.get(metric.family, ()):
            family.add_metric(labels, value)
        yield family


class _Collected(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


def format_metrics(scrape: Scrape, accept: str = OPENMETRICS_TYPE) -> tuple[bytes, str]:
    """Return the text of a scrape and its content type, in the format that an `Accept` header prefers."""
    collectors = CollectorRegistry(auto_describe=False)
    collectors.register(_Collected(list(build_families(scrape))))
    encode, content_type = choose_encoder(accept)
    return encode(collectors), content_type
