"""The tests' Spark cluster: a master, two workers that share no folder, a Connect server, and its clients."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.spark.standalone import Standalone, Worker
from support.standin.cluster import PASSWORD, USER
from support.standin.world import OBSERVER
from support.store.s3 import S3

from cdc_platform.delta import IN_PROCESS_VARIABLE
from cdc_platform.home_location import STATE_VARIABLE
from cdc_platform.spark import LOG_VARIABLE, ConnectServer

_SECONDS = 120
_DOORS = ("first", "second")
"""The store's endpoints, one per worker."""
_TESTS = Path(__file__).resolve().parents[2]


class Cluster:
    """The cluster with its Connect server, and the environment of its clients."""

    def __init__(self, folder: Path, store: S3) -> None:
        self.secret = folder / "secret"
        self.secret.write_text("of the driver", encoding="utf-8")
        login = dict(zip((USER, PASSWORD), OBSERVER, strict=True))
        self._store = store
        self.standalone = Standalone(folder, [folder], [store.environment(door) | login for door in _DOORS])
        self._environment = store.environment() | self.standalone.environment
        self._environment |= {STATE_VARIABLE: str(folder / "state"), LOG_VARIABLE: str(folder / "connect.log")}
        with self.entered():
            self._server = ConnectServer(heavy=False)
            try:
                self._server.start()
            except BaseException:
                self.stop()
                raise

    def stop(self) -> None:
        """Stop everything."""
        self._server.stop()
        self.standalone.stop()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Set the environment of a driver of the cluster in this process."""
        with pytest.MonkeyPatch.context() as patched:
            for name, value in self._environment.items():
                patched.setenv(name, value)
            yield

    def gives(self, *variables: Mapping[str, str]) -> None:
        """Set additional variables of each worker, in order, and let all of them use the store's plain endpoint."""
        self.finds(*["plain"] * len(variables))
        self.standalone.give(*variables)

    def finds(self, *doors: str) -> None:
        """Let each worker, in order, use one of the store's endpoints, without a restart."""
        for own, door in zip(_DOORS, doors, strict=True):
            self._store.leads(own, door)

    def start(self, *command: str | Path, at: Path | None = None) -> subprocess.Popen[str]:
        """Start a client as its own process; the workers do all of its work."""
        return subprocess.Popen(
            [sys.executable, *map(str, command)],
            env={**os.environ, **self._server.environment, IN_PROCESS_VARIABLE: "0", "PYTHONPATH": str(_TESTS)},
            cwd=at,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ends(self, client: subprocess.Popen[str], code: int | None = 0) -> str:
        """Wait until a client exits with a code; return its standard output."""
        output, errors = client.communicate(timeout=_SECONDS)
        assert code in (None, client.returncode), output + errors
        return output

    def refused(self, client: subprocess.Popen[str]) -> str:
        """Wait until a client exits because of an external error; return its one line on standard error."""
        output, errors = client.communicate(timeout=_SECONDS)
        assert (client.returncode, output, errors.count("\n")) == (2, "", 1), output + errors
        return errors

    def loses_a_worker(self, *command: str | Path, at: Path | None = None, code: int | None = 0) -> str:
        """Return a client's output while a worker dies in the middle of a task and another worker replaces it."""
        before = {worker: worker.count(" Running task ") for worker in self.standalone.workers}
        client = self.start(*command, at=at)
        victim = self._working(before, client)
        victim.stand_still()
        assert victim.count(" Running task ") > victim.count(" Finished task ")
        self.standalone.replace(victim)
        return self.ends(client, code)

    def _working(self, before: dict[Worker, int], client: subprocess.Popen[str]) -> Worker:
        deadline = time.monotonic() + _SECONDS
        while time.monotonic() < deadline and client.poll() is None:
            for worker, count in before.items():
                if worker.count(" Running task ") > count:
                    return worker
            time.sleep(0.02)
        raise AssertionError(client.communicate(timeout=5))
