"""The global options of a command (its home and its clock), passed along as click's context object."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from cdc_platform.clock import Clock, Milliseconds

if TYPE_CHECKING:
    from cdc_platform.delta import Lake
    from cdc_platform.home import Home
    from cdc_platform.home_location import HomeLocation


@dataclass(frozen=True)
class CliSession:
    """The options before the command. `home` None means the environment's or the default home."""

    home: str | None
    clock: Clock
    _homes: dict[str, Home] = field(default_factory=dict, repr=False, compare=False)

    def open_location(self, *, create: bool = False) -> HomeLocation:
        """Return the location of the home. Commands that only read do not create one.

        Raises:
            EnvironmentProblem: it is missing, not writable, or written by a newer version.
        """
        from cdc_platform.home_location import open_home_location

        return open_home_location(self.home, create=create)

    def open_home(self, *, create: bool = False) -> Home:
        """Return the home, as the same object each time, so that its open tables stay open.

        Raises:
            EnvironmentProblem: as `open_location`.
        """
        from cdc_platform.home import Home

        location = self.open_location(create=create)
        return self._homes.setdefault(location.name, Home(location, self.clock))

    def lake(self, *, create: bool = False) -> Lake:
        """Return the tables of the home.

        Raises:
            EnvironmentProblem: as `open_location`.
        """
        return self.open_home(create=create).lake

    def view(self) -> Lake:
        """Return the tables of the home for a command that only reads. Until it ends, each table is looked up once.

        Raises:
            EnvironmentProblem: as `open_location`.
        """
        return click.get_current_context().with_resource(self.open_home().one_version())

    @contextmanager
    def making_home(self) -> Iterator[HomeLocation]:
        """Yield the home, created if it is missing. If the block raises PlatformError, remove a home created for it.

        Raises:
            EnvironmentProblem: as `open_location`.
        """
        from cdc_platform.errors import PlatformError
        from cdc_platform.home_location import home_exists, remove_empty_home

        existed = home_exists(self.home)
        home = self.open_location(create=True)
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
        return self.open_home().resolve_generation(name)


pass_session = click.make_pass_decorator(CliSession)
