"""Parse the CSV rows of cqlsh exports and the values in their cells: streams, tokens, UUIDs and times.

It reports truncated files. It knows no table: the header names the columns.
"""

from __future__ import annotations

import csv
import re
import struct
import uuid
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from cdc_platform.clock import Milliseconds, format_ms, parse_time_ms
from cdc_platform.errors import InputError
from cdc_platform.generations import STREAM_ID_BYTES, TopologyDescription
from cdc_platform.ring import FIRST_TOKEN, LAST_TOKEN, MAX_SHARD_COUNT, MINIMUM_TOKEN

HALF_WRITTEN = "half-written export"
EMPTY_STREAM_SETS = ("", "{}", "null")
"""A set without streams, as exports contain it."""
_INTEGER = re.compile(r"-?\d{1,19}", re.ASCII)
_BLOB_SET = re.compile(r"\{0x[0-9a-fA-F]{32}(?:, ?+0x[0-9a-fA-F]{32})*+\}")
_PAIR_SET = re.compile(r"\{\(-?\d{1,19}, ?-?\d{1,19}\)(?:, ?+\(-?+\d{1,19}+, ?+-?+\d{1,19}+\))*+\}", re.ASCII)
_PAIR = re.compile(r"\((-?\d+), ?(-?\d+)\)", re.ASCII)
_BLOB = re.compile(r"0x([0-9a-fA-F]*)")
_BLOB_MARKS = str.maketrans("", "", "{}[], ")


def read_stream_set(place: str, text: str, most: int | None = MAX_SHARD_COUNT) -> bytes:
    """Return the stream IDs of a set, concatenated: blobs, or pairs of bigints in tables from before blobs.

    `most`: the maximum number of streams in one range; None if the set is that of a whole generation.
    """
    if _BLOB_SET.fullmatch(text):
        streams = bytes.fromhex(text.translate(_BLOB_MARKS).replace("0x", ""))
    elif _PAIR_SET.fullmatch(text):
        streams = b"".join(_pack_pair(place, *pair) for pair in _PAIR.findall(text))
    else:
        raise InputError(f"{place}: streams: {_explain_bad_set(text)}")
    count = len(streams) // STREAM_ID_BYTES
    if most is not None and count > most:
        raise InputError(f"{place}: {count} streams in a range; a node has at most {MAX_SHARD_COUNT} shards")
    if len(set(split_stream_ids(streams))) < count:
        raise InputError(f"{place}: a stream is there twice in one {'range' if most else 'set'}; a set holds it once")
    return streams


def read_stream_id(place: str, text: str) -> bytes:
    """Return one stream ID from a blob in cqlsh's notation."""
    digits = _BLOB.fullmatch(text)
    if digits is None:
        raise InputError(f"{place}: stream_id {text[:60]!r} is no blob, as in 0x7fb9f781956cea080000000004000001")
    if len(digits[1]) != 2 * STREAM_ID_BYTES:
        raise InputError(
            f"{place}: stream_id 0x{digits[1][:40]} is {len(digits[1]) / 2:g} bytes; a stream ID has {STREAM_ID_BYTES}"
        )
    return bytes.fromhex(digits[1])


def split_stream_ids(streams: bytes) -> list[bytes]:
    """Split concatenated stream IDs."""
    return [streams[at : at + STREAM_ID_BYTES] for at in range(0, len(streams), STREAM_ID_BYTES)]


def _pack_pair(place: str, high: str, low: str) -> bytes:
    try:
        return struct.pack(">qq", int(high), int(low))
    except struct.error:
        raise InputError(f"{place}: streams: ({high}, {low}) does not fit into two 64-bit integers") from None


def _explain_bad_set(text: str) -> str:
    if text in EMPTY_STREAM_SETS:
        return "no streams; every range has at least one"
    if not (text.startswith("{") and text.endswith("}")):
        return f"{text[-40:]!r} ends before its set does: {HALF_WRITTEN}; export it again"
    for digits in _BLOB.findall(text):
        if len(digits) != 2 * STREAM_ID_BYTES:
            return f"0x{digits[:40]} is {len(digits) / 2:g} bytes; a stream ID has {STREAM_ID_BYTES}"
    return f"{text[:60]!r} is no set of blobs, as in {{0x7fb9f781956cea08c651295720000001}}"


def read_range_end(place: str, text: str) -> int:
    """Return the token that ends a range."""
    value = int(text) if _INTEGER.fullmatch(text) else None
    if value is None:
        raise InputError(f"{place}: range_end {text!r} is no integer")
    if value == MINIMUM_TOKEN or not FIRST_TOKEN <= value <= LAST_TOKEN:
        raise InputError(f"{place}: range_end {value} is no token; tokens are {FIRST_TOKEN} to {LAST_TOKEN}")
    return value


def whole_number_reader(name: str, low: int, high: int) -> Callable[[str, str], int]:
    """Return a reader of whole numbers within these bounds."""

    def read(place: str, text: str) -> int:
        value = int(text) if _INTEGER.fullmatch(text) else None
        if value is None or not low <= value <= high:
            raise InputError(f"{place}: {name} {text!r} is no whole number from {low} to {high}")
        return value

    return read


def read_uuid(place: str, text: str, name: str = "id") -> str:
    """Return a UUID as lower-case text."""
    try:
        if len(text) == 36:
            return str(uuid.UUID(text))
    except ValueError:
        pass
    raise InputError(f"{place}: {name} {text!r} is no UUID")


def read_time_ms(place: str, name: str, text: str) -> Milliseconds:
    """Return a time in ms. A time without a zone is UTC, as old servers print it."""
    try:
        time = parse_time_ms(text, zone_required=False)
    except InputError as error:
        raise InputError(f"{place}: {name}: {error}") from None
    if time < 0:
        raise InputError(f"{place}: {name} {format_ms(time)} is before 1970, when no generation was")
    return time


def read_expired(place: str, values: Mapping[str, str]) -> Milliseconds | None:
    """Return the time (ms) of a column `expired`, which may be null or missing."""
    return read_time_ms(place, "expired", values["expired"]) if values.get("expired") else None


_ENTRY = re.compile(
    r"\('?(-?\d{1,19})'?, ?(\[(?:0x[0-9a-fA-F]{32}|\(-?\d{1,19}, ?-?\d{1,19}\))"
    r"(?:, ?+(?>0x[0-9a-fA-F]{32}|\(-?+\d{1,19}+, ?+-?+\d{1,19}+\)))*+\]), ?(\d{1,3})\)",
    re.ASCII,
)
_SEPARATOR = re.compile(r", ?")


def read_description(place: str, text: str) -> TopologyDescription:
    """Parse a V1 description: a list of (range end, [streams in shard order], ignore_msb).

    Raises:
        InputError: it ends early, or is not a description.
    """
    if text in ("", "[]", "null"):
        raise InputError(f"{place}: description: no ranges; a generation has at least one")
    if not (text.startswith("[") and text.endswith("]")):
        raise InputError(
            f"{place}: description: {text[-40:]!r} ends before its list does: {HALF_WRITTEN}; export it again"
        )
    entries = list(_description_entries(place, text))
    streams = [_read_stream_list(place, entry[2]) for entry in entries]
    columns = [
        np.array(column, dtype=np.int64)
        for column in (
            [read_range_end(place, entry[1]) for entry in entries],
            [len(stream_list) // STREAM_ID_BYTES for stream_list in streams],
            [int(entry[3]) for entry in entries],
        )
    ]
    try:
        flat = np.frombuffer(b"".join(streams), dtype=np.uint8).reshape(-1, STREAM_ID_BYTES)
        return TopologyDescription(columns[0], columns[1], columns[2], flat)
    except InputError as error:
        raise InputError(f"{place}: description: {error}") from None


def _description_entries(place: str, text: str) -> Iterator[re.Match[str]]:
    """Yield the entries between the brackets of a list, separated by commas."""
    at, last = 1, len(text) - 1
    while True:
        entry = _ENTRY.match(text, at)
        if entry is not None:
            yield entry
            if entry.end() == last:
                return
        between = None if entry is None else _SEPARATOR.match(text, entry.end())
        if between is None:
            excerpt = text[at if entry is None else entry.end() :][:60]
            raise InputError(f"{place}: description: {excerpt!r} is no entry (range end, [stream IDs], ignore_msb)")
        at = between.end()


def _read_stream_list(place: str, text: str) -> bytes:
    """Return the stream IDs of a list, in its order."""
    if "(" in text:
        return b"".join(_pack_pair(place, *pair) for pair in _PAIR.findall(text))
    return bytes.fromhex(text.translate(_BLOB_MARKS).replace("0x", ""))


ExportRows = Iterator[tuple[int, dict[str, str]]]
"""Rows of an export as (line, values by column); values are in COPY's notation, null is empty."""

# Match line by line: a file object in memory would store the text a second time, at four bytes per character.
_LINES = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_ENDS_WHOLE = re.compile(r'.*[}\]"]|.*([+-]\d{4}|Z)|', re.DOTALL)


def read_csv_rows(source: str, text: str) -> tuple[list[str], ExportRows]:
    """Return the columns that the header names, and the rows after it. A header alone is an empty table.

    Raises:
        InputError: the text is not a complete CSV file.
    """
    # A set of a few thousand stream IDs is one field, but the csv module's default limit is 128 KiB.
    csv.field_size_limit(max(csv.field_size_limit(), 1 << 30))
    reader = csv.reader((line[0] for line in _LINES.finditer(text)), strict=True)
    header = [name.strip() for name in _next_row(source, reader) or []]
    return header, _dict_rows(source, reader, header, ends_whole=text.endswith("\n"))


def _next_row(source: str, reader: Iterator[list[str]]) -> list[str] | None:
    try:
        return next(reader, None)
    except csv.Error as error:
        cut = (
            f"a quote is open at its end: {HALF_WRITTEN}; export it again"
            if "end of data" in str(error)
            else str(error)
        )
        raise InputError(f"{source} is no whole CSV file: {cut}") from None


def _dict_rows(source: str, reader: Iterator[list[str]], header: list[str], *, ends_whole: bool) -> ExportRows:
    line, last = 1, ""
    for line, row in enumerate(iter(lambda: _next_row(source, reader), None), start=2):
        if not row:
            continue
        if len(row) != len(header):
            cut = f": {HALF_WRITTEN}; export it again" if len(row) < len(header) else ""
            raise InputError(f"{source}, line {line} has {len(row)} columns where the header names {len(header)}{cut}")
        last = row[-1]
        yield line, dict(zip(header, row, strict=True))
    if line == 1 and not ends_whole:
        raise InputError(
            f"{source} ends in its header, without a line end: {HALF_WRITTEN}; export it again, or end the "
            "line if the table "
            "is empty"
        )
    # A truncated number or time can still parse; only the line end proves that it is complete.
    if not ends_whole and not _ENDS_WHOLE.fullmatch(last):
        raise InputError(
            f"{source}, line {line} ends in {last[-30:]!r} without a line end: {HALF_WRITTEN}; export it "
            "again, or end the "
            "line if the file is whole"
        )
