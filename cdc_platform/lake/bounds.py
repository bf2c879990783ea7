"""What Delta's log says of the values in a data file, held against them: readers leave files out by it, unread.

Of columns that are lists or structs or bytes it says nothing, and of some files nothing at all: that is no fault.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from cdc_platform.clock import MILLISECOND_NS, MILLISECOND_US
from cdc_platform.lake.arrow import compute

_BOUNDED = (
    pat.is_integer,
    pat.is_floating,
    pat.is_boolean,
    pat.is_string,
    pat.is_temporal,
)
"""Which types the log has bounds of that say the same in every engine."""
_MILLISECOND = {"us": MILLISECOND_US, "ns": MILLISECOND_NS}
"""Spark cuts times off behind the millisecond, also of the greatest one, which its readers know."""


class Bounds:
    """Of one file, column by column: the least and the greatest value, and how many are null.

    `said`: the one line that the log has of the file, in deltalake's flat names.
    """

    def __init__(self, said: pa.Table) -> None:
        self._said = {name: said[name][0] for name in said.schema.names}
        self._outside: dict[str, str] = {}
        self._nulls: dict[str, int] = {}

    def see(self, batch: pa.RecordBatch) -> None:
        """Take in some of the file's rows."""
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if pat.is_nested(column.type):
                continue
            self._nulls[name] = self._nulls.get(name, 0) + column.null_count
            if name in self._outside or not any(is_one(column.type) for is_one in _BOUNDED):
                continue
            low, high = (self._bound(f"{end}.{name}", column.type) for end in ("min", "max"))
            if (low is None and high is None) or column.null_count == len(column):
                continue
            found = compute.min_max(column)
            least, greatest = _comparable(found["min"]), _comparable(found["max"])
            if (low is not None and least < low) or (high is not None and greatest > high + _more(column.type)):
                self._outside[name] = f"{name} has values outside the bounds"

    def wrong(self) -> str | None:
        """What does not hold of the rows that were taken in, in words; None where all does."""
        for name, count in self._nulls.items():
            due = self._said.get(f"null_count.{name}")
            if due is not None and due.is_valid and due.as_py() != count:
                self._outside.setdefault(name, f"{name} has {count} nulls, not the {due.as_py()}")
        return next((self._outside[name] for name in sorted(self._outside)), None)

    def _bound(self, name: str, kind: pa.DataType) -> Any:
        said = self._said.get(name)
        return None if said is None or not said.is_valid else _comparable(said.cast(kind))


def _comparable(value: pa.Scalar) -> Any:
    """A value by which others of its column can be compared; times as numbers, as Python's end with the year 9999."""
    return value.value if pat.is_temporal(value.type) else value.as_py()


def _more(kind: pa.DataType) -> Any:
    """By how much a greatest value may be less than it is, as something that can be added to it."""
    if pat.is_timestamp(kind):
        return _MILLISECOND.get(kind.unit, 0)
    return "" if pat.is_string(kind) else 0
