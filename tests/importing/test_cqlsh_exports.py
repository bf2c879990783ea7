"""cqlsh exports: every form that real files have is read, and every kind of hole in them is found."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from support.files.export_files import (
    ID,
    LATER_MS,
    OTHER_ID,
    TIME_MS,
    cql_time,
    generation,
    streams_csv,
    timestamps_csv,
    v2_csv,
)

from cdc_platform.errors import InputError
from cdc_platform.importing import ClusterExports
from cdc_platform.importing.formats.exports import parse_exports

ONE = "0x7fb9f781956cea08c651295720000001"
TWO = "0x7fc0000000000000c298b9f168000001"
LEGACY = "0x0521d5ce4a4a8ca552f83d88a1ae55d2"


def parsed(*texts: str) -> ClusterExports:
    """The exports of these texts, named a.csv, b.csv, ..."""
    return parse_exports([(f"{chr(97 + number)}.csv", text) for number, text in enumerate(texts)])


def streams_of(set_text: str) -> list[str]:
    """The streams that are read from one set, as hex."""
    rows = parsed(f"time,range_end,streams\n2026-01-31 12:00:00.384+0000,5,{set_text}\n").streams[TIME_MS]
    return [f"0x{stream.tobytes().hex()}" for stream in rows.streams]


def test_a_generation_is_read_whole() -> None:
    """V2 descriptions come out by ascending range end, each range's streams as the client sorted them."""
    description = generation()
    rows = parsed(v2_csv({ID: description})).descriptions[ID]
    assert rows.range_ends.tolist() == description.range_ends.tolist()
    assert rows.stream_counts.tolist() == description.stream_counts.tolist()
    assert rows.ignore_msbs is not None
    assert rows.ignore_msbs.tolist() == description.ignore_msbs.tolist()
    for row in range(len(description)):
        mine = [stream.tobytes() for stream in rows.streams[rows.offsets[row] : rows.offsets[row + 1]]]
        assert mine == sorted(stream.tobytes() for stream in description.entry(row).streams)


def test_every_table_is_recognized_by_its_header() -> None:
    """File names say nothing: the header row does, whatever the order of its columns."""
    description = generation()
    exports = parsed(
        timestamps_csv({TIME_MS: None, LATER_MS: None}),
        streams_csv({TIME_MS: description}),
        v2_csv({ID: description}),
        f'streams,range_end,time\n"{{{ONE}, {TWO}}}",-1,{cql_time(LATER_MS)}\n',
    )
    assert list(exports.descriptions) == [ID]
    assert list(exports.streams) == [TIME_MS, LATER_MS]
    assert exports.timestamps == {TIME_MS: None, LATER_MS: None}
    assert exports.streams[TIME_MS].has_same_streams(exports.descriptions[ID])


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-31 12:00:00.384+0000",
        "2026-01-31 12:00:00.384000+0000",
        "2026-01-31 12:00:00.384Z",
        "2026-01-31T12:00:00.384",
        "2026-01-31 13:00:00.384+01:00",
    ],
)
def test_times_are_read_in_every_form_and_mean_utc(text: str) -> None:
    """Servers have printed times with 0, 3 or 6 decimals, with and without a zone."""
    assert parsed(f"key,time,expired\ntimestamps,{text},\n").timestamps == {TIME_MS: None}


def test_expired_times_are_kept() -> None:
    """The time at which a generation expired comes along."""
    assert parsed(timestamps_csv({TIME_MS: LATER_MS})).timestamps == {TIME_MS: LATER_MS}


@pytest.mark.parametrize(
    "text",
    [
        f'"{{{ONE}, {TWO}}}"',
        f'"{{{TWO},{ONE}}}"',
        f'"{{{ONE.upper().replace("X", "x")}, {TWO}}}"',
        '"{(9203659449438104072, -4156495526910492671), (9205357638345293824, -4424582187408424959)}"',
    ],
)
def test_sets_are_read_in_every_form(text: str) -> None:
    """Blobs in either case, and the pairs of bigints that tables had before them, are the same streams."""
    assert streams_of(text) == [ONE, TWO]


def test_a_set_of_one_needs_no_quotes() -> None:
    """cqlsh quotes only what has a comma in it."""
    assert streams_of(f"{{{ONE}}}") == [ONE]


def test_pairs_are_signed_big_endian() -> None:
    """A pair is the two halves of the stream ID."""
    assert streams_of('"{(-1, 1)}"') == ["0x" + struct.pack(">qq", -1, 1).hex()]


def test_streams_from_before_the_version_field_are_read() -> None:
    """They exist in real streams tables; `check` reports them."""
    assert streams_of(f"{{{LEGACY}}}") == [LEGACY]


def test_a_table_may_lie_in_several_files() -> None:
    """Rows of one generation from several files make one whole; the same row in two of them counts once."""
    description = generation()
    whole = v2_csv({ID: description})
    half, rest = (v2_csv({ID: description}, skip=frozenset(rows)) for rows in ((0, 1, 2), (3, 4, 5)))
    for texts in ((half, rest), (whole, rest), (whole, whole)):
        assert parsed(*texts).descriptions[ID].has_same_streams(parsed(whole).descriptions[ID])


def test_large_sets_are_read() -> None:
    """A set of 4,096 streams is one field of 140 KB."""
    ids = [f"0x{number:016x}0000000000000001" for number in range(4096)]
    assert streams_of('"{' + ", ".join(ids) + '}"') == ids


@pytest.mark.parametrize("row", range(6))
def test_a_missing_row_is_found_by_the_others(row: int) -> None:
    """Streams tables claim no number of rows; the indexes and the tokens of the rest tell that one is missing."""
    with pytest.raises(InputError, match="half-written export, rows are missing"):
        parsed(streams_csv({TIME_MS: generation()}, skip=frozenset([row])))


@pytest.mark.parametrize("rows", [{3, 4, 5}, {0, 1}, {1, 3}, {1, 2, 3, 4}])
def test_several_missing_rows_are_found(rows: set[int]) -> None:
    """Whatever part of a generation is left, it is not taken for a whole one."""
    with pytest.raises(InputError, match="rows are missing"):
        parsed(streams_csv({TIME_MS: generation()}, skip=frozenset(rows)))


@pytest.mark.parametrize("text", [v2_csv({ID: generation()}), streams_csv({TIME_MS: generation()})])
def test_a_file_truncated_anywhere_is_never_accepted(text: str) -> None:
    """Wherever a copy was broken off, inside a field or between rows, it is refused with one line."""
    one_row = text.index("\n", text.index("\n") + 1)
    for length in range(len(text) - 2):
        # A header that is whole is an empty table's.
        if length == text.index("\n") + 1:
            continue
        # A first row alone might be a ring of one vnode.
        if text.startswith("time") and one_row - 2 < length <= one_row + 1:
            continue
        with pytest.raises(InputError) as refused:
            parsed(text[:length])
        assert "\n" not in str(refused.value)


def test_a_truncated_time_is_not_read_as_another_time() -> None:
    """The beginning of a time is a time: where the line end is missing, only a zone at its end shows it whole."""
    text = timestamps_csv({TIME_MS: LATER_MS})
    whole = {TIME_MS: LATER_MS}
    for length in range(len(text) + 1):
        try:
            found = parsed(text[:length]).timestamps
        except InputError:
            continue
        nothing = {} if length == text.index("\n") + 1 else whole
        assert found in (whole, {TIME_MS: None}, nothing)


def test_two_generations_do_not_mix() -> None:
    """Partitions are told apart by id and by time."""
    one, other = generation(), generation(OTHER_ID)
    exports = parsed(v2_csv({ID: one, OTHER_ID: other}), streams_csv({TIME_MS: one, LATER_MS: other}))
    assert exports.streams[TIME_MS].has_same_streams(exports.descriptions[ID])
    assert exports.streams[LATER_MS].has_same_streams(exports.descriptions[OTHER_ID])
    assert not np.array_equal(exports.descriptions[ID].streams, exports.descriptions[OTHER_ID].streams)
