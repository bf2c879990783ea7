"""Restoring of rows of generations whose files are damaged or gone, derived from what is left.

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
"""The tables whose slices can be made anew, each after what it is made of."""


@dataclass(frozen=True)
class DamagedPartition:
    """A generation's slice that cannot be read, holds other rows than its commits say, or is gone with its table.

    `due`: the digest of the rows that commits put there; None where none says so.
    """

    table: Table
    entry: generations.LedgerEntry
    due: int | None

    @property
    def where(self) -> dict[str, Any]:
        """The value of its partition column."""
        (column,) = self.table.partition_by
        in_streams = self.table is STREAMS_DESCRIPTIONS_V2
        return {column: datetime_from_ms(self.entry.time_ms) if in_streams else self.entry.generation_id}

    @property
    def slice(self) -> str:
        """Its name in commits."""
        return row_hash.partition_name_from_values(self.table.partition_by, self.where)


@dataclass(frozen=True)
class DamagedGenerations:
    """What is wrong in a lake: slices that can be made anew, in the order in which they are, and the rest in words."""

    lacking: list[DamagedPartition]
    rest: list[str]


def find_damaged_generations(lake: Lake) -> DamagedGenerations:
    """Read every byte of the tables, and say what is lacking.

    Raises:
        PlatformError: the ledger of generations cannot be read: nothing says what is to be there.
    """
    found = {each.name: each for each in verify_tables(lake, deep=True)}
    entries = _v2_entries(lake)
    lacking: list[DamagedPartition] = []
    made = {table.full_name for table in RESTORABLE_TABLES}
    rest = [line for each in found.values() if each.name not in made for line in (*each.damage, *each.strange)]
    for table in RESTORABLE_TABLES:
        imported = [DamagedPartition(table, entry, None).slice for entry in entries if _is_source(table, entry)]
        slices = [DamagedPartition(table, entry, None) for entry in entries if not _is_source(table, entry)]
        seen = found.get(table.full_name)
        if seen is None:
            lacking += [
                each for each in slices if table is not STREAMS_DESCRIPTIONS_V2 or _is_published(lake, each.entry)
            ]
        elif seen.is_unreadable:
            way = f"bring the file back, or move {lake.path(table)} away and run it again"
            rest += [f"{line}; {way}" for line in seen.damage]
        else:
            broken = dict(seen.broken)
            lacking += [replace(each, due=broken.pop(each.slice)) for each in slices if each.slice in broken]
            rest += [
                _imported_damage_text(seen, name) if name in imported else _unknown_partition_text(table, name)
                for name in broken
            ]
    return DamagedGenerations(lacking, rest)


def _is_source(table: Table, entry: generations.LedgerEntry) -> bool:
    """Whether nothing here has the rows of a generation but this table: only what clients read was brought of it."""
    return entry.is_imported and table is not STREAMS_DESCRIPTIONS_V2


def _imported_damage_text(seen: TableVerification, name: str) -> str:
    """What is wrong with a slice that was imported, and what mends it."""
    wrong = [line for line in (*seen.damage, *seen.strange) if name in line]
    said = wrong[0] if wrong else f"{seen.name} where {name} is damaged"
    return f"{said}; it was imported: import --mend FILES makes it anew of the files that it came from"


def _unknown_partition_text(table: Table, name: str) -> str:
    return f"{table.full_name} where {name} is of no generation that was made here"


def restore_generations(
    workers: TaskRunner, lake: Lake, found: DamagedGenerations
) -> tuple[list[tuple[DamagedPartition, int]], list[str]]:
    """Make all that is lacking anew; answers with what was made, with its version, and with what is left, in words."""
    done: list[tuple[DamagedPartition, int]] = []
    left = list(found.rest)
    for what in found.lacking:
        try:
            rows = _restored_rows(lake, what, found)
            due = None if what.due is None else {what.slice: what.due}
            done.append((what, frames.replace_partition(workers, lake, what.table, rows, what.where, due)))
        except PlatformError as error:
            left.append(f"{what.table.full_name} where {what.slice} stays damaged: {error}")
    return done, left


def _restored_rows(lake: Lake, what: DamagedPartition, found: DamagedGenerations) -> TaskRows:
    entry = what.entry
    if what.table is TOPOLOGY_DESCRIPTIONS:
        return _described_rows(lake, entry, DamagedPartition(GENERATION_DESCRIPTIONS_V2, entry, None).slice, found)
    if what.table is GENERATION_DESCRIPTIONS_V2:
        return _inserted_rows(lake, entry.generation_id)
    generations.read_v2_range_ends(lake, entry.generation_id)
    return derive_published_rows(lake, entry.generation_id, entry.time_ms)


def _v2_entries(lake: Lake) -> list[generations.LedgerEntry]:
    gone = {each.time_ms for each in generations.read_removed_generations(lake)}
    known = (entry for entry in generations.read_ledger(lake) if entry.format == "v2" and entry.time_ms not in gone)
    return sorted(known, key=lambda entry: entry.time_ms)


def _is_published(lake: Lake, entry: generations.LedgerEntry) -> bool:
    return generations.read_published_at_ms(lake, entry.generation_id) is not None


def _described_rows(lake: Lake, entry: generations.LedgerEntry, inserted: str, found: DamagedGenerations) -> TaskRows:
    """Rows of the topology description: of the ranges that the generation has elsewhere, and of their owners."""
    if any(each.slice == inserted for each in found.lacking):
        ring = _owners_of_tokens(lake, entry, generations.read_published_range_ends(lake, entry.time_ms))
        return description_rows(ring, entry.generation_id)
    made = generations.read_v2_description(lake, entry.generation_id)
    ends = made.range_ends
    layout = RingLayout(ends, range_starts(ends), made.stream_counts, made.ignore_msbs)
    return description_rows(_owners_of_tokens(lake, entry, ends), entry.generation_id, layout)


def _owners_of_tokens(lake: Lake, entry: generations.LedgerEntry, ends: np.ndarray) -> Ring:
    """The nodes that own these tokens, with them alone, whatever became of the nodes since."""
    wanted = set(ends.tolist())
    tokens = [(node, tuple(token for token in node.tokens if token in wanted)) for node in read_nodes(lake)]
    owned = sum(len(some) for _, some in tokens)
    if not wanted or owned != len(wanted):
        raise StateError(
            f"generation {entry.generation_id}: nothing tells any more who owned {len(wanted) - owned} of its "
            f"{len(wanted)} ranges; bring the files of {TOPOLOGY_DESCRIPTIONS.full_name} back from a copy"
        )
    return Ring.of(replace(node, tokens=some) for node, some in tokens if some)


def _inserted_rows(lake: Lake, generation_id: str) -> TaskRows:
    where = {"generation_id": generation_id}
    ends = lake.read(TOPOLOGY_DESCRIPTIONS, ["range_end"], [("generation_id", "=", generation_id)])
    if not ends.num_rows:
        raise StateError(f"generation {generation_id} has no topology description; import it again")
    described = frames.get_partition_rows(lake, TOPOLOGY_DESCRIPTIONS, where, ["range_end", "ignore_msb", "streams"])
    return v2_description_rows(described, generation_id, ends.num_rows)
