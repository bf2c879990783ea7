"""Generation IDs (a timestamp, in V2 with a UUID), their gossip text, and the timestamp of a new generation.

Times are ms since 1970 UTC. Callers pass the clock and the newest known generation.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from cdc_platform.clock import DEFAULT_LEEWAY_MS, DEFAULT_RING_DELAY_MS, ONE_MS, Milliseconds, format_ms
from cdc_platform.errors import ClockRefused, InputError

_MAX_MS = 2**63 - 1
_UUID_PATTERN = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


@dataclass(frozen=True)
class GenerationId:
    """The ID of a generation: when it starts to operate (ms since 1970 UTC) and, since V2, the key of its data."""

    time_ms: Milliseconds
    uuid: UUID | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.time_ms <= _MAX_MS:
            raise InputError(f"generation timestamp {self.time_ms} ms is out of range; it is 0 to 2^63 - 1")

    @property
    def format(self) -> Literal["v1", "v2"]:
        """Return `v1` without, `v2` with a UUID."""
        return "v1" if self.uuid is None else "v2"

    @property
    def gossip_text(self) -> str:
        """Return the text that nodes gossip: `<ms>` or `v2;<ms>;<uuid>`."""
        return f"{self.time_ms}" if self.uuid is None else f"v2;{self.time_ms};{self.uuid}"

    def __str__(self) -> str:
        time = format_ms(self.time_ms)
        return time if self.uuid is None else f"{self.uuid} ({time})"


def parse_generation_id(text: str) -> GenerationId | None:
    """Parse a gossiped generation ID. The empty text means that no generation is known: return None.

    Raises:
        InputError: neither `<ms>` nor `v2;<ms>;<uuid>`.
    """
    if text == "":
        return None
    parts = text.split(";")
    if len(parts) == 1:
        return GenerationId(_parse_ms(parts[0], text))
    if len(parts) != 3 or parts[0] != "v2" or not _UUID_PATTERN.fullmatch(parts[2]):
        raise InputError(f"not a generation ID: {text!r}; it is <ms> or v2;<ms>;<uuid>")
    return GenerationId(_parse_ms(parts[1], text), UUID(parts[2]))


def _parse_ms(digits: str, text: str) -> Milliseconds:
    # isdecimal alone would accept other scripts' digits.
    if not (digits.isascii() and digits.isdecimal()):
        raise InputError(f"not a generation ID: {text!r}; the timestamp is a whole number of ms since 1970")
    return Milliseconds(digits)


def new_generation_timestamp(
    now_ms: Milliseconds,
    *,
    ring_delay_ms: Milliseconds = DEFAULT_RING_DELAY_MS,
    leeway_ms: Milliseconds = DEFAULT_LEEWAY_MS,
    add_delay: bool = True,
) -> Milliseconds:
    """Return the timestamp (ms) for a generation that is about to be introduced at `now_ms`.

    It is twice the ring delay and the leeway from now, so that every node hears of the generation before it operates
    (design document 001: "a minute or two"). Without `add_delay`, or with a ring delay of 0, it operates at once.
    """
    return now_ms + ring_delay_ms * 2 + leeway_ms if add_delay and ring_delay_ms else now_ms


def choose_generation_timestamp(
    now_ms: Milliseconds,
    last_ms: Milliseconds | None,
    *,
    ring_delay_ms: Milliseconds,
    leeway_ms: Milliseconds,
    always_delay: bool,
) -> Milliseconds:
    """Return the timestamp (ms) of the generation that is introduced at `now_ms`, after the newest one at `last_ms`.

    The very first has no delay unless `always_delay`, because no other node must hear of it in time.

    Raises:
        StateError: the clock is behind the newest generation by more than the delay.
    """
    candidate = new_generation_timestamp(
        now_ms, ring_delay_ms=ring_delay_ms, leeway_ms=leeway_ms, add_delay=always_delay or last_ms is not None
    )
    return next_generation_timestamp(candidate, last_ms, ring_delay_ms * 2 + leeway_ms)


def next_generation_timestamp(
    candidate_ms: Milliseconds, last_ms: Milliseconds | None, slack_ms: Milliseconds
) -> Milliseconds:
    """Return the candidate, moved after the newest generation (`last_ms`) if necessary: no two start together.

    Raises:
        StateError: the newest generation is more than `slack_ms` after the candidate, so the clock cannot be right.
    """
    if last_ms is None:
        return candidate_ms
    if last_ms - candidate_ms > slack_ms:
        raise ClockRefused(
            f"the new generation would start at {format_ms(candidate_ms)}, but the newest one starts at"
            f" {format_ms(last_ms)}, more than {slack_ms} ms later: this clock is behind, or that of the newest one"
            " was ahead; set it right, or wait, and run again"
        )
    return max(candidate_ms, last_ms + ONE_MS)
