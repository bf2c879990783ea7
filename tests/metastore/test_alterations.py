"""Unobserved intervals of a table: changes that two consecutive states of the table cannot explain."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdc_platform.clock import Microseconds
from cdc_platform.metastore import (
    TABLE_DROPPED,
    TableAlteration,
    TableChange,
    parse_alteration,
    unobserved_intervals,
    with_unchanged_until,
    without_unchanged_until,
)
from cdc_platform.metastore.alterations import UnobservedInterval, unobserved_until_us
from cdc_platform.metastore.cdc_tables import TABLE_ADDED, TABLE_ALTERED

DDL = """CREATE TABLE shop.t (
    p int,
    v int,
    PRIMARY KEY ((p))
) WITH cdc = {'enabled': 'true', 'delta': 'full'};"""
FIRST = TableAlteration(Microseconds(1_000), Microseconds(1_000), "0a")


def change(
    alteration: TableAlteration | None, ddl: str = DDL, at_us: int = 5_000, what: str = TABLE_ALTERED, ttl: int = 60
) -> TableChange:
    """Return a table change whose DDL carries the observed alteration."""
    text = ddl if alteration is None else f"{ddl}\n{alteration.note()}"
    return TableChange("shop", "t", Microseconds(at_us), what, True, ttl, Microseconds(1_000), text)


LATER = replace(FIRST, at_us=Microseconds(2_000_003))
WIDER = DDL.replace("v int,", "v int,\n    w int,")
SEEN = {
    "it is as it was, and nobody altered it": change(FIRST),
    "a column came with the last of what was done": change(replace(LATER, columns_us=LATER.at_us), WIDER),
    "another option of CDC": change(LATER, DDL.replace("full", "keys")),
    "another TTL of the log": change(LATER, ttl=61),
    "a comment, an index, a view": change(replace(LATER, beside="0b")),
    "nobody looked when it was altered": change(None),
    "the log was made anew": replace(change(LATER), created_at_us=Microseconds(1_500)),
}
UNSEEN = {
    "nothing is other": change(LATER),
    "a column came, and more was done behind it": change(replace(LATER, columns_us=Microseconds(2_000_002)), WIDER),
    "a column went and came back": change(replace(LATER, columns_us=LATER.at_us)),
}


@pytest.mark.parametrize("after", SEEN.values(), ids=SEEN)
def test_one_alteration_explains_every_visible_difference(after: TableChange) -> None:
    """No interval is reported where one alteration explains every difference between two states."""
    assert unobserved_until_us(change(FIRST, what=TABLE_ADDED), after) is None


@pytest.mark.parametrize("after", UNSEEN.values(), ids=UNSEEN)
def test_hidden_alterations_end_with_the_last_one(after: TableChange) -> None:
    """An interval of hidden alterations ends at the cluster's time of the last one, not at the time of observation."""
    assert unobserved_until_us(change(FIRST, what=TABLE_ADDED), after) == LATER.at_us


def test_an_unobserved_change_follows_from_two_consecutive_states() -> None:
    """Consecutive states yield unobserved intervals, except across a drop; notes in the DDL are parsed back."""
    last = change(replace(LATER, at_us=Microseconds(9_000_000)), at_us=9_000_001)
    changes = [change(FIRST, what=TABLE_ADDED), change(LATER), replace(change(LATER), what=TABLE_DROPPED), last]
    assert unobserved_intervals(changes) == [UnobservedInterval(changes[0], Microseconds(5_000), LATER.at_us)]
    restored = replace(changes[1], ddl=with_unchanged_until(changes[1].ddl or "", Microseconds(7_003)))
    assert unobserved_intervals([changes[0], restored]) == [
        UnobservedInterval(changes[0], Microseconds(7_003), LATER.at_us)
    ]
    assert without_unchanged_until(restored.ddl) == changes[1].ddl
    assert (parse_alteration(restored.ddl), without_unchanged_until(None)) == (LATER, None)
    assert parse_alteration(change(LATER).ddl) == LATER
    assert parse_alteration(None) is None
