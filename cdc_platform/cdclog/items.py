"""Items of Alternator tables as DynamoDB's clients see them: one JSON document, and columns for declared attributes.

Rows of a table, and images in a log, have the key columns and the attributes as a map of JSON texts; see
`cql.alternator`.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from cdc_platform.cdclog.schema import INEXACT, arrow_type, case_marked_name, with_stored_names
from cdc_platform.cql import ATTRIBUTES, Column, TableSchema, column_value, format_decimal
from cdc_platform.delta import to_single_array
from cdc_platform.tables import array_type, column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ITEMS_SUFFIX = "$items"
"""Follows an Alternator table's name in that of its view of items."""
ITEM, OTHER_TYPES = "item", "other_types"
_ATTRIBUTE_TYPES: dict[str, pa.DataType] = {
    "S": pa.string(),
    "N": pa.string(),
    "B": pa.binary(),
    "BOOL": pa.bool_(),
    "SS": array_type(pa.string()),
    "NS": array_type(pa.string()),
    "BS": array_type(pa.binary()),
}


@lru_cache(maxsize=512)
def items_schema(schema: TableSchema) -> pa.Schema:
    """Return the columns of the view of an Alternator table's items; docs/alternator.md describes them."""
    fields = [
        column(item.name, arrow_type(item.type), "key, or another column of the table", null=not item.is_key)
        for item in _plain_columns(with_stored_names(schema))
    ]
    fields += [
        column(name, _ATTRIBUTE_TYPES[kind], f"attribute of type {kind}; null: none, or of another type", null=True)
        for name, kind in zip(_attribute_columns(schema), (kind for _, kind in schema.attributes), strict=True)
    ]
    fields.append(column(ITEM, pa.string(), "the whole item in DynamoDB's JSON, as GetItem returns it"))
    if schema.attributes:
        fields.append(
            column(OTHER_TYPES, array_type(pa.string()), "declared attributes whose value here has another type")
        )
    return pa.schema([*fields, column(INEXACT, pa.bool_(), "see the table itself")])


def items_from_rows(schema: TableSchema, rows: pa.Table) -> pa.Table:
    """Return the items (`items_schema`) of rows of the table's replica."""
    rows = rows.combine_chunks()
    stored = with_stored_names(schema)
    size = rows.num_rows
    plain = [(item, to_single_array(rows[item.name])) for item in _plain_columns(stored)]
    attributes = to_single_array(rows[ATTRIBUTES])
    values = [{} if attribute is None else dict(attribute) for attribute in attributes.to_pylist()]
    columns: dict[str, Any] = {item.name: array for item, array in plain}
    for name, (attribute, kind) in zip(_attribute_columns(schema), schema.attributes, strict=True):
        columns[name] = pa.array([column_value(kind, row.get(attribute)) for row in values], _ATTRIBUTE_TYPES[kind])
    columns[ITEM] = pa.array(_item_texts(plain, values, size), pa.string())
    columns[OTHER_TYPES] = pa.array(
        [
            [name for name, kind in schema.attributes if name in row and column_value(kind, row[name]) is None]
            for row in values
        ],
        array_type(pa.string()),
    )
    columns[INEXACT] = rows[INEXACT]
    fields = items_schema(schema)
    return pa.table([columns[name] for name in fields.names], schema=fields)


def items_frame(schema: TableSchema, rows: DataFrame) -> DataFrame:
    """Return the items of a DataFrame of the table's replica; see `items_from_rows`."""
    from cdc_platform.spark import arrow_to_spark_schema

    def items(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from items_from_rows(schema, pa.Table.from_batches([batch])).to_batches()

    return rows.mapInArrow(items, arrow_to_spark_schema(items_schema(schema)))


def items_from_images(schema: TableSchema, images: pa.StructArray) -> pa.Array:
    """Return the items of images of rows, as JSON (text); null stays null. `images` has the columns of the table."""
    stored = with_stored_names(schema)
    plain = [(item, images.field(item.name)) for item in _plain_columns(stored)]
    values = [{} if attribute is None else dict(attribute) for attribute in images.field(ATTRIBUTES).to_pylist()]
    mask = ~np.asarray(images.is_valid())
    return pa.array(_item_texts(plain, values, len(images)), pa.string(), mask=mask)


def find_removed_attributes(
    before: pa.StructArray, after: pa.StructArray, changes: pa.StructArray | None, is_new: np.ndarray
) -> pa.Array:
    """Return the names of the attributes that each change removed (list of text); null if that is unknown.

    `before` and `after` are the images, null where they are not fully known, and `changes` is what was written, null
    where the log has only keys. `is_new` (bool) are the changes before which there was no item.
    """
    removed: list[list[str] | None] = []
    written = [None] * len(before) if changes is None else changes.to_pylist()
    names = [_names(images) for images in (before, after)]
    for index, change in enumerate(written):
        old, new = names[0][index], names[1][index]
        attributes = None if change is None else change[ATTRIBUTES]
        if is_new[index]:
            removed.append([])
        elif old is not None and new is not None:
            removed.append(sorted(old - new))
        elif change is None:
            removed.append(None)
        elif attributes is None:
            removed.append([])
        elif not attributes["deleted"]:
            removed.append(sorted(attributes["removed"] or ()))
        else:
            # All attributes were replaced by the added ones.
            removed.append(None if old is None else sorted(old - {name for name, _ in attributes["added"] or ()}))
    return pa.array(removed, array_type(pa.string()))


def _names(images: pa.StructArray) -> list[set[str] | None]:
    attributes = images.field(ATTRIBUTES).to_pylist()
    valid = images.is_valid().to_pylist()
    return [
        {name for name, _ in entries or ()} if known else None for entries, known in zip(attributes, valid, strict=True)
    ]


def _plain_columns(schema: TableSchema) -> list[Column]:
    """Return all columns but the attributes: the key, and those of local indexes of older tables."""
    return [item for item in schema.selected if item.name != ATTRIBUTES]


def _attribute_columns(schema: TableSchema) -> list[str]:
    """Return the names of the columns of declared attributes, which differ in more than capitals from other columns."""
    taken = {item.name.lower() for item in with_stored_names(schema).selected} | {ITEM, OTHER_TYPES, INEXACT}
    names = []
    for name, _ in schema.attributes:
        free = name if name.lower() not in taken else case_marked_name(name)
        taken.add(free.lower())
        names.append(free)
    return names


def _item_texts(plain: Sequence[tuple[Column, pa.Array]], attributes: Sequence[dict[str, str]], size: int) -> list[str]:
    members: list[list[str]] = [[] for _ in range(size)]
    for item, array in plain:
        name = json.dumps(item.name, ensure_ascii=False)
        for row, value in zip(members, array.to_pylist(), strict=True):
            if value is not None:
                row.append(f"{name}:{_column_json(item, value)}")
    for row, values in zip(members, attributes, strict=True):
        row += [f"{json.dumps(name, ensure_ascii=False)}:{text}" for name, text in values.items()]
    return [f"{{{','.join(row)}}}" for row in members]


def _column_json(item: Column, value: Any) -> str:
    """Return the value of a column as Alternator shows it; other types than its own are texts there, too."""
    kind = item.type.cql
    if kind == "blob":
        return f'{{"B":"{b64encode(value).decode()}"}}'
    if kind == "decimal":
        return f'{{"N":"{_plain_number(value)}"}}'
    if kind == "boolean":
        return f'{{"BOOL":{json.dumps(value)}}}'
    return f'{{"S":{json.dumps(str(value), ensure_ascii=False)}}}'


def _plain_number(text: str) -> str:
    sign, digits, exponent = Decimal(text).as_tuple()
    assert isinstance(exponent, int)
    unscaled = int("".join(map(str, digits)))
    return format_decimal(-unscaled if sign else unscaled, -exponent)
