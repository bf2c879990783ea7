"""The last ALTER of a live cluster's table, and the intervals in which the table was not observed.

ScyllaDB writes the whole row of `system_schema.tables` with each ALTER, but only the changed rows of its columns
(db/schema_tables.cc, make_update_table_mutations). A later time on an unchanged table therefore reveals a change that
was made and undone between two observations, for example CDC switched off. This is a separate module because it loads
the CQL grammar.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from cdc_platform.clock import Microseconds, format_us, parse_time_us
from cdc_platform.cql import strip_comments
from cdc_platform.metastore.cdc_tables import TABLE_DROPPED, TableChange

_ALTERATION = re.compile(
    r"^-- altered: (?P<at>\S+), its columns: (?P<columns>\S+), all else: (?P<beside>[0-9a-f]+)$", re.MULTILINE
)
_UNCHANGED_UNTIL = re.compile(r"^-- as before up to: (\S+)$\n?", re.MULTILINE)
_OPTIONS = re.compile(r"cdc = \{[^}]*\}")


@dataclass(frozen=True)
class TableAlteration:
    """The last times (µs) at which the table was altered, and at which a column was added, removed or changed.

    `beside` is a digest of the table's definition without its columns and CDC options.
    """

    at_us: Microseconds
    columns_us: Microseconds
    beside: str

    def note(self) -> str:
        """Return the CQL comment that is stored after the table's definition."""
        at, columns = format_us(self.at_us), format_us(self.columns_us)
        return f"-- altered: {at}, its columns: {columns}, all else: {self.beside}"


def parse_alteration(ddl: str | None) -> TableAlteration | None:
    """Parse the alteration comment of a definition; None if it has none."""
    match = _ALTERATION.search(ddl or "")
    if match is None:
        return None
    return TableAlteration(parse_time_us(match["at"]), parse_time_us(match["columns"]), match["beside"])


def unobserved_until_us(before: TableChange, after: TableChange) -> Microseconds | None:
    """Return the end (µs) of the unobserved interval between two consecutive changes of a table.

    Returns None if the definition of the second change explains the alteration. Further changes may have been made and
    undone along with it.
    """
    was, now = parse_alteration(before.ddl), parse_alteration(after.ddl)
    if was is None or now is None or before.what == TABLE_DROPPED or before.created_at_us != after.created_at_us:
        return None
    if now.at_us <= was.at_us or now.beside != was.beside or _options(before) != _options(after):
        return None
    same = strip_comments(before.ddl or "") == strip_comments(after.ddl or "")
    return now.at_us if same or now.columns_us < now.at_us else None


@dataclass(frozen=True)
class UnobservedInterval:
    """An interval (µs) in which a table was not observed; `before` is its last known state at the begin."""

    before: TableChange
    since_us: Microseconds
    until_us: Microseconds


def unobserved_intervals(changes: Iterable[TableChange]) -> list[UnobservedInterval]:
    """Return the unobserved intervals of one table from its changes, oldest first."""
    intervals = list[UnobservedInterval]()
    for before, after in pairwise(changes):
        until_us, was = unobserved_until_us(before, after), parse_alteration(before.ddl)
        if until_us is not None and was is not None:
            since = max([before.changed_at_us, was.at_us, *parse_unchanged_until_us(after.ddl)])
            intervals.append(UnobservedInterval(before, Microseconds(min(since, until_us)), until_us))
    return intervals


def with_unchanged_until(ddl: str, up_to_us: Microseconds) -> str:
    """Append a comment to a definition with the time (µs) until which the previous one is known to be in force."""
    return f"{ddl}\n-- as before up to: {format_us(up_to_us)}"


def parse_unchanged_until_us(ddl: str | None) -> list[Microseconds]:
    """Parse the time (µs) until which the previous definition was in force; empty if the definition has none."""
    return [parse_time_us(time) for time in _UNCHANGED_UNTIL.findall(ddl or "")]


def without_unchanged_until(ddl: str | None) -> str | None:
    """Return a definition without the comment that an observation of its table cannot reproduce."""
    return None if ddl is None else _UNCHANGED_UNTIL.sub("", ddl).rstrip("\n")


def _options(change: TableChange) -> tuple[object, ...]:
    return change.enabled, change.ttl_seconds, *_OPTIONS.findall(change.ddl or "")
