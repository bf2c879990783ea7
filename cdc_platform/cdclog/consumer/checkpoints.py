"""Check whether readers' checkpoints still point to an existing generation or stream set.

Covers the platform's own consumers, and cqlsh exports of the checkpoint tables of scylla-cdc-go and scylla-cdc-rust.
Those have a row per stream, with the time of its `generation`.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cdc_platform.clock import ONE_US, Microseconds, us_from_ms
from cdc_platform.errors import InputError
from cdc_platform.importing import parse_generation_time
from cdc_platform.metastore import Consumer
from cdc_platform.timeline import StreamPeriod

CheckpointStatus = Literal["there", "removed", "unknown", "gone"]
"""The generation of a checkpoint exists, was removed here, or is unknown. `gone` is older than all known ones."""
_STREAM_TEXT_LENGTH = len("0x") + 2 * 16


def get_checkpoint_status(consumer: Consumer, periods: Sequence[StreamPeriod]) -> CheckpointStatus:
    """Return the status of the generation or set (`periods`, oldest first) that a consumer reads next."""
    next_us = consumer.position_us + ONE_US
    started = [period for period in periods if period.begin_us <= next_us]
    if started:
        return "removed" if started[-1].removed else "there"
    # Before the first period there is nothing to read, unless the consumer has read an earlier one.
    return "there" if consumer.set_timestamp_us is None or not periods else "gone"


@dataclass(frozen=True)
class GenerationCheckpoints:
    """The checkpoints of a generation (start in µs): the number of streams, and whether a reader is in it."""

    begin_us: Microseconds
    streams: int
    is_current: bool
    standing: CheckpointStatus

    @property
    def is_dead(self) -> bool:
        """Return True if the generation does not exist."""
        return self.standing != "there"


def parse_checkpoints(source: str, text: str, periods: Sequence[StreamPeriod]) -> list[GenerationCheckpoints]:
    """Return the checkpoints of an export by generation, oldest first, judged by `periods`; `source` names the export.

    A row without a valid stream ID holds the generation that a reader is in: in Go its stream is empty and it has
    `current_generation`, in Rust its stream is one zero byte.

    Raises:
        InputError: it is not such an export.
    """
    reader = csv.DictReader(text.splitlines())
    columns = set(reader.fieldnames or ())
    if not {"stream_id", "generation"} <= columns:
        raise InputError(
            f"{source}: a table of checkpoints has columns stream_id and generation, this has "
            f"{', '.join(sorted(columns)) or 'none'}; export it with COPY ... TO ... WITH HEADER = true"
        )
    streams: Counter[Microseconds] = Counter()
    current: set[Microseconds] = set()
    for row in reader:
        location = f"{source}: line {reader.line_num}"
        if len(row["stream_id"] or "") == _STREAM_TEXT_LENGTH:
            streams[_parse_time_us(location, "generation", row["generation"])] += 1
            continue
        name = "current_generation" if "current_generation" in columns else "generation"
        if row[name]:
            current.add(_parse_time_us(location, name, row[name]))
    known = {period.begin_us: period for period in periods}

    def standing(begin: Microseconds) -> CheckpointStatus:
        if begin not in known:
            return "unknown"
        return "removed" if known[begin].removed else "there"

    return [
        GenerationCheckpoints(begin_us, streams[begin_us], begin_us in current, standing(begin_us))
        for begin_us in sorted({*streams, *current})
    ]


def _parse_time_us(location: str, name: str, text: str) -> Microseconds:
    try:
        return us_from_ms(parse_generation_time(text))
    except InputError as error:
        raise InputError(f"{location}: {name}: {error}") from None
