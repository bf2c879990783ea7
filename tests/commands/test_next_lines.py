"""What a command leaves to do it says: a last line with the command that goes on, which is there to be run."""

from __future__ import annotations

from pathlib import Path

from support.command_line import run
from support.homes.expiring import DAY_MS, START_MS, add_table, import_generations, iso
from support.homes.questions import HOME, home_for
from support.homes.timelines import FIRST_MS, home_of

from cdc_platform.clock import Milliseconds
from cdc_platform.lake.lake import Lake

NODE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "node.json"


def following(home: Path, at_ms: int, *command: str | Path) -> list[str]:
    """The lines of a command, run at a time (ms), that say what to run next, without their first word."""
    answer = run("--home", home, "--clock", iso(Milliseconds(at_ms)), *command)
    assert answer.exit_code == 0, answer.stderr
    return [line.removeprefix("next: ") for line in answer.stdout.splitlines() if line.startswith("next: ")]


def test_a_queued_node_is_finished_next(tmp_path: Path) -> None:
    """By the event that was made; JSON stays one document."""
    home = tmp_path / "home"
    (line,) = following(home, START_MS, "bootstrap", NODE)
    again = run("--home", home, "bootstrap", NODE, "--json")
    assert line == f"cdc-platform bootstrap --finish {again.json['event_id']}"
    assert following(home, START_MS, "bootstrap", "--withdraw", again.json["event_id"]) == []


def test_a_prepared_switch_is_acknowledged_and_then_committed(tmp_path: Path) -> None:
    """Each line is a command that can be run as it stands, and the last one is the commit."""
    home = home_of(tmp_path, "undecided")
    generation = run("--home", home, "switch", "show", "--json").json[0]["generation_id"]
    seen = following(home, FIRST_MS + 1, "switch", "show", generation)
    while seen and seen[0].startswith("cdc-platform switch ack "):
        before = seen
        seen = following(home, FIRST_MS + 1, *seen[0].split()[1:])
        assert seen != before
    assert seen == [f"cdc-platform switch commit {generation}"]


def test_a_cluster_is_tried_next(tmp_path: Path) -> None:
    """Nothing was asked of it when it was told of."""
    add = ("cluster", "add", "prod", "--contact", "127.0.0.1:1")
    assert following(tmp_path / "home", START_MS, *add) == ["cdc-platform cluster test prod"]


def test_what_is_marked_goes_with_a_later_run(tmp_path: Path) -> None:
    """Marking leaves the removal; a run that marks nothing leaves nothing."""
    home = import_generations(tmp_path)
    add_table(Lake(home / "lake"), 86_400)
    later = START_MS + 30 * DAY_MS
    (line,) = following(home, later, "expire")
    assert line.startswith("cdc-platform expire, once the grace time has passed")
    assert following(home, later, "expire") == []


def test_a_queued_repair_is_run_next(tmp_path: Path) -> None:
    """Asking for the repair of a ring that its generation does not fit queues an event, and a dry run queues none."""
    place = home_for(tmp_path, "nodes left")
    home = place / HOME
    assert run("--home", home, "repair", "--dry-run").stdout.count("next: ") == 0
    assert following(home, FIRST_MS + DAY_MS, "repair") == ["cdc-platform repair --run"]
