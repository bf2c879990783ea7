"""Which rows a write names, and what a conditional one asks of them: what CQL allows of each.

The rules of conditions are those of ScyllaDB 2026 (cql3/statements/modification_statement.cc).
"""

from __future__ import annotations

from collections.abc import Sequence

from cdc_platform.cql import statements as s
from cdc_platform.cql.conditions import Asked, asks_static, check_condition
from cdc_platform.cql.literals import Moment
from cdc_platform.cql.ranges import Key
from cdc_platform.cql.restrictions import Selection, select
from cdc_platform.cql.schema import Column, TableSchema
from cdc_platform.cql.types import ListType
from cdc_platform.errors import InputError


def rows_written(
    schema: TableSchema, selection: Selection, columns: Sequence[Column], what: str, condition: s.Condition | None
) -> Sequence[Key]:
    """The clustering keys of the rows whose columns are written; one empty key for the static row alone."""
    static = all(column.kind == "static" for column in columns)
    asks_rows = not isinstance(condition, str) and asks_static(schema, condition, not selection.is_whole)[1]
    if static and not asks_rows:
        if not selection.is_whole:
            raise InputError(
                f"{what} of static columns alone names a partition; leave the clustering columns of {schema.full_name}"
                " out of WHERE"
            )
        return [()]
    if selection.ranges or (selection.is_whole and schema.clustering_key):
        names = ", ".join(column.name for column in schema.clustering_key)
        raise InputError(f"{what} of columns names whole rows of {schema.full_name}; give {names} with = or IN")
    return selection.rows


def check_conditional(body: s.Write | s.Batch, writes: Sequence[s.Write]) -> None:
    """Hold that a statement with conditions says nothing that goes with none; raises InputError."""
    if isinstance(body, s.Batch) and body.using.timestamp is not None:
        raise InputError("Cannot provide custom timestamp for conditional BATCH; leave USING TIMESTAMP out")
    for write in writes:
        if write.condition is not None and write.using.timestamp is not None:
            raise InputError("Cannot provide custom timestamp for conditional updates; leave USING TIMESTAMP out")


def ask_of(schema: TableSchema, write: s.Write, moment: Moment) -> tuple[tuple[Key, ...], Asked]:
    """The partitions that a write of a conditional statement names, and what it asks.

    Raises:
        InputError, NotFound: the write is not allowed with a condition.
    """
    if schema.has_counters:
        raise InputError(f"Conditional updates are not supported on counter tables, as {schema.full_name} is one")
    check_condition(schema, write.condition)
    selection = select(schema, _where(schema, write), moment)
    if write.condition is not None:
        _check_named(schema, write, selection)
    names_rows = bool(schema.clustering_key) and not selection.is_whole
    keys = selection.rows if schema.clustering_key else ((),)
    asked = Asked(
        write.condition,
        keys[0] if keys else (),
        names_rows,
        None if selection.ranges or (selection.is_whole and schema.clustering_key) else frozenset(keys),
        _needs_elements(schema, write),
    )
    return selection.partitions, asked


def _where(schema: TableSchema, write: s.Write) -> Sequence[s.Relation]:
    if not isinstance(write, s.Insert):
        return write.where
    named = dict(zip(write.columns, write.values, strict=False))
    keys = (*schema.partition_key, *schema.clustering_key)
    return [s.Relation((column.name,), "=", (named[column.name],)) for column in keys if column.name in named]


def _check_named(schema: TableSchema, write: s.Write, selection: Selection) -> None:
    """Hold that a condition is asked of one row, or of a partition's static columns."""
    what = "deletions" if isinstance(write, s.Delete) else "updates"
    if len(selection.partitions) != 1:
        raise InputError(f"IN on the partition key is not supported with conditional {what}; name one partition")
    if len(selection.rows) > 1:
        raise InputError(
            f"IN on the clustering key columns is not supported with conditional {what}; name one row of"
            f" {schema.full_name}"
        )
    if isinstance(write, s.Delete) and not selection.rows and schema.clustering_key:
        columns = [schema.column(target.column) for target in write.targets]
        if not columns or any(column.kind != "static" for column in columns):
            raise InputError(
                "DELETE statements must restrict all PRIMARY KEY columns with equality relations in order to delete"
                f" non static columns of {schema.full_name} with IF"
            )
        if asks_static(schema, write.condition, not selection.is_whole)[1]:
            raise InputError(
                "DELETE statements must restrict all PRIMARY KEY columns with equality relations in order to use IF"
                f" condition on non static columns of {schema.full_name}"
            )


def _needs_elements(schema: TableSchema, write: s.Write) -> bool:
    """Whether the elements of a list are read for the write itself (cql3/lists.hh, requires_read)."""
    if isinstance(write, s.Insert):
        return False
    if isinstance(write, s.Delete):
        targets: list[s.Target] = [target for target in write.targets if isinstance(target, s.Element)]
    else:
        targets = [each.target for each in write.assignments if isinstance(each.target, s.Element) or each.sign == "-"]
    return any(isinstance(schema.column(target.column).type, ListType) for target in targets)
