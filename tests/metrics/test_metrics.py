"""Metrics of homes in every state, validated by a parser of OpenMetrics."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as parse_older_format
from support.command_line import run
from support.homes.every_table import every_table
from support.homes.ingested import POSITION_US, TTL_SECONDS, ReadLog, ingested_home, read_up_to

from cdc_platform.cdclog import log_table
from cdc_platform.checks import INVARIANT_FAMILIES
from cdc_platform.clock import SECOND_US, Clock, Microseconds, format_us
from cdc_platform.cql import CdcOptions, TableSchema
from cdc_platform.delta import Lake, WriteSource, write_as
from cdc_platform.home_location import HomeLocation, open_home_location
from cdc_platform.ingest.marks import LATE, REQUESTS, RETRIES
from cdc_platform.metastore import LogGap, LogLoss, check_results, log_gaps
from cdc_platform.metrics import HomeMetrics, collector, format_metrics
from cdc_platform.metrics.check_assets import find_check_asset
from cdc_platform.metrics.collector import SECTIONS
from cdc_platform.metrics.declarations import METRICS
from cdc_platform.timeline import GenerationState

AT_US = Microseconds(POSITION_US + 301 * SECOND_US)
DASHBOARD = Path(__file__).parents[2] / "docs" / "examples" / "metrics" / "grafana-dashboard.json"
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def parse_samples(text: str) -> Samples:
    """Parse an exposition strictly; return its samples by name and sorted labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scrape_samples(home: HomeLocation, at_us: int = AT_US) -> Samples:
    """Return a home's metrics at a time (µs)."""
    text, _ = format_metrics(HomeMetrics(home, Clock(Microseconds(at_us))).scrape())
    return parse_samples(text.decode())


def value(samples: Samples, name: str, **labels: str) -> float | None:
    """Return the value of one series; None if there is none."""
    return samples.get((name, tuple(sorted(labels.items()))))


def unreadable_sections(samples: Samples) -> set[tuple[str, str]]:
    """Return the sections that could not be read, each with its cluster."""
    return {
        (dict(labels)["cluster"], dict(labels)["section"])
        for (name, labels), readable in samples.items()
        if name == "cdc_platform_section_readable" and not readable
    }


def log_labels(table: str, **extra: str) -> dict[str, str]:
    """Return the labels of a log of the cluster `prod`."""
    return {"cluster": "prod", "keyspace": "shop", "table": table, **extra}


@dataclass(frozen=True)
class Outcome:
    """The result of an invariant in an audit."""

    invariant: str
    passed: bool
    population: int = 1
    violations: int = 0
    message: str = "a message"


def test_an_ingested_log_has_all_of_its_series(tmp_path: Path) -> None:
    """A log has its position, TTL, commit totals and gaps; an unknown value has no series, or one that reports it."""
    home, cluster = ingested_home(tmp_path / "home", [ReadLog("t"), ReadLog("new", windows=None), ReadLog("slow", 0)])
    lake = Lake(cluster.open_home().lake)
    log = log_table(TableSchema("shop", "t", (), CdcOptions()))
    marks = {LATE: 3, REQUESTS: 70, RETRIES: 2}
    times = [("died", 0, 5), ("cdc_off", 10, 20)]
    with write_as(WriteSource.OBSERVED):
        lake.append_once(log, log.schema.empty_table(), {"ingest": 1, **marks}, None)
        for loss, since, until in times:
            gap = LogGap("shop", "t", LogLoss(loss), Microseconds(since), Microseconds(until), "a reason")
            log_gaps.record_log_gaps(lake, Clock(POSITION_US), [gap])
            if loss == "died":
                log_gaps.accept_log_gaps(lake, Clock(POSITION_US), "shop", "t", "known")
    samples = scrape_samples(home)
    assert value(samples, "cdc_platform_ingest_logs", cluster="prod") == 3
    expected = {
        "cdc_platform_ingest_lag_seconds": 301,
        "cdc_platform_ingest_ttl_seconds": TTL_SECONDS,
        "cdc_platform_ingest_lag_ttl_ratio": (301 * SECOND_US - 1) / (TTL_SECONDS * SECOND_US),
        "cdc_platform_ingest_last_advance_timestamp_seconds": POSITION_US / SECOND_US,
        "cdc_platform_ingest_windows_total": 3,
        "cdc_platform_ingest_rows_total": 0,
        "cdc_platform_ingest_late_rows_total": 3,
        "cdc_platform_ingest_requests_total": 70,
        "cdc_platform_ingest_request_retries_total": 2,
    }
    assert {name: value(samples, name, **log_labels("t")) for name in expected} == expected
    states = ("fine", "half", "most", "dying", "unknown")

    def state_of(table: str) -> list[str]:
        name = "cdc_platform_ingest_lag_state"
        return [state for state in states if value(samples, name, **log_labels(table, state=state)) == 1]

    assert [state_of(table) for table in ("t", "slow", "new")] == [["most"], ["fine"], ["unknown"]]
    gaps = [value(samples, "cdc_platform_log_gaps", **log_labels("t", state=state)) for state in ("open", "accepted")]
    assert gaps == [1, 1]
    assert {name for name in expected if value(samples, name, **log_labels("new")) is not None} == set()
    # A log that only an earlier release ingested has no count of requests, and rows that never expire have no ratio.
    assert value(samples, "cdc_platform_ingest_requests_total", **log_labels("slow")) is None
    assert value(samples, "cdc_platform_ingest_lag_ttl_ratio", **log_labels("slow")) is None
    assert value(samples, "cdc_platform_ingest_ttl_seconds", **log_labels("slow")) == 0
    assert unreadable_sections(samples) == set()


def test_counters_and_lag_follow_the_home_from_scrape_to_scrape(tmp_path: Path) -> None:
    """One collector sees commits made since, also by others; the lag of the same home falls and grows."""
    home, cluster = ingested_home(tmp_path / "home", [ReadLog("t")])
    metrics = HomeMetrics(home, Clock(AT_US))

    def windows_and_lag() -> tuple[float | None, ...]:
        samples = parse_samples(format_metrics(metrics.scrape())[0].decode())
        names = ("cdc_platform_ingest_windows_total", "cdc_platform_ingest_lag_seconds")
        return tuple(value(samples, name, **log_labels("t")) for name in names)

    assert windows_and_lag() == (3, 301)
    read_up_to(Lake(cluster.open_home().lake), [ReadLog("t", windows=7, position_us=POSITION_US + 300 * SECOND_US)])
    assert windows_and_lag() == (7, 1)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a home with rows in every table, and two results of a check."""
    home = every_table(tmp_path_factory.mktemp("full"))
    lake, clock = Lake(home / "lake"), Clock(POSITION_US)
    for scope, passed in (("", True), ("shop.carts", False), ("shop.visits", False)):
        check_run = check_results.CheckRun.begin(lake, clock, "a test", scope)
        check_results.store_check_results(check_run, [Outcome("log_batch_complete", passed)])
    return home


def test_a_full_home_has_every_other_metric(full: Path) -> None:
    """Generations by state, the inbox's oldest event and check failures by asset agree with `status`."""
    home = open_home_location(full)
    samples = scrape_samples(home)
    status = run("--home", full, "--clock", format_us(AT_US), "status", "--json").json
    of_check = {"cluster": "", "check": "log_batch_complete", "asset": "platform/cdc_log"}
    assert value(samples, "cdc_platform_check_failures", **of_check) == 2
    passed_at = value(samples, "cdc_platform_check_last_success_timestamp_seconds", **of_check)
    assert passed_at == POSITION_US / SECOND_US
    states = {state.name.lower() for state in GenerationState}
    counts = [value(samples, "cdc_platform_generations", cluster="", state=state) or 0 for state in states]
    assert sum(counts) == status["generations"]["known"] + status["generations"]["removed"] > 0
    assert value(samples, "cdc_platform_inbox_events", cluster="") == len(status["inbox"])
    names = {name for name, _ in samples}
    has_age = "cdc_platform_inbox_oldest_event_age_seconds" in names
    assert has_age == bool(status["inbox"])


def test_every_query_of_the_dashboard_finds_series(full: Path, tmp_path: Path) -> None:
    """Each selector, by name, labels and values, and each legend by its labels, in homes that have lived."""
    log, lost = log_table(TableSchema("shop", "t", (), CdcOptions())), ("shop", "t", LogLoss.DIED)
    home, cluster = ingested_home(tmp_path / "home", [ReadLog("t")])
    lake = Lake(cluster.open_home().lake)
    with write_as(WriteSource.OBSERVED):
        lake.append_once(log, log.schema.empty_table(), {"ingest": 1, LATE: 3, REQUESTS: 70, RETRIES: 2}, None)
        log_gaps.record_log_gaps(
            lake, Clock(POSITION_US), [LogGap(*lost, Microseconds(0), Microseconds(5), "a reason")]
        )
    series = [
        (name, dict(labels)) for name, labels in [*scrape_samples(home), *scrape_samples(open_home_location(full))]
    ]
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    for panel in dashboard["panels"]:
        title = panel["title"]
        assert title
        assert panel["fieldConfig"]["defaults"]["unit"], title
        for target in panel["targets"]:
            legend = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            left = re.match(r"(?:sum|count)(?: by \(([^)]*)\))?", target["expr"])
            assert left is None or legend <= set(re.findall(r"\w+", left[1] or "")), title
            for name, matchers in re.findall(r"(cdc_platform_\w+)(?:{([^}]*)})?", target["expr"]):
                equal = dict(re.findall(r'(\w+)="([^"]*)"', matchers))
                free = set(re.findall(r"(\w+)=~", matchers))
                found = [labels for known, labels in series if known == name and equal.items() <= labels.items()]
                assert found, (title, name, matchers)
                assert all(free | legend <= labels.keys() for labels in found), (title, name)
    for variable in dashboard["templating"]["list"]:
        for name, label in re.findall(r"label_values\((\w+), (\w+)\)", variable.get("definition", "")):
            assert any(known == name and label in labels for known, labels in series), variable["name"]


def test_an_empty_home_has_no_series_of_a_log(tmp_path: Path) -> None:
    """Every section is readable; known zeros are exported, and nothing else."""
    samples = scrape_samples(open_home_location(tmp_path / "home"))
    assert unreadable_sections(samples) == set()
    assert value(samples, "cdc_platform_inbox_events", cluster="") == 0
    assert {name for name, _ in samples} == {
        "cdc_platform_build_info",
        "cdc_platform_section_readable",
        "cdc_platform_ingest_logs",
        "cdc_platform_generations",
        "cdc_platform_inbox_events",
    }


@pytest.mark.parametrize(
    ("table", "sections"),
    [
        ("platform/consumers", {"ingest", "gaps", "logs"}),
        ("platform/cdc_table_changes", {"ingest", "gaps", "logs"}),
        ("platform/log_gaps", {"gaps"}),
        ("platform/judgements", {"checks"}),
        ("shop/t_scylla_cdc_log", {"logs"}),
        ("platform/generation_switches", {"generations"}),  # an empty inbox needs no switches
    ],
)
def test_a_damaged_table_loses_only_its_sections(table: str, sections: set[str], tmp_path: Path) -> None:
    """Other sections, other logs and the outer home are read; the command reports the damage and exits with 1."""
    home, cluster = ingested_home(tmp_path / "home", [ReadLog("t"), ReadLog("u")])
    lake = Lake(cluster.open_home().lake)
    entry = lake.root / table / "_delta_log" / "00000000000000000000.json"
    entry.parent.mkdir(parents=True, exist_ok=True)
    entry.write_text('{"add": {"path": "secret', encoding="utf-8")
    samples = scrape_samples(home)
    assert {section for cluster, section in unreadable_sections(samples) if cluster == "prod"} == sections
    assert {section for cluster, section in unreadable_sections(samples) if not cluster} == set()
    lag = value(samples, "cdc_platform_ingest_lag_seconds", **log_labels("u"))
    assert (lag is None) == ("ingest" in sections)
    if sections == {"logs"}:
        rows = [value(samples, "cdc_platform_ingest_rows_total", **log_labels(name)) for name in ("t", "u")]
        assert rows == [None, 0]
    answer = run("--home", home.path, "--clock", format_us(AT_US), "metrics")
    assert answer.exit_code == 1
    assert parse_samples(answer.stdout) == samples
    assert all("[metrics-incomplete]" in line for line in answer.stderr.splitlines())
    assert "secret" not in answer.stdout


def test_a_damaged_registration_leaves_the_home_itself(tmp_path: Path) -> None:
    """If no cluster can be listed, the section reports it, and the home's own metrics are exported."""
    home, cluster = ingested_home(tmp_path / "home", [ReadLog("t")])
    (cluster.home / "cluster.json").write_text("{", encoding="utf-8")
    samples = scrape_samples(home)
    assert unreadable_sections(samples) == {("", "clusters")}
    assert value(samples, "cdc_platform_inbox_events", cluster="") == 0


def test_a_failing_section_exports_no_partial_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A section that raises after some samples exports none of them; the other sections are exported."""
    home, _ = ingested_home(tmp_path / "home", [ReadLog("t")])

    def fails(lake: Lake, scrape: collector.Scrape) -> bool:
        assert SECTIONS["ingest"](lake, scrape)
        raise ZeroDivisionError("row 7 has customer 4711")

    monkeypatch.setattr(collector, "SECTIONS", {**SECTIONS, "ingest": fails})
    text = format_metrics(HomeMetrics(home, Clock(AT_US)).scrape())[0].decode()
    samples = parse_samples(text)
    assert unreadable_sections(samples) == {("", "ingest"), ("prod", "ingest")}
    assert value(samples, "cdc_platform_ingest_lag_seconds", **log_labels("t")) is None
    assert value(samples, "cdc_platform_inbox_events", cluster="prod") == 0
    assert "4711" not in text


def test_the_work_of_a_scrape_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only MAX_LOGS logs have series, though all are counted; a scrape past its time limit opens nothing more."""
    home, _ = ingested_home(tmp_path / "home", [ReadLog(name) for name in ("a", "b", "c")])
    monkeypatch.setattr(collector, "MAX_LOGS", 2)
    samples = scrape_samples(home)
    tables = {dict(labels).get("table") for name, labels in samples if name == "cdc_platform_ingest_lag_seconds"}
    assert (tables, value(samples, "cdc_platform_ingest_logs", cluster="prod")) == ({"a", "b"}, 3)
    monkeypatch.setattr(collector, "SCRAPE_SECONDS", -1.0)
    late = scrape_samples(home)
    everything = {(cluster, section) for cluster in ("", "prod") for section in SECTIONS}
    assert unreadable_sections(late) == everything


def test_names_with_escapes_are_parsed_back() -> None:
    """Quoted table names may contain any character; both formats preserve them."""
    odd = 'a"b\\c\nd'
    scrape = collector.Scrape(AT_US, time.monotonic())
    scrape.add(METRICS[3], "shop", odd, value=1)
    for accept, parse in (
        ("application/openmetrics-text;version=1.0.0", text_string_to_metric_families),
        ("text/plain", parse_older_format),
    ):
        text, content_type = format_metrics(scrape, accept)
        assert content_type.startswith(accept.partition(";")[0])
        (sample,) = [item for family in parse(text.decode()) for item in family.samples if item.labels.get("table")]
        assert sample.labels["table"] == odd


def test_every_check_has_an_asset_that_shows_it() -> None:
    """Each invariant maps to one of the assets on which Dagster defines the check."""
    from cdc_platform.definitions import defs

    keys = {(key.name, key.asset_key.to_user_string()) for key in defs.resolve_asset_graph().asset_check_keys}
    names = [str(name) for family in INVARIANT_FAMILIES for name in family.invariants]
    assert [name for name in names if (name, find_check_asset(name)) not in keys] == []
    assert find_check_asset("of another version") == ""
