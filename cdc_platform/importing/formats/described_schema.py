"""Parse the output of DESCRIBE SCHEMA: CDC-enabled tables, their definitions and, WITH INTERNALS, the IDs of logs.

Other statements, and tables that the platform's CQL cannot parse, say nothing about CDC. A log that is printed as a
table exists, whether CDC is on or off.
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
from cdc_platform.importing.formats.text_tables import strip_session
from cdc_platform.storage import too_large_error

_STATEMENT = re.compile(
    r"(?:\s|--[^\n]*+\n|//[^\n]*+\n|/\*(?:[^*]|\*(?!/))*+\*/)*+(?:CREATE\s+(?:KEYSPACE|TABLE|TYPE)\b|USE\s+(?:\w+|\"\w+\")\s*;)",
    re.IGNORECASE | re.DOTALL,
)

_HEAD = 64 * 1024
"""The number of characters in which the first statement must begin."""

_MAX_SCHEMA_LENGTH = 16 * 1024 * 1024
_BRACKETS = re.compile(r"[<\[{(>\]});]")
_MAX_DEPTH = 64

_DEFAULT_TTL = "default_time_to_live"

_TableName = tuple[str, str]


@dataclass(frozen=True)
class DescribedTable:
    """A table with CDC options, or a log; `created_at_ms` is the log's creation time, None if its ID does not show it.

    `ttl_seconds` is None if no options are printed. `is_logged`: its log is printed as a table, or its CDC is on. `ddl`
    creates the base table, with the types that it uses; it is None if the platform's CQL does not support it, and
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
        """Return `keyspace.table`."""
        return f"{self.keyspace}.{self.name}"


@dataclass(frozen=True)
class DescribedSchema:
    """The tables with CDC options or a log, the names of all tables by ID (if the schema has IDs), and warnings."""

    tables: list[DescribedTable] = field(default_factory=list)
    names: dict[str, _TableName] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def is_schema_text(text: str) -> bool:
    """Return True if a text begins with a statement that creates a keyspace, a type or a table, or with USE."""
    return _STATEMENT.match(strip_session(text[:_HEAD])) is not None


def parse_schema_text(source: str, text: str) -> DescribedSchema:
    """Return the tables of a schema.

    Raises:
        InputError: the text is not CQL, or a table that may have a log cannot be parsed.
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
    """The state of a schema after the statements read so far."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._catalog = Catalog()
        self._options: dict[_TableName, CdcOptions] = {}
        self._unread: dict[_TableName, str] = {}
        self._logs: set[_TableName] = set()
        self._names: dict[str, _TableName] = {}
        self._warnings: list[str] = []

    def read(self, statement: s.Statement) -> None:
        """Apply the next statement.

        Raises:
            InputError: it defines a table that may have a log, and cannot be parsed.
        """
        body = statement.body
        location = f"{self._source}, line {statement.line}"
        if isinstance(body, s.UnsupportedStatement) and re.search(r"\bcdc\s*=\s*\{", statement.text, re.IGNORECASE):
            raise InputError(f"{location}: {body.error}")
        if isinstance(body, s.UnsupportedStatement) and statement.kind == "CREATE INDEX":
            raise InputError(f"{location}: {body.error}")
        if isinstance(body, s.CreateIndex):
            self._index(body)
        elif isinstance(body, s.UseKeyspace):
            self._catalog.in_use = body.keyspace
        elif isinstance(body, s.CreateTable):
            self._create(location, body)
        elif isinstance(body, s.AlterProperties):
            self._alter(location, body)
        elif isinstance(body, s.CreateType | s.AddFields | s.RenameFields):
            with suppress(InputError, NotFound):  # the tables that use it report that it is missing
                apply_definition(self._catalog, body, ONE_US)
        elif isinstance(body, s.AddColumns | s.DropColumns | s.RenameColumns):
            self._change(self._name(body.name), body)

    def schema(self) -> DescribedSchema:
        """Return the whole schema, after the last statement."""
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
        # For a log alone it is unknown whether rows still arrive; assuming that they do retains more.
        enabled = cdc.enabled if cdc is not None else not self._has(name)
        ttl_seconds = None if cdc is None else cdc.ttl
        is_logged = name in self._logs
        return DescribedTable(*name, enabled, ttl_seconds, created_ms, ddl, unread, is_logged)

    def _ddl(self, name: _TableName, cdc: CdcOptions | None) -> tuple[str | None, str | None]:
        """Return the table's definition, or why it cannot be parsed."""
        if name in self._unread:
            return None, self._unread[name]
        if not self._has(name):
            return None, f"CREATE TABLE {name[0]}.{name[1]} is not in {self._source}"
        schema = self._catalog.table(s.QualifiedName(*name))
        return format_ddl(self._catalog, schema if cdc is None else replace(schema, cdc=cdc)), None

    def _has(self, name: _TableName) -> bool:
        return name in self._unread or self._catalog.has_table(s.QualifiedName(*name))

    def _create(self, location: str, body: s.CreateTable) -> None:
        name = self._name(body.name)
        id_ = get_table_id(body.properties)
        if id_ is not None:
            self._names[str(id_)] = name
        if is_cdc_log(name[1], body.columns):
            self._logs.add((name[0], name[1].removesuffix(LOG_SUFFIX)))
            return
        options = _parse_cdc_options(location, body.properties)
        if options is not None:
            self._set(name, options)
        # Storage properties do not affect the meaning of rows.
        properties = [
            property_
            for property_ in body.properties
            if not isinstance(property_, s.NamedProperty) or property_.name == _DEFAULT_TTL
        ]
        self._change(name, replace(body, properties=tuple(properties)))

    def _index(self, body: s.CreateIndex) -> None:
        """Record a search index. The cluster has accepted it, so the table's options are not checked."""
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

    def _alter(self, location: str, body: s.AlterProperties) -> None:
        name = self._name(body.name)
        options = None if name[1].endswith(LOG_SUFFIX) else _parse_cdc_options(location, body.properties)
        if options is None:
            return
        existing = self._options.get(name)
        was_on = not self._has(name) if existing is None else existing.enabled
        if was_on and omits_enabled(body.properties):
            self._warnings.append(f"{location}: {explain_cdc_turned_off('.'.join(name))}")
        self._set(name, options)

    def _set(self, name: _TableName, options: CdcOptions) -> None:
        self._options[name] = options
        if options.enabled:  # its log remains when a later statement turns CDC off
            self._logs.add(name)

    def _change(self, name: _TableName, body: s.DefinitionStatement) -> None:
        try:
            apply_definition(self._catalog, body, ONE_US)
        except (InputError, NotFound) as error:
            self._unread[name] = str(error)

    def _name(self, name: s.QualifiedName) -> _TableName:
        return name.keyspace or self._catalog.in_use or "", name.name


def _assert_shallow(source: str, text: str) -> None:
    """Refuse text that the grammar would need much memory to refuse."""
    level = 0
    for bracket in _BRACKETS.finditer(text):
        # An unbalanced bracket may be in a comment, so each statement starts at level 0.
        level = 0 if bracket[0] == ";" else level + (1 if bracket[0] in "<[{(" else -1)
        if level > _MAX_DEPTH:
            line = text.count("\n", 0, bracket.start()) + 1
            raise InputError(
                f"{source}, line {line}: a type or value is nested more than {_MAX_DEPTH} deep; no table's is"
            )


def _parse_cdc_options(location: str, properties: Iterable[s.TableProperty]) -> CdcOptions | None:
    """Return the CDC options, or None if the statement has none, or has Cassandra's, whose CDC differs."""
    values = [
        property_.value
        for property_ in properties
        if isinstance(property_, s.NamedProperty) and property_.name == "cdc"
    ]
    if not values or isinstance(values[0], s.Constant):
        return None
    try:
        option_map = parse_option_map(values[0])
        return CdcOptions.parse(
            {key: value for key, value in option_map.items() if key.lower() not in CLUSTER_ONLY_OPTIONS}
        )
    except InputError as error:
        raise InputError(f"{location}: {error}") from None
