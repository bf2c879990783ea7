"""Find the periods in which a log lacks data of its table: images, values or all writes.

Some gaps follow from the CDC options over time and from truncations, which no log records. Readers of a live
cluster record the others (`metastore` log gaps). The CQL grammar is imported inside functions: it takes as long to
load as a small table.
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
    """The CDC options of a table from a time on (µs)."""

    since_us: Microseconds
    options: CdcOptions


class OptionGap(NamedTuple):
    """What a log lacks of the writes from `since_us` (µs; None: from the first) until `until_us` (None: now)."""

    what: str
    since_us: Microseconds | None
    until_us: Microseconds | None

    @property
    def loses_writes(self) -> bool:
        """Whether whole writes may be missing, and not only images or values."""
        return self.what.startswith("all writes") or self.what == POSSIBLE_LOSS

    def __str__(self) -> str:
        """As people read it."""
        since = "from the first write" if self.since_us is None else f"from {format_us(self.since_us)}"
        return f"{self.what} {since} {'on' if self.until_us is None else f'until {format_us(self.until_us)}'}"

    def json(self) -> dict[str, object]:
        """As JSON has it."""
        times = (None if time is None else format_us(time) for time in (self.since_us, self.until_us))
        return {"what": self.what, **dict(zip(("from", "until"), times, strict=True))}


def find_option_gaps(schema: TableSchema, history: Sequence[CdcOptionsSince]) -> list[OptionGap]:
    """What the log of a table lacks, by what it is; `history` is oldest first, and its first one holds before, too.

    Images are missing where the table had fewer of them than at another time.
    """
    logged = [each for each in history if each.options.enabled]
    if not logged:
        return []
    found = list(_gap_periods("all writes", history, [not each.options.enabled for each in history]))
    found += _gap_periods("values", history, [_is_enabled(each) and each.options.delta == "keys" for each in history])
    most = max(_PREIMAGES.index(each.options.preimage) for each in logged)
    fewer = [_is_enabled(each) and _PREIMAGES.index(each.options.preimage) < most for each in history]
    found += _gap_periods("pre-images" if most == 1 else "full pre-images", history, fewer)
    if any(each.options.postimage for each in logged):
        found += _gap_periods(
            "post-images", history, [_is_enabled(each) and not each.options.postimage for each in history]
        )
    if schema.log_since_us is not None:
        found.append(OptionGap("all writes to the log that was dropped", None, schema.log_since_us))
    if schema.truncated_us is not None:
        found.append(OptionGap("the truncation, which takes all that was written", None, schema.truncated_us))
    return found


def options_history(changes: Iterable[TableChange], schema: TableSchema) -> list[CdcOptionsSince]:
    """The options that a kept table has had since its log was made, oldest first; none of one never told of.

    `changes` are those of all tables, oldest first (`cdc_tables.changes`).
    """
    from cdc_platform.cql import CdcOptions
    from cdc_platform.metastore import TABLE_DROPPED

    name = (schema.keyspace, schema.name)
    said = [change for change in changes if (change.keyspace_name, change.table_name) == name]
    dropped = [place for place, change in enumerate(said) if change.what == TABLE_DROPPED]
    found: list[CdcOptionsSince] = []
    for change in said[dropped[-1] + 1 :] if dropped else said:
        options = CdcOptions(change.enabled) if change.ddl is None else _parse_cdc_options(change.ddl, change.enabled)
        if not found or found[-1].options != options:
            found.append(CdcOptionsSince(change.changed_at_us, options))
    return found


def read_log_gaps(lake: Lake, names: Collection[str] | None = None) -> list[LogGap]:
    """Return the intervals of logs of which a reader of the cluster may lack rows, by table and time.

    Those are what was recorded, and in homes of earlier releases what their other tables say of it. `names`
    (`keyspace.table`) are the tables to look at; None for all.
    """
    from cdc_platform.metastore import log_gaps

    recorded = log_gaps.read_recorded_gaps(lake)
    found = [*recorded, *_infer_gaps(lake, recorded)]
    return [gap for gap in found if names is None or gap.full_name in names]


def describe_recreation(created_us: Microseconds) -> str:
    """Return why rows are missing of a log that was dropped before they were read, and created again at a time (µs)."""
    return f"the log was dropped and recreated at {format_us(created_us)}, and what it held was not read"


def _infer_gaps(lake: Lake, recorded: Sequence[LogGap]) -> Iterator[LogGap]:
    """Yield the gaps that follow from other tables alone, since an earlier release read the log.

    Where that does not tell when a gap began, it counts from the first write on.
    """
    from cdc_platform.metastore import LogGap, LogLoss, cdc_tables, consumers, log_recreation_times

    readers = [each for each in consumers.read_consumers(lake) if each.name == INGEST_CONSUMER and each.window_number]
    if not readers:
        return
    changes = cdc_tables.read_table_changes(lake)
    for reader in readers:
        name = reader.keyspace_name, reader.table_name
        mine = [gap for gap in recorded if (gap.keyspace_name, gap.table_name, gap.reader) == (*name, INGEST_CONSUMER)]
        log = Table(name[0], name[1] + LOG_SUFFIX, pa.schema([]), (), "")
        died_us = lake.transaction(log, GAP_APPLICATION)
        if died_us is not None and not any(gap.what == LogLoss.DIED and gap.until_us > died_us for gap in mine):
            why = "they reached their TTL before they were read"
            yield LogGap(*name, LogLoss.DIED, _FIRST_US, Microseconds(died_us + ONE_US), why)
        said = [each for each in changes if (each.keyspace_name, each.table_name) == name]
        for created_us in log_recreation_times(said):
            if created_us <= reader.position_us and not any(
                gap.what in (LogLoss.RECREATED, LogLoss.BEFORE_READING) and gap.since_us <= created_us <= gap.until_us
                for gap in mine
            ):
                yield LogGap(*name, LogLoss.RECREATED, _FIRST_US, created_us, describe_recreation(created_us))
        if said and not any(gap.what == LogLoss.BEFORE_READING for gap in mine):
            rows = [us_from_datetime(low) for low, _, _ in lake.file_bounds(log, WRITTEN_AT)]
            first = min(rows, default=reader.position_us + ONE_US)
            until = Microseconds(max(said[0].created_at_us or _FIRST_US, first))
            yield LogGap(*name, LogLoss.BEFORE_READING, _FIRST_US, until, "what is here begins then")


def describe_gaps(lake: Lake, names: Sequence[str] | None = None) -> list[str]:
    """What the logs of the kept tables lack (of those of `names`, `keyspace.table`; None: of all), a line a gap.

    Gaps that readers of a live cluster recorded come first; those in force before reading began are left out.
    """
    from cdc_platform.metastore import LogLoss

    recorded = read_log_gaps(lake, names)
    shown = [str(gap) for gap in recorded if gap.what != LogLoss.BEFORE_READING]
    return [*shown, *describe_option_gaps(lake, names, recorded)]


def describe_option_gaps(lake: Lake, names: Sequence[str] | None, recorded: Sequence[LogGap]) -> list[str]:
    """Return a line for each gap that follows from CDC options, but for those that are recorded as well."""
    from cdc_platform.metastore import LogLoss, cdc_tables

    covered = {(gap.full_name, gap.until_us) for gap in recorded if gap.what != LogLoss.BEFORE_READING}
    changes = cdc_tables.read_table_changes(lake)
    changed = _tables_with_changed_options(changes)
    known = [
        each
        for each in cdc_tables.read_cdc_tables(lake)
        if each.ddl is not None and each.full_name in changed and (names is None or each.full_name in names)
    ]
    if not known:
        return []
    # The grammar takes as long to load as small tables to be read.
    from cdc_platform.cdclog.ddl import load_table_schemas
    from cdc_platform.cql import Catalog

    return [
        f"the log of {schema.full_name} lacks {gap}"
        for schema in load_table_schemas(Catalog(), known)
        for gap in find_table_gaps(schema, changes)
        if (schema.full_name, gap.until_us) not in covered or not gap.loses_writes
    ]


def find_table_gaps(schema: TableSchema, changes: Sequence[TableChange]) -> list[OptionGap]:
    """What the log of a table lacks, by all changes that were told (`cdc_tables.changes`).

    That of a live cluster's table may lack what was written while it was altered, and altered back, and nobody looked.
    """
    from cdc_platform.metastore import unobserved_intervals

    found = find_option_gaps(schema, options_history(changes, schema))
    for each in unobserved_intervals(change for change in changes if change.full_name == schema.full_name):
        if each.before.enabled:
            found.append(OptionGap(POSSIBLE_LOSS, each.since_us, each.until_us))
    return found


def _tables_with_changed_options(said: Iterable[TableChange]) -> set[str]:
    """The tables whose options may have changed, or whose definitions say what no CQL says."""
    found: dict[str, set[tuple[bool, str]]] = {}
    for change in said:
        options = tuple(_OPTIONS.findall(change.ddl or ""))
        found.setdefault(change.full_name, set()).add((change.enabled, " ".join(options)))
    return {
        name
        for name, several in found.items()
        if len(several) > 1 or any(_COMMENT_NOTE.search(text) for _, text in several)
    }


_OPTIONS = re.compile(r"cdc = \{[^}]*\}|^-- [^:]+: \S+", re.MULTILINE)
_COMMENT_NOTE = re.compile(r"-- (?!altered)")


def _is_enabled(standing: CdcOptionsSince) -> bool:
    return standing.options.enabled


def _gap_periods(what: str, history: Sequence[CdcOptionsSince], missing: Sequence[bool]) -> Iterator[OptionGap]:
    """A gap for each run of times at which something is missing; none where it always is, since it was never asked."""
    if all(missing):
        return
    place = 0
    while place < len(missing):
        end = place
        while end < len(missing) and missing[end]:
            end += 1
        if end > place:
            until = history[end].since_us if end < len(history) else None
            yield OptionGap(what, history[place].since_us if place else None, until)
        place = end + 1


def _parse_cdc_options(ddl: str, enabled: bool) -> CdcOptions:
    """The CDC options of a definition; whether CDC is on is told beside it."""
    from cdc_platform.cql import CdcOptions, parse_cdc_options, parse_statements
    from cdc_platform.cql import ast as s

    tables = [each.body for each in parse_statements(ddl) if isinstance(each.body, s.CreateTable)]
    found = parse_cdc_options(tables[-1].properties) if tables else None
    return replace(found or CdcOptions(), enabled=enabled)
