"""A coordinator that learns of generations whose rows come late, in part, or never. Real rows; no Spark, no sleeps."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from functools import partial
from uuid import UUID

import pyarrow as pa
import pytest

from cdc_platform.clock import Clock, Microseconds, Milliseconds, format_ms, ms_from_us, us_from_ms
from cdc_platform.delta import Lake
from cdc_platform.errors import EnvironmentProblem, InputError, WriteRefused
from cdc_platform.generations import (
    LEEWAY_US,
    AcceptancePolicy,
    GenerationId,
    RingLayout,
    TopologyDescription,
    UndecidedSwitch,
    WriteVerdict,
    decide_write,
    generate_description,
)
from cdc_platform.metastore import cdc_local, generations
from cdc_platform.metastore.cdc_local import LocalDisk, read_node_generation_id
from cdc_platform.node.coordinator import Coordinator, RetryLoop
from cdc_platform.ring import Node, Ring
from cdc_platform.tables import CDC_LOCAL, GENERATION_DESCRIPTIONS, GENERATION_DESCRIPTIONS_V2

HOST = UUID(int=1)
T1, T2, T3 = Milliseconds(1_700_000_000_000), Milliseconds(1_700_000_600_000), Milliseconds(1_700_001_200_000)
OLD, NEW, NEWEST = (GenerationId(time, UUID(int=number)) for number, time in ((0xA, T1), (0xB, T2), (0xC, T3)))
RINGS = {
    OLD: Ring.of([Node(HOST, (-(2**62), 5, 2**61), 4, 12)]),
    NEW: Ring.of([Node(HOST, (-(2**62), 5, 2**61), 4, 12), Node(UUID(int=2), (0, 77), 3, 0)]),
    NEWEST: Ring.of([Node(HOST, (9,), 2, 0)]),
}


class MovingClock(Clock):
    """A clock that the test sets."""

    def __init__(self, now_ms: Milliseconds) -> None:
        super().__init__()
        object.__setattr__(self, "now", us_from_ms(now_ms))

    def at(self, now_ms: Milliseconds) -> None:
        """Set the clock."""
        object.__setattr__(self, "now", us_from_ms(now_ms))

    def now_us(self) -> Microseconds:
        return getattr(self, "now")  # noqa: B009


def description(id: GenerationId) -> TopologyDescription:
    """The description of one of the three generations."""
    assert id.uuid is not None
    return generate_description(RingLayout.of(RINGS[id]), id.uuid)


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


def coordinator(lake: Lake, clock: Clock, *, policy: AcceptancePolicy = "strict") -> Coordinator:
    """A node of the lake: it reads both formats there, and keeps its ID in its row of `cdc_local`."""
    reader = partial(generations.read_generation_description, lake)
    return Coordinator(HOST, reader, LocalDisk(lake, HOST), clock.now_us, policy=policy)


def verdict(node: Coordinator, at_ms: Milliseconds, token: int = 3) -> str:
    """OK if the write is taken, in the stream that its generation gives it; else why not."""
    try:
        stream = node.get_stream(us_from_ms(at_ms), token)
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
    node = coordinator(lake, clock)
    assert node.learn(OLD.gossip_text)
    return node


def test_rows_that_come_late(node: Coordinator, lake: Lake, clock: MovingClock) -> None:
    """Known and not there: its writes are refused, earlier ones are not; once it is there they are taken at once."""
    assert not node.learn(NEW.gossip_text)
    clock.at(Milliseconds(T2 - 1_000))
    assert [verdict(node, Milliseconds(at)) for at in (T2 - 1, T2)] == ["OK", WriteVerdict.NOT_RETRIEVED]
    clock.at(T2)
    assert node.retry() == 1
    assert verdict(node, T2) == WriteVerdict.NOT_RETRIEVED
    insert(lake, NEW)
    assert verdict(node, T2) == WriteVerdict.NOT_RETRIEVED
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
            node.get_stream(us_from_ms(T2), 3)
    insert(lake, NEW, slice(4, 5))
    assert node.retry() == 0
    assert verdict(node, T2) == "OK"


def test_rows_that_never_come(node: Coordinator, lake: Lake, clock: MovingClock) -> None:
    """It is tried until a later generation has operated for the leeway; then nobody needs it and it is given up."""
    insert(lake, NEWEST)
    node.learn(NEW)
    assert node.learn(NEWEST)
    clock.at(Milliseconds(T3 + 4_999))
    assert node.retry() == 1
    clock.at(Milliseconds(T3 + 5_000))
    assert node.retry() == 0
    assert node.pending() == []
    assert verdict(node, Milliseconds(T3 + 5_000)) == "OK"
    assert not node.learn(NEW)
    assert node.pending() == []


def test_every_attempt_is_counted_and_its_error_reported(node: Coordinator, clock: MovingClock) -> None:
    """What a person is shown: which generation is missing, how often it was tried, and why it failed."""
    node.learn(NEW)
    node.retry()
    (pending,) = node.pending()
    assert (pending.id, pending.attempts) == (NEW, 2)
    clock.at(T2)
    with pytest.raises(WriteRefused, match=r"tried 2 times, at last: generation .*-00000000000b has no V2"):
        node.get_stream(us_from_ms(T2), 3)


def test_a_read_that_fails_for_another_reason_is_tried_again(lake: Lake, clock: MovingClock) -> None:
    """A store that is away is no end: the same coordinator goes on once it is back."""
    answers: list[Exception | None] = [EnvironmentProblem("the store is away"), OSError("reset by peer"), None]

    def reader(id: GenerationId) -> TopologyDescription:
        error = answers.pop(0)
        if error is not None:
            raise error
        return description(id)

    node = Coordinator(HOST, reader, LocalDisk(lake, HOST), clock.now_us)
    assert not node.learn(OLD)
    assert node.retry() == 1
    assert node.retry() == 0
    assert verdict(node, T1) == "OK"


def test_before_any_generation_operates_the_first_usable_time_is_named(lake: Lake, clock: MovingClock) -> None:
    """The text that users search for, and from when on writes will work."""
    insert(lake, NEW)
    node = coordinator(lake, clock)
    with pytest.raises(WriteRefused, match=r"could not find any CDC stream .* no generation is known yet") as nothing:
        node.get_stream(us_from_ms(T1), 3)
    assert nothing.value.verdict == WriteVerdict.NO_STREAM
    node.learn(NEW)
    with pytest.raises(WriteRefused, match=f"could not find any CDC stream .* write from {format_ms(T2)} on"):
        node.get_stream(us_from_ms(T1), 3)
    assert node.decide(us_from_ms(T1)).first_usable_us == us_from_ms(T2)


def test_the_newest_id_is_stored_and_read_after_a_restart(node: Coordinator, lake: Lake, clock: MovingClock) -> None:
    """What was read is kept, an older one never replaces it; a restarted node starts from it."""
    assert read_node_generation_id(lake, HOST) == OLD
    insert(lake, NEWEST)
    insert(lake, NEW)
    node.learn(NEWEST)
    node.learn(NEW)
    assert read_node_generation_id(lake, HOST) == NEWEST
    assert lake.read(CDC_LOCAL).num_rows == 1
    clock.at(T3)
    again = coordinator(lake, clock)
    assert again.start() == NEWEST
    assert verdict(again, T3) == "OK"


def test_an_unreadable_id_is_not_stored(node: Coordinator, lake: Lake) -> None:
    """A node keeps what it can use: otherwise a restart would find an ID without data."""
    node.learn(NEW)
    assert read_node_generation_id(lake, HOST) == OLD
    insert(lake, NEW)
    node.retry()
    assert read_node_generation_id(lake, HOST) == NEW


def test_both_formats_are_learnt(lake: Lake, clock: MovingClock) -> None:
    """`<ms>` is a V1 ID whose data is one cell, `v2;<ms>;<uuid>` has rows; the empty text is no generation."""
    lake.merge(GENERATION_DESCRIPTIONS, generations.v1_cell_row(T1, description(OLD)), update=True)
    node = coordinator(lake, clock)
    assert not node.learn("")
    assert node.learn(str(T1))
    assert read_node_generation_id(lake, HOST) == GenerationId(T1)
    insert(lake, NEW)
    assert node.learn(f"v2;{T2};{NEW.uuid}")
    clock.at(T2)
    assert [verdict(node, T2), read_node_generation_id(lake, HOST)] == ["OK", NEW]
    with pytest.raises(InputError, match="not a generation ID: 'v3;1;2'"):
        node.learn("v3;1;2")


def test_a_node_that_stores_nothing_is_a_warning(
    lake: Lake, clock: MovingClock, caplog: pytest.LogCaptureFixture
) -> None:
    """As after an upgrade from before CDC: a warning, and no error; a row without a time counts as nothing."""
    lake.merge(
        CDC_LOCAL,
        cdc_local.cdc_local_rows([cdc_local.NodeLocalRow(str(HOST), cdc_local.GENERATION_KEY, None)]),
        update=True,
    )
    with caplog.at_level(logging.WARNING):
        assert coordinator(lake, clock).start() is None
    assert "keeps no generation ID" in caplog.text


def test_the_policy_that_is_handed_in_holds(lake: Lake, clock: MovingClock) -> None:
    """Under `recent-past` a fresh write to the generation before is taken, under `strict` it is not."""
    insert(lake, OLD)
    insert(lake, NEW)
    told = {}
    policies: tuple[AcceptancePolicy, ...] = ("strict", "recent-past")
    for policy in policies:
        node = coordinator(lake, clock, policy=policy)
        clock.at(T1)
        node.learn(OLD)
        node.learn(NEW)
        clock.at(Milliseconds(T2 + 1_000))
        told[policy] = verdict(node, Milliseconds(T2 - 1))
    assert told == {"strict": WriteVerdict.PAST, "recent-past": "OK"}


def test_the_background_tries_when_it_is_due(node: Coordinator, lake: Lake, clock: MovingClock) -> None:
    """Without a thread: an attempt every interval of the node's clock and none in between, until all is read."""
    background = RetryLoop(node, clock.now_us, threading.Event(), retry_us=Microseconds(5_000_000))
    assert background.step() is None
    clock.at(T2)
    node.learn(NEW)
    assert background.step() == (T2 + 5_000) * 1000
    told = []
    for after_ms, rows in ((4_999, slice(0, 0)), (5_000, slice(0, 4)), (9_999, slice(0, 0)), (10_000, slice(4, 5))):
        clock.at(Milliseconds(T2 + after_ms))
        if rows.stop:
            insert(lake, NEW, rows)
        due = background.step()
        told.append(
            (node.pending()[0].attempts if node.pending() else 0, None if due is None else ms_from_us(due) - T2)
        )
    assert told == [(1, 5_000), (2, 10_000), (2, 10_000), (0, None)]
    assert verdict(node, T2) == "OK"


@pytest.fixture
def in_a_thread() -> Iterator[Callable[[RetryLoop], threading.Thread]]:
    """Starts a background in a thread that is handed in; at the end of the test it is closed and the thread is gone."""
    started: list[tuple[RetryLoop, threading.Thread]] = []

    def start(background: RetryLoop) -> threading.Thread:
        thread = threading.Thread(target=background.run)
        thread.start()
        started.append((background, thread))
        return thread

    yield start
    for background, thread in started:
        background.close()
        thread.join(60)
        assert not thread.is_alive()


def test_a_thread_reads_until_it_succeeds(
    node: Coordinator, lake: Lake, clock: MovingClock, in_a_thread: Callable[[RetryLoop], threading.Thread]
) -> None:
    """In a thread that is handed in, woken by what is learnt: nothing there, a part, everything, and then no more."""
    clock.at(T2)
    parts = iter((slice(0, 4), slice(4, 5)))
    waits: list[float] = []
    told: list[str] = []

    class Steps(threading.Event):
        """A wait in which simulated time passes at once, and a part of the rows arrives; else a real wait."""

        def wait(self, timeout: float | None = None) -> bool:
            if not timeout:
                return super().wait(timeout)
            waits.append(timeout)
            told.append(verdict(node, T2))
            part = next(parts, None)
            if part is not None:
                insert(lake, NEW, part)
            clock.at(Milliseconds(Milliseconds(clock.now_ms() + round(timeout * 1000))))
            return True

    in_a_thread(RetryLoop(node, clock.now_us, Steps(), retry_us=Microseconds(5_000_000)))
    node.learn(NEW)
    for _ in range(600):
        if not node.pending():
            break
        threading.Event().wait(0.1)
    assert (waits, told) == ([5.0, 5.0], [WriteVerdict.NOT_RETRIEVED] * 2)
    assert verdict(node, T2) == "OK"


def test_a_background_ends_when_it_is_closed(
    node: Coordinator, clock: MovingClock, in_a_thread: Callable[[RetryLoop], threading.Thread]
) -> None:
    """Closed in the middle of a long wait it ends at once; it starts no thread by itself."""
    before = threading.active_count()
    background = RetryLoop(node, clock.now_us, threading.Event(), retry_us=Microseconds(600_000_000))
    assert threading.active_count() == before
    thread = in_a_thread(background)
    node.learn(NEW)
    assert thread.is_alive()
    background.close()
    thread.join(60)
    assert not thread.is_alive()


SWITCH = UndecidedSwitch(str(NEW.uuid), us_from_ms(T1), us_from_ms(Milliseconds(T1 + 65_000)))
"""A switch to NEW, whose first lease ends 65 s after T1."""


def test_what_needs_a_decision_is_refused_until_it_is_known(node: Coordinator, lake: Lake, clock: MovingClock) -> None:
    """UNDECIDED from the lease end on and not a microsecond before, whatever else the rule says comes first."""
    node.wait_for(SWITCH)
    clock.at(Milliseconds(T1 + 70_000))
    told = [verdict(node, Milliseconds(at)) for at in (T1 - 1, T1 + 64_999, T1 + 65_000, T1 + 74_999, T1 + 75_000)]
    assert told == [WriteVerdict.PAST, "OK", WriteVerdict.UNDECIDED, WriteVerdict.UNDECIDED, WriteVerdict.FUTURE]
    with pytest.raises(WriteRefused, match="a generation switch is undecided since 2023-11-14T22:13:20"):
        node.get_stream(SWITCH.lease_end_us, 3)
    assert node.get_stream(Microseconds(SWITCH.lease_end_us - 1), 3)


def test_an_aborted_switch_blocks_nothing(node: Coordinator, clock: MovingClock) -> None:
    """The old generation goes on at once; of two switches the other is still waited for."""
    node.wait_for(SWITCH)
    node.wait_for(UndecidedSwitch("other", us_from_ms(T1), us_from_ms(Milliseconds(T1 + 68_000))))
    clock.at(Milliseconds(T1 + 70_000))
    node.aborted(SWITCH.generation_id)
    assert [verdict(node, Milliseconds(T1 + after)) for after in (65_000, 67_999, 68_000)] == [
        "OK",
        "OK",
        WriteVerdict.UNDECIDED,
    ]
    node.aborted("other")
    assert verdict(node, Milliseconds(T1 + 68_000)) == "OK"


def test_a_switch_that_is_committed_moves_on_without_a_gap(node: Coordinator, lake: Lake, clock: MovingClock) -> None:
    """Its ID is the decision: from its timestamp on the new one, refused until it is read; the old one before."""
    node.wait_for(SWITCH)
    clock.at(T2)
    assert verdict(node, Milliseconds(T2 - 1)) == WriteVerdict.UNDECIDED
    assert not node.learn(NEW.gossip_text)
    clock.at(Milliseconds(T2 - 1_000))
    assert [verdict(node, Milliseconds(at)) for at in (T2 - 1, T2)] == ["OK", WriteVerdict.NOT_RETRIEVED]
    insert(lake, NEW)
    assert node.retry() == 0
    assert [verdict(node, Milliseconds(at)) for at in (T2 - 1, T2)] == ["OK", "OK"]


def test_a_promise_survives_a_restart_and_is_not_moved(lake: Lake, clock: MovingClock) -> None:
    """Handed in again it holds again; promised again with a later lease, the first one counts."""
    insert(lake, OLD)
    reader = partial(generations.read_generation_description, lake)
    node = Coordinator(HOST, reader, LocalDisk(lake, HOST), clock.now_us, undecided=[SWITCH])
    node.learn(OLD)
    node.wait_for(UndecidedSwitch(SWITCH.generation_id, SWITCH.since_us, Microseconds(SWITCH.lease_end_us + 1_000_000)))
    clock.at(Milliseconds(T1 + 70_000))
    assert [verdict(node, Milliseconds(T1 + after)) for after in (64_999, 65_000)] == ["OK", WriteVerdict.UNDECIDED]


@pytest.mark.parametrize("policy", ["strict", "recent-past"])
def test_a_coordinator_decides_by_the_one_rule(lake: Lake, clock: MovingClock, policy: AcceptancePolicy) -> None:
    """With and without a switch that is undecided, at every edge, it says what the rule says of the same facts."""
    for id in (OLD, NEW):
        insert(lake, id)
    node = coordinator(lake, clock, policy=policy)
    for id in (OLD, NEW):
        node.learn(id)
    later = UndecidedSwitch("later", us_from_ms(T2), us_from_ms(Milliseconds(T2 + 65_000)))
    facts = {"leeway_us": LEEWAY_US, "policy": policy}
    for waiting in ([], [later]):
        for switch in waiting:
            node.wait_for(switch)
        for now_ms in (T2 - 1, T2, T2 + 4_999, T2 + 5_000, T2 + 65_000, T2 + 70_001):
            clock.at(Milliseconds(now_ms))
            edges = {T1, T2, now_ms, now_ms - 5_000, now_ms + 5_000, T2 + 65_000}
            for at_us in map(Microseconds, sorted(edge * 1000 + near for edge in edges for near in (-1, 0, 1))):
                expected = decide_write(
                    [Microseconds(us_from_ms(T1)), Microseconds(us_from_ms(T2))],
                    at_us,
                    us_from_ms(Milliseconds(now_ms)),
                    undecided=waiting,
                    **facts,
                )
                assert node.decide(at_us) == expected


def test_writers_and_the_background_share_a_coordinator(node: Coordinator, lake: Lake, clock: MovingClock) -> None:
    """Four threads write while generations are learnt and read: every write gets its own generation's stream."""
    clock.at(T2)
    wrong: list[str] = []
    go = threading.Event()

    def write() -> None:
        go.wait(60)
        try:
            wrong.extend({verdict(node, T2) for _ in range(300)} - {"OK", WriteVerdict.NOT_RETRIEVED})
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
    id = GenerationId(Milliseconds(T1 + 123), UUID(int=5))
    assert cdc_local.store_node_generation_id(lake, HOST, id)
    assert read_node_generation_id(lake, HOST) == id
