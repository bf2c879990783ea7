"""Replacement of some of the rows that were read: the other rows stay, in files and in digests."""

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
    """Return a table whose partition column has this type."""
    fields = [column("k", pa.int64(), "key"), column("v", pa.string(), "value"), column("part", kind, "part")]
    return Table("t", "parts", pa.schema(fields), keys=("k",), comment="parts", partition_by=("part",))


def rows(table: Table, *keys: int, value: str = "old") -> pa.Table:
    """Return one row per key; every third key is in the same partition."""
    records = pa.table({"k": keys, "v": [value] * len(keys), "part": [key % 3 for key in keys]})
    return records.cast(table.schema)


def recorded_digests(lake: Lake, table: Table) -> dict[str, int]:
    """Return the digests of partitions that the newest commit records."""
    envelope = lake.commits(table)[0].info
    assert envelope is not None
    return dict(envelope.digests)


def actual_digests(lake: Lake, table: Table) -> dict[str, int]:
    """Return the digests of the partitions' rows."""
    return row_hash.digest_rows(lake.read(table), table.partition_by, lake.digest_rule(table))


def read(lake: Lake, table: Table, *, go: int) -> PartialReplacement:
    """Return the rows of two partitions, with those removed whose keys are multiples of `go`."""
    records = lake.read(table, filters=INSIDE)
    return PartialReplacement(records, np.asarray(records["k"]) % go == 0)


@pytest.mark.parametrize("kind", [INT, TIMESTAMP], ids=str)
@pytest.mark.parametrize("rule", DigestRule)
def test_partial_replacement_keeps_the_other_rows(lake: Lake, kind: pa.DataType, rule: DigestRule) -> None:
    """With either digest rule, also with time partitions, the commit records the digests of the new content."""
    table = parts(kind)
    lake.ensure(table)
    DeltaTable(lake.path(table)).alter.set_table_properties({DIGEST_RULE_PROPERTY: rule}, raise_if_not_exists=False)
    lake.merge(table, rows(table, *range(2000)), update=False)
    assert lake.digest_rule(table) == rule
    inside = [("part", "in", rows(table, 0, 1)["part"].to_pylist())]
    records = lake.read(table, filters=inside)
    replacement = PartialReplacement(records, np.asarray(records["k"]) % 5 == 0)
    added = rows(table, *(key for key in range(1500) if key % 5 == 0 and key % 3 < 2), 3000, value="new")
    assert lake.replace_once(table, added, inside, lake.version(table), replacement, app=7)
    assert lake.transaction(table, "app") == 7
    values = {key: "old" for key in range(2000) if key % 5 or key % 3 == 2}
    values |= dict.fromkeys(added["k"].to_pylist(), "new")
    assert {row["k"]: row["v"] for row in lake.read(table).to_pylist()} == values
    assert recorded_digests(lake, table).items() <= actual_digests(lake, table).items()
    assert len(recorded_digests(lake, table)) == 2


def test_emptied_and_unchanged_partitions_are_recorded(lake: Lake) -> None:
    """The commit records the digest of each partition whose files it rewrites, or 0 if it is empty."""
    table = parts()
    lake.merge(table, rows(table, 0, 3, 1, 2), update=False)
    records = lake.read(table, filters=INSIDE)
    replacement = PartialReplacement(records, np.asarray(records["part"]) == 0)
    assert lake.replace_once(table, rows(table), INSIDE, lake.version(table), replacement)
    assert recorded_digests(lake, table) == {"part=0": 0, "part=1": actual_digests(lake, table)["part=1"]}


def test_a_foreign_row_stays_detectable(lake: Lake) -> None:
    """A row that no commit of the platform recorded stays in the files and in no digest."""
    table = parts()
    lake.merge(table, rows(table, *range(30)), update=False)
    write_deltalake(lake.path(table), rows(table, 99), mode="append")
    records = lake.read(table, filters=INSIDE)
    replacement = PartialReplacement(records, np.asarray(records["k"]) == 0)
    lake.replace_once(table, rows(table, 0, value="new"), INSIDE, lake.version(table), replacement)
    stranger = row_hash.digest_rows(rows(table, 99), table.partition_by, lake.digest_rule(table))
    assert (
        row_hash.update_digests(recorded_digests(lake, table), stranger, {})["part=0"]
        == actual_digests(lake, table)["part=0"]
    )


def test_an_incomplete_read_is_refused(lake: Lake) -> None:
    """Write nothing if the read rows are not all that pass the filter, since the others would be lost."""
    table = parts()
    lake.merge(table, rows(table, *range(30)), update=False)
    replacement, version = read(lake, table, go=5), lake.version(table)
    with pytest.raises(StateError, match="has 20 rows where 19 were read"):
        lake.replace_once(
            table,
            rows(table, 0),
            INSIDE,
            version,
            PartialReplacement(replacement.rows.slice(1), replacement.is_removed[1:]),
        )
    assert lake.version(table) == version


def test_a_new_row_takes_the_position_of_the_removed_row_with_its_key() -> None:
    """A key's first new row takes the removed row's position, others follow; if all go, only the new rows remain."""
    table = parts()
    rows_read, added = rows(table, 1, 4, 7, 10, 13), rows(table, 16, 10, 4, 4, value="new")
    go = np.isin(np.arange(5), [1, 2, 3])
    result = PartialReplacement(rows_read, go).apply(table, added)
    assert result.select(["k", "v"]).to_pylist() == [
        {"k": key, "v": value}
        for key, value in ((1, "old"), (4, "new"), (10, "new"), (13, "old"), (16, "new"), (4, "new"))
    ]
    assert PartialReplacement(rows_read, np.ones(5, bool)).apply(table, added) is added


def test_rows_of_another_table_are_refused(lake: Lake) -> None:
    """New rows are checked against the table's columns."""
    table = parts()
    lake.merge(table, rows(table, *range(30)), update=False)
    with pytest.raises(InputError, match="has no column x"):
        lake.replace_once(table, pa.table({"x": [1]}), INSIDE, lake.version(table), read(lake, table, go=5))
