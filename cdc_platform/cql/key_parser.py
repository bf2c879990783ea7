"""Parse a partition key from the command line, one text per column, into serialized bytes.

A text is a CQL constant. Quotes are optional, since shells remove them.
"""

from __future__ import annotations

from collections.abc import Sequence

from cdc_platform.cql import ast as s
from cdc_platform.cql.literals import ExecutionContext, value_from_term
from cdc_platform.cql.names import quote_name
from cdc_platform.cql.parser import parse_statements
from cdc_platform.cql.schema import Column, TableSchema
from cdc_platform.cql.types import Value
from cdc_platform.errors import InputError

_QUOTED_TYPES = ("ascii", "text", "inet")
_QUOTED_UNLESS_NUMBERS = ("timestamp", "date", "time")


def parse_partition_key(schema: TableSchema, texts: Sequence[str], moment: ExecutionContext) -> bytes:
    """Return the serialized partition key of one text per column, in the key's order.

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
    key = schema.partition_bytes([_parse_key_value(*pair, moment) for pair in zip(columns, texts, strict=True)])
    if not key:
        raise InputError(f"--pk {texts[0]!r}: the partition key of {schema.full_name} is empty, which CQL refuses")
    return key


def _parse_key_value(column: Column, text: str, moment: ExecutionContext) -> Value:
    try:
        value = value_from_term(_parse_term(column, text), column.type, moment)
    except InputError as error:
        raise InputError(f"--pk {text!r} for {column.name} {column.type.cql}: {error}") from None
    if value is None:
        raise InputError(f"--pk {text!r}: column {column.name} of a partition key is never null")
    return value


def _parse_term(column: Column, text: str) -> s.Term:
    kind = column.type.cql
    is_quoted = len(text) > 1 and text[0] == text[-1] == "'"
    is_number = text.removeprefix("-").isdecimal()
    if not is_quoted and (kind in _QUOTED_TYPES or (kind in _QUOTED_UNLESS_NUMBERS and not is_number)):
        return s.Constant("text", text, text)
    bodies = [
        statement.body
        for statement in parse_statements(f"INSERT INTO k.t ({quote_name(column.name)}) VALUES ({text});")
    ]
    if len(bodies) != 1 or not isinstance(bodies[0], s.Insert) or len(bodies[0].values) != 1:
        raise InputError("it is not one value")
    return bodies[0].values[0]
