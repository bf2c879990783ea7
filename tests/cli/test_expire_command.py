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
"""When a run marks the generations that a run at LATER removes."""
JUST_BEFORE = iso(Milliseconds(START_MS + 60 * DAY_MS - 1))
"""When removal is not yet allowed."""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with four generations and a table whose rows live for an hour."""
    home = import_generations(tmp_path)
    created = ("--created-at", iso(START_MS - DAY_MS))
    assert run("--home", home, "tables", "add", "Shop.orders", "--ttl", "3600", *created).exit_code == 0
    return home


def expire(home: Path, *args: str, clock: str = LATER) -> Answer:
    """Run `expire` at a clock."""
    answer = run("--home", home, "--clock", clock, "expire", *args)
    assert answer.exit_code == 0, answer.stderr
    return answer


def test_tables_are_listed_as_registered(home: Path) -> None:
    """Names follow CQL; a change prints the changed table; the history has every change."""
    table = {
        "keyspace_name": "shop",
        "table_name": "orders",
        "table": "shop.orders",
        "enabled": True,
        "ttl_seconds": 3600,
        "created_at": iso(START_MS - DAY_MS),
        "ddl": None,
    }
    assert run("--home", home, "tables", "--json").rows == [table]
    changed = run("--home", home, "tables", "alter", "shop.ORDERS", "--ttl", "0", "--disabled", "--json").facts
    assert changed == table | {"ttl_seconds": 0, "enabled": False}
    assert run("--home", home, "tables", "add", '"Shop".t', "--ttl", "1", "--json").json["table"] == "Shop.t"
    history = [
        (change["table"], change["what"]) for change in run("--home", home, "tables", "--history", "--json").rows
    ]
    assert history == [("Shop.t", "added"), ("shop.orders", "added"), ("shop.orders", "altered")]
    dropped = run("--home", home, "tables", "drop", "shop.orders", "--json").facts
    assert dropped == {"table": "shop.orders", "dropped": True}
    assert "Shop.t" in run("--home", home, "tables").stdout


def test_the_purge_plan_has_the_shape_that_scripts_rely_on(home: Path) -> None:
    """The plan has every generation, oldest first; a dry run changes nothing."""
    lake = Lake(home / "lake")
    marked = Milliseconds(START_MS + 50 * DAY_MS)
    assert mark(lake, marked) == 3
    plan = expire(home, "--dry-run", "--json").json["generations"]
    assert [list(row) for row in plan] == [
        ["id", "time", "expired", "removable_at", "blocked_by", "reasons", "rows", "bytes_in_lake", "action"]
    ] * 4
    first, newest = plan[0], plan[-1]
    gone_ms = TIMES_MS[1] + SKEW_MS + 3_600_000
    assert (first["id"], first["time"], first["blocked_by"]) == (IDS[0], iso(Milliseconds(TIMES_MS[0])), [])
    assert (first["expired"], first["removable_at"], first["action"]) == (
        iso(Milliseconds(gone_ms)),
        iso(Milliseconds(marked + 3_600_000)),
        "remove",
    )
    assert isinstance(first["rows"], int)
    assert isinstance(first["bytes_in_lake"], int)
    assert (newest["expired"], newest["removable_at"], newest["blocked_by"]) == (None, None, ["operates"])
    assert len(Timeline.read(lake).known) == 4
    assert [row.expired_ms is None for row in Timeline.read(lake).known] == [False] * 3 + [True]


def test_expire_follows_the_plan(home: Path) -> None:
    """Due generations are removed and missing in the next plan; a table that blocks is named."""
    altered = run(
        "--home", home, "--clock", iso(Milliseconds(TIMES_MS[2])), "tables", "alter", "shop.orders", "--ttl", "0"
    )
    assert altered.exit_code == 0
    marked = expire(home, "--json", clock=EARLIER).json["generations"]
    assert [row["action"] for row in marked] == ["mark", "keep", "keep", "keep"]
    assert [row["action"] for row in expire(home, "--json").json["generations"]] == ["remove", "keep", "keep", "keep"]
    assert [row["id"] for row in run("--home", home, "generations", "--json").rows] == list(reversed(IDS[1:]))
    plan = expire(home, "--dry-run", "--json").json["generations"]
    assert [row["blocked_by"] for row in plan] == [["shop.orders"], ["shop.orders"], ["operates"]]
    assert plan[0]["expired"] is None
    summary = expire(home).stdout
    assert {"marked 0", "removed 0"} <= {" ".join(line.split()) for line in summary.splitlines()}
    answer = run("--home", home, "streams", iso(Milliseconds(TIMES_MS[0])))
    assert (answer.exit_code, "was removed at" in answer.stderr) == (2, True)


def test_consumers_are_listed_and_removed(home: Path) -> None:
    """A consumer that never returns blocks expiry until it is removed."""
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
    """Import the ring."""
    nodes = [{"host_id": str(node.host_id), "tokens": list(node.tokens)} for node in NODES]
    other_fields = {"address": "a", "datacenter": "d", "rack": "r", "shard_count": 4, "ignore_msb": 12}
    (tmp_path / "ring.json").write_text(json.dumps([other_fields | node for node in nodes]), encoding="utf-8")
    assert run("--home", home, "import", tmp_path / "ring.json").exit_code == 0


def test_the_forecast_has_every_step(home: Path, tmp_path: Path) -> None:
    """The forecast has streams and bytes today and after each node, with and without expiry."""
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


def test_sizes_name_their_storage(home: Path, tmp_path: Path) -> None:
    """Every size says whether it is that of Delta's files in the lake or that in ScyllaDB."""
    import_ring(home, tmp_path)
    steps = tmp_path / "steps.json"
    steps.write_text('[{"add": {"num_tokens": 2, "shard_count": 2}}]', encoding="utf-8")
    answers = [expire(home, "--dry-run"), expire(home, "--forecast", "3"), run("--home", home, "status")]
    rehearsal = run("--home", home, "rehearse", steps, "--max-bytes", "1")
    assert all("in the lake" in answer.stdout for answer in answers)
    assert "in ScyllaDB" in answers[1].stdout
    assert re.search(r"has \S+ B in ScyllaDB, more than 1 B", rehearsal.stderr)


def test_the_plan_can_be_printed_as_cql(home: Path) -> None:
    """The CQL removes due generations alone, the timestamp before the streams, and changes nothing in the home."""
    assert "Nothing may be removed" in expire(home, "--cql").stdout
    expire(home, clock=EARLIER)
    before = expire(home, "--dry-run", "--json").json["generations"]
    due = [row["id"] for row in before if row["action"] == "remove"]
    printed = expire(home, "--cql", "--json").json["generations"]
    assert [row["id"] for row in printed] == due == list(IDS[:3])
    assert printed[1]["statements"] == [
        "DELETE FROM system_distributed.cdc_generation_timestamps WHERE key = 'timestamps' AND "
        "time = '2026-01-02 00:00:00.000+0000';",
        "DELETE FROM system_distributed.cdc_streams_descriptions_v2 WHERE time = '2026-01-02 00:00:00.000+0000';",
        f"DELETE FROM system_distributed_everywhere.cdc_generation_descriptions_v2 WHERE id = {IDS[1]};",
    ]
    lines = expire(home, "--cql").stdout.splitlines()
    assert [line for line in lines if line.startswith("DELETE")] == [
        row for printed_generation in printed for row in printed_generation["statements"]
    ]
    assert expire(home, "--dry-run", "--json").json["generations"] == before
    assert "Nothing may be removed" in expire(home, "--cql", clock=JUST_BEFORE).stdout
    assert "Nothing may be removed" in expire(home, "--cql", clock=iso(Milliseconds(TIMES_MS[0]))).stdout
    assert run("--home", home, "expire", "--cql", "--forecast", "3").exit_code == 2


def test_no_jvm_is_started(home: Path) -> None:
    """A machine without Java can expire generations."""
    expire(home, clock=EARLIER)
    environment = {
        name: value for name, value in os.environ.items() if name not in ("PATH", "JAVA_HOME", "SPARK_REMOTE")
    }
    command = [sys.executable, "-m", "cdc_platform", "--home", str(home), "--clock", LATER, "expire", "--json"]
    result = subprocess.run(
        command, env=environment | {"PATH": "/nowhere"}, capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout)["generations"][0]["action"] == "remove"
