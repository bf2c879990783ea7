"""`rewrite --clients`: may clients go by the new tables; each state of a rewrite has its answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.command_line import Answer, run
from support.homes.timelines import FIRST_MS, home_of
from support.homes.v1_tables import HOUR_MS, START_MS, old_cluster, times

from cdc_platform.clock import Milliseconds, format_ms
from cdc_platform.delta import Lake

NOW = format_ms(Milliseconds(START_MS + 4 * HOUR_MS))
FIRST, SECOND, THIRD = (format_ms(Milliseconds(each)) for each in times(3))
ONE = "00000000-0000-0000-0000-000000000001"


def asked(home: Path, *more: str) -> Answer:
    """Ask for the answer."""
    return run("--home", home, "--clock", NOW, "rewrite", "--clients", *more)


def facts(home: Path) -> dict[str, Any]:
    """The answer as JSON; the exit code is that of its verdict."""
    answer = asked(home, "--json")
    assert answer.exit_code == int(not answer.json["may_switch"])
    return answer.json


def rewrite(home: Path, *more: str) -> None:
    """Rewrite for all nodes or some."""
    assert run("--home", home, "--clock", NOW, "rewrite", *more).exit_code == 0


def test_before_within_and_after_a_rewrite(tmp_path: Path) -> None:
    """No row of the new tables; all of them, but two nodes lack the mark; everything."""
    old_cluster(Lake(tmp_path / "lake"), times(3))
    told = facts(tmp_path)
    assert (told["may_switch"], told["rows_from"], len(told["nodes_not_marked"])) == (False, None, 3)
    assert [each["time"] for each in told["missing"]] == [FIRST, SECOND, THIRD]
    rewrite(tmp_path, "--node", ONE)
    told = facts(tmp_path)
    assert (told["may_switch"], told["rows_from"], len(told["nodes_not_marked"]), told["missing"]) == (
        False,
        FIRST,
        2,
        [],
    )
    rewrite(tmp_path)
    told = facts(tmp_path)
    assert (told["may_switch"], told["rows_from"], told["nodes_not_marked"]) == (True, FIRST, [])
    assert asked(tmp_path).stdout.startswith("may switch        yes")


def test_what_could_not_be_rewritten_leaves_a_time_from_which_on(tmp_path: Path) -> None:
    """The mark is written all the same, as ScyllaDB does it: that clients switch then is not right for all rows."""
    old_cluster(Lake(tmp_path / "lake"), times(3), without_data=[times(3)[1]])
    rewrite(tmp_path)
    told = facts(tmp_path)
    assert (told["may_switch"], told["rows_from"], [each["time"] for each in told["missing"]]) == (
        False,
        THIRD,
        [SECOND],
    )
    assert asked(tmp_path).stdout.startswith(f"may switch        no\nrows from         {THIRD}")


def test_generations_that_no_log_has_rows_of_do_not_count(tmp_path: Path) -> None:
    """A TTL of an hour and a half: the first of four was superseded three hours ago."""
    old_cluster(Lake(tmp_path / "lake"), times(4), without_data=[times(4)[0]], tables=[("t", 5_400)])
    rewrite(tmp_path)
    assert facts(tmp_path)["may_switch"]


def test_where_no_table_is_known_every_old_generation_counts(tmp_path: Path) -> None:
    """The newest one too, though no log is known that could have rows of it; and none where there is no such table."""
    old_cluster(Lake(tmp_path / "lake"), times(3), tables=[])
    told = facts(tmp_path)
    assert [each["time"] for each in told["missing"]] == [FIRST, SECOND, THIRD]
    assert all("no table with a CDC log is known here; import the schema" in each["reason"] for each in told["missing"])
    assert run("--home", tmp_path, "--clock", NOW, "tables", "declare-none").exit_code == 0
    assert facts(tmp_path)["missing"] == []


def test_the_example_of_an_old_cluster_may_not_switch(tmp_path: Path) -> None:
    """The files of docs/rewrite.md, imported as that says."""
    example = Path(__file__).parents[2] / "docs" / "examples" / "old_cluster"
    node = "7d1f0b52-6e0c-4b4e-9c0d-3a1d3f8f0a11"
    assert run("--home", tmp_path, "import", example, "--node", node).exit_code == 0
    assert len(facts(tmp_path)["missing"]) == 3


def test_where_there_is_no_old_table_they_may(tmp_path: Path) -> None:
    """Clusters that began with the new tables have no mark, and need none."""
    told = facts(home_of(tmp_path, "plain"))
    assert (told["may_switch"], told["old_table"], told["rows_from"]) == (True, False, format_ms(FIRST_MS))


@pytest.mark.parametrize("option", ["--dry-run", "--force"])
def test_it_only_looks(tmp_path: Path, option: str) -> None:
    """With an option of the rewrite it is refused."""
    assert asked(home_of(tmp_path, "plain"), option).exit_code == 2
