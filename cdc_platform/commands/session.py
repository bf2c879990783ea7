"""What every command is told first: where the home is, what time it is. Handed down as click's object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from cdc_platform.clock import Clock

if TYPE_CHECKING:
    from cdc_platform.home import Home
    from cdc_platform.lake.lake import Lake


@dataclass(frozen=True)
class Session:
    """The options before the command. `home` None means the environment's or the default one."""

    home: str | None
    clock: Clock

    def open_home(self, *, create: bool = False) -> Home:
        """The home; commands that only look do not make one.

        Raises:
            EnvironmentProblem: it is missing, not writable, or a newer version wrote it.
        """
        from cdc_platform.home import open_home

        return open_home(self.home, create=create)

    def lake(self, *, create: bool = False) -> Lake:
        """The home's tables.

        Raises:
            EnvironmentProblem: as `open_home`.
        """
        from cdc_platform.lake.lake import Lake

        return Lake(self.open_home(create=create).lake)


pass_session = click.make_pass_decorator(Session)
