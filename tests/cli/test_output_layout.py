"""Tables and facts at every width: no word is broken, nothing is omitted, and lines fit if possible."""

from __future__ import annotations

import pytest
from rich.cells import cell_len
from support.command_line import run
from support.homes.timelines import THIRD_MS, home_of, uuid_of

from cdc_platform.cli.layout import format_fact_lines, format_table_lines
from cdc_platform.clock import format_ms

ID = "8d3f3f2e-3c61-4b0e-9a59-5a3f7c1de001"
TIME = "2026-10-10T00:00:00.384Z"
COLUMNS = ("time", "id", ">rows", "blocked by")
REASON = "consumer hourly of shop.carts has read up to 2026-11-01T10:59:59.999999Z"
ROWS = [(TIME, ID, "13", REASON), ("-", "-", "9", "-"), (TIME, "日本語", "1", "")]
WORDS = [word for row in ROWS for cell in row for word in cell.split()]


@pytest.mark.parametrize("width", [20, 60, 80, 100, 120, 150, 500])
def test_no_word_of_a_table_is_broken(width: int) -> None:
    """At any width every word is whole in some line; if the longest word fits, every line does."""
    lines = list(format_table_lines(COLUMNS, ROWS, width))
    text = "\n".join(lines)
    assert all(word in text for word in WORDS)
    if width >= 60:
        assert max(map(cell_len, lines)) <= width
    assert not any(line != line.rstrip() for line in lines)


def test_a_table_has_one_line_per_row_if_it_fits() -> None:
    """Columns are aligned, numbers to the right, and wide characters count as two."""
    head, rule, first, second, third = [line for line in format_table_lines(COLUMNS, ROWS, 500) if line]
    assert set(rule.strip()) == {"─"}
    assert first.split("   ") == [f" {TIME}", ID, "  13", REASON]
    assert head.index("rows") + 4 == first.index("13") + 2 == second.index("9") + 1
    assert cell_len(third[: third.index("1", len(TIME) + 2)]) == second.index("9")


def test_a_row_that_does_not_fit_becomes_one_line_per_fact() -> None:
    """Each row becomes a block whose lines have the columns' names."""
    lines = list(format_table_lines(COLUMNS, ROWS[:1], 70))
    assert lines[:4] == ["", f"time        {TIME}", f"id          {ID}", "rows        13"]


def test_facts_continue_on_the_next_line() -> None:
    """The name is printed once, the value on as many lines as it needs; a word that is too long has its own line."""
    assert list(format_fact_lines([("a", "one two three"), ("long", ID)], 13)) == [
        ("a   ", "one two"),
        ("    ", "three"),
        ("long", ID),
    ]


@pytest.mark.parametrize("width", [80, 100])
def test_a_pipe_has_the_width_of_columns(
    width: int, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 80 and 100 columns every command prints whole times, and IDs if they fit, and no line is longer."""
    home = home_of(tmp_path_factory.mktemp("home"), "three")
    monkeypatch.setenv("COLUMNS", str(width))
    for command in (["generations"], ["expire", "--dry-run"], ["tables"], ["status"]):
        answer = run("--home", home, "--clock", format_ms(THIRD_MS), *command)
        lines = [
            line
            for line in answer.stdout.splitlines()
            if not line.startswith(("✗", "- ", "    run:", "    to do:", "home"))
        ]
        assert max(map(cell_len, lines)) <= width, command
        if command != ["tables"]:
            assert uuid_of(THIRD_MS) in answer.stdout or "not shown" in answer.stdout
            assert format_ms(THIRD_MS) in answer.stdout
