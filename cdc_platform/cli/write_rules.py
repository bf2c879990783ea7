"""Commands that declare which tables they write, so that a home that does not take such writes refuses them at once.

The home's mode (`cdc_platform.delta.HomeMode`) has the rule for each table. A command is refused before it does
anything, and a `next:` line never names a command that its home would refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from cdc_platform.cli.session import CliSession
from cdc_platform.delta import HomeIsMirror, HomeIsObserved, WriteSource, read_home_mode, write_as
from cdc_platform.errors import PlatformError
from cdc_platform.home_location import locate_home

if TYPE_CHECKING:
    from cdc_platform.delta import HomeMode
    from cdc_platform.tables import Table

Params = Mapping[str, Any]

CDC_LOG = "KS.T_scylla_cdc_log"
"""The log of any base table, which holds facts of the cluster like all tables that are not declared."""
REBUILT_TABLE = "KS.T_rebuilt"
"""The table that is rebuilt from the log of any base table, for readers."""
JOIN_TABLES = (
    "platform.bootstrap_events",
    "platform.generations",
    "platform.nodes",
    "platform.topology_descriptions",
    "platform.verdicts",
    "platform.verdict_counts",
    "system.cdc_local",
    "system_distributed.cdc_generation_timestamps",
    "system_distributed.cdc_streams_descriptions_v2",
    "system_distributed_everywhere.cdc_generation_descriptions_v2",
)
"""The tables that a join or a repair writes."""
CDC_TABLE_TABLES = ("platform.cdc_tables", "platform.cdc_table_changes")
"""The tables of registered tables, and of their changes."""
SWITCH_TABLES = (
    "platform.generation_switches",
    "platform.switch_promises",
    "platform.committed_generations",
    "platform.generations",
    "system.cdc_local",
)
"""The tables of two-phase switches, and those that a committed one changes."""
PUBLISHED_TABLES = (
    "platform.unordered_ranges",
    "system_distributed.cdc_generation_timestamps",
    "system_distributed.cdc_streams_descriptions_v2",
)
"""The tables that clients read, and the ranges of them whose stream order is unknown."""
REWRITE_TABLES = (*PUBLISHED_TABLES, "system.cdc_local")
"""The tables that a rewrite of V1 generations writes."""
DESCRIPTION_TABLES = (
    "platform.topology_descriptions",
    "system_distributed.cdc_generation_descriptions",
    "system_distributed.cdc_streams_descriptions",
    "system_distributed_everywhere.cdc_generation_descriptions_v2",
)
"""The tables of descriptions, in both formats, and of V1 streams."""
EXPIRY_TABLES = (
    *PUBLISHED_TABLES,
    *DESCRIPTION_TABLES,
    "platform.expiry_marks",
    "platform.removed_generations",
    "platform.generations",
)
"""The tables in which expiry marks generations, and from which it removes them."""
STREAM_SET_TABLES = ("platform.tablet_layouts", "system.cdc_streams", "system.cdc_timestamps")
"""The tables of the stream sets of tablet-based tables."""
IMPORTED_TABLES = (
    *PUBLISHED_TABLES,
    *DESCRIPTION_TABLES,
    *CDC_TABLE_TABLES,
    *STREAM_SET_TABLES,
    "platform.committed_generations",
    "platform.generations",
    "platform.nodes",
    "platform.only_observed",
    "system.cdc_local",
)
"""The tables that an import writes."""


class WritingCommand(click.Command):
    """A command that writes tables of its home.

    `writes` are the full names of the tables. The command writes nothing with a parameter of `unless`, or without that
    of `only_with`. `source` says where its rows come from.
    """

    def __init__(
        self,
        *args: Any,
        writes: Sequence[str],
        unless: Sequence[str] = (),
        only_with: str | None = None,
        source: WriteSource | Callable[[Params], WriteSource] = WriteSource.DERIVED,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.writes = tuple(writes)
        self._unless, self._only_with = unless, only_with
        self._source = source

    def get_source(self, params: Params) -> WriteSource:
        """Return where the rows come from that the command writes with these parameters."""
        return self._source(params) if callable(self._source) else self._source

    def check_writes(self, mode: HomeMode, path: str, params: Params, source: WriteSource | None = None) -> None:
        """Raise an error if the command at `path` would write a table that the home does not take.

        `source` is where the rows come from, by default that of the block (`write_as`).

        Raises:
            HomeIsObserved, HomeIsMirror: the home refuses one of the tables.
        """
        if any(params[name] for name in self._unless) or (self._only_with and not params[self._only_with]):
            return
        for name in self.writes:
            mode.check_write(_find_table(name), path, source)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, unless its home refuses what it would write."""
        with write_as(self.get_source(ctx.params)):
            session = ctx.find_object(CliSession)
            if session is not None:
                self.check_writes(read_home_mode(locate_home(session.home)), _command_path(ctx), ctx.params)
            return super().invoke(ctx)


def _find_table(name: str) -> Table | None:
    """Return the table of a declared name; None for a log."""
    import pyarrow as pa

    from cdc_platform.tables import TABLES, Table

    if name == REBUILT_TABLE:
        return Table("ks", "t_rebuilt", pa.schema([]), keys=(), comment="", about_readers=True)
    return TABLES.get(name)


def find_write_refusal(program: click.Group, words: Sequence[str]) -> PlatformError | None:
    """Return the error with which the mode of its home would refuse a command line, None if it would not.

    `words` are those after the program's name. The command is parsed and not run. If the mode cannot be read, the
    command itself reports that.
    """
    command: click.Command = program
    ctx = click.Context(program, **program.context_settings)
    options, rest, _ = program.make_parser(ctx).parse_args(list(words))
    home = options.get("home")
    while isinstance(command, click.Group) and rest:
        inner = command.get_command(ctx, rest[0])
        if inner is None:
            return None
        name, rest, command = rest[0], rest[1:], inner
        if isinstance(inner, click.Group):
            ctx = click.Context(inner, parent=ctx, info_name=name)
            _, rest, _ = inner.make_parser(ctx).parse_args(rest)
        else:
            ctx = inner.make_context(name, rest, parent=ctx, resilient_parsing=True)
    if not isinstance(command, WritingCommand):
        return None
    try:
        mode = read_home_mode(locate_home(home))
        command.check_writes(mode, _command_path(ctx), ctx.params, command.get_source(ctx.params))
    except PlatformError as error:
        return error if isinstance(error, (HomeIsMirror, HomeIsObserved)) else None
    return None


def _command_path(ctx: click.Context) -> str:
    """Return the words of a command without the program's name."""
    names = []
    while ctx.parent is not None:
        names.append(ctx.info_name or "")
        ctx = ctx.parent
    return " ".join(reversed(names))
