"""A node joins: what is written, in which order, and that doing it again changes nothing. On Spark."""

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
# A verdict names the files that it was given on.
FILES = {"content", "judged_at"}


def join(workers: TaskRunner, lake: Lake, request: JoinRequest, clock: Clock = NOON) -> whole.JoinResult:
    """Queue the node and take its join to the end."""
    return whole.run_join(workers, lake, clock, Settings(), inbox.queue_join(lake, clock, request).generation_id)


def test_a_join_writes_what_the_rules_say(workers: TaskRunner, lake: Lake, joining: Joining) -> None:
    """The second node's generation refines both nodes' vnodes, sharded as the owner of each range end: the oracle's."""
    join(workers, lake, joining(1, shard_count=4))
    second = join(workers, lake, joining(2, shard_count=7, ignore_msb=3))
    sharding: dict[int, tuple[int, int]] = dict.fromkeys(joining(1).tokens or (), (4, 12))
    sharding |= dict.fromkeys(joining(2).tokens or (), (7, 3))
    expected = oracle.generation(sharding)
    found = generations.read_v2_description(lake, second.generation_id)
    assert found.range_ends.tolist() == sorted(sharding)
    assert (second.num_ranges, second.num_streams) == (32, 16 * 4 + 16 * 7)
    for row, entry in enumerate(expected):
        tokens = [oracle.unpack_stream_id(stream.tobytes())[0] for stream in found.entry(row).streams]
        assert tokens == entry.stream_tokens


def test_a_join_leaves_its_marks_in_every_table(workers: TaskRunner, lake: Lake, joining: Joining) -> None:
    """ID at the joining node, the node in the ring, streams rows and their timestamp; 65 s after the clock."""
    done = join(workers, lake, joining(1))
    local = {row["key"]: row for row in lake.read(CDC_LOCAL).to_pylist()}
    assert (done.time_ms, local["cdc_local"]["uuid"]) == (NOON_MS + 65_000, done.generation_id)
    assert local["rewritten"]["streams_timestamp"] is None
    assert [row["status"] for row in lake.read(NODES).to_pylist()] == ["NORMAL"]
    assert lake.read(GENERATION_TIMESTAMPS).num_rows == 1
    published, inserted = lake.read(STREAMS_DESCRIPTIONS_V2), lake.read(GENERATION_DESCRIPTIONS_V2)
    assert published.sort_by("range_end")["streams"] == inserted.sort_by("range_end")["streams"]


def test_materialising_again_after_the_ring_has_moved_on_changes_nothing(
    workers: TaskRunner, lake: Lake, joining: Joining
) -> None:
    """Three nodes joined; the first one's generation made again has the same bytes and the same timestamp."""
    first, *_ = [join(workers, lake, joining(number)) for number in (1, 2, 3)]
    before = contents(lake, without=FILES)
    again = whole.run_join(workers, lake, Clock(), Settings(), first.generation_id)
    assert again == first
    assert contents(lake, without=FILES) == before


def test_the_same_node_gives_the_same_bytes_in_another_lake(
    workers: TaskRunner, lake: Lake, joining: Joining, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A generation's streams follow from its UUID and its ring alone."""
    event = inbox.queue_join(lake, NOON, joining(1))
    other = Lake(tmp_path_factory.mktemp("other"))
    other.merge(inbox.BOOTSTRAP_EVENTS, lake.read(inbox.BOOTSTRAP_EVENTS), update=False)
    made = []
    for each in (lake, other):
        bootstrap.describe_generation(workers, each, event.generation_id)
        bootstrap.insert_descriptions(workers, each, event.generation_id)
        made.append(generations.read_v2_description(each, event.generation_id))
    assert made[0].equals(made[1])


def test_generations_start_one_after_the_other(workers: TaskRunner, lake: Lake, joining: Joining) -> None:
    """At one stopped clock two joins get two timestamps, in the order of the joins; a clock set back is refused."""
    first, second = (join(workers, lake, joining(number)) for number in (1, 2))
    assert (first.time_ms, second.time_ms) == (NOON_MS + 65_000, NOON_MS + 65_001)
    late = inbox.queue_join(lake, NOON, joining(3))
    with pytest.raises(StateError, match="clock is behind"):
        whole.run_join(
            workers, lake, Clock(us_from_ms(Milliseconds(NOON_MS - 100_000))), Settings(), late.generation_id
        )
    assert lake.read(GENERATIONS).num_rows == 2


def test_the_first_generation_may_start_at_once(workers: TaskRunner, lake: Lake, joining: Joining) -> None:
    """Later versions let the first generation operate at once; one setting away."""
    event = inbox.queue_join(lake, NOON, joining(1))
    done = whole.run_join(workers, lake, NOON, Settings(first_generation_delay=False), event.generation_id)
    assert done.time_ms == NOON_MS


def test_every_step_refuses_to_run_before_what_it_relies_on(workers: TaskRunner, lake: Lake, joining: Joining) -> None:
    """Out of order, each step says what is missing and writes nothing."""
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
    """A V2 row is lost between the insert and the choice of the timestamp: the step counts and refuses."""
    event = inbox.queue_join(lake, NOON, joining(1))
    generation = event.generation_id
    bootstrap.describe_generation(workers, lake, generation)
    bootstrap.insert_descriptions(workers, lake, generation)
    lake.delete(GENERATION_DESCRIPTIONS_V2, [("range_end", "=", event.node.tokens[3])])
    with pytest.raises(StateError, match="num_ranges claims 16 rows, 15 are there"):
        bootstrap.introduce_generation(lake, NOON, Settings(), generation)
    assert lake.read(GENERATIONS).num_rows == 0


def test_a_join_behind_another_waits(workers: TaskRunner, lake: Lake, joining: Joining) -> None:
    """Two nodes are queued; the second cannot be described before the first has joined."""
    inbox.queue_join(lake, NOON, joining(1))
    second = inbox.queue_join(lake, NOON, joining(2))
    with pytest.raises(StateError, match="must wait"):
        bootstrap.describe_generation(workers, lake, second.generation_id)


def test_a_damaged_description_is_not_inserted(
    workers: TaskRunner, lake: Lake, joining: Joining, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A description whose streams are of another generation's shards fails its audit, and the join stops there."""
    generation = inbox.queue_join(lake, NOON, joining(1)).generation_id
    truthful = bootstrap.description_rows

    def shuffled(*args: Any) -> TaskRows:
        def backwards(batch: pa.RecordBatch) -> pa.RecordBatch:
            streams = [range_[::-1] for range_ in batch.column("streams").to_pylist()]
            where = batch.schema.get_field_index("streams")
            return batch.set_column(where, "streams", pa.array(streams, batch.schema.field(where).type))

        return truthful(*args).map(backwards)

    monkeypatch.setattr(bootstrap, "description_rows", shuffled)
    with pytest.raises(AuditFailed, match="shard_colocation does not hold"):
        whole.run_join(workers, lake, NOON, Settings(), generation)
    assert lake.read(GENERATION_DESCRIPTIONS_V2).num_rows == 0


@pytest.mark.spark
def test_large_descriptions_are_cut_without_a_seam(spark: SparkSession, lake: Lake, joining: Joining) -> None:
    """The rows of a description are the same in however many tasks and batches they are made."""
    request = joining(1, count=3000, shard_count=64)
    generation = inbox.queue_join(lake, NOON, request).generation_id
    ring = bootstrap.read_rings(lake, generation)[1]
    schema = table_to_spark_schema(TOPOLOGY_DESCRIPTIONS)
    whole_frame = bootstrap.description_rows(ring, generation).frame(spark, schema).orderBy("range_end").toArrow()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bootstrap, "_STREAMS_A_TASK", 50_000)
        patch.setattr(bootstrap, "_STREAMS_A_BATCH", 7_000)
        cut = bootstrap.description_rows(ring, generation)
        assert cut.tasks == 4
        assert cut.frame(spark, schema).orderBy("range_end").toArrow() == whole_frame
    assert whole_frame["range_start"].to_pylist() == np.roll(whole_frame["range_end"].to_numpy(), 1).tolist()
    assert UUID(whole_frame["generation_id"][0].as_py()) == UUID(generation)
    assert frames.read_table_frame(spark, lake, TOPOLOGY_DESCRIPTIONS).count() == 0
