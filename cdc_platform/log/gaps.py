"""What a log lacks of its table, and of which time: images, values, or anything at all.

Some of it follows from the options that CDC has had and from truncations, which no log records. Of the log of a live
cluster it is also what readers found to be missing (`records.log_gaps`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from cdc_platform.clock import ONE_US, Microseconds, format_us, from_datetime
from cdc_platform.cql.names import LOG_SUFFIX
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import Table
from cdc_platform.log.stored_names import GAP, WRITTEN_AT
from cdc_platform.records.consumers import FROM_CLUSTER

if TYPE_CHECKING:
    from cdc_platform.cql.schema import CdcOptions, TableSchema
    from cdc_platform.records.log_gaps import LogGap
    from cdc_platform.records.table_history import TableChange

_FIRST = Microseconds(0)
MAYBE = "perhaps all writes, if CDC was off while nobody looked,"
_PREIMAGES = ("false", "true", "full")


class Standing(NamedTuple):
    """The CDC options of a table from a time on (µs)."""

    since_us: Microseconds
    options: CdcOptions


class Gap(NamedTuple):
    """What a log lacks of the writes from `since_us` (µs; None: from the first) until `until_us` (None: now)."""

    what: str
    since_us: Microseconds | None
    until_us: Microseconds | None

    @property
    def loses_writes(self) -> bool:
        """Whether whole writes may be missing, and not only images or values."""
        return self.what.startswith("all writes") or self.what == MAYBE

    def __str__(self) -> str:
        """As people read it."""
        since = "from the first write" if self.since_us is None else f"from {format_us(self.since_us)}"
        return f"{self.what} {since} {'on' if self.until_us is None else f'until {format_us(self.until_us)}'}"

    def json(self) -> dict[str, object]:
        """As JSON has it."""
        times = (None if time is None else format_us(time) for time in (self.since_us, self.until_us))
        return {"what": self.what, **dict(zip(("from", "until"), times, strict=True))}


def gaps(schema: TableSchema, history: Sequence[Standing]) -> list[Gap]:
    """What the log of a table lacks, by what it is; `history` is oldest first, and its first one holds before, too.

    Images are missing where the table had fewer of them than at another time.
    """
    logged = [each for each in history if each.options.enabled]
    if not logged:
        return []
    found = list(_periods("all writes", history, [not each.options.enabled for each in history]))
    found += _periods("values", history, [_on(each) and each.options.delta == "keys" for each in history])
    most = max(_PREIMAGES.index(each.options.preimage) for each in logged)
    fewer = [_on(each) and _PREIMAGES.index(each.options.preimage) < most for each in history]
    found += _periods("pre-images" if most == 1 else "full pre-images", history, fewer)
    if any(each.options.postimage for each in logged):
        found += _periods("post-images", history, [_on(each) and not each.options.postimage for each in history])
    if schema.log_since_us is not None:
        found.append(Gap("all writes to the log that was dropped", None, schema.log_since_us))
    if schema.truncated_us is not None:
        found.append(Gap("the truncation, which takes all that was written", None, schema.truncated_us))
    return found


def history_of(changes: Iterable[TableChange], schema: TableSchema) -> list[Standing]:
    """The options that a kept table has had since its log was made, oldest first; none of one never told of.

    `changes` are those of all tables, oldest first (`cdc_tables.changes`).
    """
    from cdc_platform.cql.schema import CdcOptions
    from cdc_platform.records.table_history import DROPPED

    name = (schema.keyspace, schema.name)
    said = [change for change in changes if (change.keyspace_name, change.table_name) == name]
    dropped = [place for place, change in enumerate(said) if change.what == DROPPED]
    found: list[Standing] = []
    for change in said[dropped[-1] + 1 :] if dropped else said:
        options = CdcOptions(change.enabled) if change.ddl is None else _options(change.ddl, change.enabled)
        if not found or found[-1].options != options:
            found.append(Standing(change.changed_at_us, options))
    return found


def log_gaps_of(lake: Lake, names: Collection[str] | None = None) -> list[LogGap]:
    """Return the intervals of logs of which a reader of the cluster may lack rows, by table and time.

    Those are what was recorded, and in homes of earlier releases what their other tables say of it. `names`
    (`keyspace.table`) are the tables to look at; None for all.
    """
    from cdc_platform.records import log_gaps

    recorded = log_gaps.recorded(lake)
    found = [*recorded, *_unrecorded(lake, recorded)]
    return [gap for gap in found if names is None or gap.full_name in names]


def recreated_at(created_us: Microseconds) -> str:
    """Return why rows are missing of a log that was dropped before they were read, and created again at a time (µs)."""
    return f"the log was dropped and recreated at {format_us(created_us)}, and what it held was not read"


def _unrecorded(lake: Lake, recorded: Sequence[LogGap]) -> Iterator[LogGap]:
    """Yield the gaps that follow from other tables alone, since an earlier release read the log.

    Where that does not tell when a gap began, it counts from the first write on.
    """
    from cdc_platform.records import cdc_tables, consumers
    from cdc_platform.records.log_gaps import LogGap, Loss
    from cdc_platform.records.table_history import recreations

    readers = [each for each in consumers.consumers(lake) if each.name == FROM_CLUSTER and each.window_number]
    if not readers:
        return
    changes = cdc_tables.changes(lake)
    for reader in readers:
        name = reader.keyspace_name, reader.table_name
        mine = [gap for gap in recorded if (gap.keyspace_name, gap.table_name, gap.reader) == (*name, FROM_CLUSTER)]
        log = Table(name[0], name[1] + LOG_SUFFIX, pa.schema([]), (), "")
        died_us = lake.transaction(log, GAP)
        if died_us is not None and not any(gap.what == Loss.DIED and gap.until_us > died_us for gap in mine):
            why = "they reached their TTL before they were read"
            yield LogGap(*name, Loss.DIED, _FIRST, Microseconds(died_us + ONE_US), why)
        said = [each for each in changes if (each.keyspace_name, each.table_name) == name]
        for created_us in recreations(said):
            if created_us <= reader.position_us and not any(
                gap.what in (Loss.RECREATED, Loss.BEFORE_READING) and gap.since_us <= created_us <= gap.until_us
                for gap in mine
            ):
                yield LogGap(*name, Loss.RECREATED, _FIRST, created_us, recreated_at(created_us))
        if said and not any(gap.what == Loss.BEFORE_READING for gap in mine):
            rows = [from_datetime(low) for low, _, _ in lake.file_bounds(log, WRITTEN_AT)]
            first = min(rows, default=reader.position_us + ONE_US)
            until = Microseconds(max(said[0].created_at_us or _FIRST, first))
            yield LogGap(*name, Loss.BEFORE_READING, _FIRST, until, "what is here begins then")


def told(lake: Lake, names: Sequence[str] | None = None) -> list[str]:
    """What the logs of the kept tables lack (of those of `names`, `keyspace.table`; None: of all), a line a gap.

    Gaps that readers of a live cluster recorded come first; those in force before reading began are left out.
    """
    from cdc_platform.records.log_gaps import Loss

    recorded = log_gaps_of(lake, names)
    shown = [str(gap) for gap in recorded if gap.what != Loss.BEFORE_READING]
    return [*shown, *lacking_lines(lake, names, recorded)]


def lacking_lines(lake: Lake, names: Sequence[str] | None, recorded: Sequence[LogGap]) -> list[str]:
    """Return a line for each gap that follows from CDC options, but for those that are recorded as well."""
    from cdc_platform.records import cdc_tables
    from cdc_platform.records.log_gaps import Loss

    covered = {(gap.full_name, gap.until_us) for gap in recorded if gap.what != Loss.BEFORE_READING}
    changes = cdc_tables.changes(lake)
    changed = _changed(changes)
    known = [
        each
        for each in cdc_tables.cdc_tables(lake)
        if each.ddl is not None and each.full_name in changed and (names is None or each.full_name in names)
    ]
    if not known:
        return []
    # The grammar takes as long to load as small tables to be read.
    from cdc_platform.cql.catalog import Catalog
    from cdc_platform.log.ddl import known_tables

    return [
        f"the log of {schema.full_name} lacks {gap}"
        for schema in known_tables(Catalog(), known)
        for gap in lacking(schema, changes)
        if (schema.full_name, gap.until_us) not in covered or not gap.loses_writes
    ]


def lacking(schema: TableSchema, changes: Sequence[TableChange]) -> list[Gap]:
    """What the log of a table lacks, by all changes that were told (`cdc_tables.changes`).

    That of a live cluster's table may lack what was written while it was altered, and altered back, and nobody looked.
    """
    from cdc_platform.records.alterations import unseen

    found = gaps(schema, history_of(changes, schema))
    for each in unseen(change for change in changes if change.full_name == schema.full_name):
        if each.before.enabled:
            found.append(Gap(MAYBE, each.since_us, each.until_us))
    return found


def _changed(said: Iterable[TableChange]) -> set[str]:
    """The tables whose options may have changed, or whose definitions say what no CQL says."""
    found: dict[str, set[tuple[bool, str]]] = {}
    for change in said:
        options = tuple(_OPTIONS.findall(change.ddl or ""))
        found.setdefault(change.full_name, set()).add((change.enabled, " ".join(options)))
    return {
        name for name, several in found.items() if len(several) > 1 or any(_NOTED.search(text) for _, text in several)
    }


_OPTIONS = re.compile(r"cdc = \{[^}]*\}|^-- [^:]+: \S+", re.MULTILINE)
_NOTED = re.compile(r"-- (?!altered)")


def _on(standing: Standing) -> bool:
    return standing.options.enabled


def _periods(what: str, history: Sequence[Standing], missing: Sequence[bool]) -> Iterator[Gap]:
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
            yield Gap(what, history[place].since_us if place else None, until)
        place = end + 1


def _options(ddl: str, enabled: bool) -> CdcOptions:
    """The CDC options of a definition; whether CDC is on is told beside it."""
    from cdc_platform.cql import statements as s
    from cdc_platform.cql.parser import parse
    from cdc_platform.cql.schema import CdcOptions
    from cdc_platform.cql.table_options import cdc_options

    tables = [each.body for each in parse(ddl) if isinstance(each.body, s.CreateTable)]
    found = cdc_options(tables[-1].properties) if tables else None
    return replace(found or CdcOptions(), enabled=enabled)
