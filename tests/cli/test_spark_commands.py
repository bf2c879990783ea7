"""The commands that start Spark for large work: a whole join, every invariant, and SQL.

These tests force Spark for small work. Messages of a JVM are tested in a process with its own JVM, in the test of a
home in a store.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.command_line import run
from support.files.export_files import ID, TIME_MS, generation, iso_time, streams_csv, timestamps_csv, v2_csv

from cdc_platform.clock import Milliseconds
from cdc_platform.delta import IN_PROCESS_VARIABLE

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

NODE = {
    "host_id": "55555555-5555-4555-8555-555555555555",
    "address": "127.0.0.5",
    "datacenter": "dc1",
    "rack": "r1",
    "tokens": [-5_000_000_000_000_000_000, 0, 5_000_000_000_000_000_000],
    "shard_count": 3,
    "ignore_msb": 12,
}
CLOCK = ("--clock", "2026-01-31T12:00:00Z")


@pytest.fixture(scope="module", autouse=True)
def always_spark() -> Iterator[None]:
    """Nothing runs in the calling process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(IN_PROCESS_VARIABLE, "0")
        yield


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A home in which a node joined through `bootstrap --run`, and the answer of that command."""
    folder = tmp_path_factory.mktemp("joined")
    (folder / "node.json").write_text(json.dumps(NODE))
    result = run("--home", folder / "home", *CLOCK, "bootstrap", folder / "node.json", "--run", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    return folder / "home", result.json


def test_a_node_joins_by_one_command(joined: tuple[Path, dict[str, Any]]) -> None:
    """The answer has the event, the generation, its time and size; the generation exists and operates."""
    home, answer = joined
    assert set(answer) == {"version", "event_id", "generation_id", "time", "num_ranges", "num_streams", "next"}
    assert (answer["time"], answer["num_ranges"], answer["num_streams"]) == ("2026-01-31T12:01:05.000Z", 3, 9)
    listed = run("--home", home, "--clock", "2026-02-01T00:00:00Z", "generations", "--json").rows
    expected = {"id": answer["generation_id"], "time": answer["time"], "expired": None, "operating": True}
    expected |= {"state": "published", "published": True, "nodes": 1, "num_ranges": 3, "num_streams": 9}
    assert listed == [expected]
    assert [row["host_id"] for row in run("--home", home, "ring", "--json").json] == [NODE["host_id"]]
    assert len(run("--home", home, "streams", answer["time"], "--json").rows) == 3


def test_check_passes_a_sound_home(joined: tuple[Path, dict[str, Any]]) -> None:
    """Every invariant is listed with its counts, and the exit code is 0."""
    home, answer = joined
    result = run("--home", home, "check", answer["generation_id"], "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.rows
    names = {"invariant", "checked", "violations", "unchecked", "sample", "passed", "page"}
    assert all(set(line) == names for line in lines)
    pages = {line["invariant"]: line["page"] for line in lines}
    assert len(lines) == len(pages) == 11
    assert pages.pop("streams_fit_the_ring") == "docs/repair.md"  # the newest generation
    assert set(pages.values()) == {"docs/generations.md"}
    assert all(line["passed"] and line["checked"] > 0 for line in lines)
    assert all((line["violations"], line["unchecked"]) == (0, 0) for line in lines)


def test_check_fails(tmp_path: Path) -> None:
    """A timestamp without its rows gives exit code 1, and the failed line names it."""
    files = {"v.csv": v2_csv({ID: generation()}), "s.csv": streams_csv({TIME_MS: generation()})}
    files["t.csv"] = timestamps_csv({TIME_MS: None})
    for name, text in files.items():
        (tmp_path / name).write_text(text, newline="")
    home = tmp_path / "home"
    assert run("--home", home, "import", *(tmp_path / name for name in files)).exit_code == 0
    (tmp_path / "bare.csv").write_text(timestamps_csv({TIME_MS + 1000: None}), newline="")
    assert run("--home", home, "import", tmp_path / "bare.csv").exit_code == 0
    result = run("--home", home, "check", "--json")
    assert result.exit_code == 1
    # Without a ring no repair is possible, so none is advised: each failed invariant names its page.
    assert run("--home", home, "repair", "--dry-run").exit_code == 2
    failed = {line["invariant"]: line for line in result.rows if line["passed"] is False}
    assert result.stderr.splitlines() == [
        f"warning: {name}: no command resolves this by itself, see {line['page']} [needs-a-person]"
        for name, line in failed.items()
    ]
    assert [line["invariant"] for line in result.rows if line["passed"] is None] == ["refines_vnodes"]
    assert failed["timestamp_complete"]["violations"] == 1
    assert iso_time(Milliseconds(TIME_MS + 1000)) in failed["timestamp_complete"]["sample"]


def test_sql_runs_cql_queries(joined: tuple[Path, dict[str, Any]]) -> None:
    """A query that people know from CQL runs unchanged, and values follow the JSON rule."""
    home, answer = joined
    query = (
        "SELECT time, X'00ff' AS blob, -9007199254740993 AS wide, map('b', 1, 'a', 2) AS m, 1 AS n, 2 AS n "
        "FROM system_distributed.cdc_generation_timestamps WHERE time > '2026-01-01'"
    )
    result = run("--home", home, "sql", query, "--spark", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    row = {"time": answer["time"], "blob": "0x00ff", "wide": "-9007199254740993", "m": [["a", 2], ["b", 1]]}
    assert result.rows == [row | {"n": 1, "n_2": 2}]


def test_a_wrong_query_is_one_line(joined: tuple[Path, dict[str, Any]]) -> None:
    """The message is Spark's, without its stack trace."""
    result = run("--home", joined[0], "sql", "SELECT nowhere FROM nodes", "--spark")
    assert (result.exit_code, result.stdout) == (2, "")
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("error: ")
    assert "nowhere" in result.stderr


def test_a_table_shows_a_hundred_rows_and_a_warning(joined: tuple[Path, dict[str, Any]]) -> None:
    """Without --limit a hundred rows are shown with a warning; with it, that many."""
    result = run("--home", joined[0], "sql", "SELECT id FROM range(200)", "--spark")
    assert result.exit_code == 0
    assert result.stderr.startswith("warning: only the first 100 rows")
    assert len(result.stdout.split()) == 102  # the column's name, its rule, and the rows
    assert (
        len(run("--home", joined[0], "sql", "SELECT id FROM range(200)", "--spark", "--limit", "150", "--json").rows)
        == 150
    )


def test_a_syntax_error_is_one_line(joined: tuple[Path, dict[str, Any]]) -> None:
    """A query that is not SQL is an invalid request."""
    result = run("--home", joined[0], "sql", "SELEC 1", "--spark")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "SELEC" in result.stderr
    assert len(result.stderr.splitlines()) == 1
