"""Bind INSERT, UPDATE, DELETE and batches to a schema, producing mutations.

A tombstone one microsecond before the write overwrites a whole collection; DELETE has the write's own timestamp.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cdc_platform.clock import ONE_US, Microseconds
from cdc_platform.cql import ast as s
from cdc_platform.cql.catalog import Catalog
from cdc_platform.cql.literals import (
    FROM_JSON_FUNCTION,
    ExecutionContext,
    columns_from_json,
    element_from_term,
    format_json,
    value_from_term,
)
from cdc_platform.cql.lwt import (
    LwtResult,
    check_conditional_statement,
    evaluate_conditions,
    get_conditional_write,
    get_written_rows,
)
from cdc_platform.cql.mutation import (
    Cell,
    CollectionChange,
    ColumnChange,
    KeyValues,
    Mutation,
    RangeTombstone,
    RowChange,
    RowMarker,
    merge_mutations,
)
from cdc_platform.cql.schema import MAX_WRITE_TTL, Column, TableSchema, get_element_value_type
from cdc_platform.cql.table import LivePartition
from cdc_platform.cql.timeuuid import ListCellKeys
from cdc_platform.cql.types import BIGINT, INT, TEXT, TIMEUUID, CqlType, ListType, MapType, SetType, UserType, Value
from cdc_platform.cql.where import column_value_from_term, key_value_from_term, select_rows
from cdc_platform.errors import InputError

_LIST_INDEX_FUNCTION = "scylla_timeuuid_list_index"


class ListIndexOutOfRange(InputError):
    """A list has no element at the index that a write names; this depends on the list's state, not on the statement."""

    code = "list-index"


@dataclass(frozen=True)
class _WriteContext:
    """The context of a write: timestamp (µs), TTL (s, 0 for none), execution context, and generator of list keys."""

    timestamp: Microseconds
    ttl: int
    moment: ExecutionContext
    keys: ListCellKeys

    def cell(self, value: Value | None) -> Cell:
        """Return a live cell, or a dead one for null."""
        return Cell(self.timestamp, dead=True) if value is None else Cell(self.timestamp, value, self.ttl)

    def element(self) -> Cell:
        """Return the live element of a set, which has only a key."""
        return Cell(self.timestamp, None, self.ttl)


_ElementReader = Callable[[], Mapping[Value, Value]]
"""Reads the live elements of the written column, in the order of their keys."""


def _overwrite_column(column: Column, term: s.Term, writing: _WriteContext) -> ColumnChange:
    """Return the change that sets a whole column to a value, as INSERT and `SET x = ...` do."""
    value = column_value_from_term(column, term, writing.moment)
    if not column.type.multicell:
        return writing.cell(value)
    elements = {} if value is None else _collection_cells(column.type, value, writing)
    return CollectionChange(writing.timestamp - ONE_US, elements)


def _delete_column(column: Column, writing: _WriteContext) -> ColumnChange:
    """Return the change that DELETE makes to a whole column."""
    return CollectionChange(writing.timestamp) if column.type.multicell else writing.cell(None)


def _assign_column(
    column: Column, assignment: s.Assignment, writing: _WriteContext, elements: _ElementReader
) -> ColumnChange | None:
    """Return the change that an assignment of UPDATE makes; None if it does nothing.

    Raises:
        InputError: the column's type does not allow it, or a value has the wrong type.
    """
    target = assignment.target
    if isinstance(target, s.ColumnField):
        return _set_field(column, target.field, assignment.value, writing)
    if isinstance(target, s.ColumnElement):
        return _set_element(column, target.key, assignment.value, writing, elements)
    if assignment.sign == "=":
        return _overwrite_column(column, assignment.value, writing)
    if assignment.operand != column.name:
        raise InputError(
            f"column {column.name}: SET {column.name} = {assignment.operand} {assignment.sign} ... is allowed with"
            f" {column.name} itself alone"
        )
    _check_collection(column, assignment.sign)
    if assignment.sign == "-":
        return _remove_elements(column, assignment.value, writing, elements)
    return _add_elements(column, assignment, writing)


def _delete_element(
    column: Column, key: s.Term, writing: _WriteContext, elements: _ElementReader
) -> ColumnChange | None:
    """Return the change that `DELETE x[key]` makes; None if there is nothing to delete."""
    _check_elements(column)
    if isinstance(column.type, SetType):
        return _single_element(_element_key(column, column.type.element, key, writing), writing.cell(None))
    return _set_element(column, key, s.NULL_CONSTANT, writing, elements)


def _delete_field(column: Column, field: str, writing: _WriteContext) -> ColumnChange:
    """Return the change that `DELETE x.field` makes."""
    return _set_field(column, field, s.NULL_CONSTANT, writing)


def _collection_cells(
    kind: CqlType, value: Value, writing: _WriteContext, *, prepend: bool = False
) -> dict[Value, Cell]:
    """Return the cells that hold a value of a collection or user type."""
    if isinstance(kind, ListType):
        generate = writing.keys.prepended if prepend else writing.keys.appended
        keys = generate(writing.timestamp, len(value))
        return {key: writing.cell(inner) for key, inner in zip(keys, value, strict=True)}
    if isinstance(kind, SetType):
        return {element: writing.element() for element in value}
    if isinstance(kind, MapType):
        return {key: writing.cell(inner) for key, inner in value}
    return {index: writing.cell(inner) for index, inner in enumerate(value) if inner is not None}


def _add_elements(column: Column, assignment: s.Assignment, writing: _WriteContext) -> ColumnChange | None:
    """Add elements. Adding none still touches a list or map, but not a set (cql3/sets.cc)."""
    prepend = assignment.sign == "prepend"
    if prepend and not isinstance(column.type, ListType):
        raise InputError(f"column {column.name} is no list; write SET {column.name} = {column.name} + ...")
    value = _check_not_null(column, column_value_from_term(column, assignment.value, writing.moment))
    elements = _collection_cells(column.type, value, writing, prepend=prepend)
    return None if isinstance(column.type, SetType) and not elements else CollectionChange(None, elements)


def _remove_elements(
    column: Column, term: s.Term, writing: _WriteContext, elements: _ElementReader
) -> ColumnChange | None:
    """Remove elements. Removing none still touches the column, unless it is an empty list."""
    kind = column.type
    if isinstance(kind, ListType):
        unwanted = {
            kind.element.to_bytes(value)
            for value in _check_not_null(column, column_value_from_term(column, term, writing.moment))
        }
        existing = elements()
        if not existing:
            return None
        keys = [key for key, value in existing.items() if kind.element.to_bytes(value) in unwanted]
    else:
        removed = SetType(kind.parts[0])
        keys = _check_not_null(column, _element_value(column, removed, term, writing))
    return CollectionChange(None, {key: writing.cell(None) for key in keys})


def _set_element(
    column: Column, key: s.Term, term: s.Term, writing: _WriteContext, elements: _ElementReader
) -> CollectionChange | None:
    _check_elements(column)
    if isinstance(column.type, SetType):
        raise InputError(
            f"column {column.name} is a set, whose elements have no value; add or remove them with + and -"
        )
    cell_key = (
        _list_cell_key(column, key, writing, elements)
        if isinstance(column.type, ListType)
        else _element_key(column, column.type.parts[0], key, writing)
    )
    kind = get_element_value_type(column.type, cell_key)
    assert kind is not None
    return _single_element(cell_key, writing.cell(_element_value(column, kind, term, writing)))


def _list_cell_key(column: Column, key: s.Term, writing: _WriteContext, elements: _ElementReader) -> Value:
    """Return the key of a list's cell: from SCYLLA_TIMEUUID_LIST_INDEX, or that of the element at an index."""
    if isinstance(key, s.FunctionCall) and key.name == _LIST_INDEX_FUNCTION:
        if len(key.arguments) != 1:
            raise InputError(f"column {column.name}: SCYLLA_TIMEUUID_LIST_INDEX() takes one timeuuid")
        return _element_key(column, TIMEUUID, key.arguments[0], writing)
    index = _element_key(column, INT, key, writing)
    keys = list(elements())
    if not 0 <= index < len(keys):
        raise ListIndexOutOfRange(
            f"column {column.name}: index {index} is outside of the list, which has {len(keys)} elements"
        )
    return keys[index]


def _set_field(column: Column, field: str, term: s.Term, writing: _WriteContext) -> CollectionChange:
    if not isinstance(column.type, UserType):
        raise InputError(f"column {column.name} of type {column.type.cql} has no fields")
    if not column.type.multicell:
        raise InputError(
            f"column {column.name} is frozen, so its fields cannot be written one by one; set the whole value"
        )
    index = column.type.index_of(field)
    return _single_element(index, writing.cell(_element_value(column, column.type.parts[index], term, writing)))


def _single_element(key: Value, cell: Cell) -> CollectionChange:
    return CollectionChange(None, {key: cell})


def _element_key(column: Column, kind: CqlType, term: s.Term, writing: _WriteContext) -> Value:
    try:
        return element_from_term(term, kind, writing.moment)
    except InputError as error:
        raise InputError(f"column {column.name}: {error}") from None


def _element_value(column: Column, kind: CqlType, term: s.Term, writing: _WriteContext) -> Value | None:
    try:
        return value_from_term(term, kind, writing.moment)
    except InputError as error:
        raise InputError(f"column {column.name}: {error}") from None


def _check_not_null(column: Column, value: Value | None) -> Value:
    if value is None:
        raise InputError(f"column {column.name}: null cannot be added or removed; name elements")
    return value


def _check_collection(column: Column, sign: str) -> None:
    if not isinstance(column.type, ListType | SetType | MapType) or not column.type.multicell:
        raise InputError(
            f"column {column.name} of type {column.type.cql} takes no {'+' if sign == 'prepend' else sign}; + and - are"
            " for lists, sets and maps that are not frozen"
        )


def _check_elements(column: Column) -> None:
    if not isinstance(column.type, ListType | SetType | MapType):
        raise InputError(f"column {column.name} of type {column.type.cql} has no elements")
    if not column.type.multicell:
        raise InputError(
            f"column {column.name} is frozen, so its elements cannot be written one by one; set the whole value"
        )


PartitionReader = Callable[[TableSchema, KeyValues], LivePartition]
"""Reads a partition as it was before the statement, since writes to lists depend on their content."""


@dataclass(frozen=True)
class StatementBinder:
    """Binds the writes of one statement, which may be a batch, in one execution context."""

    catalog: Catalog
    moment: ExecutionContext
    read: PartitionReader

    def bind(self, body: s.WriteStatement | s.Batch) -> list[Mutation]:
        """Return one mutation for each partition that the statement writes to, in the order in which it names them.

        Conditions are not evaluated here, see `evaluate_conditions`.

        Raises:
            InputError, NotFound: the statement is not allowed; the message says what is.
        """
        keys = ListCellKeys()
        mutations: dict[tuple[str, bytes], list[Mutation]] = {}
        for write in _without_timestamps(self._writes(body)):
            for mutation in self._mutations(write, keys):
                schema = mutation.schema
                name = schema.full_name, schema.partition_bytes(mutation.partition_key)
                mutations.setdefault(name, []).append(mutation)
        return [merge_mutations(parts) for parts in mutations.values()]

    def evaluate_conditions(self, body: s.WriteStatement | s.Batch) -> LwtResult | None:
        """Evaluate the conditions of a statement; return None if it has none.

        Raises:
            InputError, NotFound: the statement, or one of its conditions, is not allowed.
        """
        writes = self._writes(body)
        if all(write.condition is None for write in writes):
            return None
        check_conditional_statement(body, writes)
        schemas = {schema.full_name: schema for schema in map(self.catalog.table, (write.table for write in writes))}
        if len(schemas) > 1:
            raise InputError("BATCH with conditions cannot span multiple tables; it writes to " + ", ".join(schemas))
        (schema,) = schemas.values()
        named_writes = [get_conditional_write(schema, write, self.moment) for write in writes]
        partitions = {schema.partition_bytes(key): key for keys, _ in named_writes for key in keys}
        if len(partitions) != 1:
            raise InputError("BATCH with conditions cannot span multiple partitions; put them into several batches")
        (partition,) = partitions.values()
        live_partition = self.read(schema, partition)
        return evaluate_conditions(
            schema, live_partition, [one for _, one in named_writes], self.moment, batch=isinstance(body, s.Batch)
        )

    def _writes(self, body: s.WriteStatement | s.Batch) -> list[s.WriteStatement]:
        """Return the writes of a statement, with INSERT JSON converted into INSERT."""
        return [
            _insert_from_json(self.catalog.table(write.table), write, self.moment)
            if isinstance(write, s.Insert) and write.json is not None
            else write
            for write in _get_writes(body)
        ]

    def _mutations(self, write: s.WriteStatement, keys: ListCellKeys) -> Iterator[Mutation]:
        schema = self.catalog.table(write.table)
        if schema.has_counters:
            raise InputError(
                f"{schema.full_name} has counters, whose writes are not supported: this write is skipped; no log is "
                f"affected, because tables with counters have none"
            )
        timestamp = self._timestamp(write.using)
        ttl = self._ttl(write.using, schema)
        writing = _WriteContext(timestamp, ttl, self.moment, keys)
        if isinstance(write, s.Insert):
            return self._insert(schema, write, writing)
        if isinstance(write, s.Update):
            return self._update(schema, write, writing)
        if write.using.ttl is not None:
            raise InputError("DELETE takes no TTL; only USING TIMESTAMP is allowed")
        return self._delete(schema, write, writing)

    def _timestamp(self, using: s.UsingClause) -> Microseconds:
        if using.timestamp is None:
            return self.moment.now_us
        value = _using_value("TIMESTAMP", using.timestamp, BIGINT, self.moment)
        if value is None or value == -(2**63):
            raise InputError(f"USING TIMESTAMP is {value}; it is µs since 1970, above {-(2**63)}")
        return Microseconds(value)

    def _ttl(self, using: s.UsingClause, schema: TableSchema) -> int:
        if using.ttl is None:
            return schema.default_ttl
        value = _using_value("TTL", using.ttl, INT, self.moment) or 0
        if not 0 <= value <= MAX_WRITE_TTL:
            raise InputError(f"USING TTL is {value}; it is from 0 (no expiry) to {MAX_WRITE_TTL} seconds, 20 years")
        return value

    def _insert(self, schema: TableSchema, body: s.Insert, writing: _WriteContext) -> Iterator[Mutation]:
        terms = _terms_by_column(schema, body)
        missing = [column.name for column in schema.partition_key if column.name not in terms]
        if missing:
            raise InputError(f"INSERT lacks {', '.join(missing)} of the partition key of {schema.full_name}")
        selection = select_rows(
            schema, [s.Relation((c.name,), "=", (terms[c.name],)) for c in schema.partition_key], self.moment
        )
        (partition,) = selection.partitions
        static = _overwrite_columns(schema.statics, terms, writing)
        regular = _overwrite_columns(schema.regulars, terms, writing)
        absent = [column.name for column in schema.clustering_key if column.name not in terms]
        if absent and len(absent) == len(schema.clustering_key) and static and not regular:
            yield Mutation(schema, partition, static=static)
            return
        if absent:
            raise InputError(f"INSERT lacks {', '.join(absent)} of the clustering key of {schema.full_name}")
        key = tuple(key_value_from_term(column, terms[column.name], self.moment) for column in schema.clustering_key)
        marker = RowMarker(writing.timestamp, writing.ttl)
        yield Mutation(schema, partition, static=static, rows={key: RowChange(marker, regular)})

    def _update(self, schema: TableSchema, body: s.Update, writing: _WriteContext) -> Iterator[Mutation]:
        columns = [_assignable_column(schema, assignment.target) for assignment in body.assignments]
        _check_assignments(body.assignments)
        selection = select_rows(schema, body.where, self.moment)
        rows = get_written_rows(schema, selection, columns, "UPDATE", body.condition)
        for partition in selection.partitions:
            for key in rows:
                changes: list[tuple[Column, ColumnChange | None]] = []
                for column, assignment in zip(columns, body.assignments, strict=True):
                    elements = self._elements(schema, partition, column, key)
                    changes.append((column, _assign_column(column, assignment, writing, elements)))
                yield _merge_changes(schema, partition, key, changes)

    def _delete(self, schema: TableSchema, body: s.Delete, writing: _WriteContext) -> Iterator[Mutation]:
        if body.targets:
            yield from self._delete_columns(schema, body, writing)
            return
        selection = select_rows(schema, body.where, self.moment)
        for partition in selection.partitions:
            if selection.is_whole:
                yield Mutation(schema, partition, partition_tombstone=writing.timestamp)
            elif selection.rows:
                yield Mutation(schema, partition, row_tombstones=dict.fromkeys(selection.rows, writing.timestamp))
            else:
                ranges = [RangeTombstone(part.start, part.end, writing.timestamp) for part in selection.ranges]
                yield Mutation(schema, partition, range_tombstones=ranges)

    def _delete_columns(self, schema: TableSchema, body: s.Delete, writing: _WriteContext) -> Iterator[Mutation]:
        columns = [_assignable_column(schema, target) for target in body.targets]
        selection = select_rows(schema, body.where, self.moment)
        rows = get_written_rows(schema, selection, columns, "DELETE", body.condition)
        for partition in selection.partitions:
            for key in rows:
                changes = []
                for column, target in zip(columns, body.targets, strict=True):
                    elements = self._elements(schema, partition, column, key)
                    changes.append((column, _delete_target(column, target, writing, elements)))
                yield _merge_changes(schema, partition, key, changes)

    def _elements(self, schema: TableSchema, partition: KeyValues, column: Column, key: KeyValues) -> _ElementReader:
        return lambda: self.read(schema, partition).elements(column, key)


def _without_timestamps(writes: Sequence[s.WriteStatement]) -> Sequence[s.WriteStatement]:
    """Return the writes; those of a conditional batch all get its own timestamp (cas_request.cc, apply_updates)."""
    if all(write.condition is None for write in writes):
        return writes
    return [replace(write, using=write.using._replace(timestamp=None)) for write in writes]


def _get_writes(body: s.WriteStatement | s.Batch) -> Sequence[s.WriteStatement]:
    """Return the writes of a statement, each with the timestamp that its batch gives it."""
    if not isinstance(body, s.Batch):
        return [body]
    if body.kind == "counter":
        raise InputError("BEGIN COUNTER BATCH is not supported, as writes to counters are not; no log has any of them")
    if body.using.ttl is not None:
        raise InputError("a batch takes no TTL; give it to the statements in it")
    if body.using.timestamp is None:
        return body.writes
    if any(write.using.timestamp is not None for write in body.writes):
        raise InputError("USING TIMESTAMP is given to the batch and to a statement in it; give it to one of them")
    return [replace(write, using=write.using._replace(timestamp=body.using.timestamp)) for write in body.writes]


def _using_value(name: str, term: s.Term, kind: CqlType, moment: ExecutionContext) -> int | None:
    try:
        return value_from_term(term, kind, moment)
    except InputError as error:
        raise InputError(f"USING {name}: {error}") from None


def _terms_by_column(schema: TableSchema, body: s.Insert) -> dict[str, s.Term]:
    for name, count in Counter(body.columns).items():
        schema.column(name)
        if count > 1:
            raise InputError(f"INSERT names column {name} {count} times")
    if len(body.columns) != len(body.values):
        raise InputError(f"INSERT names {len(body.columns)} columns and gives {len(body.values)} values")
    return dict(zip(body.columns, body.values, strict=True))


def _insert_from_json(schema: TableSchema, body: s.Insert, moment: ExecutionContext) -> s.Insert:
    """Convert INSERT JSON into INSERT (cql3/statements/update_statement.cc, insert_prepared_json_statement).

    Columns that the document does not name are null, or unchanged with DEFAULT UNSET. Static columns are never written:
    ScyllaDB accepts and ignores them.

    Raises:
        InputError: the document is invalid, or names columns that do not exist.
    """
    text = value_from_term(body.values[0], TEXT, moment)
    if text is None:
        raise InputError(f"INSERT JSON into {schema.full_name} has null for a document; give it an object")
    values_by_name = columns_from_json(text)
    for name in values_by_name:
        if not schema.has(name):
            raise InputError(
                f"JSON values map contains unrecognized column: {name}; put names with capitals in double quotes"
            )
    columns = [
        column
        for column in schema.selected
        if column.name in values_by_name or (column.kind == "regular" and body.json == "null")
    ]
    written = {column.name: values_by_name.get(column.name) for column in columns if column.kind != "static"}
    terms = tuple(_term_from_json(document) for document in written.values())
    return replace(body, columns=tuple(written), values=terms, json=None)


def _term_from_json(document: object) -> s.Term:
    text = format_json(document)
    return (
        s.NULL_CONSTANT if document is None else s.FunctionCall(FROM_JSON_FUNCTION, (s.Constant("text", text, text),))
    )


def _overwrite_columns(
    columns: Sequence[Column], terms: dict[str, s.Term], writing: _WriteContext
) -> dict[str, ColumnChange]:
    return {
        column.name: _overwrite_column(column, terms[column.name], writing)
        for column in columns
        if column.name in terms
    }


def _assignable_column(schema: TableSchema, target: s.AssignmentTarget) -> Column:
    column = schema.column(target.column)
    if column.is_key:
        raise InputError(
            f"column {column.name} is in the primary key of {schema.full_name} and cannot be written; name rows by it"
            " in WHERE"
        )
    return column


def _check_assignments(assignments: Sequence[s.Assignment]) -> None:
    """Refuse incompatible assignments to one column (cql3/operation.cc, is_compatible_with).

    Several assignments may change a column's elements; none may be combined with one that sets the whole column, and no
    field may be set twice.
    """
    counts = Counter(assignment.target.column for assignment in assignments)
    fields = Counter(assignment.target for assignment in assignments if isinstance(assignment.target, s.ColumnField))
    for assignment in assignments:
        name = assignment.target.column
        if counts[name] > 1 and isinstance(assignment.target, s.WholeColumn) and assignment.sign == "=":
            raise InputError(f"Multiple incompatible setting of column {name}: with = it is set whole; set it once")
    for target, count in fields.items():
        if count > 1:
            raise InputError(
                f"Multiple incompatible setting of column {target.column}: field {target.field} is set {count} times"
            )


def _delete_target(
    column: Column, target: s.AssignmentTarget, writing: _WriteContext, elements: _ElementReader
) -> ColumnChange | None:
    if isinstance(target, s.ColumnField):
        return _delete_field(column, target.field, writing)
    if isinstance(target, s.ColumnElement):
        return _delete_element(column, target.key, writing, elements)
    return _delete_column(column, writing)


def _merge_changes(
    schema: TableSchema, partition: KeyValues, key: KeyValues, changes: Sequence[tuple[Column, ColumnChange | None]]
) -> Mutation:
    """Return the mutation that makes these changes to a row and the static row, without the unchanged columns."""
    parts: list[Mutation] = []
    for column, change in changes:
        if change is None:
            continue
        if column.kind == "static":
            parts.append(Mutation(schema, partition, static={column.name: change}))
        else:
            parts.append(Mutation(schema, partition, rows={key: RowChange(None, {column.name: change})}))
    return merge_mutations(parts) if parts else Mutation(schema, partition)
