"""Ctrl-C at any moment of a command: one line, exit code 130, and no process left behind, whatever it had started."""

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
    """A home with a generation."""
    folder = tmp_path_factory.mktemp("interrupted")
    (folder / "node.json").write_text(node_text(1), encoding="utf-8")
    command = ("--clock", "2026-01-01T00:00:00Z", "bootstrap", folder / "node.json", "--run")
    assert run("--home", folder / "home", *command).exit_code == 0
    return folder / "home"


def started(home: Path, *command: str, **environment: str) -> subprocess.Popen[str]:
    """A command in a session of its own, as a terminal has one."""
    return subprocess.Popen(
        [sys.executable, "-m", "cdc_platform", "--home", str(home), *command],
        env={**{name: value for name, value in os.environ.items() if name != "SPARK_REMOTE"}, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def left_in(session: int) -> list[str]:
    """The command lines of the processes of a session that have not ended."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = status.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                found.append((status.parent / "cmdline").read_text(errors="replace").replace("\0", " ")[:200])
    return found


def assert_interrupted(process: subprocess.Popen[str]) -> None:
    """One line, code 130, nothing of the session left."""
    said, wrong = process.communicate(timeout=120)
    assert (process.returncode, said, wrong) == (130, "", "error: interrupted\n")
    java = [line for line in left_in(process.pid) if "java" in line]
    assert java == []


def interruptible(folder: Path) -> dict[str, str]:
    """The environment of a process that interrupts itself."""
    (folder / "sitecustomize.py").write_text(ASKS, encoding="utf-8")
    inherited = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(folder), *([inherited] if inherited else [])])}


@pytest.mark.grid("Ctrl-C at an import", 1)
@pytest.mark.parametrize("command", [("status",), ("sql", "SELECT 1 AS a"), ("ring", "--json")], ids=" ".join)
def test_an_import_can_be_interrupted(command: tuple[str, ...], home: Path, tmp_path: Path) -> None:
    """At each of them, from the program's first on: the first half second of a command is nothing else."""
    environment = interruptible(tmp_path)
    whole = started(home, *command, IMPORTS=str(tmp_path / "imports"), **environment)
    whole.communicate(timeout=120)
    assert whole.returncode == 0
    names = (tmp_path / "imports").read_text(encoding="utf-8").splitlines()
    count = len(names)
    assert count > 100
    numbers = list(range(count)) if KILLS == "all" else random.Random(SEED).sample(range(count), int(KILLS or 5))
    for number in sorted(numbers):
        process = started(home, *command, INTERRUPT_AT=str(number), **environment)
        said, wrong = process.communicate(timeout=120)
        heard = (process.returncode, wrong) == (130, "error: interrupted\n")
        # Libraries drop whatever an import raises that they only try: the command then goes on to its end.
        unheard = not names[number].startswith("cdc_platform") and (process.returncode, wrong) == (0, "")
        assert heard or unheard, (number, names[number], said, wrong)


def has_child(pid: int) -> bool:
    """The launcher of the JVM, which is a shell first."""
    return bool(below(pid))


def has_java(pid: int) -> bool:
    """Java, which makes the command line of the JVM."""
    return any("java" in line for line in command_lines(pid))


def has_jvm(pid: int) -> bool:
    """The JVM, which does not yet answer."""
    return any("SparkSubmit" in line for line in command_lines(pid))


def has_many_threads(pid: int) -> bool:
    """The JVM with the threads of a context."""
    return any(len(list(Path(f"/proc/{each}/task").glob("*"))) > 60 for each in below(pid))


def has_worker(pid: int) -> bool:
    """The JVM with a worker of Python: the query runs."""
    return any("worker_daemon" in line for line in command_lines(pid))


def command_lines(pid: int) -> list[str]:
    """Those of all processes below one."""
    found = []
    for each in below(pid):
        with suppress(OSError):
            found.append(Path(f"/proc/{each}/cmdline").read_text(errors="replace"))
    return found


@pytest.mark.spark
@pytest.mark.grid("Ctrl-C while Spark starts", 2)
@pytest.mark.parametrize("reached", [has_child, has_java, has_jvm, has_many_threads, has_worker])
def test_no_jvm_is_left_behind(reached: Callable[[int], bool], home: Path) -> None:
    """At every stage of the start, of which the first are over in a moment, and while a query runs."""
    process = started(home, *QUERY)
    deadline = time.monotonic() + 120
    while not reached(process.pid):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
    os.killpg(process.pid, signal.SIGINT)
    assert_interrupted(process)


@pytest.mark.spark
@pytest.mark.long("the start of a JVM of its own")
def test_an_uninterrupted_command_ends_normally(home: Path) -> None:
    """It has its result, and its JVM ends by itself."""
    process = started(home, *QUERY, "--json")
    said, wrong = process.communicate(timeout=300)
    assert (process.returncode, wrong) == (0, "")
    assert len(json.loads(said)["rows"]) == 1
    deadline = time.monotonic() + 60
    while left_in(process.pid):
        assert time.monotonic() < deadline


def test_a_background_process_goes_on(home: Path) -> None:
    """A shell starts it with the signal ignored, and ignored it stays."""
    process = subprocess.Popen(
        [sys.executable, "-m", "cdc_platform", "--home", str(home), "status", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
    said, wrong = process.communicate()
    assert (process.returncode in (0, 1), wrong) == (True, ""), said
