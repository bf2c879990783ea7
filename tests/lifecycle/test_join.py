"""A node join: the written rows, their order, and a repetition that changes nothing. On Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from support.homes.contents import contents
from support.oracles import oracle

from cdc_platform.clock import Clock, Microseconds, Milliseconds, us_from_ms
from cdc_platform.delta import Lake, TaskRows, TaskRunner
from cdc_platform.errors import AuditFailed, NotFound, StateError
from cdc_platform.lifecycle.join import bootstrap, publish
from cdc_platform.lifecycle.join import steps as whole
from cdc_platform.metastore import JoinRequest, generations, inbox
from cdc_platform.settings import Settings
from cdc_platform.spark import frames, table_to_spark_schema
from cdc_platform.tables import (
    CDC_LOCAL,
    GENERATION_DESCRIPTIONS_V2,
    GENERATION_TIMESTAMPS,
    GENERATIONS,
    NODES,
    STREAMS_DESCRIPTIONS_V2,
    TOPOLOGY_DESCRIPTIONS,
)

Joining = Callable[..., JoinRequest]
NOON = Clock(stopped_at_us=Microseconds(1_700_000_000_000_000))
NOON_MS = Milliseconds(1_700_000_000_000)
# A verdict names the files that it covers.
FILES = {"content", "judged_at"}


def join(workers: TaskRunner, lake: Lake, request: JoinRequest, clock: Clock = NOON) -> whole.JoinResult:
    """Queue the node and run its join to the end."""
    return whole.run_join(workers, lake, clock, Settings(), inbox.queue_join(lake, clock, request).generation_id)


def test_a_join_follows_the_rules(workers: TaskRunner, lake: Lake, joining: Joining) -> None:
    """The second node's generation equals the oracle's: it refines both nodes' vnodes, with each owner's sharding."""
    join(workers, lake, joining(1, shard_count=4))
    second = join(workers, lake, joining(2, shard_count=7, ignore_msb=3))
    sharding: dict[int, tuple[int, int]] = dict.fromkeys(joining(1).tokens or (), (4, 12))
    sharding |= dict.fromkeys(joining(2).tokens or (), (7, 3))
    expected = oracle.generation(sharding)
    second_description = generations.read_v2_description(lake, second.generation_id)
    assert second_description.range_ends.tolist() == sorted(sharding)
    assert (second.num_ranges, second.num_streams) == (32, 16 * 4 + 16 * 7)
    for row, entry in enumerate(expected):
        tokens = [oracle.unpack_stream_id(stream.tobytes())[0] for stream in second_description.entry(row).streams]
        assert tokens == entry.stream_tokens


def test_a_join_writes_to_every_table(workers: TaskRunner, lake: Lake, joining: Joining) -> None:
    """A join writes the node's ID, the node, the streams and their timestamp, 65 s after the clock's time."""
    result = join(workers, lake, joining(1))
    local = {row["key"]: row for row in lake.read(CDC_LOCAL).to_pylist()}
    assert (result.time_ms, local["cdc_local"]["uuid"]) == (NOON_MS + 65_000, result.generation_id)
    assert local["rewritten"]["streams_timestamp"] is None
    assert [row["status"] for row in lake.read(NODES).to_pylist()] == ["NORMAL"]
    assert lake.read(GENERATION_TIMESTAMPS).num_rows == 1
    published, inserted = lake.read(STREAMS_DESCRIPTIONS_V2), lake.read(GENERATION_DESCRIPTIONS_V2)
    assert published.sort_by("range_end")["streams"] == inserted.sort_by("range_end")["streams"]


def test_materialising_again_after_the_ring_has_changed_changes_nothing(
    workers: TaskRunner, lake: Lake, joining: Joining
) -> None:
    """After three joins, the first one's repetition gives equal bytes and the same timestamp."""
    first, *_ = [join(workers, lake, joining(number)) for number in (1, 2, 3)]
    before = contents(lake, without=FILES)
    repeated = whole.run_join(workers, lake, Clock(), Settings(), first.generation_id)
    assert repeated == first
    assert contents(lake, without=FILES) == before


def test_a_node_gives_equal_bytes_in_another_lake(
    workers: TaskRunner, lake: Lake, joining: Joining, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A generation's streams depend on its UUID and its ring alone."""
    event = inbox.queue_join(lake, NOON, joining(1))
    other = Lake(tmp_path_factory.mktemp("other"))
    other.merge(inbox.BOOTSTRAP_EVENTS, lake.read(inbox.BOOTSTRAP_EVENTS), update=False)
    descriptions = []
    for target in (lake, other):
        bootstrap.describe_generation(workers, target, event.generation_id)
        bootstrap.insert_descriptions(workers, target, event.generation_id)
        descriptions.append(generations.read_v2_description(target, event.generation_id))
    assert descriptions[0].equals(descriptions[1])


def test_generations_start_in_order(workers: TaskRunner, lake: Lake, joining: Joining) -> None:
    """With a stopped clock two joins get two timestamps in order; a clock that was set back is refused."""
    first, second = (join(workers, lake, joining(number)) for number in (1, 2))
    assert (first.time_ms, second.time_ms) == (NOON_MS + 65_000, NOON_MS + 65_001)
    late = inbox.queue_join(lake, NOON, joining(3))
    with pytest.raises(StateError, match="clock is behind"):
        whole.run_join(
            workers, lake, Clock(us_from_ms(Milliseconds(NOON_MS - 100_000))), Settings(), late.generation_id
        )
    assert lake.read(GENERATIONS).num_rows == 2


def test_the_first_generation_may_start_at_once(workers: TaskRunner, lake: Lake, joining: Joining) -> None:
    """One setting lets the first generation operate at once, as later versions do."""
    event = inbox.queue_join(lake, NOON, joining(1))
    result = whole.run_join(workers, lake, NOON, Settings(first_generation_delay=False), event.generation_id)
    assert result.time_ms == NOON_MS


def test_every_step_refuses_to_run_before_its_prerequisites(workers: TaskRunner, lake: Lake, joining: Joining) -> None:
    """Out of order, each step names the missing step and writes nothing."""
    generation = inbox.queue_join(lake, NOON, joining(1)).generation_id
    with pytest.raises(StateError, match="materialise topology_descriptions first"):
        bootstrap.insert_descriptions(workers, lake, generation)
    with pytest.raises(NotFound, match="insert them first"):
        bootstrap.introduce_generation(lake, NOON, Settings(), generation)
    with pytest.raises(StateError, match="materialise cdc_local first"):
        bootstrap.admit_node(lake, generation)
    with pytest.raises(StateError, match="materialise cdc_local first"):
        publish.publish_generation_streams(workers, lake, generation)
    bootstrap.describe_generation(workers, lake, generation)
    bootstrap.insert_descriptions(workers, lake, generation)
    bootstrap.introduce_generation(lake, NOON, Settings(), generation)
    with pytest.raises(StateError, match="0 of its 16 streams rows"):
        publish.publish_generation_timestamp(lake, NOON, generation)
    assert lake.read(GENERATION_TIMESTAMPS).num_rows == 0


def test_a_partial_generation_gets_no_timestamp(workers: TaskRunner, lake: Lake, joining: Joining) -> None:
    """If a V2 row is lost before the choice of the timestamp, the step counts the rows and refuses."""
    event = inbox.queue_join(lake, NOON, joining(1))
    generation = event.generation_id
    bootstrap.describe_generation(workers, lake, generation)
    bootstrap.insert_descriptions(workers, lake, generation)
    lake.delete(GENERATION_DESCRIPTIONS_V2, [("range_end", "=", event.node.tokens[3])])
    with pytest.raises(StateError, match="num_ranges claims 16 rows, 15 are there"):
        bootstrap.introduce_generation(lake, NOON, Settings(), generation)
    assert lake.read(GENERATIONS).num_rows == 0


def test_a_join_behind_another_waits(workers: TaskRunner, lake: Lake, joining: Joining) -> None:
    """Of two queued nodes, the second cannot be described before the first has joined."""
    inbox.queue_join(lake, NOON, joining(1))
    second = inbox.queue_join(lake, NOON, joining(2))
    with pytest.raises(StateError, match="must wait"):
        bootstrap.describe_generation(workers, lake, second.generation_id)


def test_a_damaged_description_is_not_inserted(
    workers: TaskRunner, lake: Lake, joining: Joining, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A description with streams of other shards fails its audit, and the join stops there."""
    generation = inbox.queue_join(lake, NOON, joining(1)).generation_id
    make_rows = bootstrap.description_rows

    def shuffled(*args: Any) -> TaskRows:
        def backwards(batch: pa.RecordBatch) -> pa.RecordBatch:
            streams = [range_[::-1] for range_ in batch.column("streams").to_pylist()]
            index = batch.schema.get_field_index("streams")
            return batch.set_column(index, "streams", pa.array(streams, batch.schema.field(index).type))

        return make_rows(*args).map(backwards)

    monkeypatch.setattr(bootstrap, "description_rows", shuffled)
    with pytest.raises(AuditFailed, match="shard_colocation does not hold"):
        whole.run_join(workers, lake, NOON, Settings(), generation)
    assert lake.read(GENERATION_DESCRIPTIONS_V2).num_rows == 0


@pytest.mark.spark
def test_large_descriptions_are_divided_without_a_difference(spark: SparkSession, lake: Lake, joining: Joining) -> None:
    """A description's rows are independent of the number of tasks and batches."""
    request = joining(1, count=3000, shard_count=64)
    generation = inbox.queue_join(lake, NOON, request).generation_id
    ring = bootstrap.read_rings(lake, generation)[1]
    schema = table_to_spark_schema(TOPOLOGY_DESCRIPTIONS)
    whole_frame = bootstrap.description_rows(ring, generation).frame(spark, schema).orderBy("range_end").toArrow()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bootstrap, "_STREAMS_A_TASK", 50_000)
        patch.setattr(bootstrap, "_STREAMS_A_BATCH", 7_000)
        divided = bootstrap.description_rows(ring, generation)
        assert divided.tasks == 4
        assert divided.frame(spark, schema).orderBy("range_end").toArrow() == whole_frame
    assert whole_frame["range_start"].to_pylist() == np.roll(whole_frame["range_end"].to_numpy(), 1).tolist()
    assert UUID(whole_frame["generation_id"][0].as_py()) == UUID(generation)
    assert frames.read_table_frame(spark, lake, TOPOLOGY_DESCRIPTIONS).count() == 0
