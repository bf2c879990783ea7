"""The result of a query: rows in Arrow batches and their Python values, the same for both engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from cdc_platform.clock import HOUR_NS, MICROSECOND_NS, MILLISECOND_NS, MINUTE_NS, SECOND_NS
from cdc_platform.errors import InputError

ROWS_PER_BATCH = 1 << 13
_Converter = Callable[[Any], Any]
_DURATION_UNITS = (
    ("h", HOUR_NS),
    ("m", MINUTE_NS),
    ("s", SECOND_NS),
    ("ms", MILLISECOND_NS),
    ("us", MICROSECOND_NS),
    ("ns", 1),
)


@dataclass(frozen=True)
class QueryResult:
    """The rows of a query in Arrow batches.

    `integer_columns` holds the indexes of integer columns that Arrow represents as decimals, because it has no integer
    type that is wide enough.
    """

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]
    integer_columns: frozenset[int] = frozenset()

    @property
    def names(self) -> list[str]:
        """The column names; a repeated name gets a number, so that a JSON object holds all of them."""
        distinct: dict[str, None] = {}
        for name in self.schema.names:
            number, free = 1, name
            while free in distinct:
                number += 1
                free = f"{name}_{number}"
            distinct[free] = None
        return list(distinct)

    def values(self) -> Iterator[tuple[Any, ...]]:
        """Yield the rows as Python values.

        A map becomes a list of [key, value] in key order, an interval a text in CQL's notation.

        Raises:
            InputError: a time is outside the years that Python and JSON readers support.
        """
        for batch in self.batches:
            yield from zip(*(self._column(index, column) for index, column in enumerate(batch.columns)), strict=True)

    def _column(self, place: int, column: pa.Array) -> list[Any]:
        if pat.is_timestamp(column.type) and column.type.unit == "ns":
            column = column.cast(pa.timestamp("us", column.type.tz), safe=False)
        try:
            values = column.to_pylist()
        except (ValueError, OverflowError):
            name = self.schema.names[place]
            raise InputError(
                f"column {name} has a time outside the years 1 to 9999; read it as text with CAST({name} AS VARCHAR)"
            ) from None
        convert = int if place in self.integer_columns else _conversion(column.type)
        return values if convert is None else [None if value is None else convert(value) for value in values]


def _conversion(kind: pa.DataType) -> _Converter | None:
    """Return the function that converts pyarrow's values of a type; None if they need no conversion."""
    if kind == pa.month_day_nano_interval():
        return _duration_text
    if pat.is_map(kind):
        key, item = _conversion(kind.key_type), _conversion(kind.item_type)
        return lambda entries: [
            [_convert_or_null(key, one), _convert_or_null(item, other)]
            for one, other in sorted(entries, key=_entry_key)
        ]
    if pat.is_struct(kind):
        parts = {field.name: _conversion(field.type) for field in kind}
        return (
            None
            if not any(parts.values())
            else lambda value: {n: _convert_or_null(parts[n], v) for n, v in value.items()}
        )
    if pat.is_list(kind) or pat.is_large_list(kind) or pat.is_fixed_size_list(kind):
        element = _conversion(kind.value_type)
        return None if element is None else lambda values: [_convert_or_null(element, value) for value in values]
    return None


def _entry_key(entry: tuple[Any, Any]) -> Any:
    return entry[0]


def _convert_or_null(convert: _Converter | None, value: Any) -> Any:
    return value if convert is None or value is None else convert(value)


def _duration_text(interval: Any) -> str:
    """Return an interval of months, days and nanoseconds in CQL's notation of durations: 1mo2d3h, -5m."""
    months, days, remaining = interval
    text = "".join(f"{count}{unit}" for count, unit in ((abs(months), "mo"), (abs(days), "d")) if count)
    remaining, negative = abs(remaining), min(interval) < 0
    for unit, size in _DURATION_UNITS:
        count, remaining = divmod(remaining, size)
        text += f"{count}{unit}" if count else ""
    return f"{'-' if negative else ''}{text or '0s'}"
