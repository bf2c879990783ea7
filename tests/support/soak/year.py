"""A year in an hour: `python -m support.soak.year FOLDER --share 0.01` runs a soak in FOLDER and prints its result.

The process that is started here has a clock that can be moved (`run_soak` starts it so). It imports everything once and
forks a process for each life.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from importlib import import_module
from pathlib import Path
from typing import Any

from support.processes.clocks import MovableClock
from support.soak.plan import Plan

ROOT = Path(__file__).resolve().parents[3]
MAX_LIVES = 2_000
_MODULES = (
    "dagster._core.storage.event_log.sqlite.sqlite_event_log",
    "dagster._core.storage.local_compute_log_manager",
    "dagster._core.storage.runs.sqlite.sqlite_run_storage",
    "dagster._core.storage.schedules.sqlite.sqlite_schedule_storage",
    "dagster._core.launcher.default_run_launcher",
    "dagster._core.run_coordinator.queued_run_coordinator",
    "matplotlib.figure",
    "pandera.backends.pandas.builtin_checks",
    "pandera.typing.pandas",
    "pyarrow.dataset",
    "cdc_platform.delta.snapshot",
    "cdc_platform.home.checking",
    "cdc_platform.plots.plots",
    "cdc_platform.reporting.page",
    "cdc_platform.spark.frames",
)
"""Imports of a life. None of them starts a thread before its use."""


def run_soak(folder: Path, plan: Plan, log_file: Path | None = None) -> dict[str, Any]:
    """Run a soak in a new folder, in a process with a clock of its own; return its final state.

    `home` in the folder is then a copy of the home, unless no file system could be mounted: then it is in `disk`. The
    log has a line for each hour; it is `log` in the folder, or `log_file`.

    Raises:
        AssertionError: the process failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("CDC_PLATFORM_", "SPARK_"))},
        **MovableClock.variables(folder),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
        "TMPDIR": str(temporary),
        "PYTHONDONTWRITEBYTECODE": "",
    }
    words = [str(folder), json.dumps(plan.__dict__)]
    log_file = log_file or folder / "log"
    with log_file.open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "support.soak.year", "--inside", *words],
            env=environment,
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            code = process.wait()
        finally:
            # Not killed: it has a file system mounted.
            process.terminate()
            process.wait()
    assert code == 0, log_file.read_text(encoding="utf-8")[-6000:]
    return json.loads((folder / "soak.json").read_text(encoding="utf-8"))


def _run_inside(folder: Path, plan: Plan) -> int:
    """Run the lives of a soak one after another, until one reaches the end."""
    from support.files.small_disk import mounted_disk
    from support.soak.daemon import reuse_engines
    from support.soak.faults import DISK_BYTES
    from support.soak.life import Soak, fork_life

    from cdc_platform.clock import HOUR_SECONDS, system_time_us
    from cdc_platform.server.code_server import load_migrations_once

    for module in _MODULES:
        import_module(module)
    load_migrations_once()
    reuse_engines()
    assert threading.active_count() == 1, "a fork would lose the threads that a module has started"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    Soak(start_s=(system_time_us() // 1_000_000 // HOUR_SECONDS + 1) * HOUR_SECONDS).store(folder / "soak.json")
    with mounted_disk(folder / "disk", DISK_BYTES) as mounted:
        for _ in range(MAX_LIVES):
            code = fork_life(plan, folder, folder / "disk", is_mounted=mounted)
            if code >= 0:
                if mounted:
                    shutil.copytree(folder / "disk" / "home", folder / "home", symlinks=True)
                return code
    return 1


def main() -> None:
    """Run a soak from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--share", type=float, default=0.01, help="the share of a year")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tick-hours", type=int, default=1, help="hours between two rounds of ticks")
    parser.add_argument("--dagster-every", type=int, default=1, help="Dagster runs one in so many joins and hours")
    parser.add_argument("--joins-per-day", type=float, default=Plan.joins_per_day)
    parser.add_argument("--fault-share", type=float, default=Plan.fault_share, help="the share of hours with a fault")
    parser.add_argument("folder", type=Path, help="a folder for soak.log, with a line for each hour, and soak.json")
    parser.add_argument("plan", nargs="?", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        sys.exit(_run_inside(options.folder, Plan(**json.loads(options.plan))))
    plan = Plan(
        options.share,
        options.seed,
        options.tick_hours,
        options.dagster_every,
        options.joins_per_day,
        options.fault_share,
    )
    with tempfile.TemporaryDirectory(prefix="soak-") as temporary:
        options.folder.mkdir(parents=True, exist_ok=True)
        soak = run_soak(Path(temporary) / "soak", plan, options.folder.resolve() / "soak.log")
        shutil.copy(Path(temporary) / "soak" / "soak.json", options.folder)
    print(json.dumps({"counts": soak["counts"], "result": soak["result"]}, indent=2))


if __name__ == "__main__":
    main()
