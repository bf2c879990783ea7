"""Initiators and participants that are killed at every step of a switch: real processes. No Spark, no JVM."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest
from support.command_line import run
from support.homes.contents import contents
from support.processes.nursery import Nursery
from support.worlds.switch_lake import NOON, NOON_MS, TWO_PHASE, host, inserted, ring_of

from cdc_platform import failpoints
from cdc_platform.clock import Clock, Milliseconds, format_ms, us_from_ms
from cdc_platform.delta import Lake
from cdc_platform.errors import StateError
from cdc_platform.generations import SwitchPhase
from cdc_platform.home_location import open_home_location
from cdc_platform.lifecycle import audit_ring_fit, switch
from cdc_platform.lifecycle.join import bootstrap
from cdc_platform.metastore import switches
from cdc_platform.tables import CDC_LOCAL, GENERATION_SWITCHES, GENERATIONS, SWITCH_PROMISES

HOSTS = [host(number) for number in (1, 2, 3)]
# A second start may differ only in when a row was written.
BOOKKEEPING = {"created_at", "decided_at"}
OF_A_SWITCH = (GENERATION_SWITCHES, SWITCH_PROMISES, GENERATIONS, CDC_LOCAL)
INTRODUCE = """
import sys
from cdc_platform.clock import Clock
from cdc_platform.delta.lake import Lake
from cdc_platform.lifecycle.join import bootstrap
from cdc_platform.settings import Settings
bootstrap.introduce_generation(Lake(sys.argv[1]), Clock(int(sys.argv[2])), Settings(two_phase_switch=True), sys.argv[3])
"""


def command(nursery: Nursery, home: Path, now_ms: Milliseconds, *arguments: str, kill_at: str) -> int:
    """Run `cdc-platform switch` in its own process, which is killed; return its exit code."""
    words = ("--home", home, "--clock", format_ms(now_ms), "switch", *arguments)
    return nursery.run(*words, kill_at=kill_at).exit_code


def run_again(home: Path, now_ms: Milliseconds, *arguments: str) -> int:
    """Run the same command undisturbed."""
    return run("--home", home, "--clock", format_ms(now_ms), "switch", *arguments).exit_code


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Create a home in which a third node's generation is inserted."""
    home = open_home_location(tmp_path_factory.mktemp("waiting") / "home")
    lake = Lake(home.lake)
    ring_of(lake, (1, 2))
    return home.path, inserted(lake, 3)


@pytest.fixture
def home(waiting: tuple[Path, str], tmp_path: Path) -> Path:
    """Return a copy of the home."""
    return shutil.copytree(waiting[0], tmp_path / "home")


@pytest.fixture(scope="module")
def undisturbed(
    waiting: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[dict[str, object]]]:
    """Return the tables' rows after an undisturbed switch."""
    home = shutil.copytree(waiting[0], tmp_path_factory.mktemp("undisturbed") / "home")
    bootstrap.introduce_generation(Lake(home / "lake"), NOON, TWO_PHASE, waiting[1])
    return contents(home, OF_A_SWITCH, without=BOOKKEEPING)


@pytest.mark.parametrize("point", failpoints.SWITCH_POINTS)
def test_killed_switch_is_completed(
    point: str,
    home: Path,
    waiting: tuple[Path, str],
    undisturbed: dict[str, list[dict[str, object]]],
    tmp_path: Path,
    nursery: Nursery,
) -> None:
    """A restarted switch has the same leases and one timestamp; if it never restarts, any node can decide it."""
    generation_id = waiting[1]
    introduced = ("-c", INTRODUCE, home / "lake", str(us_from_ms(NOON_MS)), generation_id)
    killed = nursery.run(*introduced, kill_at=point)
    assert killed.exit_code == -signal.SIGKILL, killed.stderr
    assert contents(home, OF_A_SWITCH, without=BOOKKEEPING) != undisturbed
    abandoned = Lake(shutil.copytree(home, tmp_path / "left") / "lake")
    # Before the promises are stored there is nothing that a later clock must not change.
    later = NOON_MS if point == failpoints.AFTER_SWITCH_PREPARED else NOON_MS + Milliseconds(10_000)
    bootstrap.introduce_generation(Lake(home / "lake"), Clock(us_from_ms(later)), TWO_PHASE, generation_id)
    assert contents(home, OF_A_SWITCH, without=BOOKKEEPING) == undisturbed
    done = switch.advance_switch(
        abandoned, Clock(us_from_ms(Milliseconds(NOON_MS + 30_000))), TWO_PHASE, generation_id, "anybody"
    )
    has_answers = point not in (failpoints.AFTER_SWITCH_PREPARED, failpoints.AFTER_SWITCH_PROMISE)
    assert (done.phase, done.time_ms) == (
        (SwitchPhase.COMMITTED, NOON_MS + 70_000) if has_answers else (SwitchPhase.ABORTED, None)
    )
    if has_answers:
        assert bootstrap.introduce_generation(abandoned, NOON, TWO_PHASE, generation_id) == done.time_ms
    else:
        with pytest.raises(StateError, match="queue the node again"):
            bootstrap.introduce_generation(abandoned, NOON, TWO_PHASE, generation_id)


def test_killed_commands_are_completed(home: Path, waiting: tuple[Path, str], nursery: Nursery) -> None:
    """A participant killed before its answer gives the same answer later; a killed decision is recorded later."""
    lake, generation_id = Lake(home / "lake"), waiting[1]
    switch.prepare_switch(lake, NOON, TWO_PHASE, generation_id, HOSTS[2], HOSTS)
    switch.acknowledge_switch(lake, NOON, TWO_PHASE, generation_id, HOSTS[1:])
    answer = ("ack", generation_id, "--node", HOSTS[0])
    assert (
        command(nursery, home, Milliseconds(NOON_MS + 1_000), *answer, kill_at=failpoints.AFTER_SWITCH_PROMISE)
        == -signal.SIGKILL
    )
    assert switches.find_switch(lake, generation_id).missing == (HOSTS[0],)
    assert run_again(home, Milliseconds(NOON_MS + 9_000), *answer) == 0
    assert switches.find_switch(lake, generation_id).lease_of(HOSTS[0]) == NOON_MS + 66_000
    decide = ("commit", generation_id)
    assert (
        command(nursery, home, Milliseconds(NOON_MS + 9_000), *decide, kill_at=failpoints.AFTER_SWITCH_DECISION)
        == -signal.SIGKILL
    )
    assert not lake.exists(GENERATIONS)
    # Nodes know the generation now. Its fit with the ring is judged only once its node is in the ring.
    assert [line.invariant for line in audit_ring_fit(lake)] == ["generations_retrievable"]
    assert run_again(home, Milliseconds(NOON_MS + 90_000), *decide) == 0
    assert switches.find_switch(lake, generation_id).time_ms == NOON_MS + 71_000
    assert switches.read_unfinished_switches(lake) == []


def test_killed_abort_stays_aborted(home: Path, waiting: tuple[Path, str], nursery: Nursery) -> None:
    """Once an abort is committed, a kill after it does not change the decision."""
    lake, generation_id = Lake(home / "lake"), waiting[1]
    switch.prepare_switch(lake, NOON, TWO_PHASE, generation_id, HOSTS[2], HOSTS)
    late = NOON_MS + 30_000
    assert (
        command(nursery, home, Milliseconds(late), "abort", generation_id, kill_at=failpoints.AFTER_SWITCH_DECISION)
        == -signal.SIGKILL
    )
    first = switches.find_switch(lake, generation_id)
    assert run_again(home, Milliseconds(late + 5_000), "abort", generation_id) == 0
    assert switches.find_switch(lake, generation_id) == first
    assert first.phase is SwitchPhase.ABORTED
