"""A table on the stand-in whose log tests write to at chosen times, in the streams of its generations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from support.standin.world import World

from cdc_platform.cdclog.batch_encoder import encode_log_batch
from cdc_platform.cdclog.schema import typed_writes_schema
from cdc_platform.clock import Microseconds, Milliseconds, us_from_ms
from cdc_platform.cql import Catalog, TableSchema, apply_definition, parse_statements
from cdc_platform.cql import ast as s
from cdc_platform.delta import stream_ids_to_arrow, tokens_from_keys
from cdc_platform.generations import StreamSet, TopologyDescription


def defined(ddl: str) -> TableSchema:
    """Return the last table that CQL creates."""
    catalog, name = Catalog(), None
    for statement in parse_statements(ddl):
        assert isinstance(statement.body, s.DefinitionStatement)
        apply_definition(catalog, statement.body, Microseconds(0))
        name = statement.body.name if isinstance(statement.body, s.CreateTable) else name
    assert name is not None
    return catalog.table(name)


@dataclass
class LiveLog:
    """The log of a table with all rows written to it. `generations` are by time (ms)."""

    world: World
    schema: TableSchema
    generations: Mapping[Milliseconds, TopologyDescription | StreamSet]
    written: list[pa.Table] = field(default_factory=list)

    def make(self) -> LiveLog:
        """Create the tables, as of the first generation's time."""
        self.world.logged_table(self.schema, min(self.generations))
        return self

    def write(self, times_us: Sequence[int], **columns: Sequence[int]) -> pa.Table:
        """Log an insert at each time (µs): `p` is its index, other columns are 0 unless given."""
        defaults = {name: [0] * len(times_us) for name in ("k", "v") if self.schema.has(name)}
        generated = {"operation": [2] * len(times_us), "timestamp": list(times_us), "p": list(range(len(times_us)))}
        typed = pa.table({**generated, **defaults, **columns})
        schema = typed_writes_schema(self.schema)
        arrays = [
            typed[column.name].cast(column.type).combine_chunks()
            if column.name in typed.column_names
            else pa.nulls(len(times_us), column.type)
            for column in schema
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        rows = pa.Table.from_batches([encode_log_batch(self.schema, batch, self._streams)])
        self.world.log_rows(self.schema, rows)
        self.written.append(rows)
        return rows

    def written_keys(self) -> list[tuple[bytes, str, int]]:
        """Return the keys of all written rows, sorted."""
        return sorted(key for rows in self.written for key in keys_of(rows))

    def _streams(self, keys: pa.Array, timestamps: pa.Array) -> pa.Array:
        times = sorted(self.generations)
        tokens, out = tokens_from_keys(keys), np.zeros((len(keys), 16), np.uint8)
        begun = np.searchsorted([us_from_ms(time) for time in times], np.asarray(timestamps), side="right") - 1
        for index in np.unique(begun).tolist():
            assert index >= 0
            out[begun == index] = self.generations[times[index]].streams_of(tokens[begun == index])
        return stream_ids_to_arrow(out)


def keys_of(rows: pa.Table) -> list[tuple[bytes, str, int]]:
    """Return the keys of log rows, sorted, with duplicates."""
    names = ("cdc$stream_id", "cdc$time", "cdc$batch_seq_no")
    return sorted(zip(*(rows[name].to_pylist() for name in names), strict=True))
