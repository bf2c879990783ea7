"""Restore of generation rows whose files are damaged or missing, derived from the remaining rows.

Streams follow from the generation's UUID, the range and its owner; inserted rows from the description; published rows
from the inserted ones. Rows that differ from the digests in the commits are not written. No Spark is needed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cdc_platform.clock import datetime_from_ms
from cdc_platform.delta import Lake, TableVerification, TaskRows, TaskRunner, row_hash, verify_tables
from cdc_platform.errors import PlatformError, StateError
from cdc_platform.generations import RingLayout
from cdc_platform.lifecycle.join.bootstrap import description_rows, v2_description_rows
from cdc_platform.lifecycle.join.publish import derive_published_rows
from cdc_platform.metastore import generations, read_nodes
from cdc_platform.ring import Ring, range_starts
from cdc_platform.spark import frames
from cdc_platform.tables import GENERATION_DESCRIPTIONS_V2, STREAMS_DESCRIPTIONS_V2, TOPOLOGY_DESCRIPTIONS, Table

RESTORABLE_TABLES = (TOPOLOGY_DESCRIPTIONS, GENERATION_DESCRIPTIONS_V2, STREAMS_DESCRIPTIONS_V2)
"""The tables whose partitions can be restored, each after the tables from which it is derived."""


@dataclass(frozen=True)
class DamagedPartition:
    """A generation's partition that cannot be read, differs from its commits, or is gone with its table.

    `digest` is the digest of the rows that commits wrote there, None if no commit has one.
    """

    table: Table
    entry: generations.LedgerEntry
    digest: int | None

    @property
    def where(self) -> dict[str, Any]:
        """Return the value of its partition column."""
        (column,) = self.table.partition_by
        in_streams = self.table is STREAMS_DESCRIPTIONS_V2
        return {column: datetime_from_ms(self.entry.time_ms) if in_streams else self.entry.generation_id}

    @property
    def name(self) -> str:
        """Return its name in commits."""
        return row_hash.partition_name_from_values(self.table.partition_by, self.where)


@dataclass(frozen=True)
class DamagedGenerations:
    """The damage in a lake: partitions that can be restored, in the order of restoring, and the rest in words."""

    restorable: list[DamagedPartition]
    rest: list[str]


def find_damaged_generations(lake: Lake) -> DamagedGenerations:
    """Read every byte of the tables and return what is damaged or missing.

    Raises:
        PlatformError: the ledger of generations cannot be read, so that the expected rows are unknown.
    """
    verifications = {item.name: item for item in verify_tables(lake, deep=True)}
    entries = _v2_entries(lake)
    missing: list[DamagedPartition] = []
    restorable = {table.full_name for table in RESTORABLE_TABLES}
    rest = [
        line
        for item in verifications.values()
        if item.name not in restorable
        for line in (*item.damage, *item.unexpected)
    ]
    for table in RESTORABLE_TABLES:
        imported = [DamagedPartition(table, entry, None).name for entry in entries if _is_source(table, entry)]
        slices = [DamagedPartition(table, entry, None) for entry in entries if not _is_source(table, entry)]
        verification = verifications.get(table.full_name)
        if verification is None:
            missing += [
                partition
                for partition in slices
                if table is not STREAMS_DESCRIPTIONS_V2 or _is_published(lake, partition.entry)
            ]
        elif verification.is_unreadable:
            way = f"restore the file, or move {lake.path(table)} away and run it again"
            rest += [f"{line}; {way}" for line in verification.damage]
        else:
            broken = dict(verification.broken)
            missing += [
                replace(partition, digest=broken.pop(partition.name))
                for partition in slices
                if partition.name in broken
            ]
            rest += [
                _imported_damage_text(verification, name) if name in imported else _unknown_partition_text(table, name)
                for name in broken
            ]
    return DamagedGenerations(missing, rest)


def _is_source(table: Table, entry: generations.LedgerEntry) -> bool:
    """Return True if only this table has the rows of an imported generation: no other table was imported for it."""
    return entry.is_imported and table is not STREAMS_DESCRIPTIONS_V2


def _imported_damage_text(verification: TableVerification, name: str) -> str:
    """Describe the damage of an imported partition and the command that restores it."""
    wrong = [line for line in (*verification.damage, *verification.unexpected) if name in line]
    description = wrong[0] if wrong else f"{verification.name} where {name} is damaged"
    return f"{description}; it was imported: import --repair FILES restores it from the same files"


def _unknown_partition_text(table: Table, name: str) -> str:
    return f"{table.full_name} where {name} belongs to no generation of this home"


def restore_generations(
    workers: TaskRunner, lake: Lake, damage: DamagedGenerations
) -> tuple[list[tuple[DamagedPartition, int]], list[str]]:
    """Restore every missing partition; return the restored ones with their versions, and the remaining damage."""
    done: list[tuple[DamagedPartition, int]] = []
    remaining = list(damage.rest)
    for partition in damage.restorable:
        try:
            rows = _restored_rows(lake, partition, damage)
            due = None if partition.digest is None else {partition.name: partition.digest}
            done.append(
                (partition, frames.replace_partition(workers, lake, partition.table, rows, partition.where, due))
            )
        except PlatformError as error:
            remaining.append(f"{partition.table.full_name} where {partition.name} stays damaged: {error}")
    return done, remaining


def _restored_rows(lake: Lake, partition: DamagedPartition, damage: DamagedGenerations) -> TaskRows:
    entry = partition.entry
    if partition.table is TOPOLOGY_DESCRIPTIONS:
        return _described_rows(lake, entry, DamagedPartition(GENERATION_DESCRIPTIONS_V2, entry, None).name, damage)
    if partition.table is GENERATION_DESCRIPTIONS_V2:
        return _inserted_rows(lake, entry.generation_id)
    generations.read_v2_range_ends(lake, entry.generation_id)
    return derive_published_rows(lake, entry.generation_id, entry.time_ms)


def _v2_entries(lake: Lake) -> list[generations.LedgerEntry]:
    removed_times = {removed.time_ms for removed in generations.read_removed_generations(lake)}
    known = (
        entry for entry in generations.read_ledger(lake) if entry.format == "v2" and entry.time_ms not in removed_times
    )
    return sorted(known, key=lambda entry: entry.time_ms)


def _is_published(lake: Lake, entry: generations.LedgerEntry) -> bool:
    return generations.read_published_at_ms(lake, entry.generation_id) is not None


def _described_rows(lake: Lake, entry: generations.LedgerEntry, inserted: str, damage: DamagedGenerations) -> TaskRows:
    """Build rows of the topology description from the generation's ranges in other tables, and from their owners."""
    if any(partition.name == inserted for partition in damage.restorable):
        ring = _owners_of_tokens(lake, entry, generations.read_published_range_ends(lake, entry.time_ms))
        return description_rows(ring, entry.generation_id)
    description = generations.read_v2_description(lake, entry.generation_id)
    ends = description.range_ends
    layout = RingLayout(ends, range_starts(ends), description.stream_counts, description.ignore_msbs)
    return description_rows(_owners_of_tokens(lake, entry, ends), entry.generation_id, layout)


def _owners_of_tokens(lake: Lake, entry: generations.LedgerEntry, ends: np.ndarray) -> Ring:
    """Return the former owners of these tokens, with only these tokens, whatever the current status of the nodes."""
    wanted = set(ends.tolist())
    tokens = [(node, tuple(token for token in node.tokens if token in wanted)) for node in read_nodes(lake)]
    owned = sum(len(node_tokens) for _, node_tokens in tokens)
    if not wanted or owned != len(wanted):
        raise StateError(
            f"generation {entry.generation_id}: there is no record of the owners of {len(wanted) - owned} of its "
            f"{len(wanted)} ranges; restore the files of {TOPOLOGY_DESCRIPTIONS.full_name} from a backup"
        )
    return Ring.of(replace(node, tokens=node_tokens) for node, node_tokens in tokens if node_tokens)


def _inserted_rows(lake: Lake, generation_id: str) -> TaskRows:
    where = {"generation_id": generation_id}
    ends = lake.read(TOPOLOGY_DESCRIPTIONS, ["range_end"], [("generation_id", "=", generation_id)])
    if not ends.num_rows:
        raise StateError(f"generation {generation_id} has no topology description; import it again")
    described = frames.get_partition_rows(lake, TOPOLOGY_DESCRIPTIONS, where, ["range_end", "ignore_msb", "streams"])
    return v2_description_rows(described, generation_id, ends.num_rows)
