"""The hub for Python users: its methods give the answers of the commands, with typed results."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import FrozenInstanceError
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.command_line import run
from support.files.export_files import ID, LATER_MS, NODES, OTHER_ID, SNAPSHOT, TIME_MS, generation
from support.homes.imported import home_with_generations

import cdc_platform
from cdc_platform.checks import INVARIANT_FAMILIES
from cdc_platform.clock import Clock, Milliseconds, datetime_from_ms, format_ms, parse_time_us
from cdc_platform.errors import (
    EnvironmentProblem,
    InputError,
    NotFound,
    StateError,
    UnknownGeneration,
    UnknownTable,
)
from cdc_platform.generations import WriteVerdict
from cdc_platform.home import (
    CheckReport,
    ColocationReport,
    DescribedSize,
    GenerationDiff,
    GenerationStreams,
    GenerationSummary,
    Home,
    NodeShares,
    ShardShares,
    open_home,
    parse_generation_name,
)
from cdc_platform.ring import tokens_from_keys
from cdc_platform.tables import TABLES
from cdc_platform.timeline import VnodeExplanation

BETWEEN = "2026-02-01T00:00:00Z"
STATEMENTS = Path(__file__).parents[2] / "docs/examples/statements.cql"


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a home with two nodes, two generations, and the log of a table; no test changes its tables."""
    folder = tmp_path_factory.mktemp("hub")
    home = home_with_generations(folder, {ID: TIME_MS, OTHER_ID: LATER_MS}, ring=json.dumps(SNAPSHOT))
    answer = run("--home", home, "--clock", BETWEEN, "cql", "run", STATEMENTS, "--apply")
    assert answer.exit_code == 0, answer.stderr
    return home


@pytest.fixture
def home(folder: Path) -> Home:
    """Open that home, with its clock between the two generations."""
    return open_home(folder, clock=BETWEEN)


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    """Return a copy of that home, which a test may change."""
    assert run("home", "copy", folder, tmp_path / "copy").exit_code == 0
    return tmp_path / "copy"


def test_a_home_is_opened_by_path_text_or_environment(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path, its text, or the variable name the same home; a missing one is created only on request."""
    monkeypatch.setenv("CDC_PLATFORM_HOME", str(folder))
    assert open_home(folder).name == open_home(str(folder)).name == open_home().name == str(folder)
    assert repr(open_home(folder)) == f"open_home({str(folder)!r})"
    with pytest.raises(EnvironmentProblem, match="does not exist"):
        open_home(tmp_path / "none")
    assert open_home(tmp_path / "none", create=True).tables() == []


@pytest.mark.parametrize("clock", [BETWEEN, datetime(2026, 2, 1, tzinfo=UTC), Clock(parse_time_us(BETWEEN))])
def test_the_clock_is_a_time_in_any_form(folder: Path, clock: str | datetime | Clock) -> None:
    """Text, a datetime, or a Clock stop the clock; the first generation operates then."""
    home = open_home(folder, clock=clock)
    assert home.clock.now_us() == parse_time_us(BETWEEN)
    assert home.generation("operating").id == ID


def test_times_need_a_zone(folder: Path) -> None:
    """A naive datetime is refused, like text without a zone."""
    with pytest.raises(InputError, match="no zone"):
        open_home(folder, clock=datetime(2026, 2, 1))
    with pytest.raises(InputError, match="without a zone"):
        open_home(folder, clock="2026-02-01T00:00:00")


def test_closing_releases_the_open_tables(folder: Path) -> None:
    """A closed home stays usable and opens a lake of its own."""
    with open_home(folder) as home:
        lake = home.lake
        assert home.lake is lake
    assert home.lake is not lake
    assert len(home.ring().nodes) == len(NODES)


def test_the_ring_has_the_imported_nodes(home: Home) -> None:
    """Tokens are ascending int64, and the nodes are those of the import."""
    ring = home.ring()
    assert ring.tokens.dtype == np.int64
    assert ring.tokens.tolist() == sorted(token for node in NODES for token in node.tokens)
    assert {node.host_id for node in ring.nodes} == {node.host_id for node in NODES}
    assert home.topology_transition() is None


def test_generations_match_the_command(home: Home, folder: Path) -> None:
    """`generations` lists those of `generations --json`, with times as ms and the state as an enum."""
    listed = run("--home", folder, "--clock", BETWEEN, "generations", "--json").json
    listed = listed if isinstance(listed, list) else listed["generations"]
    assert [(row["id"], row["time"], row["operating"], row["state"]) for row in listed] == [
        (item.id, format_ms(item.time_ms), item.operating, item.state.value) for item in home.generations()
    ]
    assert [item.id for item in home.generations(since="2026-02-02T00:00:00Z")] == [OTHER_ID]
    assert {item.num_streams for item in home.generations()} == {len(generation().streams)}


@pytest.mark.parametrize(
    "name", [ID, ID.upper(), TIME_MS, format_ms(TIME_MS), datetime_from_ms(TIME_MS), "2026-01-31", "operating"]
)
def test_a_generation_has_many_names(home: Home, name: str | Milliseconds | datetime) -> None:
    """A generation is found by its UUID, its time as text, datetime or ms, a prefix of either, or `operating`."""
    assert home.generation(name).time_ms == (TIME_MS if not isinstance(name, datetime) else 1_769_860_800_384)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("8d3f3f2e", UnknownGeneration),
        ("8d3f3f2e-3c61-4b0e-9a59-5a3f7c1de009", UnknownGeneration),
        ("2027-01-01", UnknownGeneration),
        ("newest", InputError),
        (datetime(2026, 1, 31, 12, 0, 0, 1, tzinfo=UTC), InputError),
    ],
    ids=["ambiguous", "unknown UUID", "unknown time", "no name", "finer than a millisecond"],
)
def test_unknown_names_are_refused(home: Home, name: str | datetime, error: type[Exception]) -> None:
    """Unknown, ambiguous and invalid names raise the errors of the command line."""
    with pytest.raises(error):
        home.generation(name)


def test_streams_are_those_of_the_description(home: Home) -> None:
    """Streams have one row per range, in ring order, with the IDs in shard order; ranges of unknown order are named."""
    streams, description = home.streams(ID), generation()
    assert len(streams) == len(description)
    assert streams.rows["range_end"].to_pylist() == description.range_ends.tolist()
    assert streams.generation.id == ID
    assert streams.unordered_range_ends == {101}
    first = [bytes(stream) for stream in description.entry(0).streams]
    assert streams.rows["streams"][0].as_py() == first


def test_two_generations_are_compared(home: Home) -> None:
    """The two generations have the same ranges and no stream in common."""
    diff = home.diff(ID, OTHER_ID)
    assert (diff.old.generation.id, diff.new.generation.id) == (ID, OTHER_ID)
    assert diff.old.num_ranges == diff.new.num_ranges == len(generation())
    assert (len(diff.ranges_added), len(diff.ranges_removed), diff.streams_kept) == (0, 0, 0)
    assert diff.changed_share == 1.0
    assert home.diff(ID, ID).changed_share == 0.0


def test_colocation_is_measured_exactly(home: Home) -> None:
    """All streams are colocated; the shares of nodes and shards add up; the range of unknown order is counted."""
    report = home.colocation(ID)
    assert (report.vnode_colocation, report.shard_colocation) == (1.0, 1.0)
    assert sum(node.share_of_ring for node in report.nodes) == pytest.approx(1.0)
    for node in report.nodes:
        assert sum(shard.share_of_ring for shard in node.shards) == pytest.approx(node.share_of_ring)
    assert (report.unordered_ranges, report.is_reliable) == (1, False)


def test_a_home_without_a_ring_colocates_nothing(tmp_path: Path) -> None:
    """A home with neither ring nor generation names the missing ring first."""
    with pytest.raises(StateError, match="import a ring snapshot"):
        open_home(tmp_path, create=True).colocation()


def test_a_write_is_explained_by_key_or_token(home: Home) -> None:
    """A serialized key, its token, and the key as text of a table give the same stream."""
    key = b"ada"
    token = int(tokens_from_keys([key])[0])
    answers = [home.explain(key=key), home.explain(token=token), home.explain(key="ada", table="shop.carts")]
    assert [answer.accepted for answer in answers] == [True] * 3
    assert isinstance(answers[0], VnodeExplanation)
    assert {answer.facts()["stream_id"] for answer in answers} == {answers[0].facts()["stream_id"]}
    assert home.token(key) == home.token("ada", table=("shop", "carts")) == token


def test_a_refused_write_is_explained_as_well(home: Home) -> None:
    """A write before the first generation has no stream."""
    answer = home.explain(token=42, at="2020-01-01T00:00:00Z", policy="strict")
    assert isinstance(answer, VnodeExplanation)
    assert not answer.accepted
    assert answer.verdict is not WriteVerdict.OK


def test_a_composite_key_has_several_components(home: Home) -> None:
    """A composite key is serialized as CQL does: each component follows its length and ends with a zero byte."""
    serialized = b"\x00\x01a\x00\x00\x02bc\x00"
    assert home.token([b"a", b"bc"]) == int(tokens_from_keys([serialized])[0])
    assert home.token([serialized]) == home.token(serialized)


def test_keys_that_cannot_be_serialized_are_refused(home: Home) -> None:
    """A missing or double key, text without a table, a mixed key, an unknown table or a wrong number of components."""
    with pytest.raises(InputError, match="one of key and token"):
        home.explain()
    with pytest.raises(InputError, match="one of key and token"):
        home.explain(key=b"a", token=1)
    with pytest.raises(InputError, match="needs its table"):
        home.explain(key="ada")
    with pytest.raises(InputError, match="all of them"):
        home.token([b"a", "b"])  # pyrefly: ignore[bad-argument-type]
    with pytest.raises(NotFound):
        home.explain(key="ada", table="shop.unknown")
    with pytest.raises(InputError, match="partition key"):
        home.token(["ada", "1"], table="shop.carts")


def test_tables_are_read_as_arrow(home: Home) -> None:
    """Tables are read by full or short name, by columns and filters; a table that was never written has no rows."""
    assert "system_distributed.cdc_generation_timestamps" in home.tables()
    times = home.read("system_distributed.cdc_generation_timestamps")
    assert isinstance(times, pa.Table)
    assert sorted(times["time"].to_pylist()) == [datetime_from_ms(TIME_MS), datetime_from_ms(LATER_MS)]
    later = home.read("cdc_generation_timestamps", ["time"], filter=pc.field("time") > datetime_from_ms(TIME_MS))
    assert later.to_pydict() == {"time": [datetime_from_ms(LATER_MS)]}
    assert home.read("shop.carts_scylla_cdc_log").num_rows == 5
    assert home.read("platform.consumers").num_rows == 0
    assert list(home.read("nodes", ["address"]).to_pandas()["address"].sort_values()) == ["127.0.0.1", "127.0.0.2"]


def test_past_versions_of_tables_are_read(home: Home) -> None:
    """A table is read at a version or at a time."""
    name = "system_distributed.cdc_generation_timestamps"
    assert home.read(name, version=0).num_rows == 0
    assert home.read(name, at="2020-01-01T00:00:00Z").num_rows == 0
    assert home.read(name, at=datetime.now(UTC)).num_rows == 2
    with pytest.raises(NotFound, match="no version 99"):
        home.read(name, version=99)
    with pytest.raises(InputError, match="one of at and version"):
        home.read(name, version=0, at="2020-01-01T00:00:00Z")


def test_reading_reports_unknown_names(home: Home) -> None:
    """The error suggests the closest table name, or lists the columns that exist."""
    with pytest.raises(UnknownTable, match=r"did you mean platform\.nodes"):
        home.read("platform.node")
    with pytest.raises(InputError, match="no column 'token'; it has host_id"):
        home.read("nodes", ["token"])
    with pytest.raises(InputError, match="cannot be read with this filter"):
        home.read("nodes", filter=pc.field("token") > 1)


def test_a_damaged_table_is_reported(copied: Path) -> None:
    """A missing file raises a StateError with the file's path, whatever error Arrow raises."""
    for file in (copied / "lake/platform/nodes").glob("*.parquet"):
        file.unlink()
    with pytest.raises(StateError, match=r"platform\.nodes: .*\.parquet"):
        open_home(copied).read("nodes")


def test_sql_returns_arrow(home: Home) -> None:
    """A query uses ScyllaDB's names; other statements are refused."""
    result = home.sql("SELECT count(*) AS n FROM cdc_generation_timestamps")
    assert result.to_pydict() == {"n": [2]}
    assert home.sql("SELECT time FROM cdc_generation_timestamps", version=0).num_rows == 0
    with pytest.raises(InputError):
        home.sql("DROP TABLE nodes")


def test_a_check_is_recorded_unless_declined(copied: Path) -> None:
    """With `record=False` no table changes; otherwise status has the results, with Python as their entry point."""
    home = open_home(copied, clock=BETWEEN)
    tables = home.tables()
    report = home.check(record=False)
    assert report.passed
    assert (report.failed, report.generation, report.observed, report.unrecorded) == ((), None, None, None)
    known = [str(invariant) for family in INVARIANT_FAMILIES for invariant in family.invariants]
    assert {str(result.invariant) for result in report.results} <= set(known)
    assert home.tables() == tables
    assert home.status().sections["checks"]["checks"] == 0
    assert home.check().passed
    assert home.read("platform.judgements")["door"].unique().to_pylist() == ["Python"]
    info = home.lake.commits(TABLES["platform.judgements"])[0].info
    assert info is not None
    assert (info.author.entry_point, info.author.command) == ("Python", "Home.check")
    assert home.status().sections["checks"]["checks"] > 0


def test_one_generation_is_checked(home: Home) -> None:
    """A generation is checked by any of its names; the ring of the older one is no longer known; unknown IDs fail."""
    latest, operating = home.check("latest", record=False), home.check("operating", record=False)
    assert (latest.generation, latest.passed) == (OTHER_ID, True)
    assert (operating.generation, operating.passed) == (ID, False)
    assert [result.invariant for result in operating.failed] == ["refines_vnodes"]
    with pytest.raises(NotFound):
        home.check("8d3f3f2e-3c61-4b0e-9a59-5a3f7c1de009", record=False)


def test_the_status_matches_the_command(home: Home, folder: Path) -> None:
    """The sections are those that the command prints."""
    status = home.status()
    printed = run("--home", folder, "--clock", BETWEEN, "status", "--json").json
    assert set(status.sections) <= set(printed)
    assert printed["generations"]["operating"]["id"] == status.sections["generations"]["operating"]["id"] == ID


def test_tables_and_consumers_are_listed(home: Home) -> None:
    """The registered table is listed, and there are no consumers yet."""
    assert [table.full_name for table in home.cdc_tables()] == ["shop.carts"]
    assert home.consumers() == []


def test_the_timeline_has_every_generation(home: Home) -> None:
    """The timeline lists the generations oldest first."""
    assert [item.id for item in home.timeline().generations] == [ID, OTHER_ID]


def test_results_have_public_types(home: Home) -> None:
    """Every result type is public, so that annotations can name it, and immutable."""
    diff, colocation = home.diff(ID, OTHER_ID), home.colocation(ID)
    results = {
        CheckReport: home.check(ID, record=False),
        ColocationReport: colocation,
        DescribedSize: diff.old,
        GenerationDiff: diff,
        GenerationStreams: home.streams(ID),
        GenerationSummary: home.generations()[0],
        NodeShares: colocation.nodes[0],
        ShardShares: colocation.nodes[0].shards[0],
    }
    for kind, result in results.items():
        assert type(result) is kind
        with pytest.raises(FrozenInstanceError):
            result.generation = None  # pyrefly: ignore


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (ID.upper(), ID),
        ("LATEST", "latest"),
        ("8D3F", "8d3f"),
        ("2026-01-31t12", "2026-01-31T12"),
        ("2026-01-31T12:00:00.384Z", TIME_MS),
    ],
)
def test_names_of_generations_are_parsed(text: str, name: str | int) -> None:
    """Case does not matter; a complete time becomes ms."""
    assert parse_generation_name(text) == name


def test_importing_the_package_loads_nothing_heavy(tmp_path: Path) -> None:
    """`import cdc_platform` loads no library, and opening a home loads neither numpy nor pyarrow."""
    heavy = ("numpy", "pyarrow", "deltalake", "pandas", "pyspark", "duckdb", "click", "dagster")
    program = (
        "import sys, cdc_platform\n"
        f"found = lambda: [name for name in {heavy!r} if name in sys.modules]\n"
        "print(found(), 'cdc_platform.home' in sys.modules)\n"
        "cdc_platform.open_home(sys.argv[1], create=True)\n"
        "print(found())\n"
    )
    completed = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "home")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.splitlines() == ["[] False", "[]"]


def test_the_package_exports_the_hub_alone() -> None:
    """All other names are exported by its packages."""
    assert cdc_platform.Home is Home
    assert cdc_platform.open_home is open_home
    with pytest.raises(AttributeError, match="has no attribute 'Lake'"):
        _ = cdc_platform.Lake  # pyrefly: ignore[missing-attribute]
