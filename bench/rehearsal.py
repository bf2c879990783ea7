"""The row about rehearsals: twice as many joins as the cluster has nodes, relative to a minute and 4 GB.

The rehearsal runs in its own process, started like the command, so that the memory is that of the rehearsal alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from bench.measure import Result
from bench.session import Bench

_ALLOWED_SECONDS = 60.0
_ALLOWED_BYTES = 4 * 10**9
_RUN = """
import json, resource, sys
from click.testing import CliRunner
from cdc_platform.cli.main import program
answer = CliRunner().invoke(program, ["--home", sys.argv[1], *sys.argv[2:]])
assert answer.exit_code == 0, answer.output
last = json.loads(answer.stdout)["steps"][-1]
bytes_used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"bytes": bytes_used, "nodes": last["nodes"], "streams": last["generation"]["num_streams"]}))
"""


def rehearsing(bench: Bench) -> list[Result]:
    """Measure the whole command, from the start of Python to its last byte of JSON."""
    size = bench.sizes.cluster
    joins = 2 * size.nodes
    add = {"num_tokens": size.vnodes, "shard_count": size.shards, "datacenter": "dc1", "rack": "r1"}
    first = {"host_id": "00000000-0000-4000-8000-000000000001", "address": "first", "tokens": [0], "ignore_msb": 12}
    node = {key: value for key, value in (add | first).items() if key != "num_tokens"}
    with bench.scratch() as folder:
        (folder / "ring.json").write_text(json.dumps([node]), encoding="utf-8")
        (folder / "steps.json").write_text(json.dumps([{"add": add | {"times": joins}}]), encoding="utf-8")
        files = [str(folder / "steps.json"), "--ring", str(folder / "ring.json")]
        command = [sys.executable, "-c", _RUN, str(folder / "none"), "rehearse", *files, "--json"]
        start = time.perf_counter()
        ran = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True)
        seconds = time.perf_counter() - start
    summary = json.loads(ran.stdout)
    assert summary["nodes"] == joins + 1
    at = f"{joins} joins of {size.vnodes} vnodes and {size.shards} shards"
    used = summary["bytes"]
    return [
        Result("rehearse", at, seconds, "a minute", _ALLOWED_SECONDS, seconds / _ALLOWED_SECONDS, 1.0, details=summary),
        Result("rehearse-memory", f"{at}: {used / 1e6:.0f} MB", seconds, "4 GB", 0.0, used / _ALLOWED_BYTES, 1.0),
    ]
