"""Scripts of any length: data beyond the memory limits is moved to files, and the results are the same."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest
from support.files.cql_scripts import NOW_US

from cdc_platform.cdclog import (
    Script,
    ScriptResult,
    StatementOutcome,
    commit_script,
    dry_run_on_stored_tables,
    log_table,
    read_table_schema,
)
from cdc_platform.cdclog.script import commit, run
from cdc_platform.cdclog.script.run import iter_script_statements
from cdc_platform.cdclog.state import store
from cdc_platform.cdclog.state.store import read_state
from cdc_platform.clock import Clock, Microseconds
from cdc_platform.cql import Mutation, parse_statements, table
from cdc_platform.cql.ast import Statement
from cdc_platform.delta import Lake
from cdc_platform.errors import InputError
from cdc_platform.settings import Settings

TABLE = """CREATE TYPE ks.u (a int, b text);
CREATE TABLE ks.t (p int, c int, s int static, v int, l list<int>, u u, at timestamp, PRIMARY KEY (p, c))
    WITH cdc = {'enabled': true, 'preimage': true};
"""
WRITES = """INSERT INTO ks.t (p, c, v, l, u) VALUES (1, 1, 1, [1, 2], {a: 1, b: 'x'});
INSERT INTO ks.t (p, c, v) VALUES (2, 1, 2);
INSERT INTO ks.t (p, c, at) VALUES (3, 1, -99999999999999999);
UPDATE ks.t SET l = l + [3], s = 7 WHERE p = 1 AND c = 1;
DELETE FROM ks.t WHERE p = 2 AND c > 0;
ALTER TABLE ks.t ADD w text;
ALTER TABLE ks.t DROP v;
UPDATE ks.t SET w = 'w', u.a = 9 WHERE p = 1 AND c = 1;
ALTER TABLE ks.t RENAME p TO q;
INSERT INTO ks.t (q, c, w) VALUES (4, 4, 'four');
UPDATE ks.t SET l = l - [1] WHERE q = 1 AND c = 1;
DELETE FROM ks.t WHERE q = 3;
INSERT INTO ks.t (q, c, w) VALUES (2, 2, 'late') USING TIMESTAMP 1606392000000000;
"""


@pytest.fixture
def nothing_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit memory to one partition, two log rows and three rows of a token range."""
    monkeypatch.setattr(table, "MAX_PARTITIONS_IN_MEMORY", 1)
    monkeypatch.setattr(run, "ROWS_PER_BLOCK", 2)
    monkeypatch.setattr(commit, "ROWS_PER_BLOCK", 2)
    monkeypatch.setattr(commit, "ROWS_PER_FILE", 4)
    monkeypatch.setattr(store, "_ROWS_PER_TOKEN_RANGE", 3)


def apply_scripts(home: Path, folder: Path, scripts: Sequence[str]) -> tuple[list[str], list[str], list[str], object]:
    """Apply scripts to a copy of a home.

    Return outcomes, log rows, state, and the table as the next script reads it.
    """
    shutil.copytree(home, folder)
    lake = Lake(folder / "lake")
    outcomes: list[str] = []
    for number, text in enumerate(scripts):
        clock = Clock(Microseconds(NOW_US + number * 1_000_000))
        commit_script(
            text,
            lake,
            clock,
            Settings(),
            on_outcome=lambda outcome: outcomes.append(f"{outcome.became} {outcome.rows}"),
        )
    schema = read_table_schema(lake, "ks", "t")
    log = log_table(schema, exact=True)
    rows = lake.read_version(log, lake.version(log) or 0).to_pylist()
    state = read_state(lake, schema, lake.version(log)).whole(schema)
    result = dry_run_on_stored_tables(
        "TRUNCATE ks.none; DELETE FROM ks.t WHERE q = 99;", lake, Clock(NOW_US), Settings()
    )
    (table,) = result.tables
    assert table.base == table.replayed
    return outcomes, sorted(map(repr, rows)), sorted(map(repr, state.to_pylist())), table.base


@pytest.fixture(scope="module")
def in_memory(streams_home: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[object, ...]:
    """Return the results of the script with everything in memory."""
    return apply_scripts(streams_home, tmp_path_factory.mktemp("fits") / "home", [TABLE + WRITES])


def test_data_in_files_gives_the_same_results(
    streams_home: Path, tmp_path: Path, in_memory: tuple[object, ...], nothing_fits: None
) -> None:
    """Outcomes, log, state and table are the same for a script with ALTER, RENAME, far times and images."""
    assert apply_scripts(streams_home, tmp_path / "home", [TABLE + WRITES]) == in_memory


def test_a_state_in_token_ranges_includes_later_writes(streams_home: Path, tmp_path: Path, nothing_fits: None) -> None:
    """Scripts that continue from a state in token ranges leave the same table as a single script."""
    scripts = [TABLE, *(f"{line};" for line in WRITES.replace("\n", "").split(";") if line)]
    parts = apply_scripts(streams_home, tmp_path / "parts", scripts)
    single = Script(Lake(streams_home / "lake"), Settings(), NOW_US)
    result = single.run(parse_statements(TABLE + WRITES))
    assert parts[3] == result.tables[0].base == result.tables[0].replayed


def test_a_result_does_not_change_later(streams_home: Path, nothing_fits: None) -> None:
    """A later run on the same files does not change the tables of an earlier result."""
    script = Script(Lake(streams_home / "lake"), Settings(), NOW_US)
    first = script.run(
        parse_statements(TABLE + "".join(f"INSERT INTO ks.t (p, c, v) VALUES ({p}, 0, 0);" for p in range(5)))
    )
    second = script.run(parse_statements("".join(f"UPDATE ks.t SET v = 1 WHERE p = {p} AND c = 0;" for p in range(5))))
    for result, value in ((first, 0), (second, 1)):
        (table,) = result.tables
        assert table.base == table.replayed
        assert [row["v"] for row in table.base] == [value] * 5


def count_objects(home: Path, count: int) -> int:
    """Return the statements, outcomes, log rows and partitions in memory at the last of this many inserts."""
    text = TABLE + "".join(f"INSERT INTO ks.t (p, c, v, l) VALUES ({p}, 1, 1, [1, 2, 3]);\n" for p in range(count))
    script, counts = Script(Lake(home / "lake"), Settings(), NOW_US), [0, 0]

    def count_at_the_end(_: StatementOutcome) -> None:
        counts[0] += 1
        if counts[0] == count:
            gc.collect()
            counts[1] = sum(map(_belongs_to_a_script, gc.get_objects()))

    result = script.run(iter_script_statements(text), count_at_the_end)
    assert result.summary["done"]["INSERT"] == count
    return counts[1]


def _belongs_to_a_script(item: object) -> bool:
    kind = type(item)  # isinstance dereferences a proxy, whose object may be gone
    if kind is dict:
        return "cdc$time" in cast("dict[object, object]", item)
    return issubclass(kind, StatementOutcome | Statement | Mutation)


def test_memory_does_not_grow_with_statements(streams_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four times as many statements, each with its own partition, use no more memory than the limits allow."""
    monkeypatch.setattr(table, "MAX_PARTITIONS_IN_MEMORY", 20)
    monkeypatch.setattr(run, "ROWS_PER_BLOCK", 20)
    assert (
        20
        < count_objects(streams_home, 150)
        < count_objects(streams_home, 600) + 60
        < count_objects(streams_home, 150) + 120
    )


def test_long_texts_are_stored_compressed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every script is read back unchanged; a long one takes less space, as a comment."""
    monkeypatch.setattr(commit, "_COMPRESS_FROM", 100)
    long = "INSERT INTO ks.t (p) VALUES ('é');\n" * 50
    compressed = commit.compress_text(long)
    assert (len(compressed) < len(long) / 5, list(parse_statements(compressed))) == (True, [])
    short = "USE ks;"
    assert commit.compress_text(short) == short
    for text in (long, short, compressed, compressed[:40]):
        assert commit.decompress_text(commit.compress_text(text)) == text
    with pytest.raises(InputError, match="is damaged"):
        commit.decompress_text(compressed[:-7])


def test_outcomes_are_reported_in_order_and_not_stored(streams_home: Path) -> None:
    """The callback receives every outcome; the result has only their counts and the first failures."""
    text = f"{TABLE} INSERT INTO ks.t (p, c) VALUES (1, 1) USING TTL 5; INSERT INTO ks.no (p) VALUES (1); USE no;"
    reported: list[StatementOutcome] = []
    script = Script(Lake(streams_home / "lake"), Settings(), NOW_US)
    result: ScriptResult = script.run(iter_script_statements(text), reported.append)
    assert [outcome.became for outcome in reported] == ["done"] * 3 + ["wrong"] * 2
    assert (result.outcomes, result.wrong) == ([], reported[3])
    assert result.tally.first["wrong"] == (4, reported[3])
    assert (result.tally.statements, result.tally.expiring_rows) == (5, 1)
