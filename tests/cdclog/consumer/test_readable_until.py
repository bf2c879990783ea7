"""An ingested log of a live cluster: no reader goes past the ingested position."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.read_logs import START_US, SWITCH_US, home_with_log, schema, times_of, write

from cdc_platform.cdclog import FROM_CLUSTER
from cdc_platform.cdclog.consumer import hourly
from cdc_platform.cdclog.consumer.reader import consume, sink_table
from cdc_platform.clock import HOUR_US, ONE_US, Clock, Microseconds
from cdc_platform.delta import Lake
from cdc_platform.errors import InputError, StateError
from cdc_platform.metastore import consumers

NOW = Clock(Microseconds(SWITCH_US + 5 * HOUR_US))
HOUR = Microseconds(SWITCH_US - SWITCH_US % HOUR_US)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Create rows before and after a switch; the cluster's log was ingested up to the second one."""
    lake = Lake(home_with_log(tmp_path) / "lake")
    write(lake, [START_US, SWITCH_US, Microseconds(SWITCH_US + 1)])
    consumers.register_consumer(lake, NOW, FROM_CLUSTER, "ks", "t", position_us=SWITCH_US)
    return lake


def ingest_up_to(lake: Lake, until_us: int) -> None:
    """Advance the ingested position."""
    ingest = consumers.find_consumer(lake, FROM_CLUSTER, "ks", "t")
    consumers.advance_consumer(
        lake,
        NOW,
        ingest,
        position_us=Microseconds(until_us),
        set_timestamp_us=SWITCH_US,
        expected_window=ingest.window_number,
    )


def test_a_consumer_waits_for_ingested_rows(lake: Lake) -> None:
    """A consumer stops at the ingested position; otherwise it would miss rows ingested behind it."""
    assert consume(lake, NOW, schema(lake), "audit")[1] == 2
    assert consume(lake, NOW, schema(lake), "audit")[1] == 0
    ingest_up_to(lake, SWITCH_US + HOUR_US)
    assert consume(lake, NOW, schema(lake), "audit")[1] == 1
    assert times_of(lake.read(sink_table(schema(lake), "audit"))) == [START_US, SWITCH_US, SWITCH_US + 1]


def test_an_hour_waits_until_it_is_ingested(lake: Lake) -> None:
    """The hour is neither due nor copied before, not even in part."""
    assert HOUR not in hourly.list_due_hours(lake, NOW, 10)
    with pytest.raises(StateError, match="was ingested from its cluster up to"):
        hourly.copy_hour(lake, NOW, [schema(lake)], HOUR)
    ingest_up_to(lake, HOUR + HOUR_US - ONE_US)
    assert HOUR in hourly.list_due_hours(lake, NOW, 10)
    (copied,) = hourly.copy_hour(lake, NOW, [schema(lake)], HOUR)
    assert copied.rows == 2


def test_the_name_of_the_ingesting_consumer_is_reserved(lake: Lake) -> None:
    """Two readers of one name would share a position."""
    with pytest.raises(InputError, match="brings in the log of a live cluster"):
        consume(lake, NOW, schema(lake), FROM_CLUSTER)
