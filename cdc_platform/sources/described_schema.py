"""What DESCRIBE SCHEMA prints: which tables have a CDC log, their definitions, and, WITH INTERNALS, the IDs of logs.

Statements that are none of a table, and tables that the platform's CQL does not read, tell nothing of CDC.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field, replace
from uuid import UUID

from cdc_platform.clock import ONE_US, Milliseconds, ms_of
from cdc_platform.cql import statements as s
from cdc_platform.cql.catalog import Catalog
from cdc_platform.cql.definitions import define
from cdc_platform.cql.names import LOG_SUFFIX
from cdc_platform.cql.parser import read_script
from cdc_platform.cql.scalars import timeuuid_us
from cdc_platform.cql.schema import CdcOptions
from cdc_platform.cql.table_options import option_map
from cdc_platform.cql.written import ddl_of
from cdc_platform.errors import InputError, NotFound
from cdc_platform.sources.printed_rows import without_session
from cdc_platform.user_files import too_large

_STATEMENT = re.compile(
    r"(?:\s|--[^\n]*\n|//[^\n]*\n|/\*.*?\*/)*+CREATE\s+(?:KEYSPACE|TABLE|TYPE)\b", re.IGNORECASE | re.DOTALL
)

_HEAD = 64 * 1024
"""Characters in which the first statement begins."""

_MOST_SCHEMA = 16 * 1024 * 1024
_LEVELS = re.compile(r"[<\[{(>\]});]")
_DEEPEST = 64

_KNOWN = ("enabled", "preimage", "postimage", "delta", "ttl")
_DEFAULT_TTL = "default_time_to_live"

Name = tuple[str, str]


@dataclass(frozen=True)
class DescribedTable:
    """A table with CDC options; `created_at_ms` is that of its log, None where its ID does not tell it.

    `ddl` makes it, with the types that it uses; None where the platform's CQL does not understand it, and `unread` says
    why.
    """

    keyspace: str
    name: str
    enabled: bool
    ttl_seconds: int
    created_at_ms: Milliseconds | None = None
    ddl: str | None = None
    unread: str | None = None


@dataclass(frozen=True)
class DescribedSchema:
    """The tables with CDC options, and every table by its ID, where the schema has IDs."""

    tables: list[DescribedTable] = field(default_factory=list)
    names: dict[str, Name] = field(default_factory=dict)


def is_schema(text: str) -> bool:
    """Whether a text begins with a statement that makes a keyspace, a type or a table."""
    return _STATEMENT.match(without_session(text[:_HEAD])) is not None


def parse_schema(source: str, text: str) -> DescribedSchema:
    """The tables that a schema has.

    Raises:
        InputError: the text is no CQL, or a table that may have a log cannot be read.
    """
    if len(text) > _MOST_SCHEMA:
        raise too_large(source, _MOST_SCHEMA)
    text = without_session(text)
    _assert_shallow(source, text)
    options: dict[Name, tuple[CdcOptions, str | None, str | None]] = {}
    catalog = Catalog()
    names: dict[str, Name] = {}
    for statement in read_script(text):
        body = statement.body
        place = f"{source}, line {statement.line}"
        if isinstance(body, s.Unread) and re.search(r"\bcdc\s*=\s*\{", statement.text, re.IGNORECASE):
            raise InputError(f"{place}: {body.error}")
        if isinstance(body, s.CreateType):
            with suppress(InputError, NotFound):  # the tables that use it say that it is not there
                define(catalog, body, ONE_US)
        if not isinstance(body, s.CreateTable):
            continue
        name = body.name.keyspace or "", body.name.name
        id_ = _id(body)
        if id_ is not None:
            names[str(id_)] = name
        found = _cdc(place, body)
        if found is not None:
            options[name] = found, *_ddl(catalog, body, found)
    ids = {name: UUID(id_) for id_, name in names.items()}
    tables = [
        DescribedTable(
            *name, cdc.enabled, cdc.ttl, _created_ms(ids.get((name[0], name[1] + LOG_SUFFIX))), ddl=ddl, unread=unread
        )
        for name, (cdc, ddl, unread) in options.items()
    ]
    return DescribedSchema(tables, names)


def _assert_shallow(source: str, text: str) -> None:
    """Refuse what the grammar would need much memory to refuse."""
    level = 0
    for found in _LEVELS.finditer(text):
        # A bracket in a comment has no other: each statement begins anew.
        level = 0 if found[0] == ";" else level + (1 if found[0] in "<[{(" else -1)
        if level > _DEEPEST:
            line = text.count("\n", 0, found.start()) + 1
            raise InputError(
                f"{source}, line {line}: a type or value is nested more than {_DEEPEST} deep; no table's is"
            )


def _ddl(catalog: Catalog, body: s.CreateTable, cdc: CdcOptions) -> tuple[str | None, str | None]:
    """What makes the table, or why that is not understood. How its rows are stored says nothing of what they are."""
    kept = [each for each in body.properties if not isinstance(each, s.Property) or each.name == _DEFAULT_TTL]
    try:
        schema = define(catalog, replace(body, properties=tuple(kept)), ONE_US)
        assert schema is not None
        return ddl_of(catalog, replace(schema, cdc=cdc)), None
    except (InputError, NotFound) as error:
        return None, str(error)


def _cdc(place: str, body: s.CreateTable) -> CdcOptions | None:
    """The CDC options; None where the table does not say, or is Cassandra's, whose CDC is another."""
    given = [each.value for each in body.properties if isinstance(each, s.Property) and each.name == "cdc"]
    if not given or isinstance(given[0], s.Constant):
        return None
    try:
        # What later versions have added says nothing of logs and their rows.
        return CdcOptions.parse({key: value for key, value in option_map(given[0]).items() if key.lower() in _KNOWN})
    except InputError as error:
        raise InputError(f"{place}: {error}") from None


def _id(body: s.CreateTable) -> UUID | None:
    for each in body.properties:
        if isinstance(each, s.Property) and each.name == "id" and isinstance(each.value, s.Constant):
            return UUID(str(each.value.value))
    return None


def _created_ms(id_: UUID | None) -> Milliseconds | None:
    """When a table was made (ms), which a timeuuid as its ID tells."""
    return ms_of(timeuuid_us(id_)) if id_ is not None and id_.version == 1 else None
