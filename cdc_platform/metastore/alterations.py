"""The last ALTER of a live cluster's table, and the intervals in which nobody observed the table.

ScyllaDB writes the whole row of `system_schema.tables` with each ALTER, but only the changed rows of its columns
(db/schema_tables.cc, make_update_table_mutations). A later time on an unchanged table therefore shows a change that
came and went between two observations, for example CDC switched off. A module of its own, as it loads the CQL
grammar.
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
    """When the table was altered last, and when a column of it came, went or became other (µs).

    `beside` is a digest of what it is beside its columns and CDC options.
    """

    at_us: Microseconds
    columns_us: Microseconds
    beside: str

    def note(self) -> str:
        """As it stands behind the table's definition, in a comment of CQL."""
        at, columns = format_us(self.at_us), format_us(self.columns_us)
        return f"-- altered: {at}, its columns: {columns}, all else: {self.beside}"


def parse_alteration(ddl: str | None) -> TableAlteration | None:
    """What a definition notes; None where nobody looked for it."""
    found = _ALTERATION.search(ddl or "")
    if found is None:
        return None
    return TableAlteration(parse_time_us(found["at"]), parse_time_us(found["columns"]), found["beside"])


def unobserved_until_us(before: TableChange, after: TableChange) -> Microseconds | None:
    """When (µs) what nobody saw of a table was over, of two changes of it that were noted one after the other.

    None where what the second one shows is what the table was altered to. More may have come and gone with that.
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
    """A time (µs) in which nobody saw what a table was; `before` is how it was known to stand at its begin."""

    before: TableChange
    since_us: Microseconds
    until_us: Microseconds


def unobserved_intervals(changes: Iterable[TableChange]) -> list[UnobservedInterval]:
    """What nobody saw of one table, by its changes, oldest first."""
    found = list[UnobservedInterval]()
    for before, after in pairwise(changes):
        until_us, was = unobserved_until_us(before, after), parse_alteration(before.ddl)
        if until_us is not None and was is not None:
            since = max([before.changed_at_us, was.at_us, *parse_unchanged_until_us(after.ddl)])
            found.append(UnobservedInterval(before, Microseconds(min(since, until_us)), until_us))
    return found


def with_unchanged_until(ddl: str, up_to_us: Microseconds) -> str:
    """A definition that is noted with up to when (µs) the one before is known to have stood."""
    return f"{ddl}\n-- as before up to: {format_us(up_to_us)}"


def parse_unchanged_until_us(ddl: str | None) -> list[Microseconds]:
    """Return the time (µs) up to which a definition notes that the one before stood; empty where it notes none."""
    return [parse_time_us(time) for time in _UNCHANGED_UNTIL.findall(ddl or "")]


def without_unchanged_until(ddl: str | None) -> str | None:
    """A definition without what a look at its table does not tell."""
    return None if ddl is None else _UNCHANGED_UNTIL.sub("", ddl).rstrip("\n")


def _options(change: TableChange) -> tuple[object, ...]:
    return change.enabled, change.ttl_seconds, *_OPTIONS.findall(change.ddl or "")
