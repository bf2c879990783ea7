"""What DESCRIBE SCHEMA prints: which tables have a CDC log, their definitions, and, WITH INTERNALS, the IDs of logs.

Statements that are none of a table, and tables that the platform's CQL does not read, tell nothing of CDC. A log that
is printed as a table of its own is there, whether the CDC of its base table is on or not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from uuid import UUID

from cdc_platform.clock import ONE_US, Milliseconds
from cdc_platform.cql import statements as s
from cdc_platform.cql.catalog import Catalog
from cdc_platform.cql.definitions import define
from cdc_platform.cql.names import LOG_SUFFIX
from cdc_platform.cql.parser import read_script
from cdc_platform.cql.schema import LATER_OPTIONS, CdcOptions, SearchIndex
from cdc_platform.cql.search_indexes import SEARCH_CLASSES, enables_cdc
from cdc_platform.cql.table_options import (
    created_at_ms,
    is_log,
    leaves_out_enabled,
    option_map,
    table_id,
    turns_off,
)
from cdc_platform.cql.written import ddl_of
from cdc_platform.errors import InputError, NotFound
from cdc_platform.sources.printed_rows import without_session
from cdc_platform.user_files import too_large

_STATEMENT = re.compile(
    r"(?:\s|--[^\n]*+\n|//[^\n]*+\n|/\*(?:[^*]|\*(?!/))*+\*/)*+(?:CREATE\s+(?:KEYSPACE|TABLE|TYPE)\b|USE\s+(?:\w+|\"\w+\")\s*;)",
    re.IGNORECASE | re.DOTALL,
)

_HEAD = 64 * 1024
"""Characters in which the first statement begins."""

_MOST_SCHEMA = 16 * 1024 * 1024
_LEVELS = re.compile(r"[<\[{(>\]});]")
_DEEPEST = 64

_DEFAULT_TTL = "default_time_to_live"

Name = tuple[str, str]


@dataclass(frozen=True)
class DescribedTable:
    """A table with CDC options, or a log; `created_at_ms` is that of its log, None where its ID does not tell it.

    `ttl_seconds` is None where no options are printed. `is_logged`: its log is printed as a table, or its CDC is on.
    `ddl` makes the base table, with the types that it uses; None where the platform's CQL does not understand it, and
    `unread` says why.
    """

    keyspace: str
    name: str
    enabled: bool
    ttl_seconds: int | None
    created_at_ms: Milliseconds | None = None
    ddl: str | None = None
    unread: str | None = None
    is_logged: bool = False

    @property
    def full_name(self) -> str:
        """`keyspace.table`."""
        return f"{self.keyspace}.{self.name}"


@dataclass(frozen=True)
class DescribedSchema:
    """The tables with CDC options or a log, every table by its ID, where the schema has IDs, and remarks."""

    tables: list[DescribedTable] = field(default_factory=list)
    names: dict[str, Name] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def is_schema(text: str) -> bool:
    """Whether a text begins with a statement that makes a keyspace, a type or a table, or with USE."""
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
    reader = _Reader(source)
    for statement in read_script(text):
        reader.read(statement)
    return reader.schema()


class _Reader:
    """What the statements of a schema have come to so far."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._catalog = Catalog()
        self._options: dict[Name, CdcOptions] = {}
        self._unread: dict[Name, str] = {}
        self._logs: set[Name] = set()
        self._names: dict[str, Name] = {}
        self._warnings: list[str] = []

    def read(self, statement: s.Statement) -> None:
        """Take the next statement.

        Raises:
            InputError: it is of a table that may have a log, and cannot be read.
        """
        body = statement.body
        place = f"{self._source}, line {statement.line}"
        if isinstance(body, s.Unread) and re.search(r"\bcdc\s*=\s*\{", statement.text, re.IGNORECASE):
            raise InputError(f"{place}: {body.error}")
        if isinstance(body, s.Unread) and statement.kind == "CREATE INDEX":
            raise InputError(f"{place}: {body.error}")
        if isinstance(body, s.CreateIndex):
            self._index(body)
        elif isinstance(body, s.Use):
            self._catalog.in_use = body.keyspace
        elif isinstance(body, s.CreateTable):
            self._create(place, body)
        elif isinstance(body, s.AlterProperties):
            self._alter(place, body)
        elif isinstance(body, s.CreateType | s.AddFields | s.RenameFields):
            with suppress(InputError, NotFound):  # the tables that use it say that it is not there
                define(self._catalog, body, ONE_US)
        elif isinstance(body, s.AddColumns | s.DropColumns | s.RenameColumns):
            self._change(self._name(body.name), body)

    def schema(self) -> DescribedSchema:
        """All of it, once the last statement is read."""
        ids = {name: UUID(id_) for id_, name in self._names.items()}
        return DescribedSchema(
            [self._table(name, ids) for name in self._options | dict.fromkeys(sorted(self._logs))],
            self._names,
            self._warnings,
        )

    def _table(self, name: Name, ids: Mapping[Name, UUID]) -> DescribedTable:
        if not name[0]:
            raise InputError(
                f"{self._source}: {name[1]} has no keyspace, and no USE names one; write keyspace.{name[1]}"
            )
        created_ms = created_at_ms(ids.get((name[0], name[1] + LOG_SUFFIX)))
        cdc = self._options.get(name)
        ddl, unread = self._ddl(name, cdc)
        # Of a log alone nobody knows whether rows still come: that they do keeps more.
        enabled = cdc.enabled if cdc is not None else not self._has(name)
        ttl_seconds = None if cdc is None else cdc.ttl
        is_logged = name in self._logs
        return DescribedTable(*name, enabled, ttl_seconds, created_ms, ddl, unread, is_logged)

    def _ddl(self, name: Name, cdc: CdcOptions | None) -> tuple[str | None, str | None]:
        """What makes the table, or why that is not understood."""
        if name in self._unread:
            return None, self._unread[name]
        if not self._has(name):
            return None, f"CREATE TABLE {name[0]}.{name[1]} is not in {self._source}"
        schema = self._catalog.table(s.Name(*name))
        return ddl_of(self._catalog, schema if cdc is None else replace(schema, cdc=cdc)), None

    def _has(self, name: Name) -> bool:
        return name in self._unread or self._catalog.has_table(s.Name(*name))

    def _create(self, place: str, body: s.CreateTable) -> None:
        name = self._name(body.name)
        id_ = table_id(body.properties)
        if id_ is not None:
            self._names[str(id_)] = name
        if is_log(name[1], body.columns):
            self._logs.add((name[0], name[1].removesuffix(LOG_SUFFIX)))
            return
        found = _cdc(place, body.properties)
        if found is not None:
            self._set(name, found)
        # How its rows are stored says nothing of what they are.
        kept = [each for each in body.properties if not isinstance(each, s.Property) or each.name == _DEFAULT_TTL]
        self._change(name, replace(body, properties=tuple(kept)))

    def _index(self, body: s.CreateIndex) -> None:
        """Note a search index. The cluster has it, so that nothing is asked of the table's options."""
        name, class_name = self._name(body.table), body.class_name.lower()
        if class_name not in SEARCH_CLASSES:
            return
        options = self._options.get(name)
        by_index = enables_cdc(class_name) and not (options is not None and options.enabled)
        if by_index:
            self._set(name, replace(options or CdcOptions(), enabled=True))
        if self._catalog.has_table(s.Name(*name)):
            schema = self._catalog.table(s.Name(*name))
            index = SearchIndex(body.name or "_".join((name[1], *body.columns[:1], "idx")), class_name)
            indexes = (*schema.search_indexes, index)
            self._catalog.put(replace(schema, search_indexes=indexes, cdc_by_index=schema.cdc_by_index or by_index))

    def _alter(self, place: str, body: s.AlterProperties) -> None:
        name = self._name(body.name)
        found = None if name[1].endswith(LOG_SUFFIX) else _cdc(place, body.properties)
        if found is None:
            return
        before = self._options.get(name)
        was_on = not self._has(name) if before is None else before.enabled
        if was_on and leaves_out_enabled(body.properties):
            self._warnings.append(f"{place}: {turns_off('.'.join(name))}")
        self._set(name, found)

    def _set(self, name: Name, options: CdcOptions) -> None:
        self._options[name] = options
        if options.enabled:  # its log stays when a later statement turns CDC off
            self._logs.add(name)

    def _change(self, name: Name, body: s.Definition) -> None:
        try:
            define(self._catalog, body, ONE_US)
        except (InputError, NotFound) as error:
            self._unread[name] = str(error)

    def _name(self, name: s.Name) -> Name:
        return name.keyspace or self._catalog.in_use or "", name.name


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


def _cdc(place: str, properties: Iterable[s.TableProperty]) -> CdcOptions | None:
    """The CDC options; None where the statement does not say, or is Cassandra's, whose CDC is another."""
    given = [each.value for each in properties if isinstance(each, s.Property) and each.name == "cdc"]
    if not given or isinstance(given[0], s.Constant):
        return None
    try:
        read = option_map(given[0])
        return CdcOptions.parse({key: value for key, value in read.items() if key.lower() not in LATER_OPTIONS})
    except InputError as error:
        raise InputError(f"{place}: {error}") from None
