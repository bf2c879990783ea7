"""Conditional commits, which are decided again after a conflict, and locks over several tables."""

from __future__ import annotations

import errno
import fcntl
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc_platform.clock import Microseconds, datetime_from_us
from cdc_platform.delta import Lake, locks
from cdc_platform.errors import ConflictError, EnvironmentProblem, InputError, StateError
from cdc_platform.tables import CDC_TABLE_CHANGES, CDC_TABLES

ROW = {"keyspace_name": "ks", "enabled": True, "created_at": datetime_from_us(Microseconds(0)), "ddl": None}


def rows(**ttls: int) -> pa.Table:
    """Return rows of tables by their names."""
    records = [ROW | {"table_name": name, "ttl_seconds": ttl} for name, ttl in ttls.items()]
    return pa.Table.from_pylist(records, schema=CDC_TABLES.schema)


def change(at: int, ttl: int = 1) -> pa.Table:
    """Return a row of the history."""
    row = ROW | {
        "table_name": "t",
        "ttl_seconds": ttl,
        "changed_at": datetime_from_us(Microseconds(at)),
        "what": "altered",
    }
    return pa.Table.from_pylist([row], schema=CDC_TABLE_CHANGES.schema)


def ttls(lake: Lake) -> dict[str, int]:
    """Return the TTLs in the table by table name."""
    return {row["table_name"]: row["ttl_seconds"] for row in lake.read(CDC_TABLES).to_pylist()}


def test_a_decision_by_old_rows_is_not_written(lake: Lake) -> None:
    """If another row arrives after the decision, the rule decides again, and a refused write is not committed."""
    lake.merge(CDC_TABLES, rows(first=1), update=False)
    seen = []

    def judge() -> pa.Table:
        seen.append(ttls(lake))
        if "second" in seen[-1]:
            raise InputError("there is a second one")
        lake.merge(CDC_TABLES, rows(second=2), update=False)
        return rows(third=3)

    with pytest.raises(InputError, match="second"):
        lake.merge_judged(CDC_TABLES, judge)
    assert seen == [{"first": 1}, {"first": 1, "second": 2}]
    assert ttls(lake) == {"first": 1, "second": 2}


def test_a_refusal_creates_no_table(lake: Lake) -> None:
    """A refused write and an empty write leave no files."""

    def refuse(*_: Any) -> pa.Table:
        raise InputError("no")

    for attempt in (lambda: lake.merge_judged(CDC_TABLES, refuse), lambda: lake.transact(CDC_TABLES, refuse)):
        with pytest.raises(InputError):
            attempt()
    assert lake.merge_judged(CDC_TABLES, lambda: None) is None
    lake.transact(CDC_TABLES, lambda _: None)
    assert not lake.exists(CDC_TABLES)


def test_a_rule_of_an_append_only_table_adds_rows(lake: Lake) -> None:
    """The rule gets all rows, its result is inserted where the key is new, and a conflict calls it again."""
    seen = []

    def rule(known: pa.Table) -> pa.Table:
        seen.append(known.num_rows)
        if len(seen) == 2:
            lake.merge(CDC_TABLE_CHANGES, change(7), update=False)
        return pa.concat_tables([change(5, ttl=9), change(known.num_rows)])

    lake.merge(CDC_TABLE_CHANGES, change(5), update=False)
    lake.transact(CDC_TABLE_CHANGES, rule)
    lake.transact(CDC_TABLE_CHANGES, rule)
    records = lake.read(CDC_TABLE_CHANGES).sort_by("changed_at").to_pylist()
    assert seen == [1, 2, 3]
    assert [(row["changed_at"], row["ttl_seconds"]) for row in records] == [
        (datetime_from_us(Microseconds(at)), 1) for at in (1, 3, 5, 7)
    ]
    with pytest.raises(StateError, match="is append-only"):
        lake.transact(CDC_TABLE_CHANGES, rule, whole=True)


def test_a_rule_may_return_all_rows(lake: Lake) -> None:
    """Rows are inserted, changed and removed in one commit; equal rows cause no commit."""
    lake.transact(CDC_TABLES, lambda _: rows(a=1, b=2), whole=True)
    before = lake.version(CDC_TABLES)
    lake.transact(CDC_TABLES, lambda _: rows(b=2, a=1), whole=True)
    assert lake.version(CDC_TABLES) == before
    lake.transact(CDC_TABLES, lambda _: rows(a=1, b=5), whole=True)
    assert ttls(lake) == {"a": 1, "b": 5}
    lake.transact(CDC_TABLES, lambda _: rows(b=3, c=4), whole=True)
    assert ttls(lake) == {"b": 3, "c": 4}
    lake.transact(CDC_TABLES, lambda _: rows(), whole=True)
    assert ttls(lake) == {}
    assert before is not None
    assert lake.version(CDC_TABLES) == before + 3


def test_one_thread_at_a_time_has_a_lock(lake: Lake) -> None:
    """Locks exclude threads as well as processes; a nested lock is reentrant, and another lock is independent."""
    inside, most = [0], [0]

    @locks.exclusive(locks.TABLES_LOCK)
    def work(lake: Lake) -> None:
        with locks.lake_lock(lake, locks.TABLES_LOCK), locks.lake_lock(lake, locks.JOINS_LOCK):
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            threading.Event().wait(0.01)
            inside[0] -= 1

    workers = [threading.Thread(target=work, args=[lake]) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert (inside, most) == ([0], [1])
    assert not lake.root.exists()


def test_a_lock_timeout_names_the_owner(lake: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The message names the process that has the lock; an error in the block releases the lock."""
    monkeypatch.setattr(locks, "_LOCK_WAIT_SECONDS", 0.05)
    messages: list[str] = []

    def late() -> None:
        try:
            with locks.lake_lock(lake, locks.IMPORTS_LOCK):
                messages.append("taken")
        except ConflictError as error:
            messages.append(str(error))

    def wait() -> None:
        worker = threading.Thread(target=late)
        worker.start()
        worker.join()

    @locks.exclusive(locks.IMPORTS_LOCK)
    def failing(lake: Lake) -> None:
        wait()
        raise InputError("over")

    with pytest.raises(InputError):
        failing(lake)
    wait()
    assert "process" in messages[0]
    assert "run it again when it is done" in messages[0]
    assert messages[1] == "taken"


def test_a_step_pins_the_version_of_each_table(lake: Lake) -> None:
    """A step sees the version of its first look and its own writes; the next step sees what others wrote."""
    other = Lake(lake.root)
    with lake.table_cache.pin_versions():
        assert not lake.exists(CDC_TABLES)
        assert lake.read(CDC_TABLES).num_rows == 0
        lake.merge(CDC_TABLES, rows(first=1), update=False)
        other.merge(CDC_TABLES, rows(second=2), update=False)
        assert ttls(lake) == {"first": 1}
        lake.table_cache.revalidate(lake.path(CDC_TABLES))
        assert ttls(lake) == {"first": 1, "second": 2}
        other.delete(CDC_TABLES, [("table_name", "=", "first")])
    assert lake.exists(CDC_TABLES)
    assert ttls(lake) == {"second": 2}


def test_a_step_never_builds_on_an_outdated_version(lake: Lake) -> None:
    """A commit succeeds the version that the step saw; else the step reads every table again and no write is lost."""
    other = Lake(lake.root)
    lake.merge(CDC_TABLES, rows(first=1), update=False)
    calls = []

    def rule(known: pa.Table) -> pa.Table:
        calls.append((known.num_rows, lake.read(CDC_TABLE_CHANGES).num_rows))
        return rows(second=sum(known["ttl_seconds"].to_pylist()))

    with lake.table_cache.pin_versions():
        assert lake.read(CDC_TABLE_CHANGES).num_rows == 0
        assert ttls(lake) == {"first": 1}
        other.merge(CDC_TABLES, rows(third=3), update=False)
        other.merge(CDC_TABLE_CHANGES, change(5), update=False)
        lake.transact(CDC_TABLES, rule)
    assert calls == [(1, 0), (2, 1)]
    assert ttls(lake) == {"first": 1, "second": 4, "third": 3}


def test_a_file_that_cannot_be_locked_is_named(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the file that cannot be locked."""

    def refused(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", refused)
    message = r"^/.*\.turns/joining cannot be locked: Input/output error; check permissions and space$"
    with pytest.raises(EnvironmentProblem, match=message), locks.lake_lock(lake, "joining"):
        raise AssertionError("nobody has the turn")


def test_acquiring_a_lock_revalidates_tables(lake: Lake) -> None:
    """The previous owner of the lock may have written, so the next owner sees its rows."""
    other = Lake(lake.root)
    lake.merge(CDC_TABLES, rows(first=1), update=False)
    with lake.table_cache.pin_versions():
        assert ttls(lake) == {"first": 1}
        other.merge(CDC_TABLES, rows(second=2), update=False)
        with locks.lake_lock(lake, locks.TABLES_LOCK):
            assert ttls(lake) == {"first": 1, "second": 2}
