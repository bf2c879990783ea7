"""Dead checkpoints: of the platform's consumers, and in the tables of ScyllaDB's clients."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import run
from support.homes.timelines import FIRST_MS, SECOND_MS, home_of

from cdc_platform.cdclog import parse_checkpoints
from cdc_platform.clock import Clock, Microseconds, format_ms, us_from_ms
from cdc_platform.delta import Lake
from cdc_platform.errors import InputError
from cdc_platform.metastore import Consumer, consumers
from cdc_platform.timeline import StreamSources

FIRST_US, SECOND_US = us_from_ms(FIRST_MS), us_from_ms(SECOND_MS)
STREAM = "0x" + "00" * 15 + "01"


def checkpoint_states(home: Path) -> dict[str, str]:
    """Return the state of each consumer's checkpoint, as the command shows it."""
    return {row["name"]: row["checkpoint"] for row in run("--home", home, "consumers", "--json").rows}


def test_a_consumer_in_a_removed_generation_is_marked(tmp_path: Path) -> None:
    """A consumer at the end of the removed generation continues in the next; one before both has all of it to read."""
    home = home_of(tmp_path, "removed")
    lake = Lake(home / "lake")
    for name, at in (("in_it", FIRST_US), ("behind_it", SECOND_US - 1), ("after", SECOND_US), ("before", FIRST_US - 9)):
        consumers.register_consumer(lake, Clock(FIRST_US), name, "ks", "t", position_us=Microseconds(at))
    assert checkpoint_states(home) == {"in_it": "removed", "behind_it": "there", "after": "there", "before": "there"}
    assert "   removed   " in run("--home", home, "consumers").stdout


def test_a_checkpoint_in_a_collected_set_of_tablets_is_gone(tmp_path: Path) -> None:
    """The remaining sets begin after the one that was read."""
    home = home_of(tmp_path, "with_tablets")
    lake = Lake(home / "lake")
    early = Consumer("audit", "ks", "t", FIRST_US, FIRST_US, 1, FIRST_US)
    lake.merge(consumers.CONSUMERS, consumers._rows(early), update=False)
    assert checkpoint_states(home) == {"audit": "gone"}


@pytest.mark.parametrize("client", ["go", "rust"])
def test_tables_of_clients_are_judged(tmp_path: Path, client: str) -> None:
    """Go has a row per stream, and one with the reader's current generation; an unknown generation is reported."""
    home = home_of(tmp_path, "removed")
    first, second, unknown = (
        format_ms(time_ms).replace("T", " ").replace("Z", "+0000") for time_ms in (FIRST_MS, SECOND_MS, FIRST_MS * 2)
    )
    if client == "go":
        rows = [f"{time_ms},app,ks.t,{STREAM},,u" for time_ms in (first, first, second, unknown)]
        rows.append(f"0001-01-01 00:00:00.000+0000,app,,0x,{second},")
        head = "generation,application_name,table_name,stream_id,current_generation,last_timestamp"
    else:
        rows = [f"{STREAM},{time_ms},x" for time_ms in (first, first, second, unknown)]
        rows.append(f"0x00,{second},x")
        head = "stream_id,generation,time"
    file = tmp_path / "kept.csv"
    file.write_text("\n".join([head, *rows, ""]), encoding="utf-8")
    answer = run("--home", home, "consumers", "checkpoints", file, "--json")
    assert [(row["checkpoints"], row["current"], row["state"]) for row in answer.rows] == [
        (2, False, "removed"),
        (1, True, "there"),
        (1, False, "unknown"),
    ]
    assert answer.exit_code == 1
    assert "3 checkpoints point to 2 generations" in run("--home", home, "consumers", "checkpoints", file).stdout


def test_live_checkpoints_pass(tmp_path: Path) -> None:
    """The exit code is 0 if no checkpoint is dead; another table is refused."""
    lake = Lake(home_of(tmp_path, "plain") / "lake")
    periods = StreamSources(lake).generations.periods()
    (checkpoint,) = parse_checkpoints("f", f"stream_id,generation\n{STREAM},{format_ms(FIRST_MS)}\n", periods)
    assert not checkpoint.is_dead
    with pytest.raises(InputError, match="columns stream_id and generation, this has a, b"):
        parse_checkpoints("f", "a,b\n1,2\n", periods)
    with pytest.raises(InputError, match="line 2"):
        parse_checkpoints("f", f"stream_id,generation\n{STREAM},yesterday\n", periods)
