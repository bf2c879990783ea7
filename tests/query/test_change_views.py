"""Views of changes: equal rows in DuckDB, Python and Spark; names, the past, damage and missing logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from support.files.bad_input import listing
from support.homes.changed import FIRST, TABLE, VIEW, home_with_changes

from cdc_platform.cdclog import changes_from_log, changes_schema, log_table, read_logged_images, read_table_schema
from cdc_platform.delta import Lake
from cdc_platform.errors import InputError, StateError
from cdc_platform.home import open_home
from cdc_platform.query import TimeTravel, change_views, duckdb


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with full images and names that differ by case."""
    return home_with_changes(tmp_path_factory.mktemp("changed"))


@pytest.fixture(scope="module")
def lake(home: Path) -> Lake:
    """The home's lake."""
    return Lake(home / "lake")


def rows(lake: Lake, query: str, **options: Any) -> list[tuple[Any, ...]]:
    """Return the rows of a DuckDB query."""
    with duckdb.run_duckdb_query(lake, query, **options) as result:
        return list(result.values())


def test_a_view_shows_each_change_with_the_row_around_it(lake: Lake) -> None:
    """From the insert to the deletion of the partition."""
    query = f"SELECT op, kind, before_state, after_state, before.count, after.count FROM {VIEW} ORDER BY ts"
    assert rows(lake, query) == [
        ("c", "insert", "absent", "full", None, 2),
        ("u", "update", "full", "full", 2, 3),
        ("d", "row_delete", "full", "absent", 3, None),
        ("d", "range_delete", "unknown", "absent", None, None),
        ("d", "partition_delete", "unknown", "absent", None, None),
    ]
    query = f"SELECT changes.tags.added, changes.tags.removed, after.notes, after.tags FROM {VIEW} WHERE op = 'u'"
    assert rows(lake, query) == [(["late"], ["gift"], ["twice"], ["late"])]
    bounds = '"range".start.item, "range".start_inclusive, "range".end'
    query = f"SELECT key.customer, key.item, {bounds} FROM {VIEW} WHERE kind = 'range_delete'"
    assert rows(lake, query) == [("ada", None, 2, False, None)]
    # Names that differ by case alone are those of the log's table.
    assert rows(lake, f"SELECT after.\"Count$1\" FROM {VIEW} WHERE op = 'c'") == [(3,)]


@pytest.mark.parametrize(
    "name", [VIEW, '"Carts$changes"', "carts$changes", "SHOP.CARTS$CHANGES", '"shop"."carts$changes"']
)
def test_a_view_is_found_by_its_names(lake: Lake, name: str) -> None:
    """A view has the names of tables; a query may use it several times."""
    assert rows(lake, f"SELECT count(*) FROM {name}") == [(5,)]
    both = f"SELECT count(*) FROM {name} AS a JOIN {name} AS b ON a.ts = b.ts"
    assert rows(lake, both) == [(5,)]


def test_python_reads_equal_rows(home: Path, lake: Lake) -> None:
    """With all columns, some columns and a filter; the view is the rule applied to the log."""
    with open_home(home) as opened:
        whole = opened.read("shop.Carts$changes")
        part = opened.read("shop.Carts$changes", ["op"], filter=pc.field("op") == "d")
    schema = read_table_schema(lake, "shop", "Carts")
    log = lake.read(log_table(schema))
    expected = changes_from_log(schema, log, read_logged_images(lake, schema))
    assert whole.equals(expected)
    assert whole.schema.equals(changes_schema(schema))
    assert part.to_pydict() == {"op": ["d", "d", "d"]}


def test_a_view_is_joined_in_parts_of_whole_writes(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The size of the parts does not change the result."""
    query = f"SELECT * EXCLUDE (before, after) FROM {VIEW} ORDER BY ts"
    whole = rows(lake, query)
    for size in (1, 2, 3):
        monkeypatch.setattr(change_views, "ROWS_AT_ONCE", size)
        assert rows(lake, query) == whole


def test_a_view_has_the_past_of_its_log(lake: Lake) -> None:
    """By version and by time."""
    schema = read_table_schema(lake, "shop", "Carts")
    version = lake.version(log_table(schema))
    assert version is not None
    assert rows(lake, f"SELECT op FROM {VIEW}", at=TimeTravel(version=version - 1)) == [("c",)]


def test_a_wrong_name_is_one_line_and_creates_nothing(lake: Lake) -> None:
    """A table without a log has no view."""
    before = listing(lake.root)
    with pytest.raises(InputError, match=r"there is no table shop.nothing\$changes"):
        rows(lake, 'SELECT * FROM shop."nothing$changes"')
    with pytest.raises(InputError, match="before_sate"):
        rows(lake, f"SELECT before_sate FROM {VIEW}")
    assert listing(lake.root) == before


def test_a_log_without_writes_has_an_empty_view(tmp_path: Path) -> None:
    """The view has its columns."""
    lake = Lake(home_with_changes(tmp_path, TABLE) / "lake")
    assert rows(lake, f"SELECT op, before.count FROM {VIEW}") == []


def test_a_damaged_log_is_named(tmp_path: Path) -> None:
    """A missing file is reported as the log's."""
    home = home_with_changes(tmp_path, TABLE + FIRST)
    folder = home / "lake" / "shop" / "Carts_scylla_cdc_log"
    for file in folder.rglob("*.parquet"):
        file.unlink()
    with pytest.raises(StateError, match=r"shop.Carts_scylla_cdc_log: .* is missing"):
        rows(Lake(home / "lake"), f"SELECT op FROM {VIEW}")
