"""Create Delta tables atomically, and add missing columns to them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
from deltalake import DeltaTable

from cdc_platform.clock import Clock
from cdc_platform.delta import commit_info, row_hash
from cdc_platform.delta.files import LOG_FOLDER
from cdc_platform.delta.transaction_log import make_commit
from cdc_platform.errors import StateError
from cdc_platform.storage import ObjectStorePath, StoragePath, atomic
from cdc_platform.tables import Table

InitialLog = tuple[tuple[str, bytes], ...]
"""A table's log: its files with what is in them, in order."""


def create_table(table: Table, target: StoragePath) -> None:
    """Make a table complete and at once, whoever else makes it: a half-made one is never seen.

    In a folder it is moved to its place, in a store its commit is put where none is.

    Raises:
        StateError: a folder that is no table is in its place.
    """
    if isinstance(target, ObjectStorePath):
        (target / LOG_FOLDER / _FIRST_ENTRY).create(_make_first_commit(table, str(target)))
    elif target.here is not None:
        draft = atomic.make_draft_folder(target.here.parent, table.name)
        try:
            write_log(draft, ((_FIRST_ENTRY, _make_first_commit(table, str(target))),))
            _move_into_place(draft, target.here)
        finally:
            atomic.discard_draft(draft)


@cache
def make_empty_log(table: Table) -> InitialLog:
    """The log of an empty table of the declared shape and constraints: one commit, which is read at each write."""
    return ((_FIRST_ENTRY, _make_first_commit(table, "")),)


def write_log(folder: Path, log: InitialLog) -> None:
    """Let a folder be a table with this log."""
    (folder / LOG_FOLDER).mkdir(parents=True)
    for name, content in log:
        (folder / LOG_FOLDER / name).write_bytes(content)


_FIRST_ENTRY = f"{0:020d}.json"


def _make_first_commit(table: Table, place: str) -> bytes:
    """The commit that makes a table at a place, with an identity of its own and who makes it when in its envelope."""
    now_ms, said = Clock().now_ms(), _make_template_actions(table)
    configuration = {
        **said["metaData"]["configuration"],
        row_hash.DIGEST_RULE_PROPERTY: row_hash.NEWEST_DIGEST_RULE.value,
    }
    metadata = {**said["metaData"], "id": str(uuid.uuid4()), "createdTime": now_ms, "configuration": configuration}
    about = {
        "mode": "ErrorIfExists",
        "location": place,
        "metadata": json.dumps(metadata),
        "protocol": json.dumps(said["protocol"]),
    }
    seal = commit_info.new_commit_info({} if table.partition_by else {"": 0}).metadata()
    info = {**said["commitInfo"], "timestamp": now_ms, "operationParameters": about, **seal}
    actions = [("commitInfo", info), ("metaData", metadata), ("protocol", said["protocol"])]
    return "".join(f"{json.dumps({kind: action})}\n" for kind, action in actions).encode()


@cache
def _make_template_actions(table: Table) -> Mapping[str, Any]:
    """The actions, by kind, that deltalake comes to as it makes such a table and gives it its constraints one by one.

    To have it make each table anew takes ten times as long as to write down the one commit that all of them come to.
    """
    with atomic.temporary_folder("cdc-platform") as folder:
        made = DeltaTable.create(
            folder,
            pa.schema(table.schema),
            partition_by=list(table.partition_by),
            name=table.full_name,
            description=table.comment,
            configuration=dict(table.properties),
            raise_if_key_not_exists=False,
        )
        for name, rule in table.constraints.items():
            made.alter.add_constraint({name: rule})
        said: dict[str, Any] = {}
        for file in sorted(Path(folder, LOG_FOLDER).glob("*.json")):
            for action in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
                said = action | said if "commitInfo" in action else said | action
        return said


def add_missing_columns(opened: DeltaTable, table: Table) -> Table:
    """Give an opened table the columns that it lacks; answers with the table as it stands then.

    Raises:
        StateError: a column is there with another type.
    """
    declared = {column.name: column for column in deltalake.Schema.from_arrow(pa.schema(table.schema)).fields}
    stored = {column.name: column for column in opened.schema().fields}
    kinds = pa.schema(opened.schema())
    for name in declared.keys() & stored.keys():
        if declared[name].type != stored[name].type:
            raise StateError(
                f"{table.full_name}.{name} holds {kinds.field(name).type} where {table.schema.field(name).type}"
                " is to go in; a column was dropped and made anew: move the table away, or write under another"
                " name"
            )
    missing = [declared[name] for name in declared if name not in stored]
    if missing:
        make_commit(opened, lambda properties: opened.alter.add_columns(missing, commit_properties=properties))
    fields = [
        table.schema.field(name) if name in declared else kinds.field(name)
        for name in [*stored, *(column.name for column in missing)]
    ]
    return replace(table, schema=pa.schema(fields))


def _move_into_place(draft: Path, target: Path) -> None:
    """Put a new table in place. Renaming onto a folder that holds anything fails: then another process was first."""
    try:
        draft.rename(target)
    except OSError:
        if not DeltaTable.is_deltatable(str(target)):
            raise StateError(f"{target} is in the way of a table and is none itself; move it elsewhere") from None
