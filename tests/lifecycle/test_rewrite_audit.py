"""The audit of a rewrite finds missing generations and rows that differ from V1, and is silent without V1 tables."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from support.homes.v1_tables import HOUR_MS, START_MS, nodes, old_cluster, times, write_v1

from cdc_platform.checks import LIVE_GENERATIONS_REWRITTEN, REWRITTEN_EQUALS_V1, Finding
from cdc_platform.clock import Clock, Milliseconds, datetime_from_ms, us_from_ms
from cdc_platform.delta import Lake
from cdc_platform.lifecycle import audit_rewrite
from cdc_platform.lifecycle.join import publish
from cdc_platform.lifecycle.rewrite import rewrite_streams_tables
from cdc_platform.settings import Settings
from cdc_platform.tables import CDC_LOCAL, GENERATION_DESCRIPTIONS, GENERATION_TIMESTAMPS, STREAMS_DESCRIPTIONS_V2

NOW = Clock(us_from_ms(Milliseconds(START_MS + 25 * HOUR_MS + 1)))


def audit(lake: Lake) -> dict[str, Finding]:
    """Return the findings by invariant."""
    return {line.invariant: line for line in audit_rewrite(lake, NOW, Settings())}


def test_a_finished_rewrite_is_clean(lake: Lake) -> None:
    """Of four generations one is too old; three are checked, with every range of each."""
    old_cluster(lake, times(4))
    rewrite_streams_tables(lake, NOW, Settings())
    findings = audit(lake)
    assert {name: (line.population, line.violations) for name, line in findings.items()} == {
        LIVE_GENERATIONS_REWRITTEN: (3, 0),
        REWRITTEN_EQUALS_V1: (3 * 12, 0),
    }


def test_without_v1_tables_there_is_no_finding(lake: Lake) -> None:
    """A home without V1 tables, like most, has no failure."""
    assert audit(lake) == {}


def test_before_the_rewrite_there_is_no_finding(lake: Lake) -> None:
    """If no node is marked, or one has just joined, generations may still be in the old table."""
    old_cluster(lake, times(2))
    assert audit(lake) == {}
    marker = {"host_id": str(nodes(1)[0].host_id), "key": "rewritten", "streams_timestamp": None, "uuid": None}
    lake.merge(CDC_LOCAL, pa.Table.from_pylist([marker], schema=CDC_LOCAL.schema), update=True)
    assert audit(lake) == {}


def test_a_missing_live_generation_is_found(lake: Lake) -> None:
    """A timestamp that vanished after the rewrite and a generation without data are both found."""
    old_cluster(lake, times(4), without_data=times(4)[3:])
    rewrite_streams_tables(lake, NOW, Settings())
    lake.delete(GENERATION_TIMESTAMPS, [("time", "=", datetime_from_ms(Milliseconds(times(4)[1])))])
    line = audit(lake)[LIVE_GENERATIONS_REWRITTEN]
    assert (line.population, line.violations) == (3, 2)
    assert "V1 generation 2020-09-13T13:26:40.000Z is not in the new table" in line.sample


@pytest.mark.parametrize("kind", ["a stream", "shard order", "a missing row", "a row more", "a stream less"])
def test_rows_that_differ_from_v1_are_found(lake: Lake, kind: str) -> None:
    """One different range of one generation is counted and named."""
    descriptions = old_cluster(lake, times(2))
    rewrite_streams_tables(lake, NOW, Settings())
    time_ms = times(2)[1]
    end = int(descriptions[time_ms].range_ends[5])
    filters = [("time", "=", datetime_from_ms(Milliseconds(time_ms))), ("range_end", "=", end)]
    row: dict[str, Any] = lake.read(STREAMS_DESCRIPTIONS_V2, filters=filters).to_pylist()[0]
    if kind == "a missing row":
        lake.delete(STREAMS_DESCRIPTIONS_V2, filters)
    else:
        streams = row["streams"]
        row["streams"] = {
            "a stream": [*streams[:-1], bytes(15) + b"\1"],
            "shard order": [streams[1], streams[0], *streams[2:]],
            "a row more": streams,
            "a stream less": streams[:-1],
        }[kind]
        row["range_end"] += kind == "a row more"
        rows = pa.Table.from_pylist([row], schema=STREAMS_DESCRIPTIONS_V2.schema)
        lake.merge(STREAMS_DESCRIPTIONS_V2, rows, update=True)
    line = audit(lake)[REWRITTEN_EQUALS_V1]
    assert line.violations == 1
    assert "2020-09-13T13:26:40.000Z" in line.sample
    assert str(row["range_end"]) in line.sample


def test_a_description_damaged_after_the_rewrite_is_found(lake: Lake) -> None:
    """The V1 description is swapped with another, or made unreadable, after the rewrite."""
    descriptions = old_cluster(lake, times(2), tables=[("orders", 0)])
    rewrite_streams_tables(lake, NOW, Settings())
    write_v1(lake, {times(2)[0]: descriptions[times(2)[1]]})
    assert audit(lake)[REWRITTEN_EQUALS_V1].violations == 12
    row = {"time": datetime_from_ms(Milliseconds(times(2)[0])), "description": [], "expired": None}
    rows = pa.Table.from_pylist([row], schema=GENERATION_DESCRIPTIONS.schema)
    lake.merge(GENERATION_DESCRIPTIONS, rows, update=True)
    line = audit(lake)[REWRITTEN_EQUALS_V1]
    assert line.violations == 1
    assert "is damaged: it has no ranges" in line.sample


def test_a_v1_generation_published_by_a_mixed_cluster_is_compared(lake: Lake) -> None:
    """A generation that a mixed cluster publishes at once is compared with V1 like rewritten ones."""
    descriptions = old_cluster(lake, times(2))
    publish.write_published_streams(lake, Milliseconds(times(2)[0]), descriptions[times(2)[0]])
    publish.write_published_timestamp(lake, Milliseconds(times(2)[0]))
    assert audit(lake)[REWRITTEN_EQUALS_V1].population == 12
