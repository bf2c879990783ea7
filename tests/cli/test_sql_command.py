"""`sql`: its output formats, files and warnings, and a reader that closes the pipe."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.command_line import Cli, run
from support.files.bad_input import argument, assert_refused, listing
from support.files.export_files import ID, LATER_MS, SNAPSHOT, TIME_MS, iso_time
from support.homes.imported import home_with_generations

from cdc_platform.clock import Clock, us_from_ms
from cdc_platform.delta import Lake
from cdc_platform.metastore import cdc_tables

ROOT = Path(__file__).resolve().parents[2]

TIMES = [iso_time(TIME_MS), iso_time(LATER_MS)]
VALUES = (
    "SELECT time, '\\x00\\xFF'::BLOB AS blob, -9007199254740993 AS wide, map {'b': 1, 'a': 2} AS m, NULL AS gone, "
    "'a,\"b\"' AS text, 1.5 AS d, true AS yes, ['x'] AS l FROM cdc_generation_timestamps ORDER BY time LIMIT 1"
)


def test_a_cql_query_runs_unchanged(cli: Cli) -> None:
    """The table has ScyllaDB's own name, and the time is text."""
    query = f"SELECT time FROM system_distributed.cdc_generation_timestamps WHERE time > '{TIMES[0]}'"
    result = cli("sql", query, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.rows == [{"time": TIMES[1]}]


def test_values_follow_the_json_rule(cli: Cli) -> None:
    """The values are equal in JSON and, as text, in CSV."""
    row = {"time": TIMES[0], "blob": "0x00ff", "wide": "-9007199254740993", "m": [["a", 2], ["b", 1]], "gone": None}
    assert cli("sql", VALUES, "--json").rows == [row | {"text": 'a,"b"', "d": "1.5", "yes": True, "l": ["x"]}]
    (cells,) = csv.DictReader(io.StringIO(cli("sql", VALUES, "--csv").stdout))
    assert cells == {
        "time": TIMES[0],
        "blob": "0x00ff",
        "wide": "-9007199254740993",
        "m": '[["a", 2], ["b", 1]]',
        "gone": "",
        "text": 'a,"b"',
        "d": "1.5",
        "yes": "true",
        "l": '["x"]',
    }


def test_no_rows_are_an_empty_document(cli: Cli) -> None:
    """JSON is an empty list, CSV the header alone."""
    query = "SELECT key, time FROM cdc_generation_timestamps WHERE false"
    assert cli("sql", query, "--json").rows == []
    assert cli("sql", query, "--csv").stdout == "key,time\n"


def test_a_table_shows_a_hundred_rows_and_a_warning(cli: Cli) -> None:
    """Without --limit a hundred rows are shown, with it that many, and in JSON and CSV all."""
    result = cli("sql", "SELECT range FROM range(200)")
    assert result.exit_code == 0
    assert result.stderr.startswith("warning: only the first 100 rows")
    assert len(result.stdout.split()) == 102  # the column's name, its rule, and the rows
    assert cli("sql", "SELECT range FROM range(100)").stderr == ""
    assert len(cli("sql", "SELECT range FROM range(200)", "--limit", "150", "--json").rows) == 150
    assert len(cli("sql", "SELECT range FROM range(200)", "--csv").stdout.splitlines()) == 201


def test_parquet_is_written_outside_the_home(cli: Cli, seeded_home: Path, tmp_path: Path) -> None:
    """A new file has the types of the query; no other file is left, and the home is unchanged."""
    before, file = listing(seeded_home), tmp_path / "times.parquet"
    query = "SELECT time, 1 AS n, 2 AS n FROM cdc_generation_timestamps ORDER BY time"
    result = cli("sql", query, "--parquet", file)
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"2 rows in {file}\n", "")
    written: Any = pq.read_table(file)
    assert written.schema.names == ["time", "n", "n_2"]
    assert [us_from_ms(when.timestamp()) for when in written["time"].to_pylist()] == [TIME_MS, LATER_MS]
    assert [path.name for path in tmp_path.iterdir()] == ["times.parquet"]
    assert listing(seeded_home) == before


REFUSED = [
    argument("into the home", "lies in the home", "sql", "SELECT 1", "--parquet", "{home}/lake/x.parquet"),
    argument("into the home by a detour", "lies in the home", "sql", "SELECT 1", "--parquet", "{dir}/way/x.parquet"),
    argument("over a file", "already exists", "sql", "SELECT 1", "--parquet", "{dir}/there"),
    argument("into no folder", "is no folder", "sql", "SELECT 1", "--parquet", "{dir}/none/x.parquet"),
    argument("a type Parquet lacks", "as text, with CAST", "sql", "SELECT INTERVAL 1 DAY", "--parquet", "{dir}/x"),
    argument("two forms", "goes out in one form", "sql", "SELECT 1", "--json", "--csv"),
    argument("at no time", "not a time", "sql", "SELECT 1", "--at", "noon"),
    argument("at a time without a zone", "without a zone", "sql", "SELECT 1", "--at", "2026-01-31T12:00:00"),
    argument("a version of no table", "names 0 (none)", "sql", "SELECT 1", "--at", "3"),
    argument("a version that is none", "its newest is", "sql", "FROM nodes", "--at", "9" * 30),
    argument("no rows wanted", "not in the range", "sql", "SELECT 1", "--limit", "0"),
    argument("no SQL for Spark", "the query: ", "sql", "SELEC 1", "--spark"),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_impossible_requests_are_refused(case: Any, seeded_home: Path, tmp_path: Path) -> None:
    """One line, with the home and the folder unchanged."""
    (tmp_path / "way").symlink_to(seeded_home)
    (tmp_path / "there").write_text("kept")
    args = tuple(arg.replace("{home}", str(seeded_home)) for arg in case.args)
    assert_refused(argument(case.name, case.says, *args), seeded_home, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["there", "way"]
    assert (tmp_path / "there").read_text() == "kept"


def test_the_past_is_read(cli: Cli) -> None:
    """By version and by time; before the home's first commit the table is empty."""
    query = "SELECT count(*) AS n FROM cdc_generation_timestamps"
    assert cli("sql", query, "--json").rows == [{"n": 2}]
    assert cli("sql", query, "--at", "0", "--json").rows == [{"n": 0}]
    assert cli("sql", query, "--at", "2020-01-01T00:00:00Z", "--json").rows == [{"n": 0}]
    assert cli("sql", query, "--at", "2999-01-01T00:00:00+01:00", "--json").rows == [{"n": 2}]


@pytest.mark.parametrize("form", ["--json", "--csv"])
def test_a_closed_pipe_is_no_error(form: str, seeded_home: Path) -> None:
    """A closed pipe ends the command at once without output; results are produced only as they are read."""
    command = [sys.executable, "-m", "cdc_platform", "--home", str(seeded_home), "sql"]
    query = "SELECT range AS n, repeat('x', 200) AS s FROM range(1000000000)"
    with subprocess.Popen([*command, query, form], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as ran:
        assert ran.stdout is not None
        assert ran.stderr is not None
        first_bytes = ran.stdout.read(4096)
        ran.stdout.close()
        errors = ran.stderr.read()
    assert (ran.returncode, errors) == (0, b"")
    assert first_bytes.startswith(b'{"version": 1, "rows": [\n{"n": 0' if form == "--json" else b"n,s\n0,x")


def test_nothing_is_left_in_the_temporary_folder(seeded_home: Path, tmp_path: Path) -> None:
    """If the engine may spill, it uses a folder of the command, which is removed with it."""
    command = [sys.executable, "-m", "cdc_platform", "--home", str(seeded_home), "sql", "SHOW TABLES", "--json"]
    ran = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert {"name": "nodes"} in json.loads(ran.stdout)["rows"]
    assert list(tmp_path.iterdir()) == []


def read_documented_queries() -> list[list[str]]:
    """Return the queries in the documentation and the help, split like a shell does."""
    from cdc_platform.cli.sql import sql

    pages = [page.read_text(encoding="utf-8") for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]]
    queries = re.findall(r"^ *(?:\$ )?(?:\.venv/bin/)?cdc-platform (sql .+)$", "\n".join(pages), flags=re.MULTILINE)
    queries += re.findall(r"`cdc-platform (sql '[^`]+)`", "\n".join(pages))
    queries += re.findall(r"^ *cdc-platform (sql .+)$", sql.help or "", flags=re.MULTILINE)
    return [shlex.split(line) for line in queries]


def test_the_documentation_has_queries() -> None:
    """README, the pages on queries and logs, and --help have queries."""
    assert len(read_documented_queries()) >= 12


@pytest.mark.parametrize("words", read_documented_queries(), ids=lambda words: " ".join(words))
def test_documented_queries_succeed(words: list[str], shop: Path) -> None:
    """Each query runs unchanged."""
    result = run("--home", shop, *words)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with generations, nodes and a table `shop.carts` with an empty log."""
    home = home_with_generations(tmp_path_factory.mktemp("shop"), {ID: TIME_MS}, ring=json.dumps(SNAPSHOT))
    ddl = "CREATE TABLE shop.carts (p int, v int, tags set<text>, PRIMARY KEY (p)) WITH cdc = {'enabled': 'true'};"
    lake = Lake(home / "lake")
    cdc_tables.add_cdc_table(lake, Clock(us_from_ms(TIME_MS)), "shop", "carts", ttl_seconds=0, ddl=ddl)
    return home
