"""Typed writes to tables with images, in volume: partition by partition, each on the state that the table's log tells.

Knows how whole partitions come to one task of Spark; what the rows are is `typed_images`'.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from cdc_platform.cql.mutation import Mutation
from cdc_platform.cql.schema import TableSchema
from cdc_platform.lake.appended import stored_schema
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.shape import quoted, spark_struct
from cdc_platform.lake.volume import whole_groups
from cdc_platform.log.fingerprint import fingerprints
from cdc_platform.log.key_bytes import key_bytes
from cdc_platform.log.log_table import log_table
from cdc_platform.log.state.kept import KeptState, kept_state
from cdc_platform.log.stored_names import EXACT, stored
from cdc_platform.log.typed_images import Before, imaged_batch
from cdc_platform.ring import tokens_of_keys
from cdc_platform.timeline import StreamsOf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_KEY = "cdc$partition_key"


def states_before(lake: Lake, schema: TableSchema) -> Before:
    """What partitions of a table have come to, as its log in the lake tells it now.

    Raises:
        InputError: a row of the log is none, or a batch of it is not complete.
    """
    return _before(schema, kept_state(lake, schema, lake.version(log_table(schema))))


def imaged_rows(lake: Lake, schema: TableSchema, writes: DataFrame, streams_of: StreamsOf) -> DataFrame:
    """The log rows, with images, of writes in all columns of `log_table.writes_schema`, on what the log tells now.

    Writes to one partition take effect by their timestamps, and at one time in an order that only they themselves
    decide. A task holds the writes of one partition at a time, and a batch.
    """
    from pyspark.sql import functions as F

    root, version, exact = str(lake.place), lake.version(log_table(schema)), _has_exact(lake, schema)
    columns = log_table(schema, exact=exact).schema

    def keys(*of_key: pa.Array) -> pa.Array:
        return key_bytes(stored(schema), of_key)

    def logged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        before = _before(schema, _state(root, schema, version))
        for whole in whole_groups(batches, _KEY):
            rows = imaged_batch(schema, _ordered(whole), streams_of, before, exact=exact)
            yield from rows.select(columns.names).combine_chunks().to_batches()

    # The stubs know only the calls that say of what kind the function is, against which pyspark warns.
    arrow_udf: Any = F.arrow_udf
    key = arrow_udf(keys, "binary")(*(quoted(column.name) for column in stored(schema).partition_key))
    keyed = writes.withColumn(_KEY, key).repartition(F.col(quoted(_KEY))).sortWithinPartitions(quoted(_KEY))
    return keyed.mapInArrow(logged, spark_struct(columns))


def _ordered(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """The writes of whole partitions in an order that does not depend on how they came."""
    writes = pa.Table.from_batches(batches).drop_columns([_KEY]).combine_chunks().to_batches()[0]
    return writes.take(pa.array(np.argsort(fingerprints(writes.columns, len(writes)), kind="stable")))


def _before(schema: TableSchema, state: KeptState) -> Before:
    def found(key: bytes) -> Mutation | None:
        return state.partition(schema, int(tokens_of_keys([key])[0]), key)

    return found


@lru_cache(maxsize=2)
def _state(root: str, schema: TableSchema, version: int | None) -> KeptState:
    """The state at a version of the log, opened once a worker."""
    return kept_state(Lake(root), schema, version)


def _has_exact(lake: Lake, schema: TableSchema) -> bool:
    return lake.exists(log_table(schema)) and EXACT in stored_schema(lake, log_table(schema)).names
