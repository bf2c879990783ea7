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
    "--no-proxy-server",  # a client of a proxy sends names and addresses to it
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
HERE_ALONE = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
"""With this flag no page can reach beyond this machine.

Intercepting each request with Playwright would cost a seventh of the CPU of a look at the UI, because it disables the
cache between pages.
"""


@contextmanager
def chromium(*flags: str) -> Iterator[Browser]:
    """Run Chromium for the length of a block; skip the test if there is none."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    executable = next(filter(None, map(shutil.which, names)), None)
    if executable is None:
        pytest.skip("no Chromium on the PATH; install one (Debian: apt-get install chromium) to test the UI")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=executable, args=[*FLAGS, *flags], headless=True)
        yield started
        started.close()
