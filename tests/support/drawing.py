"""The seed of a run, which its header prints, and what is drawn by it: some tests of each grid, an order of all.

CDC_PLATFORM_SEED=N draws the same again; CDC_PLATFORM_KILLS=all takes grids whole; CDC_PLATFORM_SHUFFLE=1 runs files,
and the tests in them, in an order that is drawn as well.
"""

from __future__ import annotations

import os
import random
import secrets
from collections import Counter, defaultdict

import pytest
from hypothesis import settings

# Workers are started with this environment: all of them draw the same.
SEED = os.environ.setdefault("CDC_PLATFORM_SEED", str(secrets.randbelow(10**9)))
KILLS = os.environ.get("CDC_PLATFORM_KILLS")
"""How many kills are tried of what can be killed in many places: a number, `all`, or None for a few."""
SHUFFLE = bool(os.environ.get("CDC_PLATFORM_SHUFFLE"))
EXAMPLES = 25
"""How many examples of a property a run tries, where the property says no number of its own."""
_GRID = "grid"


def examples(number: int) -> int:
    """The number of a property that is cheaper or dearer than others: so many, or more where others have more."""
    default = settings.default
    assert default is not None
    return number * default.max_examples // EXAMPLES


class Drawing:
    """The plugin."""

    def pytest_report_header(self) -> str:
        """How the same is drawn again."""
        return f"CDC_PLATFORM_SEED={SEED}{' CDC_PLATFORM_SHUFFLE=1' * SHUFFLE}"

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave as many tests of a grid, of those that are asked for, as its mark says; shuffle them if that is."""
        for item in items:
            if mark := item.get_closest_marker(_GRID):
                item.user_properties.append((_GRID, mark.args[0]))
        left = set() if KILLS == "all" else _left_out(items)
        if left:
            config.hook.pytest_deselected(items=list(left))
            items[:] = [item for item in items if item not in left]
        if SHUFFLE:
            dice = random.Random(SEED)
            places = {path: dice.random() for path in sorted({item.path for item in items})}
            dice.shuffle(items)
            items.sort(key=lambda item: places[item.path])

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """How many tests of each grid were run, and how many of them failed."""
        counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for outcome in ("passed", "failed", "error"):
            for report in terminalreporter.getreports(outcome):
                for name in (value for key, value in getattr(report, "user_properties", ()) if key == _GRID):
                    counts[name][outcome] += 1
        if counts:
            terminalreporter.section(f"grids, {'whole' if KILLS == 'all' else 'a sample'}: passed, failed")
        for name, found in sorted(counts.items()):
            terminalreporter.write_line(f"{found['passed']:7}{found['failed'] + found['error']:8}  {name}")


def _left_out(items: list[pytest.Item]) -> set[pytest.Item]:
    grids: defaultdict[tuple[str, int], list[pytest.Item]] = defaultdict(list)
    for item in items:
        mark = item.get_closest_marker(_GRID)
        if mark is not None:
            grids[mark.args].append(item)
    left: set[pytest.Item] = set()
    for (name, keep), those in grids.items():
        left |= set(those) - set(random.Random(f"{SEED} {name}").sample(those, min(keep, len(those))))
    return left
