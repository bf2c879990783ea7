"""Which values typed writes may have: those of their columns' CQL types, held in Arrow, a column at a time.

What stands in a write beside its values is checked in `columns`. Texts are looked at one by one only where they are not
written as the platform writes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from cdc_platform.clock import DAY_NS, MILLISECOND_US, us_of
from cdc_platform.cql.scalars import shortened
from cdc_platform.cql.schema import TableSchema, log_columns
from cdc_platform.cql.types import CqlType, ListType, MapType, Scalar, SetType, UserType, VectorType
from cdc_platform.errors import InputError
from cdc_platform.lake.arrow import compute
from cdc_platform.log.exact import FIRST_DAY, FIRST_MS, LAST_DAY, LAST_MS, OF_TEXT
from cdc_platform.log.log_table import end_column

_MOST_KEY_BYTES = 0xFFFF
_HEX = "[0-9a-f]"
_AS_WRITTEN: Mapping[str, str] = {
    "uuid": f"^{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}$",
    "timeuuid": f"^{_HEX}{{8}}-{_HEX}{{4}}-1{_HEX}{{3}}-{_HEX}{{4}}-{_HEX}{{12}}$",
    "varint": "^-?[0-9]+$",
    "decimal": r"^-?[0-9]+(\.[0-9]+)?$",
}
"""Texts that are values without a second look."""


def refuse_wrong_values(schema: TableSchema, columns: Mapping[str, pa.Array]) -> None:
    """Hold the columns of typed writes (`log_table.writes_schema`) against their types.

    Raises:
        InputError: a value is none of its column's type, or none that a typed write can carry.
    """
    for each in log_columns(schema):
        values = columns.get(each.name)
        if each.role in ("key", "value", "deleted_elements") and values is not None:
            _refuse(each.name, each.type, values)
    for key in schema.clustering_key:
        ends = columns.get(end_column(key.name))
        if ends is not None:
            _refuse(end_column(key.name), key.type, ends)


def refuse_wrong_keys(schema: TableSchema, keys: pa.Array) -> None:
    """Hold that serialized partition keys (binary) are neither empty nor too long; raises InputError."""
    sizes = np.diff(np.asarray(_offsets(keys), dtype=np.int64))
    if np.any(sizes == 0):
        raise InputError(f"{np.count_nonzero(sizes == 0)} writes to {schema.full_name} have an empty partition key")
    if np.any(sizes > _MOST_KEY_BYTES):
        raise InputError(
            f"a partition key of {schema.full_name} has {sizes.max()} bytes; it has at most {_MOST_KEY_BYTES}"
        )


def _offsets(keys: Any) -> Any:
    if pat.is_fixed_size_binary(keys.type):
        return np.arange(len(keys) + 1) * keys.type.byte_width
    return np.frombuffer(keys.buffers()[1], dtype=np.int32)[keys.offset : keys.offset + len(keys) + 1]


def _refuse(name: str, kind: CqlType, values: Any) -> None:
    if values.null_count == len(values):
        return
    match kind:
        case Scalar():
            _refuse_scalar(name, kind, values)
        case MapType():
            first, last = _bounds(values)
            _refuse_elements(name, kind.key, values.keys.slice(first, last - first))
            _refuse_elements(name, kind.value, values.items.slice(first, last - first))
        case VectorType():
            _refuse_elements(name, kind.element, values.flatten())
            if compute.any(compute.not_equal(compute.list_value_length(values), kind.dimension)).as_py():
                raise InputError(f"column {name}: a value of type {kind.cql} has exactly {kind.dimension} elements")
        case ListType() | SetType():
            _refuse_elements(name, kind.element, values.flatten())
        case _:
            named = kind.field_names if isinstance(kind, UserType) else [f"_{n}" for n, _ in enumerate(kind.parts, 1)]
            for field, part, inner in zip(named, kind.parts, values.flatten(), strict=True):
                _refuse(f"{name}.{field}", part, inner)


def _bounds(values: Any) -> tuple[int, int]:
    return values.offsets[0].as_py(), values.offsets[-1].as_py()


def _refuse_elements(name: str, kind: CqlType, elements: Any) -> None:
    if elements.null_count:
        raise InputError(f"column {name}: {elements.null_count} elements are null; leave them out")
    _refuse(name, kind, elements)


def _refuse_scalar(name: str, kind: Scalar, values: Any) -> None:
    if kind.name in OF_TEXT:
        _refuse_texts(name, kind, values)
    elif kind.name in _CHECKS:
        wrong, rule = _CHECKS[kind.name]
        found = np.asarray(compute.fill_null(wrong(values), False))
        if found.any():
            value = values.filter(pa.array(found))[:1].cast(_SHOWN.get(kind.name, values.type))[0].as_py()
            raise InputError(
                f"column {name}: {shortened(value)} of {np.count_nonzero(found)} writes is no value of type"
                f" {kind.name} here; it is {rule}"
            )


def _refuse_texts(name: str, kind: Scalar, values: Any) -> None:
    texts: Iterable[str]
    if kind.name in _AS_WRITTEN:
        good = compute.fill_null(compute.match_substring_regex(values, _AS_WRITTEN[kind.name]), True)
        texts = compute.unique(values.filter(compute.invert(good))).to_pylist()
    else:
        texts = compute.unique(values.drop_null()).to_pylist()
    for text in texts:
        try:
            kind.canonical(OF_TEXT[kind.name](text))
        except (ValueError, ArithmeticError):
            raise InputError(f"column {name}: {shortened(text)} is no value of type {kind.name}") from None


def _outside(low: int, high: int) -> Callable[[Any], Any]:
    return lambda values: compute.or_(
        compute.less(values.cast(pa.int64()), low), compute.greater(values.cast(pa.int64()), high)
    )


def _not_ascii(values: Any) -> Any:
    return compute.invert(compute.string_is_ascii(values))


def _no_timestamp(values: Any) -> Any:
    us = values.cast(pa.int64())
    finer = compute.not_equal(compute.multiply(compute.divide(us, MILLISECOND_US), MILLISECOND_US), us)
    return compute.or_(finer, _outside(us_of(FIRST_MS), us_of(LAST_MS))(values))


_CHECKS: Mapping[str, tuple[Callable[[Any], Any], str]] = {
    "ascii": (_not_ascii, "of characters below 128"),
    "time": (_outside(0, DAY_NS - 1), f"from 0 to {DAY_NS - 1} ns"),
    "timestamp": (_no_timestamp, "whole milliseconds from 1677-09-22 to 2262-04-11; write others by CQL statements"),
    "date": (
        lambda values: _outside(FIRST_DAY, LAST_DAY)(values.cast(pa.int32())),
        "of the years 1 to 9999; write others by CQL statements",
    ),
}
_SHOWN = {"timestamp": pa.int64(), "date": pa.int32()}
