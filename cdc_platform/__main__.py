"""The door of the command line: `cdc-platform`, or `python -m cdc_platform`. The commands are in `commands`."""

from __future__ import annotations

from typing import NoReturn

from cdc_platform.collector import look_seldom
from cdc_platform.commands.program import program


def main() -> NoReturn:
    """Run the command that the process was started with and leave with its exit code."""
    look_seldom()
    program.main()


if __name__ == "__main__":
    main()
