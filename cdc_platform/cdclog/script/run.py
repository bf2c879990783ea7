"""Run a script of CQL statements in the process: each sees the effects of those before, nothing is written.

Per write: parse, bind, encode log rows, find their streams, and only then apply it. Long scripts spool their log
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
"""What becomes of a statement: a write is refused by the acceptance rule, all else that cannot be done is wrong."""
OnOutcome = Callable[["StatementOutcome"], object]
"""What is told of each statement as soon as that is over."""


@dataclass(frozen=True)
class StatementOutcome:
    """What became of a statement.

    `logged` are its log rows, with the table of each; `schema` is the table that it defined; `answer` is what the
    client of a lightweight transaction gets, None of other statements.
    """

    statement: s.Statement
    error: PlatformError | None = None
    logged: Sequence[tuple[TableSchema, LogRow]] = ()
    schema: TableSchema | None = None
    answer: LwtResult | None = None

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Its log rows as JSON has them."""
        return [log_row_to_json(get_log_columns(schema), row) for schema, row in self.logged]

    @property
    def became(self) -> OutcomeKind:
        """In one word."""
        if isinstance(self.statement.body, s.IgnoredStatement):
            return "passed over"
        if self.error is None:
            return "done" if self.answer is None or self.answer.applied else "not applied"
        return "refused" if isinstance(self.error, WriteRefused) else "wrong"

    @property
    def accepted(self) -> bool:
        """Whether it took effect."""
        return self.became == "done"

    @property
    def reason(self) -> str | None:
        """Why it did not take effect; None where it did."""
        body = self.statement.body
        if isinstance(body, s.IgnoredStatement):
            return body.why
        if self.became == "not applied":
            return "a condition of IF does not hold"
        return None if self.error is None else str(self.error)

    @property
    def is_definition(self) -> bool:
        """Whether it is one of CREATE, ALTER and DROP."""
        return isinstance(self.statement.body, s.DefinitionStatement)


@dataclass(frozen=True)
class TouchedTable:
    """A table that the script made or wrote to: its rows at the end, and the same rebuilt from its log.

    `replayed` is None where no log can tell: CDC is off, or the log holds keys alone. Both are made of the whole table
    once they are asked for. `missing` is what the log lacks of its table's writes. `row_ttl` is the column by which
    its rows expire.
    """

    name: str
    missing: list[OptionGap]
    shows: Callable[[], list[dict[str, Any]]]
    tells: Callable[[], list[dict[str, Any]]] | None
    row_ttl: str | None = None

    @cached_property
    def base(self) -> list[dict[str, Any]]:
        """Its rows, as JSON has them."""
        return self.shows()

    @cached_property
    def replayed(self) -> list[dict[str, Any]] | None:
        """The same as its log tells them."""
        return None if self.tells is None else self.tells()


class OutcomeTally:
    """What became of statements altogether, of which it holds the first of each kind alone."""

    def __init__(self) -> None:
        self.statements = 0
        self.expiring_rows = 0
        """Log rows that have a TTL."""
        self.first: dict[OutcomeKind, tuple[int, StatementOutcome]] = {}
        """The first statement that became each, with its number, from 1."""
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
        """How many statements of each kind became what; what none became is left out."""
        return {became: dict(sorted(kinds.items())) for became, kinds in sorted(self._counts.items())}


@dataclass(frozen=True)
class ScriptResult:
    """What became of a script, altogether and by statement, in order, and every table that it touched and left.

    `outcomes` is empty where they were told one by one. `left` tells of scripts of before, one line each, that were
    interrupted and cannot be finished.
    """

    tally: OutcomeTally
    outcomes: list[StatementOutcome]
    tables: list[TouchedTable]
    left: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    """What its statements do that they may not be meant to do, one line each."""

    @property
    def summary(self) -> dict[OutcomeKind, dict[str, int]]:
        """As the tally has it."""
        return self.tally.summary

    @property
    def wrong(self) -> StatementOutcome | None:
        """The first statement that was wrong by itself."""
        return self._first("wrong")

    @property
    def refused(self) -> StatementOutcome | None:
        """The first write that the acceptance rule refused."""
        return self._first("refused")

    @property
    def passed_over(self) -> StatementOutcome | None:
        """The first statement that was passed over."""
        return self._first("passed over")

    def _first(self, became: OutcomeKind) -> StatementOutcome | None:
        return self.tally.first.get(became, (0, None))[1]


class FailedDefinitions:
    """The definitions that failed so far, by what they were to define: statements that need it fail as well."""

    def __init__(self) -> None:
        self._lines: dict[str, int] = {}

    def told(self, outcome: StatementOutcome, in_use: str | None) -> StatementOutcome:
        """Return the outcome; an error that a failed definition caused names the line of that definition.

        `in_use` is the keyspace of names that have none.
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
    """What a statement defines, in the words of `PlatformError.lacks`; `.*` stands for all columns or fields."""
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
    """What a statement that the grammar does not have was to define, by its first words."""
    found = _DEFINITION_PATTERN.match(text)
    if found is None:
        return []
    what = _OBJECT_SYNONYMS.get(found["what"].upper(), found["what"].lower())
    keyspace, name = (None if part is None else _fold_name_case(part) for part in (found["keyspace"], found["name"]))
    if what == "keyspace":
        return [f"keyspace {name}"]
    if found["verb"].upper() == "CREATE":
        return [f"{what} {keyspace or in_use}.{name}"]
    return [f"{'column' if what == 'table' else 'field'} {keyspace or in_use}.{name}.*"]


def _fold_name_case(name: str) -> str:
    """A name as CQL compares it, from how it is written."""
    return name[1:-1].replace('""', '"') if name.startswith('"') else name.lower()


_OBJECT_SYNONYMS = {"COLUMNFAMILY": "table", "SCHEMA": "keyspace"}
_DEFINITION_PATTERN = re.compile(
    r"""(?ix) (?P<verb>CREATE|ALTER) \s+ (?P<what>TABLE|COLUMNFAMILY|TYPE|KEYSPACE|SCHEMA) \s+ (?:IF\s+NOT\s+EXISTS\s+)?
    (?:(?P<keyspace>"(?:[^"]|"")++"|\w+)\s*\.\s*)? (?P<name>"(?:[^"]|"")++"|\w+)"""
)
"""What a statement makes or changes, by its first words."""


ROWS_PER_BLOCK = 10_000


@dataclass
class _Block:
    """Some rows in the file: where they begin, how many they are, their columns, and the names that keys got later."""

    start: int
    size: int
    rows: int
    schema: TableSchema
    renames: list[Mapping[str, str]] = field(default_factory=list)


class SpooledLogRows:
    """Log rows of a table in the order of the script, of which it holds `ROWS_PER_BLOCK` in memory."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._blocks: list[_Block] = []
        self._last: list[LogRow] = []

    def __len__(self) -> int:
        return sum(block.rows for block in self._blocks) + len(self._last)

    def __iter__(self) -> Iterator[LogRow]:
        """The rows, each with the columns that the log had when it was written."""
        for block in self._blocks:
            yield from self._rows(block)
        yield from self._last

    def add(self, schema: TableSchema, rows: Iterable[LogRow]) -> None:
        """Put rows with all columns that the log has now behind the others."""
        self._last += rows
        if len(self._last) >= ROWS_PER_BLOCK:
            self._store(schema)

    def rename(self, renames: Mapping[str, str]) -> None:
        """Let columns have new names, by their old ones."""
        self._last[:] = [_rename_row_columns(row, renames) for row in self._last]
        for block in self._blocks:
            block.renames.append(renames)

    def until_now(self) -> SpooledLogRows:
        """The same rows, whatever is added to these later."""
        same = SpooledLogRows()
        same._file, same._last = self._file, list(self._last)
        same._blocks = [
            _Block(each.start, each.size, each.rows, each.schema, list(each.renames)) for each in self._blocks
        ]
        return same

    @property
    def blocks(self) -> int:
        """How many blocks there are, of `ROWS_PER_BLOCK` rows and some more each; the last one is smaller."""
        return len(self._blocks) + bool(self._last)

    def table(self, schema: TableSchema, number: int) -> pa.Table:
        """The rows of a block in the columns of the log's Delta table, as it is now."""
        if number == len(self._blocks):
            return log_rows_to_arrow(schema, list(_align_rows(schema, self._last)))
        block = self._blocks[number]
        if block.schema == schema and not block.renames:
            return self._table(block)
        return log_rows_to_arrow(schema, list(_align_rows(schema, self._rows(block))))

    def _store(self, schema: TableSchema) -> None:
        """Move what is in memory to the file."""
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
    """The rows with the columns of the log as it is now; only those from before an ALTER have others."""
    names = [column.name for column in get_log_columns(schema)]
    due = set(names)
    return (row if row.keys() == due else {name: row.get(name) for name in names} for row in rows)


@dataclass(frozen=True)
class StoredTables:
    """The tables that the lake has: their catalog, what their logs tell of one, and the options it has had."""

    catalog: Catalog
    state: Callable[[TableSchema], StoredState]
    history: Callable[[TableSchema], list[CdcOptionsSince]] = lambda _: []


@dataclass(frozen=True)
class _StateAtScript:
    """What logs tell of a table at the time (µs) of a script, by which cells have expired."""

    state: StoredState
    now_us: Microseconds

    def partition(self, schema: TableSchema, key: bytes) -> Mutation | None:
        found = self.state.partition(schema, _key_token(key), key) if self.state.parts else None
        return None if found is None else drop_expired(found, self.now_us)

    def partitions(self, schema: TableSchema) -> dict[bytes, Mutation]:
        whole = mutations_from_state(schema, self.state.whole(schema))
        return {key: drop_expired(state, self.now_us) for key, state in whole.items()}


class DefinedTable(NamedTuple):
    """A table with CDC options that a script has given it at a time (µs), and its definition then.

    `writes` tells it from one that no write was behind: how many there were before.
    """

    at_us: Microseconds
    options: CdcOptions
    ddl: str
    writes: int


def iter_script_statements(text: str, *, strict: bool = False, values: str | None = None) -> Iterable[s.Statement]:
    """The statements of a script, read as they are asked for; `values` are those of its bind markers, see `markers`.

    Raises:
        InputError: with `strict`, if a statement is none that is done; or the values are not those of the markers.
    """
    if strict:
        check_script(text)
    return iterate_leniently(text) if values is None else bind_values(parse_leniently(text), values)


def dry_run_script(
    text: str, lake: Lake, clock: Clock, settings: Settings, *, strict: bool = False, values: str | None = None
) -> ScriptResult:
    """Run a script against the streams of the lake, which stays as it is; raises InputError as
    `iter_script_statements`.
    """
    return Script(lake, settings, clock.now_us()).run(iter_script_statements(text, strict=strict, values=values))


class Script:
    """One run of a script: the tables as they stand between its statements, at a clock that shows `now_us` (µs)."""

    def __init__(self, lake: Lake, settings: Settings, now_us: Microseconds, kept: StoredTables | None = None) -> None:
        """`kept` are the tables that earlier scripts have left in the lake; None: the script starts with none."""
        self._kept = kept or StoredTables(Catalog(), lambda _: StoredState())
        self._catalog = self._kept.catalog
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
        """The log rows that the script has added, by table; those of tables that it has dropped are not among them."""
        self.emptied: list[TableSchema] = []
        """The tables whose logs it has dropped, and not the tables."""
        self._warnings: list[str] = []
        self._histories: dict[str, list[CdcOptionsSince]] = {}
        self.defined: defaultdict[str, list[DefinedTable]] = defaultdict(list)
        """The tables that it has made, or given other CDC options, each time before a write, oldest first."""
        self.renamed: dict[str, dict[str, str]] = {}
        """The old names of key columns of kept tables by their new ones, by table."""
        self.dropped: list[TableSchema] = []
        """The kept tables that the script has dropped, also where it has made others of their names."""

    @property
    def catalog(self) -> Catalog:
        """The keyspaces, types and tables as they are after the statements so far."""
        return self._catalog

    def run(self, statements: Iterable[s.Statement], tell: OnOutcome | None = None) -> ScriptResult:
        """Run the statements in order; one that fails changes nothing and does not stop those behind it.

        What became of each is told when it is over, and then forgotten; without `tell` the result has it.
        """
        self._writes += 1  # between two runs others may have written
        tally, outcomes = OutcomeTally(), list[StatementOutcome]()
        told = tell or outcomes.append
        for statement in statements:
            outcome = self._undone.told(self._outcome(self._statements, statement), self._catalog.in_use)
            self._statements += 1
            tally.add(outcome)
            told(outcome)
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
        """Note that ALTER TABLE turns CDC off where it only leaves `enabled` out."""
        if not isinstance(body, s.AlterProperties) or not omits_enabled(body.properties):
            return
        keyspace, name = self._catalog.qualified(body.name)
        if not self._catalog.has_table(body.name):
            return
        table = self._catalog.table(body.name)
        if table.cdc.enabled and not any(index_enables_cdc(index.class_name) for index in table.search_indexes):
            self._warnings.append(f"line {line}: {explain_cdc_turned_off(f'{keyspace}.{name}')}")

    def _alter(self, name: str, table: TableSchema) -> None:
        before = self._base(table).schema
        self._base(table).alter(table)
        self._rename(name, before, table)
        if before.cdc != table.cdc:
            self._define_as(name, table, self.at_us)
        if before.log_since_us != table.log_since_us:
            self.emptied.append(table)
            self._told[name], self.written[name] = StoredState(), SpooledLogRows()

    def _rename(self, name: str, before: TableSchema, after: TableSchema) -> None:
        """Let the rows of a log have the names that key columns have now; keys stay in their places."""
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
        """Forget the rows of a table; its log stays as it is, and what stands there is told of as not the table's."""
        self._base(schema).truncate()
        self._catalog.put(replace(schema, truncated_us=self.at_us))
        self._base(schema).alter(self._catalog.keyspaces[schema.keyspace].tables[schema.name])

    @property
    def touched(self) -> list[TableSchema]:
        """The tables that it has looked at, as they are."""
        return [base.schema for base in self._bases.values()]

    @property
    def at_us(self) -> Microseconds:
        """The time (µs) that the next write will have; those before are earlier."""
        return self._now_us + self._ticks

    def _forget(self, name: str) -> None:
        self.dropped += [schema for schema in self._found if schema.full_name == name]
        gone = self._unread.pop(name, None)
        base = self._bases.pop(name, None)
        schema = gone if base is None else base.schema
        if schema is not None:
            self._sources.forget(schema.keyspace, schema.name)
        self._told.pop(name, None)
        self.defined.pop(name, None)
        self.written.pop(name, None)
        self.renamed.pop(name, None)

    def _base(self, schema: TableSchema) -> BaseTable:
        """The table as it is now; what is kept of it is read when it is asked for first."""
        name = schema.full_name
        if name in self._unread:
            before = self._unread.pop(name)
            state = self._kept.state(before)
            # What was written before the table was truncated is in its log alone.
            self._told[name] = state if before.truncated_us is None else self._kept.state(_untruncated(before))
            self.written[name] = SpooledLogRows()
            self._histories[name] = self._kept.history(before) or [CdcOptionsSince(before.created_at_us, before.cdc)]
            self._bases[name] = self._rebuilt(before, state)
        return self._bases[name]

    def _rebuilt(self, schema: TableSchema, state: StoredState) -> BaseTable:
        """The table as earlier scripts have left it, as far as its log tells."""
        return BaseTable(schema, behind=_StateAtScript(state, self._now_us))

    def _make(self, name: str, schema: TableSchema) -> None:
        self._histories[name] = []
        self._define_as(name, schema, schema.created_at_us)
        self._bases[name], self._told[name], self.written[name] = BaseTable(schema), StoredState(), SpooledLogRows()
        count = self._catalog.keyspace(schema.keyspace).tablets
        if count is not None:
            self._sources.give_tablets(schema.keyspace, schema.name, count, self._now_us)

    def _define_as(self, name: str, schema: TableSchema, at_us: Microseconds) -> None:
        defined = self.defined[name]
        if defined and defined[-1].writes == self._writes:
            defined.pop()
        defined.append(DefinedTable(at_us, schema.cdc, format_ddl(self._catalog, schema), self._writes))

    def _write(
        self, number: int, body: s.WriteStatement | s.Batch
    ) -> tuple[Sequence[tuple[TableSchema, LogRow]], LwtResult | None]:
        """The log rows of a write, and what its conditions come to; without them it leaves none."""
        self._writes += 1
        moment = ExecutionContext(self.at_us)
        if not _has_timestamps(body):
            self._ticks += ONE_US
        binder = StatementBinder(self._catalog, moment, self._read)
        answer = binder.ask(body)
        if answer is not None and not answer.applied:
            # It is held against what CQL allows all the same, but for what no one looks up any more.
            with suppress(ListIndexOutOfRange):
                binder.bind(body)
            return (), answer
        mutations = binder.bind(body)
        logged = [self._log_rows(number, mutation) for mutation in mutations]
        for mutation, rows in zip(mutations, logged, strict=True):
            self._base(mutation.schema).apply(mutation)
            self.written[mutation.schema.full_name].add(mutation.schema, rows)
        told = tuple((mutation.schema, row) for mutation, rows in zip(mutations, logged, strict=True) for row in rows)
        return told, answer

    def _read(self, schema: TableSchema, key: KeyValues) -> LivePartition:
        return self._base(schema).partition(key)

    def _log_rows(self, number: int, mutation: Mutation) -> list[LogRow]:
        """The log rows of a mutation in their streams, before it takes effect; none where CDC is off."""
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
        altered = (CdcOptionsSince(each.at_us, each.options) for each in self.defined[name])
        missing = find_option_gaps(schema, [*self._histories[name], *altered])
        if not schema.cdc.enabled or schema.cdc.delta != "full":
            return TouchedTable(name, missing, base.rows, None, schema.row_ttl)
        told, written = self._told[name], self.written[name].until_now()

        def rebuilt() -> list[dict[str, Any]]:
            table = self._rebuilt(schema, told)
            for state in replay_log(schema, written).values():
                table.apply(state)
            return table.rows()

        return TouchedTable(name, missing, base.rows, rebuilt, schema.row_ttl)


def _key_columns(schema: TableSchema) -> tuple[Column, ...]:
    return (*schema.partition_key, *schema.clustering_key)


@lru_cache(maxsize=4096)
def _key_token(key: bytes) -> int:
    """The token of a serialized partition key; statements that follow each other often have one."""
    return int(tokens_from_keys([key])[0])


def _untruncated(schema: TableSchema) -> TableSchema:
    return replace(schema, truncated_us=None)


def _has_timestamps(body: s.WriteStatement | s.Batch) -> bool:
    """Whether the statement says all of its timestamps itself."""
    if body.using.timestamp is not None:
        return True
    if not isinstance(body, s.Batch) or any(write.condition is not None for write in body.writes):
        return False
    return all(write.using.timestamp is not None for write in body.writes)
