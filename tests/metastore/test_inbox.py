"""The inbox of join requests: their order, conflicts and completion. No Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from support.nodes import node_fields

from cdc_platform.clock import Clock, Microseconds, datetime_from_us
from cdc_platform.delta import Lake
from cdc_platform.errors import InputError, NotFound, StateError
from cdc_platform.metastore import JoinRequest, inbox, write_nodes
from cdc_platform.tables import BOOTSTRAP_EVENTS, GENERATIONS

NOON = Clock(stopped_at_us=Microseconds(1_700_000_000_000_000))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Return a new lake."""
    return Lake(tmp_path / "lake")


def join_request(number: int, tokens: list[int] | None = None) -> JoinRequest:
    """Return the join request of node `number` with its tokens, by default the one 100 times its number."""
    return JoinRequest.model_validate_json(json.dumps(node_fields(number, tokens=tokens or [number * 100])))


def store_generation(lake: Lake, event: inbox.BootstrapEvent, *, published: bool = True) -> None:
    """Store the event's generation in the ledger, as introducing and publishing do."""
    row = {
        "generation_id": event.generation_id,
        "time": datetime_from_us(NOON.now_us()),
        "host_id": str(event.node.host_id),
        "event_id": event.event_id,
        "num_ranges": 1,
        "num_streams": 2,
        "created_at": datetime_from_us(NOON.now_us()),
        "published_at": datetime_from_us(NOON.now_us()) if published else None,
    }
    lake.merge(GENERATIONS, pa.Table.from_pylist([row], schema=GENERATIONS.schema), update=True)


def test_the_same_request_is_the_same_event(lake: Lake) -> None:
    """A bootstrap that is interrupted and started again reuses its event and its generation."""
    first = inbox.queue_join(lake, NOON, join_request(1))
    version = lake.version(BOOTSTRAP_EVENTS)
    assert inbox.queue_join(lake, Clock(), join_request(1)) == first
    assert lake.version(BOOTSTRAP_EVENTS) == version
    assert lake.read(BOOTSTRAP_EVENTS).num_rows == 1


def test_the_order_of_the_inbox_survives_a_stopped_clock(lake: Lake) -> None:
    """Events queued at one stopped time are processed in the order of their arrival."""
    queued = [inbox.queue_join(lake, NOON, join_request(number)).event_id for number in (5, 3, 9, 1)]
    assert [join.event_id for join in inbox.read_pending_events(lake)] == queued


def test_a_host_cannot_wait_twice_with_other_content(lake: Lake) -> None:
    """A waiting host cannot be queued again with other tokens."""
    inbox.queue_join(lake, NOON, join_request(1))
    with pytest.raises(InputError, match="other content"):
        inbox.queue_join(lake, NOON, join_request(1, tokens=[7]))


def test_a_token_of_a_waiting_node_is_refused(lake: Lake) -> None:
    """A second waiting node with the same token is refused, since both could never join; the error names the owner."""
    inbox.queue_join(lake, NOON, join_request(1))
    with pytest.raises(InputError, match=r"token 100 .*0001"):
        inbox.queue_join(lake, NOON, join_request(2, tokens=[5, 100]))
    assert lake.read(BOOTSTRAP_EVENTS).num_rows == 1


def test_a_token_of_the_ring_is_refused(lake: Lake) -> None:
    """A joining node cannot bring a token that a node of the ring owns."""
    event = inbox.queue_join(lake, NOON, join_request(1))
    write_nodes(lake, [replace(event.node, status="NORMAL")])
    store_generation(lake, event)
    with pytest.raises(InputError, match="token 100"):
        inbox.queue_join(lake, NOON, join_request(2, tokens=[100]))


def test_drawn_tokens_are_stored_and_unowned(lake: Lake) -> None:
    """A request for a number of tokens draws them once and stores them."""
    inbox.queue_join(lake, NOON, join_request(1))
    drawn = inbox.queue_join(lake, NOON, drawn_request(256))
    assert len(set(drawn.node.tokens)) == 256
    assert inbox.queue_join(lake, NOON, drawn_request(256)) == drawn


def drawn_request(count: int) -> JoinRequest:
    """Return the request of node 2 for `count` tokens that the platform draws."""
    fields = json.loads(join_request(2).model_dump_json(exclude={"tokens", "num_tokens"})) | {"num_tokens": count}
    return JoinRequest.model_validate_json(json.dumps(fields))


def test_only_the_oldest_unfinished_join_may_run(lake: Lake) -> None:
    """Joins run one at a time; the error names the one that blocks."""
    first, second = (inbox.queue_join(lake, NOON, join_request(number)) for number in (1, 2))
    inbox.assert_next_event(lake, first.generation_id)
    with pytest.raises(StateError, match=first.event_id):
        inbox.assert_next_event(lake, second.generation_id)
    store_generation(lake, first, published=False)
    with pytest.raises(StateError, match=first.event_id):
        inbox.assert_next_event(lake, second.generation_id)
    store_generation(lake, first)
    inbox.assert_next_event(lake, second.generation_id)
    inbox.assert_next_event(lake, first.generation_id)


def test_a_join_that_is_to_run_now_is_not_queued_behind_another(lake: Lake) -> None:
    """An immediate join behind another is refused and leaves nothing behind; the blocking join may be run again."""
    first = inbox.queue_join(lake, NOON, join_request(1), to_run_now=True)
    with pytest.raises(StateError, match=first.event_id):
        inbox.queue_join(lake, NOON, join_request(2), to_run_now=True)
    assert inbox.queue_join(lake, NOON, join_request(1), to_run_now=True) == first
    assert lake.read(BOOTSTRAP_EVENTS).num_rows == 1


def test_a_ring_too_large_is_refused_before_tokens_are_drawn(lake: Lake) -> None:
    """A generation has at most 4,194,304 ranges, counting the ring's own tokens as well as the request's."""
    inbox.queue_join(lake, NOON, join_request(1))
    with pytest.raises(InputError, match="4194304 ranges"):
        inbox.queue_join(lake, NOON, drawn_request(4_194_304))


def test_a_withdrawn_join_unblocks_the_queue(lake: Lake) -> None:
    """A join that cannot continue can be withdrawn; later ones then run, and the node may be queued again."""
    first, second = (inbox.queue_join(lake, NOON, join_request(number)) for number in (1, 2))
    inbox.withdraw_event(lake, NOON, first.event_id)
    inbox.withdraw_event(lake, NOON, first.event_id)
    inbox.assert_next_event(lake, second.generation_id)
    with pytest.raises(StateError, match="withdrawn"):
        inbox.assert_next_event(lake, first.generation_id)
    requeued = inbox.queue_join(lake, NOON, join_request(1))
    assert requeued.event_id != first.event_id
    assert requeued.generation_id != first.generation_id
    assert [join.event_id for join in inbox.read_pending_events(lake)] == [second.event_id, requeued.event_id]


def test_a_join_with_a_timestamp_cannot_be_withdrawn(lake: Lake) -> None:
    """Once nodes may know the generation, the join must be finished."""
    event = inbox.queue_join(lake, NOON, join_request(1))
    store_generation(lake, event, published=False)
    with pytest.raises(StateError, match="cannot be withdrawn"):
        inbox.withdraw_event(lake, NOON, event.event_id)


def test_an_unknown_event_is_named(lake: Lake) -> None:
    """The error names the unknown event ID."""
    with pytest.raises(NotFound, match="event_id nobody"):
        inbox.find_event(lake, event_id="nobody")


QUEUE = """
import sys
from cdc_platform.clock import Clock, datetime_from_us
from cdc_platform.delta.lake import Lake
from cdc_platform.metastore import inbox
from cdc_platform.metastore.ring import write_nodes
from cdc_platform.metastore.join_request import JoinRequest
sys.stdin.readline()
print(inbox.queue_join(Lake(sys.argv[1]), Clock(), JoinRequest.model_validate_json(sys.argv[2])).generation_id)
"""


def test_processes_that_queue_one_request_at_once_agree(lake: Lake) -> None:
    """Several processes that queue the same node at the same moment get one event, one generation and no error."""
    command = [sys.executable, "-c", QUEUE, str(lake.root), join_request(1).model_dump_json(exclude_none=True)]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [process.communicate(timeout=60)[0].strip() for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert len(set(answers)) == 1
    assert lake.read(BOOTSTRAP_EVENTS).num_rows == 1
