"""A lake for steps that cannot be undone: it hands out a table's rows only after verifying them against its commits.

Whatever removes rows, files or registrations decides by what tables say. Read through a `VerifiedLake`, no decision
rests on rows that another program changed or that a disk damaged: the read raises the complaint that `check` has for
them. It verifies the partitions that a read touches, once per version. That reads one entry of the log and the data
files of small metadata tables; what a decision only counts from the log (`slices`) costs nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pyarrow as pa

from cdc_platform.errors import NotAsCommitted, PlatformError
from cdc_platform.lake import digests, files
from cdc_platform.lake.files import DataFile
from cdc_platform.lake.filters import Filter, normal_filters
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.open_tables import Opened
from cdc_platform.lake.tables import Table
from cdc_platform.lake.translate import is_of_content
from cdc_platform.lake.verification import Verified, verify, verify_partitions

_WHOLE = ("",)
"""The partitions of a table that has none."""


class VerifiedLake(Lake):
    """The tables of a lake for `step`, which is named in refusals.

    Raises, wherever it reads rows or changes a table:
        NotAsCommitted: a partition holds other rows than its commits put there, a data file or an entry of the log is
            damaged or missing, or the log is gone.
    """

    def __init__(self, lake: Lake, step: str) -> None:
        self.place, self.open_tables, self.step = lake.place, lake.open_tables, step
        self._verified: dict[tuple[str, int], set[str]] = {}

    def verify(self, *tables: Table) -> None:
        """Verify all rows of these tables, as if they were read; partitioned tables only by their logs."""
        for table in tables:
            self._open(table)

    def read(
        self, table: Table, columns: Sequence[str] | None = None, filters: Sequence[Filter] | None = None
    ) -> pa.Table:
        """As `Lake.read`, of verified partitions."""
        opened = self._open(table)
        if opened is not None and table.partition_by:
            self._verify(table, opened, self._partitions(table, opened, filters or ()))
        return super().read(table, columns, filters)

    def rows_by_slice(
        self, table: Table, columns: Sequence[str], keys: Collection[Any] | None = None
    ) -> tuple[dict[Any, pa.Table], list[DataFile]]:
        """As `Lake.rows_by_slice`, of verified partitions."""
        opened = self._open(table)
        if opened is not None:
            (name,) = table.partition_by
            filters = () if keys is None else [(name, "in", list(keys))]
            self._verify(table, opened, self._partitions(table, opened, filters))
        return super().rows_by_slice(table, columns, keys)

    def taken(self, table: Table, size: int = 0) -> AbstractContextManager[Opened]:
        """As `Lake.taken`: rules that decide by the rows of the version that they change see verified rows."""
        return self._taken(table, size)

    @contextmanager
    def _taken(self, table: Table, size: int) -> Iterator[Opened]:
        with super().taken(table, size) as opened:
            if not table.partition_by:
                self._verify(table, opened, _WHOLE)
            yield opened

    def _open(self, table: Table) -> Opened | None:
        try:
            opened = super()._open(table)
        except PlatformError as error:
            self._refuse(table, verify(self, deep=True, names=[table.full_name]))
            raise error
        if opened is None:
            self._refuse(table, verify(self, names=[table.full_name]))  # a folder without a log is no missing table
        elif not table.partition_by:
            self._verify(table, opened, _WHOLE)
        return opened

    def _partitions(self, table: Table, opened: Opened, filters: Sequence[Filter]) -> list[str]:
        """The names of the partitions that a read with these filters touches, of empty ones that it names as well."""
        normal = normal_filters(table, filters)
        touched = files.data_files(opened, table, self.path(table), normal)
        names = [digests.slice_name(table.partition_by, file.partition) for file in touched]
        for name, operator, value in normal:
            if (name,) == table.partition_by and operator in ("=", "in"):
                names += [digests.slice_name((name,), (each,)) for each in (value if operator == "in" else [value])]
        return list(dict.fromkeys(names))

    def _verify(self, table: Table, opened: Opened, partitions: Collection[str]) -> None:
        verified = self._verified.setdefault((self.path(table), opened.version()), set())
        missing = [name for name in partitions if name not in verified]
        if not missing:
            return
        try:
            found = [verify_partitions(table.full_name, self.path(table), opened, missing)]
        except (PlatformError, OSError, ValueError, pa.ArrowException) as error:
            if isinstance(error, OSError) and not is_of_content(error):
                raise
            found = verify(self, deep=True, names=[table.full_name])
            self._refuse(table, found)
            raise
        self._refuse(table, found)
        verified.update(missing)

    def _refuse(self, table: Table, found: Sequence[Verified]) -> None:
        lines = [line for each in found if each.name == table.full_name for line in (*each.damage, *each.strange)]
        if lines:
            raise NotAsCommitted(refusal(lines, self.step))


def refusal(lines: Sequence[str], step: str) -> str:
    """The refusal of a step for complaints of `check`: the first in full, with how many more there are."""
    more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
    return (
        f"{lines[0]}{more}: {step} is refused, since it cannot be undone and would decide by that; cdc-platform check"
        " --deep names everything that is wrong"
    )


def verified(lake: Lake, step: str) -> VerifiedLake:
    """The tables of a lake for a step that cannot be undone; see `VerifiedLake`."""
    return lake if isinstance(lake, VerifiedLake) else VerifiedLake(lake, step)
