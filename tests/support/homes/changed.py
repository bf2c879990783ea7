"""A home with a table whose log has full images, and a write of each kind."""

from __future__ import annotations

from pathlib import Path

from support.files.export_files import ID
from support.homes.imported import home_with_generations

from cdc_platform.cdclog.script.commit import commit_script
from cdc_platform.clock import SECOND_US, Clock, Microseconds, parse_time_ms, parse_time_us
from cdc_platform.delta import Lake
from cdc_platform.settings import Settings

SINCE_MS = parse_time_ms("2026-01-31T12:00:00Z")
NOW_US = parse_time_us("2026-01-31T13:00:00Z")
TABLE = """
CREATE KEYSPACE shop WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 1};
CREATE TYPE shop.money (amount decimal, currency text);
CREATE TABLE shop."Carts" (customer text, item int, count int, "Count" int, price frozen<money>, tags set<text>,
    notes list<text>, PRIMARY KEY (customer, item))
    WITH cdc = {'enabled': true, 'preimage': 'full', 'postimage': true};
"""
FIRST = """
INSERT INTO shop."Carts" (customer, item, count, "Count", tags) VALUES ('ada', 1, 2, 3, {'gift'});
"""
LATER = """
UPDATE shop."Carts" SET count = 3, tags = tags - {'gift'}, tags = tags + {'late'}, notes = notes + ['twice']
    WHERE customer = 'ada' AND item = 1;
DELETE FROM shop."Carts" WHERE customer = 'ada' AND item = 1;
DELETE FROM shop."Carts" WHERE customer = 'ada' AND item > 2;
DELETE FROM shop."Carts" WHERE customer = 'ada';
"""
VIEW = 'shop."Carts$changes"'


def home_with_changes(folder: Path, *texts: str) -> Path:
    """Commit scripts ten seconds apart; by default a table with a write of each kind in two commits of its log."""
    home = home_with_generations(folder, {ID: SINCE_MS})
    for number, text in enumerate(texts or (TABLE + FIRST, LATER)):
        clock = Clock(Microseconds(NOW_US + number * SECOND_US * 10))
        result = commit_script(text, Lake(home / "lake"), clock, Settings())
        assert [str(outcome.error) for outcome in result.outcomes if outcome.error] == []
    return home
