"""Consumers that store changes: the rows of the view, each stored once, whatever is added to the table in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from support.homes.changed import FIRST, LATER, NOW_US, TABLE, home_with_changes

from cdc_platform import failpoints
from cdc_platform.cdclog import (
    changes_from_log,
    check_interval_read,
    commit_script,
    log_table,
    read_logged_images,
    read_table_schema,
    reader,
)
from cdc_platform.clock import MINUTE_US, Clock, Microseconds
from cdc_platform.cql import TableSchema
from cdc_platform.delta import Lake
from cdc_platform.errors import InputError, StateError
from cdc_platform.metastore import consumers
from cdc_platform.settings import Settings

KEYS = ["cdc$stream_id", "cdc$time", "cdc$batch_seq_no"]


def current_schema(lake: Lake) -> TableSchema:
    """Return the table's current schema."""
    return read_table_schema(lake, "shop", "Carts")


def clock(minutes: int) -> Clock:
    """Return a clock some minutes after the scripts."""
    return Clock(Microseconds(NOW_US + minutes * MINUTE_US))


def consume(lake: Lake, minutes: int = 5, **how: Any) -> int:
    """Return the number of changes that a run of the consumer adds."""
    return reader.consume(lake, clock(minutes), current_schema(lake), "search", **how)[1]


def sink_rows(lake: Lake) -> list[dict[str, Any]]:
    """Return the rows of the sink in the order of the view, without the columns that only sinks have."""
    sink = reader.sink_table(current_schema(lake), "search", changes=True)
    rows = (
        DeltaTable(lake.path(sink)).to_pyarrow_table().sort_by([("ts", "ascending"), ("cdc$batch_seq_no", "ascending")])
    )
    return rows.drop_columns(["cdc$generation"]).to_pylist()


def view_rows(lake: Lake) -> list[dict[str, Any]]:
    """Return the changes that the view derives from the log."""
    schema = current_schema(lake)
    changes = changes_from_log(schema, lake.read(log_table(schema)), read_logged_images(lake, schema))
    return changes.sort_by([("ts", "ascending"), ("cdc$batch_seq_no", "ascending")]).to_pylist()


def test_a_consumer_stores_each_change_once(tmp_path: Path) -> None:
    """Several runs store each change once; only the first one needs the option, and a sink of log rows refuses it."""
    lake = Lake(home_with_changes(tmp_path, TABLE + FIRST) / "lake")
    assert consume(lake, changes=True) == 1
    later = Clock(Microseconds(NOW_US + 6 * MINUTE_US))
    assert not [o.error for o in commit_script(LATER, lake, later, Settings()).outcomes if o.error]
    assert consume(lake, 20) == 4
    assert consume(lake, 30, changes=True) == 0
    assert sink_rows(lake) == view_rows(lake)
    schema = current_schema(lake)
    reader.consume(lake, clock(30), schema, "audit")
    with pytest.raises(InputError, match=r"shop\.Carts_scylla_cdc_log_audit has log rows, not changes"):
        reader.consume(lake, clock(30), schema, "audit", changes=True)


@pytest.mark.parametrize("point", [failpoints.BEFORE_SINK, failpoints.AFTER_SINK])
def test_a_run_killed_at_any_step_is_completed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """A run killed before the window's commit stores nothing, and one killed after it stores nothing twice."""
    lake = Lake(home_with_changes(tmp_path) / "lake")

    def stop(selected: str) -> None:
        if selected == point:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(failpoints, "kill_if_selected", stop)
        with pytest.raises(KeyboardInterrupt):
            consume(lake, changes=True)
    consume(lake, changes=True)
    assert sink_rows(lake) == view_rows(lake)


GROWN = """
ALTER TYPE shop.money ADD rate double;
ALTER TABLE shop."Carts" ADD (extra map<text, frozen<money>>);
INSERT INTO shop."Carts" (customer, item, extra, price) VALUES
    ('bob', 1, {'k': {amount: 1, currency: 'EUR', rate: 2.5}}, {amount: 3, currency: 'EUR', rate: 0.5});
"""


def test_added_columns_and_fields_enter_the_sink(tmp_path: Path) -> None:
    """They are null in older changes; a dropped column retains its values."""
    lake = Lake(home_with_changes(tmp_path) / "lake")
    assert consume(lake, changes=True) == 5
    for minutes, text in (
        (6, GROWN),
        (9, 'ALTER TABLE shop."Carts" DROP count;' + FIRST.replace("count, ", "").replace("2, ", "")),
    ):
        result = commit_script(text, lake, clock(minutes), Settings())
        assert [str(outcome.error) for outcome in result.outcomes if outcome.error] == []
        consume(lake, minutes + 2)
    rows = sink_rows(lake)
    grown = rows[5]
    assert grown["after"]["price"] == {"amount": "3", "currency": "EUR", "rate": 0.5}
    assert grown["after"]["extra"] == [("k", {"amount": "1", "currency": "EUR", "rate": 2.5})]
    assert grown["changes"]["extra"]["added"] == grown["after"]["extra"]
    assert rows[0]["after"]["extra"] is None
    after_rows = [row["after"] for row in rows if row["after"] is not None]
    assert [(row["count"], row["Count$1"]) for row in after_rows] == [(2, 3), (3, 3), (None, None), (None, 3)]


def test_a_column_of_another_type_needs_another_sink(tmp_path: Path) -> None:
    """The error is one line, and nothing is stored."""
    lake = Lake(home_with_changes(tmp_path) / "lake")
    consume(lake, changes=True)
    text = 'ALTER TABLE shop."Carts" DROP count;'
    commit_script(text, lake, clock(6), Settings())
    commit_script('ALTER TABLE shop."Carts" ADD count text;', lake, clock(7), Settings())
    commit_script(FIRST.replace("1, 2,", "1, 'two',"), lake, clock(8), Settings())
    before = sink_rows(lake)
    with pytest.raises(StateError, match=r"before.count is int32 there and string now; .* --changes"):
        consume(lake, 12)
    assert sink_rows(lake) == before


def test_an_interval_of_changes_is_verified(tmp_path: Path) -> None:
    """The checks compare the changes derived from the log, and a consumer of log rows by its writes."""
    lake = Lake(home_with_changes(tmp_path) / "lake")
    consume(lake, changes=True)
    schema = current_schema(lake)
    reader.consume(lake, clock(5), schema, "audit")
    since, until = Microseconds(NOW_US - MINUTE_US), Microseconds(NOW_US + MINUTE_US)

    def failed(name: str) -> list[str]:
        consumer = consumers.find_consumer(lake, name, "shop", "Carts")
        others = [consumers.find_consumer(lake, other, "shop", "Carts") for other in {"audit", "search"} - {name}]
        checks = check_interval_read(lake, clock(6), schema, consumer, since, until, others)
        return [check.what for check in checks if not check.holds]

    assert (failed("search"), failed("audit")) == ([], [])
    table = DeltaTable(lake.path(reader.sink_table(schema, "search", changes=True)))
    table.delete("kind = 'row_delete'")
    lake = Lake(lake.root)
    assert failed("search") == ["the reader has the log's rows", "it has all that audit has read"]
