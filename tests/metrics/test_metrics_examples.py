"""The dashboard, the alert rules and the documented table name exactly the exported metrics."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # pyrefly: ignore[untyped-import]

from cdc_platform.cli.commands import COMMANDS
from cdc_platform.metrics.collector import SECTIONS
from cdc_platform.metrics.declarations import METRICS
from cdc_platform.server.metrics_app import METRICS_PATH

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs" / "examples" / "metrics"
EXPORTED = {metric.name: metric for metric in METRICS}
_WORDS = {"by", "without", "on", "ignoring", "group_left", "group_right", "and", "or", "unless", "bool", "offset"}
_TOKEN = re.compile(
    r'(?P<text>"(?:[^"\\]|\\.)*")|(?P<range>\[[^\]]*\])|(?P<number>\d[\d.eE]*[smhdwy]?)|'
    r"(?P<name>\$?[A-Za-z_:][A-Za-z0-9_:]*)|(?P<sign>[-+*/%^<>=!~(){},])|(?P<space>\s+)"
)


def parse_metrics(query: str) -> dict[str, set[str]]:
    """Return the metrics that a PromQL query selects, each with the labels that it matches."""
    tokens, end = list[tuple[str, str]](), 0
    while end < len(query):
        match = _TOKEN.match(query, end)
        assert match is not None, f"not PromQL at {query[end:]}"
        kind = str(match.lastgroup)
        if kind != "space":
            tokens.append((kind, match[0]))
        end = match.end()
    metrics, index = dict[str, set[str]](), 0
    while index < len(tokens):
        kind, text = tokens[index]
        following = tokens[index + 1][1] if index + 1 < len(tokens) else ""
        if kind == "name" and text in _WORDS and following == "(":
            index += [word for _, word in tokens[index:]].index(")") + 1  # a list of labels
        elif kind == "name" and text not in _WORDS and following not in ("(", "by", "without"):
            labels = set[str]()
            if following == "{":
                inside = tokens[index + 2 :][: [word for _, word in tokens[index + 2 :]].index("}")]
                labels = {word for sort, word in inside if sort == "name"}
                index += len(inside) + 2
            metrics[text] = metrics.get(text, set()) | labels
            index += 1
        else:
            index += 1
    return metrics


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("up", {"up": set()}),
        ('sum by (a, b) (rate(x_total{c=~"d{", e!="f"}[5m])) > 0.1', {"x_total": {"c", "e"}}),
        ("(a > 0) - on (b) group_left (c) d offset 5m", {"a": set(), "d": set()}),
        ("time() - max by (cluster) (x_seconds) > 2 * 86400", {"x_seconds": set()}),
        ("count(x == 0) or vector(0)", {"x": set()}),
    ],
)
def test_queries_are_parsed(query: str, expected: dict[str, set[str]]) -> None:
    """Functions, keywords, labels and texts are not taken for metrics."""
    assert parse_metrics(query) == expected


def dashboard_queries(value: Any) -> Iterator[str]:
    """Yield every query of a dashboard, including those of its variables."""
    if isinstance(value, list):
        for item in value:
            yield from dashboard_queries(item)
    elif isinstance(value, dict):
        if "expr" in value:
            yield value["expr"]
        if value.get("type") == "query":
            yield re.sub(r"label_values\((\w+), (\w+)\)", r'\1{\2=""}', value["definition"])
        for item in value.values():
            yield from dashboard_queries(item)


def assert_exported(queries: list[str]) -> set[str]:
    """Assert that all metrics and labels of queries exist; return the metrics."""
    used = set[str]()
    for query in queries:
        for name, labels in parse_metrics(query).items():
            assert name in EXPORTED, query
            assert labels <= set(EXPORTED[name].labels), query
            used.add(name)
    return used


def test_the_dashboard_shows_every_metric_and_no_other() -> None:
    """Queries use exported metrics and labels only; each panel has a query and a description and overlaps no other."""
    dashboard = json.loads((EXAMPLES / "grafana-dashboard.json").read_text(encoding="utf-8"))
    assert assert_exported(list(dashboard_queries(dashboard))) == set(EXPORTED)
    cells = set[tuple[int, int]]()
    for panel in dashboard["panels"]:
        assert panel["targets"]
        assert panel["description"]
        grid = panel["gridPos"]
        panel_cells = {
            (x, y) for x in range(grid["x"], grid["x"] + grid["w"]) for y in range(grid["y"], grid["y"] + grid["h"])
        }
        assert not panel_cells & cells, panel["title"]
        assert grid["x"] + grid["w"] <= 24
        cells |= panel_cells
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_the_alert_rules_name_metrics_and_commands_that_exist() -> None:
    """Each rule has a summary; its labels are those of its query's metrics, and its command exists."""
    rules = yaml.safe_load((EXAMPLES / "prometheus-rules.yml").read_text(encoding="utf-8"))
    (group,) = rules["groups"]
    assert len(assert_exported([rule["expr"] for rule in group["rules"]])) >= 8
    for rule in group["rules"]:
        selected = {label for name in parse_metrics(rule["expr"]) for label in EXPORTED[name].labels}
        texts = " ".join(rule["annotations"].values())
        assert set(re.findall(r"\$labels\.(\w+)", texts)) <= selected, rule["alert"]
        assert set(re.findall(r"cdc-platform (\w+)", texts)) <= set(COMMANDS), rule["alert"]
        assert rule["annotations"]["summary"]
        assert rule["labels"]["severity"] in {"info", "warning", "critical"}


def test_the_scrape_configuration_reads_the_endpoint() -> None:
    """The scrape configuration has the endpoint's path, the token's file, and existing rule files."""
    configuration = yaml.safe_load((EXAMPLES / "prometheus.yml").read_text(encoding="utf-8"))
    (job,) = configuration["scrape_configs"]
    assert job["metrics_path"] == METRICS_PATH
    assert job["authorization"]["credentials_file"].endswith("/up/ui.token")
    assert all((EXAMPLES / name).is_file() for name in configuration["rule_files"])


def test_the_page_has_every_metric_and_every_section() -> None:
    """The page lists name, type, labels and meaning of every metric as declared, in that order."""
    page = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(cdc_platform_\w+)` \| (\w+) \| ([^|]*) \| (.*) \|$", page, re.MULTILINE)
    assert rows == [
        (
            metric.name,
            metric.kind,
            ", ".join(f"`{label}`" for label in metric.labels),
            metric.meaning.rstrip("."),
        )
        for metric in METRICS
    ]
    assert all(f"`{section}`" in page for section in SECTIONS)


def test_names_follow_the_conventions_of_prometheus() -> None:
    """Names have one prefix and end in base units; only counters end in `_total`; no label is listed twice."""
    for metric in METRICS:
        assert re.fullmatch(r"cdc_platform_[a-z][a-z0-9_]*[a-z0-9]", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert not re.search(r"_(ms|us|minutes|hours|days|percent|kb|mb)(_|$)", metric.name)
        assert metric.meaning.endswith(".")
        assert len(set(metric.labels)) == len(metric.labels)
