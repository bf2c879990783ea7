"""Rows of files that are written anew, as they were read, and which of them make room for others."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from cdc_platform.lake.arrow import compute
from cdc_platform.lake.row_digests import encoded
from cdc_platform.lake.tables import Table


@dataclass(frozen=True, eq=False)
class Parted:
    """All rows that pass some filters, and which of them (bool) go; the others stay."""

    rows: pa.Table
    go: np.ndarray

    @cached_property
    def gone(self) -> pa.Table:
        """The rows that go."""
        return self.rows if self.go.all() else self.rows.filter(pa.array(self.go))

    def after(self, table: Table, came: pa.Table) -> pa.Table:
        """The rows of a table when others have come: the first with the key of one that goes in its place, the rest
        behind all.

        So a file stays in its order, in which it is smaller.
        """
        if self.go.all():
            return came
        known, asked = (encoded(each, table.keys) for each in (self.gone, came))
        met = np.asarray(compute.fill_null(compute.index_in(asked, value_set=known), -1))
        partners, first = np.unique(met, return_index=True)
        partners, first = partners[partners >= 0], first[partners >= 0]
        order = np.where(self.go, -1, np.arange(len(self.go)))
        order[np.flatnonzero(self.go)[partners]] = len(self.go) + first
        behind = np.setdiff1d(np.arange(came.num_rows), first, assume_unique=True)
        order = np.concatenate([order[order >= 0], len(self.go) + behind])
        return pa.concat_tables([self.rows, came]).take(pa.array(order))
