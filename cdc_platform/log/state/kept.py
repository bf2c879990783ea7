"""The state of a kept table beside its log, in a Delta table of its own that says up to which version it has the log.

It holds nothing that the log does not tell: what it lacks is read from there, and where it cannot be told what that is,
it is made anew. Its folder begins with a dot, since it is no table of the home.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from hashlib import blake2b

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cdc_platform.clock import ms_of
from cdc_platform.cql.mutation import Mutation, merge
from cdc_platform.cql.schema import TableSchema
from cdc_platform.lake import frames
from cdc_platform.lake.appended import added_files, appended, file_rows, file_size, files_at, stored_schema
from cdc_platform.lake.arrow import compute, tokens_of_column
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import TIMESTAMP, Table, column
from cdc_platform.lake.translate import translated
from cdc_platform.lake.volume import Workers
from cdc_platform.log.log_table import log_table
from cdc_platform.log.log_values import Row, rows_table
from cdc_platform.log.state.merging import merged
from cdc_platform.log.state.of_log import state_of_log
from cdc_platform.log.state.of_mutations import mutations_of
from cdc_platform.log.state.shape import STATE
from cdc_platform.log.state.slices import Sources, sliced
from cdc_platform.log.stored_names import WRITTEN_AT
from cdc_platform.places import place_of

_COMMITS = "cdc-platform/state"
_COVERED = "cdc-platform/state/log"
"""Its number is the version of the log that the state has."""
_OF = "cdc-platform/state/of"
"""Its number tells of which table the state is, among those that had its name."""
_ROWS_A_FILE = 100_000
_MOST_FILES = 16
_TOKEN = "token"
_COMMENTS = {
    "partition": "serialized partition key",
    "clustering": "clustering key; of a range, its start",
    "kind": "0 partition, 1 range, 2 row tombstone, 3 row marker, 4 collection tombstone, 5 cell",
    "column": "column of a cell or of a collection",
    "path": "key of an element; of a range, its end",
    "timestamp": "time of the write, µs",
    "ttl": "seconds that it lives; 0: for ever",
    "expires": "when it expires, µs; 0: never",
    "dead": "true: the cell was deleted",
    "value": "bytes of the value",
    "inexact": "true: seen in the cluster, which does not tell when it was written",
}


def state_table(schema: TableSchema) -> Table:
    """The Delta table of a base table's state: `shape.STATE`, in the order of tokens."""
    fields = [column(each.name, each.type, _COMMENTS[each.name], null=each.nullable) for each in STATE]
    return Table(
        schema.keyspace,
        f".{schema.log_name}.state",
        pa.schema([column(_TOKEN, pa.int64(), "token of the partition key"), *fields]),
        keys=("partition", "clustering", "kind", "column", "path"),
        comment=f"State of {schema.full_name}, as its log tells it",
        follows_from=(f"{schema.keyspace}.{schema.log_name}",),
        of_readers=True,
    )


@dataclass(frozen=True)
class _Part:
    """Some rows of a state in the order of tokens, of these tokens, that are merged among themselves."""

    low: int
    high: int
    path: str | None = None
    given: pa.Table | None = None

    @cached_property
    def rows(self) -> pa.Table:
        """The rows, from their file where they are in one."""
        if self.given is not None:
            return self.given
        assert self.path is not None
        with translated(f"reading {self.path}"), pq.ParquetFile(place_of(self.path).source()) as parquet:
            return parquet.read().sort_by(_TOKEN).combine_chunks()

    @cached_property
    def tokens(self) -> np.ndarray:
        """The token of each row."""
        return np.asarray(self.rows[_TOKEN])

    def of_partition(self, token: int, key: bytes) -> pa.Table:
        """The rows of a partition."""
        if not self.low <= token <= self.high:
            return STATE.empty_table()
        first, last = np.searchsorted(self.tokens, [token, token + 1])
        found = self.rows.slice(first, last - first).select(STATE.names)
        return found.filter(compute.equal(found["partition"], key)) if found.num_rows else found


@dataclass(frozen=True)
class KeptState:
    """The state of a base table, as its log tells it, that reads no more of it than it is asked for.

    `beside`: some of it was kept beside the log; else all of it was made from the log.
    """

    parts: list[_Part] = field(default_factory=list)
    beside: bool = False

    def partition(self, schema: TableSchema, token: int, key: bytes) -> Mutation | None:
        """What a partition has come to, by its token and its serialized key; None where nothing was written to it."""
        found = [part.of_partition(token, key) for part in self.parts]
        states = [mutations_of(schema, rows)[key] for rows in found if rows.num_rows]
        return merge(states) if states else None

    def whole(self, schema: TableSchema) -> pa.Table:
        """The state of all partitions (`shape.STATE`), merged."""
        return merged(schema, (part.rows.select(STATE.names) for part in self.parts))


def state_of_rows(schema: TableSchema, rows: Iterable[Row]) -> KeptState:
    """The state that log rows in this process's memory, with values in canonical form, tell of."""
    given = list(rows)
    return KeptState(list(_in_memory(_of_log(schema, [rows_table(schema, given)])))) if given else KeptState()


def kept_state(lake: Lake, schema: TableSchema, version: int | None) -> KeptState:
    """The state that a version of a table's log tells of, from the kept one as far as that goes.

    Nothing is written. A table without a log (None), or whose log holds keys alone, has no state; what was written
    before it was truncated is in its log alone.

    Raises:
        InputError: a row of the log is none, or a batch of it is not complete.
    """
    if version is None or schema.cdc.delta != "full":
        return KeptState()
    since = _covered(lake, schema)
    lacking = None if since is None or since > version else appended(lake, log_table(schema), since, version)
    if lacking is None:
        return KeptState(list(_in_memory(logged_state(lake, schema, version))))
    return KeptState([*_stored(lake, schema), *_in_memory(_of_log(schema, lacking))], beside=True)


def logged_state(lake: Lake, schema: TableSchema, version: int | None) -> pa.Table:
    """The merged state (`shape.STATE`) that a version of a table's log tells of by itself, whatever is kept beside it.

    Raises:
        InputError: a row of the log is none, or a batch of it is not complete.
    """
    return _of_log(schema, [] if version is None else [lake.read_version(log_table(schema), version)])


def keep_state(lake: Lake, schema: TableSchema) -> None:
    """Bring the kept state of a table up to the newest version of its log, once, in one commit that says so.

    What was appended to the log is appended; where anything else became of it, and where many files have come
    together, the state is written anew. It does not matter when this is done, nor whether: readers read what is left.

    Raises:
        As `kept_state`.
    """
    version = lake.version(log_table(schema))
    since = _covered(lake, schema)
    if version is None or schema.cdc.delta != "full" or since == version:
        return
    table = state_table(schema)
    if not lake.exists(table):
        lake.ensure(table)
    transaction = _COMMITS, (lake.transaction(table, _COMMITS) or 0) + 1
    beside = {_COVERED: version, _OF: _identity(schema)}
    log = log_table(schema)
    came = None if since is None or since > version else _sources(lake, log, added_files(lake, log, since, version))
    is_anew = came is None or len(lake.data_files(table)) >= _most_files(lake, table)
    stored = lake.bounded_files(table, _TOKEN) if is_anew and came is not None else []
    logs = came if came is not None else _sources(lake, log, files_at(lake, log, version)) or []
    states: Sources = [(file.rows, partial(_state_rows, file.path)) for file in stored]
    rows = sliced(schema, logs, states, partial(_merged_by_token, schema), _TOKEN)
    put = frames.replace_all if is_anew else frames.append
    put(Workers.alone(), lake, table, rows, transaction, beside)


def _sources(lake: Lake, log: Table, paths: list[str] | None) -> Sources | None:
    """The files of a log; None where that is not known, or one of them is gone."""
    if paths is None:
        return None
    types = stored_schema(lake, log)
    try:
        return [(file_size(path), partial(file_rows, path, types)) for path in paths]
    except FileNotFoundError:
        return None


def _merged_by_token(schema: TableSchema, logs: list[pa.Table], states: list[pa.Table]) -> pa.Table:
    told = _of_log(schema, logs)
    return _with_tokens(merged(schema, [told, *states]) if states else told)


def _state_rows(path: str) -> pa.Table:
    return file_rows(path, STATE).select(STATE.names).cast(STATE)


def _stored(lake: Lake, schema: TableSchema) -> list[_Part]:
    files = lake.bounded_files(state_table(schema), _TOKEN)
    return [_Part(file.low, file.high, file.path) for file in files if file.rows]


def _most_files(lake: Lake, table: Table) -> int:
    """How many files are too many: those that a state of this size has when it is written as a whole, and some more."""
    rows = sum(file.rows for file in lake.data_files(table))
    return _MOST_FILES + 2 * (rows // _ROWS_A_FILE)


def _identity(schema: TableSchema) -> int:
    """A number (63 bits) of the shape and of a table that was made, truncated and given its log when this one was."""
    since = (STATE.names, ms_of(schema.created_at_us), schema.truncated_us or 0, schema.log_since_us or 0)
    return int.from_bytes(blake2b(repr(since).encode(), digest_size=8).digest(), "big") >> 1


def _covered(lake: Lake, schema: TableSchema) -> int | None:
    """The version of the log that the kept state has; None where there is none of this table."""
    table = state_table(schema)
    if not lake.exists(table) or lake.transaction(table, _OF) != _identity(schema):
        return None
    return lake.transaction(table, _COVERED)


def _of_log(schema: TableSchema, logs: list[pa.Table]) -> pa.Table:
    """The merged state that rows of the log tell of."""
    # A batch may have come in two files.
    found = [_since_truncated(schema, log) for log in logs if log.num_rows]
    whole = pa.concat_tables(found, promote_options="default") if found else None
    return merged(schema, [state_of_log(schema, whole)] if whole is not None and whole.num_rows else [])


def _since_truncated(schema: TableSchema, log: pa.Table) -> pa.Table:
    truncated = schema.truncated_us
    if truncated is None:
        return log
    return log.filter(compute.greater_equal(log[WRITTEN_AT].cast(TIMESTAMP), pa.scalar(truncated, TIMESTAMP)))


def _with_tokens(state: pa.Table) -> pa.Table:
    keys = state["partition"].combine_chunks()
    return state.add_column(0, _TOKEN, pa.array(tokens_of_column(keys))).sort_by(_TOKEN).combine_chunks()


def _in_memory(state: pa.Table) -> Iterator[_Part]:
    if state.num_rows:
        rows = _with_tokens(state)
        yield _Part(rows[_TOKEN][0].as_py(), rows[_TOKEN][-1].as_py(), given=rows)
