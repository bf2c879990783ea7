"""Metrics over HTTP: a real server behind the authentication, with the requests of a scraper such as Prometheus."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

import pytest
import uvicorn
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as parse_older_format
from support.homes.ingested import POSITION_US, ReadLog, ingested_home

from cdc_platform.clock import SECOND_US, Clock, Microseconds
from cdc_platform.metrics import HomeMetrics, Scrape
from cdc_platform.metrics.declarations import METRICS
from cdc_platform.server import LOOPBACK, UiAddresses, listen_on_loopback, metrics_app
from cdc_platform.server.auth import AsgiReceive, AsgiScope, AsgiSend, AuthMiddleware, respond
from cdc_platform.server.metrics_app import MetricsApp

TOKEN = "a-token-of-the-test"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
PROMETHEUS = "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
AT_US = Microseconds(POSITION_US + 60 * SECOND_US)


async def behind(scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
    """The UI behind the metrics."""
    if scope["type"] == "http":
        await respond(send, HTTPStatus.OK, b"the UI", "text/plain")


@dataclass(frozen=True)
class Served:
    """A server and its home."""

    port: int
    home: Path

    def ask(self, path: str, headers: dict[str, str], method: str = "GET") -> tuple[int, str, str]:
        """Request a path; return status, content type and text."""
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=60)
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        result = answer.status, answer.getheader("content-type") or "", answer.read().decode()
        connection.close()
        return result


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """Serve a home with an ingested log behind the authentication."""
    home, _ = ingested_home(tmp_path / "home", [ReadLog("t")])
    bound = listen_on_loopback(0)
    names = UiAddresses(bound.getsockname()[1])
    gate = AuthMiddleware(MetricsApp(behind, home, Clock(AT_US)), names, TOKEN)
    server = uvicorn.Server(uvicorn.Config(gate, log_level="warning", proxy_headers=False))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    yield Served(names.port, home.path)
    server.should_exit = True
    thread.join()


def test_a_scraper_with_the_token_reads_both_formats(served: Served) -> None:
    """The requested format is served, with the same families and values, and the lag by the given clock."""
    status, kind, text = served.ask("/metrics", BEARER | {"Accept": PROMETHEUS})
    assert (status, kind.partition(";")[0]) == (200, "application/openmetrics-text")
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert set(families) == {metric.family for metric in METRICS}
    (lag,) = families["cdc_platform_ingest_lag_seconds"].samples
    assert (lag.labels, lag.value) == ({"cluster": "prod", "keyspace": "shop", "table": "t"}, 60)
    status, kind, older = served.ask("/metrics", BEARER | {"Accept": "text/plain;version=0.0.4"})
    assert (status, kind.partition(";")[0]) == (200, "text/plain")

    def samples(families: Iterable[Metric]) -> set[tuple[str, str, float]]:
        return {(s.name, str(sorted(s.labels.items())), s.value) for family in families for s in family.samples}

    assert samples(parse_older_format(older)) == samples(families.values())


def test_metrics_require_the_token(served: Served) -> None:
    """Requests without the token are refused; other paths go to the UI; POST is refused; no secret is in the text."""
    assert served.ask("/metrics", {})[0] == 401
    assert served.ask("/metrics", BEARER | {"Host": "example.com"})[0] == 421
    assert served.ask("/metrics", {"Authorization": "Bearer wrong"})[0] == 401
    assert served.ask("/metricsx", BEARER)[2] == "the UI"
    assert served.ask("/metrics", BEARER, "POST")[0] == 405
    assert served.ask("/metrics", BEARER, "HEAD")[::2] == (200, "")
    text = served.ask("/metrics", BEARER)[2]
    assert TOKEN not in text
    assert str(served.home) not in text


def test_concurrent_scrapers_share_one_read(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten concurrent scrapers of a slow home cause at most two reads, and all get an answer."""
    read, reads = HomeMetrics.scrape, list[float]()

    def slow(metrics: HomeMetrics) -> Scrape:
        reads.append(time.monotonic())
        time.sleep(0.5)
        return read(metrics)

    monkeypatch.setattr(HomeMetrics, "scrape", slow)
    with ThreadPoolExecutor(10) as scrapers:
        answers = list(scrapers.map(lambda _: served.ask("/metrics", BEARER)[0], range(10)))
    assert answers == [200] * 10
    assert len(reads) <= 2


def test_a_hanging_home_is_refused_in_time(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scrape of a hanging home ends in 503; when the one pending read completes, the endpoint answers again."""
    hangs, read = threading.Event(), HomeMetrics.scrape

    def hanging(metrics: HomeMetrics) -> Scrape:
        assert hangs.wait(60)
        return read(metrics)

    monkeypatch.setattr(HomeMetrics, "scrape", hanging)
    monkeypatch.setattr(metrics_app, "_SCRAPE_TIMEOUT_SECONDS", 0.2)
    assert [served.ask("/metrics", BEARER)[0] for _ in range(2)] == [503, 503]
    monkeypatch.setattr(metrics_app, "_SCRAPE_TIMEOUT_SECONDS", 60.0)
    hangs.set()
    assert served.ask("/metrics", BEARER)[0] == 200
