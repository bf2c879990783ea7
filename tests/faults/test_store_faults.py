"""Faults of a store: objects damaged behind the platform's back are found, named, not used, and restored."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from support.command_line import run
from support.homes.every_table import every_table
from support.homes.v1_tables import old_cluster, times
from support.nodes import join_request
from support.read_logs import START_US as LOGGED_US
from support.read_logs import SWITCH_US, home_with_log, schema, write
from support.store.s3 import S3

from cdc_platform.cdclog import WRITTEN_AT, Window, log_table
from cdc_platform.cdclog.consumer.reader import read_window, sink_table
from cdc_platform.clock import (
    HOUR_US,
    ONE_US,
    Clock,
    Microseconds,
    Milliseconds,
    datetime_from_us,
    format_ms,
    format_us,
    us_from_datetime,
)
from cdc_platform.delta import Lake, TableVerification, TaskRunner, lake_copy, verify_tables
from cdc_platform.errors import StateError
from cdc_platform.home_location import open_home_location
from cdc_platform.lifecycle import V2_STEPS, JoinContext, judge_step, run_join, run_step
from cdc_platform.lifecycle.join.restore import RESTORABLE_TABLES
from cdc_platform.lifecycle.join.steps import V1_STEPS
from cdc_platform.metastore import inbox
from cdc_platform.settings import Settings
from cdc_platform.storage import parse_path
from cdc_platform.tables import (
    CONSUMERS,
    GENERATION_DESCRIPTIONS,
    GENERATION_DESCRIPTIONS_V2,
    GENERATION_TIMESTAMPS,
    NODES,
    STREAMS_DESCRIPTIONS_V2,
    TABLET_STREAMS,
    TABLET_TIMESTAMPS,
    TOPOLOGY_DESCRIPTIONS,
    Table,
)

START_US = Microseconds(1_767_225_600_000_000)
READ_US = Microseconds(LOGGED_US + ONE_US)
LOG = "_delta_log"
Fault = Callable[[Path], str]
"""Damages a table's folder; returns the file that a verification must name."""


def upload(folder: Path, address: str) -> None:
    """Copy a folder into a store unchanged."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    with ThreadPoolExecutor(8) as executor:
        list(executor.map(lambda path: (parse_path(address) / str(path.relative_to(folder))).receive(path), files))


def data_file(folder: Path) -> Path:
    """Return a file of the newest version."""
    return Path(sorted(DeltaTable(folder).file_uris())[0])


def entry(folder: Path, version: int) -> Path:
    """Return the file of a commit."""
    return folder / LOG / f"{version:020d}.json"


def relative_name(folder: Path, path: Path) -> str:
    """Return a file's name as messages show it."""
    return str(path.relative_to(folder))


def on_data(change: Callable[[Path], object]) -> Fault:
    """Return a fault of a data file."""

    def act(folder: Path) -> str:
        path = data_file(folder)
        change(path)
        return relative_name(folder, path)

    return act


def on_entry(change: Callable[[Path], object], back: int) -> Fault:
    """Return a fault of the log entry that is `back` versions before the newest."""

    def act(folder: Path) -> str:
        path = entry(folder, DeltaTable(folder).version() - back)
        change(path)
        return relative_name(folder, path)

    return act


def truncate(path: Path) -> None:
    """Truncate the file to half its size."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    """Flip a byte behind the start of the file's first page."""
    content = bytearray(path.read_bytes())
    content[len(content) // 3 if path.suffix == ".json" else 40] ^= 0xFF
    path.write_bytes(content)


def checkpointed(folder: Path) -> Path:
    """Write a checkpoint of the newest version; return its file."""
    opened = DeltaTable(folder)
    opened.create_checkpoint()
    return folder / LOG / f"{opened.version():020d}.checkpoint.parquet"


def expired_log(folder: Path) -> str:
    """Remove the oldest entry, as a bucket's lifecycle rule does, without a checkpoint."""
    entry(folder, 0).unlink()
    return f"{LOG}/{0:020d}.json"


def expired_checkpoint(folder: Path) -> str:
    """Remove the entries and their checkpoint, as a bucket's lifecycle rule does; the pointer to it remains."""
    path = checkpointed(folder)
    for version in range(int(path.name[:20])):
        entry(folder, version).unlink()
    path.unlink()
    return relative_name(folder, entry(folder, int(path.name[:20]) - 1))


def truncated_checkpoint(folder: Path) -> str:
    """Remove the entries that a checkpoint covers, and truncate the checkpoint."""
    path = checkpointed(folder)
    for version in range(int(path.name[:20])):
        entry(folder, version).unlink()
    truncate(path)
    return "its log cannot be read"


def stray_pointer(folder: Path) -> str:
    """Remove the checkpoint that `_last_checkpoint` names; the log stays whole."""
    checkpointed(folder).unlink()
    return f"{LOG}/_last_checkpoint"


def lost_log(folder: Path) -> str:
    """Remove all entries."""
    shutil.rmtree(folder / LOG)
    return LOG


FAULTS: dict[str, Fault] = {
    "data file cut off": on_data(truncate),
    "data file flipped": on_data(flip),
    "data file missing": on_data(Path.unlink),
    "log entry cut off": on_entry(truncate, 0),
    "log entry flipped": on_entry(flip, 1),
    "log entry missing": on_entry(Path.unlink, 1),
    "oldest entries expired": expired_log,
    "entries and their checkpoint expired": expired_checkpoint,
    "checkpoint cut off": truncated_checkpoint,
    "checkpoint lost": stray_pointer,
    "log lost": lost_log,
}


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a home with rows in every table."""
    return every_table(tmp_path_factory.mktemp("every"))


def list_tables(home: Path) -> list[Path]:
    """Return the folders of a home's tables."""
    return sorted(path.parent for path in (home / "lake").glob(f"*/*/{LOG}"))


def verify_in_store(s3: S3, home: Path) -> Mapping[str, TableVerification]:
    """Copy a home into a store; return the results of a deep verification by table."""
    address = f"{s3.bucket()}/home"
    upload(home / "lake", f"{address}/lake")
    return {verification.name: verification for verification in verify_tables(Lake(f"{address}/lake"), deep=True)}


@pytest.mark.parametrize("shift", [0, 4])
def test_a_fault_of_each_table_is_named(s3: S3, every: Path, tmp_path: Path, shift: int) -> None:
    """With one fault in each table, verification names the table, the version and the file in one line each."""
    home = shutil.copytree(every, tmp_path / "home")
    tables, faults = list_tables(home), list(FAULTS.values())
    expected: dict[str, tuple[str, int]] = {}
    for number, folder in enumerate(tables):
        version = DeltaTable(folder).version()
        expected[f"{folder.parent.name}.{folder.name}"] = faults[(number + shift) % len(faults)](folder), version
    verifications = verify_in_store(s3, home)
    assert len(expected) > 2 * len(faults)
    for name, (file, version) in expected.items():
        lines = [*verifications[name].damage, *verifications[name].unexpected]
        assert [line for line in lines if line.startswith(name) and file in line], (name, file, lines)
        assert "\n" not in "".join(lines)
        if file.endswith(".parquet"):
            assert f"version {version}" in lines[0]


def test_a_lost_newest_entry_leaves_unreferenced_files(s3: S3, every: Path, tmp_path: Path) -> None:
    """A log without its last entry has no gap; verification reports that entry's files as unreferenced."""
    assert [line for verification in verify_in_store(s3, every).values() for line in verification.unnamed] == []
    home = shutil.copytree(every, tmp_path / "home")
    expected = set()
    for folder in list_tables(home):
        last = entry(folder, DeltaTable(folder).version())
        added = [line for line in last.read_text(encoding="utf-8").splitlines() if '"add"' in line]
        if added and last.stem != f"{0:020d}" and not list(last.parent.glob(f"{last.stem}.checkpoint*")):
            last.unlink()
            expected.add(f"{folder.parent.name}.{folder.name}")
    assert len(expected) > 10
    verifications = verify_in_store(s3, home)
    assert {name for name, verification in verifications.items() if verification.unnamed} == expected
    assert all(
        line.startswith(name) and "no commit" in line for name in expected for line in verifications[name].unnamed
    )
    assert [verifications[name].damage for name in expected if verifications[name].damage] == []


def test_entries_covered_by_a_checkpoint_may_expire(s3: S3, every: Path, tmp_path: Path) -> None:
    """Entries that expire while a checkpoint covers them are no damage, and all rows stay."""
    home = shutil.copytree(every, tmp_path / "home")
    for folder in list_tables(home):
        path = checkpointed(folder)
        for version in range(int(path.name[:20])):
            entry(folder, version).unlink()
    verifications = verify_in_store(s3, home)
    assert [
        line
        for verification in verifications.values()
        for line in (*verification.damage, *verification.unexpected, *verification.foreign)
    ] == []
    assert sum(verification.partitions for verification in verifications.values()) > len(verifications)


def home_with_joins(tmp_path: Path, generations: int) -> Path:
    """Create a home in which `generations` nodes have joined."""
    path = tmp_path / "joined"
    lake = Lake(open_home_location(str(path), create=True).lake)
    for number in range(1, generations + 1):
        clock = Clock(Microseconds(START_US + HOUR_US * number))
        generation_id = inbox.queue_join(lake, clock, join_request(number)).generation_id
        run_join(TaskRunner.alone(), lake, clock, Settings(), generation_id)
    return path


def table_folder(home: Path, table: Table) -> Path:
    """Return the folder of a table."""
    return home / "lake" / table.keyspace / table.name


def generation_file(home: Path, table: Table, generation: int) -> Path:
    """Return the data file of a generation's rows, by write order."""
    return sorted(table_folder(home, table).rglob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)[generation]


def rows(home: str | Path, table: Table) -> pa.Table:
    """Return all rows in key order."""
    return Lake(f"{home}/lake").read(table).sort_by([(key, "ascending") for key in table.keys])


def test_rows_derived_from_a_description_are_restored(s3: S3, tmp_path: Path) -> None:
    """Deep check finds flipped, truncated and missing files of two generations; repair restores identical rows."""
    home = home_with_joins(tmp_path, 2)
    spoilt = shutil.copytree(home, tmp_path / "spoilt")
    flip(generation_file(spoilt, TOPOLOGY_DESCRIPTIONS, 0))
    truncate(generation_file(spoilt, GENERATION_DESCRIPTIONS_V2, 1))
    generation_file(spoilt, STREAMS_DESCRIPTIONS_V2, 1).unlink()
    address = f"{s3.bucket()}/home"
    upload(spoilt, address)
    at = ("--home", address, "--clock", format_us(Microseconds(START_US + 3 * HOUR_US)))
    checked = run(*at, "check", "--deep")
    assert (checked.exit_code, "repair --from-description --dry-run" in checked.stdout) == (1, True), checked
    checkpointed(table_folder(spoilt, NODES))
    upload(table_folder(spoilt, NODES) / LOG, f"{address}/lake/platform/nodes/{LOG}")
    for path in (parse_path(address) / f"lake/platform/nodes/{LOG}").names():
        if "checkpoint." in path:
            (parse_path(address) / f"lake/platform/nodes/{LOG}/{path}").remove()
    mended = run(*at, "repair", "--from-description", "--json")
    assert mended.exit_code == 0, mended
    assert [row["table"] for row in mended.json["restored"]] == [table.full_name for table in RESTORABLE_TABLES]
    assert [rows(address, table).equals(rows(home, table)) for table in (*RESTORABLE_TABLES, NODES)] == [True] * 4
    assert run(*at, "check", "--deep").exit_code == 0
    assert run(*at, "repair", "--from-description", "--dry-run", "--json").facts == {"restored": [], "unrepaired": []}


@pytest.mark.parametrize(("table", "step"), [(TOPOLOGY_DESCRIPTIONS, 1), (GENERATION_DESCRIPTIONS_V2, 4)])
def test_join_refuses_damaged_rows(s3: S3, table: Table, step: int) -> None:
    """If a stream's byte changes between two steps of a join, nothing is inserted or published from it."""
    address = f"{s3.bucket()}/home"
    lake, clock = Lake(open_home_location(address, create=True).lake), Clock(START_US)
    generation_id = inbox.queue_join(lake, clock, join_request(1)).generation_id
    joining = JoinContext(lake, clock, Settings(), generation_id, TaskRunner.alone(), "a test")
    for before in V2_STEPS[:step]:
        run_step(joining, V2_STEPS, before)
        if before.audit is not None:
            judge_step(joining, before)
    corrupt_stream(lake, table, next(iter(lake.read(table)["streams"][0].as_py())))
    after = V2_STEPS[step]
    with pytest.raises(StateError, match="has other rows than its commits recorded") as error:
        run_step(replace(joining, lake=Lake(str(lake.location))), V2_STEPS, after)
    assert table.full_name in str(error.value)
    assert not Lake(f"{address}/lake").read(after.table).num_rows


def corrupt_stream(lake: Lake, table: Table, stream: bytes, path: str = "") -> None:
    """Change one byte of a stream in its data file so that the rows can still be read."""
    path = path or lake.data_files(table)[0].path
    content = parse_path(path).read()
    before = pq.read_table(pa.BufferReader(content))
    for at in (content.find(stream[start : start + 4]) for start in range(12)):
        spoilt = bytearray(content)
        spoilt[at + 1] ^= 0x10
        with suppress(pa.ArrowException, OSError):
            if at > 0 and not pq.read_table(pa.BufferReader(bytes(spoilt))).equals(before):
                lake_copy.put_file(parse_path(path), bytes(spoilt))
                return
    raise AssertionError("no part of a stream is stored as it is")


@pytest.mark.parametrize(("table", "step"), [(TOPOLOGY_DESCRIPTIONS, 1), (GENERATION_DESCRIPTIONS, 4)])
def test_join_of_the_first_format_refuses_damaged_rows(s3: S3, table: Table, step: int) -> None:
    """A join in the first format also refuses damaged rows."""
    lake, clock = Lake(open_home_location(f"{s3.bucket()}/home", create=True).lake), Clock(START_US)
    generation_id = inbox.queue_join(lake, clock, join_request(1).model_copy(update={"features": ()})).generation_id
    joining = JoinContext(lake, clock, Settings(), generation_id, TaskRunner.alone(), "a test")
    for before in V1_STEPS[:step]:
        run_step(joining, V1_STEPS, before)
        if before.audit is not None:
            judge_step(joining, before)
    described = lake.read(TOPOLOGY_DESCRIPTIONS)["streams"][0].as_py()
    corrupt_stream(lake, table, described[0])
    with pytest.raises(StateError, match="has other rows than its commits recorded") as error:
        run_step(replace(joining, lake=Lake(str(lake.location))), V1_STEPS, V1_STEPS[step])
    assert table.full_name in str(error.value)
    assert not Lake(str(lake.location)).read(V1_STEPS[step].table if step == 4 else GENERATION_DESCRIPTIONS).num_rows


def test_damaged_rows_are_not_rewritten(s3: S3) -> None:
    """A damaged generation of the old tables blocks the rewrite: no generation is rewritten and no node is marked."""
    address = f"{s3.bucket()}/home"
    lake = Lake(open_home_location(address, create=True).lake)
    lake_copy.put_file(parse_path(f"{address}/settings.toml"), b"rewrite_retry_ms = 0\n")
    old_cluster(lake, times(3))
    cell = lake.read(GENERATION_DESCRIPTIONS)["description"][0].as_py()[0]["streams"][0]
    corrupt_stream(lake, GENERATION_DESCRIPTIONS, cell)
    refused = run("--home", address, "--clock", format_ms(Milliseconds(times(4)[3])), "rewrite")
    assert (refused.exit_code, "has other rows than its commits recorded" in refused.stderr) == (2, True), refused
    after = Lake(f"{address}/lake")
    assert [after.read(table).num_rows for table in (GENERATION_TIMESTAMPS, STREAMS_DESCRIPTIONS_V2)] == [0, 0]
    assert run("--home", address, "rewrite", "--dry-run").exit_code in (0, 1)


def test_tablet_change_refuses_damaged_stream_set(s3: S3) -> None:
    """A change of tablets is not published if the previous set, whose streams it closes, is damaged."""
    address = f"{s3.bucket()}/home"
    at = ("--home", address, "--clock")
    assert run(*at, "2026-01-01T00:00:00Z", "tablets", "create", "ks.t", "--count", "2").exit_code == 0
    lake = Lake(f"{address}/lake")
    corrupt_stream(lake, TABLET_STREAMS, lake.read(TABLET_STREAMS)["stream_id"][0].as_py())
    refused = run(*at, "2026-01-01T01:00:00Z", "tablets", "split", "ks.t", "--count", "4")
    assert (refused.exit_code, "has other rows than its commits recorded" in refused.stderr) == (2, True), refused
    after = Lake(f"{address}/lake")
    assert after.read(TABLET_TIMESTAMPS).num_rows == 1
    assert after.read(TABLET_STREAMS, ["timestamp"])["timestamp"].unique().to_pylist() == [
        after.read(TABLET_TIMESTAMPS)["timestamp"][0].as_py()
    ]


def test_consumer_stops_at_damaged_rows(s3: S3, tmp_path: Path) -> None:
    """A consumer reads the rows of sound commits before the damage and stops there, however often it starts."""
    home, address = home_with_log(tmp_path), f"{s3.bucket()}/home"
    write(Lake(home / "lake"), [READ_US])
    write(Lake(home / "lake"), [SWITCH_US + HOUR_US, Microseconds(SWITCH_US + HOUR_US + 1)])
    upload(home, address)
    lake = Lake(f"{address}/lake")
    log, sink = log_table(schema(lake)), sink_table(schema(lake), "audit")
    last = next(path for path, low, _, _ in lake.bounded_files(log, WRITTEN_AT) if us_from_datetime(low) > SWITCH_US)
    late = lake.read(log, ["cdc$stream_id"], [(WRITTEN_AT, ">", datetime_from_us(SWITCH_US))])
    corrupt_stream(lake, log, late["cdc$stream_id"][0].as_py(), last)
    at = ("--home", address, "--clock", format_us(Microseconds(SWITCH_US + 3 * HOUR_US)))
    stored = []
    # The first run exits with 1, since it has committed the rows before the damage. The second one commits nothing.
    for exit_code in (1, 2):
        refused = run(*at, "consume", "ks.t", "--name", "audit")
        outcome = (refused.exit_code, "has other rows than its commits recorded" in refused.stderr)
        assert outcome == (exit_code, True), refused
        after = Lake(f"{address}/lake")
        assert after.read(sink, ["cdc$stream_id"]).num_rows == 1
        stored.append([after.version(table) for table in (sink, CONSUMERS)])
    assert stored[0] == stored[1]


def test_compacted_log_is_verified(tmp_path: Path) -> None:
    """After compaction a log is verified against its commits: sound rows are read and damaged rows are refused."""
    lake = Lake(home_with_log(tmp_path) / "lake")
    for number in range(40):
        write(lake, [Microseconds(READ_US + number)])
    log, window = log_table(schema(lake)), Window(1, LOGGED_US, Microseconds(READ_US - 1), Microseconds(READ_US + 50))
    assert any(commit.operation == "OPTIMIZE" for commit in lake.commits(log))
    assert read_window(Lake(lake.root), schema(lake), window).num_rows == 40
    largest = max(lake.data_files(log), key=lambda file: file.rows)
    assert largest.rows > 1
    corrupt_stream(lake, log, lake.read(log)["cdc$stream_id"][0].as_py(), largest.path)
    with pytest.raises(StateError, match="has other rows than its commits recorded"):
        read_window(Lake(lake.root), schema(lake), window)


def test_damaged_rows_are_not_exported(s3: S3, tmp_path: Path) -> None:
    """An export of damaged rows names the table and the file and creates no folder."""
    home = home_with_joins(tmp_path, 1)
    address = f"{s3.bucket()}/home"
    upload(home, address)
    lake = Lake(f"{address}/lake")
    (path,) = [file.path for file in lake.data_files(STREAMS_DESCRIPTIONS_V2)]
    corrupt_stream(lake, STREAMS_DESCRIPTIONS_V2, lake.read(STREAMS_DESCRIPTIONS_V2)["streams"][0].as_py()[0])
    refused = run("--home", address, "export", tmp_path / "exported")
    assert (refused.exit_code, "has other rows than its commits recorded" in refused.stderr) == (2, True), refused
    assert (STREAMS_DESCRIPTIONS_V2.full_name in refused.stderr, Path(path).name in refused.stderr) == (True, True)
    assert not (tmp_path / "exported").exists()
