"""The Chromium of this machine, without a window."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, sync_playwright

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--no-proxy-server",  # who asks a proxy leaves names and addresses to it
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
HERE_ALONE = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
"""With this flag no page reaches beyond this machine. To ask Playwright about each request instead takes a seventh of
the CPU of a look at the UI: nothing is kept from one page to the next then.
"""


@contextmanager
def chromium(*flags: str) -> Iterator[Browser]:
    """One that is started for the length of a block; where there is none the test is skipped."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip("no Chromium on the PATH; install one (Debian: apt-get install chromium) to test the UI")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=[*FLAGS, *flags], headless=True)
        yield started
        started.close()
