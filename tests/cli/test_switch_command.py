"""`cdc-platform switch`: show, acknowledge, commit, abort, and the verdict of explain meanwhile. No JVM."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import Answer, run
from support.worlds.switch_lake import NOON, NOON_MS, TWO_PHASE, host, inserted, ring_of

from cdc_platform.clock import Milliseconds, format_ms
from cdc_platform.delta import Lake
from cdc_platform.home_location import open_home_location
from cdc_platform.lifecycle import switch
from cdc_platform.tables import GENERATIONS

HOSTS = [host(number) for number in (1, 2, 3)]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with two nodes."""
    home = open_home_location(tmp_path / "home")
    ring_of(Lake(home.lake), (1, 2))
    return home.path


@pytest.fixture
def generation_id(home: Path) -> str:
    """A third node's prepared switch."""
    lake = Lake(home / "lake")
    generation_id = inserted(lake, 3)
    switch.prepare_switch(lake, NOON, TWO_PHASE, generation_id, HOSTS[2], HOSTS)
    return generation_id


def at(home: Path, seconds: int, *args: str) -> Answer:
    """Run the program this many seconds after the preparation."""
    return run("--home", home, "--clock", format_ms(Milliseconds(NOON_MS + seconds * 1000)), *args)


def test_a_home_without_switches_shows_none(home: Path) -> None:
    """Switches are disabled by default, and showing them creates no table."""
    assert run("--home", home, "switch", "show", "--json").rows == []
    assert "Generation switches" in run("--home", home, "switch", "show").stdout
    assert not Lake(home / "lake").exists(switch.GENERATION_SWITCHES)


def test_a_manual_switch_from_acknowledgements_to_commit(home: Path, generation_id: str) -> None:
    """Each participant acknowledges; the time is the last lease end plus the margin, also in the ledger."""
    for seconds, node in enumerate(HOSTS):
        answer = at(home, seconds, "switch", "ack", generation_id, "--node", node, "--json")
        assert answer.exit_code == 0, answer.stderr
        assert answer.json["acknowledged"][-1] == {
            "host_id": node,
            "lease_end": format_ms(Milliseconds(NOON_MS + 65_000 + seconds * 1000)),
        }
        assert answer.json["missing"] == HOSTS[seconds + 1 :]
    committed = at(home, 5, "switch", "commit", generation_id, "--json").json
    assert (committed["phase"], committed["time"]) == ("committed", format_ms(Milliseconds(NOON_MS + 72_000)))
    assert (committed["decided_at"], committed["decided_by"]) == (
        format_ms(Milliseconds(NOON_MS + 5_000)),
        "cdc-platform switch",
    )
    assert Lake(home / "lake").read(GENERATIONS)["generation_id"].to_pylist() == [generation_id]
    assert at(home, 9, "switch", "show", committed["time"], "--json").json == committed
    [listed] = at(home, 9, "switch", "show", "--json").rows
    assert listed == {name: value for name, value in committed.items() if name not in ("version", "next")}
    printed = at(home, 9, "switch", "show").stdout
    assert "committed" in printed
    assert committed["time"] in printed


def test_an_overdue_switch_can_be_aborted(home: Path, generation_id: str) -> None:
    """A second abort has an equal answer."""
    first, second = (at(home, seconds, "switch", "abort", generation_id, "--json") for seconds in (30, 40))
    assert (first.exit_code, first.json["phase"], first.json["time"]) == (0, "aborted", None)
    assert second.json == first.json
    assert "aborted" in at(home, 50, "switch", "show", generation_id).stdout


def test_explain_refuses_undecided_writes(home: Path, generation_id: str) -> None:
    """While the next generation is undecided, the exit code is 1 with the reason."""
    lake = Lake(home / "lake")
    switch.advance_switch(lake, NOON, TWO_PHASE, generation_id, "a test")
    other = inserted(lake, 4)
    switch.prepare_switch(lake, NOON, TWO_PHASE, other, host(4), [*HOSTS, host(4)])
    assert at(home, 20, "switch", "ack", other, "--node", HOSTS[0]).exit_code == 0
    refused = at(home, 85, "explain", "--token", "42", "--json")
    assert (refused.exit_code, refused.json["verdict"], refused.json["accepted"]) == (1, "UNDECIDED", False)
    assert refused.json["reason"].startswith("a generation switch is undecided since 2023-11-14T22:13:20.000Z; ")
    assert at(home, 84, "explain", "--token", "42").exit_code == 0
