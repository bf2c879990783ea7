"""Run real processes of the command line without their start-up: a process that has imported everything forks them.

Any number of processes begin at the same moment, or one is traced and dies before an operation on the files of its
home.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from support.processes import tracing

from cdc_platform import failpoints
from cdc_platform.runtime import tune_short_process

_ROOT = Path(__file__).resolve().parents[3]
# Imports of running commands: none of them starts a thread before its use.
_MODULES = (
    "pandas",
    "pandera.backends.pandas.builtin_checks",
    "pandera.typing.pandas",
    "pyarrow.dataset",
    "pyarrow.parquet",
    "cdc_platform.cli.bootstrap",
    "cdc_platform.cli.importing",
    "cdc_platform.cli.output",
    "cdc_platform.cli.main",
    "cdc_platform.spark.frames",
    "cdc_platform.delta.snapshot",
    "cdc_platform.lifecycle.expiry",
    "cdc_platform.lifecycle.join.steps",
    "cdc_platform.lifecycle.repair",
    "cdc_platform.lifecycle.tablets",
    "cdc_platform.lifecycle.rewrite",
    "cdc_platform.cdclog.consumer.hourly",
    "cdc_platform.cdclog.script.commit",
    "cdc_platform.importing.formats.json_inputs",
    "cdc_platform.importing.run",
)


@dataclass(frozen=True)
class Ended:
    """The end of a process: its exit code or negative signal number, and its output.

    `operations` are (call, path) of the operations on files of the home, including the one before which it was killed.
    """

    exit_code: int
    stdout: str
    stderr: str
    operations: tuple[tuple[str, str], ...] = ()


class Nursery:
    """The process that forks the others. `refusal`: why it cannot trace them here, or None."""

    def __init__(self) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "SPARK_REMOTE"}
        environment["PYTHONPATH"] = os.pathsep.join([str(_ROOT), str(_ROOT / "tests")])
        self._folder = tempfile.TemporaryDirectory(prefix="nursery-")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.processes.nursery", self._folder.name],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.refusal: str | None = self._answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._folder.cleanup()

    def run(
        self,
        *command: str | Path,
        kill_at: str = "",
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Ended:
        """Run one command to its end in a working folder; kill it at a failpoint, if one is given."""
        killed = {failpoints.KILL_AT_VARIABLE: kill_at} if kill_at else {}
        (result,) = self.race([command], folder=folder, environment={**(environment or {}), **killed})
        return result

    def race(
        self,
        commands: Sequence[Sequence[str | Path]],
        *,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> list[Ended]:
        """Run commands at the same moment, each in its own process; `-c` and a program run Python code."""
        words = [[str(word) for word in command] for command in commands]
        results = self._ask(race=words, folder=str(folder or Path.cwd()), environment=dict(environment or {}))
        return [Ended(**result) for result in results]

    def traced(
        self,
        command: Sequence[str | Path],
        below: Path,
        kill_before: int | None = None,
        *,
        environment: Mapping[str, str] | None = None,
    ) -> Ended:
        """Run a command that is killed before operation `kill_before` (from 0) on the files below a folder."""
        words = [str(word) for word in command]
        result = self._ask(
            traced=words,
            folder=str(Path.cwd()),
            below=str(below),
            kill_before=kill_before,
            environment=dict(environment or {}),
        )
        return Ended(**result | {"operations": tuple((call, path) for call, path in result["operations"])})

    def _ask(self, **request: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the nursery has ended ({self._process.wait()})"
        return json.loads(line)


def _serve(folder: Path) -> None:
    tune_short_process()
    for module in _MODULES:
        importlib.import_module(module)
    assert threading.active_count() == 1, "a fork would lose the threads that a module has started"
    answers = os.fdopen(os.dup(1), "w")
    refusal = tracing.refusal()
    print(json.dumps(refusal), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        os.chdir(request["folder"])
        os.environ.update(request["environment"])
        response = _race(folder, request["race"]) if "race" in request else _traced(folder, request)
        for name in request["environment"]:
            del os.environ[name]
        print(json.dumps(response), file=answers, flush=True)


def _race(folder: Path, commands: list[list[str]]) -> list[dict[str, object]]:
    gate = os.pipe()
    children = [_fork(folder, str(number), command, gate, traced=False) for number, command in enumerate(commands)]
    os.close(gate[0])
    os.close(gate[1])
    return [_told(folder, str(number), os.waitpid(child, 0)[1]) for number, child in enumerate(children)]


def _traced(folder: Path, request: dict[str, Any]) -> dict[str, object]:
    gate = os.pipe()
    child = _fork(folder, "traced", request["traced"], gate, traced=True)
    tracing.seize(child)
    os.close(gate[0])
    os.close(gate[1])
    traced = tracing.follow(child, Path(request["below"]), request["kill_before"])
    return _told(folder, "traced", traced.status) | {"operations": traced.operations}


def _told(folder: Path, name: str, status: int) -> dict[str, object]:
    output = {stream: (folder / f"{name}.{stream}").read_text(encoding="utf-8") for stream in ("stdout", "stderr")}
    return {"exit_code": os.waitstatus_to_exitcode(status), **output}


def _fork(folder: Path, name: str, command: list[str], gate: tuple[int, int], *, traced: bool) -> int:
    """Fork a child that runs the command once no other process has the gate, a pipe, open for writing."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.close(gate[1])
        for descriptor, stream in ((1, "stdout"), (2, "stderr")):
            opened = os.open(folder / f"{name}.{stream}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(opened, descriptor)
            os.close(opened)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.read(gate[0], 1)
        if traced:
            tracing.stop_at_files()
        code = _run(command)
    finally:
        os._exit(code)


def _run(command: list[str]) -> int:
    """Run the program to its end, as the interpreter would."""
    from cdc_platform.cli import program

    code: object = 0
    try:
        if command[0] == "-c":
            sys.argv = command[1:]
            exec(command[1], {"__name__": "__main__"})
        else:
            program.main(command)
    except SystemExit as stop:
        code = stop.code
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _serve(Path(sys.argv[1]))
