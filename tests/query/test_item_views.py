"""Views of Alternator's items: declared attributes as columns, whole items as JSON, and tables without such a view."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.homes.changed import ALTERNATOR, FIRST, ITEMS, TABLE, home_with_changes, with_alternator_replica

from cdc_platform.delta import Lake
from cdc_platform.errors import InputError
from cdc_platform.home import open_home
from cdc_platform.query import duckdb


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a table of Alternator and another table, both with logs."""
    home = home_with_changes(tmp_path_factory.mktemp("items"), TABLE + FIRST, ALTERNATOR)
    with_alternator_replica(Lake(home / "lake"))
    return home


def test_items_have_columns_of_all_types(home: Path) -> None:
    """Values of another type are null and listed; items without attributes have their key."""
    with duckdb.run_duckdb_query(Lake(home / "lake"), f"SELECT * FROM {ITEMS} ORDER BY p") as result:
        assert result.schema.names[2:9] == ["s x", "n x", "b x", "bool x", "ss x", "ns x", "bs x"]
        first, second, third = result.values()
    assert first[:9] == ("x", "1.50", "text", "1.5", b"\x00\xff", True, ["b", "a"], ["-1"], [b"\x00"])
    assert first[10:] == ([], False)
    assert second[2:9] == (None,) * 7
    assert second[10] == ["s x"]
    key = {"p": {"S": "y"}, "c": {"N": "2"}}
    assert json.loads(second[9]) == key | {"s x": {"L": []}, "null": {"NULL": True}}
    assert json.loads(first[9])["c"] == {"N": "1.5"}
    assert json.loads(third[9]) == {"p": {"S": "z"}, "c": {"N": "0"}}


def test_python_reads_equal_items(home: Path) -> None:
    """By the unquoted name, with columns and filters."""
    opened = open_home(str(home))
    name = "alternator_my.table-v2.my.table-v2$items"
    assert sorted(opened.read(name, columns=["p"])["p"].to_pylist()) == ["x", "y", "z"]
    with duckdb.run_duckdb_query(Lake(home / "lake"), f"SELECT item FROM {ITEMS}") as result:
        assert sorted(opened.read(name)["item"].to_pylist()) == sorted(row[0] for row in result.values())


@pytest.mark.parametrize("name", ['shop."Carts$items"', "missing$items", '"alternator_my.table-v2"."other$items"'])
def test_other_tables_have_no_items(home: Path, name: str) -> None:
    """One line says that the table does not exist."""
    with (
        pytest.raises(InputError, match="there is no table"),
        duckdb.run_duckdb_query(Lake(home / "lake"), f"SELECT * FROM {name}"),
    ):
        pass
