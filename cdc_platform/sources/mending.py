"""What an import brings back: damaged slices of the tables that imports write, made of the files that were imported.

The rows are those that an import of the files makes where there is nothing. They are put in place of what is damaged
only where they, with the rows that can be read still, have the digest of the commit that put the lost ones there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from cdc_platform import drafts
from cdc_platform.clock import Clock
from cdc_platform.lake import digests, slices
from cdc_platform.lake.conflicts import until_first
from cdc_platform.lake.files import DataFile
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.looking import looking_on
from cdc_platform.lake.rows import conform
from cdc_platform.lake.tables import GENERATIONS, UNORDERED_RANGES, Table
from cdc_platform.lake.verification import Verified, verify
from cdc_platform.lake.volume import file_batches
from cdc_platform.records.ring import members, replace_ring
from cdc_platform.sources.importing import ORDER, ImportSources, import_sources
from cdc_platform.sources.moments import at_their_moments


@dataclass(frozen=True)
class Mended:
    """A slice that has the rows again which its commits put there, and the version in which it has them."""

    table: str
    slice: str
    version: int


def mend(lake: Lake, clock: Clock, read: Callable[[], ImportSources]) -> tuple[list[Mended], list[str]]:
    """Make damaged slices anew of files that `read` reads; answers with those, and with what is left, in words.

    Raises:
        InputError: the files are refused, as by any import; nothing was written.
        ConflictError: other writers kept changing a table.
    """
    tables = {table.full_name: table for table in (UNORDERED_RANGES, *ORDER)}
    found = [each for each in verify(lake, deep=True, names=tables) if each.broken or each.is_unreadable]
    left = [line for each in found if each.is_unreadable for line in each.damage]
    done: list[Mended] = []
    if not any(each.broken for each in found):
        return done, left
    with drafts.temporary_folder("import") as folder:
        alone = Lake(folder / "lake")
        replace_ring(alone, members(lake))
        import_sources(alone, clock, read())
        for each in found:
            for name, due in each.broken.items():
                made = _mended(lake, alone, tables[each.name], name, due)
                if isinstance(made, Mended):
                    done.append(made)
                else:
                    left += [f"{line}; {made}" for line in _lines(each, name)]
    return done, left


def _mended(lake: Lake, alone: Lake, table: Table, name: str, due: int | None) -> Mended | str:
    """Put a slice in its place that the files make again; or why it is not."""
    if due is None:
        return "no commit says which rows were there"
    there, made = _files(lake, table, name), _files(alone, table, name)
    if not made:
        return "the files have no rows of it"
    key = made[0].partition
    brought = _rows(table, made, key)
    lost = [file for file in there if not _is_readable(file)]
    kept = _rows(table, [file for file in there if file not in lost], key)
    rule = lake.digest_rule(table)
    # A row that is readable may be the changed one, also in its key, or have what only the moment of its import said.
    any_of = (brought, _beside(table, brought, kept), _beside(table, kept, brought))
    rows = next((some for some in any_of if digests.of_rows(some, table.partition_by, rule).get(name) == due), None)
    if rows is None and table is GENERATIONS:
        rows = _at_their_moments(lake, brought, there, lost, due)
    if rows is None:
        is_all = table is GENERATIONS and brought.num_rows >= sum(file.rows for file in there)
        at = ", and the log does not tell the moment at which an import entered them" if is_all else ""
        return f"the files do not give the rows that were there{at}"
    where, what = dict(zip(table.partition_by, key, strict=True)), f"making rows of {table.full_name} anew"
    with looking_on():
        version = until_first(what, lambda: slices.commit_few(lake, table, rows, where, in_place_of=there))
    return Mended(table.full_name, name, version)


def _at_their_moments(
    lake: Lake, brought: pa.Table, there: list[DataFile], lost: list[DataFile], due: int
) -> pa.Table | None:
    """The rows of the ledger, those of lost files as entered when they were; of a file that reads, which may be any."""
    for some in [lost] if lost else [[file] for file in there]:
        kept = _rows(GENERATIONS, [file for file in there if file not in some], ())
        missing = _but(GENERATIONS, brought, kept)
        rows = at_their_moments(lake, missing, kept, [file.path for file in some], due)
        if rows is not None:
            return rows
    return None


def _files(lake: Lake, table: Table, name: str) -> list[DataFile]:
    """The files of a slice, by its name."""
    return [file for file in lake.data_files(table) if digests.slice_name(table.partition_by, file.partition) == name]


def _rows(table: Table, files: list[DataFile], key: tuple[object, ...]) -> pa.Table:
    """The rows of files of a slice, with the values that name it."""
    parts = [table.schema.empty_table()]
    for file in files:
        batches = list(file_batches(file.path))
        if batches:
            part = pa.Table.from_batches(batches)
            for column, value in zip(table.partition_by, key, strict=True):
                kind = table.schema.field(column).type
                part = part.append_column(column, pa.array([value] * part.num_rows, kind))
            parts.append(conform(table, part))
    return pa.concat_tables(parts)


def _is_readable(file: DataFile) -> bool:
    """Whether all of it is there, and texts are some: what cannot be that is not what was written."""
    rows = 0
    try:
        for batch in file_batches(file.path):
            batch.validate(full=True)
            rows += batch.num_rows
        return rows == file.rows
    except (OSError, pa.ArrowException, ValueError):
        return False


def _beside(table: Table, rows: pa.Table, others: pa.Table) -> pa.Table:
    """Rows, and those of others that have another key."""
    return pa.concat_tables([rows, _but(table, others, rows)])


def _but(table: Table, rows: pa.Table, others: pa.Table) -> pa.Table:
    """The rows that have another key than each of the others."""
    known = set(_keys(table, others))
    return rows.filter(pa.array([key not in known for key in _keys(table, rows)], pa.bool_()))


def _keys(table: Table, rows: pa.Table) -> Iterator[tuple[object, ...]]:
    return zip(*(rows[key].to_pylist() for key in table.keys), strict=True)


def _lines(found: Verified, name: str) -> list[str]:
    """What is wrong with a slice of a table, or of the table where that is not said of the slice."""
    wrong = [*found.damage, *found.strange]
    return [line for line in wrong if name and name in line] or wrong
