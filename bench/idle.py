"""The rows about an idle platform: CPU and memory of `up` while nothing happens.

They also measure its memory while Spark sleeps, and how long a client then waits.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from bench.measure import Result, cpu_seconds, tree
from bench.session import Bench
from cdc_platform.clock import SECOND_MS
from cdc_platform.spark_server import SERVER_VARIABLE, ServerFile

SETTLES_SECONDS, _LOOKS_SECONDS = 45, 60
"""How long an `up` that answers is left alone first, until its sensors and daemons have ticked once."""
_SLEEP_SECONDS = 5
_GIB = 1 << 30
_ASKS = """
import time
start = time.perf_counter()
from cdc_platform.spark.session import get_spark_session
assert get_spark_session().range(1000).count() == 1000
print(time.perf_counter() - start, flush=True)
"""


def idle_up(bench: Bench) -> list[Result]:
    """Measure CPU (percent of a core) and memory (PSS) of `up`'s process tree, with Spark warm and no join queued."""
    settles, looks = (SETTLES_SECONDS, _LOOKS_SECONDS) if bench.sizes.repeats > 1 else (2, 2)
    with bench.scratch() as folder, up(folder / "home") as (pid, _):
        time.sleep(settles)
        before, start = cpu_seconds(tree(pid)), time.perf_counter()
        time.sleep(looks)
        took = time.perf_counter() - start
        below = tree(pid)
        after, memory = cpu_seconds(below), sum(_pss_bytes(process) for process in below) / _GIB
        parts = {_part(process): after[process] - before.get(process, 0.0) for process in after}
    percent = 100 * sum(parts.values()) / took
    details = {"cpu_seconds": parts}
    return [
        Result(
            "idle-up", f"{looks} s, all of its processes", took, "percent of a core", 0.0, percent, 6.0, False, details
        ),
        Result("idle-up-memory", "Spark warm, PSS", took, "GiB", 0.0, memory, 1.25),
    ]


def asleep(bench: Bench) -> list[Result]:
    """Measure the memory of `up` while Spark sleeps, and a client that wakes it, relative to a session of its own."""
    repeats, settles = bench.sizes.repeats, SETTLES_SECONDS if bench.sizes.repeats > 1 else 2
    woken, embedded, memory = [], [], []
    with (
        bench.scratch() as folder,
        up(folder / "home", f"spark_sleep_ms = {_SLEEP_SECONDS * SECOND_MS}\n") as (pid, address),
    ):
        file = ServerFile(Path(address["spark_file"]))
        time.sleep(settles)
        for _ in range(repeats):
            _await_sleep(file)
            memory.append(sum(_pss_bytes(process) for process in tree(pid)) / _GIB)
            embedded.append(_asked({}))
            woken.append(_asked({SERVER_VARIABLE: str(file.path)}))
    waits, starts = median(woken), median(embedded)
    floor = "the same with a session of its own"
    details = {"woken_seconds": woken, "embedded_seconds": embedded, "gib": memory}
    return [
        Result(
            "asleep-memory", "`up`, Spark asleep, PSS", waits, "GiB", 0.0, median(memory), 600 / 1024, False, details
        ),
        Result("waking", "a process asks Spark that sleeps", waits, floor, starts, waits / starts, 2.5, False, details),
    ]


def _await_sleep(file: ServerFile) -> None:
    while True:
        try:
            file.read()
        except ConnectionRefusedError:
            time.sleep(_SLEEP_SECONDS)  # its processes end
            return
        time.sleep(0.2)


def _asked(variables: dict[str, str]) -> float:
    """Return the seconds from the first import to a response of Spark, in a new process."""
    command = [sys.executable, "-c", _ASKS]
    return float(subprocess.run(command, env=os.environ | variables, stdout=subprocess.PIPE, check=True).stdout)


@contextmanager
def up(home: Path, settings: str = "", program: str = "cdc_platform") -> Iterator[tuple[int, dict[str, str]]]:
    """Start an `up` and wait until it answers; yield its PID and its JSON output, and end it with Ctrl-C's signal."""
    home.mkdir(mode=0o700)
    (home / "settings.toml").write_text(settings, encoding="utf-8")
    command = [sys.executable, "-m", program, "--home", str(home), "up", "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            lines: list[str] = []
            while not lines or lines[-1].startswith(("{", " ")):
                lines.append(process.stdout.readline())
            logs = {log.name: log.read_text(encoding="utf-8")[-2_000:] for log in home.glob("logs/*.log")}
            assert lines[-1].startswith("}"), f"up has ended before it answered: {logs}"
            yield process.pid, json.loads("".join(lines))
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()


def _pss_bytes(pid: int) -> int:
    """Return the PSS of a process in bytes; 0 if it has ended or the system does not report it."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def _part(pid: int) -> str:
    """Return a process's number and what it runs."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ").split()
    except OSError:
        words = []
    named = [word for word in words if word.startswith(("cdc_platform", "multiprocessing."))]
    return f"{pid} {(named or [Path(word).name for word in words] or [''])[0]}"
