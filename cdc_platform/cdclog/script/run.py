"""Run a script of CQL statements in the process: each sees the effects of those before, nothing is written.

For each write: parse, bind, encode log rows, find their streams, and only then apply it. Long scripts spool their log
rows to a file, in blocks with the columns of their time.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import IO, Any, Literal, NamedTuple

import pyarrow as pa
from pyarrow import ipc

from cdc_platform.cdclog.encoder import LogRow, encode_mutation
from cdc_platform.cdclog.gaps import CdcOptionsSince, OptionGap, find_option_gaps
from cdc_platform.cdclog.replay import replay_log
from cdc_platform.cdclog.state.mutations import mutations_from_state
from cdc_platform.cdclog.state.store import StoredState
from cdc_platform.cdclog.values import log_rows_from_arrow, log_rows_to_arrow
from cdc_platform.clock import ONE_US, Clock, Microseconds
from cdc_platform.cql import (
    INDEX_REASON,
    BaseTable,
    Catalog,
    CdcOptions,
    Column,
    ExecutionContext,
    KeyValues,
    ListIndexOutOfRange,
    LivePartition,
    LwtResult,
    Mutation,
    StatementBinder,
    TableSchema,
    apply_definition,
    bind_values,
    check_script,
    drop_expired,
    explain_cdc_turned_off,
    format_ddl,
    get_log_columns,
    index_enables_cdc,
    iterate_leniently,
    log_row_to_json,
    omits_enabled,
    parse_leniently,
)
from cdc_platform.cql import ast as s
from cdc_platform.delta import Lake
from cdc_platform.errors import PlatformError, WriteRefused
from cdc_platform.ring import tokens_from_keys
from cdc_platform.settings import Settings
from cdc_platform.timeline import StreamSources

OutcomeKind = Literal["done", "not applied", "passed over", "refused", "wrong"]
"""The outcome of a statement: the acceptance rule refuses writes, all other failures are wrong."""
OnOutcome = Callable[["StatementOutcome"], object]
"""Called with each outcome as soon as its statement has run."""


@dataclass(frozen=True)
class StatementOutcome:
    """The outcome of a statement.

    `logged` are its log rows, each with its table. `schema` is the table that it defined. `answer` is the result of a
    lightweight transaction, None for other statements.
    """

    statement: s.Statement
    error: PlatformError | None = None
    logged: Sequence[tuple[TableSchema, LogRow]] = ()
    schema: TableSchema | None = None
    answer: LwtResult | None = None

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Return the log rows as JSON."""
        return [log_row_to_json(get_log_columns(schema), row) for schema, row in self.logged]

    @property
    def became(self) -> OutcomeKind:
        """Return the kind of outcome."""
        if isinstance(self.statement.body, s.IgnoredStatement):
            return "passed over"
        if self.error is None:
            return "done" if self.answer is None or self.answer.applied else "not applied"
        return "refused" if isinstance(self.error, WriteRefused) else "wrong"

    @property
    def accepted(self) -> bool:
        """Return True if the statement took effect."""
        return self.became == "done"

    @property
    def reason(self) -> str | None:
        """Return why the statement did not take effect; None if it did."""
        body = self.statement.body
        if isinstance(body, s.IgnoredStatement):
            return body.why
        if self.became == "not applied":
            return "a condition of IF does not hold"
        return None if self.error is None else str(self.error)

    @property
    def is_definition(self) -> bool:
        """Return True for CREATE, ALTER and DROP."""
        return isinstance(self.statement.body, s.DefinitionStatement)


@dataclass(frozen=True)
class TouchedTable:
    """A table that the script created or wrote to: its final rows, and the same rebuilt from its log.

    `replayed` is None if the log cannot be replayed, because CDC is off or the log holds only keys. Both are computed
    from the whole table on first access. `missing` are the gaps of the log. `row_ttl` is the column by which the
    table's rows expire.
    """

    name: str
    missing: list[OptionGap]
    shows: Callable[[], list[dict[str, Any]]]
    tells: Callable[[], list[dict[str, Any]]] | None
    row_ttl: str | None = None

    @cached_property
    def base(self) -> list[dict[str, Any]]:
        """The rows as JSON."""
        return self.shows()

    @cached_property
    def replayed(self) -> list[dict[str, Any]] | None:
        """The rows replayed from the log."""
        return None if self.tells is None else self.tells()


class OutcomeTally:
    """Counts of outcomes, with the first outcome of each kind."""

    def __init__(self) -> None:
        self.statements = 0
        self.expiring_rows = 0
        """Number of log rows with a TTL."""
        self.first: dict[OutcomeKind, tuple[int, StatementOutcome]] = {}
        """The first statement with each outcome, and its number, from 1."""
        self._counts: dict[OutcomeKind, Counter[str]] = {}

    def add(self, outcome: StatementOutcome) -> None:
        """Count the next statement."""
        self.statements += 1
        became = outcome.became
        self.expiring_rows += sum([row.get("cdc$ttl") is not None for _, row in outcome.logged])
        if became not in self.first:
            self.first[became], self._counts[became] = (self.statements, outcome), Counter()
        self._counts[became][outcome.statement.kind] += 1

    @property
    def summary(self) -> dict[OutcomeKind, dict[str, int]]:
        """Return the number of statements by outcome and kind of statement, without zeros."""
        return {became: dict(sorted(kinds.items())) for became, kinds in sorted(self._counts.items())}


@dataclass(frozen=True)
class ScriptResult:
    """The result of a script: a tally, the outcomes in order, and every remaining table that it touched.

    `outcomes` is empty if they were reported one by one. `left` has a line for each earlier script that was interrupted
    and cannot be finished.
    """

    tally: OutcomeTally
    outcomes: list[StatementOutcome]
    tables: list[TouchedTable]
    left: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    """A line for each statement with an effect that may be unintended."""

    @property
    def summary(self) -> dict[OutcomeKind, dict[str, int]]:
        """Return the summary of the tally."""
        return self.tally.summary

    @property
    def wrong(self) -> StatementOutcome | None:
        """Return the first statement that was wrong."""
        return self._first("wrong")

    @property
    def refused(self) -> StatementOutcome | None:
        """Return the first write that the acceptance rule refused."""
        return self._first("refused")

    @property
    def passed_over(self) -> StatementOutcome | None:
        """Return the first statement that was skipped."""
        return self._first("passed over")

    def _first(self, became: OutcomeKind) -> StatementOutcome | None:
        return self.tally.first.get(became, (0, None))[1]


class FailedDefinitions:
    """The definitions that failed so far, by the object that they define: statements that need it fail as well."""

    def __init__(self) -> None:
        self._lines: dict[str, int] = {}

    def explain(self, outcome: StatementOutcome, in_use: str | None) -> StatementOutcome:
        """Return the outcome; an error that a failed definition caused names the line of that definition.

        `in_use` is the keyspace of unqualified names.
        """
        statement, error = outcome.statement, outcome.error
        if outcome.became != "wrong":
            for name in _defined_names(statement, in_use):
                self._lines.pop(name, None)
            return outcome
        assert error is not None
        line = self._line_of(error.lacks)
        if line is not None:
            error = type(error)(
                f"{error}; line {line}, which was to make {error.lacks}, was refused", lacks=error.lacks
            )
        for name in _defined_names(statement, in_use):
            self._lines.setdefault(name, statement.line)
        return replace(outcome, error=error)

    def _line_of(self, lacks: str | None) -> int | None:
        if lacks is None:
            return None
        return self._lines.get(lacks, self._lines.get(f"{lacks.rpartition('.')[0]}.*"))


def _defined_names(statement: s.Statement, in_use: str | None) -> list[str]:
    """Return the objects that a statement defines, named as in `PlatformError.lacks`; `.*` means all columns."""
    body = statement.body
    if isinstance(body, s.UnsupportedStatement):
        return _unread_names(statement.text, in_use)
    if isinstance(body, s.CreateKeyspace):
        return [f"keyspace {body.name}"]
    if not isinstance(body, s.DefinitionStatement) or isinstance(body, s.DropObject | s.CreateIndex | s.DropIndex):
        return []
    name = f"{body.name.keyspace or in_use}.{body.name.name}"
    match body:
        case s.CreateType():
            return [f"type {name}"]
        case s.CreateTable():
            return [f"table {name}"]
        case s.AddFields():
            return [f"field {name}.{field}" for field, _ in body.fields]
        case s.RenameFields():
            return [f"field {name}.{new}" for _, new in body.renames]
        case s.AddColumns():
            return [f"column {name}.{column.name}" for column in body.columns]
        case s.RenameColumns():
            return [f"column {name}.{new}" for _, new in body.renames]
    return []


def _unread_names(text: str, in_use: str | None) -> list[str]:
    """Return the objects that a statement outside the grammar would define, from its first words."""
    match = _DEFINITION_PATTERN.match(text)
    if match is None:
        return []
    what = _OBJECT_SYNONYMS.get(match["what"].upper(), match["what"].lower())
    keyspace, name = (None if part is None else _fold_name_case(part) for part in (match["keyspace"], match["name"]))
    if what == "keyspace":
        return [f"keyspace {name}"]
    if match["verb"].upper() == "CREATE":
        return [f"{what} {keyspace or in_use}.{name}"]
    return [f"{'column' if what == 'table' else 'field'} {keyspace or in_use}.{name}.*"]


def _fold_name_case(name: str) -> str:
    """Return a written name as CQL compares it."""
    return name[1:-1].replace('""', '"') if name.startswith('"') else name.lower()


_OBJECT_SYNONYMS = {"COLUMNFAMILY": "table", "SCHEMA": "keyspace"}
_DEFINITION_PATTERN = re.compile(
    r"""(?ix) (?P<verb>CREATE|ALTER) \s+ (?P<what>TABLE|COLUMNFAMILY|TYPE|KEYSPACE|SCHEMA) \s+ (?:IF\s+NOT\s+EXISTS\s+)?
    (?:(?P<keyspace>"(?:[^"]|"")++"|\w+)\s*\.\s*)? (?P<name>"(?:[^"]|"")++"|\w+)"""
)
"""Matches the first words of a statement that creates or alters an object."""


ROWS_PER_BLOCK = 10_000


@dataclass
class _Block:
    """Rows in the file: their offset, size and number, their columns, and later renames of keys."""

    start: int
    size: int
    rows: int
    schema: TableSchema
    renames: list[Mapping[str, str]] = field(default_factory=list)


class SpooledLogRows:
    """Log rows of a table in script order; about `ROWS_PER_BLOCK` of them are in memory."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._blocks: list[_Block] = []
        self._last: list[LogRow] = []

    def __len__(self) -> int:
        return sum(block.rows for block in self._blocks) + len(self._last)

    def __iter__(self) -> Iterator[LogRow]:
        """Yield the rows, each with the columns that the log had when it was written."""
        for block in self._blocks:
            yield from self._rows(block)
        yield from self._last

    def add(self, schema: TableSchema, rows: Iterable[LogRow]) -> None:
        """Append rows that have all current columns of the log."""
        self._last += rows
        if len(self._last) >= ROWS_PER_BLOCK:
            self._store(schema)

    def rename(self, renames: Mapping[str, str]) -> None:
        """Rename columns, given as old to new names."""
        self._last[:] = [_rename_row_columns(row, renames) for row in self._last]
        for block in self._blocks:
            block.renames.append(renames)

    def until_now(self) -> SpooledLogRows:
        """Return a snapshot that later additions do not change."""
        snapshot = SpooledLogRows()
        snapshot._file, snapshot._last = self._file, list(self._last)
        snapshot._blocks = [
            _Block(block.start, block.size, block.rows, block.schema, list(block.renames)) for block in self._blocks
        ]
        return snapshot

    @property
    def blocks(self) -> int:
        """Return the number of blocks, of at least `ROWS_PER_BLOCK` rows each except the last one."""
        return len(self._blocks) + bool(self._last)

    def table(self, schema: TableSchema, number: int) -> pa.Table:
        """Return the rows of a block in the current columns of the log's Delta table."""
        if number == len(self._blocks):
            return log_rows_to_arrow(schema, list(_align_rows(schema, self._last)))
        block = self._blocks[number]
        if block.schema == schema and not block.renames:
            return self._table(block)
        return log_rows_to_arrow(schema, list(_align_rows(schema, self._rows(block))))

    def _store(self, schema: TableSchema) -> None:
        """Move the rows in memory to the file."""
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115
        table = log_rows_to_arrow(schema, list(_align_rows(schema, self._last)))
        start = self._file.seek(0, 2)
        with ipc.new_stream(self._file, table.schema) as stream:
            stream.write_table(table)
        self._blocks.append(_Block(start, self._file.tell() - start, table.num_rows, schema))
        self._last.clear()

    def _table(self, block: _Block) -> pa.Table:
        assert self._file is not None
        self._file.seek(block.start)
        with ipc.open_stream(self._file.read(block.size)) as stream:
            return stream.read_all()

    def _rows(self, block: _Block) -> Iterator[LogRow]:
        for row in log_rows_from_arrow(block.schema, self._table(block)):
            for renames in block.renames:
                row = _rename_row_columns(row, renames)
            yield row


def _rename_row_columns(row: LogRow, renames: Mapping[str, str]) -> LogRow:
    return {renames.get(column, column): value for column, value in row.items()}


def _align_rows(schema: TableSchema, rows: Iterable[LogRow]) -> Iterator[LogRow]:
    """Yield the rows with the current columns of the log; only rows from before an ALTER have others."""
    names = [column.name for column in get_log_columns(schema)]
    expected = set(names)
    return (row if row.keys() == expected else {name: row.get(name) for name in names} for row in rows)


@dataclass(frozen=True)
class StoredTables:
    """The tables of the lake: their catalog, the state that each log amounts to, and the history of its options."""

    catalog: Catalog
    state: Callable[[TableSchema], StoredState]
    history: Callable[[TableSchema], list[CdcOptionsSince]] = lambda _: []


@dataclass(frozen=True)
class _StateAtScript:
    """The state that the log of a table amounts to at the time (µs) of a script, without expired cells."""

    state: StoredState
    now_us: Microseconds

    def partition(self, schema: TableSchema, key: bytes) -> Mutation | None:
        mutation = self.state.partition(schema, _key_token(key), key) if self.state.parts else None
        return None if mutation is None else drop_expired(mutation, self.now_us)

    def partitions(self, schema: TableSchema) -> dict[bytes, Mutation]:
        whole = mutations_from_state(schema, self.state.whole(schema))
        return {key: drop_expired(state, self.now_us) for key, state in whole.items()}


class DefinedTable(NamedTuple):
    """The CDC options and the definition that a script gave a table at a time (µs).

    `writes` is the number of writes before it: a definition that no write followed is replaced by the next one.
    """

    at_us: Microseconds
    options: CdcOptions
    ddl: str
    writes: int


def iter_script_statements(text: str, *, strict: bool = False, values: str | None = None) -> Iterable[s.Statement]:
    """Return the statements of a script, parsed lazily; `values` are those of its bind markers, see `cql.bind_values`.

    Raises:
        InputError: with `strict`, if a statement is not supported; or if the values do not fit the markers.
    """
    if strict:
        check_script(text)
    return iterate_leniently(text) if values is None else bind_values(parse_leniently(text), values)


def dry_run_script(
    text: str, lake: Lake, clock: Clock, settings: Settings, *, strict: bool = False, values: str | None = None
) -> ScriptResult:
    """Run a script against the streams of the lake without writing anything.

    Raises:
        InputError: as `iter_script_statements`.
    """
    return Script(lake, settings, clock.now_us()).run(iter_script_statements(text, strict=strict, values=values))


class Script:
    """A run of a script: the tables as they are between its statements, at the time `now_us` (µs)."""

    def __init__(
        self, lake: Lake, settings: Settings, now_us: Microseconds, stored: StoredTables | None = None
    ) -> None:
        """`stored` are the tables that earlier scripts stored in the lake; None starts with no tables."""
        self._stored = stored or StoredTables(Catalog(), lambda _: StoredState())
        self._catalog = self._stored.catalog
        self._found = list(self._catalog.tables())
        self._unread = {schema.full_name: schema for schema in self._catalog.tables()}
        self._sources = StreamSources(lake, settings)
        self._now_us = now_us
        self._ticks = Microseconds(0)
        self._statements = 0
        self._writes = 0
        self._undone = FailedDefinitions()
        self._bases: dict[str, BaseTable] = {}
        self._told: dict[str, StoredState] = {}
        self.written: dict[str, SpooledLogRows] = {}
        """The log rows that the script added, by table, without those of tables that it dropped."""
        self.emptied: list[TableSchema] = []
        """The tables whose logs it dropped, but not the tables."""
        self._warnings: list[str] = []
        self._histories: dict[str, list[CdcOptionsSince]] = {}
        self.defined: defaultdict[str, list[DefinedTable]] = defaultdict(list)
        """The tables that it created or gave other CDC options, an entry per change before a write, oldest first."""
        self.renamed: dict[str, dict[str, str]] = {}
        """The old names of key columns of stored tables by their new ones, by table."""
        self.dropped: list[TableSchema] = []
        """The stored tables that the script dropped, even if it created others with their names."""

    @property
    def catalog(self) -> Catalog:
        """Return the keyspaces, types and tables after the statements so far."""
        return self._catalog

    def run(self, statements: Iterable[s.Statement], on_outcome: OnOutcome | None = None) -> ScriptResult:
        """Run the statements in order; a failing statement changes nothing, and the next ones still run.

        `on_outcome` receives each outcome as soon as its statement has run, and the outcome is not stored. Without it
        the result has the outcomes.
        """
        self._writes += 1  # other writers may have written between two runs
        tally, outcomes = OutcomeTally(), list[StatementOutcome]()
        report = on_outcome or outcomes.append
        for statement in statements:
            outcome = self._undone.explain(self._outcome(self._statements, statement), self._catalog.in_use)
            self._statements += 1
            tally.add(outcome)
            report(outcome)
        touched = [self._touched(name) for name in self._bases]
        return ScriptResult(tally, outcomes, touched, warnings=self._warnings)

    def _outcome(self, number: int, statement: s.Statement) -> StatementOutcome:
        body = statement.body
        try:
            if isinstance(body, s.WriteStatement | s.Batch):
                rows, answer = self._write(number, body)
                return StatementOutcome(statement, logged=rows, answer=answer)
            if isinstance(body, s.UseKeyspace):
                self._catalog.in_use = self._catalog.keyspace(body.keyspace).name
            elif isinstance(body, s.Truncate):
                self._truncate(self._catalog.table(body.name))
            elif isinstance(body, s.UnsupportedStatement):
                return StatementOutcome(statement, body.error)
            elif not isinstance(body, s.ReadOnlyStatement | s.IgnoredStatement):
                schema = self._define(body, statement.line)
                if isinstance(body, s.DropIndex) and schema is None:
                    return StatementOutcome(statement._replace(body=s.IgnoredStatement(INDEX_REASON)))
                return StatementOutcome(statement, schema=schema)
            return StatementOutcome(statement)
        except PlatformError as error:
            return StatementOutcome(statement, error)

    def _define(self, body: s.DefinitionStatement, line: int) -> TableSchema | None:
        self._warn_of_cdc(body, line)
        schema = apply_definition(self._catalog, body, self._now_us)
        known = {table.full_name: table for table in self._catalog.tables()}
        for name in [name for name in (*self._bases, *self._unread) if name not in known]:
            self._forget(name)
        for name, table in known.items():
            if name not in self._bases and name not in self._unread:
                self._make(name, table)
            elif self._unread.get(name) is not table and self._base(table).schema is not table:
                self._alter(name, table)
        return schema

    def _warn_of_cdc(self, body: s.DefinitionStatement, line: int) -> None:
        """Warn if ALTER TABLE turns CDC off only by omitting `enabled`."""
        if not isinstance(body, s.AlterProperties) or not omits_enabled(body.properties):
            return
        keyspace, name = self._catalog.qualified(body.name)
        if not self._catalog.has_table(body.name):
            return
        table = self._catalog.table(body.name)
        if table.cdc.enabled and not any(index_enables_cdc(index.class_name) for index in table.search_indexes):
            self._warnings.append(f"line {line}: {explain_cdc_turned_off(f'{keyspace}.{name}')}")

    def _alter(self, name: str, table: TableSchema) -> None:
        previous = self._base(table).schema
        self._base(table).alter(table)
        self._rename(name, previous, table)
        if previous.cdc != table.cdc:
            self._define_as(name, table, self.at_us)
        if previous.log_since_us != table.log_since_us:
            self.emptied.append(table)
            self._told[name], self.written[name] = StoredState(), SpooledLogRows()

    def _rename(self, name: str, before: TableSchema, after: TableSchema) -> None:
        """Rename the key columns in the rows of a log; keys keep their order."""
        keys = zip(_key_columns(before), _key_columns(after), strict=True)
        renames = {old.name: new.name for old, new in keys if old.name != new.name}
        if not renames:
            return
        self.written[name].rename(renames)
        known = self.renamed.setdefault(name, {})
        self.renamed[name] = {
            **{new: known.get(old, old) for old, new in renames.items()},
            **{new: old for new, old in known.items() if new not in renames},
        }

    def _truncate(self, schema: TableSchema) -> None:
        """Remove the rows of a table; its log stays, and its rows up to now no longer count for the table."""
        self._base(schema).truncate()
        self._catalog.put(replace(schema, truncated_us=self.at_us))
        self._base(schema).alter(self._catalog.keyspaces[schema.keyspace].tables[schema.name])

    @property
    def touched(self) -> list[TableSchema]:
        """Return the current schemas of the tables that the script has used."""
        return [base.schema for base in self._bases.values()]

    @property
    def at_us(self) -> Microseconds:
        """Return the time (µs) of the next write; earlier writes have earlier times."""
        return self._now_us + self._ticks

    def _forget(self, name: str) -> None:
        self.dropped += [schema for schema in self._found if schema.full_name == name]
        unread = self._unread.pop(name, None)
        base = self._bases.pop(name, None)
        schema = unread if base is None else base.schema
        if schema is not None:
            self._sources.forget(schema.keyspace, schema.name)
        self._told.pop(name, None)
        self.defined.pop(name, None)
        self.written.pop(name, None)
        self.renamed.pop(name, None)

    def _base(self, schema: TableSchema) -> BaseTable:
        """Return the table as it is now; its stored state is loaded on first use."""
        name = schema.full_name
        if name in self._unread:
            stored = self._unread.pop(name)
            state = self._stored.state(stored)
            # Writes from before a truncation are only in the log.
            self._told[name] = state if stored.truncated_us is None else self._stored.state(_untruncated(stored))
            self.written[name] = SpooledLogRows()
            self._histories[name] = self._stored.history(stored) or [CdcOptionsSince(stored.created_at_us, stored.cdc)]
            self._bases[name] = self._rebuilt(stored, state)
        return self._bases[name]

    def _rebuilt(self, schema: TableSchema, state: StoredState) -> BaseTable:
        """Return the table as earlier scripts left it, according to its log."""
        return BaseTable(schema, behind=_StateAtScript(state, self._now_us))

    def _make(self, name: str, schema: TableSchema) -> None:
        self._histories[name] = []
        self._define_as(name, schema, schema.created_at_us)
        self._bases[name], self._told[name], self.written[name] = BaseTable(schema), StoredState(), SpooledLogRows()
        count = self._catalog.keyspace(schema.keyspace).tablets
        if count is not None:
            self._sources.assign_tablets(schema.keyspace, schema.name, count, self._now_us)

    def _define_as(self, name: str, schema: TableSchema, at_us: Microseconds) -> None:
        defined = self.defined[name]
        if defined and defined[-1].writes == self._writes:
            defined.pop()
        defined.append(DefinedTable(at_us, schema.cdc, format_ddl(self._catalog, schema), self._writes))

    def _write(
        self, number: int, body: s.WriteStatement | s.Batch
    ) -> tuple[Sequence[tuple[TableSchema, LogRow]], LwtResult | None]:
        """Return the log rows of a write and the result of its conditions; no rows if the conditions do not hold."""
        self._writes += 1
        context = ExecutionContext(self.at_us)
        if not _has_timestamps(body):
            self._ticks += ONE_US
        binder = StatementBinder(self._catalog, context, self._read)
        answer = binder.evaluate_conditions(body)
        if answer is not None and not answer.applied:
            # Still validate the statement against CQL, except for list indexes, which are not looked up.
            with suppress(ListIndexOutOfRange):
                binder.bind(body)
            return (), answer
        mutations = binder.bind(body)
        logged = [self._log_rows(number, mutation) for mutation in mutations]
        for mutation, rows in zip(mutations, logged, strict=True):
            self._base(mutation.schema).apply(mutation)
            self.written[mutation.schema.full_name].add(mutation.schema, rows)
        rows_by_table = tuple(
            (mutation.schema, row) for mutation, rows in zip(mutations, logged, strict=True) for row in rows
        )
        return rows_by_table, answer

    def _read(self, schema: TableSchema, key: KeyValues) -> LivePartition:
        return self._base(schema).partition(key)

    def _log_rows(self, number: int, mutation: Mutation) -> list[LogRow]:
        """Return the log rows of a mutation in their streams, before it takes effect; [] if CDC is off."""
        schema = mutation.schema
        if not schema.cdc.enabled:
            return []
        state = self._read(schema, mutation.partition_key).state
        token = _key_token(schema.partition_bytes(mutation.partition_key))
        source = self._sources.of(schema.keyspace, schema.name)
        rows: list[LogRow] = []
        for part in encode_mutation(mutation, state, identity=number.to_bytes(8, "big")):
            rows += part.in_stream(source.stream_of(part.timestamp, token, self._now_us))
        return rows

    def _touched(self, name: str) -> TouchedTable:
        base = self._bases[name].copy()
        schema = base.schema
        altered = (CdcOptionsSince(definition.at_us, definition.options) for definition in self.defined[name])
        missing = find_option_gaps(schema, [*self._histories[name], *altered])
        if not schema.cdc.enabled or schema.cdc.delta != "full":
            return TouchedTable(name, missing, base.rows, None, schema.row_ttl)
        state_before, written = self._told[name], self.written[name].until_now()

        def rebuilt() -> list[dict[str, Any]]:
            table = self._rebuilt(schema, state_before)
            for state in replay_log(schema, written).values():
                table.apply(state)
            return table.rows()

        return TouchedTable(name, missing, base.rows, rebuilt, schema.row_ttl)


def _key_columns(schema: TableSchema) -> tuple[Column, ...]:
    return (*schema.partition_key, *schema.clustering_key)


@lru_cache(maxsize=4096)
def _key_token(key: bytes) -> int:
    """Return the token of a serialized partition key; cached, since consecutive statements often share a key."""
    return int(tokens_from_keys([key])[0])


def _untruncated(schema: TableSchema) -> TableSchema:
    return replace(schema, truncated_us=None)


def _has_timestamps(body: s.WriteStatement | s.Batch) -> bool:
    """Return True if the statement sets all of its timestamps itself."""
    if body.using.timestamp is not None:
        return True
    if not isinstance(body, s.Batch) or any(write.condition is not None for write in body.writes):
        return False
    return all(write.using.timestamp is not None for write in body.writes)
