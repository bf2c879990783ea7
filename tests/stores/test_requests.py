"""How many requests a store sees of small joins and look-ups: a table is opened once, and looked at once a step."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from support.command_line import run
from support.nodes import join_request
from support.store.s3 import S3

from cdc_platform.clock import HOUR_US, Clock, Microseconds
from cdc_platform.home import open_home
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import TABLES
from cdc_platform.lake.volume import Workers
from cdc_platform.lifecycle.join.joining import run_join
from cdc_platform.records import inbox
from cdc_platform.settings import Settings

START_US = Microseconds(1_767_225_600_000_000)
STEPS, A_COMMIT, ASKED, AUDITED = 6, 6, 15, 4
"""Of a join: its steps, how many tables it asks for, those that are not there among them, and an audit of a step."""
LOOKS, A_COMMIT_LOOKS = "LIST GET", 3
"""Requests that list a log, and how many of them deltalake and the next look make of one commit."""


@pytest.fixture
def home(s3: S3) -> str:
    """A home in which three nodes have joined, and a fourth waits."""
    address = f"{s3.bucket()}/home"
    lake = Lake(open_home(address, create=True).lake)
    for number in range(1, 4):
        clock = Clock(Microseconds(START_US + HOUR_US * number))
        made = inbox.queue(lake, clock, join_request(number)).generation_id
        run_join(Workers.alone(), lake, clock, Settings(), made)
    return address


def held(lake: Lake) -> dict[str, int]:
    """The newest versions of the tables that there are."""
    found = {table.full_name: lake.version(table) for table in TABLES.values()}
    return {name: version for name, version in found.items() if version is not None}


def more(after: Mapping[str, int], before: Mapping[str, int]) -> int:
    """How much larger all numbers are together."""
    return sum(after.values()) - sum(before.values())


def test_each_table_is_opened_once_and_looked_at_once_a_step(s3: S3, home: str) -> None:
    """A look-up is little more than opening each table; a join, by who has opened none, looks at each once a step."""
    before, tables = s3.counts(), len(held(Lake(open_home(home).lake)))
    opening = more(s3.counts(), before)
    before = s3.counts()
    done = run("--home", home, "--clock", "2026-01-03T00:00:00Z", "generations", "--json")
    assert (done.exit_code, len(done.json)) == (0, 3)
    assert more(s3.counts(), before) <= opening + A_COMMIT * tables
    lake, clock = Lake(open_home(home).lake), Clock(Microseconds(START_US + HOUR_US * 4))
    made = inbox.queue(lake, clock, join_request(4)).generation_id
    versions, fresh, before = held(lake), Lake(str(lake.place)), s3.counts()[LOOKS]
    run_join(Workers.alone(), fresh, clock, Settings(), made)
    looks = s3.counts()[LOOKS] - before
    commits = more(held(lake), versions)
    assert commits >= STEPS
    assert looks <= A_COMMIT_LOOKS * commits + STEPS * (ASKED + AUDITED)
