"""Check whether readers' checkpoints still point to an existing generation or stream set.

Covers the platform's own consumers and cqlsh exports of the tables in which scylla-cdc-go and scylla-cdc-rust store
theirs: a row per stream, with the `generation` (a time) that it belongs to.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cdc_platform.clock import ONE_US, Microseconds, us_from_ms
from cdc_platform.errors import InputError
from cdc_platform.importing import read_time_ms
from cdc_platform.metastore import Consumer
from cdc_platform.timeline import StreamPeriod

CheckpointStatus = Literal["there", "removed", "unknown", "gone"]
"""Of a checkpoint's generation: it is there, it was removed here, nobody knows of it. `gone`: older than all."""
_STREAM_TEXT_LENGTH = len("0x") + 2 * 16


def get_checkpoint_status(consumer: Consumer, periods: Sequence[StreamPeriod]) -> CheckpointStatus:
    """Where a consumer goes on: with a generation or set (`periods`, oldest first) that is there, or with none."""
    goes_on = consumer.position_us + ONE_US
    begun = [each for each in periods if each.begin_us <= goes_on]
    if begun:
        return "removed" if begun[-1].removed else "there"
    # Before the first one there is nothing to read, unless it has read of one that was before.
    return "there" if consumer.set_timestamp_us is None or not periods else "gone"


@dataclass(frozen=True)
class GenerationCheckpoints:
    """The checkpoints of a generation (its begin in µs): how many streams' there are, and whether a reader is in it."""

    begin_us: Microseconds
    streams: int
    is_current: bool
    standing: CheckpointStatus

    @property
    def is_dead(self) -> bool:
        """Whether they lead nowhere."""
        return self.standing != "there"


def parse_checkpoints(source: str, text: str, periods: Sequence[StreamPeriod]) -> list[GenerationCheckpoints]:
    """The checkpoints of an export (`source` names it) by generation, oldest first, judged by `periods`.

    A row whose stream is no stream holds the generation that a reader is in: Go's is empty and has
    `current_generation`, Rust's is one zero byte.

    Raises:
        InputError: it is no such export.
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
        place = f"{source}: line {reader.line_num}"
        if len(row["stream_id"] or "") == _STREAM_TEXT_LENGTH:
            streams[us_from_ms(read_time_ms(place, "generation", row["generation"]))] += 1
            continue
        name = "current_generation" if "current_generation" in columns else "generation"
        if row[name]:
            current.add(us_from_ms(read_time_ms(place, name, row[name])))
    known = {each.begin_us: each for each in periods}

    def standing(begin: Microseconds) -> CheckpointStatus:
        if begin not in known:
            return "unknown"
        return "removed" if known[begin].removed else "there"

    return [
        GenerationCheckpoints(each, streams[each], each in current, standing(each))
        for each in sorted({*streams, *current})
    ]
