"""New data files of a table: written in a draft beside it, moved to where it has its own, added by our own actions.

deltalake writes a time that names a partition without its zone, and a reader whose session is in another zone reads
another time. Here it has its zone; those from before stand beside it, and name the same partition.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.types as pat
from deltalake import DeltaTable, WriterProperties, write_deltalake
from deltalake.transaction import AddAction, RemoveAction

from cdc_platform import drafts
from cdc_platform.clock import Microseconds, from_datetime, parse_time_us, to_datetime
from cdc_platform.errors import EnvironmentProblem
from cdc_platform.lake.commits import Properties, hooks_of
from cdc_platform.lake.creation import Log, blank, write_log
from cdc_platform.lake.files import LOG_FOLDER, draft_folder, folder_of, plain_path
from cdc_platform.lake.tables import Table
from cdc_platform.places import Place, place_of

Action = dict[str, Any]
"""A file as Delta's log adds it, with the folder of its draft's table as `draft`."""


def has_times(table: Table) -> bool:
    """Whether partitions of the table are named by times."""
    return any(pat.is_timestamp(table.schema.field(name).type) for name in table.partition_by)


def partition_text(value: Any) -> str:
    """A partition column's value as Delta's log has it, and as deltalake takes it in filters."""
    return _time_text(from_datetime(value)) if isinstance(value, datetime) else str(value)


def write(
    empty: Log, folder: Path, rows: pa.Table | pa.RecordBatchReader, properties: WriterProperties
) -> list[Action]:
    """Write rows as files of a table of its own in a new folder, whose log begins as `empty`; answers with the files.

    So Parquet, statistics, NOT NULL and CHECKs are those of every other write.

    Raises:
        DeltaError: the rows break a rule of the table.
    """
    write_log(folder, empty)
    write_deltalake(folder, rows, mode="append", writer_properties=properties)
    lines = (folder / LOG_FOLDER / f"{len(empty):020d}.json").read_text(encoding="utf-8").splitlines()
    return [action["add"] | {"draft": folder.name} for action in map(json.loads, lines) if "add" in action]


def placed(
    table: Table, target: str, draft: Path | None, files: Sequence[Action], unseen: str
) -> list[AddAction | RemoveAction]:
    """Move the files of a draft to where the table has its own, under their names, and say how they are added.

    All of them are looked at before the first is moved. Without a draft they are there, or nowhere.

    Raises:
        EnvironmentProblem: one is not there, or not whole; it goes on with `unseen` and the file's name.
    """
    missing: list[str] = []
    moves: list[tuple[Path, Place]] = []
    for file in files:
        path = plain_path(file["path"])
        written, place = draft and draft / file["draft"] / path, place_of(target) / path
        if written is not None and _is_whole(place_of(written), file["size"]):
            moves.append((written, place))
        elif not _is_whole(place, file["size"]):  # where an attempt that met a conflict has moved it
            missing.append(str(written or place))
    if missing:
        raise EnvironmentProblem(
            f"{table.full_name} stays as it was: {len(missing)} of {len(files)} new files are not whole; "
            + unseen.format(missing[0])
        )
    for written, place in moves:
        place.receive(written)
    return [_added(table, file) for file in files]


def rewrite(
    opened: DeltaTable,
    table: Table,
    rows: pa.Table,
    partitions: Iterable[Any],
    commit: tuple[Properties, WriterProperties],
) -> None:
    """Commit rows: behind those that there are, and in place of those of some partitions of the table's one column.

    Only as the version after the opened one, if the properties say so. What a killed process leaves is swept by the
    next; files that no commit names are taken by vacuum.
    """
    properties, writing = commit
    target = place_of(folder_of(opened))
    (column,) = table.partition_by
    chosen = [partition_text(value) for value in partitions]
    draft = drafts.make_folder(draft_folder(target), table.name)
    try:
        files = write(blank(table), draft / "rows", rows, writing) if rows.num_rows else []
        added = placed(table, str(target), draft, files, "somebody has removed {}")
    finally:
        drafts.discard(draft)
    opened.create_write_transaction(
        added,
        "overwrite" if chosen else "append",
        opened.schema(),
        list(table.partition_by),
        [(column, "in", chosen)] if chosen else None,
        commit_properties=properties,
        post_commithook_properties=hooks_of(opened),
    )


def _added(table: Table, file: Action) -> AddAction:
    return AddAction(
        plain_path(file["path"]),
        file["size"],
        _with_zones(table, file["partitionValues"]),
        file["modificationTime"],
        True,
        file["stats"],
    )


def _with_zones(table: Table, values: Mapping[str, str | None]) -> dict[str, str | None]:
    """Values of partition columns as deltalake wrote them, times with their zone."""
    times = {name for name in values if pat.is_timestamp(table.schema.field(name).type)}
    return {
        name: _time_text(parse_time_us(value, zone_required=False)) if value is not None and name in times else value
        for name, value in values.items()
    }


def _time_text(us: Microseconds) -> str:
    """As Delta on Spark writes it: ISO 8601 in UTC, always with six decimals."""
    return f"{to_datetime(us):%Y-%m-%dT%H:%M:%S.%fZ}"


def _is_whole(file: Place, size: int) -> bool:
    try:
        seen = file.seen()
    except OSError:
        return False
    return seen is not None and seen.bytes == size
