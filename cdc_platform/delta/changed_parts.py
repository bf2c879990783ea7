"""The parts of a table whose rows a commit changed, from the files that the commit added and removed.

A part is named by the values of a table's part columns: a Delta partition, or the rows of one generation, node, table
or hour. Rows are compared by digests, so a part whose rows were only rewritten is not changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from cdc_platform.delta import row_hash, transaction_log
from cdc_platform.delta.paths import decode_path
from cdc_platform.delta.tasks import read_file_batches
from cdc_platform.storage import parse_path
from cdc_platform.tables import Table

ALL_PARTS = "*"
"""Stands for every part of a table: a complaint that concerns the whole table, or that cannot be attributed."""
_MAX_BYTES = 64 << 20
"""The most bytes of one commit's files that are read to find what it changed."""


@dataclass(frozen=True)
class ChangedRows:
    """The parts that a commit changed, and by how much it changed the digest of all rows.

    `digest` is None if it is unknown because files are gone, cannot be read, or are too large.
    """

    parts: frozenset[str]
    digest: int | None


def find_changed_rows(folder: str, version: int, table: Table, rule: row_hash.DigestRule) -> ChangedRows:
    """Return what a commit of a table changed. A change that cannot be attributed changes `ALL_PARTS`."""
    try:
        actions = transaction_log.read_actions(transaction_log.get_entry_path(folder, version))
        if any("metaData" in action or "protocol" in action for action in actions):
            return ChangedRows(frozenset({ALL_PARTS}), None)
        changes = [
            (sign, action[kind])
            for action in actions
            for kind, sign in (("add", 1), ("remove", -1))
            if kind in action and action[kind].get("dataChange", True)
        ]
        if sum(int(file.get("size") or 0) for _, file in changes) > _MAX_BYTES:
            return ChangedRows(_parts_by_files(table, [file for _, file in changes]), None)
        added, removed = (
            row_hash.sum_digests(
                _digest_file_by_part(folder, file, table, rule) for sign, file in changes if sign == wanted
            )
            for wanted in (1, -1)
        )
        whole = sum(sign * sum(_digest_file(folder, file, (), rule).values()) for sign, file in changes)
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException):
        return ChangedRows(frozenset({ALL_PARTS}), None)
    totals = row_hash.update_digests({}, added, removed)
    return ChangedRows(frozenset(part for part, digest in totals.items() if digest), whole % row_hash.DIGEST_MODULUS)


def _parts_by_files(table: Table, files: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    if not table.partition_by:
        return frozenset({ALL_PARTS})
    return frozenset(_partition_name(table, file) for file in files)


def _partition_name(table: Table, file: Mapping[str, Any]) -> str:
    """Return the name of a file's Delta partition from the values as Delta's log writes them."""
    values = file.get("partitionValues") or {}
    typed = [_parse_partition_value(table.schema.field(name).type, values[name]) for name in table.partition_by]
    return row_hash.format_partition_name(table.partition_by, typed)


def _parse_partition_value(kind: pa.DataType, written: str | None) -> Any:
    if written is None or not pat.is_timestamp(kind):
        return written
    parsed = datetime.fromisoformat(written.replace(" ", "T").removesuffix("Z"))
    return parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)


def _digest_file_by_part(
    folder: str, file: Mapping[str, Any], table: Table, rule: row_hash.DigestRule
) -> dict[str, int]:
    if table.partition_by:
        return {_partition_name(table, file): sum(_digest_file(folder, file, (), rule).values())}
    return _digest_file(folder, file, table.part_by, rule)


def _digest_file(
    folder: str, file: Mapping[str, Any], columns: Sequence[str], rule: row_hash.DigestRule
) -> dict[str, int]:
    batches = read_file_batches(str(parse_path(folder) / decode_path(file["path"])))
    return row_hash.sum_digests(
        row_hash.digest_rows(pa.Table.from_batches([batch]), columns, rule) for batch in batches
    )
