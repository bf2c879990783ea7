"""The values of a state of which a native column has but the nearest: as JSON by row, as `exact` has them of a log.

Values are bytes of CQL's protocol, a column at a time; dates and timestamps alone are looked at as a whole.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from cdc_platform.cql.schema import element_key_type
from cdc_platform.cql.types import SMALLINT, CqlType, ListType, MapType, Scalar, SetType, UserType, Value
from cdc_platform.cql.wire import read_value
from cdc_platform.log.exact import encoded, is_far, may_be_far, nearest_of
from cdc_platform.log.state.wire import integers_from_wire


def of_values(kind: CqlType, data: pa.Array) -> dict[int, str]:
    """Of values in one piece (binary), by place: those of which `wire.from_wire` has but the nearest."""
    if not may_be_far(kind):
        return {}
    if isinstance(kind, Scalar):
        values, null = integers_from_wire(kind, data)
        far = (nearest_of(kind.name, values) != values) & ~null
        return {place: encoded(kind, int(values[place])) for place in np.flatnonzero(far).tolist()}
    read = ((place, read_value(kind, each)) for place, each in enumerate(data.to_pylist()) if each is not None)
    return {place: encoded(kind, value) for place, value in read if value is not None and is_far(kind, value)}


def of_elements(kind: CqlType, owners: np.ndarray, paths: pa.Array, values: pa.Array) -> dict[int, str]:
    """Of collections and user types, by owner: those that have such an element; elements come in any order."""
    if not may_be_far(kind):
        return {}
    far = set[int]()
    if isinstance(kind, UserType):
        numbers = [SMALLINT.to_bytes(place) for place in range(len(kind.fields))]
        for number, part in zip(numbers, kind.parts, strict=True):
            mine = [place for place, path in enumerate(paths.to_pylist()) if path == number]
            far |= {mine[place] for place in of_values(part, values.take(pa.array(mine, pa.int64())))}
    else:
        far |= set(of_values(element_key_type(kind).frozen(), paths))
        if isinstance(kind, MapType | ListType):
            far |= set(of_values(kind.parts[-1], values))
    found: dict[int, str] = {}
    for owner in np.unique(owners[list(far)]).tolist() if far else ():
        taken = pa.array(np.flatnonzero(owners == owner))
        found[owner] = encoded(kind, _whole(kind, paths.take(taken).to_pylist(), values.take(taken).to_pylist()))
    return found


def _whole(kind: CqlType, paths: list[bytes], values: list[Any]) -> Value:
    """The canonical value of elements."""
    if isinstance(kind, UserType):
        told = dict(zip(paths, values, strict=True))
        cells = [told.get(SMALLINT.to_bytes(place)) for place in range(len(kind.fields))]
        parts = zip(kind.parts, cells, strict=True)
        return tuple(None if cell is None else read_value(part, cell) for part, cell in parts)
    key = element_key_type(kind).frozen()
    keys = [read_value(key, path) for path in paths]
    if isinstance(kind, SetType):
        return kind.canonical(keys)
    cells = [read_value(kind.parts[-1], value) for value in values]
    if isinstance(kind, MapType):
        return kind.canonical(list(zip(keys, cells, strict=True)))
    order = sorted(range(len(keys)), key=lambda place: key.sort_key(keys[place]))
    return kind.canonical([cells[place] for place in order])
