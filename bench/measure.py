"""Measurements: paired runs, medians, and the memory of a process with its JVM.

The module does not depend on the rows.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Pairs:
    """Seconds of the subject and of its floor, run alternately so that both see the same machine."""

    subject: list[float]
    floor: list[float]

    @property
    def ratio(self) -> float:
        """The median of the pairs' ratios, subject over floor."""
        return median(took / floor_took for took, floor_took in zip(self.subject, self.floor, strict=True))

    @property
    def seconds(self) -> float:
        """The subject's median."""
        return median(self.subject)

    @property
    def floor_seconds(self) -> float:
        """The floor's median."""
        return median(self.floor)


@dataclass(frozen=True)
class Result:
    """One line of the table. `value` must be at most `target`, or at least with `at_least`."""

    row: str
    at: str
    seconds: float
    floor: str
    floor_seconds: float
    value: float
    target: float
    at_least: bool = False
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def reached(self) -> bool:
        """Return True if the target is met."""
        return self.value >= self.target if self.at_least else self.value <= self.target


def seconds(work: Callable[[], object]) -> float:
    """Return the seconds that `work` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def own_cpu_seconds(work: Callable[[], object]) -> float:
    """Return the CPU seconds that `work` takes in this process, without its children."""
    start = time.process_time()
    work()
    return time.process_time() - start


def paired(
    subject: Callable[[], object],
    floor: Callable[[], object],
    *,
    repeats: int,
    warm_ups: int = 1,
    prepare: Callable[[], object] | None = None,
) -> Pairs:
    """Run subject and floor alternately; `prepare` runs before each subject, unmeasured."""
    pairs = Pairs([], [])
    for number in range(warm_ups + repeats):
        floor_seconds = seconds(floor)
        if prepare is not None:
            prepare()
        subject_seconds = seconds(subject)
        if number >= warm_ups:
            pairs.floor.append(floor_seconds)
            pairs.subject.append(subject_seconds)
    return pairs


@dataclass
class Memory:
    """The highest number of bytes in memory."""

    peak: int = 0


@contextmanager
def watched_memory(*pids: int) -> Iterator[Memory]:
    """Record the peak of the processes' total resident memory, sampled every 20 ms (Linux; elsewhere 0)."""
    memory, done = Memory(), threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            memory.peak = max(memory.peak, sum(resident_bytes(pid) for pid in pids))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield memory
    finally:
        done.set()
        watcher.join()


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process, 0 if it has ended or the system does not report it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    line = next((line for line in status.splitlines() if line.startswith("VmRSS:")), None)
    return int(line.split()[1]) * 1024 if line else 0


def children(pid: int) -> dict[int, str]:
    """Return the live processes that `pid` started: PID to command (Linux; elsewhere none)."""
    commands = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name, _, rest = (folder / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")
        except OSError:
            continue
        if int(rest.split()[1]) == pid:
            commands[int(folder.name)] = name.partition("(")[2]
    return commands


def tree(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    return [pid, *(below for child in children(pid) for below in tree(child))]


def cpu_seconds(pids: list[int]) -> dict[int, float]:
    """Return the CPU seconds so far of each live process and of the children that it has waited for."""
    seconds_by_pid = {}
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        seconds_by_pid[pid] = sum(map(int, fields[11:15])) / _TICKS
    return seconds_by_pid
