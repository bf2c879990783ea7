"""A person queues a node in the browser, sees its partition appear and its join succeed, and views all of it.

A headless Chromium drives the UI; Dagster's GraphQL only reports whether something has happened yet. Set
CDC_PLATFORM_SCREENSHOTS to a folder, such as build/screenshots, to store pictures of the pages.
"""

from __future__ import annotations

import json
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake
from playwright.sync_api import Browser, BrowserContext, Error, Page, expect
from support.homes.log_lake import split
from support.homes.v1_tables import old_cluster, times
from support.processes.chromium import HERE_ALONE, chromium
from support.worlds.rehearsal import node_config
from support.worlds.serving import Serving

from cdc_platform.clock import Clock
from cdc_platform.metastore import JoinRequest, inbox
from cdc_platform.tables import TABLET_STREAMS
from cdc_platform.timeline import GenerationKeys

SECOND = 1000
"""Milliseconds, the browser's unit."""
expect.set_options(timeout=60 * SECOND)

pytestmark = [pytest.mark.spark, pytest.mark.browser, pytest.mark.timeout(600)]

SKIPPED = "2020-09-13T12:26:40.000Z"
"""A V1 generation that is older than every row of a log."""
HOST = "5f0c3c5e-3f6f-4f6e-9a57-0d8b1f1f2a10"
CONFIG = f"""\
ops:
  queue_node:
    config:
      host_id: {HOST}
      address: 10.0.0.4
      datacenter: dc1
      rack: r1
      num_tokens: 16
      shard_count: 4
      ignore_msb: 12
"""
_RUNS = """query ($partition: String!) {
  runsOrError(filter: {tags: [{key: "dagster/partition", value: $partition}]}) { ... on Runs { results { status } } }
}"""
# Runs in the page and asks until the newest run of a partition has ended.
_RUN_ENDED = """async ([query, partition, patience]) => {
  for (const start = Date.now(); Date.now() - start < patience; ) {
    const answer = await fetch("/graphql", {
      method: "POST",
      headers: {"Content-Type": "application/json"},
      body: JSON.stringify({query, variables: {partition}}),
    });
    const [newest] = (await answer.json()).data.runsOrError.results;
    if (newest && ["SUCCESS", "FAILURE", "CANCELED"].includes(newest.status)) return newest.status;
    await new Promise((resolve) => setTimeout(resolve, 500));
  }
  return "it takes too long";
}"""


_LAUNCH = """mutation ($job: String!, $config: RunConfigData!) { launchRun(executionParams: {
  selector: {repositoryName: "__repository__", repositoryLocationName: "cdc_platform", jobName: $job},
  runConfigData: $config, executionMetadata: {tags: []}
}) { __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message }
  ... on RunConfigValidationInvalid { errors { message } } } }"""
_RUN = "query ($run: ID!) { runOrError(runId: $run) { ... on Run { status } } }"
_PARTITIONS = """{ assetNodeOrError(assetKey: {path: ["system_distributed", "cdc_generation_timestamps"]}) {
  ... on AssetNode { partitionStats { numPartitions numMaterialized } } } }"""
_AUDITS = """{ runsOrError(filter: {pipelineName: "audit_tables", statuses: [SUCCESS]}) {
  ... on Runs { results { runId } } } }"""
_BOOTSTRAPS = """{ runsOrError(filter: {pipelineName: "bootstrap"}) { ... on Runs { results { runId } } } }"""
REFUSED = [
    ("host_id", "", "'' is not a UUID; write it as daf4e510-781a-4f03-aaae-27df6ee7796f"),
    ("host_id", "node-4", "'node-4' is not a UUID; write it as daf4e510-781a-4f03-aaae-27df6ee7796f"),
    (
        "address",
        "10.0.0.4:9042",
        "'10.0.0.4:9042' is no address: write an IP address as 10.0.0.4, or the name of a host",
    ),
    ("datacenter", "", "'' is no name: 1 to 255 printable characters on one line"),
    ("rack", "a\nb", r"'a\nb' is no name: 1 to 255 printable characters on one line"),
    ("tokens", ["x"], "entry 0 is 'x', which is no integer; tokens are integers from"),
    ("num_tokens", -1, "-1 is no whole number from 0 to 4194304"),
    ("shard_count", 0, "0 is no whole number from 1 to 4096"),
    ("ignore_msb", 32, "32 is no whole number from 0 to 31"),
    ("features", [""], "'' is no name: 1 to 255 printable characters on one line"),
]
"""An invalid value of each field of the launchpad, and the rule that the refusal names."""
PAGES: list[tuple[str, str, Sequence[str]]] = [
    ("overview", "/overview/activity/timeline", ("rewrite", "audit_tables")),
    (
        "all-groups",
        "/asset-groups",
        ("inbox", "generations", "publishing", "v1_format", "cdc_log", "tablets", "expiry"),
    ),
    *(
        (f"group-{group}", f"/locations/cdc_platform/asset-groups/{group}/lineage", assets)
        for group, assets in {
            "inbox": ("bootstrap_events",),
            "publishing": ("cdc_streams_descriptions_v2", "cdc_generation_timestamps", "100% filled"),
            "v1_format": ("cdc_generation_descriptions", "rewrite_decisions", "cdc_generation_timestamps"),
            "cdc_log": ("cdc_log", "consumed_hours", "cdc_streams_descriptions_v2"),
            "tablets": ("tablet_layouts", "cdc_streams", "cdc_timestamps"),
            "clusters": ("observed_cluster", "ingested_log", "ScyllaDB"),
            "expiry": ("removed_generations",),
            "tables": ("tables",),
        }.items()
    ),
    (
        "group-generations",
        "/locations/cdc_platform/asset-groups/generations/list",
        ("ring_before_join", "No edge leads here, because it would close a cycle", "cdc_local", "nodes"),
    ),
    (
        "v1-to-v2",
        "/assets/system_distributed/cdc_generation_timestamps?view=lineage&lineageScope=upstream&lineageDepth=3",
        ("v1_format", "publishing", "rewrite_decisions"),
    ),
    (
        "skipped",
        f"/assets/system_distributed/cdc_generation_timestamps?view=partitions&partition={SKIPPED}",
        ("Missing (0)", "Materialized", "skipped", "and logs have rows only from"),
    ),
    (
        "violation",
        "/assets/platform/tables?view=checks&checkDetail=commits_known",
        ("commits_known", "Failed", "system.cdc_streams"),
    ),
    ("sensors", "/automation", ("changed_clusters", "changed_logs", "needed_repairs", "v1_leftovers")),
    ("sensor", "/locations/cdc_platform/sensors/needed_repairs", ("repair_automatically = true", "Running")),
    ("schedules", "/automation?types=schedule", ("hourly_rewrite", "daily_maintenance", "hourly_audit_of_tables")),
    ("schedule", "/locations/cdc_platform/schedules/hourly_rewrite", ("V1 streams table", "Running")),
    (
        "cluster-owner",
        "/assets/platform/observed_cluster",
        ("Owners", "No edge leads to other groups", "Fails if more than 26 hours since last materialization"),
    ),
]
"""The pages in the README: the name of the picture, the address, and expected texts."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The Chromium of this machine, which may not connect to other machines."""
    with chromium(HERE_ALONE) as started:
        yield started


@pytest.fixture(scope="module")
def context(browser: Browser, serving: Serving) -> Iterator[BrowserContext]:
    """A browser that has followed the link; loading the UI's files once is most of the CPU time of a page."""
    context = browser.new_context(base_url=serving.start()["url"], viewport={"width": 1400, "height": 900})
    context.set_default_timeout(60 * SECOND)
    page = context.new_page()
    page.goto(serving.start()["link"])
    page.wait_for_url("**/overview/**")
    page.close()
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """A window with the UI."""
    page = context.new_page()
    yield page
    page.close()


@pytest.fixture
def keep(page: Page, tmp_path: Path) -> Any:
    """Store a picture of the window under a name."""
    folder = Path(os.environ.get("CDC_PLATFORM_SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)

    def save_picture(name: str) -> Path:
        if "CDC_PLATFORM_SCREENSHOTS" in os.environ:
            page.wait_for_load_state("networkidle")  # the last request is for the colour of the assets
        page.screenshot(path=folder / f"{name}.png", animations="disabled")
        return folder / f"{name}.png"

    return save_picture


def test_pages_cannot_connect_to_other_machines(browser: Browser) -> None:
    """Names and addresses of other machines both fail."""
    page = browser.new_page()
    for address in ("http://example.com", "http://192.0.2.1", "http://[2001:db8::1]"):
        with pytest.raises(Error, match="ERR_NAME_NOT_RESOLVED"):
            page.goto(address)
    page.close()


@pytest.mark.timeout(600)  # two joins, each in its own process and Spark session
def test_node_joins(page: Page, serving: Serving, keep: Any) -> None:
    """A node queued in the launchpad becomes a partition, its join succeeds, and the UI shows all of it."""
    first = node_config(1)
    inbox.queue_join(serving.lake, Clock(), JoinRequest.model_validate(first))

    queue_in_the_launchpad(page, keep)
    keys = GenerationKeys.read(serving.lake)
    earlier, generation_id = [keys.of(join.generation_id) for join in wait_for_two(page, serving)]
    assert wait_for_join(page, earlier) == "SUCCESS"
    assert wait_for_join(page, generation_id) == "SUCCESS"
    assert inbox.read_pending_events(serving.lake) == []

    view_partition(page, generation_id, keep)
    view_checks(page, generation_id, keep)
    follow_the_lineage(page, keep)


def queue_in_the_launchpad(page: Page, keep: Any) -> None:
    """Run the job that queues a node, with the node in its config; the config opens with an example."""
    page.goto("/locations/cdc_platform/jobs/bootstrap/playground")
    editor = page.locator(".CodeMirror").last
    expect(editor).to_contain_text("datacenter1")
    keep("example")
    editor.evaluate("(element, text) => element.CodeMirror.setValue(text)", CONFIG)
    expect(page.get_by_text("No errors")).to_be_visible()
    keep("launchpad")
    page.get_by_role("button", name="Launch Run").last.click()
    page.wait_for_url("**/runs/*")
    expect(page.get_by_text("Success", exact=True).first).to_be_visible()
    keep("queued")


def wait_for_two(page: Page, serving: Serving) -> list[inbox.PendingEvent]:
    """Return both events in order, after the sensor has added a partition for each."""
    rows = serving.lake.read(inbox.BOOTSTRAP_EVENTS, ["event_id", "generation_id", "host_id", "created_at"])
    hosts = (node_config(1)["host_id"], HOST)
    events = sorted((row for row in rows.to_pylist() if row["host_id"] in hosts), key=lambda row: row["created_at"])
    assert [event["host_id"] for event in events] == list(hosts)
    page.goto("/assets/platform/topology_descriptions?view=partitions")
    for event in events:
        expect(page.get_by_text(event["generation_id"][:8]).first).to_be_visible()
    return [inbox.PendingEvent(event["event_id"], event["generation_id"], event["host_id"]) for event in events]


def wait_for_join(page: Page, generation_id: str) -> str:
    """Return how the newest run of this generation ended, from a page that shows nothing of it meanwhile."""
    page.goto("/server_info")
    return page.evaluate(_RUN_ENDED, [_RUNS, generation_id, 150 * SECOND])


def view_partition(page: Page, generation_id: str, keep: Any) -> None:
    """View the generation's partition in the UI, with its numbers and pictures."""
    page.goto(f"/assets/platform/topology_descriptions?view=partitions&partition={generation_id}")
    expect(page.get_by_text("Materialized", exact=True).first).to_be_visible()
    expect(page.get_by_text("dagster/row_count")).to_be_visible()
    keep("partition")
    for alt in ("ring", "streams a node and a shard"):
        show_picture(page, alt)
        keep(alt.replace(" ", "_"))
    page.goto(f"/assets/system_distributed/cdc_generation_timestamps?view=partitions&partition={generation_id}")
    show_picture(page, "timeline of generations")
    keep("timeline")
    with page.expect_popup() as opened:
        page.locator(f'a[href="/shown/reports/{generation_id}.html"]').first.click()
    expect(opened.value.get_by_text("checks passed")).to_be_visible()
    opened.value.screenshot(path=keep("published").with_name("report.png"))


def show_picture(page: Page, alt: str) -> None:
    """Assert that the page shows a materialization's picture without a click, and that the browser can draw it."""
    picture = page.get_by_role("img", name=alt, exact=True)
    picture.scroll_into_view_if_needed()
    expect(picture).to_be_visible()
    assert picture.evaluate("element => element.decode().then(() => element.naturalWidth)") > 300


def view_checks(page: Page, generation_id: str, keep: Any) -> None:
    """Assert that every invariant is a check that passed for this generation, except those of storage."""
    page.goto("/assets/platform/topology_descriptions?view=checks&checkDetail=shard_colocation")
    expect(page.get_by_text("Checks (11)")).to_be_visible()
    expect(page.get_by_text("Succeeded", exact=True)).to_have_count(8)
    expect(page.get_by_text("blocking").first).to_be_visible()
    expect(page.get_by_text("Passed").first).to_be_visible()
    expect(page.get_by_text(generation_id).first).to_be_visible()
    keep("checks")


def follow_the_lineage(page: Page, keep: Any) -> None:
    """Follow the lineage from the published timestamps to the inbox."""
    page.goto("/assets/system_distributed/cdc_generation_timestamps?view=lineage&lineageScope=upstream&lineageDepth=4")
    expect(page.get_by_text("bootstrap_events").first).to_be_visible()
    expect(page.get_by_text("generations", exact=True).first).to_be_visible()
    keep("lineage")
    page.goto("/assets/platform/bootstrap_events?view=lineage&lineageScope=downstream")
    expect(page.get_by_text(re.compile("topo.*_descriptions")).first).to_be_visible()  # shortened in small graphs


@pytest.fixture(scope="module")
def filled(serving: Serving) -> Serving:
    """The same home with joined and V1 generations, the log of a split table, and a foreign row.

    The jobs that rewrite, and that find the row, have run in it.
    """
    lake = serving.lake
    serving.start()
    inbox.queue_join(lake, Clock(), JoinRequest.model_validate(node_config(2)))
    wait_until(lambda: not inbox.read_pending_events(lake))
    old_cluster(lake, times(4), members=[], tables=[("orders", 3 * 3600)])
    split(lake)
    table_path = lake.path(TABLET_STREAMS)
    write_deltalake(table_path, DeltaTable(table_path).to_pyarrow_table().slice(0, 1), mode="append")
    # Nodes that join are marked as rewritten from the start.
    forced = {"ops": {"system_distributed__cdc_streams_descriptions": {"config": {"force": True}}}}
    jobs = {"rewrite": forced, "audit_tables": {}}
    runs = [ask(serving, _LAUNCH, job=job, config=config)["launchRun"]["run"]["runId"] for job, config in jobs.items()]
    assert [wait_for_run(serving, run) for run in runs] == ["SUCCESS"] * 2
    wait_until(lambda: len(set(ask(serving, _PARTITIONS)["assetNodeOrError"]["partitionStats"].values())) == 1)
    return serving


def ask(serving: Serving, query: str, **variables: Any) -> Any:
    """Return the UI's answer to a program."""
    request = urllib.request.Request(
        f"{serving.start()['url']}/graphql",
        json.dumps({"query": query, "variables": variables}).encode(),
        {"Content-Type": "application/json", **serving.header},
    )
    try:
        with urllib.request.urlopen(request, timeout=200) as answer:
            return json.load(answer)["data"]
    except urllib.error.HTTPError as refused:  # a response with an error has the status 500
        return json.load(refused)["data"]


def wait_for_run(serving: Serving, run: str) -> str:
    """Return how a run ended."""
    ended = ("SUCCESS", "FAILURE", "CANCELED")
    wait_until(lambda: ask(serving, _RUN, run=run)["runOrError"]["status"] in ended)
    return ask(serving, _RUN, run=run)["runOrError"]["status"]


def wait_until(is_true: Callable[[], bool]) -> None:
    """Poll a condition for at most some minutes."""
    deadline = time.monotonic() + 200
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.5)


@pytest.mark.parametrize(("field", "value", "rule"), REFUSED)
def test_a_launch_with_a_wrong_field_is_refused_before_there_is_a_run(
    serving: Serving, field: str, value: object, rule: str
) -> None:
    """GraphQL, which launchpad and programs use, answers one line with field, value and rule."""
    before = ask(serving, _BOOTSTRAPS)
    node = {name: default for name, default in node_config(3).items() if name != "tokens"}
    config = {"ops": {"queue_node": {"config": node | {field: value}}}}
    answer = ask(serving, _LAUNCH, job="bootstrap", config=config)["launchRun"]
    assert answer["__typename"] == "PythonError"
    (line,) = answer["message"].splitlines()
    assert f"the run's config: {field}: {rule}" in line
    assert ask(serving, _BOOTSTRAPS) == before


def test_launch_without_a_node_is_refused(serving: Serving) -> None:
    """The message names the missing field."""
    answer = ask(serving, _LAUNCH, job="bootstrap", config={})["launchRun"]
    assert answer["__typename"] == "RunConfigValidationInvalid"
    assert "Missing required config entry" in answer["errors"][0]["message"]


def test_launchpad_shows_the_violated_rule(page: Page, keep: Any) -> None:
    """An empty host_id shows the rule, and nothing is launched."""
    page.goto("/locations/cdc_platform/jobs/bootstrap/playground")
    editor = page.locator(".CodeMirror").last
    expect(editor).to_contain_text("host_id")
    editor.evaluate("(element, text) => element.CodeMirror.setValue(text)", CONFIG.replace(HOST, '""'))
    page.get_by_role("button", name="Launch Run").last.click()
    expect(page.get_by_text("host_id: '' is not a UUID").first).to_be_visible()
    keep("launchpad-refused")
    assert page.url.endswith("/playground")


@pytest.mark.parametrize(("name", "address", "texts"), PAGES, ids=[name for name, *_ in PAGES])
def test_page_shows_what_the_readme_describes(
    filled: Serving, page: Page, keep: Any, name: str, address: str, texts: Sequence[str]
) -> None:
    """Each page that the README and its links lead to has these words, and no error."""
    page.goto(address)
    for text in texts:
        expect(page.get_by_text(text).first).to_be_visible()
    assert page.get_by_text("Unexpected error").count() == 0
    expect(page.get_by_text("Loading…")).to_have_count(0)
    keep(name)


def test_run_with_failed_checks_shows_them_in_its_summary(filled: Serving, page: Page, keep: Any) -> None:
    """The audit found a foreign row and succeeded: the run and the list of runs name the checks."""
    newest = ask(filled, _AUDITS)["runsOrError"]["results"][0]["runId"]
    page.goto(f"/runs/{newest}")
    expect(page.get_by_text("Success", exact=True).first).to_be_visible()
    expect(page.get_by_text("The run goes on, and these checks failed: ").first).to_be_visible()
    keep("run-violated")
    page.get_by_text("View tags and config").click()
    expect(page.get_by_text("cdc_platform/violated").first).to_be_visible()
    keep("run-violated-tags")
    page.goto("/runs")
    expect(page.get_by_text("cdc_platform/violated").first).to_be_visible()
    keep("runs")
