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
# As one element a stream ID is put in its place seven times as fast as by its bytes.
_STREAM_ID_DTYPE = np.dtype((np.void, STREAM_ID_BYTES))


@dataclass(frozen=True)
class VnodeStreams:
    """The source of all tables without tablets. Each description is read once, when a write needs it first."""

    lake: Lake
    settings: Settings
    _descriptions: dict[int, TopologyDescription | None] = field(default_factory=dict)
    _streams: dict[tuple[int, int], bytes] = field(default_factory=dict)
    """By generation and token; those that were asked for last."""
    _accepted: dict[Microseconds, tuple[Microseconds, Microseconds, int]] = field(default_factory=dict)
    """By the time of a coordinator, two times of one generation at which it takes writes, and that one's row."""

    @cached_property
    def timeline(self) -> Timeline:
        """The generations, read when they are asked for first."""
        return Timeline.read(self.lake)

    @property
    def in_generations(self) -> bool:
        """Yes."""
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
        """The row of the generation of a write that is accepted; what is so at two times of one is so between them."""
        low, high, known = self._accepted.get(now_us, (write_ts_us + 1, write_ts_us, -1))
        if low <= write_ts_us <= high:
            return known
        assert_accepted(self.decide(write_ts_us, now_us))
        # Those that follow are a little later each.
        ahead, row = Microseconds(write_ts_us + SECOND_US), self.timeline.index_at(write_ts_us)
        if self.timeline.index_at(ahead) == row and self.decide(ahead, now_us).verdict is WriteVerdict.OK:
            self._accepted[now_us] = write_ts_us, ahead, row
        return row

    def explain(
        self, token: int, at_us: Microseconds, now_us: Microseconds, policy: AcceptancePolicy | None = None
    ) -> VnodeExplanation:
        """See `StreamSource`. Of the description it reads one row of streams alone. Every policy is asked.

        The generation and its stream are named for a refused write as well, where one operated at its timestamp.
        """
        policy = policy or self.settings.policy
        row = self.timeline.index_at(at_us)
        generation = self.timeline.generations[row] if row >= 0 else None
        place, missing = try_locate_stream(self.lake, generation, token)
        now = ring.read_current_ring(self.lake)
        unknown = explain_unknown_owner(self.lake, now, place)
        verdicts: dict[str, tuple[WriteVerdict, str]] = {}
        for name in get_args(AcceptancePolicy):
            decision = self._decide(at_us, now_us, name, row, place is not None)
            details = (decision.reason, missing, place.note if place else None, unknown)
            of_place = WriteVerdict.OK if place is None else place.verdict
            verdict = of_place if decision.verdict is WriteVerdict.OK else decision.verdict
            verdicts[name] = verdict, "; ".join(detail for detail in details if detail)
        verdict, reason = verdicts.pop(policy)
        row_lies, stream_lies = (
            (None, None) if unknown else (find_current_owner(now, token), find_stream_owner(now, place))
        )
        return VnodeExplanation(
            token, at_us, now_us, policy, generation, place, verdict, reason, row_lies, stream_lies, verdicts
        )

    def finder(self) -> StreamFinder:
        """See `StreamSource`. Null where no generation operated yet, and where the one that did was removed since."""
        generations = self.timeline.generations
        nameless = [each for each in generations if each.generation_id is None and not each.is_removed]
        if nameless:
            raise StateError(
                f"{len(nameless)} generations are known by their timestamp alone; import their V2 descriptions first"
            )
        ids = [None if each.is_removed else each.generation_id for each in generations]
        return partial(_find_streams, str(self.lake.place), self.timeline.times_us, ids, self.timeline.undecided)

    def periods(self) -> list[StreamPeriod]:
        """See `StreamSource`: all generations that there ever were."""
        names = (GENERATION_DESCRIPTIONS, GENERATION_DESCRIPTIONS_V2, STREAMS_DESCRIPTIONS_V2, UNORDERED_RANGES)
        versions = tuple(self.lake.version(each) for each in names)
        bare = self._bare()
        return chain_periods(
            generation_period(
                us_from_ms(each.time_ms),
                _make_period_reader(str(self.lake.place), each, versions),
                shown=each.published or self._is_read_in_first_format(each),
                removed=each.is_removed,
                bare=each.time_ms in bare,
            )
            for each in self.timeline.generations
        )

    def _bare(self) -> set[Milliseconds]:
        """The times (ms) that readers see and of which there is not one row of streams.

        Rows come before their time and go after it: a time that is listed still once its rows were looked for, and
        was before, has none.
        """
        listed = {each.time_ms for each in self.timeline.known if each.published}
        bare = listed - generations.read_published_times(self.lake)
        return bare and bare & generations.read_listed_times(self.lake)

    def _is_read_in_first_format(self, generation: Generation) -> bool:
        """Whether readers of a live cluster read a generation by the first format's table.

        ScyllaDB's own clients do so until a node says that it has rewritten the table. Here every node has to: until
        then the newer table may lack generations, and the older one has them.
        """
        return generation.published_v1 and generation.has_data and self._in_first_format

    @cached_property
    def _in_first_format(self) -> bool:
        if get_mirrored_cluster(self.lake) is None:
            return False
        hosts = {str(node.host_id) for node in ring.read_nodes(self.lake)}
        return not hosts or not hosts <= cdc_local.hosts_with_rewrite_marker(self.lake)

    def is_complete(self, begin_us: Microseconds) -> bool:
        """See `StreamSource`: as many streams rows are published as there are ranges, as far as that is known."""
        generation = self.timeline.find(ms_from_us(begin_us))
        if not generation.published and self._is_read_in_first_format(generation):
            return True  # The first format has all streams of a generation in one row.
        published = generations.read_published_range_ends(self.lake, generation.time_ms)
        if published.size == 0 or generation.generation_id is None or not generation.has_data:
            return published.size > 0 and _seems_complete(self.lake, generation.time_ms)
        if generation.format == "v2" and generation.id is not None:
            return published.size == generations.read_v2_range_ends(self.lake, generation.id).size
        return published.size == len(generations.read_generation_description(self.lake, generation.generation_id))

    def _decide(
        self, write_ts_us: Microseconds, now_us: Microseconds, policy: AcceptancePolicy, row: int, is_known: bool
    ) -> WriteDecision:
        """The verdict where the generation at `row`, that of the write, can be read or cannot."""
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
        """The description of a generation; None where it cannot be read, or only its streams rows are known."""
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
        """The stream of a generation of which only the streams rows are known."""
        generation = self.timeline.generations[row]
        place = locate_stream(self.lake, generation, token)
        if place.stream_id is None:
            raise StateError(
                f"the stream of token {token} in the generation of {format_ms(generation.time_ms)} cannot be told:"
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
    """The stream IDs (binary, null where there is none) of one batch. Removed generations have no ID here."""
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
    """Refuse writes (timestamps int64[n], µs) whose generation a switch may still change."""
    first = min((switch.lease_end_us for switch in undecided), default=None)
    if first is None or not (when_us >= first).any():
        return
    earliest = Microseconds(when_us[when_us >= first].min())
    # The coordinator that took it showed its time, at the earliest.
    decision = decide_write(times_us.tolist(), earliest, earliest, undecided=undecided)
    if decision.verdict is WriteVerdict.UNDECIDED:
        raise WriteRefused(decision.verdict, decision.reason)


@lru_cache(maxsize=_MAX_CACHED_DESCRIPTIONS)
def _read_description(root: str, generation_id: GenerationId) -> TopologyDescription:
    """A generation's description, read once a worker: it never changes once it has a timestamp."""
    return generations.read_generation_description(Lake(root), generation_id)


def _make_period_reader(root: str, generation: Generation, versions: tuple[int | None, ...]) -> PeriodStreamReader:
    if generation.is_removed:
        return UnreadableStreams(f"the generation of {format_ms(generation.time_ms)} was removed with its streams")
    return _GenerationStreamReader(root, generation.time_ms, generation.generation_id, versions)


@dataclass(frozen=True)
class _GenerationStreamReader:
    """What reads the streams of a generation. `versions` are those of the tables that they are read from, so that
    nobody takes the streams of an older one for these.
    """

    root: str
    time_ms: Milliseconds
    generation_id: GenerationId | None
    versions: tuple[int | None, ...]

    def read(self) -> KnownStreams:
        """The streams of its description, or where none is known those that are published."""
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
    """The streams of a generation that is known by its streams rows alone, which say nothing of shards."""
    rows = generations.read_published_rows(lake, time_ms).combine_chunks()
    counts, streams = flatten_stream_lists(rows["streams"])
    ends = rows["range_end"].to_numpy()
    offsets = np.concatenate([[0], np.cumsum(counts)])
    lookup = RangeLookup(ends)
    by_range = np.ones(len(ends), dtype=bool)
    return KnownStreams(ends, offsets, streams, by_range, lambda tokens: streams[offsets[lookup.row_of(tokens)]])


def _seems_complete(lake: Lake, time_ms: Milliseconds) -> bool:
    """Whether the published streams themselves tell of no row that is missing; nothing else is known of them."""
    rows = generations.read_published_rows(lake, time_ms).combine_chunks()
    counts, streams = flatten_stream_lists(rows["streams"])
    offsets = np.concatenate([[0], np.cumsum(counts)])
    return explain_missing_rows(rows["range_end"].to_numpy(), offsets, streams) is None
