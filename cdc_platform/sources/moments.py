"""The moment at which an import entered rows of the ledger, which no exported file has.

All rows of an import have one. Delta's log keeps its millisecond for each data file, also for one that is gone, and the
digest that the rows have to have shows which of the thousand microseconds it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import product
from math import prod

import pyarrow as pa

from cdc_platform.clock import ONE_MS, Microseconds, from_datetime, to_datetime, us_of
from cdc_platform.lake import digests
from cdc_platform.lake.arrow import compute
from cdc_platform.lake.files import BoundedFile
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import GENERATIONS

_ENTERED, _PUBLISHED = "created_at", "published_at"
_MOST_TRIES = 2_000_000
"""Of two files there are a million moments."""


def at_their_moments(lake: Lake, rows: pa.Table, kept: pa.Table, lost: Sequence[str], due: int) -> pa.Table | None:
    """Rows of the ledger at the moments at which they, with `kept` ones, have the digest `due`; None: there are none.

    Among `rows` are those that the data files `lost`, which are named by their paths, had.
    """
    rule = lake.digest_rule(GENERATIONS)

    def digest(some: pa.Table) -> int:
        return digests.of_rows(some, (), rule).get("", 0)

    of_files: list[list[tuple[int, pa.Table]]] = []
    for file in _bounds(lake, lost, "time"):
        held = rows.filter((compute.field("time") >= file.low) & (compute.field("time") <= file.high))
        if held.num_rows != file.rows:
            return None
        of_files.append([(digest(some), some) for some in _entered(lake, held, file.path)])
    if prod(map(len, of_files)) > _MOST_TRIES:
        return None
    missing = (due - digest(kept)) % digests.MODULUS
    for some in product(*of_files):
        if sum(number for number, _ in some) % digests.MODULUS == missing:
            return pa.concat_tables([kept, *(each for _, each in some)])
    return None


def _bounds(lake: Lake, paths: Sequence[str], name: str) -> list[BoundedFile]:
    """The files of these paths with the bounds of a column."""
    return [file for file in lake.bounded_files(GENERATIONS, name) if file.path in paths]


def _entered(lake: Lake, rows: pa.Table, path: str) -> Iterator[pa.Table]:
    """Rows that a file had, as entered at each moment at which all of them can have been."""
    (entered,), (published,) = (_bounds(lake, [path], name) for name in (_ENTERED, _PUBLISHED))
    if entered.low is None or entered.low != entered.high:
        return
    first = from_datetime(entered.low)
    for moment in range(first, first + us_of(ONE_MS)):
        yield _at(rows, to_datetime(Microseconds(moment)), is_published=published.low is not None)


def _at(rows: pa.Table, moment: datetime, *, is_published: bool) -> pa.Table:
    """Rows as entered at a moment, which is also when their publishing was finished, where it was."""
    at = pa.scalar(moment, GENERATIONS.schema.field(_ENTERED).type)
    never = pa.scalar(None, at.type)
    published = compute.if_else(compute.is_valid(rows[_PUBLISHED]), at if is_published else never, never)
    for name, values in ((_ENTERED, pa.repeat(at, rows.num_rows)), (_PUBLISHED, published)):
        rows = rows.set_column(rows.schema.get_field_index(name), GENERATIONS.schema.field(name), values)
    return rows
