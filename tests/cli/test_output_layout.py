"""Tables and facts at every width: no word is broken, nothing is left out, and lines fit where that can be."""

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
    """At any width every word stands in some line, whole; from that of the longest word on every line fits."""
    lines = list(format_table_lines(COLUMNS, ROWS, width))
    text = "\n".join(lines)
    assert all(word in text for word in WORDS)
    if width >= 60:
        assert max(map(cell_len, lines)) <= width
    assert not any(line != line.rstrip() for line in lines)


def test_a_table_has_a_row_a_line_where_that_fits() -> None:
    """Aligned by its columns, numbers to the right; wide characters count as two."""
    head, rule, first, second, third = [line for line in format_table_lines(COLUMNS, ROWS, 500) if line]
    assert set(rule.strip()) == {"─"}
    assert first.split("   ") == [f" {TIME}", ID, "  13", REASON]
    assert head.index("rows") + 4 == first.index("13") + 2 == second.index("9") + 1
    assert cell_len(third[: third.index("1", len(TIME) + 2)]) == second.index("9")


def test_what_does_not_fit_is_told_one_fact_a_line() -> None:
    """A block a row, every line with the column's name."""
    lines = list(format_table_lines(COLUMNS, ROWS[:1], 70))
    assert lines[:4] == ["", f"time        {TIME}", f"id          {ID}", "rows        13"]


def test_facts_go_on_below_their_begin() -> None:
    """The name once, the value in as many lines as it needs; a word that is too long has its line."""
    assert list(format_fact_lines([("a", "one two three"), ("long", ID)], 13)) == [
        ("a   ", "one two"),
        ("    ", "three"),
        ("long", ID),
    ]


@pytest.mark.parametrize("width", [80, 100])
def test_a_pipe_is_as_wide_as_columns_says(
    width: int, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command's times are whole at 80 and at 100 columns, IDs where they fit, and no line is longer."""
    home = home_of(tmp_path_factory.mktemp("home"), "three")
    monkeypatch.setenv("COLUMNS", str(width))
    for command in (["generations"], ["expire", "--dry-run"], ["tables"], ["status"]):
        answer = run("--home", home, "--clock", format_ms(THIRD_MS), *command)
        told = [
            line
            for line in answer.stdout.splitlines()
            if not line.startswith(("✗", "- ", "    run:", "    to do:", "home"))
        ]
        assert max(map(cell_len, told)) <= width, command
        if command != ["tables"]:
            assert uuid_of(THIRD_MS) in answer.stdout or "not shown" in answer.stdout
            assert format_ms(THIRD_MS) in answer.stdout
