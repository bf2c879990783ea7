"""Verdicts on the steps of a join, kept with what was judged: whoever comes later relies on them, by whichever door.

It knows how a verdict is kept and what content it is of; what is judged, and who relies on it, is in `step`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from cdc_platform.clock import Clock, to_datetime
from cdc_platform.errors import PlatformError
from cdc_platform.invariants.findings import STREAM_FORMAT, VNODE_COLOCATION
from cdc_platform.invariants.inventory import HeldGeneration, Holding
from cdc_platform.lake.filters import Filter
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import TOPOLOGY_DESCRIPTIONS, VERDICTS, Table

Slices = Sequence[tuple[Table, Sequence[Filter]]]
"""Parts of tables, by filters on partition columns: the step's own first, then what it is compared with."""


@dataclass(frozen=True)
class Verdict:
    """What was found of one step of a generation's join.

    `content` names what was judged, see `content_of`; `said` is empty where all of `invariants` hold; `door` asked.
    """

    generation_id: str
    step: str
    content: str
    invariants: tuple[str, ...]
    passed: bool
    said: str
    door: str


def content_of(lake: Lake, slices: Slices) -> str:
    """A name for what these slices hold now; empty where the first holds nothing.

    It is made from the names of the data files, which Delta's log has: a file never changes, and no two have the same
    name. The same rows written again are other content; then a verdict is made again, which is cheaper than to read
    every stream for a hash.
    """
    return _content_of([(table, lake.files(table, filters)) for table, filters in slices])


def _content_of(files: Sequence[tuple[Table, Sequence[str]]]) -> str:
    if not files or not files[0][1]:
        return ""
    names = sorted(f"{table.full_name}/{path.rpartition('/')[2]}" for table, paths in files for path in paths)
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:32]


def in_order(lake: Lake, held: Sequence[HeldGeneration]) -> list[HeldGeneration]:
    """Those of some generations of which a verdict says, of the very files that stand for them, that each stream lies
    in its range, and its index is the range's.
    """
    columns = ["generation_id", "step", "content", "invariants"]
    found = {
        (row["generation_id"], row["step"]): row["content"]
        for row in lake.read(VERDICTS, columns, [("passed", "=", True)]).to_pylist()
        if {VNODE_COLOCATION, STREAM_FORMAT} <= set(row["invariants"])
    }
    described: dict[str, list[str]] = {}
    for file in lake.data_files(TOPOLOGY_DESCRIPTIONS) if found else ():
        described.setdefault(file.partition[0], []).append(file.path)

    def judged(rows: Holding) -> bool:
        beside = [] if rows.table is TOPOLOGY_DESCRIPTIONS else [(TOPOLOGY_DESCRIPTIONS, described.get(rows.key, []))]
        return found.get((rows.key, rows.table.name)) == _content_of([(rows.table, rows.paths), *beside])

    return [each for each in held if each.rows is not None and judged(each.rows)]


def keep(lake: Lake, clock: Clock, verdict: Verdict) -> None:
    """Keep a verdict in the place of the last one on the step."""
    _keep(lake, [_row(clock, verdict)])


@dataclass(frozen=True, eq=False)
class Book:
    """The verdicts of one run, which relies on them at once: those on some steps are kept in one commit.

    A run that is killed before has judged for nothing: whoever goes on judges again.
    """

    lake: Lake
    clock: Clock
    _entered: dict[tuple[str, str], tuple[Verdict, dict[str, Any]]] = field(default_factory=dict)

    def enter(self, verdict: Verdict) -> None:
        """Take down a verdict, with the time of now."""
        self._entered[verdict.generation_id, verdict.step] = verdict, _row(self.clock, verdict)

    def last(self, generation_id: str, step: str) -> Verdict | None:
        """The last verdict on a step, of this run or of whoever kept one."""
        entered = self._entered.get((generation_id, step))
        return last(self.lake, generation_id, step) if entered is None else entered[0]

    def keep(self) -> None:
        """Keep what was entered since the last time, if anything was."""
        if self._entered:
            with self.lake.open_tables.looked_at_once():
                _keep(self.lake, [row for _, row in self._entered.values()])
            self._entered.clear()


@contextmanager
def kept_together(lake: Lake, clock: Clock) -> Iterator[Book]:
    """A book that is kept at the end of a block, also of one that fails."""
    book = Book(lake, clock)
    try:
        yield book
    except Exception:
        with suppress(PlatformError):  # what has failed first is what is told
            book.keep()
        raise
    book.keep()


def _row(clock: Clock, verdict: Verdict) -> dict[str, Any]:
    return {
        "generation_id": verdict.generation_id,
        "step": verdict.step,
        "content": verdict.content,
        "invariants": list(verdict.invariants),
        "passed": verdict.passed,
        "said": verdict.said or None,
        "door": verdict.door,
        "judged_at": to_datetime(clock.now_us()),
    }


def _keep(lake: Lake, rows: Sequence[dict[str, Any]]) -> None:
    lake.merge(VERDICTS, pa.Table.from_pylist(list(rows), schema=VERDICTS.schema), update=True)


def last(lake: Lake, generation_id: str, step: str) -> Verdict | None:
    """The last verdict on a step; None where there is none, as in a home that was made before verdicts were kept."""
    columns = ["content", "invariants", "passed", "said", "door"]
    found = lake.read(VERDICTS, columns, [("generation_id", "=", generation_id), ("step", "=", step)]).to_pylist()
    if not found:
        return None
    row = found[0]
    return Verdict(
        generation_id, step, row["content"], tuple(row["invariants"]), row["passed"], row["said"] or "", row["door"]
    )
