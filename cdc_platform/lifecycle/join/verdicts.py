"""Verdicts on the steps of a join, stored with the content that was judged.

The command line and Dagster rely on each other's verdicts. Content is identified by the names of its data files, as a
file never changes. `steps` decides what is judged and who relies on it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from cdc_platform.checks import STREAM_FORMAT, VNODE_COLOCATION, InventoryGeneration, StoredGenerationRows
from cdc_platform.clock import Clock, datetime_from_us
from cdc_platform.delta import Filter, Lake
from cdc_platform.errors import PlatformError
from cdc_platform.tables import TOPOLOGY_DESCRIPTIONS, VERDICTS, Table

TableParts = Sequence[tuple[Table, Sequence[Filter]]]
"""Parts of tables, by filters on partition columns: the step's own first, then what it is compared with."""


@dataclass(frozen=True)
class StepVerdict:
    """What was found of one step of a generation's join.

    `content` names what was judged, see `content_name`; `said` is empty where all of `invariants` hold; `door` asked.
    """

    generation_id: str
    step: str
    content: str
    invariants: tuple[str, ...]
    passed: bool
    said: str
    door: str


def content_name(lake: Lake, slices: TableParts) -> str:
    """A name for what these slices hold now; empty where the first holds nothing.

    It is made from the names of the data files, which Delta's log has: a file never changes, and no two have the same
    name. The same rows written again are other content; then a verdict is made again, which is cheaper than to read
    every stream for a hash.
    """
    return _content_name_of_files([(table, lake.files(table, filters)) for table, filters in slices])


def _content_name_of_files(files: Sequence[tuple[Table, Sequence[str]]]) -> str:
    if not files or not files[0][1]:
        return ""
    names = sorted(f"{table.full_name}/{path.rpartition('/')[2]}" for table, paths in files for path in paths)
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:32]


def generations_in_order(lake: Lake, held: Sequence[InventoryGeneration]) -> list[InventoryGeneration]:
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

    def judged(rows: StoredGenerationRows) -> bool:
        beside = [] if rows.table is TOPOLOGY_DESCRIPTIONS else [(TOPOLOGY_DESCRIPTIONS, described.get(rows.key, []))]
        return found.get((rows.key, rows.table.name)) == _content_name_of_files([(rows.table, rows.paths), *beside])

    return [each for each in held if each.rows is not None and judged(each.rows)]


def store_verdict(lake: Lake, clock: Clock, verdict: StepVerdict) -> None:
    """Keep a verdict in the place of the last one on the step."""
    _store_rows(lake, [_verdict_row(clock, verdict)])


@dataclass(frozen=True, eq=False)
class VerdictBook:
    """The verdicts of one run, which relies on them at once: those on some steps are kept in one commit.

    A run that is killed before has judged for nothing: whoever goes on judges again.
    """

    lake: Lake
    clock: Clock
    _entered: dict[tuple[str, str], tuple[StepVerdict, dict[str, Any]]] = field(default_factory=dict)

    def enter(self, verdict: StepVerdict) -> None:
        """Take down a verdict, with the time of now."""
        self._entered[verdict.generation_id, verdict.step] = verdict, _verdict_row(self.clock, verdict)

    def last(self, generation_id: str, step: str) -> StepVerdict | None:
        """The last verdict on a step, of this run or of whoever kept one."""
        entered = self._entered.get((generation_id, step))
        return read_last_verdict(self.lake, generation_id, step) if entered is None else entered[0]

    def keep(self) -> None:
        """Keep what was entered since the last time, if anything was."""
        if self._entered:
            with self.lake.open_tables.looked_at_once():
                _store_rows(self.lake, [row for _, row in self._entered.values()])
            self._entered.clear()


@contextmanager
def collect_verdicts(lake: Lake, clock: Clock) -> Iterator[VerdictBook]:
    """A book that is kept at the end of a block, also of one that fails."""
    book = VerdictBook(lake, clock)
    try:
        yield book
    except Exception:
        with suppress(PlatformError):  # what has failed first is what is told
            book.keep()
        raise
    book.keep()


def _verdict_row(clock: Clock, verdict: StepVerdict) -> dict[str, Any]:
    return {
        "generation_id": verdict.generation_id,
        "step": verdict.step,
        "content": verdict.content,
        "invariants": list(verdict.invariants),
        "passed": verdict.passed,
        "said": verdict.said or None,
        "door": verdict.door,
        "judged_at": datetime_from_us(clock.now_us()),
    }


def _store_rows(lake: Lake, rows: Sequence[dict[str, Any]]) -> None:
    lake.merge(VERDICTS, pa.Table.from_pylist(list(rows), schema=VERDICTS.schema), update=True)


def read_last_verdict(lake: Lake, generation_id: str, step: str) -> StepVerdict | None:
    """The last verdict on a step; None where there is none, as in a home that was made before verdicts were kept."""
    columns = ["content", "invariants", "passed", "said", "door"]
    found = lake.read(VERDICTS, columns, [("generation_id", "=", generation_id), ("step", "=", step)]).to_pylist()
    if not found:
        return None
    row = found[0]
    return StepVerdict(
        generation_id, step, row["content"], tuple(row["invariants"]), row["passed"], row["said"] or "", row["door"]
    )
