"""Stream source of tables on vnodes: the streams of the generation that operates at the write's timestamp."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from typing import get_args

import numpy as np
import pyarrow as pa

from cdc_platform.clock import SECOND_US, Microseconds, Milliseconds, format_ms, ms_from_us, us_from_ms
from cdc_platform.delta import (
    Lake,
    compute,
    flatten_stream_lists,
    get_mirrored_cluster,
    stream_ids_to_arrow,
    to_int64_array,
    tokens_from_keys,
)
from cdc_platform.errors import NotFound, StateError, WriteRefused
from cdc_platform.generations import (
    STREAM_ID_BYTES,
    AcceptancePolicy,
    GenerationId,
    TopologyDescription,
    UndecidedSwitch,
    WriteDecision,
    WriteVerdict,
    decide_write,
    explain_missing_rows,
    get_operating_index,
)
from cdc_platform.metastore import cdc_local, generations, ring
from cdc_platform.ring import Bools, Int64s, RangeLookup
from cdc_platform.settings import Settings
from cdc_platform.tables import (
    GENERATION_DESCRIPTIONS,
    GENERATION_DESCRIPTIONS_V2,
    STREAMS_DESCRIPTIONS_V2,
    UNORDERED_RANGES,
)
from cdc_platform.timeline.explain import (
    VnodeExplanation,
    explain_unknown_owner,
    find_current_owner,
    find_stream_owner,
    locate_stream,
    try_locate_stream,
)
from cdc_platform.timeline.streams import (
    KnownStreams,
    PeriodStreamReader,
    StreamFinder,
    StreamPeriod,
    UnreadableStreams,
    assert_accepted,
    chain_periods,
    generation_period,
)
from cdc_platform.timeline.timeline import Generation, Timeline

# A description of 1.6 million streams takes 26 MB; a worker keeps those of the newest few generations.
_MAX_CACHED_DESCRIPTIONS = 8
_MAX_CACHED_STREAMS = 10_000
# Copying a stream ID as one element is seven times as fast as copying its bytes.
_STREAM_ID_DTYPE = np.dtype((np.void, STREAM_ID_BYTES))


@dataclass(frozen=True)
class VnodeStreams:
    """The source of all tables without tablets. Each description is read once, when a write first needs it."""

    lake: Lake
    settings: Settings
    _descriptions: dict[int, TopologyDescription | None] = field(default_factory=dict)
    _streams: dict[tuple[int, int], bytes] = field(default_factory=dict)
    """Cached stream IDs, by generation and token."""
    _accepted: dict[Microseconds, tuple[Microseconds, Microseconds, int]] = field(default_factory=dict)
    """By a coordinator's time, two accepted times of one generation and that generation's row."""

    @cached_property
    def timeline(self) -> Timeline:
        """Return the generations, read on first use."""
        return Timeline.read(self.lake)

    @property
    def in_generations(self) -> bool:
        """Return True."""
        return True

    def decide(self, write_ts_us: Microseconds, now_us: Microseconds) -> WriteDecision:
        """See `StreamSource`."""
        row = self.timeline.index_at(write_ts_us)
        return self._decide(write_ts_us, now_us, self.settings.policy, row, row < 0 or self._is_described(row))

    def stream_of(self, write_ts_us: Microseconds, token: int, now_us: Microseconds) -> bytes:
        """See `StreamSource`."""
        row = self._accepted_row(write_ts_us, now_us)
        known = row, token
        if known not in self._streams:
            if len(self._streams) >= _MAX_CACHED_STREAMS:
                self._streams.clear()
            description = self._description(row)
            self._streams[known] = (
                self._placed(row, token) if description is None else description.streams_of(token)[0].tobytes()
            )
        return self._streams[known]

    def _accepted_row(self, write_ts_us: Microseconds, now_us: Microseconds) -> int:
        """Return the row of an accepted write's generation. Times between two accepted ones of a row are accepted."""
        low, high, known = self._accepted.get(now_us, (write_ts_us + 1, write_ts_us, -1))
        if low <= write_ts_us <= high:
            return known
        assert_accepted(self.decide(write_ts_us, now_us))
        # The next writes usually have slightly later timestamps.
        ahead, row = Microseconds(write_ts_us + SECOND_US), self.timeline.index_at(write_ts_us)
        if self.timeline.index_at(ahead) == row and self.decide(ahead, now_us).verdict is WriteVerdict.OK:
            self._accepted[now_us] = write_ts_us, ahead, row
        return row

    def explain(
        self, token: int, at_us: Microseconds, now_us: Microseconds, policy: AcceptancePolicy | None = None
    ) -> VnodeExplanation:
        """See `StreamSource`. It evaluates every policy and reads one row of streams instead of a whole description.

        The generation and its stream are named for a refused write as well, if one operated at its timestamp.
        """
        policy = policy or self.settings.policy
        row = self.timeline.index_at(at_us)
        generation = self.timeline.generations[row] if row >= 0 else None
        place, missing = try_locate_stream(self.lake, generation, token)
        now = ring.read_current_ring(self.lake)
        unknown = explain_unknown_owner(self.lake, now, place)
        note = "; ".join(detail for detail in (missing, place and place.note, unknown) if detail) or None
        verdicts: dict[str, tuple[WriteVerdict, str]] = {}
        for name in get_args(AcceptancePolicy):
            decision = self._decide(at_us, now_us, name, row, place is not None)
            is_placed = place is None or place.verdict is WriteVerdict.OK
            if decision.verdict is WriteVerdict.OK and place is not None and not is_placed:
                verdicts[name] = place.verdict, note or decision.reason
            else:
                verdicts[name] = decision.verdict, decision.reason
        verdict, reason = verdicts.pop(policy)
        row_location, stream_location = (
            (None, None) if unknown else (find_current_owner(now, token), find_stream_owner(now, place))
        )
        return VnodeExplanation(
            token,
            at_us,
            now_us,
            policy,
            generation,
            place,
            verdict,
            reason,
            None if note == reason else note,
            row_location,
            stream_location,
            verdicts,
        )

    def finder(self) -> StreamFinder:
        """See `StreamSource`. Null where no generation operated yet, and where the one that did was removed since."""
        generations = self.timeline.generations
        nameless = [
            generation for generation in generations if generation.generation_id is None and not generation.is_removed
        ]
        if nameless:
            raise StateError(
                f"{len(nameless)} generations are known by their timestamp alone; import their V2 descriptions first"
            )
        ids = [None if generation.is_removed else generation.generation_id for generation in generations]
        return partial(_find_streams, str(self.lake.location), self.timeline.times_us, ids, self.timeline.undecided)

    def periods(self) -> list[StreamPeriod]:
        """See `StreamSource`. Returns all generations that ever existed."""
        names = (GENERATION_DESCRIPTIONS, GENERATION_DESCRIPTIONS_V2, STREAMS_DESCRIPTIONS_V2, UNORDERED_RANGES)
        versions = tuple(self.lake.version(item) for item in names)
        empty = self._bare()
        return chain_periods(
            generation_period(
                us_from_ms(item.time_ms),
                _make_period_reader(str(self.lake.location), item, versions),
                published=item.published or self._is_read_in_first_format(item),
                removed=item.is_removed,
                empty=item.time_ms in empty,
            )
            for item in self.timeline.generations
        )

    def _bare(self) -> set[Milliseconds]:
        """Return the published times (ms) without a single row of streams.

        Rows are written before their time and removed after it. A time that is listed both before and after the search
        for its rows therefore has none.
        """
        listed = {generation.time_ms for generation in self.timeline.known if generation.published}
        empty = listed - generations.read_published_times(self.lake)
        return empty and empty & generations.read_listed_times(self.lake)

    def _is_read_in_first_format(self, generation: Generation) -> bool:
        """Return True if readers of a live cluster read a generation from the V1 table.

        ScyllaDB's own clients do so until one node reports that it has rewritten the table. Here all nodes must report
        it:
        until then the V2 table may lack generations that the V1 table has.
        """
        return generation.published_v1 and generation.has_data and self._in_first_format

    @cached_property
    def _in_first_format(self) -> bool:
        if get_mirrored_cluster(self.lake) is None:
            return False
        hosts = {str(node.host_id) for node in ring.read_nodes(self.lake)}
        return not hosts or not hosts <= cdc_local.hosts_with_rewrite_marker(self.lake)

    def is_complete(self, begin_us: Microseconds) -> bool:
        """See `StreamSource`. Checks that as many streams rows are published as there are ranges, if that is known."""
        generation = self.timeline.find(ms_from_us(begin_us))
        if not generation.published and self._is_read_in_first_format(generation):
            return True  # V1 stores all streams of a generation in one row.
        published = generations.read_published_range_ends(self.lake, generation.time_ms)
        if published.size == 0 or generation.generation_id is None or not generation.has_data:
            return published.size > 0 and _seems_complete(self.lake, generation.time_ms)
        if generation.format == "v2" and generation.id is not None:
            return published.size == generations.read_v2_range_ends(self.lake, generation.id).size
        return published.size == len(generations.read_generation_description(self.lake, generation.generation_id))

    def _decide(
        self, write_ts_us: Microseconds, now_us: Microseconds, policy: AcceptancePolicy, row: int, is_known: bool
    ) -> WriteDecision:
        """Return the verdict, given whether the generation at `row` (that of the write) is readable."""
        times = self.timeline.times_us.tolist()
        return decide_write(
            times,
            write_ts_us,
            now_us,
            leeway_us=us_from_ms(self.settings.generation_leeway_ms),
            policy=policy,
            retrieved=[number != row or is_known for number in range(len(times))],
            undecided=self.timeline.undecided,
        )

    def _is_described(self, row: int) -> bool:
        generation = self.timeline.generations[row]
        if generation.generation_id is None and not generation.is_removed:
            return generations.read_published_range_ends(self.lake, generation.time_ms).size > 0
        return self._description(row) is not None

    def _description(self, row: int) -> TopologyDescription | None:
        """Return the description of a generation, or None if it cannot be read or only its streams rows are known."""
        if row not in self._descriptions:
            generation_id = self.timeline.generations[row].generation_id
            try:
                self._descriptions[row] = (
                    None if generation_id is None else generations.read_generation_description(self.lake, generation_id)
                )
            except (NotFound, StateError):
                self._descriptions[row] = None
        return self._descriptions[row]

    def _placed(self, row: int, token: int) -> bytes:
        """Return the stream from a generation that is known only by its streams rows.

        Raises:
            StateError: the stream of the token is unknown.
        """
        generation = self.timeline.generations[row]
        place = locate_stream(self.lake, generation, token)
        if place.stream_id is None:
            raise StateError(
                f"the stream of token {token} in the generation of {format_ms(generation.time_ms)} is unknown:"
                f" {place.note}; import its V2 descriptions"
            )
        return place.stream_id


def _find_streams(
    root: str,
    times_us: Int64s,
    ids: Sequence[GenerationId | None],
    undecided: Sequence[UndecidedSwitch],
    keys: pa.Array,
    timestamps: pa.Array,
) -> pa.Array:
    """Return the stream IDs (binary, null where there is none) of one batch. `ids` is None for removed generations."""
    valid = compute.and_(compute.is_valid(keys), compute.is_valid(timestamps)).to_numpy(zero_copy_only=False)
    when = to_int64_array(timestamps, 0)
    chosen = np.where(valid, get_operating_index(times_us, when), -1)
    gone = [index for index, generation_id in enumerate(ids) if generation_id is None]
    if gone:
        chosen[np.isin(chosen, gone)] = -1
    if undecided:
        _check_decided(times_us, undecided, when[chosen >= 0])
    tokens = tokens_from_keys(keys)
    out = np.zeros((len(keys), STREAM_ID_BYTES), dtype=np.uint8)
    whole = out.view(_STREAM_ID_DTYPE)[:, 0]
    for index in np.flatnonzero(np.bincount(chosen + 1)[1:]).tolist():
        generation_id = ids[index]
        assert generation_id is not None
        description = _read_description(root, generation_id)
        rows = np.flatnonzero(chosen == index)
        whole[rows] = description.streams_of(tokens.take(rows)).view(_STREAM_ID_DTYPE)[:, 0]
    return stream_ids_to_arrow(out, chosen >= 0)


def _check_decided(times_us: Int64s, undecided: Sequence[UndecidedSwitch], when_us: Int64s) -> None:
    """Raise WriteRefused if a switch may still change the generation of a write (timestamps int64[n], µs)."""
    first = min((switch.lease_end_us for switch in undecided), default=None)
    if first is None or not (when_us >= first).any():
        return
    earliest = Microseconds(when_us[when_us >= first].min())
    # The coordinator's clock showed at least the write's own time.
    decision = decide_write(times_us.tolist(), earliest, earliest, undecided=undecided)
    if decision.verdict is WriteVerdict.UNDECIDED:
        raise WriteRefused(decision.verdict, decision.reason)


@lru_cache(maxsize=_MAX_CACHED_DESCRIPTIONS)
def _read_description(root: str, generation_id: GenerationId) -> TopologyDescription:
    """Return a generation's description, read once per worker: it never changes once it has a timestamp."""
    return generations.read_generation_description(Lake(root), generation_id)


def _make_period_reader(root: str, generation: Generation, versions: tuple[int | None, ...]) -> PeriodStreamReader:
    if generation.is_removed:
        return UnreadableStreams(f"the generation of {format_ms(generation.time_ms)} was removed with its streams")
    return _GenerationStreamReader(root, generation.time_ms, generation.generation_id, versions)


@dataclass(frozen=True)
class _GenerationStreamReader:
    """Reader of a generation's streams.

    `versions` are those of the tables that it reads; they are part of the cache key, so stale streams are never
    returned.
    """

    root: str
    time_ms: Milliseconds
    generation_id: GenerationId | None
    versions: tuple[int | None, ...]

    def read(self) -> KnownStreams:
        """Return the streams of its description, or the published ones if it has none."""
        return _read_known_streams(self)


@lru_cache(maxsize=_MAX_CACHED_DESCRIPTIONS)
def _read_known_streams(reader: _GenerationStreamReader) -> KnownStreams:
    lake = Lake(reader.root)
    if reader.generation_id is None:
        return _read_published_streams(lake, reader.time_ms)
    described = generations.read_generation_description(lake, reader.generation_id)
    unordered = generations.read_unordered_ranges(lake, reader.generation_id)
    return _streams_from_description(described, np.isin(described.range_ends, unordered))


def _streams_from_description(described: TopologyDescription, unordered: Bools) -> KnownStreams:
    return KnownStreams(
        described.range_ends,
        described.offsets,
        described.streams,
        unordered,
        lambda tokens: described.streams_of(tokens),
    )


def _read_published_streams(lake: Lake, time_ms: Milliseconds) -> KnownStreams:
    """Return the streams of a generation that is known only by its streams rows, which do not identify shards."""
    rows = generations.read_published_rows(lake, time_ms).combine_chunks()
    counts, streams = flatten_stream_lists(rows["streams"])
    ends = rows["range_end"].to_numpy()
    offsets = np.concatenate([[0], np.cumsum(counts)])
    lookup = RangeLookup(ends)
    by_range = np.ones(len(ends), dtype=bool)
    return KnownStreams(ends, offsets, streams, by_range, lambda tokens: streams[offsets[lookup.row_of(tokens)]])


def _seems_complete(lake: Lake, time_ms: Milliseconds) -> bool:
    """Return True if the published streams show no missing row; nothing else is known about them."""
    rows = generations.read_published_rows(lake, time_ms).combine_chunks()
    counts, streams = flatten_stream_lists(rows["streams"])
    offsets = np.concatenate([[0], np.cumsum(counts)])
    return explain_missing_rows(rows["range_end"].to_numpy(), offsets, streams) is None
