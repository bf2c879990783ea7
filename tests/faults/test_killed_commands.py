"""Kill every command with more than one commit before each file operation and run it again. No JVM."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import parquet
from support.command_line import run
from support.files.export_files import (
    ID,
    LATER_MS,
    NODES,
    OTHER_ID,
    SNAPSHOT,
    TIME_MS,
    generation,
    local_csv,
    streams_csv,
    tablet_streams_csv,
    tablet_timestamps_csv,
    timestamps_csv,
    v1_descriptions_csv,
    v1_streams_csv,
    v2_csv,
)
from support.homes.expiring import DAY_MS, GRACE_MS, TIMES_MS, add_table, import_generations, iso, mark
from support.homes.minute_log import MinuteLog
from support.homes.packed import SERVED, add_cluster_homes, begin_migration, unpack
from support.homes.v1_tables import old_cluster, times
from support.nodes import node_text
from support.processes.kills import Case, killed_and_run_again
from support.processes.nursery import Nursery
from support.read_logs import START_US, SWITCH_US, home_with_log, write
from support.worlds.switch_lake import NOON_MS, host, switching

from cdc_platform.clock import HOUR_US, ONE_US, Clock, Microseconds, Milliseconds, format_ms, parse_time_us
from cdc_platform.delta import Lake
from cdc_platform.home_location import open_home_location
from cdc_platform.metastore import consumers, inbox
from cdc_platform.tables import (
    CDC_TABLE_CHANGES,
    CDC_TABLES,
    GENERATION_DESCRIPTIONS_V2,
    GENERATION_TIMESTAMPS,
    TOPOLOGY_DESCRIPTIONS,
    Table,
)

HOSTS = [host(number) for number in (1, 2, 3)]
JOINING = "8d3f3f2e-3c61-4b0e-9a59-5a3f7c1de003"
COPY_HOURS = """
import sys
from cdc_platform.clock import Clock, parse_time_us
from cdc_platform.delta.lake import Lake
from cdc_platform.cdclog.consumer import hourly
lake, clock = Lake(f"{sys.argv[1]}/lake"), Clock(parse_time_us("2026-01-31T15:01:00Z"))
for hour in hourly.list_due_hours(lake, clock, 10):
    hourly.copy_hour(lake, clock, hourly.select_logs(lake), hour)
"""


def run_to_end(home: Path, *command: str, clock: str = "2026-01-01T00:00:00Z") -> None:
    """Run a command and require that it succeeds."""
    answer = run("--home", home, "--clock", clock, *command)
    assert answer.exit_code == 0, answer.stderr


def node(home: Path) -> None:
    """Write a node's file beside a home that does not exist yet."""
    (home.parent / "node.json").write_text(node_text(1), encoding="utf-8")


def queued(home: Path) -> None:
    """Queue a node to join, with deterministic IDs."""
    node(home)
    run_to_end(home, "bootstrap", str(home.parent / "node.json"))
    lake = Lake(home / "lake")
    (event,) = inbox.read_pending_events(lake)
    (home.parent / "event").write_text(event.event_id, encoding="utf-8")


def exports(home: Path, **texts: str) -> None:
    """Write files to import."""
    folder = home.parent / "exports"
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name}{'.json' if text.startswith('[') else '.csv'}").write_text(text, encoding="utf-8", newline="")


def ring(home: Path) -> None:
    """Import a ring, and export one in which a node has left and another has joined."""
    nodes = [SNAPSHOT[0] | {"host_id": JOINING, "tokens": [5]}, SNAPSHOT[1] | {"rack": "other"}]
    exports(home, ring=json.dumps(nodes))
    run_to_end(home, "import", str(home.parent / "exports"))
    exports(home, ring=json.dumps(SNAPSHOT))


def two_generations() -> dict[str, str]:
    """Return exports of two generations; the descriptions give the order of the first ranges' streams."""
    first, second = generation(ID), generation(OTHER_ID)
    return {
        "v2": v2_csv({ID: first, OTHER_ID: second}),
        "streams": streams_csv({TIME_MS: first, LATER_MS: second}),
        "timestamps": timestamps_csv({TIME_MS: LATER_MS, LATER_MS: None}),
    }


def unordered(home: Path) -> None:
    """Import streams whose order is unknown, then write exports with their descriptions."""
    texts = two_generations()
    exports(home, streams=texts["streams"], timestamps=texts["timestamps"])
    run_to_end(home, "import", str(home.parent / "exports"))
    exports(home, **texts)


def first_format(home: Path) -> None:
    """Write exports of both tables of the first format."""
    generations = {TIME_MS: generation(ID), LATER_MS: generation(OTHER_ID)}
    exports(home, internal=v1_descriptions_csv(generations), streams=v1_streams_csv(generations))


def tablets_of(home: Path) -> None:
    """Write an export of two stream sets."""
    run_to_end(home, "tables", "add", "ks.t", "--ttl", "60")
    one, other = (f"{number:016x}{1:016x}" for number in (2**62, 2**63 - 1))
    third = f"{2**63 - 1:016x}{(1 << 26) + 1:016x}"
    rows = [(TIME_MS, 0, one), (TIME_MS, 0, other), (TIME_MS, 2, one), (TIME_MS, 2, other)]
    rows += [(LATER_MS, 0, third), (LATER_MS, 1, one), (LATER_MS, 1, other), (LATER_MS, 2, third)]
    exports(home, streams=tablet_streams_csv(rows), timestamps=tablet_timestamps_csv([TIME_MS, LATER_MS]))


def damaged(home: Path) -> None:
    """Generate a generation and delete its data files in two tables; its published streams stay."""
    node(home)
    run_to_end(home, "bootstrap", str(home.parent / "node.json"), "--run")
    lose(home, TOPOLOGY_DESCRIPTIONS, GENERATION_DESCRIPTIONS_V2)


def imported_and_damaged(home: Path) -> None:
    """Import two generations and delete their data files in two tables."""
    exports(home, **two_generations())
    run_to_end(home, "import", str(home.parent / "exports"))
    lose(home, GENERATION_DESCRIPTIONS_V2, GENERATION_TIMESTAMPS)


def lose(home: Path, *tables: Table) -> None:
    """Remove the data files of tables."""
    for table in tables:
        for file in (home / "lake" / table.keyspace / table.name).rglob("*.parquet"):
            if "_delta_log" not in file.parts:
                file.unlink()


def upgraded(home: Path) -> None:
    """Create an upgraded cluster whose streams are in the old table."""
    old_cluster(Lake(open_home_location(home).lake), times(3))


def expiring(home: Path) -> None:
    """Create a home in which one generation may be removed and another has expired since."""
    import_generations(home.parent)
    add_table(Lake(home / "lake"), 23 * 1800)
    mark(Lake(home / "lake"), Milliseconds(TIMES_MS[2] + DAY_MS // 2 - GRACE_MS))


def logged(home: Path) -> None:
    """Create a log with rows on both sides of a switch."""
    home_with_log(home.parent)
    write(Lake(home / "lake"), [START_US, SWITCH_US - HOUR_US // 2, SWITCH_US - ONE_US, SWITCH_US, SWITCH_US + HOUR_US])


def written(home: Path) -> None:
    """Write a file of writes on both sides of a switch, beside a home whose log has other rows."""
    logged(home)
    times = [START_US + index * HOUR_US // 7 for index in range(1, 20)]
    columns = {name: pa.array(range(19), pa.int32()) for name in ("p", "k", "v")}
    parquet.write_table(pa.table({"timestamp": times} | columns), home.parent / "writes.parquet")


def with_tablets(*counts: int) -> Any:
    """Return a function that creates a table and splits its tablets once per further count."""

    def prepare(home: Path) -> None:
        run_to_end(home, "tablets", "create", "ks.t", "--count", str(counts[0]))
        for hour, count in enumerate(counts[1:], 1):
            run_to_end(home, "tablets", "split", "ks.t", "--count", str(count), clock=f"2026-01-01T0{hour}:00:00Z")
        (home.parent / "ends.json").write_text(json.dumps([0, 2**62, 2**63 - 1]), encoding="utf-8")

    return prepare


def without_tablets(home: Path) -> None:
    """Create two tables with logs."""
    run_to_end(home, "tables", "add", "ks.t", "--ttl", "60")
    run_to_end(home, "tables", "add", "ks.other", "--ttl", "60")


def with_consumer(home: Path) -> None:
    """Register a consumer."""
    consumers.register_consumer(
        Lake(open_home_location(home).lake), Clock(Microseconds(1)), "audit", "ks", "t", position_us=Microseconds(0)
    )


def long_used(home: Path) -> None:
    """Create two tables with old files: some belong to no commit, others to replaced commits."""
    without_tablets(home)
    for ttl in ("5", "6"):
        run_to_end(home, "tables", "alter", "ks.t", "--ttl", ttl, clock=f"2026-01-0{ttl}T00:00:00Z")
    for table in (CDC_TABLES, CDC_TABLE_CHANGES):
        folder = home / "lake" / table.keyspace / table.name
        for number in range(3):
            (folder / f"part-{number}.parquet").write_bytes(b"PAR1")
            os.utime(folder / f"part-{number}.parquet", (1e9, 1e9))


def files(home: Path) -> list[str]:
    """Return the names of the data files that tests added."""
    return sorted(path.name for path in (home / "lake").rglob("part-?.parquet"))


def with_foreign_rows(home: Path) -> None:
    """Append rows to a table twice, as a foreign program."""
    without_tablets(home)
    folder = home / "lake" / CDC_TABLE_CHANGES.keyspace / CDC_TABLE_CHANGES.name
    for _ in range(2):
        write_deltalake(folder, DeltaTable(folder).to_pyarrow_table(), mode="append")


def with_unreadable_entries(home: Path) -> None:
    """Leave two unreadable entries at the end of a table's log, so that the table cannot be opened."""
    with_foreign_rows(home)
    for entry in entries_of_changes(home)[-2:]:
        entry.write_bytes(b"garbage")


def entries_of_changes(home: Path) -> list[Path]:
    """Return the entries in the log of the table of changes, oldest first."""
    return sorted((home / "lake" / CDC_TABLE_CHANGES.keyspace / CDC_TABLE_CHANGES.name / "_delta_log").glob("*.json"))


def moved_entries(home: Path) -> list[tuple[str, bytes]]:
    """Return the entries moved out of logs, and the names of the entries that remain."""
    moved = [(path.name, path.read_bytes()) for path in sorted((home / "damaged").rglob("*.json.*"))]
    return [*moved, *((entry.name, b"") for entry in entries_of_changes(home))]


def ingested_by_the_minute(home: Path) -> None:
    """Create a log with one file for each of seventy minutes."""
    open_home_location(home)
    MinuteLog(parse_time_us("2026-01-01T00:00:00Z"), 70, 2).write(Lake(home / "lake"))


def files_of_the_log(home: Path) -> list[int]:
    """Return the row counts of that log's files in its newest version."""
    return sorted(file.rows for file in Lake(home / "lake").data_files(MinuteLog(Microseconds(0), 0).table))


def prepared(answers: int) -> Any:
    """Return a function that prepares a switch acknowledged by `answers` of three nodes.

    It writes the generation's ID into the file `generation` beside the home.
    """

    def prepare(home: Path) -> None:
        id_ = switching(Lake(open_home_location(home).lake), answers)
        (home.parent / "generation").write_text(id_, encoding="utf-8")

    return prepare


def older_with_clusters(home: Path) -> None:
    """Unpack a home of version 0.2.0 and add the homes of two clusters."""
    add_cluster_homes(unpack(SERVED, home.parent) / "served", ["alpha", "beta"])
    (home.parent / "served").rename(home)


def half_migrated(home: Path) -> None:
    """Begin a migration of that home and stop after the second of its files."""
    older_with_clusters(home)
    begin_migration(home, files=2)


def migrated(home: Path) -> object:
    """Return the layouts and settings of a home and those below it, and whether a migration is open."""
    files = sorted([*home.rglob("platform.json"), *home.rglob("settings.toml")])
    return [path.read_text(encoding="utf-8") for path in files], (home / "migration").exists()


IMPORT = ("import", "{beside}/exports")
UNDO = ("check", "--undo", f"{CDC_TABLE_CHANGES.full_name}@3", "--reason", "written by another program")
GONE = "no CDC-enabled table ks.t is known"
LATE = format_ms(Milliseconds(NOON_MS + 30_000))
CASES = {
    "bootstrap": Case(node, ("bootstrap", "{beside}/node.json"), without={"generation_id"}),
    "bootstrap --withdraw": Case(queued, ("bootstrap", "--withdraw", "@event")),
    "import: ring": Case(ring, IMPORT),
    "import: generations": Case(lambda home: exports(home, **two_generations()), IMPORT),
    "import: descriptions after streams": Case(unordered, IMPORT),
    "import: first format": Case(first_format, IMPORT),
    "import: a node's": Case(
        lambda home: exports(home, local=local_csv({"cdc_local": (TIME_MS, ID), "rewritten": (None, None)})),
        (*IMPORT, "--node", str(NODES[0].host_id)),
    ),
    "import: tablets": Case(tablets_of, IMPORT),
    "import --repair": Case(imported_and_damaged, (*IMPORT, "--repair")),
    "repair --from-description": Case(damaged, ("repair", "--from-description")),
    "rewrite": Case(upgraded, ("rewrite",), iso(Milliseconds(times(4)[3]))),
    "expire": Case(expiring, ("expire",), iso(TIMES_MS[2] + DAY_MS // 2), without={"machine_marked_at"}),
    "consume": Case(logged, ("consume", "ks.t", "--name", "audit"), "2026-01-31T15:01:00Z"),
    "consume --changes": Case(logged, ("consume", "ks.t", "--name", "audit", "--changes"), "2026-01-31T15:01:00Z"),
    "log-writes": Case(written, ("log-writes", "ks.t", "{beside}/writes.parquet", "--batch", "one")),
    "log-writes --hourly": Case(written, ("log-writes", "ks.t", "{beside}/writes.parquet", "--hourly")),
    "rebuild": Case(logged, ("rebuild", "ks.t"), "2026-01-31T15:01:00Z"),
    "hourly copy": Case(logged, ("-c", COPY_HOURS)),
    "tablets create": Case(lambda home: home.mkdir(), ("tablets", "create", "ks.t", "--count", "4")),
    "tablets split": Case(with_tablets(2), ("tablets", "split", "ks.t", "--count", "4"), "2026-01-01T01:00:00Z"),
    "tablets merge": Case(with_tablets(4), ("tablets", "merge", "ks.t", "--count", "2"), "2026-01-01T01:00:00Z"),
    "tablets resize": Case(
        with_tablets(2), ("tablets", "resize", "ks.t", "--last-tokens", "{beside}/ends.json"), "2026-01-01T01:00:00Z"
    ),
    "tablets gc": Case(with_tablets(2, 4, 8), ("tablets", "gc"), "2026-01-03T00:00:00Z"),
    "tables add": Case(without_tablets, ("tables", "add", "ks.new", "--ttl", "60")),
    "tables alter": Case(without_tablets, ("tables", "alter", "ks.t", "--ttl", "5"), "2026-01-02T00:00:00Z"),
    "tables drop": Case(without_tablets, ("tables", "drop", "ks.t"), "2026-01-02T00:00:00Z", refused=GONE),
    "tables drop: tablets": Case(with_tablets(2, 4), ("tables", "drop", "ks.t"), "2026-01-02T00:00:00Z", refused=GONE),
    "switch ack": Case(
        prepared(2), ("switch", "ack", "@generation", "--node", HOSTS[2]), format_ms(Milliseconds(NOON_MS + 1000))
    ),
    "switch commit": Case(prepared(3), ("switch", "commit", "@generation"), LATE),
    "switch abort": Case(prepared(1), ("switch", "abort", "@generation"), LATE),
    "home maintain": Case(long_used, ("home", "maintain"), more=files),
    "check --undo": Case(with_foreign_rows, UNDO, refused="has written version 5", more=moved_entries),
    "check --undo: unreadable entries": Case(
        with_unreadable_entries, UNDO, refused="is the platform's own", more=moved_entries
    ),
    "home migrate": Case(older_with_clusters, ("home", "migrate"), more=migrated),
    "home migrate --undo": Case(
        half_migrated, ("home", "migrate", "--undo"), refused="no interrupted migration", more=migrated
    ),
    "home maintain: a log": Case(
        ingested_by_the_minute, ("home", "maintain"), "2026-01-02T00:00:00Z", more=files_of_the_log
    ),
    "consumers remove": Case(with_consumer, ("consumers", "remove", "audit", "ks.t"), refused="no consumer audit"),
}


@pytest.mark.grid("kills of commands", 6)
@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_killed_command_completes_when_run_again(case: Case, nursery: Nursery, tmp_path: Path) -> None:
    """Running a killed command again leaves exactly the rows of an undisturbed run and no lock or draft file."""
    assert killed_and_run_again(nursery, case, tmp_path) > 0
