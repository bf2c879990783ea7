"""What the tests cost: seconds and CPU by file, and those that take long with the reason that their mark gives."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import pytest

LONG_S = 5.0
"""From here on a test says by `@pytest.mark.long(reason)` why it takes as long; one that does not is named for it."""
_COST = "cost"
_FILES = 25


@dataclass
class Cost:
    """Seconds that passed, and seconds of CPU; those of processes that have ended among them."""

    wall: float = 0.0
    cpu: float = 0.0
    reason: str = ""

    def add(self, wall: float, cpu: float, reason: str) -> None:
        """Count one part of a test more."""
        self.wall += wall
        self.cpu += cpu
        self.reason = self.reason or reason


class Pace:
    """The plugin: each worker measures its tests, the process that reports adds them up."""

    def __init__(self) -> None:
        self._spent = 0.0
        self._tests: defaultdict[str, Cost] = defaultdict(Cost)

    def pytest_collection_finish(self) -> None:
        """What came before the first test is nobody's."""
        self._spent = sum(os.times()[:4])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Put what a part of a test cost into its report, which goes to the process that reports."""
        report = yield
        before, self._spent = self._spent, sum(os.times()[:4])
        mark = item.get_closest_marker("long")
        cost = [call.duration, self._spent - before, str(mark.args[0]) if mark else ""]
        report.user_properties.append((_COST, cost))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count one part of a test, from whichever worker it comes."""
        costs: list[Any] = [cost for name, cost in report.user_properties if name == _COST]
        if costs:
            self._tests[report.nodeid].add(*costs[-1])

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The dearest files; then each test that takes long, with its reason."""
        if sum(cost.wall for cost in self._tests.values()) < 60:
            return
        files: defaultdict[str, Cost] = defaultdict(Cost)
        for test, cost in self._tests.items():
            files[test.partition("::")[0]].add(cost.wall, cost.cpu, "")
        write = terminalreporter.write_line
        terminalreporter.section("seconds, seconds of CPU")
        for name, cost in [*_dearest(files)[:_FILES], ("all tests", _sum(files))]:
            write(f"{cost.wall:7.1f} {cost.cpu:7.1f}  {name}")
        terminalreporter.section(f"tests of more than {LONG_S:.0f} s, and why")
        for name, cost in _dearest(self._tests):
            if cost.wall >= LONG_S:
                write(f"{cost.wall:7.1f} {cost.cpu:7.1f}  {name}: {cost.reason or 'no reason is given'}")


def _dearest(costs: dict[str, Cost]) -> list[tuple[str, Cost]]:
    return sorted(costs.items(), key=lambda each: -each[1].wall)


def _sum(costs: dict[str, Cost]) -> Cost:
    return Cost(sum(cost.wall for cost in costs.values()), sum(cost.cpu for cost in costs.values()))
