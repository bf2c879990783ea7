"""What a client that starts without a checkpoint has before it: generations or sets that the TTL reaches back to."""

from __future__ import annotations

from collections.abc import Sequence

from cdc_platform.clock import Microseconds, format_us, seconds_of_us, us_of, us_of_seconds
from cdc_platform.errors import InputError, StateError
from cdc_platform.lake.lake import Lake
from cdc_platform.log.reading.clients import Client, Part
from cdc_platform.records import tablet_sets
from cdc_platform.records.table_history import CdcTable
from cdc_platform.timeline import StreamSources
from cdc_platform.timeline.generation_sizes import generation_sizes


def parts_of(lake: Lake, table: CdcTable, client: Client, now_us: Microseconds, ttl_seconds: int) -> list[Part]:
    """What is to be read of a table's log, oldest first: rows that the TTL (s; 0: all) has left, up to the clock.

    Raises:
        StateError: nothing that the log could have rows of is known, or none of it has begun.
    """
    begun = [each for each in _begins(lake, table) if each[0] <= now_us]
    if not begun:
        raise StateError(f"no generation or stream set of {table.full_name} has begun at {format_us(now_us)}")
    since = begun[0][0] if not ttl_seconds else Microseconds(now_us - us_of_seconds(ttl_seconds))
    if client.starts_s is not None:
        since = max(since, Microseconds(now_us - us_of_seconds(client.starts_s)))
    since = max(since, us_of(table.oldest_ms))
    ends = [*(begin for begin, _, _ in begun[1:]), now_us]
    found = [
        Part(seconds_of_us(Microseconds(end - max(begin, since))), ranges, streams)
        for (begin, ranges, streams), end in zip(begun, ends, strict=True)
        if end > max(begin, since)
    ]
    return found or [Part(0, begun[-1][1], begun[-1][2])]


def parts_told(streams: int, ranges: int, ttl_seconds: int, client: Client) -> list[Part]:
    """The same of one generation of a size that is only told, which has operated for all of the TTL.

    Raises:
        InputError: there are fewer streams than ranges, or the TTL has no end: nobody can say how much there is.
    """
    if streams < ranges:
        raise InputError(f"{streams} streams in {ranges} ranges; a range has a stream at least")
    if not ttl_seconds:
        raise InputError("TTL 0 keeps everything: how much there is only a table of the home can tell; name one")
    back = ttl_seconds if client.starts_s is None else min(client.starts_s, ttl_seconds)
    return [Part(back, ranges, streams)]


def _begins(lake: Lake, table: CdcTable) -> Sequence[tuple[Microseconds, int, int]]:
    """When each begins (µs), its ranges (0: tablets) and its streams; without those of which only the time is known."""
    if StreamSources(lake).of(table.keyspace_name, table.table_name).in_generations:
        sizes = [each for each in generation_sizes(lake) if each.num_streams]
        return [(us_of(each.time_ms), each.num_ranges or each.num_streams, each.num_streams) for each in sizes]
    sets = tablet_sets.changes(lake, table.keyspace_name, table.table_name)
    return [(us_of(each.timestamp_ms), 0, len(each.current)) for each in sets]
