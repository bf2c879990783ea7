"""A coordinator learns of generations whose rows arrive late, partially or never. Real rows; no Spark, no sleeps."""

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


def describe(id: GenerationId) -> TopologyDescription:
    """Return the description of one of the three generations."""
    assert id.uuid is not None
    return generate_description(RingLayout.of(RINGS[id]), id.uuid)


def insert(lake: Lake, id: GenerationId, rows: slice = slice(None)) -> None:
    """Insert all or some V2 rows of a generation."""
    whole = describe(id)
    entries = [whole.entry(row) for row in range(len(whole))[rows]]
    table = [
        {
            "id": str(id.uuid),
            "range_end": entry.range_end,
            "ignore_msb": entry.ignore_msb,
            "num_ranges": len(whole),
            "streams": [stream.tobytes() for stream in entry.streams],
        }
        for entry in entries
    ]
    lake.merge(GENERATION_DESCRIPTIONS_V2, pa.Table.from_pylist(table), update=False)


def coordinator(lake: Lake, clock: Clock, *, policy: AcceptancePolicy = "strict") -> Coordinator:
    """Return a node that reads both formats from the lake and stores its ID in its row of `cdc_local`."""
    reader = partial(generations.read_generation_description, lake)
    return Coordinator(HOST, reader, LocalDisk(lake, HOST), clock.now_us, policy=policy)


def verdict(node: Coordinator, at_ms: Milliseconds, token: int = 3) -> str:
    """Return OK if the write gets its generation's stream, otherwise the reason."""
    try:
        stream = node.get_stream(us_from_ms(at_ms), token)
    except WriteRefused as refused:
        return refused.verdict
    generation = max((id for id in RINGS if id.time_ms <= at_ms), key=lambda id: id.time_ms)
    assert stream == describe(generation).streams_of(token)[0].tobytes()
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


def test_late_rows(node: Coordinator, lake: Lake, clock: MovingClock) -> None:
    """Writes to a known generation without rows are refused and earlier writes accepted, until the rows arrive."""
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


def test_rows_that_arrive_one_by_one(node: Coordinator, lake: Lake, clock: MovingClock) -> None:
    """A generation with a missing row is not used; the refusal has the number of present rows."""
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


def test_rows_that_never_arrive(node: Coordinator, lake: Lake, clock: MovingClock) -> None:
    """Retries end once a later generation has operated for the leeway, because no write needs the missing one."""
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
    """A person sees the missing generation, the number of attempts, and the last error."""
    node.learn(NEW)
    node.retry()
    (pending,) = node.pending()
    assert (pending.id, pending.attempts) == (NEW, 2)
    clock.at(T2)
    with pytest.raises(WriteRefused, match=r"tried 2 times, at last: generation .*-00000000000b has no V2"):
        node.get_stream(us_from_ms(T2), 3)


def test_a_read_that_fails_for_another_reason_is_retried(lake: Lake, clock: MovingClock) -> None:
    """If the store is unavailable, the coordinator continues once it is back."""
    answers: list[Exception | None] = [EnvironmentProblem("the store is away"), OSError("reset by peer"), None]

    def reader(id: GenerationId) -> TopologyDescription:
        error = answers.pop(0)
        if error is not None:
            raise error
        return describe(id)

    node = Coordinator(HOST, reader, LocalDisk(lake, HOST), clock.now_us)
    assert not node.learn(OLD)
    assert node.retry() == 1
    assert node.retry() == 0
    assert verdict(node, T1) == "OK"


def test_before_any_generation_operates_the_first_usable_time_is_named(lake: Lake, clock: MovingClock) -> None:
    """The message has the text that users search for, and the first usable time."""
    insert(lake, NEW)
    node = coordinator(lake, clock)
    with pytest.raises(WriteRefused, match=r"could not find any CDC stream .* no generation is known yet") as refused:
        node.get_stream(us_from_ms(T1), 3)
    assert refused.value.verdict == WriteVerdict.NO_STREAM
    node.learn(NEW)
    with pytest.raises(WriteRefused, match=f"could not find any CDC stream .* write from {format_ms(T2)} on"):
        node.get_stream(us_from_ms(T1), 3)
    assert node.decide(us_from_ms(T1)).first_usable_us == us_from_ms(T2)


def test_the_newest_id_is_stored_and_read_after_a_restart(node: Coordinator, lake: Lake, clock: MovingClock) -> None:
    """The newest read generation is stored and never replaced by an older one; a restart uses it."""
    assert read_node_generation_id(lake, HOST) == OLD
    insert(lake, NEWEST)
    insert(lake, NEW)
    node.learn(NEWEST)
    node.learn(NEW)
    assert read_node_generation_id(lake, HOST) == NEWEST
    assert lake.read(CDC_LOCAL).num_rows == 1
    clock.at(T3)
    restarted = coordinator(lake, clock)
    assert restarted.start() == NEWEST
    assert verdict(restarted, T3) == "OK"


def test_an_unreadable_id_is_not_stored(node: Coordinator, lake: Lake) -> None:
    """A node stores only an ID that it could read, so a restart finds no ID without data."""
    node.learn(NEW)
    assert read_node_generation_id(lake, HOST) == OLD
    insert(lake, NEW)
    node.retry()
    assert read_node_generation_id(lake, HOST) == NEW


def test_both_formats_are_learnt(lake: Lake, clock: MovingClock) -> None:
    """`<ms>` is a V1 ID with a cell, `v2;<ms>;<uuid>` has rows, and the empty text is no generation."""
    lake.merge(GENERATION_DESCRIPTIONS, generations.v1_cell_row(T1, describe(OLD)), update=True)
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


def test_a_node_without_a_stored_id_causes_a_warning(
    lake: Lake, clock: MovingClock, caplog: pytest.LogCaptureFixture
) -> None:
    """After an upgrade from before CDC, a start warns without an error; a row without a time counts as none."""
    lake.merge(
        CDC_LOCAL,
        cdc_local.cdc_local_rows([cdc_local.NodeLocalRow(str(HOST), cdc_local.GENERATION_KEY, None)]),
        update=True,
    )
    with caplog.at_level(logging.WARNING):
        assert coordinator(lake, clock).start() is None
    assert "keeps no generation ID" in caplog.text


def test_the_given_policy_applies(lake: Lake, clock: MovingClock) -> None:
    """`recent-past` accepts a recent write to the previous generation; `strict` does not."""
    insert(lake, OLD)
    insert(lake, NEW)
    verdicts = {}
    policies: tuple[AcceptancePolicy, ...] = ("strict", "recent-past")
    for policy in policies:
        node = coordinator(lake, clock, policy=policy)
        clock.at(T1)
        node.learn(OLD)
        node.learn(NEW)
        clock.at(Milliseconds(T2 + 1_000))
        verdicts[policy] = verdict(node, Milliseconds(T2 - 1))
    assert verdicts == {"strict": WriteVerdict.PAST, "recent-past": "OK"}


def test_the_retry_loop_attempts_at_its_interval(node: Coordinator, lake: Lake, clock: MovingClock) -> None:
    """Without a thread, one attempt per interval of the node's clock, until all is read."""
    loop = RetryLoop(node, clock.now_us, threading.Event(), retry_us=Microseconds(5_000_000))
    assert loop.step() is None
    clock.at(T2)
    node.learn(NEW)
    assert loop.step() == (T2 + 5_000) * 1000
    progress = []
    for after_ms, rows in ((4_999, slice(0, 0)), (5_000, slice(0, 4)), (9_999, slice(0, 0)), (10_000, slice(4, 5))):
        clock.at(Milliseconds(T2 + after_ms))
        if rows.stop:
            insert(lake, NEW, rows)
        due = loop.step()
        progress.append(
            (node.pending()[0].attempts if node.pending() else 0, None if due is None else ms_from_us(due) - T2)
        )
    assert progress == [(1, 5_000), (2, 10_000), (2, 10_000), (0, None)]
    assert verdict(node, T2) == "OK"


@pytest.fixture
def in_a_thread() -> Iterator[Callable[[RetryLoop], threading.Thread]]:
    """Start a retry loop in a thread; close the loop and join the thread at the end of the test."""
    started: list[tuple[RetryLoop, threading.Thread]] = []

    def start(loop: RetryLoop) -> threading.Thread:
        thread = threading.Thread(target=loop.run)
        thread.start()
        started.append((loop, thread))
        return thread

    yield start
    for loop, thread in started:
        loop.close()
        thread.join(60)
        assert not thread.is_alive()


def test_a_thread_reads_until_it_succeeds(
    node: Coordinator, lake: Lake, clock: MovingClock, in_a_thread: Callable[[RetryLoop], threading.Thread]
) -> None:
    """In a thread, a learned ID wakes the loop, which reads until all rows exist, and then stops."""
    clock.at(T2)
    parts = iter((slice(0, 4), slice(4, 5)))
    waits: list[float] = []
    verdicts: list[str] = []

    class Steps(threading.Event):
        """A wait that advances simulated time at once and inserts some rows; without a timeout, a real wait."""

        def wait(self, timeout: float | None = None) -> bool:
            if not timeout:
                return super().wait(timeout)
            waits.append(timeout)
            verdicts.append(verdict(node, T2))
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
    assert (waits, verdicts) == ([5.0, 5.0], [WriteVerdict.NOT_RETRIEVED] * 2)
    assert verdict(node, T2) == "OK"


def test_a_retry_loop_ends_when_it_is_closed(
    node: Coordinator, clock: MovingClock, in_a_thread: Callable[[RetryLoop], threading.Thread]
) -> None:
    """A loop that is closed during a long wait ends at once; it starts no thread itself."""
    before = threading.active_count()
    loop = RetryLoop(node, clock.now_us, threading.Event(), retry_us=Microseconds(600_000_000))
    assert threading.active_count() == before
    thread = in_a_thread(loop)
    node.learn(NEW)
    assert thread.is_alive()
    loop.close()
    thread.join(60)
    assert not thread.is_alive()


SWITCH = UndecidedSwitch(str(NEW.uuid), us_from_ms(T1), us_from_ms(Milliseconds(T1 + 65_000)))
"""A switch to NEW, whose first lease ends 65 s after T1."""


def test_writes_are_undecided_from_the_lease_end_on(node: Coordinator, lake: Lake, clock: MovingClock) -> None:
    """UNDECIDED starts exactly at the lease end, after every other reason of the rule."""
    node.wait_for(SWITCH)
    clock.at(Milliseconds(T1 + 70_000))
    verdicts = [verdict(node, Milliseconds(at)) for at in (T1 - 1, T1 + 64_999, T1 + 65_000, T1 + 74_999, T1 + 75_000)]
    assert verdicts == [WriteVerdict.PAST, "OK", WriteVerdict.UNDECIDED, WriteVerdict.UNDECIDED, WriteVerdict.FUTURE]
    with pytest.raises(WriteRefused, match="a generation switch is undecided since 2023-11-14T22:13:20"):
        node.get_stream(SWITCH.lease_end_us, 3)
    assert node.get_stream(Microseconds(SWITCH.lease_end_us - 1), 3)


def test_an_aborted_switch_blocks_nothing(node: Coordinator, clock: MovingClock) -> None:
    """The old generation continues at once, while another undecided switch still applies."""
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


def test_a_committed_switch_leaves_no_gap(node: Coordinator, lake: Lake, clock: MovingClock) -> None:
    """From its timestamp on, the new generation applies and is refused until read; before it, the old one."""
    node.wait_for(SWITCH)
    clock.at(T2)
    assert verdict(node, Milliseconds(T2 - 1)) == WriteVerdict.UNDECIDED
    assert not node.learn(NEW.gossip_text)
    clock.at(Milliseconds(T2 - 1_000))
    assert [verdict(node, Milliseconds(at)) for at in (T2 - 1, T2)] == ["OK", WriteVerdict.NOT_RETRIEVED]
    insert(lake, NEW)
    assert node.retry() == 0
    assert [verdict(node, Milliseconds(at)) for at in (T2 - 1, T2)] == ["OK", "OK"]


def test_a_promise_survives_a_restart_unchanged(lake: Lake, clock: MovingClock) -> None:
    """A promise given to a restarted node applies; a second promise with a later lease does not replace it."""
    insert(lake, OLD)
    reader = partial(generations.read_generation_description, lake)
    node = Coordinator(HOST, reader, LocalDisk(lake, HOST), clock.now_us, undecided=[SWITCH])
    node.learn(OLD)
    node.wait_for(UndecidedSwitch(SWITCH.generation_id, SWITCH.since_us, Microseconds(SWITCH.lease_end_us + 1_000_000)))
    clock.at(Milliseconds(T1 + 70_000))
    assert [verdict(node, Milliseconds(T1 + after)) for after in (64_999, 65_000)] == ["OK", WriteVerdict.UNDECIDED]


@pytest.mark.parametrize("policy", ["strict", "recent-past"])
def test_a_coordinator_decides_by_the_one_rule(lake: Lake, clock: MovingClock, policy: AcceptancePolicy) -> None:
    """At every edge, with and without an undecided switch, the decision equals that of the rule."""
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


def test_writers_and_a_reader_share_a_coordinator(node: Coordinator, lake: Lake, clock: MovingClock) -> None:
    """Four threads write while a generation is learned and read; every write gets its own generation's stream."""
    clock.at(T2)
    wrong: list[str] = []
    start = threading.Event()

    def write() -> None:
        start.wait(60)
        try:
            wrong.extend({verdict(node, T2) for _ in range(300)} - {"OK", WriteVerdict.NOT_RETRIEVED})
        except AssertionError as error:
            wrong.append(f"the stream of another generation: {error}")

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    node.learn(NEW)
    start.set()
    insert(lake, NEW)
    node.retry()
    for thread in threads:
        thread.join(60)
    assert wrong == []
    assert verdict(node, T2) == "OK"


def test_ids_have_whole_milliseconds(lake: Lake, clock: MovingClock) -> None:
    """A stored ID is read with its exact millisecond."""
    id = GenerationId(Milliseconds(T1 + 123), UUID(int=5))
    assert cdc_local.store_node_generation_id(lake, HOST, id)
    assert read_node_generation_id(lake, HOST) == id
