"""Entry point of the command line: `cdc-platform`, or `python -m cdc_platform`.

It imports almost nothing at module level, so Ctrl-C ends the process with one line from the start.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys

TYPE_CHECKING = False  # that of typing would take longer to import than all the rest
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

_INTERRUPTED = 130
_FLUSH_FAILED = 120
"""The exit code of Python where the last words cannot be written."""


def main() -> NoReturn:
    """Run the command that the process was started with and leave with its exit code."""
    hears = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # a shell's background does not
    if hears:
        signal.signal(signal.SIGINT, _exit_interrupted)
    _open_standard_files()
    from cdc_platform.runtime import tune_short_process

    tune_short_process()
    from cdc_platform.cli import program

    leaving = _ExitWithoutTeardown()
    atexit.register(leaving)  # before all but logging's own; who registers last is called first
    try:
        program.main(interruptible=hears)
    except SystemExit as left:
        leaving.code = left.code
        raise


def _exit_interrupted(_number: int, _frame: FrameType | None) -> None:
    """End the process as an interrupted command ends, while it has done nothing yet."""
    os.write(2, b"error: interrupted\n")
    os._exit(_INTERRUPTED)


def _open_standard_files() -> None:
    """Open the null device where the process was started with standard input, output or error closed.

    Else the next file that is opened, of the lake perhaps, would get their number, and what a child process writes.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


class _ExitWithoutTeardown:
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
        import logging

        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            try:
                if stream is not None:
                    stream.flush()
            except (OSError, ValueError):
                code = code or _FLUSH_FAILED
        os._exit(code)


if __name__ == "__main__":
    main()
