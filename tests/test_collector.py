"""Python's look for garbage, which the platform's processes put off."""

from __future__ import annotations

import subprocess
import sys

_SEEN = """
import gc, sys
from cdc_platform.collector import importing
with importing():
    within, kept = gc.isenabled(), [[] for _ in range(1000)]
print(within, gc.isenabled(), gc.get_freeze_count() > 1000)
"""
_FAILS = """
import gc
from cdc_platform.collector import importing
try:
    with importing():
        import nothing_of_the_kind
except ImportError:
    print(gc.isenabled())
"""


def test_what_is_imported_is_not_looked_at() -> None:
    """In the block nothing is looked for; behind it what is there is left alone, and new garbage is found again."""
    done = subprocess.run([sys.executable, "-c", _SEEN], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "True"]


def test_a_block_that_fails_leaves_it_on() -> None:
    """Code that does not load is for Dagster to tell, in a process that goes on."""
    done = subprocess.run([sys.executable, "-c", _FAILS], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"]
