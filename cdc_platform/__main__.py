"""Entry point of the command line: `cdc-platform`, or `python -m cdc_platform`.

It imports almost nothing at module level, so that Ctrl-C ends the process with one line from the start.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys

TYPE_CHECKING = False  # importing it from typing would take longer than everything else
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

_INTERRUPTED = 130
_FLUSH_FAILED = 120
"""Python's own exit code if the standard streams cannot be flushed at exit."""


def main() -> NoReturn:
    """Run the command from the process's arguments and exit with its code."""
    # A background process of a shell ignores SIGINT.
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if interruptible:
        signal.signal(signal.SIGINT, _exit_interrupted)
    _open_standard_files()
    from cdc_platform.runtime import tune_short_process

    tune_short_process()
    from cdc_platform.cli import program

    exit_hook = _ExitWithoutTeardown()
    atexit.register(exit_hook)  # runs after all handlers but logging's: the last registered runs first
    try:
        program.main(interruptible=interruptible)
    except SystemExit as left:
        exit_hook.code = left.code
        raise


def _exit_interrupted(_number: int, _frame: FrameType | None) -> None:
    """End the process like an interrupted command, while it has done nothing yet."""
    os.write(2, b"error: interrupted\n")
    os._exit(_INTERRUPTED)


def _open_standard_files() -> None:
    """Open the null device if the process was started with standard input, output or error closed.

    Otherwise the next opened file, which may belong to the lake, would get that number and receive a child process's
    output.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


class _ExitWithoutTeardown:
    """Ends the process where Python would start its teardown, after all threads and all other exit handlers.

    Arrow reads object stores in its own threads, which call Python. If one of them releases a file after Python's
    teardown has begun, the process ends by SIGABRT although the command has succeeded. The teardown also takes a tenth
    of a short command.
    """

    code: object = None

    def __call__(self) -> None:
        """Exit if there is an exit code. Otherwise an exception is being raised, which Python reports."""
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
