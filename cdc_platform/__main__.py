"""The door of the command line: `cdc-platform`, or `python -m cdc_platform`. The commands are in `commands`."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from typing import NoReturn

from cdc_platform.commands.program import program
from cdc_platform.interpreter import be_lean

_UNFLUSHED = 120
"""The exit code of Python where the last words cannot be written."""


def main() -> NoReturn:
    """Run the command that the process was started with and leave with its exit code."""
    _open_standard_files()
    be_lean()
    leaving = _Leaving()
    atexit.register(leaving)  # before all but logging's own; who registers last is called first
    try:
        program.main()
    except SystemExit as left:
        leaving.code = left.code
        raise


def _open_standard_files() -> None:
    """Open the null device where the process was started with standard input, output or error closed.

    Else the next file that is opened, of the lake perhaps, would get their number, and what a child process writes.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


class _Leaving:
    """Ends the process where Python would begin to take itself apart, behind all threads and all that is due at exit.

    Arrow reads stores by threads of its own that call Python. One that still lets go of a file when Python has begun
    to go ends the process by SIGABRT, after all that the command did. Taking apart is also a tenth of a short command.
    """

    code: object = None

    def __call__(self) -> None:
        """Leave, if there is a code to leave with; else a failure is on its way, which Python tells."""
        if not isinstance(self.code, int):
            return
        code = self.code
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            try:
                if stream is not None:
                    stream.flush()
            except (OSError, ValueError):
                code = code or _UNFLUSHED
        os._exit(code)


if __name__ == "__main__":
    main()
