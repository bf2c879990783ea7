"""Whole joins with the two-phase switch enabled, up to their published timestamps. On Spark."""

from __future__ import annotations

from support.worlds.switch_lake import NOON, NOON_MS, TWO_PHASE, host, request

from cdc_platform.checks import audit_switches
from cdc_platform.clock import datetime_from_ms
from cdc_platform.delta import Lake, TaskRunner
from cdc_platform.lifecycle.join import steps
from cdc_platform.metastore import generations, inbox, switches
from cdc_platform.tables import CDC_LOCAL, GENERATION_TIMESTAMPS, STREAMS_DESCRIPTIONS_V2


def test_switched_joins_are_published(workers: TaskRunner, lake: Lake) -> None:
    """The first node switches alone, the second with the first; both are published with their switches' times."""
    times = []
    for number in (1, 2):
        event = inbox.queue_join(lake, NOON, request(number))
        result = steps.run_join(workers, lake, NOON, TWO_PHASE, event.generation_id)
        switch = switches.find_switch(lake, event.generation_id)
        assert switch.participants == tuple(host(host_number) for host_number in range(1, number + 1))
        assert (switch.time_ms, switch.initiator) == (result.time_ms, host(number))
        published = generations.read_published_range_ends(lake, result.time_ms)
        assert published.tolist() == generations.read_v2_range_ends(lake, event.generation_id).tolist()
        times.append(result.time_ms)
    assert times == [NOON_MS + 70_000, NOON_MS + 70_001]
    listed = lake.read(GENERATION_TIMESTAMPS)["time"].to_pylist()
    assert sorted(listed) == [datetime_from_ms(time) for time in times]
    assert lake.read(STREAMS_DESCRIPTIONS_V2).num_rows == 4 + 8
    newest = lake.read(CDC_LOCAL, filters=[("host_id", "=", host(2)), ("key", "=", "cdc_local")]).to_pylist()
    assert newest[0]["streams_timestamp"] == datetime_from_ms(times[1])
    assert [line.violations for line in audit_switches(lake)] == [0, 0, 0, 0]
