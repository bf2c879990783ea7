"""A partition key as people type it, a text a column, as the bytes that its token is hashed from.

A text is a CQL constant of the column's type; where the type is written in quotes, they may be left out, since shells
take them away.
"""

from __future__ import annotations

from collections.abc import Sequence

from cdc_platform.cql import statements as s
from cdc_platform.cql.literals import Moment, value_of
from cdc_platform.cql.names import quoted
from cdc_platform.cql.parser import parse
from cdc_platform.cql.schema import Column, TableSchema
from cdc_platform.cql.types import Value
from cdc_platform.errors import InputError

_IN_QUOTES = ("ascii", "text", "inet")
_IN_QUOTES_UNLESS_NUMBERS = ("timestamp", "date", "time")


def typed_key(schema: TableSchema, texts: Sequence[str], moment: Moment) -> bytes:
    """The serialized partition key of one text a column, in the key's order.

    Raises:
        InputError: there are too few or too many, or one is no value of its column's type.
    """
    columns = schema.partition_key
    if len(texts) != len(columns):
        named = ", ".join(f"{column.name} {column.type.cql}" for column in columns)
        raise InputError(
            f"{schema.full_name} has the partition key ({named}): give --pk {len(columns)} times, in that order, not "
            f"{len(texts)}"
        )
    key = schema.partition_bytes([_value(*each, moment) for each in zip(columns, texts, strict=True)])
    if not key:
        raise InputError(f"--pk {texts[0]!r}: the partition key of {schema.full_name} is empty, which CQL refuses")
    return key


def _value(column: Column, text: str, moment: Moment) -> Value:
    try:
        value = value_of(_term(column, text), column.type, moment)
    except InputError as error:
        raise InputError(f"--pk {text!r} for {column.name} {column.type.cql}: {error}") from None
    if value is None:
        raise InputError(f"--pk {text!r}: column {column.name} of a partition key is never null")
    return value


def _term(column: Column, text: str) -> s.Term:
    kind = column.type.cql
    is_quoted = len(text) > 1 and text[0] == text[-1] == "'"
    is_number = text.removeprefix("-").isdecimal()
    if not is_quoted and (kind in _IN_QUOTES or (kind in _IN_QUOTES_UNLESS_NUMBERS and not is_number)):
        return s.Constant("text", text, text)
    found = [each.body for each in parse(f"INSERT INTO k.t ({quoted(column.name)}) VALUES ({text});")]
    if len(found) != 1 or not isinstance(found[0], s.Insert) or len(found[0].values) != 1:
        raise InputError("it is not one value")
    return found[0].values[0]
