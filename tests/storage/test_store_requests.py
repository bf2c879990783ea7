"""Small joins and read-only commands send few requests: a table is opened once, one list covers all tables."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import pytest
from support.command_line import run
from support.homes.ingested import POSITION_US, ReadLog, ingested_home
from support.nodes import join_request
from support.store.s3 import S3

from cdc_platform.checks import audit_across, audit_lake, inventory
from cdc_platform.checks.invariants import STREAMS_UNIQUE_ACROSS_GENERATIONS
from cdc_platform.clock import HOUR_US, Clock, Microseconds
from cdc_platform.delta import Lake, TaskRunner, verify_tables
from cdc_platform.delta.paths import LOG_FOLDER
from cdc_platform.home_location import open_home_location
from cdc_platform.lifecycle import run_join
from cdc_platform.metastore import inbox, write_nodes
from cdc_platform.metrics import HomeMetrics
from cdc_platform.ring import Node
from cdc_platform.settings import Settings
from cdc_platform.storage import ObjectStorePath, cache_fetches, map_in_threads, parse_path
from cdc_platform.tables import GENERATION_DESCRIPTIONS_V2, NODES, STREAMS_DESCRIPTIONS_V2, TABLES

START_US = Microseconds(1_767_225_600_000_000)
STEPS, A_COMMIT, A_TABLE = 6, 6, 6
"""A join's steps, and its maximum of requests per commit and per table."""
LOOKS, A_STEP = "LIST GET", 3
"""Requests that look for commits of others: before a step, before its audit and after it."""
PAGE = 1000
"""The maximum of names in a list of the store."""
PUTS, A_COMMIT_PUTS, A_LOCK_PUTS = "PUT", 2, 2
"""PUTs of a commit (a file and an entry), and of a lock (acquire and release)."""


@pytest.fixture
def home(s3: S3) -> str:
    """A home in which three nodes have joined, and a fourth waits."""
    address = f"{s3.bucket()}/home"
    lake = Lake(open_home_location(address, create=True).lake)
    for number in range(1, 4):
        clock = Clock(Microseconds(START_US + HOUR_US * number))
        generation_id = inbox.queue_join(lake, clock, join_request(number)).generation_id
        run_join(TaskRunner.alone(), lake, clock, Settings(), generation_id)
    return address


def table_versions(lake: Lake) -> dict[str, int]:
    """Return the newest versions of the existing tables."""
    versions = {table.full_name: lake.version(table) for table in TABLES.values()}
    return {name: version for name, version in versions.items() if version is not None}


def count_difference(after: Mapping[str, int], before: Mapping[str, int]) -> int:
    """Return how much larger the sum of all numbers is."""
    return sum(after.values()) - sum(before.values())


def test_each_table_is_opened_once_and_listed_once_per_step(s3: S3, home: str) -> None:
    """A read-only command does little more than open tables; a join lists them once per step."""
    tables = len(table_versions(Lake(open_home_location(home).lake)))
    before = s3.counts()
    done = run("--home", home, "--clock", "2026-01-03T00:00:00Z", "generations", "--json")
    assert (done.exit_code, len(done.rows)) == (0, 3)
    after = s3.counts()
    assert (after[LOOKS] - before[LOOKS], count_difference(after, before) <= A_TABLE * tables) == (1, True)
    lake, clock = Lake(open_home_location(home).lake), Clock(Microseconds(START_US + HOUR_US * 4))
    generation_id = inbox.queue_join(lake, clock, join_request(4)).generation_id
    versions, fresh, before = table_versions(lake), Lake(str(lake.location)), s3.counts()
    s3.writes(home)
    run_join(TaskRunner.alone(), fresh, clock, Settings(), generation_id)
    after, written = s3.counts(), s3.writes(home)
    commits = count_difference(table_versions(lake), versions)
    assert commits >= STEPS
    assert after[LOOKS] - before[LOOKS] <= A_STEP * STEPS
    assert [request.split()[0] for request in written] == ["PUT"] * A_COMMIT_PUTS * commits
    renewals = after[PUTS] - before[PUTS] - len(written) - A_LOCK_PUTS  # of leases, if the machine is busy
    assert renewals >= 0
    assert count_difference(after, before) - renewals <= A_COMMIT * commits + A_TABLE * len(versions)


def test_audit_requests_no_file_sizes(s3: S3, home: str) -> None:
    """The log has the size of each file; an old home has thousands of files."""
    lake = Lake(open_home_location(home).lake)
    before = s3.counts()
    summary = audit_lake(TaskRunner.alone(), lake)
    after = s3.counts()
    across = next(result for result in summary if result.invariant == STREAMS_UNIQUE_ACROSS_GENERATIONS)
    assert across.violations == 0 < across.population
    assert (after["GET"] > before["GET"], after["HEAD"] - before["HEAD"]) == (True, 0)


def test_check_finds_all_files_of_a_table_with_one_list(s3: S3, home: str) -> None:
    """It sends no request per file of a table with many, and still finds truncated and missing files."""
    lake = Lake(open_home_location(home).lake)
    single_file_tables = sum(len(lake.data_files(table)) == 1 for table in TABLES.values())
    before = s3.counts()["HEAD"]
    assert [line for audit in verify_tables(lake) for line in audit.damage] == []
    assert s3.counts()["HEAD"] - before <= single_file_tables
    truncated, removed, *_ = (get_object(file.path) for file in lake.data_files(GENERATION_DESCRIPTIONS_V2))
    truncated.put(truncated.read()[:-1])
    removed.remove()
    damage = [line for audit in verify_tables(lake) for line in audit.damage]
    assert [
        (truncated.name in line, removed.name in line) for line in sorted(damage, key=lambda line: removed.name in line)
    ] == [
        (True, False),
        (False, True),
    ]
    assert ["is damaged (it has" in line or "is missing" in line for line in damage] == [True, True]


def test_files_of_other_generations_are_fetched_once(s3: S3, home: str) -> None:
    """One request per file serves both the inventory of ranges and the comparison of streams."""
    lake = Lake(open_home_location(home).lake)
    one, *_ = inventory.read_inventory(lake)  # opens the tables
    files = [file for table in inventory.INVENTORY_TABLES if table.partition_by for file in lake.data_files(table)]
    before = s3.counts()["GET"]
    with lake.table_cache.pin_versions():
        assert len(inventory.read_inventory(lake)) == 3
        assert audit_across(TaskRunner.alone(), lake, one.name)[0].violations == 0
    assert s3.counts()["GET"] - before == len(files)


@pytest.fixture
def lake(s3: S3) -> Lake:
    """A lake with only the table of nodes, which has one row."""
    lake = Lake(f"{s3.bucket()}/home/lake")
    write_nodes(lake, [Node(UUID(int=1), (5, 77), 2, 12)])
    return lake


def test_missing_tables_are_requested_once(s3: S3, lake: Lake) -> None:
    """In a block missing tables cost one list of their keyspace; a table created there is found."""
    missing = [table for table in TABLES.values() if table.keyspace == "platform" and not lake.exists(table)]
    assert len(missing) > 3
    before = s3.counts()
    with lake.table_cache.pin_versions():
        assert [lake.version(table) for table in missing] == [None] * len(missing)
        assert count_difference(s3.counts(), before) == 1
        lake.ensure(missing[1])
        assert (lake.version(missing[1]), lake.exists(missing[2])) == (0, False)
    Lake(str(lake.location)).ensure(missing[2])
    assert lake.exists(missing[2])


def test_listing_does_not_grow_with_data_files(s3: S3, home: str) -> None:
    """Two requests list the names before the data files of one table, and the log after them."""
    lake = Lake(open_home_location(home).lake)
    assert max(TABLES.values(), key=lake.path) is GENERATION_DESCRIPTIONS_V2
    log_files = len(get_object(f"{lake.path(GENERATION_DESCRIPTIONS_V2)}/{LOG_FOLDER}").files())
    counts = []
    for part in ("first", "second"):
        for table in (STREAMS_DESCRIPTIONS_V2, GENERATION_DESCRIPTIONS_V2):
            put_data(lake.path(table), part)
        for _ in range(3):
            before = (count_difference(s3.counts(), {}), s3.names())
            with lake.table_cache.pin_versions():
                table_versions(lake)
            counts.append((count_difference(s3.counts(), {}) - before[0], s3.names() - before[1]))
    assert counts[1:3] + counts[4:] == [(2, PAGE + log_files)] * 4


def put_data(table: str, part: str) -> None:
    """Put more data files than a page lists below a table; no commit names them."""
    for created in map_in_threads(
        lambda number: get_object(f"{table}/of={part}/{number}").create(b"x"), range(PAGE + 1), 8
    ):
        assert created


def get_object(address: str) -> ObjectStorePath:
    """Return an object of the store."""
    path = parse_path(address)
    assert isinstance(path, ObjectStorePath)
    return path


def test_small_file_is_fetched_once_in_a_block(s3: S3, lake: Lake) -> None:
    """All readers in the block share it; after the block it is fetched again."""
    files = [parse_path(file.path) for file in lake.data_files(NODES)]
    with cache_fetches():
        contents = [bytes(file.source().read()) for file in files]
        before = s3.counts()
        assert [bytes(file.source().read()) for file in files] == contents != []
        assert count_difference(s3.counts(), before) == 0
    assert [file.read() for file in files] == contents
    files[0].remove()
    with pytest.raises(FileNotFoundError):
        files[0].source()


def test_metrics_scrape_sends_few_requests(s3: S3) -> None:
    """The number of tables bounds its requests; later scrapes only request whether anything is new."""
    home, _ = ingested_home(f"{s3.bucket()}/home", [ReadLog(name) for name in ("a", "b")])
    metrics = HomeMetrics(home, Clock(POSITION_US))

    def count_scrape_requests() -> int:
        before = sum(s3.counts().values())
        scrape = metrics.scrape()
        assert scrape.problems == []
        return sum(s3.counts().values()) - before

    first, second, third = (count_scrape_requests() for _ in range(3))
    assert first <= 150
    assert second == third <= 60
