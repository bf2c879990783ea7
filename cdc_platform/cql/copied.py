"""Values as cqlsh writes them into files by COPY ... TO and reads them by COPY ... FROM."""

from __future__ import annotations

import math

from cdc_platform.cql.times import date_text, time_text
from cdc_platform.cql.types import CqlType, ListType, MapType, Scalar, SetType, TupleType, UserType, Value, VectorType

NULL = "<null>"
"""What stands for null: no text is written so in earnest, while an empty one is a value."""
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_TEXTS = ("ascii", "text")


def copied(kind: CqlType, value: Value | None) -> str:
    """A canonical value in a cell of such a file."""
    if value is None:
        return NULL
    return str(value) if isinstance(kind, Scalar) and kind.name in _TEXTS else _inside(kind, value)


def is_read_otherwise(cell: str) -> bool:
    """Whether some cqlsh does not read a cell as it is meant: it takes lines for rows, and some of its versions take a
    backslash within a collection for more than that.
    """
    return "\n" in cell or "\r" in cell or ("\\" in cell and cell.startswith(("{", "[", "(")))


def _inside(kind: CqlType, value: Value | None) -> str:
    """The same within a collection, where texts are in quotes."""
    if value is None:
        return NULL
    match kind:
        case Scalar():
            return _scalar(kind, value)
        case MapType():
            return "{" + ", ".join(f"{_inside(kind.key, k)}: {_inside(kind.value, v)}" for k, v in value) + "}"
        case SetType():
            return "{" + ", ".join(_inside(kind.element, part) for part in value) + "}"
        case ListType() | VectorType():
            return "[" + ", ".join(_inside(kind.element, part) for part in value) + "]"
        case UserType():
            parts = zip(kind.fields, (*value, *[None] * (len(kind.fields) - len(value))), strict=True)
            return "{" + ", ".join(f"{name}: {_inside(of, part)}" for (name, of), part in parts) + "}"
        case TupleType():
            return "(" + ", ".join(map(_inside, kind.components, value)) + ")"
    raise AssertionError(f"unreachable: {kind}")


def _scalar(kind: Scalar, value: Value) -> str:
    match kind.name:
        case "ascii" | "text":
            return "'" + str(value).replace("'", "''") + "'"
        case "blob":
            return f"0x{value.hex()}"
        case "date" if _FIRST_DAY <= value <= _LAST_DAY:
            return date_text(value)
        case "time":
            return time_text(value)
        case "float" | "double" if math.isnan(value) or math.isinf(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    # Milliseconds since 1970 are read as well as a date, whatever format cqlsh is set to.
    return str(value)
