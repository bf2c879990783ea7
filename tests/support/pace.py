"""Measure tests: wall and CPU seconds by file, and the slow tests with the reasons that their marks give.

CPU of a server that outlives a test counts for the test during which it is spent, as far as /proc shows it.
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
"""A slower test states the reason by its marks or `@pytest.mark.long(reason)`; otherwise the summary names it."""
_OF_MARKS = {
    "grid": "one of a grid, with its own run or process",
    "cassandra": "a CQL server with tables for each test",
    "browser": "a browser and the platform's UI",
    "spark": "a JVM",
}
"""Reasons by mark, for tests that state none."""
_OF_SERVERS = {
    "s3_process": "an S3 server",
    "nursery": "forked and killed processes",
    "serving": "all of `up`",
    "server": "a Spark Connect server",
    "program": "an installed wheel",
    "rehearsal": "runs of Dagster with all steps and checks",
}
_OF_ENDS = "the last test of its worker, which tears down the shared fixtures"
_COST = "cost"
_FILES = 40
_WORTH_LOOKING_S = 2.0
"""Reading /proc takes 10 ms, so a shorter test leaves the CPU of its servers to the next longer one."""


@dataclass
class Cost:
    """Wall seconds, and CPU seconds including those of child processes that have ended."""

    wall: float = 0.0
    cpu: float = 0.0
    reason: str = ""

    def add(self, wall: float, cpu: float, reason: str) -> None:
        """Add one phase of a test."""
        self.wall += wall
        self.cpu += cpu
        self.reason = self.reason or reason


class Pace:
    """The plugin. Each worker measures its tests, and the reporting process adds them up."""

    def __init__(self) -> None:
        self._own = self._all = 0.0
        self._tests: defaultdict[str, Cost] = defaultdict(Cost)
        self._ends = False

    def pytest_collection_finish(self) -> None:
        """Begin to measure, so that the CPU of the collection counts for no test."""
        self._own = sum(os.times()[:2])
        self._all = sum(os.times()[:4]) + _of_descendants()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, nextitem: pytest.Item | None) -> None:
        """Note whether this is the last test, which tears down the shared fixtures."""
        self._ends = nextitem is None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add the cost of a phase to its report, which pytest sends to the reporting process."""
        report = yield
        cost = [call.duration, self._spent(call.duration), _reason(item) or _OF_ENDS * self._ends]
        report.user_properties.append((_COST, cost))
        return report

    def _spent(self, duration: float) -> float:
        """Return CPU seconds since the last call, of this process and all its descendants."""
        before, self._own = self._own, sum(os.times()[:2])
        if duration < _WORTH_LOOKING_S:
            # Processes that ended in between may have been counted while they ran.
            self._all += self._own - before
            return self._own - before
        everything, self._all = self._all, sum(os.times()[:4]) + _of_descendants()
        # The total shrinks if processes ended without a waiting parent; they were counted while they ran.
        return max(0.0, self._all - everything)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the cost in a report from any worker."""
        costs: list[Any] = [cost for name, cost in report.user_properties if name == _COST]
        if costs:
            self._tests[report.nodeid].add(*costs[-1])

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Write the most expensive files, then each slow test with its reason."""
        if sum(cost.wall for cost in self._tests.values()) < 60:
            return
        files: defaultdict[str, Cost] = defaultdict(Cost)
        for test, cost in self._tests.items():
            files[test.partition("::")[0]].add(cost.wall, cost.cpu, "")
        write = terminalreporter.write_line
        terminalreporter.section("seconds, seconds of CPU")
        for name, cost in [*_by_wall_time(files)[:_FILES], ("all tests", _sum(files))]:
            write(f"{cost.wall:7.1f} {cost.cpu:7.1f}  {name}")
        terminalreporter.section(f"tests of more than {LONG_S:.0f} s, and why")
        for name, cost in _by_wall_time(self._tests):
            if cost.wall >= LONG_S:
                write(f"{cost.wall:7.1f} {cost.cpu:7.1f}  {name}: {cost.reason or 'no reason is given'}")


def _of_descendants() -> float:
    """Return CPU seconds of the live descendants of this process and of their ended children."""
    spent = sum(int(ticks) for fields in below().values() for ticks in fields[11:15])
    return spent / os.sysconf("SC_CLK_TCK")


def _reason(item: pytest.Item) -> str:
    mark = item.get_closest_marker("long")
    if mark is not None:
        return str(mark.args[0])
    marks = [reason for name, reason in _OF_MARKS.items() if item.get_closest_marker(name)]
    servers = [reason for name, reason in _OF_SERVERS.items() if name in getattr(item, "fixturenames", ())]
    return "; ".join([*marks, *servers])


def _by_wall_time(costs: dict[str, Cost]) -> list[tuple[str, Cost]]:
    return sorted(costs.items(), key=lambda item: -item[1].wall)


def _sum(costs: dict[str, Cost]) -> Cost:
    return Cost(sum(cost.wall for cost in costs.values()), sum(cost.cpu for cost in costs.values()))
