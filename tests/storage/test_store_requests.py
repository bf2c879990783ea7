"""How many requests a store sees of small joins and look-ups: a table is opened once, all are looked at by one list."""

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
"""Of a join: its steps, and the requests that are due of each commit and each table."""
LOOKS, A_STEP = "LIST GET", 3
"""Requests that look for what others have written: before a step, before its audit and behind that."""
PAGE = 1000
"""So many names a list of the store has at most."""
PUTS, A_COMMIT_PUTS, A_TURN_PUTS = "PUT", 2, 2
"""What is put by a commit, which is a file and an entry, and for a turn, which is taken and given back."""


@pytest.fixture
def home(s3: S3) -> str:
    """A home in which three nodes have joined, and a fourth waits."""
    address = f"{s3.bucket()}/home"
    lake = Lake(open_home_location(address, create=True).lake)
    for number in range(1, 4):
        clock = Clock(Microseconds(START_US + HOUR_US * number))
        made = inbox.queue_join(lake, clock, join_request(number)).generation_id
        run_join(TaskRunner.alone(), lake, clock, Settings(), made)
    return address


def held(lake: Lake) -> dict[str, int]:
    """The newest versions of the tables that there are."""
    found = {table.full_name: lake.version(table) for table in TABLES.values()}
    return {name: version for name, version in found.items() if version is not None}


def more(after: Mapping[str, int], before: Mapping[str, int]) -> int:
    """How much larger all numbers are together."""
    return sum(after.values()) - sum(before.values())


def test_each_table_is_opened_once_and_looked_at_once_a_step(s3: S3, home: str) -> None:
    """A look-up is little more than opening tables; a join, by who has opened none, looks at all by a list a step."""
    tables = len(held(Lake(open_home_location(home).lake)))
    before = s3.counts()
    done = run("--home", home, "--clock", "2026-01-03T00:00:00Z", "generations", "--json")
    assert (done.exit_code, len(done.rows)) == (0, 3)
    after = s3.counts()
    assert (after[LOOKS] - before[LOOKS], more(after, before) <= A_TABLE * tables) == (1, True)
    lake, clock = Lake(open_home_location(home).lake), Clock(Microseconds(START_US + HOUR_US * 4))
    made = inbox.queue_join(lake, clock, join_request(4)).generation_id
    versions, fresh, before = held(lake), Lake(str(lake.location)), s3.counts()
    s3.writes(home)
    run_join(TaskRunner.alone(), fresh, clock, Settings(), made)
    after, written = s3.counts(), s3.writes(home)
    commits = more(held(lake), versions)
    assert commits >= STEPS
    assert after[LOOKS] - before[LOOKS] <= A_STEP * STEPS
    assert [each.split()[0] for each in written] == ["PUT"] * A_COMMIT_PUTS * commits
    renewals = after[PUTS] - before[PUTS] - len(written) - A_TURN_PUTS  # of leases, where the machine is busy
    assert renewals >= 0
    assert more(after, before) - renewals <= A_COMMIT * commits + A_TABLE * len(versions)


def test_an_audit_asks_no_file_how_long_it_is(s3: S3, home: str) -> None:
    """The log tells that of each: a home that is old has thousands of them."""
    lake = Lake(open_home_location(home).lake)
    before = s3.counts()
    summary = audit_lake(TaskRunner.alone(), lake)
    after = s3.counts()
    across = next(each for each in summary if each.invariant == STREAMS_UNIQUE_ACROSS_GENERATIONS)
    assert across.violations == 0 < across.population
    assert (after["GET"] > before["GET"], after["HEAD"] - before["HEAD"]) == (True, 0)


def test_a_check_looks_for_all_files_of_a_table_by_one_list(s3: S3, home: str) -> None:
    """Of one with many each is asked for alone no more; one that is cut off or gone is found all the same."""
    lake = Lake(open_home_location(home).lake)
    alone = sum(len(lake.data_files(table)) == 1 for table in TABLES.values())
    before = s3.counts()["HEAD"]
    assert [line for each in verify_tables(lake) for line in each.damage] == []
    assert s3.counts()["HEAD"] - before <= alone
    cut, gone, *_ = (stored(file.path) for file in lake.data_files(GENERATION_DESCRIPTIONS_V2))
    cut.put(cut.read()[:-1])
    gone.remove()
    told = [line for each in verify_tables(lake) for line in each.damage]
    assert [(cut.name in line, gone.name in line) for line in sorted(told, key=lambda line: gone.name in line)] == [
        (True, False),
        (False, True),
    ]
    assert ["is damaged (it has" in line or "is missing" in line for line in told] == [True, True]


def test_the_files_of_other_generations_are_fetched_once(s3: S3, home: str) -> None:
    """For their ranges and, where streams may be shared, for those: one request a file, whoever reads it."""
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
    """A lake with the table of nodes alone, which has one row."""
    lake = Lake(f"{s3.bucket()}/home/lake")
    write_nodes(lake, [Node(UUID(int=1), (5, 77), 2, 12)])
    return lake


def test_what_is_not_there_is_asked_for_once(s3: S3, lake: Lake) -> None:
    """In a block tables that were never made cost one list of their keyspace; one that is made there is found."""
    missing = [table for table in TABLES.values() if table.keyspace == "platform" and not lake.exists(table)]
    assert len(missing) > 3
    before = s3.counts()
    with lake.table_cache.pin_versions():
        assert [lake.version(table) for table in missing] == [None] * len(missing)
        assert more(s3.counts(), before) == 1
        lake.ensure(missing[1])
        assert (lake.version(missing[1]), lake.exists(missing[2])) == (0, False)
    Lake(str(lake.location)).ensure(missing[2])
    assert lake.exists(missing[2])


def test_what_is_listed_does_not_grow_with_data_files(s3: S3, home: str) -> None:
    """A page of names for what lies before the data files of one table; the log that comes behind them, alone."""
    lake = Lake(open_home_location(home).lake)
    assert max(TABLES.values(), key=lake.path) is GENERATION_DESCRIPTIONS_V2
    own = len(stored(f"{lake.path(GENERATION_DESCRIPTIONS_V2)}/{LOG_FOLDER}").files())
    found = []
    for part in ("first", "second"):
        for table in (STREAMS_DESCRIPTIONS_V2, GENERATION_DESCRIPTIONS_V2):
            put_data(lake.path(table), part)
        for _ in range(3):
            before = (more(s3.counts(), {}), s3.names())
            with lake.table_cache.pin_versions():
                held(lake)
            found.append((more(s3.counts(), {}) - before[0], s3.names() - before[1]))
    assert found[1:3] + found[4:] == [(2, PAGE + own)] * 4


def put_data(table: str, part: str) -> None:
    """Put more files than a page names below a table, as data files lie there; no commit names them."""
    for made in map_in_threads(lambda number: stored(f"{table}/of={part}/{number}").create(b"x"), range(PAGE + 1), 8):
        assert made


def stored(address: str) -> ObjectStorePath:
    """A place in the store."""
    place = parse_path(address)
    assert isinstance(place, ObjectStorePath)
    return place


def test_a_small_file_is_fetched_once_in_a_block(s3: S3, lake: Lake) -> None:
    """Whoever reads it; behind the block it is looked at anew."""
    files = [parse_path(file.path) for file in lake.data_files(NODES)]
    with cache_fetches():
        contents = [bytes(file.source().read()) for file in files]
        before = s3.counts()
        assert [bytes(file.source().read()) for file in files] == contents != []
        assert more(s3.counts(), before) == 0
    assert [file.read() for file in files] == contents
    files[0].remove()
    with pytest.raises(FileNotFoundError):
        files[0].source()


def test_a_scrape_of_a_store_asks_for_little(s3: S3) -> None:
    """Its requests are bounded by its tables; the next scrapes ask only whether there is anything new."""
    home, _ = ingested_home(f"{s3.bucket()}/home", [ReadLog(name) for name in ("a", "b")])
    metrics = HomeMetrics(home, Clock(POSITION_US))

    def requests_of_a_scrape() -> int:
        before = sum(s3.counts().values())
        scrape = metrics.scrape()
        assert scrape.problems == []
        return sum(s3.counts().values()) - before

    first, second, third = (requests_of_a_scrape() for _ in range(3))
    assert first <= 150
    assert second == third <= 60
