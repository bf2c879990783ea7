"""The seed of a run, which its header prints, and what it determines: the sample of each grid, and a random order.

CDC_PLATFORM_SEED=N repeats a run's sample; CDC_PLATFORM_KILLS=all runs grids completely; CDC_PLATFORM_SHUFFLE=1 runs
files, and the tests in them, in random order.
"""

from __future__ import annotations

import os
import random
import secrets
from collections import Counter, defaultdict

import pytest
from hypothesis import settings

# Workers inherit this environment, so all of them draw the same sample.
SEED = os.environ.setdefault("CDC_PLATFORM_SEED", str(secrets.randbelow(10**9)))
KILLS = os.environ.get("CDC_PLATFORM_KILLS")
"""The number of points at which a command is killed: a number, `all`, or None for a few."""
SHUFFLE = bool(os.environ.get("CDC_PLATFORM_SHUFFLE"))
EXAMPLES = 25
"""The number of examples of a property that sets none."""
_GRID = "grid"


def examples(number: int) -> int:
    """Return the number of examples of a cheap or expensive property, scaled with the profile of the run."""
    default = settings.default
    assert default is not None
    return number * default.max_examples // EXAMPLES


class Drawing:
    """The plugin."""

    def pytest_report_header(self) -> str:
        """Print the variables that repeat this run."""
        return f"CDC_PLATFORM_SEED={SEED}{' CDC_PLATFORM_SHUFFLE=1' * SHUFFLE}"

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Sample the selected tests of each grid as its mark says; shuffle all tests on request."""
        for item in items:
            if mark := item.get_closest_marker(_GRID):
                item.user_properties.append((_GRID, mark.args[0]))
        deselected = set() if KILLS == "all" else _left_out(items)
        if deselected:
            config.hook.pytest_deselected(items=list(deselected))
            items[:] = [item for item in items if item not in deselected]
        if SHUFFLE:
            dice = random.Random(SEED)
            places = {path: dice.random() for path in sorted({item.path for item in items})}
            dice.shuffle(items)
            items.sort(key=lambda item: places[item.path])

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Write how many tests of each grid passed and failed."""
        counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for outcome in ("passed", "failed", "error"):
            for report in terminalreporter.getreports(outcome):
                for name in (value for key, value in getattr(report, "user_properties", ()) if key == _GRID):
                    counts[name][outcome] += 1
        if counts:
            terminalreporter.section(f"grids, {'whole' if KILLS == 'all' else 'a sample'}: passed, failed")
        for name, outcomes in sorted(counts.items()):
            terminalreporter.write_line(f"{outcomes['passed']:7}{outcomes['failed'] + outcomes['error']:8}  {name}")


def _left_out(items: list[pytest.Item]) -> set[pytest.Item]:
    grids: defaultdict[tuple[str, int], list[pytest.Item]] = defaultdict(list)
    for item in items:
        mark = item.get_closest_marker(_GRID)
        if mark is not None:
            grids[mark.args].append(item)
    deselected: set[pytest.Item] = set()
    for (name, keep), those in grids.items():
        deselected |= set(those) - set(random.Random(f"{SEED} {name}").sample(those, min(keep, len(those))))
    return deselected
