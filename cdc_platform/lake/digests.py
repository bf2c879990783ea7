"""What slices of a table hold, as numbers: the sums of the digests of their rows, by the rule that the table has.

A slice's digest is the sum of the digests of its rows modulo 2^128. So it depends neither on the order of the rows nor
on the files they are in, a row that is there twice counts twice, and what a change adds and takes away is added and
taken away. An empty slice has 0. Who wants to can forge a sum: it shows changes, it proves nobody honest.

The digest of a row is of its columns without those that name the slice, by one of two rules, which a table keeps as
long as there is one: sums of two rules have nothing in common.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

import numpy as np
import pyarrow as pa

from cdc_platform.clock import format_us, from_datetime
from cdc_platform.errors import StateError
from cdc_platform.lake.arrow import compute
from cdc_platform.lake.encoding import one_array
from cdc_platform.lake.row_digests import row_digests
from cdc_platform.lake.row_numbers import row_numbers

MODULUS = 1 << 128

Digests = Mapping[str, int]
"""The digest of each slice by its name: `column=value` of its partition columns, empty where a table has none."""


class Rule(StrEnum):
    """How the rows of a table are digested, as the table's property PROPERTY names it.

    WORDS: a row's number of 64 bits (see `row_numbers`), made of whole columns at once, in a sixth of the time.
    BLAKE2B: 128 bits of each row's own bytes (see `row_digests`), of tables from before there were rules.
    """

    WORDS = "words-64"
    BLAKE2B = "blake2b-128"


NEWEST = Rule.WORDS
PROPERTY = "cdc_platform.digests"


def rule_of(table: str, properties: Mapping[str, str | None]) -> Rule:
    """The rule of a table (its name is for the message) with these properties.

    Raises:
        StateError: it is none that this version knows.
    """
    named = properties.get(PROPERTY) or Rule.BLAKE2B
    try:
        return Rule(named)
    except ValueError:
        raise StateError(
            f"{table} digests rows by {named!r}, this version knows {', '.join(Rule)} ({PROPERTY} of the table's "
            "properties); use the version of the platform that made it"
        ) from None


def slice_name(columns: Sequence[str], values: Sequence[Any]) -> str:
    """The name of a slice: its partition columns and their values; that of a table without any is empty."""
    return "/".join(f"{name}={_text(value)}" for name, value in zip(columns, values, strict=True))


def slice_of(columns: Sequence[str], where: Mapping[str, Any]) -> str:
    """The name of the slice in which each of the partition columns has its value in `where`."""
    return slice_name(columns, [where[name] for name in columns])


def of_rows(rows: pa.Table, partition_by: Sequence[str], rule: Rule) -> dict[str, int]:
    """The sums of the digests of rows, by the slice that they belong to; none of no rows."""
    if not rows.num_rows:
        return {}
    found = _of_each(rows.drop_columns(list(partition_by)), rule)
    if not partition_by:
        return {"": _number(found)}
    totals: dict[str, int] = {}
    for key, places in _grouped([rows[name] for name in partition_by]):
        totals[slice_name(partition_by, key)] = _number(found[places])
    return totals


def changed(before: Digests, added: Digests, removed: Digests) -> dict[str, int]:
    """The digests of the slices that a change touches, after it; a slice that `before` lacks was empty."""
    names = dict.fromkeys([*added, *removed])
    return {name: (before.get(name, 0) + added.get(name, 0) - removed.get(name, 0)) % MODULUS for name in names}


def summed(parts: Iterable[Digests]) -> dict[str, int]:
    """The digests of slices of which each part has some rows."""
    totals: dict[str, int] = {}
    for part in parts:
        totals = totals | changed(totals, part, {})
    return totals


def slices_in(rows: pa.Table, partition_by: Sequence[str]) -> list[str]:
    """The names of the slices that rows belong to."""
    if not rows.num_rows or not partition_by:
        return [""] * bool(rows.num_rows)
    return [slice_name(partition_by, key) for key, _ in _grouped([rows[name] for name in partition_by])]


def _of_each(rows: pa.Table, rule: Rule) -> np.ndarray:
    """The digest of each row, as uint32[n, words], the lowest word first."""
    if rule == Rule.BLAKE2B:
        return row_digests(rows)
    return row_numbers(rows).astype("<u8", copy=False).view("<u4").reshape(-1, 2)


def _number(found: np.ndarray) -> int:
    # Column by column: numpy takes twenty times as long along rows of two.
    words = (int(found[:, place].sum(dtype=np.uint64)) for place in range(found.shape[1]))
    return sum(word << (32 * place) for place, word in enumerate(words)) % MODULUS


def _grouped(columns: Sequence[pa.ChunkedArray]) -> Iterator[tuple[tuple[Any, ...], np.ndarray]]:
    """The rows (their places) of each combination of values."""
    encoded = [one_array(column).dictionary_encode() for column in columns]
    # All of a row in one number; a null has none of the dictionary's places.
    codes, places = np.zeros(len(columns[0]), dtype=np.int64), 1
    for each in encoded:
        codes += places * (np.asarray(compute.fill_null(each.indices, -1)).astype(np.int64) + 1)
        places *= len(each.dictionary) + 1
    order = np.argsort(codes, kind="stable") if codes.min() < codes.max() else np.arange(len(codes))
    begins = np.flatnonzero(np.diff(codes[order], prepend=-1))
    for some in np.split(order, begins[1:]):
        first = int(some[0])
        yield tuple(each[first].as_py() for each in encoded), some


def _text(value: Any) -> str:
    return format_us(from_datetime(value)) if hasattr(value, "tzinfo") else str(value)
