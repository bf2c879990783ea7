"""One document for both readers: exact values in JSON, labels and human units on a screen."""

from __future__ import annotations

import json

import click
import pytest

from cdc_platform.cli import program
from cdc_platform.cli.layout import format_table_lines
from cdc_platform.cli.next_steps import NextStep
from cdc_platform.cli.render import (
    View,
    format_bytes,
    format_field,
    format_percent,
    format_seconds,
    get_label,
    show_document,
    write_result,
)

ID = "8d3f3f2e-3c61-4b0e-9a59-5a3f7c1de001"
DOCUMENT = {
    "table": "ks.t",
    "bytes": 1_300_000_000,
    "ttl_seconds": 129_600,
    "generations": [{"id": ID, "num_streams": 73_728, "changed_share": 0.25}, {"id": None, "num_streams": 4}],
}


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("bytes", 812, "812 B"),
        ("log_bytes", 1_300_000_000, "1.21 GiB"),
        ("ttl_seconds", 0, "never expires"),
        ("ttl_seconds", 86_400, "1 d"),
        ("behind_seconds", 93_784.2, "1 d 2 h"),
        ("total_s", 75, "1 min 15 s"),
        ("seconds", 0.5, "0.5"),
        ("rows", 1_234_567, "1,234,567"),
        ("token", -4_442_228_696_663_692_417, "-4442228696663692417"),
        ("shard", 1_000, "1000"),
        ("changed_share", 0.5, "50.000%"),
        ("passed", True, "yes"),
        ("owner", None, "-"),
        ("blocked_by", [], "-"),
        ("names", ["a", "b"], "a, b"),
        ("reasons", ["no node", "x"], "no node; x"),
        ("generation", {"id": ID, "time": None, "num_ranges": 1_024}, f"{ID}  1,024 ranges"),
    ],
)
def test_the_name_of_a_field_decides_its_format(name: str, value: object, shown: str) -> None:
    """Bytes and durations get units, counts separators, and tokens plain digits."""
    assert format_field(name, value) == shown


def test_labels_need_no_entry_for_plain_names() -> None:
    """Underscores become spaces; prefixes of counts and suffixes of units are omitted."""
    labels = [get_label(name) for name in ("num_ranges", "ttl_seconds", "poll_s", "removable_at", "shard_count")]
    assert labels == ["ranges", "TTL", "poll", "removable at", "shards"]


def test_units_change_at_their_bounds() -> None:
    """The unit is the largest that gives at least one; durations have at most two units."""
    assert [format_bytes(count) for count in (0, 1023, 1024, 1 << 20, 1 << 50, 1_023 << 20)] == [
        "0 B",
        "1023 B",
        "1 KiB",
        "1 MiB",
        "1024 TiB",
        "1023 MiB",
    ]
    assert [format_seconds(count) for count in (0.25, 59, 60, 3_600, 90_061)] == [
        "0.25 s",
        "59 s",
        "1 min",
        "1 h",
        "1 d 1 h",
    ]
    assert (format_percent(None), format_percent(1 / 3)) == ("-", "33.333%")


def test_json_has_exact_values_and_the_screen_all_fields(capsys: pytest.CaptureFixture[str]) -> None:
    """The JSON is the document with its version and the next steps."""
    step = NextStep("cdc-platform check", "to see more")
    with click.Context(program):
        write_result(DOCUMENT, as_json=True, next_steps=[step])
        document = json.loads(capsys.readouterr().out)
        assert document == {"version": 1, **DOCUMENT, "next": [{"command": step.command, "why": step.why}]}
        write_result(DOCUMENT, as_json=False, views={"generations": View("id num_streams", "All")}, next_steps=[step])
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines() if line]
    assert lines[:4] == ["table  ks.t", "bytes  1.21 GiB", "TTL    1 d 12 h", "All"]
    assert lines[4].split() == ["id", "streams"]
    assert lines[6].split() == [ID, "73,728"]
    assert lines[7].split() == ["-", "4"]
    assert lines[-1] == f"next: {step}"


def test_a_view_of_none_hides_a_field(capsys: pytest.CaptureFixture[str]) -> None:
    """A field for programs alone is not shown."""
    show_document(DOCUMENT, {"generations": None, "bytes": None})
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["table", "ks.t"],
        ["TTL", "1", "d", "12", "h"],
    ]


@pytest.mark.parametrize(("width", "dropped"), [(80, ["note"]), (60, ["state", "rows", "note"]), (400, [])])
def test_a_narrow_screen_drops_the_last_columns(width: int, dropped: list[str]) -> None:
    """IDs and times stay whole, and a line names the omitted columns."""
    row = ["2026-10-10T00:00:00.384Z", "operating", "x" * 37, "word " * 3 + "y" * 30]
    names = ["time", "state", "rows", "note"]
    if width == 60:
        row[1] = "z" * 40
    text = "\n".join(format_table_lines(names, [row], width, essential=1))
    assert row[0] in text
    assert (f"not shown at {width} columns: {', '.join(dropped)}" in text) == bool(dropped)
    assert all(len(line) <= width for line in text.splitlines())


def test_essential_columns_are_never_dropped() -> None:
    """If they do not fit, each row becomes a block of lines with all columns."""
    row = ["2026-10-10T00:00:00.384Z", "x" * 37, "y" * 30, "z"]
    text = "\n".join(format_table_lines(["time", "host", "what", "note"], [row], 80, essential=3))
    assert "not shown" not in text
    assert [line.split() for line in text.splitlines() if line] == [
        ["time", row[0]],
        ["host", row[1]],
        ["what", row[2]],
        ["note", row[3]],
    ]
