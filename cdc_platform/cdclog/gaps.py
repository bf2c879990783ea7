"""Find the periods in which a log lacks data of its table: images, values or all writes.

Some gaps follow from the history of the CDC options and from truncations, which no log records. Readers of a live
cluster record the others (`metastore` log gaps). The CQL grammar is imported inside functions, because loading it takes
as long as reading a small table.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from cdc_platform.cdclog.schema import GAP_APPLICATION, WRITTEN_AT
from cdc_platform.clock import ONE_US, Microseconds, format_us, us_from_datetime
from cdc_platform.cql import LOG_SUFFIX
from cdc_platform.delta import Lake
from cdc_platform.metastore import INGEST_CONSUMER
from cdc_platform.tables import Table

if TYPE_CHECKING:
    from cdc_platform.cql import CdcOptions, TableSchema
    from cdc_platform.metastore import LogGap, TableChange

_FIRST_US = Microseconds(0)
POSSIBLE_LOSS = "perhaps all writes, if CDC was off while nobody looked,"
_PREIMAGES = ("false", "true", "full")


class CdcOptionsSince(NamedTuple):
    """The CDC options of a table from a time (µs) onwards."""

    since_us: Microseconds
    options: CdcOptions


class OptionGap(NamedTuple):
    """Data missing from a log for writes from `since_us` (µs; None: the first) until `until_us` (None: now)."""

    what: str
    since_us: Microseconds | None
    until_us: Microseconds | None

    @property
    def loses_writes(self) -> bool:
        """Return True if whole writes may be missing, not only images or values."""
        return self.what.startswith("all writes") or self.what == POSSIBLE_LOSS

    def __str__(self) -> str:
        """Format the gap for people."""
        since = "from the first write" if self.since_us is None else f"from {format_us(self.since_us)}"
        return f"{self.what} {since} {'on' if self.until_us is None else f'until {format_us(self.until_us)}'}"

    def json(self) -> dict[str, object]:
        """Return the gap as JSON."""
        times = (None if time is None else format_us(time) for time in (self.since_us, self.until_us))
        return {"what": self.what, **dict(zip(("from", "until"), times, strict=True))}


def find_option_gaps(schema: TableSchema, history: Sequence[CdcOptionsSince]) -> list[OptionGap]:
    """Return the gaps of a table's log by kind of data; `history` is oldest first.

    The first options of `history` also apply to the time before it. Images are missing while the table logged fewer of
    them than at another time.
    """
    logged = [entry for entry in history if entry.options.enabled]
    if not logged:
        return []
    gaps = list(_gap_periods("all writes", history, [not entry.options.enabled for entry in history]))
    gaps += _gap_periods("values", history, [_is_enabled(entry) and entry.options.delta == "keys" for entry in history])
    highest = max(_PREIMAGES.index(entry.options.preimage) for entry in logged)
    fewer = [_is_enabled(entry) and _PREIMAGES.index(entry.options.preimage) < highest for entry in history]
    gaps += _gap_periods("pre-images" if highest == 1 else "full pre-images", history, fewer)
    if any(entry.options.postimage for entry in logged):
        gaps += _gap_periods(
            "post-images", history, [_is_enabled(entry) and not entry.options.postimage for entry in history]
        )
    if schema.log_since_us is not None:
        gaps.append(OptionGap("all writes to the log that was dropped", None, schema.log_since_us))
    if schema.truncated_us is not None:
        gaps.append(OptionGap("the truncation, which takes all that was written", None, schema.truncated_us))
    return gaps


def options_history(changes: Iterable[TableChange], schema: TableSchema) -> list[CdcOptionsSince]:
    """Return the CDC options of a stored table since its log was created, oldest first; [] for an unknown table.

    `changes` are recorded changes, oldest first (`cdc_tables.read_table_changes`); those of other tables are ignored.
    """
    from cdc_platform.cql import CdcOptions
    from cdc_platform.metastore import TABLE_DROPPED

    name = (schema.keyspace, schema.name)
    own_changes = [change for change in changes if (change.keyspace_name, change.table_name) == name]
    drops = [index for index, change in enumerate(own_changes) if change.what == TABLE_DROPPED]
    history: list[CdcOptionsSince] = []
    for change in own_changes[drops[-1] + 1 :] if drops else own_changes:
        options = CdcOptions(change.enabled) if change.ddl is None else _parse_cdc_options(change.ddl, change.enabled)
        if not history or history[-1].options != options:
            history.append(CdcOptionsSince(change.changed_at_us, options))
    return history


def read_log_gaps(lake: Lake, names: Collection[str] | None = None) -> list[LogGap]:
    """Return the intervals of logs in which a reader of the cluster may have missed rows, by table and time.

    These are the recorded gaps and, in homes of earlier releases, the gaps that their other tables imply. `names`
    (`keyspace.table`) selects tables; None selects all.
    """
    from cdc_platform.metastore import log_gaps

    recorded = log_gaps.read_recorded_gaps(lake)
    gaps = [*recorded, *_infer_gaps(lake, recorded)]
    return [gap for gap in gaps if names is None or gap.full_name in names]


def describe_recreation(created_us: Microseconds) -> str:
    """Explain why rows are missing: the log was dropped unread and created again at `created_us` (µs)."""
    return f"the log was dropped and recreated at {format_us(created_us)}, and its rows were not read"


def _infer_gaps(lake: Lake, recorded: Sequence[LogGap]) -> Iterator[LogGap]:
    """Yield the gaps that other tables imply for logs that an earlier release read.

    A gap whose beginning is unknown starts at the first write.
    """
    from cdc_platform.metastore import LogGap, LogLoss, cdc_tables, consumers, log_recreation_times

    readers = [
        change for change in consumers.read_consumers(lake) if change.name == INGEST_CONSUMER and change.window_number
    ]
    if not readers:
        return
    changes = cdc_tables.read_table_changes(lake)
    for reader in readers:
        name = reader.keyspace_name, reader.table_name
        own_gaps = [
            gap for gap in recorded if (gap.keyspace_name, gap.table_name, gap.reader) == (*name, INGEST_CONSUMER)
        ]
        log = Table(name[0], name[1] + LOG_SUFFIX, pa.schema([]), (), "")
        died_us = lake.transaction(log, GAP_APPLICATION)
        if died_us is not None and not any(gap.what == LogLoss.DIED and gap.until_us > died_us for gap in own_gaps):
            why = "they reached their TTL before they were read"
            yield LogGap(*name, LogLoss.DIED, _FIRST_US, Microseconds(died_us + ONE_US), why)
        own_changes = [change for change in changes if (change.keyspace_name, change.table_name) == name]
        for created_us in log_recreation_times(own_changes):
            if created_us <= reader.position_us and not any(
                gap.what in (LogLoss.RECREATED, LogLoss.BEFORE_READING) and gap.since_us <= created_us <= gap.until_us
                for gap in own_gaps
            ):
                yield LogGap(*name, LogLoss.RECREATED, _FIRST_US, created_us, describe_recreation(created_us))
        if own_changes and not any(gap.what == LogLoss.BEFORE_READING for gap in own_gaps):
            rows = [us_from_datetime(low) for low, _, _ in lake.file_bounds(log, WRITTEN_AT)]
            first = min(rows, default=reader.position_us + ONE_US)
            until = Microseconds(max(own_changes[0].created_at_us or _FIRST_US, first))
            yield LogGap(*name, LogLoss.BEFORE_READING, _FIRST_US, until, "what is here begins then")


def describe_gaps(lake: Lake, names: Sequence[str] | None = None) -> list[str]:
    """Return a line for each gap in the logs of stored tables; `names` (`keyspace.table`) selects some, None all.

    Gaps recorded by readers of a live cluster come first. Gaps from before reading began are omitted.
    """
    from cdc_platform.metastore import LogLoss

    recorded = read_log_gaps(lake, names)
    lines = [str(gap) for gap in recorded if gap.what != LogLoss.BEFORE_READING]
    return [*lines, *describe_option_gaps(lake, names, recorded)]


def describe_option_gaps(lake: Lake, names: Sequence[str] | None, recorded: Sequence[LogGap]) -> list[str]:
    """Return a line for each gap that follows from CDC options, except those that are recorded as well."""
    from cdc_platform.metastore import LogLoss, cdc_tables

    covered = {(gap.full_name, gap.until_us) for gap in recorded if gap.what != LogLoss.BEFORE_READING}
    changes: dict[str, list[TableChange]] = {}
    for change in cdc_tables.read_table_changes(lake):
        changes.setdefault(change.full_name, []).append(change)
    changed = {name for name, own_changes in changes.items() if _may_have_gaps(own_changes)}
    selected = [
        table
        for table in cdc_tables.read_cdc_tables(lake)
        if table.ddl is not None and table.full_name in changed and (names is None or table.full_name in names)
    ]
    if not selected:
        return []
    # Loading the grammar takes as long as reading small tables.
    from cdc_platform.cdclog.ddl import load_table_schemas
    from cdc_platform.cql import Catalog

    return [
        f"the log of {schema.full_name} lacks {gap}"
        for schema in load_table_schemas(Catalog(), selected)
        for gap in find_table_gaps(schema, changes[schema.full_name])
        if (schema.full_name, gap.until_us) not in covered or not gap.loses_writes
    ]


def find_table_gaps(schema: TableSchema, changes: Sequence[TableChange]) -> list[OptionGap]:
    """Return the gaps of a table's log, from recorded changes, oldest first; those of other tables are ignored.

    The log of a live cluster's table may lack writes made while the table was altered and altered back unobserved.
    """
    from cdc_platform.metastore import unobserved_intervals

    gaps = find_option_gaps(schema, options_history(changes, schema))
    for interval in unobserved_intervals(change for change in changes if change.full_name == schema.full_name):
        if interval.before.enabled:
            gaps.append(OptionGap(POSSIBLE_LOSS, interval.since_us, interval.until_us))
    return gaps


def _may_have_gaps(changes: Iterable[TableChange]) -> bool:
    """Return True if a table's options may have changed, or its stored DDL has facts that CQL cannot express."""
    variants = {(change.enabled, " ".join(_OPTIONS.findall(change.ddl or ""))) for change in changes}
    return len(variants) > 1 or any(_COMMENT_NOTE.search(text) for _, text in variants)


_OPTIONS = re.compile(r"cdc = \{[^}]*\}|^-- [^:]+: \S+", re.MULTILINE)
_COMMENT_NOTE = re.compile(r"-- (?!altered)")


def _is_enabled(standing: CdcOptionsSince) -> bool:
    return standing.options.enabled


def _gap_periods(what: str, history: Sequence[CdcOptionsSince], missing: Sequence[bool]) -> Iterator[OptionGap]:
    """Yield a gap for each run of times with missing data; none if all are missing, as it was never enabled."""
    if all(missing):
        return
    index = 0
    while index < len(missing):
        end = index
        while end < len(missing) and missing[end]:
            end += 1
        if end > index:
            until = history[end].since_us if end < len(history) else None
            yield OptionGap(what, history[index].since_us if index else None, until)
        index = end + 1


def _parse_cdc_options(ddl: str, enabled: bool) -> CdcOptions:
    """Parse the CDC options of a definition; `enabled` comes from the recorded change."""
    from cdc_platform.cql import CdcOptions, parse_cdc_options, parse_definitions
    from cdc_platform.cql import ast as s

    tables = [statement.body for statement in parse_definitions(ddl) if isinstance(statement.body, s.CreateTable)]
    options = parse_cdc_options(tables[-1].properties) if tables else None
    return replace(options or CdcOptions(), enabled=enabled)
