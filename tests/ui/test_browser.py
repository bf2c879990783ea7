"""What a person does in the browser: queue a node, see its partition appear and its join succeed, look at it all.

The UI is driven in a headless Chromium; Dagster's GraphQL is asked only whether something has happened by now.
Set CDC_PLATFORM_SCREENSHOTS to a folder to keep what was seen.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Error, Page, expect
from support.processes.chromium import HERE_ALONE, chromium
from support.worlds.rehearsal import node_config
from support.worlds.serving import Serving

from cdc_platform.clock import Clock
from cdc_platform.metastore import JoinRequest, inbox
from cdc_platform.timeline import GenerationKeys

SECOND = 1000
"""In milliseconds, as the browser counts."""
expect.set_options(timeout=60 * SECOND)

pytestmark = [pytest.mark.spark, pytest.mark.browser, pytest.mark.timeout(600)]

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
# Runs in the page: asks until the newest run of a partition has ended, well or not.
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


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The Chromium of this machine; nothing in it may reach beyond that."""
    with chromium(HERE_ALONE) as started:
        yield started


@pytest.fixture
def page(browser: Browser, serving: Serving) -> Iterator[Page]:
    """A window on the UI."""
    context = browser.new_context(base_url=serving.start()["url"], viewport={"width": 1400, "height": 900})
    context.set_default_timeout(60 * SECOND)
    page = context.new_page()
    page.goto(serving.start()["link"])
    page.wait_for_url("**/overview/**")
    yield page
    context.close()


@pytest.fixture
def keep(page: Page, tmp_path: Path) -> Any:
    """Keeps what the window shows under a name."""
    folder = Path(os.environ.get("CDC_PLATFORM_SCREENSHOTS") or tmp_path)

    def kept(name: str) -> Path:
        page.screenshot(path=folder / f"{name}.png", animations="disabled")
        return folder / f"{name}.png"

    return kept


def test_no_page_reaches_beyond_this_machine(browser: Browser) -> None:
    """Neither by a name nor by an address."""
    page = browser.new_page()
    for place in ("http://example.com", "http://192.0.2.1", "http://[2001:db8::1]"):
        with pytest.raises(Error, match="ERR_NAME_NOT_RESOLVED"):
            page.goto(place)
    page.close()


@pytest.mark.timeout(600)  # two joins, each a process of its own with a session of its own
def test_a_node_joins(page: Page, serving: Serving, keep: Any) -> None:
    """A node that is queued in the launchpad becomes a partition, its join succeeds, and all of it can be seen."""
    first = node_config(1)
    inbox.queue_join(serving.lake, Clock(), JoinRequest.model_validate(first))

    queue_in_the_launchpad(page, keep)
    known = GenerationKeys.read(serving.lake)
    earlier, generation_id = [known.of(join.generation_id) for join in wait_for_two(page, serving)]
    assert wait_for_join(page, earlier) == "SUCCESS"
    assert wait_for_join(page, generation_id) == "SUCCESS"
    assert inbox.read_pending_events(serving.lake) == []

    look_at_the_partition(page, generation_id, keep)
    look_at_the_checks(page, generation_id, keep)
    follow_the_lineage(page, keep)


def queue_in_the_launchpad(page: Page, keep: Any) -> None:
    """Run the job that queues a node, with the node in its config; it opens with an example."""
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
    """Both events, in their order; the sensor adds a partition for each."""
    rows = serving.lake.read(inbox.BOOTSTRAP_EVENTS, ["event_id", "generation_id", "host_id", "created_at"])
    events = sorted(rows.to_pylist(), key=lambda row: row["created_at"])
    assert [event["host_id"] for event in events][1:] == [HOST]
    page.goto("/assets/platform/topology_descriptions?view=partitions")
    for event in events:
        expect(page.get_by_text(event["generation_id"][:8]).first).to_be_visible()
    return [inbox.PendingEvent(event["event_id"], event["generation_id"], event["host_id"]) for event in events]


def wait_for_join(page: Page, generation_id: str) -> str:
    """How the newest run of this generation ended; looked for from a page that shows nothing of it meanwhile."""
    page.goto("/server_info")
    return page.evaluate(_RUN_ENDED, [_RUNS, generation_id, 150 * SECOND])


def look_at_the_partition(page: Page, generation_id: str, keep: Any) -> None:
    """The generation's column in the UI, with its numbers and its pictures."""
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
    """See that a picture of a materialisation stands in the page, without a click, and that the browser can draw it."""
    picture = page.get_by_role("img", name=alt, exact=True)
    picture.scroll_into_view_if_needed()
    expect(picture).to_be_visible()
    assert picture.evaluate("element => element.decode().then(() => element.naturalWidth)") > 300


def look_at_the_checks(page: Page, generation_id: str, keep: Any) -> None:
    """Every invariant of the description is a check of its own, and has passed for this generation."""
    page.goto("/assets/platform/topology_descriptions?view=checks&checkDetail=shard_colocation")
    expect(page.get_by_text("Checks (8)")).to_be_visible()
    expect(page.get_by_text("Succeeded", exact=True)).to_have_count(8)
    expect(page.get_by_text("blocking").first).to_be_visible()
    expect(page.get_by_text("Passed").first).to_be_visible()
    expect(page.get_by_text(generation_id).first).to_be_visible()
    keep("checks")


def follow_the_lineage(page: Page, keep: Any) -> None:
    """From the published timestamps back to the inbox."""
    page.goto("/assets/system_distributed/cdc_generation_timestamps?view=lineage&lineageScope=upstream&lineageDepth=4")
    expect(page.get_by_text("bootstrap_events").first).to_be_visible()
    expect(page.get_by_text("generations", exact=True).first).to_be_visible()
    keep("lineage")
    page.goto("/assets/platform/bootstrap_events?view=lineage&lineageScope=downstream")
    expect(page.get_by_text(re.compile("topo.*_descriptions")).first).to_be_visible()  # shortened in small graphs
