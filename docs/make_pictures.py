"""Makes the pictures of the README: the demo runs in a home of its own, its rings are drawn, the UI is photographed.

`.venv/bin/python docs/make_pictures.py`; needs Java, and Chromium for the pictures of the UI.
"""

from __future__ import annotations

import io
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image

from cdc_platform.clock import parse_time_ms
from cdc_platform.delta import Lake
from cdc_platform.home_location import open_home_location
from cdc_platform.metastore import read_current_ring
from cdc_platform.plots import GenerationBar, plot_ring, plot_streams, plot_timeline
from cdc_platform.ring import Ring
from cdc_platform.timeline import Timeline
from cdc_platform_assets.join.plots import count_streams_by_shard

IMAGES = Path(__file__).parent / "images"
NOW = "2026-01-31T12:00:00Z"
PROGRAM = Path(sys.executable).with_name("cdc-platform")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def main() -> None:
    """Make all pictures."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        for command in ("demo", "check"):
            subprocess.run([PROGRAM, "--home", home, "--clock", NOW, command], check=True)
        draw(Lake(open_home_location(home).lake))
        photograph(home)
    for path in sorted(IMAGES.glob("*.png")):
        print(f"{path.relative_to(IMAGES.parent)}: {path.stat().st_size:,} bytes")


def draw(lake: Lake) -> None:
    """The rings as the nodes join, the streams on their shards, the timeline of the generations."""
    nodes = sorted(read_current_ring(lake).nodes, key=lambda node: node.address)
    for count in range(1, len(nodes) + 1):
        ring = Ring.of(nodes[:count])
        names = [node.address for node in ring.nodes]
        joining = names.index(nodes[count - 1].address)
        picture = plot_ring(ring.tokens, ring.owner_index, names, joining=joining)
        (IMAGES / f"ring{count}.png").write_bytes(picture)
    ring = read_current_ring(lake)
    names = [node.address for node in ring.nodes]
    (IMAGES / "streams.png").write_bytes(plot_streams(count_streams_by_shard(ring), names))
    generations = Timeline.read(lake).known
    bars = [GenerationBar(generation.id or "", generation.time_ms, generation.published) for generation in generations]
    (IMAGES / "timeline.png").write_bytes(plot_timeline(bars, parse_time_ms(NOW)))


def photograph(home: Path) -> None:
    """The lineage, and the checks of a generation, as the UI shows them."""
    from playwright.sync_api import sync_playwright

    browser_path = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser_path is None:
        print("no Chromium here: the pictures of the UI stay as they are")
        return
    upstream = "view=lineage&lineageScope=upstream&lineageDepth=4"
    checks = "/assets/platform/topology_descriptions?view=checks&checkDetail=shard_colocation"
    views = {
        "ui-lineage": (f"/assets/system_distributed/cdc_generation_timestamps?{upstream}", "bootstrap_events", 1),
        "ui-checks": (checks, "Succeeded", 11),
    }
    with served(home) as addresses, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_context(base_url=addresses["url"], viewport={"width": 1400, "height": 760}).new_page()
        page.set_default_timeout(120_000)
        page.goto(addresses["link"])
        page.wait_for_url("**/overview/**")
        for name, (place, ready, count) in views.items():
            page.goto(place)
            page.get_by_text(ready, exact=True).nth(count - 1).wait_for()
            page.wait_for_load_state("networkidle")
            page.wait_for_timeout(2000)  # the graph glides into place
            save_picture(page.screenshot(), IMAGES / f"{name}.png")
        browser.close()


def save_picture(png: bytes, path: Path) -> None:
    """Store a photograph with 64 colours, which takes a third of its bytes."""
    with Image.open(io.BytesIO(png)) as image:
        image.convert("RGB").quantize(64).save(path, optimize=True)


@contextmanager
def served(home: Path) -> Iterator[dict[str, str]]:
    """The addresses of the UI on a home, while it is up: its `url`, and the `link` that opens it."""
    command = [PROGRAM, "--home", home, "--clock", NOW, "up", "--port", "0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        output = ""
        while not output.rstrip().endswith("}"):
            output += process.stdout.readline()
        yield json.loads(output)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


if __name__ == "__main__":
    main()
