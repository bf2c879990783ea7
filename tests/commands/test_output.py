"""One rule for all JSON that goes out."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import numpy as np
import pytest

from cdc_platform.commands.output import plain, write_json, write_json_list


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
    """Large numbers as text, blobs as hex, times in UTC, sets sorted, and so on."""
    assert plain(value) == expected
    assert json.loads(json.dumps(plain(value))) == expected


@pytest.mark.parametrize("value", [[], [1], [{"a": 2**60}, None], {"a": []}, None, "x"])
def test_the_output_is_one_document(value: object, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever is written is one JSON document with a line end."""
    write_json(value)
    written = capsys.readouterr().out
    assert json.loads(written) == plain(value)
    assert written.endswith("\n")


def test_a_list_is_written_as_it_comes(capsys: pytest.CaptureFixture[str]) -> None:
    """The first entry is out before the second is made."""

    def entries():
        yield "1"
        assert capsys.readouterr().out == "[1"
        yield "2"

    write_json_list(entries())
    assert json.loads("[1" + capsys.readouterr().out) == [1, 2]
