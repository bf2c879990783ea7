"""A commit of files that others wrote names complete files in their places, or leaves the table. No JVM."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from cdc_platform.delta import Lake, task_writer
from cdc_platform.delta.create import make_empty_log
from cdc_platform.delta.row_hash import NEWEST_DIGEST_RULE
from cdc_platform.errors import EnvironmentProblem
from cdc_platform.tables import STREAMS_DESCRIPTIONS_V2, TABLES, Table

TABLE = STREAMS_DESCRIPTIONS_V2
TIME = datetime(2026, 1, 1, tzinfo=UTC)
AN_ID = "00000000-0000-4000-8000-000000000001"
PARTITION = {"time": TIME}


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A lake with one row in the partition."""
    lake = Lake(tmp_path / "lake")
    lake.merge(TABLE, rows(1), update=False)
    return lake


def rows(*ends: int) -> pa.Table:
    """Return rows of the partition with these range ends."""
    return pa.Table.from_pylist(
        [{"time": TIME, "range_end": end, "streams": [b"0123456789abcdef"]} for end in ends], schema=TABLE.schema
    )


def draft(lake: Lake, *parts: pa.Table) -> task_writer.WriteDraft:
    """Return the draft of as many tasks as there are parts, with files as Spark's workers write them."""
    folder = Path(lake.path(TABLE)).with_name(f".{TABLE.name}.draft")
    folder.mkdir()
    part = task_writer._TaskWriter(TABLE, str(folder), make_empty_log(TABLE), {}, "a test", NEWEST_DIGEST_RULE)
    answers = [line for rows in parts for batch in part.write(iter(rows.to_batches())) for line in batch.to_pylist()]
    return task_writer.WriteDraft(folder, tuple(json.loads(line["file"]) for line in answers))


def find_file(draft: task_writer.WriteDraft, number: int) -> Path:
    """Return where a task put a file."""
    file = draft.files[number]
    return next((draft.folder / file["draft"]).rglob(Path(file["path"]).name))


def state(lake: Lake) -> tuple[Any, ...]:
    """Return what a reader sees of the table, and all files in its folder."""
    files = sorted(str(path) for path in Path(lake.path(TABLE)).rglob("*"))
    return lake.version(TABLE), sorted(lake.read(TABLE)["range_end"].to_pylist()), files


def truncate(path: Path) -> None:
    """Truncate a file, as a full disk does."""
    path.write_bytes(path.read_bytes()[:-1])


COMMITS = {
    "replace": lambda lake, made: task_writer.commit_draft(lake, TABLE, made, PARTITION),
    "append": lambda lake, made: task_writer.commit_draft_once(lake, TABLE, made, None, append=True),
    "replace all": lambda lake, made: task_writer.commit_draft_once(lake, TABLE, made, ("app", 1), append=False),
}


@pytest.mark.parametrize("commit", COMMITS.values(), ids=list(COMMITS))
@pytest.mark.parametrize("damage", [Path.unlink, truncate], ids=["missing", "cut off"])
def test_commit_names_no_incomplete_file(lake: Lake, commit: Any, damage: Any) -> None:
    """If one of three files is missing or truncated, one line refuses and table and folder stay unchanged."""
    new_draft, before = draft(lake, rows(5), rows(6), rows(7)), state(lake)
    damage(find_file(new_draft, 2))
    message = (
        r"_v2 is unchanged: 1 of 3 new files are missing or incomplete; Spark's workers do not see the home .* mount it"
    )
    with pytest.raises(EnvironmentProblem, match=message):
        commit(lake, new_draft)
    assert state(lake) == before


@pytest.mark.parametrize(("name", "ends"), [("replace", [5, 6]), ("append", [1, 5, 6]), ("replace all", [5, 6])])
def test_complete_files_are_committed(lake: Lake, name: str, ends: list[int]) -> None:
    """As a control of the test above, a second attempt finds the files that the first one moved."""
    new_draft = draft(lake, rows(5), rows(6))
    task_writer._place_draft(lake, TABLE, new_draft)
    COMMITS[name](lake, new_draft)
    assert state(lake)[1] == ends


def test_worker_without_the_folder_refuses(lake: Lake, tmp_path: Path) -> None:
    """A worker without the driver's folder writes nothing, and returns the reason."""
    part = task_writer._TaskWriter(
        TABLE, str(tmp_path / "hidden"), make_empty_log(TABLE), {}, "writing", NEWEST_DIGEST_RULE
    )
    [batch] = part.write(iter(rows(5).to_batches()))
    [line] = batch.to_pylist()
    assert line["refused"] == "EnvironmentProblem"
    assert line["message"].startswith("writing: Spark's workers do not see the home")
    assert not (tmp_path / "hidden").exists()


@pytest.mark.parametrize("table", [each for each in TABLES.values() if each.partition_by and each.generation_column])
def test_stream_ids_have_no_dictionary_and_statistics(table: Table, tmp_path: Path) -> None:
    """Unique values need no dictionary, minimum and maximum; other columns have them."""
    values: dict[str, Any] = {
        "id": AN_ID,
        "generation_id": AN_ID,
        "time": TIME,
        "owner": AN_ID,
        "streams": [bytes(16)] * 4,
    }
    columns = {name: [values.get(name, 1)] * 3 for name in table.schema.names} | {"range_end": [1, 2, 3]}
    part = task_writer._TaskWriter(table, str(tmp_path), make_empty_log(table), {}, "a test", NEWEST_DIGEST_RULE)
    answers = list(part.write(iter(pa.table(columns, schema=table.schema).to_batches())))
    (path,) = tmp_path.rglob("*.parquet")
    group = pq.ParquetFile(path).metadata.row_group(0)
    chunks = {column.path_in_schema: column for column in map(group.column, range(group.num_columns))}
    ids = chunks.pop("streams.list.element")
    assert (ids.has_dictionary_page, ids.is_stats_set) == (False, False)
    assert all(column.has_dictionary_page and column.statistics.has_min_max for column in chunks.values())
    stats = json.loads(json.loads(answers[0]["file"][0].as_py())["stats"])
    assert (stats["minValues"]["range_end"], stats["maxValues"]["range_end"]) == (1, 3)


def test_rows_may_read_a_table_while_they_are_written(lake: Lake, tmp_path: Path) -> None:
    """A task may open a Delta table between two batches, which deltalake refuses in the thread that writes."""

    def read_rows() -> Iterator[pa.RecordBatch]:
        for end in range(3):
            known = DeltaTable(lake.path(TABLE)).to_pyarrow_table().num_rows
            yield from rows(end + 10 * known).to_batches()

    part = task_writer._TaskWriter(TABLE, str(tmp_path), make_empty_log(TABLE), {}, "a test", NEWEST_DIGEST_RULE)
    (answer,) = [line for batch in part.write(read_rows()) for line in batch.to_pylist()]
    assert not answer["refused"], answer["message"]
    assert json.loads(json.loads(answer["file"])["stats"])["numRecords"] == 3


def test_error_of_the_rows_preserves_class_and_message(tmp_path: Path) -> None:
    """An error that a source raises after the first batch is reported unchanged."""

    def refuse_second() -> Iterator[pa.RecordBatch]:
        yield from rows(1).to_batches()
        raise EnvironmentProblem("the second batch is gone")

    part = task_writer._TaskWriter(TABLE, str(tmp_path), make_empty_log(TABLE), {}, "a test", NEWEST_DIGEST_RULE)
    (answer,) = [line for batch in part.write(refuse_second()) for line in batch.to_pylist()]
    assert (answer["refused"], answer["message"]) == ("EnvironmentProblem", "the second batch is gone")
