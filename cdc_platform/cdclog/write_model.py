"""The pandera model of typed writes: one named check per rule, each judging every row of a frame.

The frames have Arrow columns, so that nested values stay as they are. Rows are never dropped or changed: a frame's bad
rows are returned with the check that they fail and the reason. Importing this module imports pandera and pandas.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pandera.config import ValidationDepth, config_context
from pandera.errors import SchemaErrors
from pandera.pandas import Check, Column, DataFrameSchema

from cdc_platform.cdclog.batch_encoder import (
    is_write_operation,
    is_write_time,
    is_write_ttl,
    validate_write_values,
)
from cdc_platform.cdclog.schema import typed_writes_schema, with_stored_names
from cdc_platform.clock import Microseconds, format_us
from cdc_platform.cql import MAX_WRITE_TTL, TableSchema
from cdc_platform.delta import compute, to_single_array
from cdc_platform.errors import InputError
from cdc_platform.generations import get_operating_index
from cdc_platform.ring import Bools, Int64s

_MAX_SEARCHED = 1_000
"""The most rows of a frame that are searched one by one for the reason why they do not fit the table."""


@dataclass(frozen=True)
class OperatingTimes:
    """The times (int64, µs) from which streams operate, and whether they are still known (bool)."""

    begins_us: Int64s
    known: Bools

    def cover(self, timestamps: Int64s) -> Bools:
        """Return the timestamps (int64, µs) at which known streams operate."""
        index = get_operating_index(self.begins_us, timestamps)
        return np.append(self.known, False)[index]


@dataclass(frozen=True)
class BadWrite:
    """A write that fails a check: its primary key as JSON, its timestamp (µs), the check and the reason."""

    key: str
    timestamp_us: int | None
    check: str
    reason: str


class WriteModel:
    """The model of a table's typed writes (`typed_writes_schema`), and the search for the rows that fail it."""

    def __init__(self, schema: TableSchema, times: OperatingTimes) -> None:
        self._schema = schema
        self._stored = with_stored_names(schema)
        self._times = times
        self._columns = typed_writes_schema(schema)
        checks = [
            ("operation_known", "the operation is one of 1 to 6, see `typed_writes_schema`", self.operation_known),
            ("timestamp_in_bounds", "the timestamp is a time of the years 1582 to 5236", self.timed),
            ("generation_operates", "a known generation or stream set operates at the timestamp", self.operates),
            ("ttl_in_bounds", f"the TTL is 0 to {MAX_WRITE_TTL} seconds", self.ttl_in_bounds),
            ("partition_key_complete", "no column of the partition key is null", self.keyed),
            ("write_fits_table", "the values and columns are those that table and operation allow", self.fits_table),
        ]
        self.model = DataFrameSchema(
            {field.name: Column(None, nullable=True) for field in self._columns},
            checks=[self._check(*check) for check in checks],
            strict=True,
            ordered=True,
            name=f"writes to {schema.full_name}",
        )

    def operation_known(self, frame: pd.DataFrame) -> Bools:
        """The operation is one that a write can have."""
        return is_write_operation(_integers(frame, "operation", 0))

    def timed(self, frame: pd.DataFrame) -> Bools:
        """The timestamp is not null, and a timeuuid can express it."""
        return _is_valid(frame, "timestamp") & is_write_time(_integers(frame, "timestamp", 0))

    def operates(self, frame: pd.DataFrame) -> Bools:
        """A known generation or stream set operates at the timestamp."""
        return ~self.timed(frame) | self._times.cover(_integers(frame, "timestamp", 0))

    def ttl_in_bounds(self, frame: pd.DataFrame) -> Bools:
        """The TTL is null, which stands for the table's, or a number of seconds that CQL accepts."""
        return is_write_ttl(_integers(frame, "ttl", 0))

    def keyed(self, frame: pd.DataFrame) -> Bools:
        """Every column of the partition key has a value."""
        return np.logical_and.reduce([_is_valid(frame, key.name) for key in self._stored.partition_key])

    def fits_table(self, frame: pd.DataFrame) -> Bools:
        """The encoder accepts the write; rows that fail another check are not judged."""
        rules = (self.operation_known, self.timed, self.ttl_in_bounds, self.keyed)
        judged = np.flatnonzero(np.logical_and.reduce([rule(frame) for rule in rules]))
        rows = _batch(frame, self._columns)
        fits = np.ones(len(frame), dtype=bool)
        chosen = rows if len(judged) == len(frame) else rows.take(pa.array(judged))
        fits[judged[list(_find_refused(chosen, self._refusal))]] = False
        return fits

    def find_bad_writes(self, batch: pa.RecordBatch, most: int) -> tuple[Counter[str], list[BadWrite]]:
        """Return the numbers of the batch's rows that fail a check, by check, and the first `most` of these rows.

        Each row is counted once, with the first check that it fails.
        """
        frame = pa.Table.from_batches([batch]).to_pandas(types_mapper=pd.ArrowDtype)
        try:
            # The environment can disable validation; writes that were not validated must not pass.
            with config_context(validation_enabled=True, validation_depth=ValidationDepth.SCHEMA_AND_DATA):
                self.model.validate(frame, lazy=True, inplace=True)
        except SchemaErrors as errors:
            failed = _failed_checks(errors, len(frame))
        else:
            return Counter(), []
        rows = np.flatnonzero(np.logical_or.reduce(list(failed.values()))).tolist()
        checks = [next(name for name, mask in failed.items() if mask[row]) for row in rows]
        samples = list(zip(rows, checks, strict=True))[:most]
        return Counter(checks), [self._bad_write(batch, row, name) for row, name in samples]

    def _check(self, name: str, meaning: str, rule: Callable[[pd.DataFrame], Bools]) -> Any:
        def check(frame: pd.DataFrame) -> pd.Series:
            return pd.Series(rule(frame), index=frame.index)

        return Check(check, name=name, title=name, description=meaning, n_failure_cases=1)

    def _refusal(self, rows: pa.RecordBatch) -> str | None:
        try:
            validate_write_values(self._schema, rows)
        except InputError as error:
            return str(error)
        return None

    def _bad_write(self, batch: pa.RecordBatch, row: int, name: str) -> BadWrite:
        (values,) = batch.slice(row, 1).to_pylist()
        keys = [key.name for key in (*self._stored.partition_key, *self._stored.clustering_key)]
        at_us = values["timestamp"]
        reasons = {
            "operation_known": f"operation {values['operation']} is none of 1 to 6",
            "timestamp_in_bounds": "it has no timestamp" if at_us is None else f"timestamp {at_us} is no time in µs",
            "ttl_in_bounds": f"ttl {values['ttl']} is not 0 to {MAX_WRITE_TTL} seconds",
            "partition_key_complete": f"it has no {', '.join(key for key in keys if values[key] is None)}",
        }
        if name == "generation_operates":
            reason = f"no known generation operates at {format_us(Microseconds(at_us))}"
        elif name == "write_fits_table":
            reason = _for_one_write(self._refusal(batch.slice(row, 1)) or "the table refuses it")
        else:
            reason = reasons[name]
        return BadWrite(json.dumps({key: values[key] for key in keys}, default=_text), at_us, name, reason)


def _failed_checks(errors: SchemaErrors, rows: int) -> dict[str, Bools]:
    """Return the rows (bool[n]) that fail each check, in the order of the checks."""
    failed: dict[str, Bools] = {}
    for error in errors.schema_errors:
        output, check = np.asarray(error.check_output), error.check
        assert check is not None
        assert output.dtype == bool, f"a frame has the columns of its model: {error}"
        assert output.shape == (rows,)
        failed[str(check.name)] = ~output
    return failed


def _find_refused(rows: pa.RecordBatch, refusal: Callable[[pa.RecordBatch], str | None]) -> list[int]:
    """Return the rows that are refused on their own, by halving what is refused together."""
    refused: list[int] = []
    ranges = [(0, len(rows))] if len(rows) else []
    while ranges:
        start, end = ranges.pop()
        if refusal(rows.slice(start, end - start)) is None:
            continue
        if end - start == 1:
            refused.append(start)
            if len(refused) == _MAX_SEARCHED:
                break
            continue
        middle = (start + end) // 2
        ranges += [(middle, end), (start, middle)]
    return refused


def _batch(frame: pd.DataFrame, columns: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([_array(frame, name) for name in columns.names], schema=columns)


def _array(frame: pd.DataFrame, name: str) -> Any:
    values: Any = frame[name].array
    return to_single_array(values.__arrow_array__())


def _integers(frame: pd.DataFrame, name: str, missing: int) -> Int64s:
    return np.asarray(compute.fill_null(_array(frame, name).cast(pa.int64()), missing))


def _is_valid(frame: pd.DataFrame, name: str) -> Bools:
    return np.asarray(compute.is_valid(_array(frame, name)))


def _for_one_write(message: str) -> str:
    """Return a message in the singular, without its count."""
    for pattern, text in _SINGULAR:
        message = re.sub(pattern, text, message)
    return message


_SINGULAR = (
    (r" of 1 writes\b", ""),
    (r"^1 writes (?:to a row )?have\b", "it has"),
    (r"^1 writes\b", "it"),
    (r"^1 deletions of a partition \((.*?)\) have\b", r"it deletes a partition (\1) and has"),
    (r"^1 deletions \((.*?)\) also write\b", r"it is a deletion (\1) and also writes"),
)


def _text(value: object) -> str:
    return f"0x{value.hex()}" if isinstance(value, bytes) else str(value)
