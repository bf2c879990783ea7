"""A complete repair, also after a kill and with concurrent processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest
from support.homes.contents import contents
from support.processes.nursery import Nursery

from cdc_platform import failpoints
from cdc_platform.delta import Lake
from cdc_platform.generations import RingLayout, generate_description
from cdc_platform.metastore import generations, inbox, write_nodes
from cdc_platform.metastore.ring import node_rows
from cdc_platform.ring import Node, Ring
from cdc_platform.tables import (
    BOOTSTRAP_EVENTS,
    CDC_LOCAL,
    GENERATION_TIMESTAMPS,
    GENERATIONS,
    JUDGEMENTS,
    NODES,
    STREAMS_DESCRIPTIONS_V2,
)

V2 = ("CDC_GENERATIONS_V2",)
HOSTS = [
    Node(UUID(int=1), (-(2**62), 5, 2**61), 4, 12, "10.0.0.1", "dc1", "r1", V2),
    Node(UUID(int=2), (0, 77), 3, 0, "10.0.0.2", "dc1", "r1", V2),
]
BOOKKEEPING = {"created_at", "published_at", "judged_at", "content", "door"}
NOON, LATER = "2026-01-01T12:00:00Z", "2026-01-01T13:00:00Z"


def command(home: Path, clock: str, *options: str) -> list[str]:
    """Return the arguments of `repair --run` on a home with a stopped clock."""
    return ["--home", str(home), "--clock", clock, "repair", "--run", *options]


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory, nursery: Nursery) -> Path:
    """A home with a ring without a generation, and a repair in the inbox."""
    home = tmp_path_factory.mktemp("asked") / "home"
    write_nodes(Lake(home / "lake"), HOSTS)
    (home / "platform.json").write_text('{"layout": 1}\n', encoding="utf-8")
    queue = [word for word in command(home, NOON) if word != "--run"]
    result = nursery.run(*queue)
    assert result.exit_code == 0, result.stderr
    return home


@pytest.fixture(scope="module")
def repaired(asked: Path, nursery: Nursery) -> Path:
    """The home after an undisturbed repair."""
    home = asked.with_name("repaired")
    shutil.copytree(asked, home)
    result = nursery.run(*command(home, NOON, "--json"))
    assert result.exit_code == 0, result.stderr
    summary = json.loads(result.stdout)
    assert summary["time"] == "2026-01-01T12:01:05.000Z"
    assert (summary["num_ranges"], summary["num_streams"]) == (5, 18)
    return home


def test_a_repair_creates_a_generation_of_the_current_ring(repaired: Path) -> None:
    """The ring is unchanged, the streams are those of the ring, and no node is marked as rewritten."""
    lake = Lake(repaired / "lake")
    (ledger,) = lake.read(GENERATIONS).to_pylist()
    description = generations.read_v2_description(lake, ledger["generation_id"])
    assert description.equals(generate_description(RingLayout.of(Ring.of(HOSTS)), UUID(ledger["generation_id"])))
    assert lake.read(NODES).sort_by("host_id") == node_rows(HOSTS)
    (local,) = lake.read(CDC_LOCAL).to_pylist()
    assert (local["host_id"], local["key"], local["uuid"]) == (str(UUID(int=1)), "cdc_local", ledger["generation_id"])
    assert lake.read(GENERATION_TIMESTAMPS).num_rows == 1
    assert lake.read(STREAMS_DESCRIPTIONS_V2).num_rows == 5


def test_no_repair_is_needed_after_one(repaired: Path, nursery: Nursery) -> None:
    """The next call finds no damage and writes nothing; a ring that shrinks later needs another repair."""
    before = contents(repaired, without=BOOKKEEPING)
    result = nursery.run(*command(repaired, LATER, "--strict", "--json"))
    assert json.loads(result.stdout)["needed"] is False
    assert contents(repaired, without=BOOKKEEPING) == before
    home = repaired.with_name("shrunk")
    shutil.copytree(repaired, home)
    Lake(home / "lake").delete(NODES, [("host_id", "=", str(UUID(int=2)))])
    summary = json.loads(nursery.run(*command(home, LATER, "--json")).stdout)
    assert [line["condition"] for line in summary["reasons"]] == ["range-count"]
    assert summary["num_ranges"] == 3
    assert Lake(home / "lake").read(GENERATION_TIMESTAMPS).num_rows == 2
    # A repetition of the first repair leaves it unchanged, although the ring has changed.
    first = contents(repaired, without=BOOKKEEPING)["platform.generations"][0]["generation_id"]
    code = (
        "import sys\nfrom cdc_platform.lifecycle.join import bootstrap\nfrom cdc_platform.delta.lake import Lake\n"
        "print(*(ring.tokens.size for ring in bootstrap.read_rings(Lake(sys.argv[1]), sys.argv[2])))"
    )
    assert nursery.run("-c", code, home / "lake", str(first)).stdout == "5 5\n"


@pytest.mark.parametrize("point", [failpoints.AFTER_V2_INSERT, failpoints.AFTER_TIMESTAMP, failpoints.AFTER_PUBLISHED])
def test_a_killed_repair_is_completed_by_the_next_run(
    point: str, asked: Path, repaired: Path, nursery: Nursery
) -> None:
    """After a kill at each failpoint, the next run gives equal bytes in every table and retains the timestamp."""
    home = asked.with_name(point)
    shutil.copytree(asked, home)
    assert nursery.run(*command(home, NOON), kill_at=point).exit_code == -signal.SIGKILL
    assert contents(home, without=BOOKKEEPING) != contents(repaired, without=BOOKKEEPING)
    event = Lake(home / "lake").read(BOOTSTRAP_EVENTS, ["generation_id"]).to_pylist()[0]
    # With its timestamp the generation is the latest and fits. The rest is completed nevertheless, and a later clock
    # chooses no other timestamp.
    result = nursery.run(*command(home, NOON if point == failpoints.AFTER_V2_INSERT else LATER))
    assert result.exit_code == 0, result.stderr
    assert Lake(home / "lake").read(BOOTSTRAP_EVENTS, ["generation_id"]).to_pylist() == [event]
    assert contents(home, without=BOOKKEEPING) == contents(repaired, without=BOOKKEEPING)


@pytest.mark.long("a run of Dagster, of all steps and checks")
def test_dagster_runs_a_repair_like_a_join(asked: Path, repaired: Path) -> None:
    """The sensor's job on the repair's partition runs every step and check, and gives equal tables."""
    home = asked.with_name("dagster")
    shutil.copytree(asked, home)
    code = (
        "import sys\n"
        "from unittest.mock import patch\n"
        "from dagster import DagsterInstance\n"
        "from cdc_platform_assets.partitions import GENERATIONS_NAME\n"
        "from cdc_platform.clock import Clock, parse_time_us\n"
        "from cdc_platform.definitions import defs\n"
        "from cdc_platform_resources.clock import ClockResource\n"
        "noon = Clock(parse_time_us(sys.argv[2]))\n"
        "with DagsterInstance.ephemeral() as instance, patch.object(ClockResource, 'clock', lambda self: noon):\n"
        "    instance.add_dynamic_partitions(GENERATIONS_NAME, [sys.argv[1]])\n"
        "    job = defs.resolve_job_def('join')\n"
        "    done = job.execute_in_process(instance=instance, partition_key=sys.argv[1], raise_on_error=False)\n"
        "    failed = [each.check_name for each in done.get_asset_check_evaluations() if not each.passed]\n"
        "    sys.exit(0 if done.success and not failed else f'{failed}')\n"
    )
    (pending,) = inbox.read_pending_events(Lake(home / "lake"))
    environment = os.environ | {"CDC_PLATFORM_HOME": str(home)}
    command_line = [sys.executable, "-c", code, pending.generation_id, NOON]
    result = subprocess.run(
        command_line, env=environment, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr[-3000:]
    tables = contents(home, without=BOOKKEEPING)
    # Dagster stores the results of its checks; the command line has run no check.
    assert {row["invariant"] for row in tables.pop(JUDGEMENTS.full_name)} == {
        "generations_retrievable",
        "streams_fit_the_ring",
    }
    assert tables | {JUDGEMENTS.full_name: []} == contents(repaired, without=BOOKKEEPING)


def test_concurrent_repairs_create_one_generation(asked: Path, repaired: Path, nursery: Nursery) -> None:
    """Two processes run a repair at once: one generation, one timestamp, no error."""
    home = asked.with_name("race")
    shutil.copytree(asked, home)
    results = nursery.race([command(home, NOON), command(home, NOON)])
    assert [result.exit_code for result in results] == [0, 0], results
    assert contents(home, without=BOOKKEEPING) == contents(repaired, without=BOOKKEEPING)
