"""The class `Home` and `open_home`. Heavy libraries load when the first method needs them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from cdc_platform.clock import Clock, Milliseconds
from cdc_platform.errors import InputError
from cdc_platform.home.names import GenerationName, TimeValue, normalize_generation_name, us_from_time
from cdc_platform.home_location import HomeLocation, open_home_location

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset

    from cdc_platform.delta import HomeMode, Lake
    from cdc_platform.generations import AcceptancePolicy
    from cdc_platform.home.checking import CheckReport
    from cdc_platform.home.colocation import ColocationReport
    from cdc_platform.home.generations import GenerationDiff, GenerationStreams, GenerationSummary
    from cdc_platform.metastore import CdcTable, Consumer, TopologyTransition
    from cdc_platform.query import TimeTravel
    from cdc_platform.reporting import HomeStatus
    from cdc_platform.ring import Ring
    from cdc_platform.settings import Settings
    from cdc_platform.timeline import Generation, StreamSource, Timeline, WriteExplanation

_UUID_LENGTH = 36
_PYTHON_ENTRY_POINT = "Python"
"""The entry point under which `Home.check` records its results."""


def open_home(path: str | Path | None = None, *, clock: Clock | TimeValue | None = None, create: bool = False) -> Home:
    """Open a home and return it; create it if it is missing and `create` is set.

    `path` is a folder or an address in an object store (`s3://bucket/prefix`); by default `$CDC_PLATFORM_HOME`, or
    `.cdc-platform` in the current folder. `clock` stops the home's clock at a time; by default it runs.

    Raises:
        EnvironmentProblem: the home does not exist, cannot be read (or written to, with `create`), or a newer version
            wrote it.
        InputError: the path has characters that Spark and Delta misread, or `clock` is no time.
    """
    if clock is None or not isinstance(clock, Clock):
        clock = Clock(None if clock is None else us_from_time(clock))
    return Home(open_home_location(path, create=create), clock)


@dataclass(frozen=True, eq=False)
class Home:
    """A home: a lake of Delta tables that hold a ring, its CDC generations and CDC logs. Created by `open_home`.

    Each method reads the newest version of the tables that it needs, each of them once, and returns a result that later
    commits do not change. Only `check` writes, and only its results. Methods raise subclasses of `PlatformError`, with
    the messages and codes of the command line.

    `location` has the paths of the home, `clock` is what its rules take for the current time.
    """

    location: HomeLocation
    clock: Clock = field(default_factory=Clock)

    def __repr__(self) -> str:
        """Return the call that opens this home."""
        return f"open_home({self.name!r})"

    def __enter__(self) -> Self:
        """Return the home."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the open tables."""
        self.close()

    def close(self) -> None:
        """Release the open tables. The home stays usable, and opens them again."""
        self.__dict__.pop("lake", None)

    @property
    def name(self) -> str:
        """Return the home's path or address."""
        return self.location.name

    @property
    def settings(self) -> Settings:
        """Return the settings of `settings.toml`, or their defaults.

        Raises:
            InputError: the file is not valid.
        """
        return self.location.settings

    @cached_property
    def lake(self) -> Lake:
        """Return the Delta tables of the home, for the functions of `cdc_platform`'s packages."""
        from cdc_platform.delta import Lake

        return Lake(self.location.lake)

    @property
    def mode(self) -> HomeMode:
        """Return whether the home is the platform's own, only observed, or the mirror of a live cluster."""
        from cdc_platform.delta import get_home_mode

        return get_home_mode(self.lake)

    @contextmanager
    def one_version(self) -> Iterator[Lake]:
        """Yield the lake, whose tables keep one version within the block, so that all reads are consistent."""
        with self.lake.table_cache.pin_versions():
            yield self.lake

    def tables(self) -> list[str]:
        """Return the full names (`keyspace.table`) of all stored tables, sorted."""
        from cdc_platform.delta import list_stored_tables

        return sorted(".".join(name) for name in list_stored_tables(self.lake))

    def read(
        self,
        table: str,
        columns: Sequence[str] | None = None,
        *,
        filter: pyarrow.dataset.Expression | None = None,
        at: TimeValue | None = None,
        version: int | None = None,
    ) -> pa.Table:
        """Return the rows of a table in no particular order, as Arrow; `.to_pandas()` converts them.

        `table` is `keyspace.table`, or the name alone if only one keyspace has it. `filter` selects rows, as in
        `pyarrow.compute.field("time") > t`; files that cannot match stay unread. `at` reads the version of that time,
        `version` that version. A table of the platform that was never written has no rows.

        Raises:
            InputError: no table or several have this name; there is no such column; `at` and `version` are both given.
            NotFound: the table has no such version, or no longer has it.
            StateError: a file of the table is missing or damaged.
        """
        from cdc_platform.query import read_table

        return read_table(self.lake, table, columns, filter, self._time_travel(at, version))

    def sql(self, query: str, *, at: TimeValue | None = None, version: int | None = None) -> pa.Table:
        """Return the result of a query in DuckDB's SQL over the tables, under ScyllaDB's own names.

        `at` and `version` as in `read`; a version needs a query of one table. The query can read nothing else.

        Raises:
            InputError: the text is no query, names an unknown table or column, or would change something.
            NotFound: a table has no such version, or no longer has it.
            StateError: a file of a table is missing or damaged.
            EnvironmentProblem: neither memory nor disk suffice.
        """
        import pyarrow as pa

        from cdc_platform.query import duckdb

        with duckdb.run_duckdb_query(self.lake, query, at=self._time_travel(at, version)) as result:
            return pa.Table.from_batches(result.batches, result.schema)

    def _time_travel(self, at: TimeValue | None, version: int | None) -> TimeTravel:
        from cdc_platform.query import TimeTravel

        if at is not None and version is not None:
            raise InputError("a table is read as of a time or at a version; give one of at and version")
        return TimeTravel(version, None if at is None else us_from_time(at))

    def ring(self) -> Ring:
        """Return the current ring: its nodes, and their tokens as int64[n], ascending. Empty if there are no nodes."""
        from cdc_platform.metastore import read_current_ring

        with self.one_version() as lake:
            return read_current_ring(lake)

    def topology_transition(self) -> TopologyTransition | None:
        """Return the change of topology that is in progress in the mirrored cluster; `ring` is that of before it."""
        from cdc_platform.metastore import read_topology_transition

        with self.one_version() as lake:
            return read_topology_transition(lake)

    def timeline(self) -> Timeline:
        """Return all generations that exist or existed, oldest first, with the state of each."""
        from cdc_platform.timeline import Timeline

        with self.one_version() as lake:
            return Timeline.read(lake)

    def generations(self, since: TimeValue | None = None) -> list[GenerationSummary]:
        """Return the known generations with their sizes, newest first.

        `since` leaves out those that stopped operating before that time; the newest is always included.
        """
        from cdc_platform.home import generations

        with self.one_version() as lake:
            since_us = None if since is None else us_from_time(since)
            return generations.list_generations(lake, self.clock.now_us(), since_us)

    def generation(self, name: GenerationName) -> Generation:
        """Return one generation, named by its UUID, its time, `latest`, `operating`, or a prefix of a UUID or time.

        Raises:
            UnknownGeneration: no generation has this name, several begin with it, or it was removed.
            InputError: it is no name of a generation.
        """
        return self.timeline().find(self.resolve_generation(name))

    def resolve_generation(self, name: GenerationName) -> str | Milliseconds:
        """Return the generation that a name stands for, by its UUID or, without one, its time (ms).

        A complete UUID or time is returned whether or not there is such a generation.

        Raises:
            UnknownGeneration: no generation is `latest` or `operating`, or the name is a prefix of none or of several.
            InputError: it is no name of a generation.
        """
        normalized = normalize_generation_name(name)
        if not isinstance(normalized, str) or len(normalized) == _UUID_LENGTH:
            return normalized
        generation = self.timeline().find_by_name(normalized, self.clock.now_us())
        return generation.id or generation.time_ms

    def streams(self, generation: GenerationName) -> GenerationStreams:
        """Return the published streams of a generation, range by range.

        Raises:
            UnknownGeneration: as `generation`.
            NotFound: it is not published yet.
            StateError: it is published without any rows.
        """
        from cdc_platform.home import generations

        with self.one_version() as lake:
            found = self.timeline().find_published(self.resolve_generation(generation))
            return generations.read_generation_streams(lake, found)

    def diff(self, old: GenerationName, new: GenerationName) -> GenerationDiff:
        """Return the difference between two generations.

        Raises:
            UnknownGeneration: as `generation`.
            NotFound: the description of one is not stored.
            StateError: one is known by its time alone, or its description is incomplete.
        """
        from cdc_platform.home import generations

        with self.one_version() as lake:
            return generations.diff_generations(lake, self.generation(old), self.generation(new))

    def colocation(self, generation: GenerationName = "operating") -> ColocationReport:
        """Return how much of each node's and shard's keys have their stream on the same vnode and shard.

        Raises:
            UnknownGeneration: as `generation`.
            NotFound: its description is not stored.
            StateError: there is no ring, the description is incomplete, or the topology is changing and the generation
                has ranges of nodes that are not here yet.
        """
        from cdc_platform.home import colocation

        with self.one_version() as lake:
            ring = self.ring()
            colocation.require_tokens(ring)
            return colocation.measure_colocation(lake, ring, self.generation(generation))

    def explain(
        self,
        *,
        key: bytes | str | Sequence[bytes] | Sequence[str] | None = None,
        token: int | None = None,
        table: str | tuple[str, str] | None = None,
        at: TimeValue | None = None,
        policy: AcceptancePolicy | None = None,
    ) -> WriteExplanation:
        """Explain where a write goes (generation, range, owner, shard, stream), and whether it is accepted now.

        Give either `token` or `key`. A key is serialized bytes, or text as CQL writes it, which needs `table`; give a
        sequence for a composite key. `table` is `keyspace.table`; a tablet-based table has streams of its own. `at` is
        the timestamp of the write, by default the clock. `policy` overrides the home's setting.

        The result is a `VnodeExplanation`, or a `TabletExplanation` for a tablet-based table.

        Raises:
            InputError: neither or both of `key` and `token` are given; the key is none of the table's; a policy is
                given for a tablet-based table.
            UnknownTable: the table is not known.
        """
        if (key is None) == (token is None):
            raise InputError("a write is explained by its key or by its token; give one of key and token")
        with self.one_version():
            if token is None:
                token = self.token(key or b"", table)
            now_us = self.clock.now_us()
            at_us = now_us if at is None else us_from_time(at)
            return self.stream_source(table).explain(token, at_us, now_us, policy)

    def token(
        self, key: bytes | str | Sequence[bytes] | Sequence[str], table: str | tuple[str, str] | None = None
    ) -> int:
        """Return the token of a partition key, given as in `explain`.

        Raises:
            InputError: the key is text and there is no table, or the key is none of the table's.
            UnknownTable: the table's definition is not known.
        """
        from cdc_platform.ring import serialize_composite_key, tokens_from_keys

        parts = [key] if isinstance(key, (bytes, str)) else list(key)
        texts = [part for part in parts if isinstance(part, str)]
        components = [part for part in parts if isinstance(part, bytes)]
        if not parts or (texts and components):
            raise InputError("a key is one or more components, all of them serialized bytes or all of them text")
        if texts:
            components = [self._serialize_key(texts, table)]
        serialized = components[0] if len(components) == 1 else serialize_composite_key(tuple(components))
        return int(tokens_from_keys([serialized])[0])

    def _serialize_key(self, texts: Sequence[str], table: str | tuple[str, str] | None) -> bytes:
        from cdc_platform.cdclog import read_table_schema
        from cdc_platform.cql import ExecutionContext, parse_partition_key

        if table is None:
            raise InputError("a key as text needs its table, whose types it has; give table='keyspace.table'")
        schema = read_table_schema(self.lake, *_qualified_name(table))
        return parse_partition_key(schema, texts, ExecutionContext(self.clock.now_us()))

    def stream_source(self, table: str | tuple[str, str] | None = None) -> StreamSource:
        """Return what assigns streams to the writes of a table; without a table, the generations.

        Raises:
            UnknownTable: the table is not known.
        """
        from cdc_platform.metastore import cdc_tables
        from cdc_platform.timeline import StreamSources

        sources = StreamSources(self.lake, self.settings)
        if table is None:
            return sources.generations
        name = _qualified_name(table)
        source = sources.of(*name)
        if source.in_generations:
            cdc_tables.find_cdc_table(self.lake, *name)
        return source

    def check(
        self,
        generation: GenerationName | None = None,
        *,
        deep: bool = False,
        record: bool = True,
        entry_point: str = _PYTHON_ENTRY_POINT,
    ) -> CheckReport:
        """Judge every invariant of one generation, or of everything. A large home starts Spark.

        `deep` reads every row of every table, however large it is. `record` stores the results for `status`, under
        `entry_point`, and lifts the mark of an observed home if every invariant passed; without it nothing is written.

        Raises:
            UnknownGeneration: as `generation`.
            NotFound: there is nothing to check.
        """
        from cdc_platform.delta import CommitAuthor, commit_as
        from cdc_platform.home import checking

        named = None if generation is None else self.resolve_generation(generation)
        record_as = entry_point if record else None
        author = commit_as(CommitAuthor(_PYTHON_ENTRY_POINT, "Home.check"))
        with author if entry_point == _PYTHON_ENTRY_POINT else nullcontext():
            return checking.check_home(self.lake, self.clock, self.settings, named, deep=deep, record_as=record_as)

    def status(self) -> HomeStatus:
        """Return a summary of the home: ring, generations, joins, tables, consumers, checks, and what needs attention.

        It reads small tables and Delta's log only, and needs no JVM.
        """
        from cdc_platform.reporting import read_home_status

        with self.one_version() as lake:
            return read_home_status(lake, self.clock, self.settings)

    def cdc_tables(self) -> list[CdcTable]:
        """Return the registered CDC-enabled tables, with their TTL."""
        from cdc_platform.metastore import read_cdc_tables

        with self.one_version() as lake:
            return read_cdc_tables(lake)

    def consumers(self) -> list[Consumer]:
        """Return the readers of CDC logs, with the position (µs) that each has reached."""
        from cdc_platform.metastore import consumers

        with self.one_version() as lake:
            return consumers.read_consumers(lake)


def _qualified_name(table: str | tuple[str, str]) -> tuple[str, str]:
    from cdc_platform.cql import parse_table_name

    return parse_table_name(table) if isinstance(table, str) else table
