"""Store a table's state in a Delta table next to its log, with the version of the log that it covers.

The state is a cache: missing parts are read from the log, and it is rebuilt if the missing parts are unknown.
Rebuilding holds one token range in memory at a time. The folder starts with a dot, since it is not a table of the home.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cdc_platform.cdclog.schema import WRITTEN_AT, log_table
from cdc_platform.cdclog.state.from_log import log_partition_keys, state_from_log
from cdc_platform.cdclog.state.merge import merge_states
from cdc_platform.cdclog.state.model import STATE_SCHEMA, hash_identity
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
"""Lazily read tables with their numbers of rows; they are read again for each token range."""


def split_by_token(
    schema: TableSchema, logs: TableSources, states: TableSources, merge: Callable[..., pa.Table], token: str
) -> TaskRows:
    """Return the rows of the state in parts of limited size, ordered by token, with disjoint ranges of tokens.

    `merge` makes a state ordered by its column `token` from tables of a log and from states.
    """
    rows = sum(count for count, _ in (*logs, *states))
    ranges = -(-rows // _ROWS_PER_TOKEN_RANGE)
    files = (
        ranges * _FILES_PER_TOKEN_RANGE
        if ranges > 1
        else ranges * (1 + rows * _FILES_PER_TOKEN_RANGE // _ROWS_PER_TOKEN_RANGE)
    )
    files_per_range = files // ranges if ranges else 0

    @lru_cache(maxsize=1)
    def of_slice(number: int) -> pa.Table:
        edges = number, number + 1, ranges
        chosen = [
            _filter_tokens(table, lambda table=table: log_partition_keys(schema, table), *edges)
            for table in _read_sources(logs)
        ]
        state_rows = [
            _filter_tokens(table, lambda table=table: table["partition"], *edges) for table in _read_sources(states)
        ]
        return merge(chosen, state_rows)

    def batches(number: int) -> Iterator[pa.RecordBatch]:
        table = of_slice(number // files_per_range)
        tokens = np.asarray(table[token])
        start, stop = (_edge_position(tokens, edge, files) for edge in (number, number + 1))
        yield from table.slice(start, stop - start).to_batches()

    return TaskRows(files, batches)


def _read_sources(sources: TableSources) -> Iterator[pa.Table]:
    return (read() for _, read in sources)


def _filter_tokens(table: pa.Table, keys: Callable[[], pa.Array], first: int, last: int, of: int) -> pa.Table:
    """Return the rows of partitions in the token ranges `first` to `last` (exclusive) of `of` equal ranges."""
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
    """Return the index of a range's first token in ascending tokens."""
    return len(tokens) if number == of else int(np.searchsorted(tokens, _token_edge(number, of)))


_COMMIT_APPLICATION = "cdc-platform/state"
_COVERED_APPLICATION = "cdc-platform/state/log"
"""Its transaction number is the version of the log that the state covers."""
_IDENTITY_APPLICATION = "cdc-platform/state/of"
"""Its transaction number identifies the table of the state among tables that had its name."""
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
    """Return the Delta table of a base table's state: `STATE_SCHEMA`, ordered by token."""
    fields = [
        column(state_field.name, state_field.type, _COMMENTS[state_field.name], null=state_field.nullable)
        for state_field in STATE_SCHEMA
    ]
    return Table(
        schema.keyspace,
        f".{schema.log_name}.state",
        pa.schema([column(_TOKEN, pa.int64(), "token of the partition key"), *fields]),
        keys=("partition", "clustering", "kind", "column", "path"),
        comment=f"State of {schema.full_name}, as its log tells it",
        follows_from=(f"{schema.keyspace}.{schema.log_name}",),
        about_readers=True,
    )


@dataclass(frozen=True)
class _StatePart:
    """State rows of a range of tokens, ordered by token and merged among themselves."""

    low: int
    high: int
    path: str | None = None
    given: pa.Table | None = None

    @cached_property
    def rows(self) -> pa.Table:
        """The rows, read from their file if they are stored."""
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
        """Return the rows of a partition."""
        if not self.low <= token <= self.high:
            return STATE_SCHEMA.empty_table()
        first, last = np.searchsorted(self.tokens, [token, token + 1])
        rows = self.rows.slice(first, last - first).select(STATE_SCHEMA.names)
        return rows.filter(compute.equal(rows["partition"], key)) if rows.num_rows else rows


@dataclass(frozen=True)
class StoredState:
    """The state of a base table according to its log; only the requested parts are read.

    `is_stored` is true if some of it was stored next to the log; otherwise all of it was built from the log.
    """

    parts: list[_StatePart] = field(default_factory=list)
    is_stored: bool = False

    def partition(self, schema: TableSchema, token: int, key: bytes) -> Mutation | None:
        """Return the state of a partition by its token and serialized key; None if nothing was written to it."""
        tables = [part.of_partition(token, key) for part in self.parts]
        states = [mutations_from_state(schema, rows)[key] for rows in tables if rows.num_rows]
        return merge_mutations(states) if states else None

    def whole(self, schema: TableSchema) -> pa.Table:
        """Return the merged state (`STATE_SCHEMA`) of all partitions."""
        return merge_states(schema, (part.rows.select(STATE_SCHEMA.names) for part in self.parts))


def state_from_rows(schema: TableSchema, rows: Iterable[LogRowMapping]) -> StoredState:
    """Build the state of log rows in memory, with values in canonical form."""
    log_rows = list(rows)
    return (
        StoredState(list(_in_memory_parts(_state_from_logs(schema, [log_rows_to_arrow(schema, log_rows)]))))
        if log_rows
        else StoredState()
    )


def read_state(lake: Lake, schema: TableSchema, version: int | None) -> StoredState:
    """Return the state at a version of a table's log, from the stored state as far as it covers the log.

    Nothing is written. A table without a log (None), or whose log holds only keys, has no state. Writes from before a
    truncation are only in the log.

    Raises:
        InputError: a row of the log is invalid, or a batch of it is incomplete.
    """
    if version is None or schema.cdc.delta != "full":
        return StoredState()
    covered = _covered_version(lake, schema)
    missing = (
        None if covered is None or covered > version else read_changes_since(lake, log_table(schema), covered, version)
    )
    if missing is None:
        return StoredState(list(_in_memory_parts(rebuild_state(lake, schema, version))))
    return StoredState(
        [*_stored_parts(lake, schema), *_in_memory_parts(_state_from_logs(schema, missing))], is_stored=True
    )


def rebuild_state(lake: Lake, schema: TableSchema, version: int | None) -> pa.Table:
    """Return the merged state (`STATE_SCHEMA`) at a version of a table's log, ignoring the stored state.

    Raises:
        InputError: a row of the log is invalid, or a batch of it is incomplete.
    """
    return _state_from_logs(schema, [] if version is None else [lake.read_version(log_table(schema), version)])


def store_state(lake: Lake, schema: TableSchema) -> None:
    """Update the stored state of a table to the newest version of its log, in one commit that records the version.

    Rows that were appended to the log are appended. After any other change of the log, or with many files, the state is
    rewritten. It may run at any time or not at all, because readers read the rest from the log.

    Raises:
        As `read_state`.
    """
    version = lake.version(log_table(schema))
    covered = _covered_version(lake, schema)
    if version is None or schema.cdc.delta != "full" or covered == version:
        return
    table = state_table(schema)
    if not lake.exists(table):
        lake.ensure(table)
    transaction = _COMMIT_APPLICATION, (lake.transaction(table, _COMMIT_APPLICATION) or 0) + 1
    transactions = {_COVERED_APPLICATION: version, _IDENTITY_APPLICATION: _table_identity(schema)}
    log = log_table(schema)
    added_files = (
        None
        if covered is None or covered > version
        else _file_sources(lake, log, list_files_added_since(lake, log, covered, version))
    )
    rewrite = added_files is None or len(lake.data_files(table)) >= _max_files(lake, table)
    stored = lake.bounded_files(table, _TOKEN) if rewrite and added_files is not None else []
    logs = (
        added_files
        if added_files is not None
        else _file_sources(lake, log, list_files_at_version(lake, log, version)) or []
    )
    states: TableSources = [(file.rows, partial(_read_state_file, file.path)) for file in stored]
    rows = split_by_token(schema, logs, states, partial(_merge_by_token, schema), _TOKEN)
    write = frames.replace_all_rows if rewrite else frames.append_to_table
    write(TaskRunner.alone(), lake, table, rows, transaction, transactions)


def _file_sources(lake: Lake, log: Table, paths: list[str] | None) -> TableSources | None:
    """Return the files of a log; None if they are unknown or one of them is missing."""
    if paths is None:
        return None
    types = lake.stored_schema(log)
    try:
        return [(count_file_rows(path), partial(read_stored_file, path, types)) for path in paths]
    except FileNotFoundError:
        return None


def _merge_by_token(schema: TableSchema, logs: list[pa.Table], states: list[pa.Table]) -> pa.Table:
    logged = _state_from_logs(schema, logs)
    return _add_tokens(merge_states(schema, [logged, *states]) if states else logged)


def _read_state_file(path: str) -> pa.Table:
    return read_stored_file(path, STATE_SCHEMA).select(STATE_SCHEMA.names).cast(STATE_SCHEMA)


def _stored_parts(lake: Lake, schema: TableSchema) -> list[_StatePart]:
    files = lake.bounded_files(state_table(schema), _TOKEN)
    return [_StatePart(file.low, file.high, file.path) for file in files if file.rows]


def _max_files(lake: Lake, table: Table) -> int:
    """Return the number of files that triggers a rewrite: those of a fresh state of this size, plus a margin."""
    rows = sum(file.rows for file in lake.data_files(table))
    return _MAX_FILES + 2 * (rows // _ROWS_PER_FILE)


def _table_identity(schema: TableSchema) -> int:
    """Return a number (63 bits) of the state's columns and the table's creation, truncation and log times."""
    identity = (
        STATE_SCHEMA.names,
        ms_from_us(schema.created_at_us),
        schema.truncated_us or 0,
        schema.log_since_us or 0,
    )
    return hash_identity(identity)


def _covered_version(lake: Lake, schema: TableSchema) -> int | None:
    """Return the version of the log that the stored state covers; None if this table has none."""
    table = state_table(schema)
    if not lake.exists(table) or lake.transaction(table, _IDENTITY_APPLICATION) != _table_identity(schema):
        return None
    return lake.transaction(table, _COVERED_APPLICATION)


def _state_from_logs(schema: TableSchema, logs: list[pa.Table]) -> pa.Table:
    """Return the merged state of rows of the log."""
    # A batch may be split over two files.
    tables = [_drop_truncated(schema, log) for log in logs if log.num_rows]
    rows = pa.concat_tables(tables, promote_options="default") if tables else None
    return merge_states(schema, [state_from_log(schema, rows)] if rows is not None and rows.num_rows else [])


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
