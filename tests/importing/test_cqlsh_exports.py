"""Every form of cqlsh exports in real files is read, and every missing part of them is detected."""

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


def parse(*texts: str) -> ClusterExports:
    """Parse these texts, named a.csv, b.csv, ..."""
    return parse_exports([(f"{chr(97 + number)}.csv", text) for number, text in enumerate(texts)])


def streams_of(set_text: str) -> list[str]:
    """Return the streams that are parsed from one set, as hex."""
    rows = parse(f"time,range_end,streams\n2026-01-31 12:00:00.384+0000,5,{set_text}\n").streams[TIME_MS]
    return [f"0x{stream.tobytes().hex()}" for stream in rows.streams]


def test_generation_is_read_completely() -> None:
    """V2 descriptions have ascending range ends, and each range's streams as the client sorted them."""
    description = generation()
    rows = parse(v2_csv({ID: description})).descriptions[ID]
    assert rows.range_ends.tolist() == description.range_ends.tolist()
    assert rows.stream_counts.tolist() == description.stream_counts.tolist()
    assert rows.ignore_msbs is not None
    assert rows.ignore_msbs.tolist() == description.ignore_msbs.tolist()
    for row in range(len(description)):
        streams = [stream.tobytes() for stream in rows.streams[rows.offsets[row] : rows.offsets[row + 1]]]
        assert streams == sorted(stream.tobytes() for stream in description.entry(row).streams)


def test_every_table_is_recognized_by_its_header() -> None:
    """The header row identifies a table, in any order of columns; the file name does not."""
    description = generation()
    exports = parse(
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
    assert parse(f"key,time,expired\ntimestamps,{text},\n").timestamps == {TIME_MS: None}


def test_expired_times_are_read() -> None:
    """The time at which a generation expired is read, too."""
    assert parse(timestamps_csv({TIME_MS: LATER_MS})).timestamps == {TIME_MS: LATER_MS}


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
    """Blobs in either case, and the earlier pairs of bigints, are the same streams."""
    assert streams_of(text) == [ONE, TWO]


def test_set_of_one_needs_no_quotes() -> None:
    """cqlsh quotes only fields with a comma."""
    assert streams_of(f"{{{ONE}}}") == [ONE]


def test_pairs_are_signed_big_endian() -> None:
    """A pair is the two halves of the stream ID."""
    assert streams_of('"{(-1, 1)}"') == ["0x" + struct.pack(">qq", -1, 1).hex()]


def test_streams_from_before_the_version_field_are_read() -> None:
    """They exist in real streams tables; `check` reports them."""
    assert streams_of(f"{{{LEGACY}}}") == [LEGACY]


def test_table_may_be_in_several_files() -> None:
    """Several files may share one generation's rows; a row in two of them counts once."""
    description = generation()
    whole = v2_csv({ID: description})
    first_half, second_half = (v2_csv({ID: description}, skip=frozenset(rows)) for rows in ((0, 1, 2), (3, 4, 5)))
    for texts in ((first_half, second_half), (whole, second_half), (whole, whole)):
        assert parse(*texts).descriptions[ID].has_same_streams(parse(whole).descriptions[ID])


def test_large_sets_are_read() -> None:
    """A set of 4,096 streams is one field of 140 KB."""
    ids = [f"0x{number:016x}0000000000000001" for number in range(4096)]
    assert streams_of('"{' + ", ".join(ids) + '}"') == ids


@pytest.mark.parametrize("row", range(6))
def test_missing_row_is_detected(row: int) -> None:
    """Streams tables have no number of rows; indexes and tokens of the others show that one is missing."""
    with pytest.raises(InputError, match="half-written export, rows are missing"):
        parse(streams_csv({TIME_MS: generation()}, skip=frozenset([row])))


@pytest.mark.parametrize("rows", [{3, 4, 5}, {0, 1}, {1, 3}, {1, 2, 3, 4}])
def test_several_missing_rows_are_detected(rows: set[int]) -> None:
    """No part of a generation counts as a complete one."""
    with pytest.raises(InputError, match="rows are missing"):
        parse(streams_csv({TIME_MS: generation()}, skip=frozenset(rows)))


@pytest.mark.parametrize("text", [v2_csv({ID: generation()}), streams_csv({TIME_MS: generation()})])
def test_truncated_file_is_never_accepted(text: str) -> None:
    """A file truncated inside a field or between rows is refused in one line."""
    one_row = text.index("\n", text.index("\n") + 1)
    for length in range(len(text) - 2):
        # A complete header is that of an empty table.
        if length == text.index("\n") + 1:
            continue
        # A first row alone might be a ring of one vnode.
        if text.startswith("time") and one_row - 2 < length <= one_row + 1:
            continue
        with pytest.raises(InputError) as refused:
            parse(text[:length])
        assert "\n" not in str(refused.value)


def test_truncated_time_is_not_read_as_another_time() -> None:
    """The beginning of a time is a time; without a line end only its zone shows that it is complete."""
    text = timestamps_csv({TIME_MS: LATER_MS})
    whole = {TIME_MS: LATER_MS}
    for length in range(len(text) + 1):
        try:
            times = parse(text[:length]).timestamps
        except InputError:
            continue
        complete_or_empty = {} if length == text.index("\n") + 1 else whole
        assert times in (whole, {TIME_MS: None}, complete_or_empty)


def test_two_generations_do_not_mix() -> None:
    """ID and time separate the partitions."""
    first, second = generation(), generation(OTHER_ID)
    exports = parse(v2_csv({ID: first, OTHER_ID: second}), streams_csv({TIME_MS: first, LATER_MS: second}))
    assert exports.streams[TIME_MS].has_same_streams(exports.descriptions[ID])
    assert exports.streams[LATER_MS].has_same_streams(exports.descriptions[OTHER_ID])
    assert not np.array_equal(exports.descriptions[ID].streams, exports.descriptions[OTHER_ID].streams)
