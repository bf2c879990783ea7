"""`tables`, `consumers` and `expire`: their JSON has the shape that scripts rely on, and no JVM starts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from support.command_line import Answer, run
from support.files.export_files import NODES
from support.homes.expiring import DAY_MS, GRACE_MS, IDS, SKEW_MS, START_MS, TIMES_MS, at, import_generations, iso, mark

from cdc_platform.clock import Milliseconds, us_from_ms
from cdc_platform.delta import Lake
from cdc_platform.metastore import consumers
from cdc_platform.timeline import Timeline

LATER = iso(Milliseconds(START_MS + 60 * DAY_MS))
EARLIER = iso(Milliseconds(START_MS + 60 * DAY_MS - GRACE_MS))
"""When a run marks what one at LATER removes."""
JUST_BEFORE = iso(Milliseconds(START_MS + 60 * DAY_MS - 1))
"""When that may not be removed yet."""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with four generations and a table whose rows live an hour."""
    home = import_generations(tmp_path)
    created = ("--created-at", iso(START_MS - DAY_MS))
    assert run("--home", home, "tables", "add", "Shop.orders", "--ttl", "3600", *created).exit_code == 0
    return home


def expire(home: Path, *args: str, clock: str = LATER) -> Answer:
    """Run the command at a clock."""
    answer = run("--home", home, "--clock", clock, "expire", *args)
    assert answer.exit_code == 0, answer.stderr
    return answer


def test_tables_are_listed_as_they_are_told(home: Path) -> None:
    """Names as CQL reads them; a change answers with the table as it stands; the history has every change."""
    told = {
        "keyspace_name": "shop",
        "table_name": "orders",
        "table": "shop.orders",
        "enabled": True,
        "ttl_seconds": 3600,
        "created_at": iso(START_MS - DAY_MS),
        "ddl": None,
    }
    assert run("--home", home, "tables", "--json").rows == [told]
    changed = run("--home", home, "tables", "alter", "shop.ORDERS", "--ttl", "0", "--disabled", "--json").facts
    assert changed == told | {"ttl_seconds": 0, "enabled": False}
    assert run("--home", home, "tables", "add", '"Shop".t', "--ttl", "1", "--json").json["table"] == "Shop.t"
    said = [(each["table"], each["what"]) for each in run("--home", home, "tables", "--history", "--json").rows]
    assert said == [("Shop.t", "added"), ("shop.orders", "added"), ("shop.orders", "altered")]
    dropped = run("--home", home, "tables", "drop", "shop.orders", "--json").facts
    assert dropped == {"table": "shop.orders", "dropped": True}
    assert "Shop.t" in run("--home", home, "tables").stdout


def test_the_purge_plan_has_the_shape_that_scripts_rely_on(home: Path) -> None:
    """Every generation, oldest first; a dry run changes nothing."""
    lake = Lake(home / "lake")
    marked = Milliseconds(START_MS + 50 * DAY_MS)
    assert mark(lake, marked) == 3
    plan = expire(home, "--dry-run", "--json").json["generations"]
    assert [list(each) for each in plan] == [
        ["id", "time", "expired", "removable_at", "blocked_by", "reasons", "rows", "bytes_in_lake", "action"]
    ] * 4
    first, newest = plan[0], plan[-1]
    gone = TIMES_MS[1] + SKEW_MS + 3_600_000
    assert (first["id"], first["time"], first["blocked_by"]) == (IDS[0], iso(Milliseconds(TIMES_MS[0])), [])
    assert (first["expired"], first["removable_at"], first["action"]) == (
        iso(Milliseconds(gone)),
        iso(Milliseconds(marked + 3_600_000)),
        "remove",
    )
    assert isinstance(first["rows"], int)
    assert isinstance(first["bytes_in_lake"], int)
    assert (newest["expired"], newest["removable_at"], newest["blocked_by"]) == (None, None, ["operates"])
    assert len(Timeline.read(lake).known) == 4
    assert [each.expired_ms is None for each in Timeline.read(lake).known] == [False] * 3 + [True]


def test_expire_does_what_the_plan_says(home: Path) -> None:
    """What may go is gone, and what a table holds is named; the next plan does not have it any more."""
    held = run(
        "--home", home, "--clock", iso(Milliseconds(TIMES_MS[2])), "tables", "alter", "shop.orders", "--ttl", "0"
    )
    assert held.exit_code == 0
    marked = expire(home, "--json", clock=EARLIER).json["generations"]
    assert [each["action"] for each in marked] == ["mark", "keep", "keep", "keep"]
    assert [each["action"] for each in expire(home, "--json").json["generations"]] == ["remove", "keep", "keep", "keep"]
    assert [each["id"] for each in run("--home", home, "generations", "--json").rows] == list(reversed(IDS[1:]))
    plan = expire(home, "--dry-run", "--json").json["generations"]
    assert [each["blocked_by"] for each in plan] == [["shop.orders"], ["shop.orders"], ["operates"]]
    assert plan[0]["expired"] is None
    told = expire(home).stdout
    assert {"marked 0", "removed 0"} <= {" ".join(line.split()) for line in told.splitlines()}
    answer = run("--home", home, "streams", iso(Milliseconds(TIMES_MS[0])))
    assert (answer.exit_code, "was removed at" in answer.stderr) == (2, True)


def test_consumers_are_listed_and_forgotten(home: Path) -> None:
    """One that never comes back holds generations until it is taken out."""
    lake = Lake(home / "lake")
    consumers.register_consumer(lake, at(START_MS), "audit", "shop", "orders", position_us=us_from_ms(START_MS))
    assert run("--home", home, "consumers", "--json").rows == [
        {
            "name": "audit",
            "keyspace_name": "shop",
            "table_name": "orders",
            "set_timestamp": None,
            "position": iso(START_MS),
            "window_number": 0,
            "updated_at": iso(START_MS),
            "skipped": [],
            "gaps": 0,
            "checkpoint": "there",
        }
    ]
    assert expire(home, "--dry-run", "--json").json["generations"][0]["blocked_by"] == ["audit"]
    assert "audit of shop.orders has read up to" in expire(home, "--dry-run").stdout
    assert run("--home", home, "consumers", "remove", "audit", "shop.orders").exit_code == 0
    assert expire(home, "--dry-run", "--json").json["generations"][0]["blocked_by"] == []


def import_ring(home: Path, tmp_path: Path) -> None:
    """Take in the ring as it stands."""
    nodes = [{"host_id": str(node.host_id), "tokens": list(node.tokens)} for node in NODES]
    known = {"address": "a", "datacenter": "d", "rack": "r", "shard_count": 4, "ignore_msb": 12}
    (tmp_path / "ring.json").write_text(json.dumps([known | node for node in nodes]), encoding="utf-8")
    assert run("--home", home, "import", tmp_path / "ring.json").exit_code == 0


def test_the_forecast_tells_every_step(home: Path, tmp_path: Path) -> None:
    """Streams and bytes kept today, and after each more node, with and without expiry."""
    import_ring(home, tmp_path)
    steps = expire(home, "--forecast", "5", "--join-interval", "12", "--json").json["forecast"]
    assert [step["nodes"] for step in steps] == list(range(6))
    assert set(steps[0]) == {
        "nodes",
        "num_ranges",
        "num_streams",
        "streams",
        "bytes_in_lake",
        "bytes_in_scylladb",
        "known_to_abort",
        "streams_with_expiry",
        "bytes_in_lake_with_expiry",
    }
    assert all(earlier["bytes_in_lake"] < later["bytes_in_lake"] for earlier, later in pairwise(steps))
    assert steps[5]["bytes_in_lake_with_expiry"] < steps[5]["bytes_in_lake"]
    assert "a new node every 24 h" in expire(home, "--forecast", "50").stdout


def test_sizes_are_told_apart(home: Path, tmp_path: Path) -> None:
    """Wherever a command tells of bytes it says whose: those of Delta's files here, or what ScyllaDB would hold."""
    import_ring(home, tmp_path)
    steps = tmp_path / "steps.json"
    steps.write_text('[{"add": {"num_tokens": 2, "shard_count": 2}}]', encoding="utf-8")
    answers = [expire(home, "--dry-run"), expire(home, "--forecast", "3"), run("--home", home, "status")]
    rehearsal = run("--home", home, "rehearse", steps, "--max-bytes", "1")
    assert all("in the lake" in answer.stdout for answer in answers)
    assert "in ScyllaDB" in answers[1].stdout
    assert re.search(r"has \S+ B in ScyllaDB, more than 1 B", rehearsal.stderr)


def test_the_plan_is_told_as_statements_of_the_cluster(home: Path) -> None:
    """Of what may go, and nothing else: the timestamp before the streams, and nothing is removed here by it."""
    assert "Nothing may be removed" in expire(home, "--cql").stdout
    expire(home, clock=EARLIER)
    before = expire(home, "--dry-run", "--json").json["generations"]
    gone = [each["id"] for each in before if each["action"] == "remove"]
    told = expire(home, "--cql", "--json").json["generations"]
    assert [each["id"] for each in told] == gone == list(IDS[:3])
    assert told[1]["statements"] == [
        "DELETE FROM system_distributed.cdc_generation_timestamps WHERE key = 'timestamps' AND "
        "time = '2026-01-02 00:00:00.000+0000';",
        "DELETE FROM system_distributed.cdc_streams_descriptions_v2 WHERE time = '2026-01-02 00:00:00.000+0000';",
        f"DELETE FROM system_distributed_everywhere.cdc_generation_descriptions_v2 WHERE id = {IDS[1]};",
    ]
    lines = expire(home, "--cql").stdout.splitlines()
    assert [line for line in lines if line.startswith("DELETE")] == [each for one in told for each in one["statements"]]
    assert expire(home, "--dry-run", "--json").json["generations"] == before
    assert "Nothing may be removed" in expire(home, "--cql", clock=JUST_BEFORE).stdout
    assert "Nothing may be removed" in expire(home, "--cql", clock=iso(Milliseconds(TIMES_MS[0]))).stdout
    assert run("--home", home, "expire", "--cql", "--forecast", "3").exit_code == 2


def test_no_jvm_is_started(home: Path) -> None:
    """A machine without Java expires generations all the same."""
    expire(home, clock=EARLIER)
    bare = {name: value for name, value in os.environ.items() if name not in ("PATH", "JAVA_HOME", "SPARK_REMOTE")}
    command = [sys.executable, "-m", "cdc_platform", "--home", str(home), "--clock", LATER, "expire", "--json"]
    done = subprocess.run(command, env=bare | {"PATH": "/nowhere"}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["generations"][0]["action"] == "remove"
