"""Progress is shown only on a terminal, for work that takes more than two seconds."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

_PROGRAM = """
import sys, time
from cdc_platform.cli.progress import show_progress
with show_progress("reading rows"):
    time.sleep(float(sys.argv[1]))
print("result")
"""


def on_terminal(seconds: float) -> str:
    """Return the standard error of a program that works for some seconds, on a terminal."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", _PROGRAM, str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env={**os.environ, "TERM": "xterm"}) as ran:
        os.close(theirs)
        written = b""
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            written += part
        assert ran.communicate()[0] == b"result\n"
    os.close(ours)
    return written.decode()


@pytest.mark.parametrize(("seconds", "is_shown"), [(0.1, False), (3.0, True)])
def test_only_long_work_shows_progress(seconds: float, is_shown: bool) -> None:
    """Long work shows the text and the elapsed time; short work writes nothing."""
    written = on_terminal(seconds)
    assert ("reading rows" in written) == is_shown
    assert ("0:00:02" in written) == is_shown


def test_a_pipe_gets_no_progress() -> None:
    """A program that reads standard error gets messages alone."""
    ran = subprocess.run([sys.executable, "-c", _PROGRAM, "2.5"], capture_output=True, text=True, check=True)
    assert (ran.stdout, ran.stderr) == ("result\n", "")
