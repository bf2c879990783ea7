"""Generation IDs: V1, a timestamp alone, and V2, a timestamp and a random UUID; and the text they are gossiped as.

How the timestamp is chosen is `timestamp`'s.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from cdc_platform.clock import Milliseconds, format_ms
from cdc_platform.errors import InputError

_LARGEST_MS = 2**63 - 1
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


@dataclass(frozen=True)
class GenerationId:
    """What names a generation: when it starts to operate (ms since 1970 UTC) and, since V2, where its data is kept."""

    time_ms: Milliseconds
    uuid: UUID | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.time_ms <= _LARGEST_MS:
            raise InputError(f"generation timestamp {self.time_ms} ms is out of range; it is 0 to 2^63 - 1")

    @property
    def format(self) -> Literal["v1", "v2"]:
        """`v1` without, `v2` with a UUID."""
        return "v1" if self.uuid is None else "v2"

    @property
    def gossip_text(self) -> str:
        """The text nodes gossip: `<ms>` or `v2;<ms>;<uuid>`."""
        return f"{self.time_ms}" if self.uuid is None else f"v2;{self.time_ms};{self.uuid}"

    def __str__(self) -> str:
        time = format_ms(self.time_ms)
        return time if self.uuid is None else f"{self.uuid} ({time})"


def parse_generation_id(text: str) -> GenerationId | None:
    """The generation ID of a gossiped text; the empty text means that no generation is known: None.

    Raises:
        InputError: neither `<ms>` nor `v2;<ms>;<uuid>`.
    """
    if text == "":
        return None
    parts = text.split(";")
    if len(parts) == 1:
        return GenerationId(_parse_ms(parts[0], text))
    if len(parts) != 3 or parts[0] != "v2" or not _UUID.fullmatch(parts[2]):
        raise InputError(f"not a generation ID: {text!r}; it is <ms> or v2;<ms>;<uuid>")
    return GenerationId(_parse_ms(parts[1], text), UUID(parts[2]))


def _parse_ms(digits: str, text: str) -> Milliseconds:
    # isdecimal alone would let other scripts' digits through.
    if not (digits.isascii() and digits.isdecimal()):
        raise InputError(f"not a generation ID: {text!r}; the timestamp is a whole number of ms since 1970")
    return Milliseconds(digits)
