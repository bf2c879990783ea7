"""CREATE, ALTER and DROP: their effect on a catalog, and the CQL that recreates a table.

All checks run before any change. Rows of tables are not touched. Written CQL contains the user types first; comments
record truncation and a new log, while creation time and recently dropped columns are left out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import singledispatch
from itertools import chain

from cdc_platform.clock import SECOND_US, Microseconds, format_us
from cdc_platform.cql import ast as s
from cdc_platform.cql.catalog import Catalog, Keyspace
from cdc_platform.cql.names import LOG_SUFFIX, check_name, format_table_name, is_alternator_table, quote_name
from cdc_platform.cql.schema import (
    DEFAULT_CDC_TTL,
    LOG_PRIMARY_KEY,
    CdcOptions,
    Column,
    ColumnKind,
    SearchIndex,
    TableSchema,
    alter_row_ttl,
    creation_ms_from_id,
    drop_lost_row_ttl,
    get_default_ttl,
    get_log_columns,
    get_table_id,
    is_cdc_log,
    omits_enabled,
    parse_cdc_options,
    parse_option_map,
    set_row_ttl,
)
from cdc_platform.cql.search_indexes import (
    SEARCH_INDEX_CLASSES,
    add_search_index,
    check_index_class,
    remove_search_index,
    set_cdc_options,
)
from cdc_platform.cql.types import COUNTER, CqlType, UserType, list_alternatives
from cdc_platform.errors import InputError, NotFound

_DROP_GRACE_US = SECOND_US * 5
"""A dropped column counts as dropped until this long after now, so that no write in flight can restore it."""
DEFAULT_TABLETS = 8


def apply_definition(catalog: Catalog, body: s.DefinitionStatement, now_us: Microseconds) -> TableSchema | None:
    """Apply a definition at `now_us` (µs); return the table that it created or changed, or None.

    Raises:
        InputError, NotFound: it is not allowed; nothing was changed.
    """
    return _apply(body, catalog, now_us)


@singledispatch
def _apply(body: s.DefinitionStatement, catalog: Catalog, now_us: Microseconds) -> TableSchema | None:
    raise TypeError(body)


@_apply.register
def _create_keyspace(body: s.CreateKeyspace, catalog: Catalog, now_us: Microseconds) -> None:
    check_name(body.name, "keyspace")
    if body.name in catalog.keyspaces:
        if not body.if_not_exists:
            raise InputError(f"keyspace {body.name} exists already; use IF NOT EXISTS, or DROP it first")
        return
    catalog.keyspaces[body.name] = Keyspace(body.name, _initial_tablets(body), declared=True)


def _initial_tablets(body: s.CreateKeyspace) -> int | None:
    """Return how many tablets a table of the keyspace has; None without tablets."""
    options = [
        parse_option_map(part.value)
        for part in body.properties
        if isinstance(part, s.NamedProperty) and part.name == "tablets"
    ]
    if not options or not _tablets_enabled(body.name, options[-1].get("enabled", "true")):
        return None
    initial = options[-1].get("initial", "0")
    if not initial.isdigit() or int(initial) > 100_000:
        raise InputError(f"keyspace {body.name}: {initial!r} is no number of tablets; 'initial' is from 0 to 100000")
    return int(initial) or DEFAULT_TABLETS


def _tablets_enabled(keyspace: str, enabled: str) -> bool:
    known = {"true": True, "false": False}
    if enabled.lower() not in known:
        raise InputError(f"keyspace {keyspace}: {enabled!r} is no value of the tablets option 'enabled': true or false")
    return known[enabled.lower()]


@_apply.register
def _create_type(body: s.CreateType, catalog: Catalog, now_us: Microseconds) -> None:
    keyspace, name = catalog.qualified(body.name)
    check_name(name, "type")
    types = catalog.making(keyspace).types
    if name in types:
        if not body.if_not_exists:
            raise InputError(f"type {keyspace}.{name} exists already; use IF NOT EXISTS, or DROP it first")
        return
    types[name] = UserType(keyspace, name, _type_fields(catalog, keyspace, name, (), body.fields))


def _type_fields(
    catalog: Catalog,
    keyspace: str,
    name: str,
    known: tuple[tuple[str, CqlType], ...],
    added: Iterable[tuple[str, s.TypeName]],
) -> tuple[tuple[str, CqlType], ...]:
    fields = list(known)
    for field, written in added:
        if field in (other for other, _ in fields):
            raise InputError(f"type {keyspace}.{name} has two fields {field}; give each its own name")
        kind = catalog.type_of(written, keyspace)
        if kind == COUNTER:
            raise InputError(f"field {field} of type {keyspace}.{name} cannot be a counter")
        if isinstance(kind, UserType) and kind.multicell:
            raise InputError(
                f"field {field} of type {keyspace}.{name} is a user type and has to be frozen: frozen<{kind.name}>"
            )
        fields.append((field, kind))
    return tuple(fields)


def _get_user_type(catalog: Catalog, name: s.QualifiedName) -> UserType:
    keyspace, plain = catalog.qualified(name)
    types = catalog.keyspaces[keyspace].types if keyspace in catalog.keyspaces else {}
    if plain not in types:
        raise NotFound(f"unknown type {keyspace}.{plain}; {list_alternatives(types)}", lacks=f"type {keyspace}.{plain}")
    return types[plain]


@_apply.register
def _add_fields(body: s.AddFields, catalog: Catalog, now_us: Microseconds) -> None:
    old = _get_user_type(catalog, body.name)
    for field, written in body.fields:
        if _uses_type([catalog.type_of(written, old.keyspace)], old.name):
            raise InputError(f"field {field} would make type {old.keyspace}.{old.name} a part of itself; leave it out")
    _replace_type(catalog, replace(old, fields=_type_fields(catalog, old.keyspace, old.name, old.fields, body.fields)))


@_apply.register
def _rename_fields(body: s.RenameFields, catalog: Catalog, now_us: Microseconds) -> None:
    old = _get_user_type(catalog, body.name)
    renames = dict(body.renames)
    for name in renames:
        old.index_of(name)
    fields = tuple((renames.get(name, name), kind) for name, kind in old.fields)
    if len({name for name, _ in fields}) < len(fields):
        raise InputError(f"type {old.keyspace}.{old.name} would have two fields of one name")
    _replace_type(catalog, replace(old, fields=fields))


def _replace_type(catalog: Catalog, new: UserType) -> None:
    """Replace a changed type wherever it is used; a field's index never changes."""
    keyspace = catalog.keyspace(new.keyspace)
    for name, kind in keyspace.types.items():
        replaced = kind.replaced(new)
        assert isinstance(replaced, UserType)
        keyspace.types[name] = replaced
    for name, schema in keyspace.tables.items():
        columns = tuple(replace(column, type=column.type.replaced(new)) for column in schema.columns)
        keyspace.tables[name] = replace(schema, columns=columns)


@_apply.register
def _create_table(body: s.CreateTable, catalog: Catalog, now_us: Microseconds) -> TableSchema | None:
    keyspace, name = catalog.qualified(body.name)
    options = parse_cdc_options(body.properties) or CdcOptions()
    if name.endswith(LOG_SUFFIX):
        if options.enabled:
            raise InputError(
                f"Cannot create CDC log for table {keyspace}.{name}: it is named like a log, and logs have none"
                " themselves"
            )
        base = catalog.base_of_log(body.name)
        if base is not None and not base.cdc.enabled and is_cdc_log(name, body.columns):
            return _attach_log(catalog, base, body)
        if base is not None and base.cdc.enabled:  # cdc/log.cc, is_log_for_some_table
            raise InputError(f"{keyspace}.{name} is the name of the log of {base.full_name}; choose another one")
    if not is_alternator_table(keyspace, name):
        check_name(name, "table")
    if catalog.has_table(body.name):
        if not body.if_not_exists:
            raise InputError(f"table {keyspace}.{name} exists already; use IF NOT EXISTS, or DROP it first")
        return catalog.table(body.name)
    ttl = get_default_ttl(body.properties) or 0
    says_enabled = parse_cdc_options(body.properties) is not None and not omits_enabled(body.properties)
    turned_off = says_enabled and not options.enabled
    columns = _table_columns(catalog, keyspace, body)
    schema = TableSchema(keyspace, name, columns, options, now_us, default_ttl=ttl, cdc_turned_off=turned_off)
    return _put_table(catalog, set_row_ttl(schema, body.columns))


def _attach_log(catalog: Catalog, base: TableSchema, body: s.CreateTable) -> TableSchema:
    """Treat a log that DESCRIBE prints as a separate table as the log of its base table, whose CDC is off."""
    created_ms = creation_ms_from_id(get_table_id(body.properties))
    schema = replace(base, has_old_log=True, old_log_ms=created_ms)
    catalog.put(schema)
    return schema


def _table_columns(catalog: Catalog, keyspace: str, body: s.CreateTable) -> tuple[Column, ...]:
    key = _primary_key(body)
    names = [column.name for column in body.columns]
    for name, count in Counter(names).items():
        if count > 1:
            raise InputError(f"column {name} is defined {count} times; give each column its own name")
    for name, count in Counter((*key.partition, *key.clustering)).items():
        if name not in names:
            raise InputError(f"column {name} of the primary key is not defined; {list_alternatives(names)}")
        if count > 1:
            raise InputError(f"column {name} is in the primary key {count} times")
    descending = _descending_columns(body, key)
    partition: dict[str, ColumnKind] = dict.fromkeys(key.partition, "partition")
    clustering: dict[str, ColumnKind] = dict.fromkeys(key.clustering, "clustering")
    kinds = partition | clustering
    by_name: dict[str, Column] = {}
    for column in body.columns:
        kind = kinds.get(column.name, "static" if column.static else "regular")
        if column.static and kind != "static":
            raise InputError(f"column {column.name} is in the primary key and cannot be static")
        type_ = catalog.type_of(column.type, keyspace)
        by_name[column.name] = Column(column.name, type_, kind, column.name in descending)
    ordered = (*key.partition, *key.clustering)
    return (*(by_name[name] for name in ordered), *(by_name[name] for name in names if name not in ordered))


def _primary_key(body: s.CreateTable) -> s.PrimaryKey:
    marked = [s.PrimaryKey((column.name,), ()) for column in body.columns if column.primary_key]
    keys = [*marked, *body.keys]
    if len(keys) != 1:
        raise InputError(f"the table has {len(keys)} primary keys; define one, as in PRIMARY KEY (pk, ck)")
    return keys[0]


def _descending_columns(body: s.CreateTable, key: s.PrimaryKey) -> set[str]:
    orders = [part.columns for part in body.properties if isinstance(part, s.ClusteringOrder)]
    if any(isinstance(part, s.CompactStorage) for part in body.properties):
        # ScyllaDB rejects it (scylladb#16403), and no source documents what else such a table's log contains (#8988).
        raise InputError(
            "COMPACT STORAGE is not done: ScyllaDB refuses it unless enable_create_table_with_compact_storage is set,"
            " and how such a table's writes are logged is not documented; leave it out"
        )
    if not orders:
        return set()
    if len(orders) > 1:
        raise InputError(f"CLUSTERING ORDER BY is given {len(orders)} times; give it once")
    names = tuple(name for name, _ in orders[0])
    if names != key.clustering[: len(names)]:
        raise InputError(
            f"CLUSTERING ORDER BY names ({', '.join(names)}); it must name the clustering columns "
            f"({', '.join(key.clustering)}), or the first of them, in their order and each once"
        )
    return {name for name, down in orders[0] if down}


def _check_table(schema: TableSchema) -> None:
    for column in schema.columns:
        _check_column(schema, column)
    values = [*schema.statics, *schema.regulars]
    counters = [column for column in values if column.type == COUNTER]
    if counters and schema.cdc.enabled:
        raise InputError(
            f"Cannot create CDC log for table {schema.full_name}. Counter support not implemented: ScyllaDB refuses "
            f"the statement and changes nothing; without cdc the table can be created, and its writes are in no log"
        )
    if counters and len(counters) < len(values):
        raise InputError(f"{schema.full_name} mixes counters with other columns; besides its key it has either")
    if schema.cdc.enabled:
        _check_log_columns(schema)


def _check_column(schema: TableSchema, column: Column) -> None:
    check_name(column.name, "column", most=255)
    kind = column.type
    if column.is_key:
        if kind.multicell:
            raise InputError(
                f"column {column.name} is in the primary key, so that {kind.cql} has to be frozen<{kind.cql}>"
            )
        if kind == COUNTER or not kind.comparable:
            raise InputError(f"column {column.name} is in the primary key and cannot be of type {kind.cql}")
    if column.kind == "static" and not schema.clustering_key:
        raise InputError(f"column {column.name} is static, but {schema.full_name} has no clustering columns")
    if isinstance(kind, UserType) and kind.multicell:
        melted = [name for name, part in kind.fields if part.multicell]
        if melted:
            raise InputError(
                f"column {column.name}: field {melted[0]} of {kind.name} is a collection that is not frozen; freeze the"
                f" column, frozen<{kind.name}>, or the field"
            )


def _check_log_columns(schema: TableSchema) -> None:
    duplicates = [
        name for name, count in Counter(column.name for column in get_log_columns(schema)).items() if count > 1
    ]
    if duplicates:
        raise InputError(
            f"the log of {schema.full_name} would have two columns {duplicates[0]}; rename the base table's"
        )


@_apply.register
def _add_columns(body: s.AddColumns, catalog: Catalog, now_us: Microseconds) -> TableSchema:
    schema = catalog.table(body.name)
    columns = list(schema.columns)
    for added in body.columns:
        if added.name in (column.name for column in columns):
            raise InputError(f"{schema.full_name} has a column {added.name} already; choose another name")
        _check_not_dropped_lately(schema, added.name, now_us)
        kind = catalog.type_of(added.type, schema.keyspace)
        columns.append(Column(added.name, kind, "static" if added.static else "regular"))
    return _put_table(catalog, replace(schema, columns=tuple(columns)))


def _check_not_dropped_lately(schema: TableSchema, name: str, now_us: Microseconds) -> None:
    for dropped, until_us in schema.dropped:
        if dropped == name and until_us > now_us:
            seconds = -((now_us - until_us) // SECOND_US)
            raise InputError(
                f"column {name} of {schema.full_name} was dropped too recently to be added again; retry after {seconds}"
                f" seconds, at {format_us(until_us)}"
            )


@_apply.register
def _drop_columns(body: s.DropColumns, catalog: Catalog, now_us: Microseconds) -> TableSchema:
    schema = catalog.table(body.name)
    for name in body.columns:
        if schema.column(name).is_key:
            raise InputError(f"column {name} is in the primary key of {schema.full_name} and cannot be dropped")
    remaining = tuple(column for column in schema.columns if column.name not in body.columns)
    dropped = (*schema.dropped, *((name, now_us + _DROP_GRACE_US) for name in body.columns))
    return _put_table(catalog, drop_lost_row_ttl(replace(schema, columns=remaining, dropped=dropped)))


@_apply.register
def _rename_columns(body: s.RenameColumns, catalog: Catalog, now_us: Microseconds) -> TableSchema:
    """Rename key columns only, all names at once (cql3/statements/alter_table_statement.cc, rename)."""
    schema = catalog.table(body.name)
    for old, new in body.renames:
        if not schema.column(old).is_key:
            raise InputError(
                f"Cannot rename non PRIMARY KEY part {old} of {schema.full_name}; add a column and drop the other one"
            )
        if schema.has(new):
            raise InputError(f"Cannot rename column {old} to {new} in {schema.full_name}; it has a column of that name")
    renames = dict(body.renames)
    if len(renames) < len(body.renames) or len(set(renames.values())) < len(renames):
        raise InputError(f"ALTER TABLE RENAME of {schema.full_name} names a column twice")
    columns = tuple(replace(column, name=renames.get(column.name, column.name)) for column in schema.columns)
    return _put_table(catalog, replace(schema, columns=columns))


@_apply.register
def _alter_row_ttl(body: s.AlterRowTtl, catalog: Catalog, now_us: Microseconds) -> TableSchema:
    return _put_table(catalog, alter_row_ttl(catalog.table(body.name), body.column))


@_apply.register
def _alter_properties(body: s.AlterProperties, catalog: Catalog, now_us: Microseconds) -> TableSchema | None:
    base = catalog.base_of_log(body.name)
    if base is not None:
        return _alter_log(base, body)
    schema = catalog.table(body.name)
    for part in body.properties:
        if not isinstance(part, s.NamedProperty):
            raise InputError(f"the order and storage of {schema.full_name} cannot be changed after its creation")
    ttl = get_default_ttl(body.properties)
    cdc = parse_cdc_options(body.properties)
    if cdc is not None:
        schema = set_cdc_options(schema, cdc, says_enabled=not omits_enabled(body.properties))
    return _put_table(catalog, replace(schema, default_ttl=schema.default_ttl if ttl is None else ttl))


@_apply.register
def _create_index(body: s.CreateIndex, catalog: Catalog, now_us: Microseconds) -> TableSchema | None:
    """Create an index that ScyllaDB builds from the table's log; one of another class changes nothing."""
    schema, class_name = catalog.table(body.table), body.class_name.lower()
    check_index_class(class_name)
    for column in body.columns:
        schema.column(column)
    if class_name not in SEARCH_INDEX_CLASSES:
        return None
    name = body.name or "_".join((schema.name, *body.columns[:1], "idx"))
    if _find_indexed_table(catalog, schema.keyspace, name) is not None:
        if not body.if_not_exists:
            raise InputError(f"index {schema.keyspace}.{name} exists already; use IF NOT EXISTS, or DROP it first")
        return None
    keyspace = catalog.keyspace(schema.keyspace)
    tablets = keyspace.tablets is not None or not keyspace.declared
    return _put_table(catalog, add_search_index(schema, SearchIndex(name, class_name), tablets=tablets))


@_apply.register
def _drop_index(body: s.DropIndex, catalog: Catalog, now_us: Microseconds) -> TableSchema | None:
    """Drop a search index; plain indexes change nothing in a table and are not stored here."""
    schema = _find_indexed_table(catalog, *catalog.qualified(body.name))
    return None if schema is None else _put_table(catalog, remove_search_index(schema, body.name.name))


def _find_indexed_table(catalog: Catalog, keyspace: str, name: str) -> TableSchema | None:
    tables = catalog.keyspaces[keyspace].tables.values() if keyspace in catalog.keyspaces else ()
    return next((table for table in tables if any(index.name == name for index in table.search_indexes)), None)


def _alter_log(base: TableSchema, body: s.AlterProperties) -> None:
    """Accept storage properties of a log, which change none of its rows; DESCRIBE of ScyllaDB 6 and later prints them.

    Every cell of a log is written with the TTL of the base table's CDC options, so the log's own default TTL does not
    apply.
    """
    for part in body.properties:
        if not isinstance(part, s.NamedProperty) or part.name == "cdc":
            raise InputError(
                f"{base.keyspace}.{base.log_name} is a CDC log: its key, its order and its CDC options are no one's to"
                f" choose; alter {base.full_name}"
            )
    get_default_ttl(body.properties)


def _put_table(catalog: Catalog, schema: TableSchema) -> TableSchema:
    _check_table(schema)
    if schema.cdc.enabled and catalog.has_table(s.QualifiedName(schema.keyspace, schema.log_name)):
        raise InputError(
            f"Cannot create CDC log table for table {schema.full_name} because a table of name"
            f" {schema.keyspace}.{schema.log_name} already exists; drop that one or leave CDC off"
        )
    catalog.put(schema)
    return schema


@_apply.register
def _drop(body: s.DropObject, catalog: Catalog, now_us: Microseconds) -> None:
    if body.kind == "keyspace":
        _drop_keyspace(body, catalog)
    elif body.kind == "type":
        _drop_type(body, catalog)
    elif (base := catalog.base_of_log(body.name)) is not None:
        _drop_log(catalog, base, now_us)
    elif catalog.has_table(body.name) or not body.if_exists:
        schema = catalog.table(body.name)
        del catalog.keyspace(schema.keyspace).tables[schema.name]


def _drop_log(catalog: Catalog, base: TableSchema, now_us: Microseconds) -> None:
    """Drop a log, which its base table has while CDC is on; the next one begins when CDC is enabled again."""
    if base.cdc.enabled:
        raise InputError(
            f"{base.keyspace}.{base.log_name} is the log of a table with CDC; turn that off first: ALTER TABLE"
            f" {base.full_name} WITH cdc = {{'enabled': false}}"
        )
    catalog.put(replace(base, log_since_us=now_us, has_old_log=False, old_log_ms=None))


def _drop_keyspace(body: s.DropObject, catalog: Catalog) -> None:
    name = body.name.name
    if body.name.keyspace is not None:
        raise InputError(f"{body.name.keyspace}.{name} names no keyspace; drop one as in DROP KEYSPACE {name}")
    if name not in catalog.keyspaces and body.if_exists:
        return
    catalog.keyspace(name)
    del catalog.keyspaces[name]
    if catalog.in_use == name:
        catalog.in_use = None


def _drop_type(body: s.DropObject, catalog: Catalog) -> None:
    keyspace, name = catalog.qualified(body.name)
    if body.if_exists and name not in (catalog.keyspaces[keyspace].types if keyspace in catalog.keyspaces else ()):
        return
    kind = _get_user_type(catalog, body.name)
    users = _find_type_users(catalog.keyspace(keyspace), kind)
    if users:
        raise InputError(f"type {keyspace}.{name} is used by {', '.join(users)}; drop those first")
    del catalog.keyspace(keyspace).types[name]


def _find_type_users(keyspace: Keyspace, kind: UserType) -> list[str]:
    by_types = [
        other.name
        for other in keyspace.types.values()
        if kind.name != other.name and _uses_type(other.parts, kind.name)
    ]
    by_tables = [
        table.full_name
        for table in keyspace.tables.values()
        if _uses_type([column.type for column in table.columns], kind.name)
    ]
    return [*by_types, *by_tables]


def _uses_type(kinds: Sequence[CqlType], name: str) -> bool:
    return any(part.name == name for part in chain.from_iterable(kind.user_types() for kind in kinds))


def format_ddl(catalog: Catalog, schema: TableSchema) -> str:
    """Return the statements that create a table of the catalog, and the types that it uses."""
    types = catalog.keyspace(schema.keyspace).types
    return "\n".join(
        [
            *(_format_type(types[name]) for name in _used_types(types, schema)),
            _format_table(schema),
            *_format_comments(schema),
        ]
    )


def format_plain_ddl(catalog: Catalog, schema: TableSchema) -> list[str]:
    """Return statements that create a table without CDC, and a plain table with its log's columns, IF NOT EXISTS."""
    types = catalog.keyspace(schema.keyspace).types
    base = ", ".join(_format_column(column) for column in schema.columns)
    order = f" WITH {_format_clustering_order(schema)}" if schema.clustering_key else ""
    log = ", ".join(f"{quote_name(log_column.name)} {log_column.type.cql}" for log_column in get_log_columns(schema))
    log_name = f"{quote_name(schema.keyspace)}.{quote_name(schema.log_name)}"
    return [
        *(_format_type(types[name]) for name in _used_types(types, schema)),
        f"CREATE TABLE IF NOT EXISTS {quote_name(schema.keyspace)}.{quote_name(schema.name)} "
        f"({base}, PRIMARY KEY ({_format_primary_key(schema)})){order};",
        f"CREATE TABLE IF NOT EXISTS {log_name} ({log}, PRIMARY KEY ({', '.join(map(quote_name, LOG_PRIMARY_KEY))}));",
    ]


def get_defining_comments(ddl: str) -> list[str]:
    """Return the comment lines that are part of a table's definition: its search indexes and declared attributes."""
    return [line for line in ddl.splitlines() if line.startswith(("-- search index: ", "-- CDC: on", "-- attribute: "))]


def strip_comments(ddl: str) -> str:
    """Return the statements that create a table, without comment lines."""
    return "\n".join(line for line in ddl.splitlines() if not line.startswith("-- "))


def _format_comments(schema: TableSchema) -> Iterator[str]:
    if schema.truncated_us is not None:
        yield f"-- truncated: {format_us(schema.truncated_us)}"
    if schema.log_since_us is not None:
        yield f"-- log made anew: {format_us(schema.log_since_us)}"
    yield from format_index_comments(schema.search_indexes, by_index=schema.cdc_by_index)
    yield from format_attribute_comments(schema.attributes)
    if schema.cdc_turned_off and not schema.cdc.enabled:
        yield "-- CDC: turned off"


def format_index_comments(indexes: Iterable[SearchIndex], *, by_index: bool) -> Iterator[str]:
    """Yield the comment lines about a table's search indexes, and whether one of them has enabled CDC."""
    for index in indexes:
        yield f"-- search index: {index.class_name} {index.name}"
    if by_index:
        yield "-- CDC: on by a search index"


def format_attribute_comments(attributes: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield the comment lines about the attributes (name, type) that views of an Alternator table show as columns."""
    for name, kind in attributes:
        yield f"-- attribute: {kind} {json.dumps(name)}"


def _used_types(types: dict[str, UserType], schema: TableSchema) -> Iterator[str]:
    """Return the names of the types that a table uses, each after the types that it contains."""
    seen: dict[str, None] = {}

    def visit(name: str) -> None:
        for _, part in types[name].fields:
            for inner in part.user_types():
                if inner.name not in seen:
                    visit(inner.name)
        seen.setdefault(name)

    for column in schema.columns:
        for used in column.type.user_types():
            visit(used.name)
    return iter(seen)


def _format_type(kind: UserType) -> str:
    fields = ", ".join(f"{quote_name(name)} {part.cql}" for name, part in kind.fields)
    return f"CREATE TYPE IF NOT EXISTS {quote_name(kind.keyspace)}.{quote_name(kind.name)} ({fields});"


def _format_table(schema: TableSchema) -> str:
    columns = "".join(
        f"    {_format_column(column)}{' TTL' * (column.name == schema.row_ttl)},\n" for column in schema.columns
    )
    options = " AND ".join(_format_options(schema))
    return (
        f"CREATE TABLE {quote_name(schema.keyspace)}.{quote_name(schema.name)} (\n{columns}"
        f"    PRIMARY KEY ({_format_primary_key(schema)})\n) WITH {options};"
    )


def _format_primary_key(schema: TableSchema) -> str:
    partition = ", ".join(quote_name(column.name) for column in schema.partition_key)
    return f"({partition})" + "".join(f", {quote_name(column.name)}" for column in schema.clustering_key)


def _format_column(column: Column) -> str:
    return f"{quote_name(column.name)} {column.type.cql}{' static' if column.kind == 'static' else ''}"


def _format_options(schema: TableSchema) -> Iterator[str]:
    cdc = schema.cdc
    yield (
        f"cdc = {{'enabled': '{_format_boolean(cdc.enabled)}', 'preimage': '{cdc.preimage}', 'postimage':"
        f" '{_format_boolean(cdc.postimage)}', 'delta': '{cdc.delta}', 'ttl': '{cdc.ttl}'}}"
    )
    if schema.clustering_key:
        yield _format_clustering_order(schema)
    if schema.default_ttl:
        yield f"default_time_to_live = {schema.default_ttl}"


def format_cdc_enabling(schema: TableSchema) -> str:
    """Return the statement that turns CDC on for a table. Options with other than default values stay."""
    cdc = schema.cdc
    options = {"enabled": "true"}
    options |= {"delta": f"'{cdc.delta}'"} if cdc.delta != "full" else {}
    options |= {"preimage": f"'{cdc.preimage}'"} if cdc.preimage != "false" else {}
    options |= {"postimage": "true"} if cdc.postimage else {}
    options |= {"ttl": f"{cdc.ttl}"} if cdc.ttl != DEFAULT_CDC_TTL else {}
    listed = ", ".join(f"'{name}': {value}" for name, value in options.items())
    return f"ALTER TABLE {format_table_name(schema.keyspace, schema.name)} WITH cdc = {{{listed}}}"


def _format_clustering_order(schema: TableSchema) -> str:
    keys = ", ".join(f"{quote_name(key.name)} {'DESC' if key.descending else 'ASC'}" for key in schema.clustering_key)
    return f"CLUSTERING ORDER BY ({keys})"


def _format_boolean(value: bool) -> str:
    return "true" if value else "false"
