"""The stream of a write and whether it is accepted, from rows in the lake, compared with the oracle.

No Spark, no JVM.
"""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from support.oracles import oracle

from cdc_platform.clock import Milliseconds, datetime_from_ms, format_ms, us_from_ms
from cdc_platform.delta import Lake, stream_lists_to_arrow
from cdc_platform.generations import RingLayout, WriteVerdict, generate_description
from cdc_platform.metastore import write_nodes
from cdc_platform.ring import FIRST_TOKEN, LAST_TOKEN, Node, Ring
from cdc_platform.settings import Policy
from cdc_platform.tables import (
    GENERATION_DESCRIPTIONS_V2,
    GENERATION_TIMESTAMPS,
    GENERATIONS,
    STREAMS_DESCRIPTIONS_V2,
    UNORDERED_RANGES,
)
from cdc_platform.timeline import StreamSources, VnodeExplanation

OLD, NEW = UUID(int=0xA), UUID(int=0xB)
T1, T2 = Milliseconds(1_700_000_000_000), Milliseconds(1_700_000_600_000)
HOSTS = [Node(UUID(int=1), (-(2**62), 5, 2**61), 4, 12), Node(UUID(int=2), (0, 77), 3, 0)]


def write_generation(
    lake: Lake, generation_id: UUID, nodes: list[Node], time_ms: Milliseconds, *, rows: slice = slice(None)
) -> None:
    """Store a generation in the lake as publishing does; `rows` selects the V2 rows to store."""
    created = generate_description(RingLayout.of(Ring.of(nodes)), generation_id)
    count = len(created)
    streams = stream_lists_to_arrow(created.stream_counts, created.streams)
    v2 = pa.table(
        {
            "id": pa.array([str(generation_id)] * count),
            "range_end": pa.array(created.range_ends),
            "ignore_msb": pa.array(created.ignore_msbs.astype(np.int8)),
            "num_ranges": pa.array(np.full(count, count, dtype=np.int32)),
            "streams": streams,
        }
    )
    when = datetime_from_ms(time_ms)
    ledger = {
        "generation_id": str(generation_id),
        "time": when,
        "num_ranges": count,
        "num_streams": len(created.streams),
        "created_at": when,
    }
    lake.merge(
        GENERATION_DESCRIPTIONS_V2,
        pa.Table.from_batches(v2.to_batches()).take(pa.array(range(count)[rows])),
        update=False,
    )
    lake.merge(GENERATIONS, pa.Table.from_pylist([ledger]), update=False)
    published = pa.table({"time": pa.array([when] * count), "range_end": v2["range_end"], "streams": streams})
    lake.merge(STREAMS_DESCRIPTIONS_V2, published, update=False)
    lake.merge(GENERATION_TIMESTAMPS, pa.Table.from_pylist([{"key": "timestamps", "time": when}]), update=False)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Return a lake with two generations and a ring of two nodes."""
    lake = Lake(tmp_path / "lake")
    write_generation(lake, OLD, HOSTS[:1], T1)
    write_generation(lake, NEW, HOSTS, T2)
    write_nodes(lake, HOSTS)
    return lake


def explain_write(
    lake: Lake, token: int, at_ms: Milliseconds, now_ms: Milliseconds, policy: Policy = "strict"
) -> VnodeExplanation:
    """Explain a write of `token` with timestamp `at_ms` when the clock shows `now_ms`."""
    return StreamSources(lake).generations.explain(token, us_from_ms(at_ms), us_from_ms(now_ms), policy)


@pytest.mark.parametrize(
    "token", [FIRST_TOKEN, -(2**62), -(2**62) + 1, -1, 0, 1, 5, 6, 77, 78, 2**61, 2**61 + 1, LAST_TOKEN]
)
def test_the_stream_is_the_one_that_the_rules_give(lake: Lake, token: int) -> None:
    """Range, owner, shard and stream agree with the oracle on both sides of every range end, also across the wrap."""
    explanation = explain_write(lake, token, Milliseconds(T2 + 1), Milliseconds(T2 + 1))
    tokens = {token: node for node in HOSTS for token in node.tokens}
    ends = sorted(tokens)
    row = next((i for i, end in enumerate(ends) if end >= token), 0)
    owner = tokens[ends[row]]
    shard = oracle.shard_of(token, owner.shard_count, owner.ignore_msb)
    expected = generate_description(RingLayout.of(Ring.of(HOSTS)), NEW).entry(row)
    placement = explanation.place
    assert placement is not None
    assert explanation.accepted
    assert (placement.range_start, placement.range_end, placement.vnode_index) == (ends[row - 1], ends[row], row)
    assert (placement.owner, placement.shard) == (str(owner.host_id), shard)
    assert placement.stream_id == expected.streams[shard].tobytes()


def test_the_timestamp_of_the_write_chooses_the_generation(lake: Lake) -> None:
    """The old generation takes a write a millisecond before the switch, the new one takes a write at the switch."""
    for at, generation in ((T2 - 1, OLD), (T2, NEW)):
        explanation = explain_write(lake, 3, Milliseconds(at), Milliseconds(at))
        assert explanation.generation is not None
        assert explanation.generation.id == str(generation)
        assert explanation.accepted


def test_a_write_before_the_current_generation_is_refused_but_explained(lake: Lake) -> None:
    """The strict policy refuses an earlier write; the explanation still names the stream that it would have got."""
    explanation = explain_write(lake, 3, Milliseconds(T2 - 1), Milliseconds(T2 + 1))
    assert (explanation.verdict, explanation.generation and explanation.generation.id) == (WriteVerdict.PAST, str(OLD))
    assert explanation.place is not None
    assert explanation.place.stream_id is not None
    assert explain_write(lake, 3, Milliseconds(T2 - 1), Milliseconds(T2 + 1), "recent-past").accepted


def test_the_leeway_is_half_open_under_the_strict_policy(lake: Lake) -> None:
    """The strict policy refuses a write at the clock plus the leeway; the later policy accepts it."""
    assert explain_write(lake, 3, Milliseconds(T2 + 5_000), T2).verdict is WriteVerdict.FUTURE
    assert explain_write(lake, 3, Milliseconds(T2 + 4_999), T2).accepted
    assert explain_write(lake, 3, Milliseconds(T2 + 5_000), T2, "recent-past").accepted


def test_before_the_first_generation_the_first_usable_time_is_named(lake: Lake) -> None:
    """The message is the one that users search for, with the time at which writes will be accepted."""
    explanation = explain_write(lake, 3, Milliseconds(T1 - 1), Milliseconds(T1 - 1))
    assert (explanation.verdict, explanation.generation, explanation.place) == (WriteVerdict.NO_STREAM, None, None)
    assert "could not find any CDC stream" in explanation.reason
    assert format_ms(T1) in explanation.reason


def test_an_empty_lake_has_an_answer(tmp_path: Path) -> None:
    """In an empty lake the write is refused, without an error."""
    explanation = explain_write(Lake(tmp_path), 3, T1, T1)
    assert explanation.verdict is WriteVerdict.NO_STREAM
    assert "let a node join" in explanation.reason


def test_a_partial_generation_refuses_the_writes_that_need_it(tmp_path: Path) -> None:
    """If rows of the newest generation are missing, its writes are refused and the message counts the rows."""
    lake = Lake(tmp_path / "lake")
    write_generation(lake, OLD, HOSTS[:1], T1)
    write_generation(lake, NEW, HOSTS, T2, rows=slice(0, 4))
    explanation = explain_write(lake, 3, T2, T2)
    assert explanation.verdict is WriteVerdict.NOT_RETRIEVED
    assert explanation.place is None
    assert "num_ranges claims 5 rows, 4 are there" in (explanation.note or "")
    assert explain_write(lake, 3, Milliseconds(T2 - 1), Milliseconds(T2 - 1)).accepted


def test_a_range_of_unknown_order_names_no_shard_where_the_order_decides_it(tmp_path: Path) -> None:
    """Where two shards' streams have the range end's token, no shard is named; other tokens of the range have one."""
    lake = Lake(tmp_path / "lake")
    end = oracle.shard_starts(3, 0)[2] - 2**63
    write_generation(lake, NEW, [Node(UUID(int=1), (end - 10, end), 3, 0)], T2)
    mark = {
        "table_name": GENERATION_DESCRIPTIONS_V2.full_name,
        "generation": str(NEW),
        "range_end": end,
        "reason": "two streams have the token of the range end",
    }
    lake.merge(UNORDERED_RANGES, pa.Table.from_pylist([mark]), update=False)
    explanation = explain_write(lake, end, T2, T2)
    assert (explanation.verdict, explanation.accepted) == (WriteVerdict.STREAM_UNKNOWN, False)
    assert explanation.place is not None
    assert (explanation.place.shard, explanation.place.stream_id) == (None, None)
    assert "the shard cannot be named: two streams have the token of the range end" in explanation.reason
    certain_placement = explain_write(lake, end - 1, T2, T2).place
    assert certain_placement is not None
    assert certain_placement.shard == 1
