"""Spark standalone on loopback: a master and workers in their own processes, isolated from their driver.

Each worker has its own working folder, address and variables, with Spark and Java bound into that folder; a mount
namespace hides the folders that it must not see. The tests find out what this does not isolate. Spark's event log
shows what the driver's scheduler did.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from support import memory
from support.ports import free_ports, is_open
from support.store.s3 import NO_CERTIFICATES
from support.waiting import await_true

from cdc_platform.processes import get_death_signal_setter
from cdc_platform.spark import find_java, get_jars
from cdc_platform.spark.executors import SPARK_CONF_VARIABLE
from cdc_platform.spark.jars import get_spark_home
from cdc_platform.spark.session import MASTER_VARIABLE

HOST = "127.0.0.1"
# Spark runs no second attempt of a task on the same machine, and it identifies machines by address.
_HOSTS_OF_WORKERS = "127.0.1.{}"
CHECKOUT = Path(__file__).resolve().parents[3]
_START_SECONDS = 90
_SOON_WARM = "-XX:-UsePerfData -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""JVM options: all of these processes end before the second compiler would pay off."""
_OF_DRIVERS = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": _SOON_WARM,
    # With two small workers a job fails before it has tried both often enough while one of them restarts.
    "spark.task.maxFailures": "8",
    # A task that is alone in its stage, as in most small joins, also gets a second attempt.
    "spark.speculation.task.duration.threshold": "8s",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
}
_APART = """
set -e
work=$1 spark=$2 java=$3; shift 3
mount --make-rprivate / 2>/dev/null || true
mount --bind "$spark" "$work/spark"
mount --bind "$java" "$work/java"
while [ "$1" != -- ]; do if [ -d "$1" ]; then mount -t tmpfs -o mode=755 none "$1"; fi; shift; done
shift; cd "$work"; exec "$@"
"""


@cache
def ways_apart() -> tuple[str, ...]:
    """Return the command that isolates a worker in a mount namespace, with root's rights or without.

    Raises:
        RuntimeError: this machine permits none. Another user is no alternative: it cannot read Spark in the checkout.
    """
    try_mount = ("sh", "-c", "mount --make-rprivate /; mount -t tmpfs none /mnt")
    for way in (("unshare", "--mount"), ("unshare", "--user", "--map-root-user", "--mount")):
        if (
            shutil.which(way[0])
            and subprocess.run([*way, *try_mount], capture_output=True, check=False).returncode == 0
        ):
            return way
    raise RuntimeError(
        "workers cannot be kept apart: unshare(1) may make no namespace of mounts here; allow it (in a container by "
        "CAP_SYS_ADMIN, else by user namespaces)"
    )


class Worker:
    """A worker with one core; its executors and their Python processes are in its process session."""

    def __init__(
        self, master: str, conf: str, hidden: Sequence[Path], environment: Mapping[str, str], host: str = HOST
    ) -> None:
        self.host, self.given = host, dict(environment)
        self.folder = Path(tempfile.mkdtemp(prefix="cdc-worker-", dir=memory.root()))
        for name in ("spark", "java", "tmp", "work"):
            (self.folder / name).mkdir()
        file = self.folder / "spark.conf"
        file.write_text(conf, encoding="utf-8")
        java = Path(find_java().executable).resolve().parents[1]
        covered = [str(path) for path in hidden]
        bound = [str(self.folder), str(get_spark_home()), str(java)]
        before = [*ways_apart(), "sh", "-c", _APART, "sh", *bound, *covered, "--"]
        spark, java = self.folder / "spark", self.folder / "java"
        own = ["--cores", "1", "--memory", "1g", "--work-dir", str(self.folder / "work")]
        self.command = [*_daemon(spark, "worker.Worker", file, host), *own, master]
        self.process = subprocess.Popen(
            [*before, *self.command],
            env={**_environment(spark, java, self.folder, host), **environment},
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=(self.folder / "log").open("ab"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=get_death_signal_setter(),
        )

    def count(self, text: str) -> int:
        """Count how often a text is in its executors' logs."""
        logs = (self.folder / "work").glob("app-*/*/stderr")
        return sum(log.read_text(encoding="utf-8", errors="replace").count(text) for log in logs)

    def await_executor(self) -> None:
        """Wait until it has an executor with everything that the running application distributes."""
        jar_count = len(get_jars())
        await_true(
            lambda: self.count(" Adding file:") >= jar_count, _START_SECONDS, "a worker's executor with its JARs"
        )

    def stand_still(self) -> None:
        """Stop all of its processes where they are."""
        for pid in _session_of(self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def kill(self) -> None:
        """Kill it with its executors at once, as if the machine lost power."""
        for pid in _session_of(self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(30)
        shutil.rmtree(self.folder, ignore_errors=True)


class Standalone:
    """A master, and workers that cannot see the folders in `hidden`, each with the variables of one environment.

    `folder` belongs to the master and the driver: it contains the settings file with the cluster's secret.
    """

    def __init__(self, folder: Path, hidden: Sequence[Path], environments: Sequence[Mapping[str, str]]) -> None:
        self._hidden = [path for path in (Path.home(), CHECKOUT, *hidden) if path.is_dir()]
        self._given = [dict(environment) for environment in environments]
        (self._port,) = free_ports(1)
        self._shared = f"spark.authenticate true\nspark.authenticate.secret {secrets.token_hex(16)}\n"
        self.conf = folder / "spark.conf"
        self.conf.touch(mode=0o600)
        self._events = folder / "events"
        self._events.mkdir(exist_ok=True)
        settings = _OF_DRIVERS | {"spark.eventLog.dir": self._events.as_uri()}
        lines = "".join(f"{name} {value}\n" for name, value in settings.items())
        self.conf.write_text(f"{self._shared}{lines}", encoding="utf-8")
        self.master_command = [*_daemon(get_spark_home(), "master.Master", self.conf), "--port", str(self._port)]
        self._master = subprocess.Popen(
            self.master_command,
            env=_environment(get_spark_home(), Path(find_java().executable).resolve().parents[1], folder),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=(folder / "master.log").open("ab"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=get_death_signal_setter(),
        )
        self._wait(folder / "master.log")
        self.workers = [self._worker(index, {}) for index in range(len(self._given))]

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment that a driver needs."""
        return {MASTER_VARIABLE: f"spark://{HOST}:{self._port}", SPARK_CONF_VARIABLE: str(self.conf)}

    def replace(self, worker: Worker, **other: str) -> Worker:
        """Kill a worker and start another one at its index, with `other` variables."""
        worker.kill()
        index = self.workers.index(worker)
        self.workers[index] = self._worker(index, other)
        return self.workers[index]

    def give(self, *variables: Mapping[str, str]) -> None:
        """Set additional variables of each worker, in order; replace workers with other variables and wait for them.

        An empty value removes a variable of its environment.
        """
        for index, other in enumerate(variables):
            if self.workers[index].given != self._of_worker(index, other):
                self.replace(self.workers[index], **other)
        for worker in self.workers:
            worker.await_executor()

    def second_attempts(self) -> list[dict[str, Any]]:
        """Return the tasks that Spark started while another attempt was running, from its events."""
        return [line for line in self.further_attempts() if line["Task Info"]["Speculative"]]

    def further_attempts(self) -> list[dict[str, Any]]:
        """Return those, and the tasks that Spark started again after a failed attempt."""
        started = [line for line in self._told() if line["Event"] == "SparkListenerTaskStart"]
        return [line for line in started if line["Task Info"]["Attempt"] > 0]

    def excludes_one(self) -> bool:
        """Return True if Spark has excluded an executor or a node, by its events."""
        return any(line["Event"].endswith(("ExecutorExcluded", "NodeExcluded")) for line in self._told())

    def _told(self) -> list[dict[str, Any]]:
        logs = [path for path in self._events.rglob("events_*") if path.is_file()]
        complete = [
            log.read_text(encoding="utf-8").rpartition("\n")[0] for log in logs
        ]  # the last line may be incomplete
        return [json.loads(line) for text in complete for line in text.splitlines()]

    def _worker(self, index: int, other: Mapping[str, str]) -> Worker:
        master, host = f"spark://{HOST}:{self._port}", _HOSTS_OF_WORKERS.format(index + 1)
        return Worker(master, self._shared, self._hidden, self._of_worker(index, other), host)

    def _of_worker(self, index: int, other: Mapping[str, str]) -> dict[str, str]:
        variables = {**self._given[index], **other}
        # It sees no file of this checkout, the only place where it would look for certificates.
        return {name: value for name, value in variables.items() if value and name not in NO_CERTIFICATES}

    def stop(self) -> None:
        """Stop everything."""
        for worker in self.workers:
            worker.kill()
        self._master.kill()
        self._master.wait(30)

    def _wait(self, log: Path) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not is_open(self._port):
            if self._master.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(log.read_text(encoding="utf-8", errors="replace")[-2000:])
            time.sleep(0.1)


def _daemon(spark: Path, name: str, conf: Path, host: str = HOST) -> list[str]:
    command = [str(spark / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}"]
    return [*command, "--host", host, "--webui-port", "0", "--properties-file", str(conf)]


def _environment(spark: Path, java: Path, folder: Path, host: str = HOST) -> dict[str, str]:
    """Return the variables of a separate machine, without any of this process's."""
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(folder),
        "TMPDIR": str(folder / "tmp"),
        "LANG": "C.UTF-8",
        "SPARK_HOME": str(spark),
        "JAVA_HOME": str(java),
        "SPARK_LOCAL_IP": host,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": _SOON_WARM,
        "SPARK_LAUNCHER_OPTS": _SOON_WARM,
    }


def _session_of(leader: int) -> list[int]:
    """Return the processes of a session, from /proc."""
    processes = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(status.read_text(errors="replace").rpartition(")")[2].split()[3]) == leader:
                processes.append(int(status.parent.name))
    return processes


if sys.platform != "linux":  # pragma: no cover
    raise RuntimeError("workers are kept apart by means of Linux")
