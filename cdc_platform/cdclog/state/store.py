"""Store a table's state in a Delta table beside its log, with the version of the log that it covers.

The state is a cache: missing parts are read from the log, and it is rebuilt if what is missing is unknown.
Rebuilding holds one token range in memory at a time. The folder starts with a dot, since it is no table of the
home.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from hashlib import blake2b

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cdc_platform.cdclog.schema import WRITTEN_AT, log_table
from cdc_platform.cdclog.state.from_log import log_partition_keys, state_from_log
from cdc_platform.cdclog.state.merge import merge_states
from cdc_platform.cdclog.state.model import STATE_SCHEMA
from cdc_platform.cdclog.state.mutations import mutations_from_state
from cdc_platform.cdclog.values import LogRowMapping, log_rows_to_arrow
from cdc_platform.clock import ms_from_us
from cdc_platform.cql import Mutation, TableSchema, merge_mutations
from cdc_platform.delta import (
    Lake,
    TaskRows,
    TaskRunner,
    compute,
    count_file_rows,
    list_files_added_since,
    list_files_at_version,
    read_changes_since,
    read_stored_file,
    read_stored_schema,
    to_single_array,
    tokens_from_keys,
    translate_errors,
)
from cdc_platform.spark import frames
from cdc_platform.storage import parse_path
from cdc_platform.tables import TIMESTAMP, Table, column

_ROWS_PER_TOKEN_RANGE = 100_000
_FILES_PER_TOKEN_RANGE = 2
_TOKENS = 1 << 64
_FIRST_TOKEN = -(1 << 63)

TableSources = Sequence[tuple[int, Callable[[], pa.Table]]]
"""Tables, each with its number of rows, which are read when they are asked for, and again for each slice."""


def split_by_token(
    schema: TableSchema, logs: TableSources, states: TableSources, merge: Callable[..., pa.Table], token: str
) -> TaskRows:
    """The rows of the state in parts, each of tokens of its own and in their order, none of which is large.

    `merge` makes a state in the order of tokens, which its column `token` has, of tables of a log and of states.
    """
    rows = sum(count for count, _ in (*logs, *states))
    slices = -(-rows // _ROWS_PER_TOKEN_RANGE)
    files = (
        slices * _FILES_PER_TOKEN_RANGE
        if slices > 1
        else slices * (1 + rows * _FILES_PER_TOKEN_RANGE // _ROWS_PER_TOKEN_RANGE)
    )
    files_a_slice = files // slices if slices else 0

    @lru_cache(maxsize=1)
    def of_slice(number: int) -> pa.Table:
        edges = number, number + 1, slices
        chosen = [
            _filter_tokens(table, lambda table=table: log_partition_keys(schema, table), *edges)
            for table in _read_sources(logs)
        ]
        known = [
            _filter_tokens(table, lambda table=table: table["partition"], *edges) for table in _read_sources(states)
        ]
        return merge(chosen, known)

    def batches(number: int) -> Iterator[pa.RecordBatch]:
        table = of_slice(number // files_a_slice)
        tokens = np.asarray(table[token])
        first, last = (_edge_position(tokens, edge, files) for edge in (number, number + 1))
        yield from table.slice(first, last - first).to_batches()

    return TaskRows(files, batches)


def _read_sources(sources: TableSources) -> Iterator[pa.Table]:
    return (read() for _, read in sources)


def _filter_tokens(table: pa.Table, keys: Callable[[], pa.Array], first: int, last: int, of: int) -> pa.Table:
    """The rows of the partitions whose tokens are from one of so many edges of the ring up to another."""
    if of == 1 or not table.num_rows:
        return table
    tokens = tokens_from_keys(to_single_array(keys()))
    chosen = np.ones(len(tokens), dtype=bool)
    if first:
        chosen &= tokens >= _token_edge(first, of)
    if last < of:
        chosen &= tokens < _token_edge(last, of)
    return table.filter(pa.array(chosen))


def _token_edge(number: int, of: int) -> np.int64:
    return np.int64(_FIRST_TOKEN + _TOKENS * number // of)


def _edge_position(tokens: np.ndarray, number: int, of: int) -> int:
    """Where in ascending tokens an edge lies."""
    return len(tokens) if number == of else int(np.searchsorted(tokens, _token_edge(number, of)))


_COMMIT_APPLICATION = "cdc-platform/state"
_COVERED_APPLICATION = "cdc-platform/state/log"
"""Its number is the version of the log that the state has."""
_IDENTITY_APPLICATION = "cdc-platform/state/of"
"""Its number tells of which table the state is, among those that had its name."""
_ROWS_PER_FILE = 100_000
_MAX_FILES = 16
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
    fields = [column(each.name, each.type, _COMMENTS[each.name], null=each.nullable) for each in STATE_SCHEMA]
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
class _StatePart:
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
        with translate_errors(f"reading {self.path}"), pq.ParquetFile(parse_path(self.path).source()) as parquet:
            return parquet.read().sort_by(_TOKEN).combine_chunks()

    @cached_property
    def tokens(self) -> np.ndarray:
        """The token of each row."""
        return np.asarray(self.rows[_TOKEN])

    def of_partition(self, token: int, key: bytes) -> pa.Table:
        """The rows of a partition."""
        if not self.low <= token <= self.high:
            return STATE_SCHEMA.empty_table()
        first, last = np.searchsorted(self.tokens, [token, token + 1])
        found = self.rows.slice(first, last - first).select(STATE_SCHEMA.names)
        return found.filter(compute.equal(found["partition"], key)) if found.num_rows else found


@dataclass(frozen=True)
class StoredState:
    """The state of a base table, as its log tells it, that reads no more of it than it is asked for.

    `beside`: some of it was kept beside the log; else all of it was made from the log.
    """

    parts: list[_StatePart] = field(default_factory=list)
    beside: bool = False

    def partition(self, schema: TableSchema, token: int, key: bytes) -> Mutation | None:
        """What a partition has come to, by its token and its serialized key; None where nothing was written to it."""
        found = [part.of_partition(token, key) for part in self.parts]
        states = [mutations_from_state(schema, rows)[key] for rows in found if rows.num_rows]
        return merge_mutations(states) if states else None

    def whole(self, schema: TableSchema) -> pa.Table:
        """The state of all partitions (`shape.STATE`), merged."""
        return merge_states(schema, (part.rows.select(STATE_SCHEMA.names) for part in self.parts))


def state_from_rows(schema: TableSchema, rows: Iterable[LogRowMapping]) -> StoredState:
    """The state that log rows in this process's memory, with values in canonical form, tell of."""
    given = list(rows)
    return (
        StoredState(list(_in_memory_parts(_state_from_logs(schema, [log_rows_to_arrow(schema, given)]))))
        if given
        else StoredState()
    )


def read_state(lake: Lake, schema: TableSchema, version: int | None) -> StoredState:
    """The state that a version of a table's log tells of, from the kept one as far as that goes.

    Nothing is written. A table without a log (None), or whose log holds keys alone, has no state; what was written
    before it was truncated is in its log alone.

    Raises:
        InputError: a row of the log is none, or a batch of it is not complete.
    """
    if version is None or schema.cdc.delta != "full":
        return StoredState()
    since = _covered_version(lake, schema)
    lacking = None if since is None or since > version else read_changes_since(lake, log_table(schema), since, version)
    if lacking is None:
        return StoredState(list(_in_memory_parts(rebuild_state(lake, schema, version))))
    return StoredState(
        [*_stored_parts(lake, schema), *_in_memory_parts(_state_from_logs(schema, lacking))], beside=True
    )


def rebuild_state(lake: Lake, schema: TableSchema, version: int | None) -> pa.Table:
    """The merged state (`shape.STATE`) that a version of a table's log tells of by itself, whatever is kept beside it.

    Raises:
        InputError: a row of the log is none, or a batch of it is not complete.
    """
    return _state_from_logs(schema, [] if version is None else [lake.read_version(log_table(schema), version)])


def store_state(lake: Lake, schema: TableSchema) -> None:
    """Bring the kept state of a table up to the newest version of its log, once, in one commit that says so.

    What was appended to the log is appended; where anything else became of it, and where many files have come
    together, the state is written anew. It does not matter when this is done, nor whether: readers read what is left.

    Raises:
        As `read_state`.
    """
    version = lake.version(log_table(schema))
    since = _covered_version(lake, schema)
    if version is None or schema.cdc.delta != "full" or since == version:
        return
    table = state_table(schema)
    if not lake.exists(table):
        lake.ensure(table)
    transaction = _COMMIT_APPLICATION, (lake.transaction(table, _COMMIT_APPLICATION) or 0) + 1
    beside = {_COVERED_APPLICATION: version, _IDENTITY_APPLICATION: _table_identity(schema)}
    log = log_table(schema)
    came = (
        None
        if since is None or since > version
        else _file_sources(lake, log, list_files_added_since(lake, log, since, version))
    )
    is_anew = came is None or len(lake.data_files(table)) >= _max_files(lake, table)
    stored = lake.bounded_files(table, _TOKEN) if is_anew and came is not None else []
    logs = came if came is not None else _file_sources(lake, log, list_files_at_version(lake, log, version)) or []
    states: TableSources = [(file.rows, partial(_read_state_file, file.path)) for file in stored]
    rows = split_by_token(schema, logs, states, partial(_merge_by_token, schema), _TOKEN)
    put = frames.replace_all_rows if is_anew else frames.append_to_table
    put(TaskRunner.alone(), lake, table, rows, transaction, beside)


def _file_sources(lake: Lake, log: Table, paths: list[str] | None) -> TableSources | None:
    """The files of a log; None where that is not known, or one of them is gone."""
    if paths is None:
        return None
    types = read_stored_schema(lake, log)
    try:
        return [(count_file_rows(path), partial(read_stored_file, path, types)) for path in paths]
    except FileNotFoundError:
        return None


def _merge_by_token(schema: TableSchema, logs: list[pa.Table], states: list[pa.Table]) -> pa.Table:
    told = _state_from_logs(schema, logs)
    return _add_tokens(merge_states(schema, [told, *states]) if states else told)


def _read_state_file(path: str) -> pa.Table:
    return read_stored_file(path, STATE_SCHEMA).select(STATE_SCHEMA.names).cast(STATE_SCHEMA)


def _stored_parts(lake: Lake, schema: TableSchema) -> list[_StatePart]:
    files = lake.bounded_files(state_table(schema), _TOKEN)
    return [_StatePart(file.low, file.high, file.path) for file in files if file.rows]


def _max_files(lake: Lake, table: Table) -> int:
    """How many files are too many: those that a state of this size has when it is written as a whole, and some more."""
    rows = sum(file.rows for file in lake.data_files(table))
    return _MAX_FILES + 2 * (rows // _ROWS_PER_FILE)


def _table_identity(schema: TableSchema) -> int:
    """A number (63 bits) of the shape and of a table that was made, truncated and given its log when this one was."""
    since = (STATE_SCHEMA.names, ms_from_us(schema.created_at_us), schema.truncated_us or 0, schema.log_since_us or 0)
    return int.from_bytes(blake2b(repr(since).encode(), digest_size=8).digest(), "big") >> 1


def _covered_version(lake: Lake, schema: TableSchema) -> int | None:
    """The version of the log that the kept state has; None where there is none of this table."""
    table = state_table(schema)
    if not lake.exists(table) or lake.transaction(table, _IDENTITY_APPLICATION) != _table_identity(schema):
        return None
    return lake.transaction(table, _COVERED_APPLICATION)


def _state_from_logs(schema: TableSchema, logs: list[pa.Table]) -> pa.Table:
    """The merged state that rows of the log tell of."""
    # A batch may have come in two files.
    found = [_drop_truncated(schema, log) for log in logs if log.num_rows]
    whole = pa.concat_tables(found, promote_options="default") if found else None
    return merge_states(schema, [state_from_log(schema, whole)] if whole is not None and whole.num_rows else [])


def _drop_truncated(schema: TableSchema, log: pa.Table) -> pa.Table:
    truncated = schema.truncated_us
    if truncated is None:
        return log
    return log.filter(compute.greater_equal(log[WRITTEN_AT].cast(TIMESTAMP), pa.scalar(truncated, TIMESTAMP)))


def _add_tokens(state: pa.Table) -> pa.Table:
    keys = state["partition"].combine_chunks()
    return state.add_column(0, _TOKEN, pa.array(tokens_from_keys(keys))).sort_by(_TOKEN).combine_chunks()


def _in_memory_parts(state: pa.Table) -> Iterator[_StatePart]:
    if state.num_rows:
        rows = _add_tokens(state)
        yield _StatePart(rows[_TOKEN][0].as_py(), rows[_TOKEN][-1].as_py(), given=rows)
