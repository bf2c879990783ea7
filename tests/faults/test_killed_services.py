"""Kill processes of `cdc-platform up` during joins, switches and rewrites of V1 tables.

When Spark dies, `up` restarts it and continues. When `up` ends, all its processes end, and the next `up` finishes the
work. By default one kill, chosen by each run's seed; CDC_PLATFORM_KILLS=50 for fifty.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.drawing import KILLS, SEED
from support.homes.v1_tables import nodes, old_cluster, published, times
from support.processes.below import parent
from support.waiting import await_true
from support.worlds.rehearsal import node_config
from support.worlds.serving import Serving

from cdc_platform.clock import Clock, Milliseconds
from cdc_platform.metastore import JoinRequest, inbox
from cdc_platform.spark_server import REMOTE_VARIABLE
from cdc_platform.tables import GENERATION_TIMESTAMPS, GENERATIONS

TIMES = 50 if KILLS == "all" else int(KILLS or 1)
TWO_PHASES = "two_phase_switch = true\nswitch_lease_ms = 900000\nswitch_deadline_ms = 600000\nswitch_margin_ms = 5000\n"
_TRACKER = "multiprocessing.resource_tracker"
_BELOW = {"forks": "code", "run": "forks"}
"""Parts identified by their parent process."""
PARTS = {
    "up": "cdc-platform|cdc_platform --home",
    "spark": "SparkConnectServer",
    "code": "cdc_platform.server.code_server",
    "ui": "cdc_platform.server.ui",
    "daemon": "cdc_platform.server.daemon",
    "forks": "",
    "run": "",
    "workers": "cdc_platform.spark.worker_daemon",
}
ENDS = ("up", "code", "ui", "daemon")
"""Parts whose death ends all of `up`."""
_RUNS = "{ runsOrError(filter: {statuses: [STARTED]}) { ... on Runs { results { jobName } } } }"
_LAUNCH = """mutation { launchRun(executionParams: {selector: {repositoryName: "__repository__",
  repositoryLocationName: "cdc_platform", jobName: "rewrite"}, runConfigData: {}}) { __typename } }"""

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are found by /proc"),
    pytest.mark.timeout(600 + 600 * TIMES),
]


def ask(serving: Serving, query: str) -> Any:
    """Return the UI's response to a GraphQL query."""
    request = urllib.request.Request(
        f"{serving.start()['url']}/graphql",
        json.dumps({"query": query}).encode(),
        {"Content-Type": "application/json"} | serving.header,
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["data"]


def processes_of(serving: Serving, part: str) -> list[int]:
    """Return the IDs of the processes that belong to a part now."""
    if part == "up":
        return [serving.pid]
    every = serving.processes()
    if part in _BELOW:
        above = set(processes_of(serving, _BELOW[part]))
        return [pid for pid, command in every.items() if parent(pid) in above and _TRACKER not in command]
    return [pid for pid, command in every.items() if PARTS[part] in command]


def strays(serving: Serving) -> dict[int, str]:
    """Return processes whose parent has died; some of them may be about to notice it."""
    processes = serving.processes()
    parents = {pid: parent(pid) for pid in processes}
    return {pid: processes[pid] for pid, above in parents.items() if above == 1}


def check(serving: Serving) -> subprocess.CompletedProcess[str]:
    """Run `check --json` on the home."""
    return subprocess.run(
        [sys.executable, "-m", "cdc_platform", "--home", str(serving.home), "check", "--json"],
        env=os.environ | serving.spark,
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.fixture
def serving() -> Iterator[Serving]:
    """Provide services on a new home: its ring is old, so no node of another test may have joined."""
    with tempfile.TemporaryDirectory(prefix="cdc-deaths-") as folder:
        # The path is longer than the path of a socket may be.
        beside = Path(folder) / ("of_a_long_name_" * 7)
        beside.mkdir(mode=0o700)
        own = Serving(beside / "home")
        yield own
        own.stop()


def test_every_join_is_completed_once_after_any_process_dies(serving: Serving) -> None:
    """After a kill at a random moment each join is completed once, by this `up` or the next, and `check` passes."""
    dice = random.Random(SEED)
    serving.home.mkdir(mode=0o700)
    (serving.home / "settings.toml").write_text(TWO_PHASES, encoding="utf-8")
    old = times(3)
    times_ms = old_cluster(serving.lake, old, members=nodes(2), tables=(("orders", 0),))
    serving.start()
    generations = []
    for number in range(TIMES):
        victim = dice.choice(sorted(PARTS))
        event = inbox.queue_join(serving.lake, Clock(), JoinRequest.model_validate(node_config(100 + number)))
        generations.append(event.generation_id)
        ask(serving, _LAUNCH)
        await_true(lambda: ask(serving, _RUNS)["runsOrError"]["results"], 120, "the start of the work")
        pause = dice.uniform(0, 15)
        print(f"kill {number + 1} of {TIMES}, seed {SEED}: {victim} after {pause:.1f} s", flush=True)
        time.sleep(pause)
        kill(serving, victim)
        await_true(lambda: not inbox.read_pending_events(serving.lake), 600, f"the joins after {victim} was killed")
        await_true(lambda: not strays(serving), 30, "the end of processes without a parent")
    # Joins need no Spark here. The next Spark may still be starting, and publishes its address only then.
    await_true(lambda: REMOTE_VARIABLE in serving.spark, 180, "the start of another Spark")
    judged = check(serving)
    assert judged.returncode == 0, judged.stdout[-3000:] + judged.stderr
    ledger = serving.lake.read(GENERATIONS).to_pylist()
    done = [row["time"] for row in ledger if row["generation_id"] in generations]
    assert len(done) == len(set(done)) == len(generations)
    marks = [row["time"] for row in serving.lake.read(GENERATION_TIMESTAMPS).to_pylist()]
    assert sorted(set(done) - set(marks)) == []
    assert len(marks) == len(set(marks))
    await_true(lambda: all(published(serving.lake, Milliseconds(time_ms)) for time_ms in times_ms), 120, "the rewrite")
    serving.stop()
    assert serving.processes() == {}
    assert list(serving.temporary.iterdir()) == []
    assert [path.name for path in (serving.home / "up").iterdir()] == ["parts.lock"]


def kill(serving: Serving, part: str) -> None:
    """Kill one running process of a part, and assert that the rest reacts as documented."""
    processes = processes_of(serving, part)
    if not processes:
        return
    before = serving.start()
    os.kill(processes[0], signal.SIGKILL)
    if part in ENDS:
        code, output = serving.end()
        assert code == (-signal.SIGKILL if part == "up" else 1), output
        assert serving.processes_after(60) == {}
        serving.start()
    else:
        assert serving.start() == before  # it is still up
    if part == "spark":
        await_true(lambda: set(processes_of(serving, "spark")) - set(processes), 120, "another Spark")
