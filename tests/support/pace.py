"""What the tests cost: seconds and CPU by file, and those that take long with the reason that their mark gives.

The CPU of servers that go on after a test is that of the tests in whose time they spend it, as far as /proc tells.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import pytest
from support.processes.below import below

LONG_S = 5.0
"""From here on a test says why it takes as long, by its marks or `@pytest.mark.long(reason)`, or is named for it."""
_OF_MARKS = {
    "grid": "one of a grid, each a run or a process of its own",
    "cassandra": "a CQL server, of which each test makes its own tables",
    "browser": "a browser, and the platform that it looks at",
    "spark": "a JVM",
}
"""The reasons of tests without one of their own, by their marks."""
_OF_SERVERS = {
    "s3_process": "an S3 server",
    "nursery": "processes that are forked and killed",
    "serving": "all of `up`",
    "server": "a Spark Connect server",
    "program": "a wheel that is installed",
    "rehearsal": "runs of Dagster, of all steps and checks",
}
_OF_ENDS = "the last one of its worker: what its tests shared ends behind it"
_COST = "cost"
_FILES = 40
_WORTH_LOOKING_S = 2.0
"""What is shorter leaves the CPU of its servers to the next one that is not: looking takes ten milliseconds."""


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
        self._own = self._all = 0.0
        self._tests: defaultdict[str, Cost] = defaultdict(Cost)
        self._ends = False

    def pytest_collection_finish(self) -> None:
        """What came before the first test is nobody's."""
        self._own = sum(os.times()[:2])
        self._all = sum(os.times()[:4]) + _of_descendants()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, nextitem: pytest.Item | None) -> None:
        """Know whether all that tests share ends with this one."""
        self._ends = nextitem is None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Put what a part of a test cost into its report, which goes to the process that reports."""
        report = yield
        cost = [call.duration, self._spent(call.duration), _reason(item) or _OF_ENDS * self._ends]
        report.user_properties.append((_COST, cost))
        return report

    def _spent(self, duration: float) -> float:
        """Seconds of CPU since this was asked last, of this process and of all below it."""
        before, self._own = self._own, sum(os.times()[:2])
        if duration < _WORTH_LOOKING_S:
            # What has ended meanwhile may have been counted already while it ran.
            self._all += self._own - before
            return self._own - before
        everything, self._all = self._all, sum(os.times()[:4]) + _of_descendants()
        # Less where some have ended that none of them waited for: those were counted while they ran.
        return max(0.0, self._all - everything)

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


def _of_descendants() -> float:
    """Seconds of CPU of the processes below this one that have not ended, and of their own that have."""
    spent = sum(int(ticks) for fields in below().values() for ticks in fields[11:15])
    return spent / os.sysconf("SC_CLK_TCK")


def _reason(item: pytest.Item) -> str:
    mark = item.get_closest_marker("long")
    if mark is not None:
        return str(mark.args[0])
    marks = [reason for name, reason in _OF_MARKS.items() if item.get_closest_marker(name)]
    servers = [reason for name, reason in _OF_SERVERS.items() if name in getattr(item, "fixturenames", ())]
    return "; ".join([*marks, *servers])


def _dearest(costs: dict[str, Cost]) -> list[tuple[str, Cost]]:
    return sorted(costs.items(), key=lambda each: -each[1].wall)


def _sum(costs: dict[str, Cost]) -> Cost:
    return Cost(sum(cost.wall for cost in costs.values()), sum(cost.cpu for cost in costs.values()))
