"""Every kind of damage to a table of a home: to its files, to its log, and rows of a foreign program.

The module writes Delta's log by hand, without any library's checks, so that each damage is exactly the intended one.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from support.command_line import run
from support.homes.every_table import every_table

from cdc_platform.delta import CommitAuthor, Lake, commit_as
from cdc_platform.tables import LEFT_OUT, TABLES

_LOGGED = (("shop", "carts"), ("shop", "visits"), ("tabs", "sessions"))
BESIDE_LOGS = (
    *("shop.carts_scylla_cdc_log", "shop.carts_scylla_cdc_log_audit", "shop.carts_scylla_cdc_log_hourly"),
    *("shop.visits_scylla_cdc_log", "tabs.sessions_scylla_cdc_log"),
    *("tabs.sessions_scylla_cdc_log_feed", "tabs.sessions_scylla_cdc_log_hourly"),
)
"""The logs of the healthy home, and the copies of their consumers."""
_STATES = tuple(f"{keyspace}..{name}_scylla_cdc_log.state" for keyspace, name in _LOGGED)
TABLE_NAMES = (*sorted(TABLES), *BESIDE_LOGS, *_STATES)
"""Every table of the healthy home."""
_SCRIPT = """
INSERT INTO shop.carts (customer, item, count) VALUES ('a', 1, 2);
INSERT INTO shop.visits (page, seen) VALUES ('a', 1);
INSERT INTO tabs.sessions (id, agent) VALUES (1, 'x');
"""

Harm = Callable[[Path], bool]
"""Damages the table in a folder. Returns False, without a change, if the table lacks what the damage needs."""
_NESTED = 5_000


def healthy_home(folder: Path) -> Path:
    """Create a home with rows in every table and a state beside each log, which passes all checks."""
    home, script = every_table(folder), folder / "script.cql"
    with commit_as(CommitAuthor("a test", "healthy home")):
        Lake(home / "lake").delete(LEFT_OUT, [("said", "!=", "")])
    script.write_text(_SCRIPT, encoding="utf-8")
    answer = run("--home", home, "--clock", "2026-11-01T14:00:10Z", "cql", "run", "--apply", script)
    assert (answer.exit_code, answer.stderr) == (0, ""), answer
    return home


def folder_of(home: Path, table: str) -> Path:
    """Return the folder of a table of a home."""
    keyspace, _, name = table.partition(".")
    return home / "lake" / keyspace / name


def entries(folder: Path) -> list[Path]:
    """Return the entries of a table's log, oldest first."""
    return sorted((folder / "_delta_log").glob("*.json"))


def files(folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Return the data files of a table's newest version with the actions that added them, by name."""
    added_files: dict[str, dict[str, Any]] = {}
    for entry in entries(folder):
        for action in map(json.loads, entry.read_text().splitlines()):
            if "add" in action:
                added_files[action["add"]["path"]] = action["add"]
            elif "remove" in action:
                added_files.pop(action["remove"]["path"], None)
    paths = sorted(map(Path, DeltaTable(folder).file_uris()))
    by_name = {Path(path).name: add for path, add in added_files.items()}
    return [(path, by_name[path.name]) for path in paths]


def commit(folder: Path, *actions: Mapping[str, Any], name: str = "WRITE", raw: bytes = b"") -> Path:
    """Append a log entry as a foreign program would; return its file."""
    newest = entries(folder)[-1]
    info = {"commitInfo": {"timestamp": 1_800_000_000_000, "operation": name, "engineInfo": "a stranger"}}
    entry = newest.with_name(f"{int(newest.stem) + 1:020d}.json")
    lines = [json.dumps(action).encode() for action in (info, *actions)]
    entry.write_bytes(b"\n".join([*lines, raw] if raw else lines) + b"\n")
    return entry


def added(folder: Path, rows: pa.Table, like: Mapping[str, Any], **other: Any) -> dict[str, Any]:
    """Write rows into a new file of the same partition; return the action that adds it."""
    path = Path(like["path"]).parent / f"part-{uuid.uuid4()}.parquet"
    new_file = folder / "foreign.parquet"
    pq.write_table(rows, new_file)
    size = new_file.stat().st_size
    new_file.rename(folder / unquote(str(path)))
    action = {
        "path": str(path),
        "partitionValues": like["partitionValues"],
        "size": size,
        "modificationTime": 1_800_000_000_000,
        "dataChange": True,
        "stats": json.dumps({"numRecords": rows.num_rows}),
    }
    return {"add": action | other}


def removal(add: Mapping[str, Any]) -> dict[str, Any]:
    """Return the action that removes a file."""
    own = {"deletionTimestamp": 1_800_000_000_000, "dataChange": True, "extendedFileMetadata": True}
    return {"remove": {"path": add["path"], "partitionValues": add["partitionValues"], "size": add["size"]} | own}


def _one(folder: Path) -> tuple[Path, dict[str, Any], pa.Table] | None:
    """Return the first file with a row, the action that adds it, and that row."""
    for path, add in files(folder):
        rows = pq.read_table(path, partitioning=None)
        if rows.num_rows:
            return path, add, rows.slice(0, 1)
    return None


def _changed(value: Any) -> Any:
    """Return another value of the same type."""
    if isinstance(value, str):
        return f"{value}x"
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return value - 1 if value > 0 else value + 1
    if isinstance(value, datetime):
        return value + timedelta(milliseconds=1)
    if isinstance(value, bytes):
        return bytes([*value[:-1], (value[-1] + 1) % 256]) if value else b"x"
    return value


def doubled_row(folder: Path) -> bool:
    """Add a second copy of a row."""
    if (sample := _one(folder)) is None:
        return False
    _, add, row = sample
    commit(folder, added(folder, row, add))
    return True


def foreign_row(folder: Path) -> bool:
    """Add a row that differs from an existing one in every column."""
    if (sample := _one(folder)) is None:
        return False
    _, add, row = sample
    (values,) = row.to_pylist()
    changed = pa.Table.from_pylist([{name: _changed(value) for name, value in values.items()}], schema=row.schema)
    commit(folder, added(folder, changed, add))
    return True


def null_in_key(folder: Path) -> bool:
    """Add a row without any value."""
    if (sample := _one(folder)) is None:
        return False
    _, add, row = sample
    schema = pa.schema([field.with_nullable(True) for field in row.schema])
    nothing = pa.table([pa.nulls(1, field.type) for field in schema], schema=schema)
    commit(folder, added(folder, nothing, add))
    return True


def emptied(folder: Path) -> bool:
    """Remove all files from the table."""
    removals = [removal(add) for _, add in files(folder)]
    if removals:
        commit(folder, *removals, name="DELETE")
    return bool(removals)


def other_schema(folder: Path) -> bool:
    """Overwrite the table by one with other columns."""
    removals = [removal(add) for _, add in files(folder)]
    metadata = _metadata(folder)
    field = {"name": "other", "type": "long", "nullable": True, "metadata": {}}
    metadata |= {"schemaString": json.dumps({"type": "struct", "fields": [field]}), "partitionColumns": []}
    metadata["configuration"] = {}
    rows = pa.table({"other": pa.array([1], pa.int64())})
    commit(folder, {"metaData": metadata}, *removals, added(folder, rows, {"path": "x", "partitionValues": {}}))
    return True


def other_types(folder: Path) -> bool:
    """Overwrite the table by one with the same columns of another type."""
    removals = [removal(add) for _, add in files(folder)]
    metadata = _metadata(folder)
    fields = json.loads(metadata["schemaString"])["fields"]
    fields = [{"name": field["name"], "type": "boolean", "nullable": True, "metadata": {}} for field in fields]
    metadata |= {"schemaString": json.dumps({"type": "struct", "fields": fields}), "partitionColumns": []}
    metadata["configuration"] = {}
    rows = pa.table({field["name"]: pa.array([True]) for field in fields})
    commit(folder, {"metaData": metadata}, *removals, added(folder, rows, {"path": "x", "partitionValues": {}}))
    return True


def _metadata(folder: Path) -> dict[str, Any]:
    every = [action for entry in entries(folder) for action in map(json.loads, entry.read_text().splitlines())]
    return dict([action["metaData"] for action in every if "metaData" in action][-1])


def missing_file(folder: Path) -> bool:
    """Delete a data file."""
    if not (data_files := files(folder)):
        return False
    data_files[0][0].unlink()
    return True


def truncated_file(folder: Path) -> bool:
    """Truncate a data file."""
    if not (data_files := files(folder)):
        return False
    data_files[0][0].write_bytes(data_files[0][0].read_bytes()[:-9])
    return True


def spoiled_file(folder: Path) -> bool:
    """Replace the bytes of a data file by the same number of other bytes."""
    if not (data_files := files(folder)):
        return False
    data_files[0][0].write_bytes(b"\xff" * data_files[0][0].stat().st_size)
    return True


def folder_for_file(folder: Path) -> bool:
    """Put a directory where a data file should be."""
    if not (data_files := files(folder)):
        return False
    data_files[0][0].unlink()
    data_files[0][0].mkdir()
    return True


def folder_for_entry(folder: Path) -> bool:
    """Put a directory where the newest entry of the log should be."""
    newest = entries(folder)[-1]
    newest.unlink()
    newest.mkdir()
    return True


def file_for_log(folder: Path) -> bool:
    """Put a file where the log's folder should be."""
    shutil.rmtree(folder / "_delta_log")
    (folder / "_delta_log").write_bytes(b"\n")
    return True


def missing_log(folder: Path) -> bool:
    """Delete the log."""
    shutil.rmtree(folder / "_delta_log")
    return True


def missing_entry(folder: Path) -> bool:
    """Delete an entry in the middle of the log."""
    every = entries(folder)
    if len(every) < 3:
        return False
    every[len(every) // 2].unlink()
    return True


def missing_first_entry(folder: Path) -> bool:
    """Delete the log's first entry."""
    entries(folder)[0].unlink()
    return True


def garbage_entry(folder: Path) -> bool:
    """Add a line of invalid JSON to the newest entry."""
    newest = entries(folder)[-1]
    newest.write_bytes(newest.read_bytes() + b'{"add": {"path": \n')
    return True


def bytes_entry(folder: Path) -> bool:
    """Add bytes of invalid UTF-8 to the newest entry."""
    newest = entries(folder)[-1]
    newest.write_bytes(newest.read_bytes() + b'{"commitInfo": {"x": "\xff\xfe"}}\n')
    return True


def cut_entry(folder: Path) -> bool:
    """Truncate the newest entry in the middle of a line."""
    newest = entries(folder)[-1]
    newest.write_bytes(newest.read_bytes()[:50])
    return True


def empty_entry(folder: Path) -> bool:
    """Empty the newest entry."""
    entries(folder)[-1].write_bytes(b"")
    return True


def deep_entry(folder: Path) -> bool:
    """Add an entry whose `commitInfo` is nested five thousand levels deep."""
    commit(folder, raw=b'{"commitInfo": ' + b'{"a":' * _NESTED + b"1" + b"}" * _NESTED + b"}")
    return True


def deep_envelope(folder: Path) -> bool:
    """Add a second copy of a row by a commit whose CommitInfo is nested five thousand levels deep."""
    if (sample := _one(folder)) is None:
        return False
    _, add, row = sample
    commit(folder, {"commitInfo": {"cdc_platform": "[" * _NESTED + "]" * _NESTED}}, added(folder, row, add))
    return True


def odd_actions(folder: Path) -> bool:
    """Add an entry with actions of wrong types."""
    commit(folder, {"commitInfo": [1, 2]}, {"add": 7}, {"metaData": "x"})
    return True


def newer_protocol(folder: Path) -> bool:
    """Require a reader version of the future."""
    commit(folder, {"protocol": {"minReaderVersion": 99, "minWriterVersion": 99}})
    return True


def unknown_feature(folder: Path) -> bool:
    """Require a table feature that the platform never enables."""
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    commit(folder, {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7} | features})
    return True


def far_version(folder: Path) -> bool:
    """Add an entry with a version far ahead."""
    newest = entries(folder)[-1]
    newest.with_name(f"{10**15:020d}.json").write_bytes(newest.read_bytes())
    return True


def checkpoint(folder: Path) -> bool:
    """Make the newest checkpoint an invalid Parquet file that `_last_checkpoint` names."""
    newest = entries(folder)[-1]
    newest.with_name(f"{newest.stem}.checkpoint.parquet").write_bytes(b"PAR1 garbage PAR1")
    (newest.parent / "_last_checkpoint").write_text(json.dumps({"version": int(newest.stem), "size": 3}))
    return True


def pointer(folder: Path) -> bool:
    """Make `_last_checkpoint` invalid JSON."""
    (folder / "_delta_log/_last_checkpoint").write_bytes(b"\xff garbage")
    return True


def stray_pointer(folder: Path) -> bool:
    """Let `_last_checkpoint` name a checkpoint that does not exist."""
    (folder / "_delta_log/_last_checkpoint").write_text(json.dumps({"version": 1, "size": 3}))
    return True


def _path(path: str) -> Harm:
    def harm(folder: Path) -> bool:
        partition = dict.fromkeys(_metadata(folder)["partitionColumns"])
        action = {"path": path, "partitionValues": partition, "size": 100, "modificationTime": 1, "dataChange": True}
        commit(folder, {"add": action})
        return True

    harm.__doc__ = f"The log adds a file of the path {path}."
    return harm


DAMAGES: Mapping[str, Harm] = {
    harm.__name__.replace("_", "-"): harm
    for harm in (
        *(doubled_row, foreign_row, null_in_key, emptied, other_schema, other_types),
        *(missing_file, truncated_file, spoiled_file, folder_for_file, folder_for_entry, file_for_log, missing_log),
        *(missing_entry, missing_first_entry, garbage_entry, bytes_entry, cut_entry, empty_entry, deep_entry),
        *(deep_envelope, odd_actions, newer_protocol, unknown_feature, far_version, checkpoint, pointer, stray_pointer),
    )
} | {
    "path-up": _path("../../../../home.json"),
    "path-to-other-table": _path("../nodes/part-0.parquet"),
    "path-absolute": _path("/etc/passwd"),
    "path-file-scheme": _path("file:///etc/passwd"),
    "path-http-scheme": _path("http://127.0.0.1:9/x.parquet"),
    "path-s3-scheme": _path("s3://127.0.0.1/x.parquet"),
    "path-quoted-up": _path("%2e%2e/%2e%2e/home.json"),
    "path-with-null": _path("a\u0000b.parquet"),
}
"""Every kind of damage, by name."""
OF_ROWS = frozenset(
    {"doubled-row", "foreign-row", "null-in-key", "emptied", "other-schema", "other-types", "deep-envelope"}
)
"""The kinds that leave a readable table with other rows."""
FOREIGN = OF_ROWS | {"deep-entry", "odd-actions", "newer-protocol", "unknown-feature"}
FOREIGN |= {name for name in DAMAGES if name.startswith("path-")}
"""The kinds that are a foreign commit behind all of the platform's own."""
