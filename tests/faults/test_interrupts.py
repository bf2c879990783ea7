"""Ctrl-C at any moment of a command prints one line, exits with code 130 and leaves no process running."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from support.command_line import run
from support.drawing import KILLS, SEED
from support.nodes import node_text
from support.processes.below import below

QUERY = ("sql", "--spark", "SELECT count(*) FROM cdc_streams_descriptions_v2")
ASKS = """
import importlib.abc, os, signal, sys

class Interrupts(importlib.abc.MetaPathFinder):
    '''Notes what is imported from the program's first line on; sends the process Ctrl-C at one of them.'''

    def __init__(self):
        self.begun, self.seen, self.at = False, 0, int(os.environ.get("INTERRUPT_AT", "-1"))

    def find_spec(self, name, path=None, target=None):
        self.begun = self.begun or name == "cdc_platform.runtime"
        if self.begun:
            self.seen += 1
            if self.seen == self.at + 1:
                os.kill(os.getpid(), signal.SIGINT)
            if "IMPORTS" in os.environ:
                with open(os.environ["IMPORTS"], "a") as file:
                    file.write(name + "\\n")

if sys.argv[0] in ("-m", "-c"):
    sys.meta_path.insert(0, Interrupts())
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a home with one generation."""
    folder = tmp_path_factory.mktemp("interrupted")
    (folder / "node.json").write_text(node_text(1), encoding="utf-8")
    command = ("--clock", "2026-01-01T00:00:00Z", "bootstrap", folder / "node.json", "--run")
    assert run("--home", folder / "home", *command).exit_code == 0
    return folder / "home"


def start_command(home: Path, *command: str, **environment: str) -> subprocess.Popen[str]:
    """Start a command in its own session, as a terminal does."""
    return subprocess.Popen(
        [sys.executable, "-m", "cdc_platform", "--home", str(home), *command],
        env={**{name: value for name, value in os.environ.items() if name != "SPARK_REMOTE"}, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def list_processes(session: int) -> list[str]:
    """Return the command lines of the running processes of a session."""
    lines = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = status.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                lines.append((status.parent / "cmdline").read_text(errors="replace").replace("\0", " ")[:200])
    return lines


def assert_interrupted(process: subprocess.Popen[str]) -> None:
    """Assert that the process printed one line, exited with 130 and left no Java process in its session."""
    output, errors = process.communicate(timeout=120)
    assert (process.returncode, output, errors) == (130, "", "error: interrupted\n")
    java = [line for line in list_processes(process.pid) if "java" in line]
    assert java == []


def interrupting_environment(folder: Path) -> dict[str, str]:
    """Return the environment of a process that interrupts itself."""
    (folder / "sitecustomize.py").write_text(ASKS, encoding="utf-8")
    inherited = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(folder), *([inherited] if inherited else [])])}


@pytest.mark.grid("Ctrl-C at an import", 1)
@pytest.mark.parametrize("command", [("status",), ("sql", "SELECT 1 AS a"), ("ring", "--json")], ids=" ".join)
def test_an_import_can_be_interrupted(command: tuple[str, ...], home: Path, tmp_path: Path) -> None:
    """Ctrl-C during an import ends the command, from the program's first import on."""
    # The first half second of a command consists of imports.
    environment = interrupting_environment(tmp_path)
    whole = start_command(home, *command, IMPORTS=str(tmp_path / "imports"), **environment)
    whole.communicate(timeout=120)
    assert whole.returncode == 0
    names = (tmp_path / "imports").read_text(encoding="utf-8").splitlines()
    count = len(names)
    assert count > 100
    numbers = list(range(count)) if KILLS == "all" else random.Random(SEED).sample(range(count), int(KILLS or 5))
    for number in sorted(numbers):
        process = start_command(home, *command, INTERRUPT_AT=str(number), **environment)
        output, errors = process.communicate(timeout=120)
        heard = (process.returncode, errors) == (130, "error: interrupted\n")
        # Libraries swallow any exception of an optional import; the command then runs to its end.
        unheard = not names[number].startswith("cdc_platform") and (process.returncode, errors) == (0, "")
        assert heard or unheard, (number, names[number], output, errors)


def has_child(pid: int) -> bool:
    """Return True once the launcher of the JVM runs, which starts as a shell."""
    return bool(below(pid))


def has_java(pid: int) -> bool:
    """Return True once the Java process runs that builds the JVM's command line."""
    return any("java" in line for line in command_lines(pid))


def has_jvm(pid: int) -> bool:
    """Return True once the JVM runs, before it responds."""
    return any("SparkSubmit" in line for line in command_lines(pid))


def has_many_threads(pid: int) -> bool:
    """Return True once the JVM has the threads of a Spark context."""
    return any(len(list(Path(f"/proc/{process}/task").glob("*"))) > 60 for process in below(pid))


def has_worker(pid: int) -> bool:
    """Return True once the JVM has a Python worker, so the query runs."""
    return any("worker_daemon" in line for line in command_lines(pid))


def command_lines(pid: int) -> list[str]:
    """Return the command lines of all processes below `pid`."""
    lines = []
    for process in below(pid):
        with suppress(OSError):
            lines.append(Path(f"/proc/{process}/cmdline").read_text(errors="replace"))
    return lines


@pytest.mark.spark
@pytest.mark.grid("Ctrl-C while Spark starts", 2)
@pytest.mark.parametrize("reached", [has_child, has_java, has_jvm, has_many_threads, has_worker])
def test_no_jvm_is_left_behind(reached: Callable[[int], bool], home: Path) -> None:
    """Ctrl-C at every stage of the start and during a query leaves no JVM; the first stages last only a moment."""
    process = start_command(home, *QUERY)
    deadline = time.monotonic() + 120
    while not reached(process.pid):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
    os.killpg(process.pid, signal.SIGINT)
    assert_interrupted(process)


@pytest.mark.spark
@pytest.mark.long("the start of a JVM of its own")
def test_an_uninterrupted_command_ends_normally(home: Path) -> None:
    """An uninterrupted command prints its result, and its JVM exits by itself."""
    process = start_command(home, *QUERY, "--json")
    output, errors = process.communicate(timeout=300)
    assert (process.returncode, errors) == (0, "")
    assert len(json.loads(output)["rows"]) == 1
    deadline = time.monotonic() + 60
    while list_processes(process.pid):
        assert time.monotonic() < deadline


def test_a_background_process_goes_on(home: Path) -> None:
    """A command that a shell starts with SIGINT ignored keeps ignoring it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "cdc_platform", "--home", str(home), "status", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
    output, errors = process.communicate()
    assert (process.returncode in (0, 1), errors) == (True, ""), output
