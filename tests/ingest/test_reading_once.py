"""A backlog of more rows than memory holds is read once and committed once, despite kills."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.standin.brought import FIRST_US, NOW_US, SWITCH_US, assert_each_once, bring, lake_of
from support.standin.cluster import StandIn
from support.standin.live_log import LiveLog

from cdc_platform import failpoints
from cdc_platform.cdclog import log_table
from cdc_platform.clock import HOUR_US, MINUTE_US, SECOND_US, Microseconds
from cdc_platform.delta import TaskRunner
from cdc_platform.home_location import open_home_location
from cdc_platform.ingest import ReadPolicy, window_reader
from cdc_platform.ingest.planner import RANGES, STREAMS, Way
from cdc_platform.ingest.policy import Lifetimes, second_pass_goes_first
from cdc_platform.scylla import ScyllaCluster, decode_log_rows, registry

ROWS, BOUND, PAGE = 300, 50, 20
WAYS: Sequence[Way] = (STREAMS, RANGES)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows in each response that the reader decoded, with a bound of few rows in memory."""
    counts: list[int] = []

    def counted(schema: Any, pages: Any, **options: Any) -> Any:
        part = decode_log_rows(schema, pages, **options)
        counts.append(part.rows.num_rows)
        return part

    monkeypatch.setattr(window_reader, "decode_log_rows", counted)
    monkeypatch.setattr(window_reader, "MAX_ROWS_IN_MEMORY", BOUND)
    return counts


@pytest.mark.cassandra
@pytest.mark.parametrize("way", WAYS)
def test_backlog_is_read_once(
    cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner, read: list[int], way: Way
) -> None:
    """As many rows are read as committed, whatever the bound; no commit has more rows than the bound and one page."""
    log.write([FIRST_US + number * 20 * SECOND_US for number in range(ROWS)])
    done = bring(cluster, workers, way=way)
    assert (sum(read), done.rows, sum(window.rows for window in done.windows)) == (ROWS, ROWS, ROWS)
    table = log_table(log.schema)
    assert max(file.rows for file in lake_of(cluster).data_files(table)) <= BOUND + max(read)
    assert_each_once(cluster, log)


@pytest.mark.cassandra
@pytest.mark.parametrize("way", WAYS)
def test_response_of_many_pages_is_committed_in_parts(
    standin: StandIn, log: LiveLog, workers: TaskRunner, read: list[int], tmp_path: Path, way: Way
) -> None:
    """One stream, so one request, has all rows; memory has no more than the bound and one page."""
    small_pages = registry.add_cluster(open_home_location(tmp_path), "prod", standin.connection(page_rows=PAGE))
    log.write([SWITCH_US + number for number in range(ROWS)], p=[1] * ROWS)
    done = bring(small_pages, workers, way=way)
    assert (sum(read), done.rows, max(read)) == (ROWS, ROWS, PAGE)
    assert max(file.rows for file in lake_of(small_pages).data_files(log_table(log.schema))) <= BOUND + PAGE
    assert_each_once(small_pages, log)


@pytest.mark.cassandra
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("later_us", [NOW_US, SWITCH_US + 10 * MINUTE_US])
def test_kill_after_a_part_leaves_no_double_row(
    standin: StandIn, log: LiveLog, workers: TaskRunner, tmp_path: Path, way: Way, later_us: int
) -> None:
    """The next run reads up to the same time or an earlier one, then further."""
    # Parts of the first run are already stored.
    cluster = registry.add_cluster(open_home_location(tmp_path), "prod", standin.connection(page_rows=100))
    log.write([SWITCH_US + number * SECOND_US for number in range(1500)])
    script = (
        "from cdc_platform.ingest import window_reader; import sys; window_reader.MAX_ROWS_IN_MEMORY = 500;"
        "from cdc_platform.__main__ import main; main()"
    )
    home = str(cluster.home.parent.parent)
    command = [sys.executable, "-c", script, "--home", home, "ingest", "prod", "shop.t", "--by", way]
    assert failpoints.AFTER_PART in failpoints.ALL_POINTS
    killed = killed_at(command, failpoints.AFTER_PART)
    stored_rows = lake_of(cluster).read(log_table(log.schema)).num_rows
    assert killed != 0
    assert 0 < stored_rows < 1500
    done = bring(cluster, workers, later_us, way=way)
    done_later = bring(cluster, workers, NOW_US, way=way)
    assert stored_rows + done.rows + done_later.rows == 1500
    assert_each_once(cluster, log)


@pytest.mark.cassandra
def test_second_pass_of_many_rows_finds_each_late_row_once(
    cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner, read: list[int]
) -> None:
    """Late rows above the bound are committed in parts as well, and counted as late."""
    log.write([SWITCH_US + number * SECOND_US for number in range(60)])
    bring(cluster, workers)
    log.write([SWITCH_US + number * SECOND_US + 1 for number in range(170)])
    policy = ReadPolicy(second_pass_after_us=Microseconds(SECOND_US), second_pass_every_us=Microseconds(SECOND_US))
    done = bring(cluster, workers, NOW_US + HOUR_US, policy=policy, way=RANGES)
    assert (done.late, done.late_ever, done.rows) == (170, 170, 0)
    assert_each_once(cluster, log)


@pytest.mark.parametrize(
    ("position_us", "after_us", "first"),
    [
        (100, 50, True),  # all rows read so far are younger than the age of the second pass
        (50, 50, True),
        (49, 50, False),  # new windows are already due for a second pass, and unread rows expire first
        (0, 0, True),  # no second pass at all
    ],
)
def test_second_pass_goes_first_except_after_a_long_stop(position_us: int, after_us: int, first: bool) -> None:
    """The time is 100 µs, and the rows of the logs live for ever."""
    policy = ReadPolicy(second_pass_after_us=Microseconds(after_us))
    lifetimes = Lifetimes(Microseconds(0), Microseconds(0), Microseconds(0))
    assert second_pass_goes_first(Microseconds(position_us), policy, lifetimes, Microseconds(100)) is first


def killed_at(command: Sequence[str], point: str) -> int:
    """Run a command that the failpoint kills; return its exit code."""
    return subprocess.run(command, env={**os.environ, failpoints.KILL_AT_VARIABLE: point}, timeout=120).returncode
