"""Rows of a slice as its files have them, held against what commits say of them while others are made of them.

Whoever makes rows out of a table's rows has to know that these are still those that commits put there. Tasks digest
what they read on its way, so that it is read once; nothing that was made of other rows is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa

from cdc_platform.errors import StateError
from cdc_platform.lake import commits, digests
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import Table
from cdc_platform.lake.translate import is_of_content
from cdc_platform.lake.volume import Batches, TaskRows, Workers, rows_of_files

_DIGESTS = pa.schema({"digest": pa.string()})
Change = Callable[[pa.RecordBatch], pa.RecordBatch]


@dataclass(frozen=True, eq=False)
class Committed:
    """The rows of a slice, in all columns but those that name it, and the digest that is `due` of them.

    `due` is None where commits say nothing of them: they are taken as they are. `rule` is that of their table,
    `refusal` what is said where they are others or a file of theirs is damaged. `change` makes other rows of them.
    """

    rows: TaskRows
    rule: digests.Rule
    due: int | None
    refusal: str
    change: Change | None = None

    def changed(self, change: Change) -> Committed:
        """The same rows, of which others are made."""
        return replace(self, change=change)

    def read(self, batches: Batches, seen: list[int]) -> Batches:
        """What is made of some of the rows as tasks read them; their digest is added to what was `seen`.

        Raises:
            StateError: a file is damaged.
        """
        try:
            for batch in batches:
                if self.due is not None:
                    found = digests.of_rows(pa.Table.from_batches([batch]), (), self.rule)
                    seen.append(found.get("", 0))
                yield batch if self.change is None else self.change(batch)
        except (OSError, pa.ArrowException) as error:
            if self.due is None or not is_of_content(error):
                raise
            raise StateError(self.refusal) from None

    def accept(self, seen: Iterable[int]) -> None:
        """Hold that what was seen, in all parts together, is what is due.

        Raises:
            StateError: it is not.
        """
        if self.due is not None and sum(seen) % digests.MODULUS != self.due:
            raise StateError(self.refusal)

    def hold(self, workers: Workers) -> None:
        """Read the rows for their digest alone.

        Raises:
            StateError: they are others, or a file of theirs is damaged.
        """
        if self.due is None:
            return
        said = workers.table(self.rows.through(partial(_digested, replace(self, change=None))), _DIGESTS)
        lines = said["digest"].to_pylist()
        if None in lines:
            raise StateError(self.refusal)
        self.accept(int(digest, 16) for digest in lines)


def committed(lake: Lake, table: Table, where: Mapping[str, Any]) -> Committed:
    """The rows of the slice in which each of the partition columns has its value in `where`."""
    with lake.open_tables.looked_at_once():
        version = lake.version(table)
        name = digests.slice_of(table.partition_by, where)
        said = None if version is None else commits.digests_at(lake.open_tables.newest(lake.path(table)), [name])
        columns = [column for column in table.schema.names if column not in table.partition_by]
        files = lake.files(table, [(key, "=", value) for key, value in where.items()])
        rule = lake.digest_rule(table)
    of = f" where {name}" if name else ""
    refusal = (
        f"{table.full_name}{of} holds other rows than its commits put there, in version {version}: nothing is made of"
        " it; cdc-platform check --deep names the file, repair --from-description makes anew what can be"
    )
    return Committed(rows_of_files(files, columns), rule, None if said is None else said[name], refusal)


def _digested(rows: Committed, batches: Batches) -> Batches:
    """Rows in; a line with their digest out, without one where a file is damaged."""
    seen: list[int] = []
    try:
        for _ in rows.read(batches, seen):
            pass
        digest = f"{sum(seen) % digests.MODULUS:032x}"
    except StateError:
        # As an error of Python in a task of Spark it would lose its class, and be run again for nothing.
        digest = None
    yield pa.RecordBatch.from_pydict({"digest": [digest]}, schema=_DIGESTS)
