"""Parse the CQL values in the cells of exported tables: streams, tokens, UUIDs, times and topology descriptions.

Messages give the value and the rule; the reader of the table adds the file, the line and the column.
"""

from __future__ import annotations

import re
import struct
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import numpy as np

from cdc_platform.clock import Milliseconds, format_ms, parse_time_ms
from cdc_platform.errors import InputError
from cdc_platform.generations import STREAM_ID_BYTES, TopologyDescription
from cdc_platform.ring import FIRST_TOKEN, LAST_TOKEN, MAX_SHARD_COUNT, MINIMUM_TOKEN

HALF_WRITTEN = "half-written export"
_EMPTY_SETS = ("", "{}", "null")
_INTEGER = re.compile(r"-?\d{1,19}", re.ASCII)
_BLOB_SET = re.compile(r"\{0x[0-9a-fA-F]{32}(?:, ?+0x[0-9a-fA-F]{32})*+\}")
_PAIR_SET = re.compile(r"\{\(-?\d{1,19}, ?-?\d{1,19}\)(?:, ?+\(-?+\d{1,19}+, ?+-?+\d{1,19}+\))*+\}", re.ASCII)
_PAIR = re.compile(r"\((-?\d+), ?(-?\d+)\)", re.ASCII)
_BLOB = re.compile(r"0x([0-9a-fA-F]*)")
_BLOB_MARKS = str.maketrans("", "", "{}[], ")
_COMMITTED = re.compile(r"\(\s*'?([^,']+)'?\s*,\s*([0-9a-fA-F-]{36})\s*\)")
_Value = TypeVar("_Value")


def parse_range_streams(text: str) -> bytes | None:
    """Return the streams of one range as `parse_generation_streams` does; None if the set is empty."""
    if text in _EMPTY_SETS:
        return None
    streams = parse_generation_streams(text)
    count = len(streams) // STREAM_ID_BYTES
    if count > MAX_SHARD_COUNT:
        raise InputError(f"{count} streams in a range; a node has at most {MAX_SHARD_COUNT} shards")
    return streams


def parse_generation_streams(text: str) -> bytes:
    """Return the stream IDs of a set, concatenated in unsigned byte order.

    The elements are blobs, or pairs of bigints in tables from before blobs.
    """
    if _BLOB_SET.fullmatch(text):
        streams = bytes.fromhex(text.translate(_BLOB_MARKS).replace("0x", ""))
    elif _PAIR_SET.fullmatch(text):
        streams = b"".join(_pack_pair(*pair) for pair in _PAIR.findall(text))
    else:
        raise InputError(_explain_bad_set(text))
    if len(streams) == STREAM_ID_BYTES:
        return streams
    ids = sorted(streams[at : at + STREAM_ID_BYTES] for at in range(0, len(streams), STREAM_ID_BYTES))
    if len(set(ids)) < len(ids):
        raise InputError("a stream is in the set twice; a set contains each stream once")
    return b"".join(ids)


def parse_stream_id(text: str) -> bytes:
    """Return one stream ID from a blob in cqlsh's notation."""
    digits = _BLOB.fullmatch(text)
    if digits is None:
        raise InputError(f"{text[:60]!r} is no blob, as in 0x7fb9f781956cea080000000004000001")
    if len(digits[1]) != 2 * STREAM_ID_BYTES:
        raise InputError(_explain_blob_length(digits[1]))
    return bytes.fromhex(digits[1])


def _pack_pair(high: str, low: str) -> bytes:
    try:
        return struct.pack(">qq", int(high), int(low))
    except struct.error:
        raise InputError(f"({high}, {low}) does not fit into two 64-bit integers") from None


def _explain_bad_set(text: str) -> str:
    if text in _EMPTY_SETS:
        return "no streams; a generation has at least one"
    if not (text.startswith("{") and text.endswith("}")):
        return f"{text[-40:]!r} ends before its set does: {HALF_WRITTEN}; export it again"
    for digits in _BLOB.findall(text):
        if len(digits) != 2 * STREAM_ID_BYTES:
            return _explain_blob_length(digits)
    return f"{text[:60]!r} is no set of blobs, as in {{0x7fb9f781956cea08c651295720000001}}"


def _explain_blob_length(digits: str) -> str:
    return f"0x{digits[:40]} is {len(digits) / 2:g} bytes; a stream ID has {STREAM_ID_BYTES}"


def parse_token(text: str) -> int:
    """Return a token that can end a range."""
    value = int(text) if _INTEGER.fullmatch(text) else None
    if value is None:
        raise InputError(f"{text!r} is no integer")
    if value == MINIMUM_TOKEN or not FIRST_TOKEN <= value <= LAST_TOKEN:
        raise InputError(f"{value} is no token; tokens are {FIRST_TOKEN} to {LAST_TOKEN}")
    return value


def integer_parser(low: int, high: int) -> Callable[[str], int]:
    """Return a parser of integers within these bounds."""

    def parse(text: str) -> int:
        value = int(text) if _INTEGER.fullmatch(text) else None
        if value is None or not low <= value <= high:
            raise InputError(f"{text!r} is no whole number from {low} to {high}")
        return value

    return parse


def choice_parser(choices: Mapping[str, _Value], explanation: str) -> Callable[[str], _Value]:
    """Return a parser of a closed list of texts; `explanation` lists them for messages."""

    def parse(text: str) -> _Value:
        if text not in choices:
            raise InputError(f"invalid value {text!r}; it is {explanation}")
        return choices[text]

    return parse


def parse_uuid(text: str) -> str:
    """Return a UUID as lower-case text."""
    try:
        if len(text) == 36:
            return str(uuid.UUID(text))
    except ValueError:
        pass
    raise InputError(f"{text!r} is no UUID")


def parse_generation_time(text: str) -> Milliseconds:
    """Return a time in ms. A time without a zone is UTC, as old servers print it."""
    time = parse_time_ms(text, zone_required=False)
    if time < 0:
        raise InputError(f"{format_ms(time)} is before 1970, when no generation was")
    return time


def parse_token_set(text: str) -> tuple[int, ...]:
    """Return the tokens of a node, ascending; a zero-token node has none, written as null or an empty set."""
    words = parse_text_set(text)
    if not all(map(_INTEGER.fullmatch, words)) or (text and not words and text != "{}"):
        raise InputError(f"{text[:60]!r} are no set of whole numbers, as in {{'-42', '17'}}")
    return tuple(sorted(map(int, words)))


def parse_text_set(text: str) -> tuple[str, ...]:
    """Return the words of a set of text, in order."""
    return tuple(sorted(word.strip().strip("'") for word in text.strip("{}").split(",") if word.strip()))


def parse_committed(text: str) -> dict[Milliseconds, str]:
    """Return the generations in a set of (time, UUID): the UUIDs by time (ms)."""
    return {parse_generation_time(time.strip()): parse_uuid(id_) for time, id_ in _COMMITTED.findall(text)}


_ENTRY = re.compile(
    r"\('?(-?\d{1,19})'?, ?(\[(?:0x[0-9a-fA-F]{32}|\(-?\d{1,19}, ?-?\d{1,19}\))"
    r"(?:, ?+(?>0x[0-9a-fA-F]{32}|\(-?+\d{1,19}+, ?+-?+\d{1,19}+\)))*+\]), ?(\d{1,3})\)",
    re.ASCII,
)
_SEPARATOR = re.compile(r", ?")


def parse_description(text: str) -> TopologyDescription:
    """Parse a V1 description: a list of (range end, [streams in shard order], ignore_msb).

    Raises:
        InputError: it ends early, or is not a description.
    """
    if text in ("", "[]", "null"):
        raise InputError("no ranges; a generation has at least one")
    if not (text.startswith("[") and text.endswith("]")):
        raise InputError(f"{text[-40:]!r} ends before its list does: {HALF_WRITTEN}; export it again")
    entries = list(_description_entries(text))
    streams = [_parse_stream_list(entry[2]) for entry in entries]
    range_ends, counts, ignore_msbs = (
        np.array(column, dtype=np.int64)
        for column in (
            [parse_token(entry[1]) for entry in entries],
            [len(stream_list) // STREAM_ID_BYTES for stream_list in streams],
            [int(entry[3]) for entry in entries],
        )
    )
    flat = np.frombuffer(b"".join(streams), dtype=np.uint8).reshape(-1, STREAM_ID_BYTES)
    return TopologyDescription(range_ends, counts, ignore_msbs, flat)


def _description_entries(text: str) -> Iterator[re.Match[str]]:
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
            raise InputError(f"{excerpt!r} is no entry (range end, [stream IDs], ignore_msb)")
        at = between.end()


def _parse_stream_list(text: str) -> bytes:
    """Return the stream IDs of a list, in its order."""
    if "(" in text:
        return b"".join(_pack_pair(*pair) for pair in _PAIR.findall(text))
    return bytes.fromhex(text.translate(_BLOB_MARKS).replace("0x", ""))
