"""`rewrite --clients` reports whether clients may use the new tables, for each state of a rewrite."""

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
FIRST, SECOND, THIRD = (format_ms(Milliseconds(time_ms)) for time_ms in times(3))
ONE = "00000000-0000-0000-0000-000000000001"


def ask_clients(home: Path, *more: str) -> Answer:
    """Run `rewrite --clients`."""
    return run("--home", home, "--clock", NOW, "rewrite", "--clients", *more)


def facts(home: Path) -> dict[str, Any]:
    """Return the JSON, after an assertion that the exit code matches the verdict."""
    answer = ask_clients(home, "--json")
    assert answer.exit_code == int(not answer.json["may_switch"])
    return answer.json


def rewrite(home: Path, *more: str) -> None:
    """Rewrite for all nodes or some."""
    assert run("--home", home, "--clock", NOW, "rewrite", *more).exit_code == 0


def test_before_during_and_after_a_rewrite(tmp_path: Path) -> None:
    """First no row is in the new tables, then all rows without two nodes' markers, then everything."""
    old_cluster(Lake(tmp_path / "lake"), times(3))
    result = facts(tmp_path)
    assert (result["may_switch"], result["rows_from"], len(result["nodes_not_marked"])) == (False, None, 3)
    assert [generation["time"] for generation in result["missing"]] == [FIRST, SECOND, THIRD]
    rewrite(tmp_path, "--node", ONE)
    result = facts(tmp_path)
    assert (result["may_switch"], result["rows_from"], len(result["nodes_not_marked"]), result["missing"]) == (
        False,
        FIRST,
        2,
        [],
    )
    rewrite(tmp_path)
    result = facts(tmp_path)
    assert (result["may_switch"], result["rows_from"], result["nodes_not_marked"]) == (True, FIRST, [])
    assert ask_clients(tmp_path).stdout.startswith("may switch        yes")


def test_a_missing_generation_limits_the_start_time(tmp_path: Path) -> None:
    """The marker is written nevertheless, as in ScyllaDB, but clients would miss rows if they switched."""
    old_cluster(Lake(tmp_path / "lake"), times(3), without_data=[times(3)[1]])
    rewrite(tmp_path)
    result = facts(tmp_path)
    assert (result["may_switch"], result["rows_from"], [generation["time"] for generation in result["missing"]]) == (
        False,
        THIRD,
        [SECOND],
    )
    assert ask_clients(tmp_path).stdout.startswith(f"may switch        no\nrows from         {THIRD}")


def test_generations_without_possible_rows_do_not_count(tmp_path: Path) -> None:
    """With a TTL of an hour and a half, the first of four generations was superseded three hours ago."""
    old_cluster(Lake(tmp_path / "lake"), times(4), without_data=[times(4)[0]], tables=[("t", 5_400)])
    rewrite(tmp_path)
    assert facts(tmp_path)["may_switch"]


def test_without_a_known_table_every_old_generation_counts(tmp_path: Path) -> None:
    """Every generation counts until the home declares that no table has a log."""
    old_cluster(Lake(tmp_path / "lake"), times(3), tables=[])
    result = facts(tmp_path)
    assert [generation["time"] for generation in result["missing"]] == [FIRST, SECOND, THIRD]
    assert all(
        "no table with a CDC log is known here; import the schema" in generation["reason"]
        for generation in result["missing"]
    )
    assert run("--home", tmp_path, "--clock", NOW, "tables", "declare-none").exit_code == 0
    assert facts(tmp_path)["missing"] == []


def test_the_example_of_an_old_cluster_may_not_switch(tmp_path: Path) -> None:
    """The example files of docs/rewrite.md, imported as the page describes."""
    example = Path(__file__).parents[2] / "docs" / "examples" / "old_cluster"
    node = "7d1f0b52-6e0c-4b4e-9c0d-3a1d3f8f0a11"
    assert run("--home", tmp_path, "import", example, "--node", node).exit_code == 0
    assert len(facts(tmp_path)["missing"]) == 3


def test_without_an_old_table_clients_may_switch(tmp_path: Path) -> None:
    """Clusters that started with the new tables have no marker and need none."""
    result = facts(home_of(tmp_path, "plain"))
    assert (result["may_switch"], result["old_table"], result["rows_from"]) == (True, False, format_ms(FIRST_MS))


@pytest.mark.parametrize("option", ["--dry-run", "--force"])
def test_clients_excludes_other_options(tmp_path: Path, option: str) -> None:
    """`--clients` only reads, so an option of the rewrite is refused."""
    assert ask_clients(home_of(tmp_path, "plain"), option).exit_code == 2
