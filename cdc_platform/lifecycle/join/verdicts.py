"""Verdicts on the steps of a join, stored with an identifier of the judged content.

The command line and Dagster rely on each other's verdicts. The names of the data files identify content, because a file
never changes. `steps` declares what is judged and which steps rely on it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from cdc_platform.checks import STREAM_FORMAT, VNODE_COLOCATION, Finding, InventoryGeneration, StoredGenerationRows
from cdc_platform.clock import Clock, datetime_from_us
from cdc_platform.delta import Filter, Lake
from cdc_platform.errors import PlatformError
from cdc_platform.tables import TOPOLOGY_DESCRIPTIONS, VERDICT_COUNTS, VERDICTS, Table

TableParts = Sequence[tuple[Table, Sequence[Filter]]]
"""Parts of tables, by filters on partition columns: the step's own part first, then those compared with it."""


@dataclass(frozen=True)
class StepVerdict:
    """The verdict on one step of a generation's join.

    `content` identifies the judged content, see `content_name`. `message` is empty if all of `invariants` hold.
    `entry_point` is the entry point that judged. `findings` are the counts to store; see `read_findings`.
    """

    generation_id: str
    step: str
    content: str
    invariants: tuple[str, ...]
    passed: bool
    message: str
    entry_point: str
    findings: tuple[Finding, ...] = field(default=(), compare=False)


def content_name(lake: Lake, parts: TableParts) -> str:
    """Return an identifier of the current content of these slices; empty if the first has no rows.

    It is derived from the names of the data files in Delta's log, because a file never changes and no two files share a
    name. Rewriting the same rows changes the identifier. Judging again is then cheaper than reading every stream for a
    hash.
    """
    return _content_name_of_files(
        [(table, [file.path for file in lake.data_files(table, filters)]) for table, filters in parts]
    )


def _content_name_of_files(files: Sequence[tuple[Table, Sequence[str]]]) -> str:
    if not files or not files[0][1]:
        return ""
    names = sorted(f"{table.full_name}/{path.rpartition('/')[2]}" for table, paths in files for path in paths)
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:32]


def generations_in_order(lake: Lake, inventory: Sequence[InventoryGeneration]) -> list[InventoryGeneration]:
    """Return the generations with a passed verdict that each stream lies in its range and has the range's index.

    The verdict must be on the very files that hold the generation now.
    """
    columns = ["generation_id", "step", "content", "invariants"]
    verdicts = {
        (row["generation_id"], row["step"]): row["content"]
        for row in lake.read(VERDICTS, columns, [("passed", "=", True)]).to_pylist()
        if {VNODE_COLOCATION, STREAM_FORMAT} <= set(row["invariants"])
    }
    described: dict[str, list[str]] = {}
    for file in lake.data_files(TOPOLOGY_DESCRIPTIONS) if verdicts else ():
        described.setdefault(file.partition[0], []).append(file.path)

    def judged(rows: StoredGenerationRows) -> bool:
        beside = [] if rows.table is TOPOLOGY_DESCRIPTIONS else [(TOPOLOGY_DESCRIPTIONS, described.get(rows.key, []))]
        return verdicts.get((rows.key, rows.table.name)) == _content_name_of_files([(rows.table, rows.paths), *beside])

    return [generation for generation in inventory if generation.rows is not None and judged(generation.rows)]


def store_verdict(lake: Lake, clock: Clock, verdict: StepVerdict) -> None:
    """Store a verdict, replacing the last one on the step."""
    _store_verdicts(lake, [(verdict, _verdict_row(clock, verdict))])


@dataclass(frozen=True, eq=False)
class VerdictBook:
    """The verdicts of one run, which relies on them at once and stores those of several steps in one commit.

    If the run is killed before the commit, its verdicts are lost and the run that resumes judges again.
    """

    lake: Lake
    clock: Clock
    _added: dict[tuple[str, str], tuple[StepVerdict, dict[str, Any]]] = field(default_factory=dict)

    def add(self, verdict: StepVerdict) -> None:
        """Add a verdict with the current time."""
        self._added[verdict.generation_id, verdict.step] = verdict, _verdict_row(self.clock, verdict)

    def last(self, generation_id: str, step: str) -> StepVerdict | None:
        """Return the last verdict on a step, from this run or from the lake."""
        entered = self._added.get((generation_id, step))
        return read_last_verdict(self.lake, generation_id, step) if entered is None else entered[0]

    def flush(self) -> None:
        """Store the verdicts added since the last call, if any."""
        if self._added:
            with self.lake.table_cache.pin_versions():
                _store_verdicts(self.lake, list(self._added.values()))
            self._added.clear()


@contextmanager
def collect_verdicts(lake: Lake, clock: Clock) -> Iterator[VerdictBook]:
    """Yield a book that is stored when the block exits, also if it fails."""
    book = VerdictBook(lake, clock)
    try:
        yield book
    except Exception:
        with suppress(PlatformError):  # report the first failure
            book.flush()
        raise
    book.flush()


def _verdict_row(clock: Clock, verdict: StepVerdict) -> dict[str, Any]:
    return {
        "generation_id": verdict.generation_id,
        "step": verdict.step,
        "content": verdict.content,
        "invariants": list(verdict.invariants),
        "passed": verdict.passed,
        "said": verdict.message or None,
        "door": verdict.entry_point,
        "judged_at": datetime_from_us(clock.now_us()),
    }


def _store_verdicts(lake: Lake, added: Sequence[tuple[StepVerdict, dict[str, Any]]]) -> None:
    """Store verdicts, each after its counts."""
    counts = [_counts_row(verdict) for verdict, _ in added if verdict.findings]
    if counts:
        lake.merge(VERDICT_COUNTS, pa.Table.from_pylist(counts, schema=VERDICT_COUNTS.schema), update=True)
    rows = [row for _, row in added]
    lake.merge(VERDICTS, pa.Table.from_pylist(rows, schema=VERDICTS.schema), update=True)


def _counts_row(verdict: StepVerdict) -> dict[str, Any]:
    return {
        "generation_id": verdict.generation_id,
        "step": verdict.step,
        "content": verdict.content,
        "invariants": [str(finding.invariant) for finding in verdict.findings],
        "populations": [finding.population for finding in verdict.findings],
        "violations": [finding.violations for finding in verdict.findings],
        "unjudged": [finding.unjudged for finding in verdict.findings],
        "samples": [finding.sample for finding in verdict.findings],
    }


def read_last_verdict(lake: Lake, generation_id: str, step: str) -> StepVerdict | None:
    """Return the last verdict on a step; None if there is none, as in homes older than the verdicts table."""
    where: list[Filter] = [("generation_id", "=", generation_id), ("step", "=", step)]
    return next(iter(_read_verdicts(lake, where)), None)


def read_last_verdicts(lake: Lake) -> dict[str, dict[str, StepVerdict]]:
    """Return the last verdicts on all steps, by generation and step. Reads the table once."""
    verdicts: dict[str, dict[str, StepVerdict]] = {}
    for verdict in _read_verdicts(lake):
        verdicts.setdefault(verdict.generation_id, {})[verdict.step] = verdict
    return verdicts


def _read_verdicts(lake: Lake, where: Sequence[Filter] = ()) -> Iterator[StepVerdict]:
    columns = ["generation_id", "step", "content", "invariants", "passed", "said", "door"]
    for row in lake.read(VERDICTS, columns, where).to_pylist():
        yield StepVerdict(
            row["generation_id"],
            row["step"],
            row["content"],
            tuple(row["invariants"]),
            row["passed"],
            row["said"] or "",
            row["door"],
        )


def read_findings(lake: Lake, verdict: StepVerdict) -> list[Finding]:
    """Return the findings behind a stored verdict; none if an earlier version stored it, without counts."""
    columns = ["content", "invariants", "populations", "violations", "unjudged", "samples"]
    where: list[Filter] = [("generation_id", "=", verdict.generation_id), ("step", "=", verdict.step)]
    rows = lake.read(VERDICT_COUNTS, columns, where).to_pylist()
    if not rows or rows[0]["content"] != verdict.content or tuple(rows[0]["invariants"]) != verdict.invariants:
        return []
    counts = zip(*(rows[0][name] for name in columns[1:]), strict=True)
    return [
        Finding(invariant, population, violations, sample, unjudged=unjudged)
        for invariant, population, violations, unjudged, sample in counts
    ]
