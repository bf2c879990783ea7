"""The global options of a command (its home and its clock), passed along as click's context object."""

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
    from cdc_platform.home_location import HomeLocation


@dataclass(frozen=True)
class CliSession:
    """The options before the command. `home` None means the environment's or the default home."""

    home: str | None
    clock: Clock
    _lakes: dict[str, Lake] = field(default_factory=dict, repr=False, compare=False)

    def open_home(self, *, create: bool = False) -> HomeLocation:
        """Return the home. Commands that only read do not create one.

        Raises:
            EnvironmentProblem: it is missing, not writable, or written by a newer version.
        """
        from cdc_platform.home_location import open_home_location

        return open_home_location(self.home, create=create)

    def lake(self, *, create: bool = False) -> Lake:
        """Return the home's tables, as the same object each time, so that open tables stay open.

        Raises:
            EnvironmentProblem: as `open_home_location`.
        """
        return self._lake_at(self.open_home(create=create).lake)

    def view(self, home: HomeLocation | None = None) -> Lake:
        """Return the home's tables for a command that only reads. Until it ends, each table is looked up just once.

        Raises:
            EnvironmentProblem: as `open_home_location`.
        """
        lake = self.lake() if home is None else self._lake_at(home.lake)
        click.get_current_context().with_resource(lake.table_cache.pin_versions())
        return lake

    def _lake_at(self, address: Path | str) -> Lake:
        from cdc_platform.delta import Lake

        return self._lakes.setdefault(str(address), Lake(address))

    @contextmanager
    def making_home(self) -> Iterator[HomeLocation]:
        """Yield the home, created if it is missing. If the block raises PlatformError, remove a home created for it.

        Raises:
            EnvironmentProblem: as `open_home_location`.
        """
        from cdc_platform.errors import PlatformError
        from cdc_platform.home_location import home_exists, remove_empty_home

        existed = home_exists(self.home)
        home = self.open_home(create=True)
        try:
            yield home
        except PlatformError:
            if not existed:
                remove_empty_home(home)
            raise

    def named(self, name: str | Milliseconds) -> str | Milliseconds:
        """Return the generation that a name stands for, by its UUID or, without one, its time (ms); see `GENERATION`.

        A complete name is returned unchanged, whether or not there is such a generation.

        Raises:
            NotFound: no generation is `latest` or `operating`, or the name is a prefix of none or of several.
        """
        if not isinstance(name, str) or len(name) == _UUID_LENGTH:
            return name
        from cdc_platform.timeline import Timeline

        timeline = Timeline.read(self.lake())
        generation = timeline.find_by_name(name, self.clock.now_us())
        return generation.id or generation.time_ms


_UUID_LENGTH = 36


pass_session = click.make_pass_decorator(CliSession)
