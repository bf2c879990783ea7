"""How things are measured: paired runs, medians, the memory of a process with its JVM. Knows nothing of the rows."""

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
    """Seconds of the subject and of its floor, run by turns so that both see the same machine."""

    subject: list[float]
    floor: list[float]

    @property
    def ratio(self) -> float:
        """Subject over floor: the median of the pairs' ratios."""
        return median(mine / theirs for mine, theirs in zip(self.subject, self.floor, strict=True))

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
    """One line of the table. `value` is compared with `target`: at most, or with `at_least` at least."""

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
        """Whether the target is met."""
        return self.value >= self.target if self.at_least else self.value <= self.target


def seconds(work: Callable[[], object]) -> float:
    """How long `work` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def own_cpu_seconds(work: Callable[[], object]) -> float:
    """What `work` takes of a core in this process, its children apart."""
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
    """Run subject and floor by turns; `prepare` runs before each subject, unmeasured."""
    pairs = Pairs([], [])
    for turn in range(warm_ups + repeats):
        floor_seconds = seconds(floor)
        if prepare is not None:
            prepare()
        subject_seconds = seconds(subject)
        if turn >= warm_ups:
            pairs.floor.append(floor_seconds)
            pairs.subject.append(subject_seconds)
    return pairs


@dataclass
class Memory:
    """Bytes that stayed in memory at the worst moment."""

    peak: int = 0


@contextmanager
def watched_memory(*pids: int) -> Iterator[Memory]:
    """The peak of the processes' resident memory together, looked at every 20 ms (Linux; elsewhere 0)."""
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
    """Resident memory of a process, 0 where it is gone or the system does not say."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    line = next((line for line in status.splitlines() if line.startswith("VmRSS:")), None)
    return int(line.split()[1]) * 1024 if line else 0


def children(pid: int) -> dict[int, str]:
    """The processes that `pid` started and that live: PID to command (Linux; elsewhere none)."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name, _, rest = (folder / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")
        except OSError:
            continue
        if int(rest.split()[1]) == pid:
            found[int(folder.name)] = name.partition("(")[2]
    return found


def tree(pid: int) -> list[int]:
    """A process and all that it has started."""
    return [pid, *(below for child in children(pid) for below in tree(child))]


def cpu_seconds(pids: list[int]) -> dict[int, float]:
    """Seconds on a core so far of each process that lives, and of those that it has waited for."""
    found = {}
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        found[pid] = sum(map(int, fields[11:15])) / _TICKS
    return found
