"""The rule for all JSON output."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest
from support.command_line import run

from cdc_platform.cli.output import to_json_value, warn, write_facts, write_json, write_json_list, write_table
from cdc_platform.delta import Lake
from cdc_platform.metastore import write_nodes
from cdc_platform.ring import Node


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (2**53, 2**53),
        (-(2**53), -(2**53)),
        (2**53 + 1, "9007199254740993"),
        (-(2**63), "-9223372036854775808"),
        (np.int64(5), 5),
        (np.uint64(2**64 - 1), "18446744073709551615"),
        (True, True),
        (np.bool_(False), False),
        (None, None),
        ("ring", "ring"),
        (1.5, 1.5),
        (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
        (b"\x00\xff", "0x00ff"),
        (bytearray(b"\x01"), "0x01"),
        (Decimal("1.50"), "1.50"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (date(2026, 1, 31), "2026-01-31"),
        (time(12, 30), "12:30:00"),
        (datetime(2026, 1, 31, 12, tzinfo=UTC), "2026-01-31T12:00:00.000Z"),
        (datetime(2026, 1, 31, 12, 0, 0, 1), "2026-01-31T12:00:00.000001Z"),
        (datetime(2026, 1, 31, 13, tzinfo=timezone(timedelta(hours=1))), "2026-01-31T12:00:00.000Z"),
        (timedelta(days=1, hours=12, minutes=30), "1d12h30m"),
        (timedelta(milliseconds=-1500), "-1s500ms"),
        (timedelta(0), "0s"),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset({b"\xff", b"\x00"}), ["0x00", "0xff"]),
        ((1, [2**60]), [1, ["1152921504606846976"]]),
        ({"b": {1: b""}, "a": 1}, {"b": {"1": "0x"}, "a": 1}),
    ],
)
def test_every_kind_of_value_has_one_form(value: object, expected: object) -> None:
    """Large numbers become text, blobs hexadecimal, times UTC, and sets sorted lists, among others."""
    assert to_json_value(value) == expected
    assert json.loads(json.dumps(to_json_value(value))) == expected


@pytest.mark.parametrize("value", [[], [1], [{"a": 2**60}, None], {"a": []}, None, "x"])
def test_the_output_is_one_document(value: object, capsys: pytest.CaptureFixture[str]) -> None:
    """The output is one JSON document with a line end."""
    write_json(value)
    written = capsys.readouterr().out
    assert json.loads(written) == to_json_value(value)
    assert written.endswith("\n")


def test_a_list_is_written_incrementally(capsys: pytest.CaptureFixture[str]) -> None:
    """The first entry is written before the second is produced."""

    def entries():
        yield "1"
        assert capsys.readouterr().out == "[1"
        yield "2"

    write_json_list(entries())
    assert json.loads("[1" + capsys.readouterr().out) == [1, 2]


HOSTILE = {
    "\x1b[2J": r"\x1b[2J",
    "a\nb\tc\r": r"a\nb\tc\r",
    "\x9b31m": r"\x9b31m",
    "\u202edc1\u2066": r"\u202edc1\u2066",
    "\U000e0041": r"\U000e0041",
    "\ud800": r"\ud800",
    "[bold]Zürich 東京 🐻": "[bold]Zürich 東京 🐻",
}


@pytest.mark.parametrize(("told", "expected"), HOSTILE.items(), ids=ascii)
def test_control_characters_are_escaped(told: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Cells, headings, facts and warnings are escaped; JSON has an equal document in printable characters."""
    write_table(told, (f">{told}", "b"), [(told, 1)])
    write_facts([("fact", told)])
    warn(told, code="progress")
    out, err = capsys.readouterr()
    assert out.count(expected) == 4
    assert err == f"warning: {expected} [progress]\n"
    assert all(character.isprintable() for character in (out + err).replace("\n", ""))
    write_json([{"value": told}])
    write_json({told: told})
    out = capsys.readouterr().out
    assert all(character.isprintable() for character in out.replace("\n", ""))
    listed, _, single = out.partition("]\n")
    assert json.loads(f"{listed}]") == [{"value": told}]
    assert json.loads(single) == {told: told}


def test_control_characters_in_a_home_are_escaped(tmp_path: Path) -> None:
    """No escape from an older version's rack, a path in an error or a query's column reaches the terminal."""
    lake = Lake(tmp_path / "home" / "lake")
    node = Node(UUID(int=1), (5,), 1, 12, "10.0.0.1", "dc1", "\x1b[2Jr1")
    write_nodes(lake, [node])
    for command, escaped in (
        (("ring",), r"\x1b[2Jr1"),
        (("sql", 'SELECT rack, 1 AS "\x1b[2J" FROM platform.nodes'), r"\x1b[2J"),
        (("import", "\x1b[2J.json"), r"\x1b[2J.json: no such file"),
    ):
        answer = run("--home", tmp_path / "home", *command)
        assert escaped in answer.stdout + answer.stderr
        assert "\x1b" not in answer.stdout + answer.stderr
    assert run("--home", tmp_path / "home", "ring", "--json").json[0]["rack"] == node.rack
