"""Checks of one generation: they read no more than they need, and find what a check that reads everything finds."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from support.homes.every_table import every_table
from support.nodes import join_request

from cdc_platform.checks import uniqueness
from cdc_platform.clock import HOUR_US, Clock, Microseconds, datetime_from_ms
from cdc_platform.delta import Lake, TaskRunner, compute, track_reads
from cdc_platform.home import checking
from cdc_platform.home.checking import GENERATION_AUDIT_TABLES, check_home
from cdc_platform.lifecycle import run_join
from cdc_platform.metastore import inbox, read_table_checks
from cdc_platform.settings import Settings
from cdc_platform.tables import (
    GENERATION_DESCRIPTIONS_V2,
    GENERATION_TIMESTAMPS,
    GENERATIONS,
    NODES,
    STREAM_FINGERPRINTS,
    STREAMS_DESCRIPTIONS_V2,
    TABLE_CHECKS,
    TOPOLOGY_DESCRIPTIONS,
    Table,
)
from cdc_platform.timeline import Timeline

START_US = Microseconds(1_767_225_600_000_000)
CLOCK = Clock(Microseconds(START_US + 100 * HOUR_US))
PARTITIONED = (TOPOLOGY_DESCRIPTIONS, GENERATION_DESCRIPTIONS_V2, STREAMS_DESCRIPTIONS_V2)


@dataclass(frozen=True)
class Joined:
    """A lake of several joins; `own` is the generation to check, `other` an older one."""

    lake: Lake
    own: str
    other: str

    def files(self, table: Table, generation_id: str) -> list[Path]:
        """Return a generation's data files in a partitioned table."""
        generation = Timeline.read(self.lake).with_id(generation_id)
        assert generation is not None
        keys = {generation_id, str(generation.time_ms)}
        (column,) = table.partition_by
        is_own = [
            Path(file.path)
            for file in self.lake.data_files(table)
            if str(file.partition[0]) in keys
            or (column == "time" and str(round(file.partition[0].timestamp() * 1000)) in keys)
        ]
        assert is_own
        return is_own

    def log(self, table: Table) -> list[Path]:
        """Return the entries of a table's log, oldest first."""
        return sorted((Path(self.lake.path(table)) / "_delta_log").glob("*.json"))

    def failed(self, generation: str | None = None, *, record_as: str | None = None) -> list[str]:
        """Check a generation, by default `own`, and return the invariants that failed, with those not judged."""
        lake = Lake(self.lake.root)
        report = check_home(lake, CLOCK, Settings(), generation or self.own, deep=False, record_as=record_as)
        assert report.passed == (not report.failed)
        return [str(result.invariant) for result in report.failed]


@pytest.fixture(scope="module")
def lake_of_joins(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Return a lake of four joins, whose fingerprints are stored, and the generations."""
    lake = Lake(tmp_path_factory.mktemp("joins") / "lake")
    generations = []
    for number in range(1, 5):
        clock = Clock(Microseconds(START_US + HOUR_US * number))
        generations.append(inbox.queue_join(lake, clock, join_request(number)).generation_id)
        run_join(TaskRunner.alone(), lake, clock, Settings(), generations[-1])
    assert uniqueness.store_fingerprints(lake, at_least=1) == 4
    return lake.root, generations


@pytest.fixture
def joined(lake_of_joins: tuple[Path, list[str]], tmp_path: Path) -> Joined:
    """Return a copy of the lake."""
    folder, generations = lake_of_joins
    shutil.copytree(folder, tmp_path / "lake")
    return Joined(Lake(tmp_path / "lake"), generations[2], generations[0])


def test_rows_of_other_generations_are_not_needed(joined: Joined) -> None:
    """With verified fingerprints no file of another generation is opened; without them every one is."""
    assert joined.failed() == []
    others = [generation.id for generation in Timeline.read(joined.lake).known if generation.id != joined.own]
    for table in PARTITIONED:
        for other in others:
            for file in joined.files(table, other or ""):
                file.unlink()
    assert joined.failed() == []
    shutil.rmtree(joined.lake.path(STREAM_FINGERPRINTS))
    assert "files_whole" in joined.failed()


@pytest.mark.parametrize("kind", ["joins", "every table"])
def test_only_these_tables_are_read(joined: Joined, tmp_path: Path, kind: str) -> None:
    """All of them are verified first."""
    lake = joined.lake if kind == "joins" else Lake(every_table(tmp_path / "every") / "lake")
    known = Timeline.read(lake).known
    assert known
    for generation in known:
        with track_reads() as read:
            report = check_home(lake, CLOCK, Settings(), generation.id or generation.time_ms, deep=True, record_as=None)
            assert report.results
        assert sorted(read - {TABLE_CHECKS.full_name} - {table.full_name for table in GENERATION_AUDIT_TABLES}) == []


def remove_own(table: Table) -> Callable[[Joined], None]:
    """Return the damage that removes the generation's files in a table."""

    def remove(joined: Joined) -> None:
        for file in joined.files(table, joined.own):
            file.unlink()

    return remove


def cut_own(table: Table) -> Callable[[Joined], None]:
    """Return the damage that leaves half of the bytes of a file of the generation."""

    def cut(joined: Joined) -> None:
        (file, *_) = joined.files(table, joined.own)
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])

    return cut


def remove_entry(table: Table) -> Callable[[Joined], None]:
    """Return the damage that removes the second entry of a table's log."""
    return lambda joined: joined.log(table)[1].unlink()


def garble_entry(table: Table) -> Callable[[Joined], None]:
    """Return the damage that garbles the newest entry of a table's log."""

    def garble(joined: Joined) -> None:
        joined.log(table)[-1].write_bytes(b'{"commitInfo": ')

    return garble


def write_foreign(
    table: Table, change: Callable[[Joined, pa.Table], pa.Table], of: str = "own"
) -> Callable[[Joined], None]:
    """Return the damage of another program that replaces a generation's rows in a table partitioned by UUID."""

    def write(joined: Joined) -> None:
        (column,) = table.partition_by
        key = getattr(joined, of)
        rows = joined.lake.read(table, filters=[(column, "=", key)])
        stored = DeltaTable(joined.lake.path(table))
        write_deltalake(stored, change(joined, rows), mode="overwrite", predicate=f"{column} = '{key}'")

    return write


def with_streams(rows: pa.Table, streams: list[list[bytes]]) -> pa.Table:
    """Return the rows with other streams."""
    index = rows.schema.get_field_index("streams")
    return rows.set_column(index, rows.schema.field(index), pa.array(streams, rows.schema.field(index).type))


def exchange_streams(_: Joined, rows: pa.Table) -> pa.Table:
    """Return rows with the streams of the first two ranges exchanged."""
    streams = rows["streams"].to_pylist()
    return with_streams(rows, [streams[1], streams[0], *streams[2:]])


def share_streams(joined: Joined, rows: pa.Table) -> pa.Table:
    """Return rows of the other generation, with a stream of the checked one."""
    own = joined.lake.read(GENERATION_DESCRIPTIONS_V2, filters=[("id", "=", joined.own)])
    streams = rows["streams"].to_pylist()
    streams[0] = [own["streams"].to_pylist()[0][0], *streams[0][1:]]
    return with_streams(rows, streams)


def hide_fingerprints(joined: Joined) -> None:
    """Let another generation share a stream, in a file of its old name, and have fingerprints that do not show it."""
    share = write_foreign(GENERATION_DESCRIPTIONS_V2, share_streams, of="other")
    share(joined)
    files = [file.name for file in joined.files(GENERATION_DESCRIPTIONS_V2, joined.other)]
    rows = joined.lake.read(STREAM_FINGERPRINTS).to_pylist()
    renamed = [row | {"files": files} if row["generation_id"] == joined.other else row for row in rows]
    write_deltalake(
        DeltaTable(joined.lake.path(STREAM_FINGERPRINTS)),
        pa.Table.from_pylist(renamed, schema=STREAM_FINGERPRINTS.schema),
        mode="overwrite",
    )


def remove_time(joined: Joined) -> None:
    """Remove a published row of the checked generation by another program's commit."""
    generation = Timeline.read(joined.lake).with_id(joined.own)
    assert generation is not None
    rows = joined.lake.read(STREAMS_DESCRIPTIONS_V2)
    (end, *_) = rows.filter(compute.equal(rows["time"], datetime_from_ms(generation.time_ms)))["range_end"]
    DeltaTable(joined.lake.path(STREAMS_DESCRIPTIONS_V2)).delete(f"range_end = {end.as_py()}")


LOGGED = (*PARTITIONED, GENERATION_TIMESTAMPS, GENERATIONS, NODES)
DAMAGES: dict[str, Callable[[Joined], None]] = {
    **{f"removed-{table.name}": remove_own(table) for table in PARTITIONED},
    **{f"cut-{table.name}": cut_own(table) for table in PARTITIONED},
    **{f"entry-removed-{table.name}": remove_entry(table) for table in LOGGED},
    **{f"entry-garbled-{table.name}": garble_entry(table) for table in LOGGED},
    "exchanged": write_foreign(GENERATION_DESCRIPTIONS_V2, exchange_streams),
    "shared": write_foreign(GENERATION_DESCRIPTIONS_V2, share_streams, of="other"),
    "hidden": hide_fingerprints,
    "unpublished": remove_time,
}


@pytest.mark.parametrize("name", DAMAGES)
def test_each_damage_is_found_as_by_reading_everything(
    name: str, joined: Joined, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verdict is that of a check that trusts no fingerprints and verifies all partitions."""
    DAMAGES[name](joined)
    failed = joined.failed()
    assert failed
    monkeypatch.setattr(checking, "_read_verified_index", lambda *_: uniqueness.EMPTY_INDEX)
    monkeypatch.setattr(checking.inventory, "list_partitions_to_read", lambda *_: {})
    assert joined.failed() == failed


def test_a_verification_of_some_partitions_is_not_recorded_as_one_of_the_table(joined: Joined) -> None:
    """A complaint is recorded after a look at the whole table, and goes once that is well."""
    name = GENERATION_DESCRIPTIONS_V2.full_name
    assert joined.failed(record_as="a test") == []
    assert name not in read_table_checks(joined.lake)
    assert GENERATION_TIMESTAMPS.full_name in read_table_checks(joined.lake)
    (file,) = joined.files(GENERATION_DESCRIPTIONS_V2, joined.own)
    content = file.read_bytes()
    file.unlink()
    assert "files_whole" in joined.failed(record_as="a test")
    check = read_table_checks(Lake(joined.lake.root))[name]
    assert [complaint.invariant for complaint in check.complaints] == ["files_whole"]
    assert check.files > 4
    file.write_bytes(content)
    assert joined.failed(record_as="a test") == []
    assert read_table_checks(Lake(joined.lake.root))[name].complaints == ()


@pytest.mark.parametrize(
    ("record_as", "damaged", "stored"), [("a test", False, 4), (None, False, 0), ("a test", True, 0)]
)
def test_a_check_that_read_many_stores_their_fingerprints(
    joined: Joined, monkeypatch: pytest.MonkeyPatch, record_as: str | None, damaged: bool, stored: int
) -> None:
    """Only if it records its results, and found no damage."""
    monkeypatch.setattr(uniqueness, "MIN_GENERATIONS_A_COMMIT", 3)
    shutil.rmtree(joined.lake.path(STREAM_FINGERPRINTS))
    if damaged:
        remove_own(STREAMS_DESCRIPTIONS_V2)(joined)
    joined.failed(record_as=record_as)
    assert Lake(joined.lake.root).read(STREAM_FINGERPRINTS).num_rows == stored
