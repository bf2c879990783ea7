"""Fingerprints of small generations, kept in a table: a join is held against thousands without opening a file of each.

What is kept is of data files, which never change: of a generation whose rows are in others by now it says nothing, and
its rows are read. Who finds a stream that could be one of these reads them all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from cdc_platform.invariants import inventory
from cdc_platform.invariants.fingerprints import fingerprints_of, numbers_of, streams_of
from cdc_platform.invariants.inventory import Holding
from cdc_platform.lake.arrow import values
from cdc_platform.lake.files import DataFile
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import STREAM_FINGERPRINTS
from cdc_platform.ring.tokens import UInt64s

_MOST_BYTES = 1 << 16
"""Of the files of a generation that is small: some four thousand streams. Of a larger one, to open it is the least."""
WORTH_A_COMMIT = 8
"""So many that were read once more are kept: a commit a join would cost more than it saves."""
_STORED = np.dtype("<u8")


@dataclass(frozen=True, eq=False)
class Known:
    """The generations (UUIDs) that need not be read, and the `fingerprints` (uint64[]) of all of their streams."""

    generations: frozenset[str]
    fingerprints: UInt64s

    def meets(self, rows: Holding) -> bool:
        """Whether one of them may have a stream of these rows; False proves that none has."""
        return bool(len(self.fingerprints)) and fingerprints_of(tuple(rows.paths)).among(self.fingerprints) > 0


NOTHING = Known(frozenset(), np.empty(0, dtype=np.uint64))


def known(lake: Lake, besides: str) -> Known:
    """What is kept of the generations as their files are now, but for one."""
    rows = lake.read(STREAM_FINGERPRINTS)
    if not rows.num_rows:
        return NOTHING
    rows = rows.filter(_mask(rows, _kept(rows, inventory.standing_files(lake)) - {besides}))
    columns = (values(rows[name]) for name in ("generation_id", "streams", "fingerprints"))
    whole = [(id_, value) for id_, count, value in zip(*columns, strict=True) if len(value) == count * _STORED.itemsize]
    joined = np.frombuffer(b"".join(value for _, value in whole), dtype=_STORED)
    return Known(frozenset(id_ for id_, _ in whole), joined.astype(np.uint64, copy=False))


def keep(lake: Lake, at_least: int | None = None, besides: str | None = None) -> int:
    """Keep those of the small generations that lack them, where these are `at_least` so many; answers of how many.

    What is there of others than these goes with it. `besides`: one that is on its way, whose rows get other files yet.

    Raises:
        PlatformError: the lake cannot be written to.
    """
    small = {
        id_: files
        for id_, files in inventory.standing_files(lake).items()
        if id_ != besides and sum(file.bytes for file in files) <= _MOST_BYTES
    }
    least = max(1, WORTH_A_COMMIT if at_least is None else at_least)
    if len(small) < least:
        return 0
    lacking = set(small) - _kept(lake.read(STREAM_FINGERPRINTS, ["generation_id", "files"]), small)
    if len(lacking) < least:
        return 0
    made = pa.Table.from_pylist([_row(id_, small[id_]) for id_ in lacking], schema=STREAM_FINGERPRINTS.schema)

    def rule(before: pa.Table) -> pa.Table:
        standing = before.filter(_mask(before, _kept(before, small) - lacking))
        return pa.concat_tables([standing, made]).sort_by("generation_id")

    lake.transact(STREAM_FINGERPRINTS, rule, whole=True)
    return len(lacking)


def differing(lake: Lake) -> list[str | None]:
    """Of each generation of which they are kept, as its files are now: what is wrong with them, or None."""
    there = inventory.standing_files(lake)
    rows = lake.read(STREAM_FINGERPRINTS)
    told = []
    for row in rows.filter(_mask(rows, _kept(rows, there))).to_pylist():
        due = _row(row["generation_id"], there[row["generation_id"]])
        name = f"{STREAM_FINGERPRINTS.full_name} has generation {row['generation_id']} not as its streams are"
        told.append(None if row == due else name)
    return told


def _kept(rows: pa.Table, there: Mapping[str, Sequence[DataFile]]) -> set[str]:
    """The generations of rows that are of the very files that they have."""
    of = zip(values(rows["generation_id"]), rows["files"].to_pylist(), strict=True)
    return {id_ for id_, files in of if files == _names(there.get(id_, ()))}


def _mask(rows: pa.Table, chosen: set[str]) -> pa.Array:
    return pa.array([id_ in chosen for id_ in values(rows["generation_id"])], pa.bool_())


def _row(generation_id: str, files: Sequence[DataFile]) -> dict[str, Any]:
    numbers = np.concatenate([np.empty(0, np.uint64), *map(numbers_of, streams_of([file.path for file in files]))])
    return {
        "generation_id": generation_id,
        "files": _names(files),
        "streams": len(numbers),
        "fingerprints": np.sort(numbers).astype(_STORED).tobytes(),
    }


def _names(files: Sequence[DataFile]) -> list[str]:
    return sorted(file.path.rpartition("/")[2] for file in files)
