"""Parse the output of DESCRIBE SCHEMA: CDC-enabled tables, their definitions and, WITH INTERNALS, the IDs of logs.

Other statements, and tables that the platform's CQL does not read, say nothing about CDC. A log that is printed as
a table exists, whether CDC is on or off.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from uuid import UUID

from cdc_platform.clock import ONE_US, Milliseconds
from cdc_platform.cql import (
    CLUSTER_ONLY_OPTIONS,
    LOG_SUFFIX,
    SEARCH_INDEX_CLASSES,
    Catalog,
    CdcOptions,
    SearchIndex,
    apply_definition,
    creation_ms_from_id,
    explain_cdc_turned_off,
    format_ddl,
    get_table_id,
    index_enables_cdc,
    is_cdc_log,
    omits_enabled,
    parse_leniently,
    parse_option_map,
)
from cdc_platform.cql import ast as s
from cdc_platform.errors import InputError, NotFound
from cdc_platform.importing.formats.cqlsh_output import strip_session
from cdc_platform.storage import too_large_error

_STATEMENT = re.compile(
    r"(?:\s|--[^\n]*+\n|//[^\n]*+\n|/\*(?:[^*]|\*(?!/))*+\*/)*+(?:CREATE\s+(?:KEYSPACE|TABLE|TYPE)\b|USE\s+(?:\w+|\"\w+\")\s*;)",
    re.IGNORECASE | re.DOTALL,
)

_HEAD = 64 * 1024
"""Characters in which the first statement begins."""

_MAX_SCHEMA_LENGTH = 16 * 1024 * 1024
_BRACKETS = re.compile(r"[<\[{(>\]});]")
_MAX_DEPTH = 64

_DEFAULT_TTL = "default_time_to_live"

_TableName = tuple[str, str]


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
    names: dict[str, _TableName] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def is_schema_text(text: str) -> bool:
    """Whether a text begins with a statement that makes a keyspace, a type or a table, or with USE."""
    return _STATEMENT.match(strip_session(text[:_HEAD])) is not None


def parse_schema_text(source: str, text: str) -> DescribedSchema:
    """The tables that a schema has.

    Raises:
        InputError: the text is no CQL, or a table that may have a log cannot be read.
    """
    if len(text) > _MAX_SCHEMA_LENGTH:
        raise too_large_error(source, _MAX_SCHEMA_LENGTH)
    text = strip_session(text)
    _assert_shallow(source, text)
    reader = _SchemaReader(source)
    for statement in parse_leniently(text):
        reader.read(statement)
    return reader.schema()


class _SchemaReader:
    """What the statements of a schema have come to so far."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._catalog = Catalog()
        self._options: dict[_TableName, CdcOptions] = {}
        self._unread: dict[_TableName, str] = {}
        self._logs: set[_TableName] = set()
        self._names: dict[str, _TableName] = {}
        self._warnings: list[str] = []

    def read(self, statement: s.Statement) -> None:
        """Take the next statement.

        Raises:
            InputError: it is of a table that may have a log, and cannot be read.
        """
        body = statement.body
        place = f"{self._source}, line {statement.line}"
        if isinstance(body, s.UnsupportedStatement) and re.search(r"\bcdc\s*=\s*\{", statement.text, re.IGNORECASE):
            raise InputError(f"{place}: {body.error}")
        if isinstance(body, s.UnsupportedStatement) and statement.kind == "CREATE INDEX":
            raise InputError(f"{place}: {body.error}")
        if isinstance(body, s.CreateIndex):
            self._index(body)
        elif isinstance(body, s.UseKeyspace):
            self._catalog.in_use = body.keyspace
        elif isinstance(body, s.CreateTable):
            self._create(place, body)
        elif isinstance(body, s.AlterProperties):
            self._alter(place, body)
        elif isinstance(body, s.CreateType | s.AddFields | s.RenameFields):
            with suppress(InputError, NotFound):  # the tables that use it say that it is not there
                apply_definition(self._catalog, body, ONE_US)
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

    def _table(self, name: _TableName, ids: Mapping[_TableName, UUID]) -> DescribedTable:
        if not name[0]:
            raise InputError(
                f"{self._source}: {name[1]} has no keyspace, and no USE names one; write keyspace.{name[1]}"
            )
        created_ms = creation_ms_from_id(ids.get((name[0], name[1] + LOG_SUFFIX)))
        cdc = self._options.get(name)
        ddl, unread = self._ddl(name, cdc)
        # Of a log alone nobody knows whether rows still come: that they do keeps more.
        enabled = cdc.enabled if cdc is not None else not self._has(name)
        ttl_seconds = None if cdc is None else cdc.ttl
        is_logged = name in self._logs
        return DescribedTable(*name, enabled, ttl_seconds, created_ms, ddl, unread, is_logged)

    def _ddl(self, name: _TableName, cdc: CdcOptions | None) -> tuple[str | None, str | None]:
        """What makes the table, or why that is not understood."""
        if name in self._unread:
            return None, self._unread[name]
        if not self._has(name):
            return None, f"CREATE TABLE {name[0]}.{name[1]} is not in {self._source}"
        schema = self._catalog.table(s.QualifiedName(*name))
        return format_ddl(self._catalog, schema if cdc is None else replace(schema, cdc=cdc)), None

    def _has(self, name: _TableName) -> bool:
        return name in self._unread or self._catalog.has_table(s.QualifiedName(*name))

    def _create(self, place: str, body: s.CreateTable) -> None:
        name = self._name(body.name)
        id_ = get_table_id(body.properties)
        if id_ is not None:
            self._names[str(id_)] = name
        if is_cdc_log(name[1], body.columns):
            self._logs.add((name[0], name[1].removesuffix(LOG_SUFFIX)))
            return
        found = _parse_cdc_options(place, body.properties)
        if found is not None:
            self._set(name, found)
        # How its rows are stored says nothing of what they are.
        kept = [each for each in body.properties if not isinstance(each, s.NamedProperty) or each.name == _DEFAULT_TTL]
        self._change(name, replace(body, properties=tuple(kept)))

    def _index(self, body: s.CreateIndex) -> None:
        """Note a search index. The cluster has it, so that nothing is asked of the table's options."""
        name, class_name = self._name(body.table), body.class_name.lower()
        if class_name not in SEARCH_INDEX_CLASSES:
            return
        options = self._options.get(name)
        by_index = index_enables_cdc(class_name) and not (options is not None and options.enabled)
        if by_index:
            self._set(name, replace(options or CdcOptions(), enabled=True))
        if self._catalog.has_table(s.QualifiedName(*name)):
            schema = self._catalog.table(s.QualifiedName(*name))
            index = SearchIndex(body.name or "_".join((name[1], *body.columns[:1], "idx")), class_name)
            indexes = (*schema.search_indexes, index)
            self._catalog.put(replace(schema, search_indexes=indexes, cdc_by_index=schema.cdc_by_index or by_index))

    def _alter(self, place: str, body: s.AlterProperties) -> None:
        name = self._name(body.name)
        found = None if name[1].endswith(LOG_SUFFIX) else _parse_cdc_options(place, body.properties)
        if found is None:
            return
        before = self._options.get(name)
        was_on = not self._has(name) if before is None else before.enabled
        if was_on and omits_enabled(body.properties):
            self._warnings.append(f"{place}: {explain_cdc_turned_off('.'.join(name))}")
        self._set(name, found)

    def _set(self, name: _TableName, options: CdcOptions) -> None:
        self._options[name] = options
        if options.enabled:  # its log stays when a later statement turns CDC off
            self._logs.add(name)

    def _change(self, name: _TableName, body: s.DefinitionStatement) -> None:
        try:
            apply_definition(self._catalog, body, ONE_US)
        except (InputError, NotFound) as error:
            self._unread[name] = str(error)

    def _name(self, name: s.QualifiedName) -> _TableName:
        return name.keyspace or self._catalog.in_use or "", name.name


def _assert_shallow(source: str, text: str) -> None:
    """Refuse what the grammar would need much memory to refuse."""
    level = 0
    for found in _BRACKETS.finditer(text):
        # A bracket in a comment has no other: each statement begins anew.
        level = 0 if found[0] == ";" else level + (1 if found[0] in "<[{(" else -1)
        if level > _MAX_DEPTH:
            line = text.count("\n", 0, found.start()) + 1
            raise InputError(
                f"{source}, line {line}: a type or value is nested more than {_MAX_DEPTH} deep; no table's is"
            )


def _parse_cdc_options(place: str, properties: Iterable[s.TableProperty]) -> CdcOptions | None:
    """The CDC options; None where the statement does not say, or is Cassandra's, whose CDC is another."""
    given = [each.value for each in properties if isinstance(each, s.NamedProperty) and each.name == "cdc"]
    if not given or isinstance(given[0], s.Constant):
        return None
    try:
        read = parse_option_map(given[0])
        return CdcOptions.parse({key: value for key, value in read.items() if key.lower() not in CLUSTER_ONLY_OPTIONS})
    except InputError as error:
        raise InputError(f"{place}: {error}") from None
