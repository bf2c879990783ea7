"""The rows about a platform that nobody looks at: what `up` takes of a core and of memory while nothing happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.measure import Result, children
from bench.session import Bench

_SETTLES_SECONDS, _LOOKS_SECONDS = 45, 60
"""How long an `up` that answers is left alone first: it imports the process that runs are forked from."""
_GIB = 1 << 30
_TICKS = os.sysconf("SC_CLK_TCK")


def idle_up(bench: Bench) -> list[Result]:
    """CPU of the process tree of `up`, Spark warm and no join waiting, in percent of a core; and its memory (PSS)."""
    settles, looks = (_SETTLES_SECONDS, _LOOKS_SECONDS) if bench.sizes.repeats > 1 else (2, 2)
    with bench.scratch() as folder, _up(folder / "home") as pid:
        time.sleep(settles)
        before, start = _cpu_seconds(_tree(pid)), time.perf_counter()
        time.sleep(looks)
        took = time.perf_counter() - start
        tree = _tree(pid)
        after, memory = _cpu_seconds(tree), sum(_pss_bytes(each) for each in tree) / _GIB
        parts = {_part(each): after[each] - before.get(each, 0.0) for each in after}
    percent = 100 * sum(parts.values()) / took
    details = {"cpu_seconds": parts}
    return [
        Result(
            "idle-up", f"{looks} s, all of its processes", took, "percent of a core", 0.0, percent, 3.0, False, details
        ),
        Result("idle-up-memory", "Spark warm, PSS", took, "GiB", 0.0, memory, 1.25),
    ]


@contextmanager
def _up(home: Path) -> Iterator[int]:
    """The PID of an `up` that answers; ended by what Ctrl-C sends."""
    command = [sys.executable, "-m", "cdc_platform", "--home", str(home), "up", "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            told = next((line for line in process.stdout if line.startswith("}")), None)
            logs = {log.name: log.read_text(encoding="utf-8")[-2_000:] for log in home.glob("logs/*.log")}
            assert told is not None, f"up has ended before it answered: {logs}"
            yield process.pid
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()


def _tree(pid: int) -> list[int]:
    return [pid, *(below for child in children(pid) for below in _tree(child))]


def _cpu_seconds(pids: list[int]) -> dict[int, float]:
    """Seconds on a core so far of each process that lives, and of those that it has waited for."""
    found = {}
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        found[pid] = sum(map(int, fields[11:15])) / _TICKS
    return found


def _pss_bytes(pid: int) -> int:
    """What a process takes of memory, of what it shares its share; 0 where it is gone or the system does not say."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def _part(pid: int) -> str:
    """A process by its number and what it runs."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        words = []
    named = [word for word in words if word.startswith(("cdc_platform", "from multiprocessing"))]
    return f"{pid} {named[0].partition(';')[0] if named else Path(words[0]).name if words else ''}"
