"""Runs a script of CQL statements in the process: each sees the effects of those before it, nothing is written.

Knows the order of things: parse, bind, make log rows, find their streams, and only then let the write take effect.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from cdc_platform.clock import ONE_US, Clock, Microseconds
from cdc_platform.cql import statements as s
from cdc_platform.cql.base_table import BaseTable, without_expired
from cdc_platform.cql.binding import Binder
from cdc_platform.cql.catalog import Catalog
from cdc_platform.cql.cells import OutsideOfList
from cdc_platform.cql.conditions import Answer
from cdc_platform.cql.definitions import define
from cdc_platform.cql.kinds import INDEX
from cdc_platform.cql.literals import Moment
from cdc_platform.cql.live import Partition
from cdc_platform.cql.markers import bound
from cdc_platform.cql.mutation import Mutation
from cdc_platform.cql.parser import assert_understood, read_script, statements_in
from cdc_platform.cql.ranges import Key
from cdc_platform.cql.schema import CdcOptions, Column, TableSchema
from cdc_platform.cql.search_indexes import enables_cdc
from cdc_platform.cql.table_options import leaves_out_enabled, turns_off
from cdc_platform.cql.written import ddl_of
from cdc_platform.errors import PlatformError
from cdc_platform.lake.lake import Lake
from cdc_platform.log.gaps import Standing, gaps
from cdc_platform.log.replay.partitions import replay
from cdc_platform.log.rows import Row, log_mutations
from cdc_platform.log.scripts.outcomes import Outcome, Result, Tally, Tell, TouchedTable, Undone
from cdc_platform.log.scripts.written import Written
from cdc_platform.log.state.kept import KeptState
from cdc_platform.log.state.of_mutations import mutations_of
from cdc_platform.ring import tokens_of_keys
from cdc_platform.settings import Settings
from cdc_platform.timeline import StreamSources


@dataclass(frozen=True)
class Kept:
    """The tables that the lake has: their catalog, what their logs tell of one, and the options it has had."""

    catalog: Catalog
    state: Callable[[TableSchema], KeptState]
    history: Callable[[TableSchema], list[Standing]] = lambda _: []


@dataclass(frozen=True)
class _Found:
    """What logs tell of a table at the time (µs) of a script, by which cells have expired."""

    state: KeptState
    now_us: Microseconds

    def partition(self, schema: TableSchema, key: bytes) -> Mutation | None:
        found = self.state.partition(schema, _token(key), key) if self.state.parts else None
        return None if found is None else without_expired(found, self.now_us)

    def partitions(self, schema: TableSchema) -> dict[bytes, Mutation]:
        whole = mutations_of(schema, self.state.whole(schema))
        return {key: without_expired(state, self.now_us) for key, state in whole.items()}


class Defined(NamedTuple):
    """A table with CDC options that a script has given it at a time (µs), and its definition then.

    `writes` tells it from one that no write was behind: how many there were before.
    """

    at_us: Microseconds
    options: CdcOptions
    ddl: str
    writes: int


def statements_of(text: str, *, strict: bool = False, values: str | None = None) -> Iterable[s.Statement]:
    """The statements of a script, read as they are asked for; `values` are those of its bind markers, see `markers`.

    Raises:
        InputError: with `strict`, if a statement is none that is done; or the values are not those of the markers.
    """
    if strict:
        assert_understood(text)
    return statements_in(text) if values is None else bound(read_script(text), values)


def rehearse(
    text: str, lake: Lake, clock: Clock, settings: Settings, *, strict: bool = False, values: str | None = None
) -> Result:
    """Run a script against the streams of the lake, which stays as it is; raises InputError as `statements_of`."""
    return Script(lake, settings, clock.now_us()).run(statements_of(text, strict=strict, values=values))


class Script:
    """One run of a script: the tables as they stand between its statements, at a clock that shows `now_us` (µs)."""

    def __init__(self, lake: Lake, settings: Settings, now_us: Microseconds, kept: Kept | None = None) -> None:
        """`kept` are the tables that earlier scripts have left in the lake; None: the script starts with none."""
        self._kept = kept or Kept(Catalog(), lambda _: KeptState())
        self._catalog = self._kept.catalog
        self._found = list(self._catalog.tables())
        self._unread = {schema.full_name: schema for schema in self._catalog.tables()}
        self._sources = StreamSources(lake, settings)
        self._now_us = now_us
        self._ticks = Microseconds(0)
        self._statements = 0
        self._writes = 0
        self._undone = Undone()
        self._bases: dict[str, BaseTable] = {}
        self._told: dict[str, KeptState] = {}
        self.written: dict[str, Written] = {}
        """The log rows that the script has added, by table; those of tables that it has dropped are not among them."""
        self.emptied: list[TableSchema] = []
        """The tables whose logs it has dropped, and not the tables."""
        self._warnings: list[str] = []
        self._histories: dict[str, list[Standing]] = {}
        self.defined: defaultdict[str, list[Defined]] = defaultdict(list)
        """The tables that it has made, or given other CDC options, each time before a write, oldest first."""
        self.renamed: dict[str, dict[str, str]] = {}
        """The old names of key columns of kept tables by their new ones, by table."""
        self.dropped: list[TableSchema] = []
        """The kept tables that the script has dropped, also where it has made others of their names."""

    @property
    def catalog(self) -> Catalog:
        """The keyspaces, types and tables as they are after the statements so far."""
        return self._catalog

    def run(self, statements: Iterable[s.Statement], tell: Tell | None = None) -> Result:
        """Run the statements in order; one that fails changes nothing and does not stop those behind it.

        What became of each is told when it is over, and then forgotten; without `tell` the result has it.
        """
        self._writes += 1  # between two runs others may have written
        tally, outcomes = Tally(), list[Outcome]()
        told = tell or outcomes.append
        for statement in statements:
            outcome = self._undone.told(self._outcome(self._statements, statement), self._catalog.in_use)
            self._statements += 1
            tally.add(outcome)
            told(outcome)
        touched = [self._touched(name) for name in self._bases]
        return Result(tally, outcomes, touched, warnings=self._warnings)

    def _outcome(self, number: int, statement: s.Statement) -> Outcome:
        body = statement.body
        try:
            if isinstance(body, s.Write | s.Batch):
                rows, answer = self._write(number, body)
                return Outcome(statement, logged=rows, answer=answer)
            if isinstance(body, s.Use):
                self._catalog.in_use = self._catalog.keyspace(body.keyspace).name
            elif isinstance(body, s.Truncate):
                self._truncate(self._catalog.table(body.name))
            elif isinstance(body, s.Unread):
                return Outcome(statement, body.error)
            elif not isinstance(body, s.Read | s.PassedOver):
                schema = self._define(body, statement.line)
                if isinstance(body, s.DropIndex) and schema is None:
                    return Outcome(statement._replace(body=s.PassedOver(INDEX)))
                return Outcome(statement, schema=schema)
            return Outcome(statement)
        except PlatformError as error:
            return Outcome(statement, error)

    def _define(self, body: s.Definition, line: int) -> TableSchema | None:
        self._warn_of_cdc(body, line)
        schema = define(self._catalog, body, self._now_us)
        known = {table.full_name: table for table in self._catalog.tables()}
        for name in [name for name in (*self._bases, *self._unread) if name not in known]:
            self._forget(name)
        for name, table in known.items():
            if name not in self._bases and name not in self._unread:
                self._make(name, table)
            elif self._unread.get(name) is not table and self._base(table).schema is not table:
                self._alter(name, table)
        return schema

    def _warn_of_cdc(self, body: s.Definition, line: int) -> None:
        """Note that ALTER TABLE turns CDC off where it only leaves `enabled` out."""
        if not isinstance(body, s.AlterProperties) or not leaves_out_enabled(body.properties):
            return
        keyspace, name = self._catalog.qualified(body.name)
        if not self._catalog.has_table(body.name):
            return
        table = self._catalog.table(body.name)
        if table.cdc.enabled and not any(enables_cdc(index.class_name) for index in table.search_indexes):
            self._warnings.append(f"line {line}: {turns_off(f'{keyspace}.{name}')}")

    def _alter(self, name: str, table: TableSchema) -> None:
        before = self._base(table).schema
        self._base(table).alter(table)
        self._rename(name, before, table)
        if before.cdc != table.cdc:
            self._define_as(name, table, self.at_us)
        if before.log_since_us != table.log_since_us:
            self.emptied.append(table)
            self._told[name], self.written[name] = KeptState(), Written()

    def _rename(self, name: str, before: TableSchema, after: TableSchema) -> None:
        """Let the rows of a log have the names that key columns have now; keys stay in their places."""
        keys = zip(_keys(before), _keys(after), strict=True)
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
            self.written[name] = Written()
            self._histories[name] = self._kept.history(before) or [Standing(before.created_at_us, before.cdc)]
            self._bases[name] = self._rebuilt(before, state)
        return self._bases[name]

    def _rebuilt(self, schema: TableSchema, state: KeptState) -> BaseTable:
        """The table as earlier scripts have left it, as far as its log tells."""
        return BaseTable(schema, behind=_Found(state, self._now_us))

    def _make(self, name: str, schema: TableSchema) -> None:
        self._histories[name] = []
        self._define_as(name, schema, schema.created_at_us)
        self._bases[name], self._told[name], self.written[name] = BaseTable(schema), KeptState(), Written()
        count = self._catalog.keyspace(schema.keyspace).tablets
        if count is not None:
            self._sources.give_tablets(schema.keyspace, schema.name, count, self._now_us)

    def _define_as(self, name: str, schema: TableSchema, at_us: Microseconds) -> None:
        defined = self.defined[name]
        if defined and defined[-1].writes == self._writes:
            defined.pop()
        defined.append(Defined(at_us, schema.cdc, ddl_of(self._catalog, schema), self._writes))

    def _write(self, number: int, body: s.Write | s.Batch) -> tuple[Sequence[tuple[TableSchema, Row]], Answer | None]:
        """The log rows of a write, and what its conditions come to; without them it leaves none."""
        self._writes += 1
        moment = Moment(self.at_us)
        if not _has_timestamps(body):
            self._ticks += ONE_US
        binder = Binder(self._catalog, moment, self._read)
        answer = binder.ask(body)
        if answer is not None and not answer.applied:
            # It is held against what CQL allows all the same, but for what no one looks up any more.
            with suppress(OutsideOfList):
                binder.bind(body)
            return (), answer
        mutations = binder.bind(body)
        logged = [self._log_rows(number, mutation) for mutation in mutations]
        for mutation, rows in zip(mutations, logged, strict=True):
            self._base(mutation.schema).apply(mutation)
            self.written[mutation.schema.full_name].add(mutation.schema, rows)
        told = tuple((mutation.schema, row) for mutation, rows in zip(mutations, logged, strict=True) for row in rows)
        return told, answer

    def _read(self, schema: TableSchema, key: Key) -> Partition:
        return self._base(schema).partition(key)

    def _log_rows(self, number: int, mutation: Mutation) -> list[Row]:
        """The log rows of a mutation in their streams, before it takes effect; none where CDC is off."""
        schema = mutation.schema
        if not schema.cdc.enabled:
            return []
        state = self._read(schema, mutation.partition_key).state
        token = _token(schema.partition_bytes(mutation.partition_key))
        source = self._sources.of(schema.keyspace, schema.name)
        rows: list[Row] = []
        for part in log_mutations(mutation, state, identity=number.to_bytes(8, "big")):
            rows += part.in_stream(source.stream_of(part.timestamp, token, self._now_us))
        return rows

    def _touched(self, name: str) -> TouchedTable:
        base = self._bases[name].copy()
        schema = base.schema
        altered = (Standing(each.at_us, each.options) for each in self.defined[name])
        missing = gaps(schema, [*self._histories[name], *altered])
        if not schema.cdc.enabled or schema.cdc.delta != "full":
            return TouchedTable(name, missing, base.rows, None, schema.row_ttl)
        told, written = self._told[name], self.written[name].until_now()

        def rebuilt() -> list[dict[str, Any]]:
            table = self._rebuilt(schema, told)
            for state in replay(schema, written).values():
                table.apply(state)
            return table.rows()

        return TouchedTable(name, missing, base.rows, rebuilt, schema.row_ttl)


def _keys(schema: TableSchema) -> tuple[Column, ...]:
    return (*schema.partition_key, *schema.clustering_key)


@lru_cache(maxsize=4096)
def _token(key: bytes) -> int:
    """The token of a serialized partition key; statements that follow each other often have one."""
    return int(tokens_of_keys([key])[0])


def _untruncated(schema: TableSchema) -> TableSchema:
    return replace(schema, truncated_us=None)


def _has_timestamps(body: s.Write | s.Batch) -> bool:
    """Whether the statement says all of its timestamps itself."""
    if body.using.timestamp is not None:
        return True
    if not isinstance(body, s.Batch) or any(write.condition is not None for write in body.writes):
        return False
    return all(write.using.timestamp is not None for write in body.writes)
