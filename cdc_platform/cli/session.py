"""The global options of a command, its home and its clock, passed along as click's context object."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cdc_platform.clock import Clock, Milliseconds

if TYPE_CHECKING:
    from cdc_platform.delta import Lake
    from cdc_platform.home import Home


@dataclass(frozen=True)
class CliSession:
    """The options before the command. `home` None means the environment's or the default one."""

    home: str | None
    clock: Clock
    _lakes: dict[str, Lake] = field(default_factory=dict, repr=False, compare=False)

    def open_home(self, *, create: bool = False) -> Home:
        """The home; commands that only look do not make one.

        Raises:
            EnvironmentProblem: it is missing, not writable, or a newer version wrote it.
        """
        from cdc_platform.home import open_home

        return open_home(self.home, create=create)

    def lake(self, *, create: bool = False) -> Lake:
        """The home's tables; the same object each time, with those of them that are open already.

        Raises:
            EnvironmentProblem: as `open_home`.
        """
        return self._lake_at(self.open_home(create=create).lake)

    def view(self, home: Home | None = None) -> Lake:
        """The home's tables for a command that only looks: at each of them once, until it ends.

        Raises:
            EnvironmentProblem: as `open_home`.
        """
        lake = self.lake() if home is None else self._lake_at(home.lake)
        click.get_current_context().with_resource(lake.open_tables.looked_at_once())
        return lake

    def _lake_at(self, address: Path | str) -> Lake:
        from cdc_platform.delta import Lake

        return self._lakes.setdefault(str(address), Lake(address))

    @contextmanager
    def making_home(self) -> Iterator[Home]:
        """The home, made if it is not there; where the block is refused, what was made for it is gone again.

        Raises:
            EnvironmentProblem: as `open_home`.
        """
        from cdc_platform.errors import PlatformError
        from cdc_platform.home import home_exists, remove_empty_home

        was_there = home_exists(self.home)
        home = self.open_home(create=True)
        try:
            yield home
        except PlatformError:
            if not was_there:
                remove_empty_home(home)
            raise

    def named(self, name: str | Milliseconds) -> str | Milliseconds:
        """The generation that a name stands for, by its UUID or, without one, its time (ms); see `GENERATION`.

        A name that is whole already is left as it is, whether or not there is such a generation.

        Raises:
            NotFound: `latest` or `operating` of none, or a begin of no name or of several.
        """
        if not isinstance(name, str) or len(name) == _UUID_LENGTH:
            return name
        from cdc_platform.timeline import Timeline

        timeline = Timeline.read(self.lake())
        found = timeline.called(name, self.clock.now_us())
        return found.id or found.time_ms


_UUID_LENGTH = 36


pass_session = click.make_pass_decorator(CliSession)
