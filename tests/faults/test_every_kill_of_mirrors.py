"""Kill `observe` and `ingest` before each file operation and run them again. No JVM."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.command_line import run
from support.processes.kills import Case, killed_and_run_again
from support.processes.nursery import Nursery
from support.standin.brought import FIRST_US, GENERATIONS, NOW_US, SWITCH_MS, SWITCH_US
from support.standin.cluster import FIRST_MS, PASSWORD, USER, StandIn, description, nodes
from support.standin.live_table import LiveTable
from support.standin.world import OBSERVER, time_uuid

from cdc_platform.clock import SECOND_US, Microseconds, Milliseconds, format_us
from cdc_platform.home_location import open_home_location
from cdc_platform.scylla import registry

pytestmark = pytest.mark.cassandra

Prepare = Callable[[StandIn, LiveTable, Path], object]
MIDDLE_US = Microseconds(SWITCH_US - 60 * SECOND_US)
PASSED_US = Microseconds(SWITCH_US + 600 * SECOND_US)
INGEST = ("ingest", "prod", "shop.t")
LATE_TOO = (*INGEST, "--second-pass-after", "600")


def run_to_end(home: Path, *command: str, at_us: Microseconds = MIDDLE_US) -> None:
    """Run a command and require that it succeeds."""
    answer = run("--home", home, "--clock", format_us(at_us), *command)
    assert answer.exit_code == 0, answer.stderr


def write(table: LiveTable, *times_us: int) -> None:
    """Write one row per timestamp (µs) to the table and to its log."""
    for key, at in enumerate(times_us, table.logged):
        text = f"INSERT INTO shop.t (p, k, v) VALUES ({key}, 1, {key}) USING TIMESTAMP {at}"
        table.world.run(text)
        table.log({"p": key}, at, [{"cdc$operation": 2, "k": 1, "v": key}])


def unobserved(standin: StandIn, table: LiveTable, home: Path) -> None:
    """Prepare a cluster that was never observed, with rows on both sides of a switch."""
    write(table, FIRST_US + 1, SWITCH_US - 1, SWITCH_US, SWITCH_US + 1)


def changed_since(standin: StandIn, table: LiveTable, home: Path) -> None:
    """Observe a cluster; then a node joins, another table gets a log, and a table's TTL changes."""
    run_to_end(home, "observe", "prod")
    at = Milliseconds(SWITCH_MS + 60_000)
    standin.world.cluster(nodes(3, tokens=3))
    standin.world.generation(at, time_uuid(at), description(time_uuid(at), nodes(4)))
    standin.world.cdc_options("shop", "t", ttl="3600")
    standin.world.schema_changed()


def partly_read(standin: StandIn, table: LiveTable, home: Path) -> None:
    """Ingest the first window; then write more rows, one of them late."""
    write(table, FIRST_US + 1)
    run_to_end(home, *INGEST)
    write(table, FIRST_US + 2, SWITCH_US + 1)


def replicated(standin: StandIn, table: LiveTable, home: Path) -> None:
    """Ingest a table with `--current`; then change one of its rows and delete another."""
    write(table, FIRST_US + 1, FIRST_US + 2)
    run_to_end(home, *INGEST, "--current")
    write(table, SWITCH_US + 1)
    table.world.run(f"DELETE FROM shop.t USING TIMESTAMP {SWITCH_US + 2} WHERE p = 0 AND k = 1")
    table.log({"p": 0}, SWITCH_US + 2, [{"cdc$operation": 3, "k": 1}])


def passed_unread(standin: StandIn, table: LiveTable, home: Path) -> None:
    """Ingest past the start of an unknown generation; its rows lie before the position, one of them a deletion."""
    for name, where, value in (
        ("scylla_distributed.cdc_generation_timestamps", "key = 'timestamps' AND time = %s", SWITCH_MS),
        ("scylla.cdc_generations_v3", "key = 'cdc_generations' AND id = %s", time_uuid(SWITCH_MS)),
    ):
        standin.world.delete(name, where, value)
    known_then = f"{{({FIRST_MS}, {time_uuid(FIRST_MS)})}}"
    standin.world.run(f"UPDATE scylla.topology SET committed_cdc_generations = {known_then} WHERE key = 'topology'")
    for node in range(standin.world.nodes):
        row = {"key": "cdc_local", "streams_timestamp": FIRST_MS, "uuid": time_uuid(FIRST_MS)}
        standin.world.put(f"node{node}.cdc_local", **row)
    write(table, FIRST_US + 1, FIRST_US + 2, SWITCH_US + 1)
    run_to_end(home, *INGEST, "--current", at_us=PASSED_US)
    standin.world.generation(SWITCH_MS, time_uuid(SWITCH_MS), GENERATIONS[SWITCH_MS])
    table.world.run(f"DELETE FROM shop.t USING TIMESTAMP {SWITCH_US + 2} WHERE p = 0 AND k = 1")
    table.log({"p": 0}, SWITCH_US + 2, [{"cdc$operation": 3, "k": 1}])
    write(table, PASSED_US + 1)


CASES: dict[str, tuple[Prepare, tuple[str, ...]]] = {
    "observe": (unobserved, ("observe", "prod")),
    "observe: what became other": (changed_since, ("observe", "prod")),
    "ingest": (unobserved, INGEST),
    "ingest: late rows": (partly_read, LATE_TOO),
    "ingest --current": (unobserved, (*INGEST, "--current")),
    "ingest: a table that is kept": (replicated, INGEST),
    "ingest: a generation that the position has passed": (passed_unread, (*INGEST, "--second-pass-after", "0")),
    "ingest --recopy": (replicated, (*INGEST, "--recopy")),
}


@pytest.mark.grid("kills of commands on live clusters", 2)
@pytest.mark.parametrize(("prepare", "command"), CASES.values(), ids=list(CASES))
def test_next_process_completes_a_killed_command(
    standin: StandIn, table: LiveTable, nursery: Nursery, tmp_path: Path, prepare: Prepare, command: tuple[str, ...]
) -> None:
    """Running a killed command again leaves exactly the rows that an undisturbed run leaves in the cluster's home."""
    standin.world.generation(SWITCH_MS, time_uuid(SWITCH_MS), GENERATIONS[SWITCH_MS])
    table.generations = GENERATIONS

    def prepared(home: Path) -> None:
        registry.add_cluster(open_home_location(home), "prod", standin.connection())
        prepare(standin, table, home)

    case = Case(prepared, command, format_us(NOW_US), environment={USER: OBSERVER[0], PASSWORD: OBSERVER[1]})
    assert killed_and_run_again(nursery, case, tmp_path) > 0
