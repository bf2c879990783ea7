"""From INSERT, UPDATE, DELETE and batches to mutations: what a statement does to the table that it names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from cdc_platform.clock import Microseconds
from cdc_platform.cql import cells
from cdc_platform.cql import statements as s
from cdc_platform.cql.asking import ask_of, check_conditional, rows_written
from cdc_platform.cql.catalog import Catalog
from cdc_platform.cql.cells import Elements, Writing
from cdc_platform.cql.conditions import Answer, answer
from cdc_platform.cql.json_values import columns_of, written_json
from cdc_platform.cql.list_keys import ListKeys
from cdc_platform.cql.literals import FROM_JSON, Moment, value_of
from cdc_platform.cql.live import Partition
from cdc_platform.cql.mutation import ColumnChange, Marker, Mutation, RowChange, merge
from cdc_platform.cql.ranges import Key, RangeTombstone
from cdc_platform.cql.restrictions import key_value, select
from cdc_platform.cql.schema import MAX_TTL, Column, TableSchema
from cdc_platform.cql.types import BIGINT, INT, TEXT, CqlType
from cdc_platform.errors import InputError

Read = Callable[[TableSchema, Key], Partition]
"""Reads a partition as it was before the statement: lists are written by what is in them."""


@dataclass(frozen=True)
class Binder:
    """Binds the writes of one statement, which is a batch or stands alone, at its moment."""

    catalog: Catalog
    moment: Moment
    read: Read

    def bind(self, body: s.Write | s.Batch) -> list[Mutation]:
        """One mutation a partition that the statement writes to, in the order in which it names them.

        Conditions are not asked, see `ask`.

        Raises:
            InputError, NotFound: the statement is not allowed; the message says what is.
        """
        keys = ListKeys()
        mutations: dict[tuple[str, bytes], list[Mutation]] = {}
        for write in _untimed(self._writes(body)):
            for mutation in self._mutations(write, keys):
                schema = mutation.schema
                name = schema.full_name, schema.partition_bytes(mutation.partition_key)
                mutations.setdefault(name, []).append(mutation)
        return [merge(several) for several in mutations.values()]

    def ask(self, body: s.Write | s.Batch) -> Answer | None:
        """What the conditions of a statement come to; None where it has none.

        Raises:
            InputError, NotFound: the statement, or a condition of it, is not allowed.
        """
        writes = self._writes(body)
        if all(write.condition is None for write in writes):
            return None
        check_conditional(body, writes)
        schemas = {schema.full_name: schema for schema in map(self.catalog.table, (write.table for write in writes))}
        if len(schemas) > 1:
            raise InputError("BATCH with conditions cannot span multiple tables; it writes to " + ", ".join(schemas))
        (schema,) = schemas.values()
        asked = [ask_of(schema, write, self.moment) for write in writes]
        partitions = {schema.partition_bytes(key): key for keys, _ in asked for key in keys}
        if len(partitions) != 1:
            raise InputError("BATCH with conditions cannot span multiple partitions; put them into several batches")
        (partition,) = partitions.values()
        found = self.read(schema, partition)
        return answer(schema, found, [one for _, one in asked], self.moment, batch=isinstance(body, s.Batch))

    def _writes(self, body: s.Write | s.Batch) -> list[s.Write]:
        """The writes of a statement; INSERT JSON as the INSERT that it comes to."""
        return [
            named_by_json(self.catalog.table(write.table), write, self.moment)
            if isinstance(write, s.Insert) and write.json is not None
            else write
            for write in writes_of(body)
        ]

    def _mutations(self, write: s.Write, keys: ListKeys) -> Iterator[Mutation]:
        schema = self.catalog.table(write.table)
        if schema.has_counters:
            raise InputError(
                f"{schema.full_name} has counters, whose writes are not supported: its rows stay without this one; no"
                " log lacks anything for it, since tables with counters have none"
            )
        timestamp = self._timestamp(write.using)
        ttl = self._ttl(write.using, schema)
        writing = Writing(timestamp, ttl, self.moment, keys)
        if isinstance(write, s.Insert):
            return self._insert(schema, write, writing)
        if isinstance(write, s.Update):
            return self._update(schema, write, writing)
        if write.using.ttl is not None:
            raise InputError("DELETE takes no TTL; USING TIMESTAMP is all that it can say")
        return self._delete(schema, write, writing)

    def _timestamp(self, using: s.Using) -> Microseconds:
        if using.timestamp is None:
            return self.moment.now_us
        value = _setting("TIMESTAMP", using.timestamp, BIGINT, self.moment)
        if value is None or value == -(2**63):
            raise InputError(f"USING TIMESTAMP is {value}; it is µs since 1970, above {-(2**63)}")
        return Microseconds(value)

    def _ttl(self, using: s.Using, schema: TableSchema) -> int:
        if using.ttl is None:
            return schema.default_ttl
        value = _setting("TTL", using.ttl, INT, self.moment) or 0
        if not 0 <= value <= MAX_TTL:
            raise InputError(f"USING TTL is {value}; it is from 0 (no expiry) to {MAX_TTL} seconds, 20 years")
        return value

    def _insert(self, schema: TableSchema, body: s.Insert, writing: Writing) -> Iterator[Mutation]:
        terms = _named(schema, body)
        missing = [column.name for column in schema.partition_key if column.name not in terms]
        if missing:
            raise InputError(f"INSERT lacks {', '.join(missing)} of the partition key of {schema.full_name}")
        selection = select(
            schema, [s.Relation((c.name,), "=", (terms[c.name],)) for c in schema.partition_key], self.moment
        )
        (partition,) = selection.partitions
        static = _values(schema.statics, terms, writing)
        regular = _values(schema.regulars, terms, writing)
        lacking = [column.name for column in schema.clustering_key if column.name not in terms]
        if lacking and len(lacking) == len(schema.clustering_key) and static and not regular:
            yield Mutation(schema, partition, static=static)
            return
        if lacking:
            raise InputError(f"INSERT lacks {', '.join(lacking)} of the clustering key of {schema.full_name}")
        key = tuple(key_value(column, terms[column.name], self.moment) for column in schema.clustering_key)
        marker = Marker(writing.timestamp, writing.ttl)
        yield Mutation(schema, partition, static=static, rows={key: RowChange(marker, regular)})

    def _update(self, schema: TableSchema, body: s.Update, writing: Writing) -> Iterator[Mutation]:
        columns = [_assignable(schema, assignment.target) for assignment in body.assignments]
        _check_targets(body.assignments)
        selection = select(schema, body.where, self.moment)
        rows = rows_written(schema, selection, columns, "UPDATE", body.condition)
        for partition in selection.partitions:
            for key in rows:
                changes: list[tuple[Column, ColumnChange | None]] = []
                for column, assignment in zip(columns, body.assignments, strict=True):
                    elements = self._elements(schema, partition, column, key)
                    changes.append((column, cells.assigned(column, assignment, writing, elements)))
                yield _changed(schema, partition, key, changes)

    def _delete(self, schema: TableSchema, body: s.Delete, writing: Writing) -> Iterator[Mutation]:
        if body.targets:
            yield from self._delete_columns(schema, body, writing)
            return
        selection = select(schema, body.where, self.moment)
        for partition in selection.partitions:
            if selection.is_whole:
                yield Mutation(schema, partition, partition_tombstone=writing.timestamp)
            elif selection.rows:
                yield Mutation(schema, partition, row_tombstones=dict.fromkeys(selection.rows, writing.timestamp))
            else:
                ranges = [RangeTombstone(part.start, part.end, writing.timestamp) for part in selection.ranges]
                yield Mutation(schema, partition, range_tombstones=ranges)

    def _delete_columns(self, schema: TableSchema, body: s.Delete, writing: Writing) -> Iterator[Mutation]:
        columns = [_assignable(schema, target) for target in body.targets]
        selection = select(schema, body.where, self.moment)
        rows = rows_written(schema, selection, columns, "DELETE", body.condition)
        for partition in selection.partitions:
            for key in rows:
                changes = []
                for column, target in zip(columns, body.targets, strict=True):
                    elements = self._elements(schema, partition, column, key)
                    changes.append((column, _deleted(column, target, writing, elements)))
                yield _changed(schema, partition, key, changes)

    def _elements(self, schema: TableSchema, partition: Key, column: Column, key: Key) -> Elements:
        return lambda: self.read(schema, partition).elements(column, key)


def _untimed(writes: Sequence[s.Write]) -> Sequence[s.Write]:
    """The writes; all those of a conditional batch have its own timestamp (cas_request.cc, apply_updates)."""
    if all(write.condition is None for write in writes):
        return writes
    return [replace(write, using=write.using._replace(timestamp=None)) for write in writes]


def writes_of(body: s.Write | s.Batch) -> Sequence[s.Write]:
    """The writes of a statement, each with the timestamp that its batch gives it."""
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


def _setting(name: str, term: s.Term, kind: CqlType, moment: Moment) -> int | None:
    try:
        return value_of(term, kind, moment)
    except InputError as error:
        raise InputError(f"USING {name}: {error}") from None


def _named(schema: TableSchema, body: s.Insert) -> dict[str, s.Term]:
    for name, count in Counter(body.columns).items():
        schema.column(name)
        if count > 1:
            raise InputError(f"INSERT names column {name} {count} times")
    if len(body.columns) != len(body.values):
        raise InputError(f"INSERT names {len(body.columns)} columns and gives {len(body.values)} values")
    return dict(zip(body.columns, body.values, strict=True))


def named_by_json(schema: TableSchema, body: s.Insert, moment: Moment) -> s.Insert:
    """INSERT JSON as an INSERT of its columns (cql3/statements/update_statement.cc, insert_prepared_json_statement).

    Columns that the document does not name are null, or left as they are with DEFAULT UNSET. Static columns are never
    written by it: ScyllaDB takes them and passes over them.

    Raises:
        InputError: the document is none, or names columns that are not there.
    """
    text = value_of(body.values[0], TEXT, moment)
    if text is None:
        raise InputError(f"INSERT JSON into {schema.full_name} has null for a document; give it an object")
    given = columns_of(text)
    for name in given:
        if not schema.has(name):
            raise InputError(
                f"JSON values map contains unrecognized column: {name}; names with capitals stand in double quotes"
            )
    columns = [
        column
        for column in schema.selected
        if column.name in given or (column.kind == "regular" and body.json == "null")
    ]
    written = {column.name: given.get(column.name) for column in columns if column.kind != "static"}
    terms = tuple(_json_term(document) for document in written.values())
    return replace(body, columns=tuple(written), values=terms, json=None)


def _json_term(document: object) -> s.Term:
    text = written_json(document)
    return s.NULL if document is None else s.Call(FROM_JSON, (s.Constant("text", text, text),))


def _values(columns: Sequence[Column], terms: dict[str, s.Term], writing: Writing) -> dict[str, ColumnChange]:
    return {
        column.name: cells.overwritten(column, terms[column.name], writing)
        for column in columns
        if column.name in terms
    }


def _assignable(schema: TableSchema, target: s.Target) -> Column:
    column = schema.column(target.column)
    if column.is_key:
        raise InputError(
            f"column {column.name} is in the primary key of {schema.full_name} and cannot be written; name rows by it"
            " in WHERE"
        )
    return column


def _check_targets(assignments: Sequence[s.Assignment]) -> None:
    """Several assignments of a column change its elements; one of them that sets all of it, or a field twice, does not
    go with the others (cql3/operation.cc, is_compatible_with).
    """
    counts = Counter(assignment.target.column for assignment in assignments)
    fields = Counter(assignment.target for assignment in assignments if isinstance(assignment.target, s.Field))
    for assignment in assignments:
        name = assignment.target.column
        if counts[name] > 1 and isinstance(assignment.target, s.Whole) and assignment.sign == "=":
            raise InputError(f"Multiple incompatible setting of column {name}: with = it is set whole; set it once")
    for target, count in fields.items():
        if count > 1:
            raise InputError(
                f"Multiple incompatible setting of column {target.column}: field {target.field} is set {count} times"
            )


def _deleted(column: Column, target: s.Target, writing: Writing, elements: Elements) -> ColumnChange | None:
    if isinstance(target, s.Field):
        return cells.field_deleted(column, target.field, writing)
    if isinstance(target, s.Element):
        return cells.element_deleted(column, target.key, writing, elements)
    return cells.deleted(column, writing)


def _changed(
    schema: TableSchema, partition: Key, key: Key, changes: Sequence[tuple[Column, ColumnChange | None]]
) -> Mutation:
    """The mutation that changes these columns of a row and of the static row; those that stay are left out."""
    parts: list[Mutation] = []
    for column, change in changes:
        if change is None:
            continue
        if column.kind == "static":
            parts.append(Mutation(schema, partition, static={column.name: change}))
        else:
            parts.append(Mutation(schema, partition, rows={key: RowChange(None, {column.name: change})}))
    return merge(parts) if parts else Mutation(schema, partition)
