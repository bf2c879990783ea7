"""Encode attribute values as Alternator does, from its format alone, and give the DynamoDB JSON of each.

The module shares no code with the platform. A value is `(type, content)`: numbers are `Decimal`, binaries `bytes`,
sets and lists Python lists, maps dicts.
"""

from __future__ import annotations

import base64
import json
import struct
from decimal import Decimal
from typing import Any

Attribute = tuple[str, Any]
_BYTES = {"S": 0, "B": 1, "BOOL": 2, "N": 3}
_OTHERS = 4


def encode_attribute(value: Attribute) -> bytes:
    """Return the bytes of a value in `:attrs`."""
    kind, content = value
    if kind == "S":
        payload = content.encode()
    elif kind == "B":
        payload = content
    elif kind == "BOOL":
        payload = bytes([content])
    elif kind == "N":
        payload = encode_number(content)
    else:
        return bytes([_OTHERS]) + json.dumps(as_json(value), separators=(",", ":"), ensure_ascii=False).encode()
    return bytes([_BYTES[kind]]) + payload


def encode_number(number: Decimal) -> bytes:
    """Return a CQL decimal: the scale, and the shortest two's complement of the unscaled number."""
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    unscaled = int("".join(map(str, digits))) * (-1 if sign else 1)
    size = 1
    while not -(1 << (8 * size - 1)) <= unscaled < 1 << (8 * size - 1):
        size += 1
    return struct.pack(">i", -exponent) + unscaled.to_bytes(size, "big", signed=True)


def as_json(value: Attribute) -> Any:
    """Return the DynamoDB JSON of a value as a Python object."""
    kind, content = value
    if kind == "N":
        return {"N": plain_number(content)}
    if kind == "B":
        return {"B": base64.b64encode(content).decode()}
    if kind == "NS":
        return {"NS": [plain_number(number) for number in content]}
    if kind == "BS":
        return {"BS": [base64.b64encode(binary).decode() for binary in content]}
    if kind == "L":
        return {"L": [as_json(item) for item in content]}
    if kind == "M":
        return {"M": {name: as_json(item) for name, item in content.items()}}
    return {kind: content}


def plain_number(number: Decimal) -> str:
    """Return all digits of a number, without an exponent and without trailing zeros after the decimal point."""
    text = f"{number:f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if not number else text


def encode_map(entries: list[tuple[str, bytes]]) -> bytes:
    """Return a cell of `:attrs` as a map of the CQL protocol."""
    parts = [struct.pack(">i", len(entries))]
    for name, value in entries:
        for part in (name.encode(), value):
            parts += [struct.pack(">i", len(part)), part]
    return b"".join(parts)


def encode_set(names: list[str]) -> bytes:
    """Return a set of texts in the CQL protocol."""
    parts = [struct.pack(">i", len(names))]
    for name in names:
        parts += [struct.pack(">i", len(name.encode())), name.encode()]
    return b"".join(parts)


def decode_map(cell: bytes) -> list[tuple[str, str]]:
    """Return the names and values (texts) of a map."""
    (count,) = struct.unpack_from(">i", cell)
    at, texts = 4, []
    for _ in range(2 * count):
        (length,) = struct.unpack_from(">i", cell, at)
        texts.append(cell[at + 4 : at + 4 + length].decode())
        at += 4 + length
    assert at == len(cell)
    return list(zip(texts[::2], texts[1::2], strict=True))
