"""The values in cells of cqlsh exports: streams, tokens, UUIDs, times. Each is checked where it is read."""

from __future__ import annotations

import re
import struct
import uuid
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from cdc_platform.clock import Milliseconds, format_ms, parse_time_ms
from cdc_platform.errors import InputError
from cdc_platform.generations import TopologyDescription
from cdc_platform.generations.stream_ids import STREAM_ID_BYTES
from cdc_platform.ring import FIRST, LAST, MAX_SHARD_COUNT, MINIMUM

HALF = "half-written export"
NO_STREAMS = ("", "{}", "null")
"""A set without a stream, as exports have it."""
_INTEGER = re.compile(r"-?\d{1,19}", re.ASCII)
_BLOB_SET = re.compile(r"\{0x[0-9a-fA-F]{32}(?:, ?+0x[0-9a-fA-F]{32})*+\}")
_PAIR_SET = re.compile(r"\{\(-?\d{1,19}, ?-?\d{1,19}\)(?:, ?+\(-?+\d{1,19}+, ?+-?+\d{1,19}+\))*+\}", re.ASCII)
_PAIR = re.compile(r"\((-?\d+), ?(-?\d+)\)", re.ASCII)
_BLOB = re.compile(r"0x([0-9a-fA-F]*)")
_BLOB_MARKS = str.maketrans("", "", "{}[], ")


def streams_of_set(place: str, text: str, most: int | None = MAX_SHARD_COUNT) -> bytes:
    """The stream IDs of a set, one after the other: blobs, or the pairs of bigints that tables had before them.

    `most`: how many one range can have; None where the set is that of a whole generation.
    """
    if _BLOB_SET.fullmatch(text):
        streams = bytes.fromhex(text.translate(_BLOB_MARKS).replace("0x", ""))
    elif _PAIR_SET.fullmatch(text):
        streams = b"".join(_pair(place, *pair) for pair in _PAIR.findall(text))
    else:
        raise InputError(f"{place}: streams: {_why_no_set(text)}")
    count = len(streams) // STREAM_ID_BYTES
    if most is not None and count > most:
        raise InputError(f"{place}: {count} streams in a range; a node has at most {MAX_SHARD_COUNT} shards")
    if len(set(stream_ids_of(streams))) < count:
        raise InputError(f"{place}: a stream is there twice in one {'range' if most else 'set'}; a set holds it once")
    return streams


def read_stream_id(place: str, text: str) -> bytes:
    """One stream ID, as cqlsh writes a blob."""
    digits = _BLOB.fullmatch(text)
    if digits is None:
        raise InputError(f"{place}: stream_id {text[:60]!r} is no blob, as in 0x7fb9f781956cea080000000004000001")
    if len(digits[1]) != 2 * STREAM_ID_BYTES:
        raise InputError(
            f"{place}: stream_id 0x{digits[1][:40]} is {len(digits[1]) / 2:g} bytes; a stream ID has {STREAM_ID_BYTES}"
        )
    return bytes.fromhex(digits[1])


def stream_ids_of(streams: bytes) -> list[bytes]:
    """Stream IDs that are one after the other, each by itself."""
    return [streams[at : at + STREAM_ID_BYTES] for at in range(0, len(streams), STREAM_ID_BYTES)]


def _pair(place: str, high: str, low: str) -> bytes:
    try:
        return struct.pack(">qq", int(high), int(low))
    except struct.error:
        raise InputError(f"{place}: streams: ({high}, {low}) does not fit into two 64-bit integers") from None


def _why_no_set(text: str) -> str:
    if text in NO_STREAMS:
        return "no streams; every range has at least one"
    if not (text.startswith("{") and text.endswith("}")):
        return f"{text[-40:]!r} ends before its set does: {HALF}; export it again"
    for digits in _BLOB.findall(text):
        if len(digits) != 2 * STREAM_ID_BYTES:
            return f"0x{digits[:40]} is {len(digits) / 2:g} bytes; a stream ID has {STREAM_ID_BYTES}"
    return f"{text[:60]!r} is no set of blobs, as in {{0x7fb9f781956cea08c651295720000001}}"


def read_range_end(place: str, text: str) -> int:
    """The token that a range ends with."""
    value = int(text) if _INTEGER.fullmatch(text) else None
    if value is None:
        raise InputError(f"{place}: range_end {text!r} is no integer")
    if value == MINIMUM or not FIRST <= value <= LAST:
        raise InputError(f"{place}: range_end {value} is no token; tokens are {FIRST} to {LAST}")
    return value


def whole_number(name: str, low: int, high: int) -> Callable[[str, str], int]:
    """A reader of whole numbers within these bounds."""

    def read(place: str, text: str) -> int:
        value = int(text) if _INTEGER.fullmatch(text) else None
        if value is None or not low <= value <= high:
            raise InputError(f"{place}: {name} {text!r} is no whole number from {low} to {high}")
        return value

    return read


def read_uuid(place: str, text: str, name: str = "id") -> str:
    """A UUID as lower-case text."""
    try:
        if len(text) == 36:
            return str(uuid.UUID(text))
    except ValueError:
        pass
    raise InputError(f"{place}: {name} {text!r} is no UUID")


def read_time_ms(place: str, name: str, text: str) -> Milliseconds:
    """A time in ms. An export's time without a zone means UTC: so old servers print it."""
    try:
        time = parse_time_ms(text, zone_required=False)
    except InputError as error:
        raise InputError(f"{place}: {name}: {error}") from None
    if time < 0:
        raise InputError(f"{place}: {name} {format_ms(time)} is before 1970, when no generation was")
    return time


def read_expired(place: str, values: Mapping[str, str]) -> Milliseconds | None:
    """The time (ms) of a column `expired` that may be null or left out."""
    return read_time_ms(place, "expired", values["expired"]) if values.get("expired") else None


_ENTRY = re.compile(
    r"\('?(-?\d{1,19})'?, ?(\[(?:0x[0-9a-fA-F]{32}|\(-?\d{1,19}, ?-?\d{1,19}\))"
    r"(?:, ?+(?>0x[0-9a-fA-F]{32}|\(-?+\d{1,19}+, ?+-?+\d{1,19}+\)))*+\]), ?(\d{1,3})\)",
    re.ASCII,
)
_BETWEEN = re.compile(r", ?")


def read_description(place: str, text: str) -> TopologyDescription:
    """The list of (range end, [streams in shard order], ignore_msb) that a V1 description is.

    Raises:
        InputError: it ends early, or is no description.
    """
    if text in ("", "[]", "null"):
        raise InputError(f"{place}: description: no ranges; a generation has at least one")
    if not (text.startswith("[") and text.endswith("]")):
        raise InputError(f"{place}: description: {text[-40:]!r} ends before its list does: {HALF}; export it again")
    entries = list(_entries(place, text))
    streams = [_listed(place, entry[2]) for entry in entries]
    columns = [
        np.array(column, dtype=np.int64)
        for column in (
            [read_range_end(place, entry[1]) for entry in entries],
            [len(each) // STREAM_ID_BYTES for each in streams],
            [int(entry[3]) for entry in entries],
        )
    ]
    try:
        flat = np.frombuffer(b"".join(streams), dtype=np.uint8).reshape(-1, STREAM_ID_BYTES)
        return TopologyDescription(columns[0], columns[1], columns[2], flat)
    except InputError as error:
        raise InputError(f"{place}: description: {error}") from None


def _entries(place: str, text: str) -> Iterator[re.Match[str]]:
    """The entries between the brackets of a list, with a comma between any two."""
    at, last = 1, len(text) - 1
    while True:
        entry = _ENTRY.match(text, at)
        if entry is not None:
            yield entry
            if entry.end() == last:
                return
        between = None if entry is None else _BETWEEN.match(text, entry.end())
        if between is None:
            shown = text[at if entry is None else entry.end() :][:60]
            raise InputError(f"{place}: description: {shown!r} is no entry (range end, [stream IDs], ignore_msb)")
        at = between.end()


def _listed(place: str, text: str) -> bytes:
    """The stream IDs of a list, in its order."""
    if "(" in text:
        return b"".join(_pair(place, *pair) for pair in _PAIR.findall(text))
    return bytes.fromhex(text.translate(_BLOB_MARKS).replace("0x", ""))
