"""Partition keys in Arrow as the bytes that tokens are hashed from, column by column where the types allow it.

It knows how Arrow columns of key types lie in memory; `types` knows the same of single values.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import numpy as np
import pyarrow as pa

from cdc_platform.clock import ms_of
from cdc_platform.cql.schema import Column, TableSchema
from cdc_platform.errors import InputError
from cdc_platform.lake.arrow import composite_column, fixed_width
from cdc_platform.log.exact import decoded
from cdc_platform.log.log_values import canonical_values

_BIG_ENDIAN = {"tinyint": ">i1", "smallint": ">i2", "int": ">i4", "bigint": ">i8", "time": ">i8", "float": ">f4"}
_BIG_ENDIAN |= {"double": ">f8"}
_DATE_ZERO = 2**31


def key_bytes(schema: TableSchema, columns: Sequence[pa.Array]) -> pa.Array:
    """The serialized partition keys (binary) of columns, one a partition key column, none null.

    Raises:
        InputError: the partition key has a type that typed writes cannot have.
    """
    components = [_component(column, values) for column, values in zip(schema.partition_key, columns, strict=True)]
    return components[0] if len(components) == 1 else composite_column(components)


def canonical_keys(schema: TableSchema, columns: Sequence[pa.Array], exact: pa.Array | None = None) -> pa.Array:
    """As `key_bytes`, value by value: for all types, and the same for every form that Arrow may have of a value.

    `exact`: the log's column of values that the others have but nearly, see `exact`; None where it has none.

    Raises:
        InputError: a text is none of a value of its column's type.
    """
    values = [canonical_values(column.type, each) for column, each in zip(schema.partition_key, columns, strict=True)]
    for number, beside in enumerate([] if exact is None else exact.to_pylist()):
        said = dict(beside or ())
        for column, each in zip(schema.partition_key, values, strict=True):
            if column.name in said:
                each[number] = decoded(column.type, said[column.name])
    return pa.array([schema.partition_bytes(key) for key in zip(*values, strict=True)], pa.binary())


def _component(column: Column, values: pa.Array) -> pa.Array:
    name = column.type.cql
    if name in ("text", "ascii"):
        return values.cast(pa.binary())
    if name == "blob":
        return values
    if name in ("uuid", "timeuuid"):
        return pa.array([UUID(text).bytes for text in values.to_pylist()], pa.binary())
    if name == "boolean":
        return fixed_width(values.cast(pa.uint8()).to_numpy(zero_copy_only=False))
    if name == "date":
        return fixed_width((values.cast(pa.int32()).to_numpy() + np.int64(_DATE_ZERO)).astype(">u4"))
    if name == "timestamp":
        return fixed_width((ms_of(values.cast(pa.int64()).to_numpy())).astype(">i8"))
    if name in _BIG_ENDIAN:
        return fixed_width(values.to_numpy(zero_copy_only=False).astype(_BIG_ENDIAN[name]))
    raise InputError(
        f"typed writes cannot have partition key column {column.name} of type {name}; write its table by CQL statements"
    )
