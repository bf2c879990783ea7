"""Rows that are put in place of some of those that were read: the others stay, in files and in digests."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from cdc_platform.delta import Lake, PartialReplacement, row_hash
from cdc_platform.delta.row_hash import DIGEST_RULE_PROPERTY, DigestRule
from cdc_platform.errors import InputError, StateError
from cdc_platform.tables import TIMESTAMP, Table, column

INT = pa.int32()
INSIDE = [("part", "in", [0, 1])]


def parts(kind: pa.DataType = INT) -> Table:
    """A table whose parts are named by a column of this type."""
    fields = [column("k", pa.int64(), "key"), column("v", pa.string(), "value"), column("part", kind, "part")]
    return Table("t", "parts", pa.schema(fields), keys=("k",), comment="parts", partition_by=("part",))


def rows(table: Table, *keys: int, value: str = "old") -> pa.Table:
    """A row a key; every third is of one part."""
    found = pa.table({"k": keys, "v": [value] * len(keys), "part": [key % 3 for key in keys]})
    return found.cast(table.schema)


def said(lake: Lake, table: Table) -> dict[str, int]:
    """What the newest commit says that its slices hold."""
    envelope = lake.commits(table)[0].info
    assert envelope is not None
    return dict(envelope.digests)


def told(lake: Lake, table: Table) -> dict[str, int]:
    """What the slices hold."""
    return row_hash.digest_rows(lake.read(table), table.partition_by, lake.digest_rule(table))


def read(lake: Lake, table: Table, *, go: int) -> PartialReplacement:
    """The rows of two parts, of which these go whose keys are multiples of a number."""
    found = lake.read(table, filters=INSIDE)
    return PartialReplacement(found, np.asarray(found["k"]) % go == 0)


@pytest.mark.parametrize("kind", [INT, TIMESTAMP], ids=str)
@pytest.mark.parametrize("rule", DigestRule)
def test_those_that_go_make_room_and_the_rest_stays(lake: Lake, kind: pa.DataType, rule: DigestRule) -> None:
    """By either rule of digests, and where parts are named by times, the commit says what the slices hold then."""
    table = parts(kind)
    lake.ensure(table)
    DeltaTable(lake.path(table)).alter.set_table_properties({DIGEST_RULE_PROPERTY: rule}, raise_if_not_exists=False)
    lake.merge(table, rows(table, *range(2000)), update=False)
    assert lake.digest_rule(table) == rule
    inside = [("part", "in", rows(table, 0, 1)["part"].to_pylist())]
    found = lake.read(table, filters=inside)
    parted = PartialReplacement(found, np.asarray(found["k"]) % 5 == 0)
    came = rows(table, *(key for key in range(1500) if key % 5 == 0 and key % 3 < 2), 3000, value="new")
    assert lake.replace_once(table, came, inside, lake.version(table), parted, app=7)
    assert lake.transaction(table, "app") == 7
    values = {key: "old" for key in range(2000) if key % 5 or key % 3 == 2}
    values |= dict.fromkeys(came["k"].to_pylist(), "new")
    assert {row["k"]: row["v"] for row in lake.read(table).to_pylist()} == values
    assert said(lake, table).items() <= told(lake, table).items()
    assert len(said(lake, table)) == 2


def test_a_slice_that_is_left_empty_and_one_that_only_stays_are_said(lake: Lake) -> None:
    """Each whose files are written anew: what it holds, or nothing."""
    table = parts()
    lake.merge(table, rows(table, 0, 3, 1, 2), update=False)
    found = lake.read(table, filters=INSIDE)
    parted = PartialReplacement(found, np.asarray(found["part"]) == 0)
    assert lake.replace_once(table, rows(table), INSIDE, lake.version(table), parted)
    assert said(lake, table) == {"part=0": 0, "part=1": told(lake, table)["part=1"]}


def test_what_a_stranger_has_put_among_them_stays_told(lake: Lake) -> None:
    """A row that no commit of the platform said goes on in the files, and in no digest."""
    table = parts()
    lake.merge(table, rows(table, *range(30)), update=False)
    write_deltalake(lake.path(table), rows(table, 99), mode="append")
    found = lake.read(table, filters=INSIDE)
    parted = PartialReplacement(found, np.asarray(found["k"]) == 0)
    lake.replace_once(table, rows(table, 0, value="new"), INSIDE, lake.version(table), parted)
    stranger = row_hash.digest_rows(rows(table, 99), table.partition_by, lake.digest_rule(table))
    assert row_hash.update_digests(said(lake, table), stranger, {})["part=0"] == told(lake, table)["part=0"]


def test_rows_that_are_not_all_that_pass_are_refused(lake: Lake) -> None:
    """Nothing is written: what was not read would be gone."""
    table = parts()
    lake.merge(table, rows(table, *range(30)), update=False)
    found, version = read(lake, table, go=5), lake.version(table)
    with pytest.raises(StateError, match="has 20 rows where 19 were read"):
        lake.replace_once(
            table, rows(table, 0), INSIDE, version, PartialReplacement(found.rows.slice(1), found.is_removed[1:])
        )
    assert lake.version(table) == version


def test_what_has_the_key_of_a_row_that_goes_takes_its_place() -> None:
    """The first of them, and what has no such key is behind all; of rows that all go none is waited for."""
    table = parts()
    held, came = rows(table, 1, 4, 7, 10, 13), rows(table, 16, 10, 4, 4, value="new")
    go = np.isin(np.arange(5), [1, 2, 3])
    found = PartialReplacement(held, go).apply(table, came)
    assert found.select(["k", "v"]).to_pylist() == [
        {"k": key, "v": value}
        for key, value in ((1, "old"), (4, "new"), (10, "new"), (13, "old"), (16, "new"), (4, "new"))
    ]
    assert PartialReplacement(held, np.ones(5, bool)).apply(table, came) is came


def test_parts_do_not_fit_a_table_that_they_are_not_of(lake: Lake) -> None:
    """Rows that come are held against the table's columns, as all are."""
    table = parts()
    lake.merge(table, rows(table, *range(30)), update=False)
    with pytest.raises(InputError, match="has no column x"):
        lake.replace_once(table, pa.table({"x": [1]}), INSIDE, lake.version(table), read(lake, table, go=5))
