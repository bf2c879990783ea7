"""A coordinator that learns of generations whose rows come late, in part, or never. Real rows; no Spark, no sleeps."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from uuid import UUID

import pyarrow as pa
import pytest

from cdc_platform.clock import Clock, format_ms, to_datetime
from cdc_platform.errors import EnvironmentProblem, InputError, WriteRefused
from cdc_platform.generations import GenerationId, RingLayout, TopologyDescription, Verdict, generate
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import CDC_LOCAL, GENERATION_DESCRIPTIONS, GENERATION_DESCRIPTIONS_V2
from cdc_platform.node.coordinator import Background, Coordinator
from cdc_platform.node.restart import own_generation
from cdc_platform.records import generation_data
from cdc_platform.ring import Node, Ring
from cdc_platform.settings import Settings

HOST = UUID(int=1)
T1, T2, T3 = 1_700_000_000_000, 1_700_000_600_000, 1_700_001_200_000
OLD, NEW, NEWEST = (GenerationId(time, UUID(int=number)) for number, time in ((0xA, T1), (0xB, T2), (0xC, T3)))
RINGS = {
    OLD: Ring.of([Node(HOST, (-(2**62), 5, 2**61), 4, 12)]),
    NEW: Ring.of([Node(HOST, (-(2**62), 5, 2**61), 4, 12), Node(UUID(int=2), (0, 77), 3, 0)]),
    NEWEST: Ring.of([Node(HOST, (9,), 2, 0)]),
}


class MovingClock(Clock):
    """A clock that the test sets."""

    def __init__(self, now_ms: int) -> None:
        super().__init__()
        object.__setattr__(self, "now", now_ms * 1000)

    def at(self, now_ms: int) -> None:
        """Set the clock."""
        object.__setattr__(self, "now", now_ms * 1000)

    def now_us(self) -> int:
        return getattr(self, "now")  # noqa: B009


def description(id: GenerationId) -> TopologyDescription:
    """The description of one of the three generations."""
    assert id.uuid is not None
    return generate(RingLayout.of(RINGS[id]), id.uuid)


def insert(lake: Lake, id: GenerationId, rows: slice = slice(None)) -> None:
    """Insert V2 rows of a generation, all or some."""
    made = description(id)
    entries = [made.entry(row) for row in range(len(made))[rows]]
    table = [
        {
            "id": str(id.uuid),
            "range_end": entry.range_end,
            "ignore_msb": entry.ignore_msb,
            "num_ranges": len(made),
            "streams": [stream.tobytes() for stream in entry.streams],
        }
        for entry in entries
    ]
    lake.merge(GENERATION_DESCRIPTIONS_V2, pa.Table.from_pylist(table), update=False)


def verdict(node: Coordinator, at_ms: int, token: int = 3) -> str:
    """OK if the write is taken, in the stream that its generation gives it; else why not."""
    try:
        stream = node.get_stream(at_ms * 1000, token)
    except WriteRefused as refused:
        return refused.verdict
    generation = max((id for id in RINGS if id.time_ms <= at_ms), key=lambda id: id.time_ms)
    assert stream == description(generation).streams_of(token)[0].tobytes()
    return "OK"


@pytest.fixture
def clock() -> MovingClock:
    """A clock that shows T1."""
    return MovingClock(T1)


@pytest.fixture
def node(lake: Lake, clock: MovingClock) -> Coordinator:
    """A coordinator that uses the first generation."""
    insert(lake, OLD)
    node = Coordinator(lake, clock, Settings(), HOST)
    assert node.learn(OLD.gossip_text)
    return node


def test_rows_that_come_late(node: Coordinator, lake: Lake, clock: MovingClock) -> None:
    """Known and not there: its writes are refused, earlier ones are not; once it is there they are taken at once."""
    assert not node.learn(NEW.gossip_text)
    clock.at(T2 - 1_000)
    assert [verdict(node, at) for at in (T2 - 1, T2)] == ["OK", Verdict.NOT_RETRIEVED]
    clock.at(T2)
    assert node.retry() == 1
    assert verdict(node, T2) == Verdict.NOT_RETRIEVED
    insert(lake, NEW)
    assert verdict(node, T2) == Verdict.NOT_RETRIEVED
    assert node.retry() == 0
    assert verdict(node, T2) == "OK"


def test_rows_that_come_one_by_one(node: Coordinator, lake: Lake, clock: MovingClock) -> None:
    """As long as one row is missing nothing of the generation is used; the refusal says how many are there."""
    node.learn(NEW)
    clock.at(T2)
    for count in range(4):
        insert(lake, NEW, slice(count, count + 1))
        assert node.retry() == 1
        with pytest.raises(WriteRefused, match=f"num_ranges claims 5 rows, {count + 1} are there"):
            node.get_stream(T2 * 1000, 3)
    insert(lake, NEW, slice(4, 5))
    assert node.retry() == 0
    assert verdict(node, T2) == "OK"


def test_rows_that_never_come(node: Coordinator, lake: Lake, clock: MovingClock) -> None:
    """It is tried until a later generation has operated for the leeway; then nobody needs it and it is given up."""
    insert(lake, NEWEST)
    node.learn(NEW)
    assert node.learn(NEWEST)
    clock.at(T3 + 4_999)
    assert node.retry() == 1
    clock.at(T3 + 5_000)
    assert node.retry() == 0
    assert node.pending() == []
    assert verdict(node, T3 + 5_000) == "OK"
    assert not node.learn(NEW)
    assert node.pending() == []


def test_every_attempt_is_counted_and_its_error_told(node: Coordinator, clock: MovingClock) -> None:
    """What a person is shown: which generation is missing, how often it was tried, and why it failed."""
    node.learn(NEW)
    node.retry()
    (pending,) = node.pending()
    assert (pending.id, pending.attempts) == (NEW, 2)
    clock.at(T2)
    with pytest.raises(WriteRefused, match=r"tried 2 times, at last: generation .*-00000000000b has no V2"):
        node.get_stream(T2 * 1000, 3)


def test_a_read_that_fails_for_another_reason_is_tried_again(lake: Lake, clock: MovingClock) -> None:
    """A store that is away is no end: the same coordinator goes on once it is back."""
    answers: list[Exception | None] = [EnvironmentProblem("the store is away"), OSError("reset by peer"), None]

    def reader(id: GenerationId) -> TopologyDescription:
        error = answers.pop(0)
        if error is not None:
            raise error
        return description(id)

    node = Coordinator(lake, clock, Settings(), HOST, reader=reader)
    assert not node.learn(OLD)
    assert node.retry() == 1
    assert node.retry() == 0
    assert verdict(node, T1) == "OK"


def test_before_any_generation_operates_the_first_usable_time_is_told(lake: Lake, clock: MovingClock) -> None:
    """The text that users search for, and from when on writes will work."""
    insert(lake, NEW)
    node = Coordinator(lake, clock, Settings(), HOST)
    with pytest.raises(WriteRefused, match=r"could not find any CDC stream .* no generation is known yet") as nothing:
        node.get_stream(T1 * 1000, 3)
    assert nothing.value.verdict == Verdict.NO_STREAM
    node.learn(NEW)
    with pytest.raises(WriteRefused, match=f"could not find any CDC stream .* write from {format_ms(T2)} on"):
        node.get_stream(T1 * 1000, 3)
    assert node.decide(T1 * 1000).first_usable_us == T2 * 1000


def test_the_newest_id_is_kept_and_found_after_a_restart(node: Coordinator, lake: Lake, clock: MovingClock) -> None:
    """What was read is kept, an older one never replaces it; a restarted node starts from it."""
    assert own_generation(lake, HOST) == OLD
    insert(lake, NEWEST)
    insert(lake, NEW)
    node.learn(NEWEST)
    node.learn(NEW)
    assert own_generation(lake, HOST) == NEWEST
    assert lake.read(CDC_LOCAL).num_rows == 1
    clock.at(T3)
    again = Coordinator(lake, clock, Settings(), HOST)
    assert again.start() == NEWEST
    assert verdict(again, T3) == "OK"


def test_an_id_that_cannot_be_read_is_not_kept(node: Coordinator, lake: Lake) -> None:
    """A node keeps what it can use: otherwise a restart would find an ID without data."""
    node.learn(NEW)
    assert own_generation(lake, HOST) == OLD
    insert(lake, NEW)
    node.retry()
    assert own_generation(lake, HOST) == NEW


def test_both_formats_are_learnt(lake: Lake, clock: MovingClock) -> None:
    """`<ms>` is a V1 ID whose data is one cell, `v2;<ms>;<uuid>` has rows; the empty text is no generation."""
    lake.merge(GENERATION_DESCRIPTIONS, generation_data.cell_row(T1, description(OLD)), update=True)
    node = Coordinator(lake, clock, Settings(), HOST)
    assert not node.learn("")
    assert node.learn(str(T1))
    assert own_generation(lake, HOST) == GenerationId(T1)
    insert(lake, NEW)
    assert node.learn(f"v2;{T2};{NEW.uuid}")
    clock.at(T2)
    assert [verdict(node, T2), own_generation(lake, HOST)] == ["OK", NEW]
    with pytest.raises(InputError, match="not a generation ID: 'v3;1;2'"):
        node.learn("v3;1;2")


def test_a_node_that_keeps_nothing_says_so(lake: Lake, clock: MovingClock, caplog: pytest.LogCaptureFixture) -> None:
    """As after an upgrade from before CDC: a warning, and no error; a row without a time counts as nothing."""
    row = {"host_id": str(HOST), "key": "cdc_local", "streams_timestamp": None, "uuid": None}
    lake.merge(CDC_LOCAL, pa.Table.from_pylist([row], schema=CDC_LOCAL.schema), update=True)
    with caplog.at_level(logging.WARNING):
        assert Coordinator(lake, clock, Settings(), HOST).start() is None
    assert "keeps no generation ID" in caplog.text


def test_the_policy_and_leeway_of_the_settings_hold(lake: Lake, clock: MovingClock) -> None:
    """Under `recent-past` a fresh write to the generation before is taken, under `strict` it is not."""
    insert(lake, OLD)
    insert(lake, NEW)
    told = {}
    for policy in ("strict", "recent-past"):
        node = Coordinator(lake, clock, Settings(policy=policy), HOST)
        clock.at(T1)
        node.learn(OLD)
        node.learn(NEW)
        clock.at(T2 + 1_000)
        told[policy] = verdict(node, T2 - 1)
    assert told == {"strict": Verdict.EARLIER, "recent-past": "OK"}


class Steps:
    """A waiter without time: each wait lets the test do something first, and ends at once."""

    def __init__(self, *before: Callable[[], object]) -> None:
        self.waits: list[float | None] = []
        self._before = list(before)
        self._stopped = False

    def wait(self, timeout: float | None = None) -> bool:
        """Do the next thing; when there is nothing more to do wait for the end."""
        if self._stopped:
            return True
        self.waits.append(timeout)
        if self._before:
            self._before.pop(0)()
            return False
        return True

    def set(self) -> None:
        """Nothing more to do."""
        self._stopped = True


def test_the_background_reads_until_it_succeeds(node: Coordinator, lake: Lake, clock: MovingClock) -> None:
    """In a thread of its own: nothing there, a part, everything; each time after the interval, and then no more."""
    clock.at(T2)
    used = threading.Event()
    parts = iter((slice(0, 0), slice(0, 4), slice(4, 5)))
    told: list[str] = []

    def next_part() -> None:
        told.append(verdict(node, T2))
        part = next(parts)
        if part.stop:
            insert(lake, NEW, part)

    steps = Steps(next_part, next_part, next_part)
    reader = Coordinator._try

    def watched(self: Coordinator, id: GenerationId) -> bool:
        done = reader(self, id)
        if done and id == NEW:
            used.set()
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Coordinator, "_try", watched)
        with Background(node, Settings(), steps):
            node.learn(NEW)
            assert used.wait(60)
    assert told == [Verdict.NOT_RETRIEVED] * 3
    assert steps.waits[:3] == [5.0] * 3
    assert verdict(node, T2) == "OK"


def test_the_background_of_real_use_ends_when_it_is_closed(node: Coordinator) -> None:
    """Closed in the middle of a long wait it ends at once, and leaves no thread."""
    before = threading.active_count()
    background = Background(node, Settings(generation_retry_ms=600_000))
    with background:
        node.learn(NEW)
        assert threading.active_count() == before + 1
    assert threading.active_count() == before


def test_writers_and_the_background_share_a_coordinator(node: Coordinator, lake: Lake, clock: MovingClock) -> None:
    """Four threads write while generations are learnt and read: every write gets its own generation's stream."""
    clock.at(T2)
    wrong: list[str] = []
    go = threading.Event()

    def write() -> None:
        go.wait(60)
        try:
            wrong.extend({verdict(node, T2) for _ in range(300)} - {"OK", Verdict.NOT_RETRIEVED})
        except AssertionError as error:
            wrong.append(f"the stream of another generation: {error}")

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    node.learn(NEW)
    go.set()
    insert(lake, NEW)
    node.retry()
    for thread in threads:
        thread.join(60)
    assert wrong == []
    assert verdict(node, T2) == "OK"


def test_time_is_in_whole_milliseconds(lake: Lake, clock: MovingClock) -> None:
    """A kept ID comes back to the millisecond."""
    id = GenerationId(T1 + 123, UUID(int=5))
    row = {
        "host_id": str(HOST),
        "key": "cdc_local",
        "streams_timestamp": to_datetime(id.time_ms * 1000),
        "uuid": str(id.uuid),
    }
    lake.merge(CDC_LOCAL, pa.Table.from_pylist([row], schema=CDC_LOCAL.schema), update=True)
    assert own_generation(lake, HOST) == id
