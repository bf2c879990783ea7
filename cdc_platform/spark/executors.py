"""Configure sessions with executors on other machines, and check each executor's environment.

A cluster shares no folder with the driver. The interpreter and the JARs come from the driver's file server, the
program with each session.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from cdc_platform.delta import task_retry
from cdc_platform.errors import EnvironmentProblem, InputError, PlatformError
from cdc_platform.preflight import PreflightResult
from cdc_platform.spark import worker_archive
from cdc_platform.spark.jars import get_jars
from cdc_platform.storage import read_user_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_CONF_VARIABLE = "CDC_PLATFORM_SPARK_CONF"
_MAX_CONF_BYTES = 1 << 20
"""The size limit (bytes) of a cluster's settings file.

The file has Spark's own format, a name and a value per line, and overrides the settings made here.
"""
MAX_SKEW_SECONDS = 5
"""The largest clock skew (s) of a worker: times of objects and leases are compared across machines."""
# More rows than executors have task slots.
_PROBE_ROWS = 4096
_PROBE_ROUNDS, _PROBE_TASK_SECONDS = 3, 0.5


def is_local_master(master: str) -> bool:
    """Return True if the driver itself executes the tasks of this master."""
    return master.startswith("local")


def get_cluster_conf(master: str, folder: Path) -> dict[str, str]:
    """Return the settings of a driver with executors on other machines; it writes locally only below `folder`.

    Raises:
        EnvironmentProblem: the workers' archive or the JARs cannot be made.
        InputError: the settings file does not exist, or a line of it is not a setting.
    """
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": _get_driver_address(master),
        "spark.jars": ",".join(str(path) for path in get_jars()),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        # Unpack the interpreter once per executor, not once per session.
        "spark.sql.artifact.isolation.enabled": "false",
        # Two attempts of a task may run at once: a commit names the files of only one attempt.
        "spark.speculation": "true",
        "spark.dynamicAllocation.enabled": "false",
        **task_retry.RETRY_SETTINGS,
    }
    if not get_worker_python():
        archive = worker_archive.get_worker_archive()
        settings["spark.archives"] = f"{archive.path}#{worker_archive.ARCHIVE_FOLDER}"
    return settings | read_conf_file()


def get_worker_python() -> str | None:
    """Return the interpreter that a cluster's workers have themselves (`PYSPARK_PYTHON`); None to send one."""
    named = os.environ.get("PYSPARK_PYTHON")
    return None if named in (None, "", sys.executable, *worker_archive.ARCHIVE_PYTHONS) else named


def send_program_file(session: SparkSession) -> None:
    """Send the workers the program that the tasks of this session import."""
    session.addArtifacts(str(worker_archive.get_program_file()), pyfile=True)


def _get_driver_address(master: str) -> str:
    """Return the address by which the master's machines reach this one: that of the route to the master."""
    host = urlsplit(master.removeprefix("k8s://")).hostname
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        way.connect((host or "", 9))  # nothing is sent
        return str(way.getsockname()[0])
    return socket.gethostname()


def read_conf_file() -> dict[str, str]:
    """Read the settings in the file that `CDC_PLATFORM_SPARK_CONF` names.

    Raises:
        InputError: the file does not exist, or a line of it is not a setting.
    """
    name = os.environ.get(SPARK_CONF_VARIABLE)
    if not name:
        return {}
    try:
        lines = read_user_text(Path(name), _MAX_CONF_BYTES).splitlines()
    except PlatformError as error:
        raise InputError(f"{SPARK_CONF_VARIABLE}: {error}") from None
    settings = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        setting, _, value = line.strip().partition(" ")
        if not setting.startswith("spark.") or not value.strip():
            raise InputError(f"line {number} of {SPARK_CONF_VARIABLE}={name} is no setting; it is: spark.NAME VALUE")
        settings[setting] = value.strip()
    return settings


@dataclass(frozen=True)
class ExecutorReport:
    """The findings of a probe task on an executor.

    `packages` maps each installed package to its version. `program` is why the program cannot be imported, and `read`
    why the home's file cannot be read; both are empty on success. `skew` is the least error of its clock (s).
    """

    where: str
    python: str
    packages: dict[str, str]
    program: str
    read: str
    skew: float


def probe_executors(session: SparkSession, sample_path: str) -> list[ExecutorReport]:
    """Run a probe task in every task slot, in rounds, until no further executor answers.

    `sample_path` is a small file of the home that each task reads and nobody writes.

    Raises:
        EnvironmentProblem: no task can run: there is no executor, or its Python does not start.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F

    # Without Arrow, because a missing pyarrow is one of the possible findings.
    probe = F.udf(
        _make_probe_task(sample_path, tuple(worker_archive.get_worker_archive().packages)), "string", useArrow=False
    )
    known: dict[str, ExecutorReport] = {}
    for _ in range(_PROBE_ROUNDS):
        before, seen = time.time(), set(known)
        try:
            # Spark makes a task per slot, and each task is long enough that no slot stays idle.
            reports = session.range(0, _PROBE_ROWS).select(probe("id").alias("report"))
            rows = reports.where(F.col("report") != "").collect()
        except (PySparkException, Py4JError) as error:
            raise EnvironmentProblem(
                f"no task can run on the cluster ({' '.join(str(error).split())[:300]}); check that it has workers, "
                f"that they reach this machine, and that Python starts there ({get_worker_python() or 'the archive'})"
            ) from None
        after = time.time()
        for row in rows:
            report = json.loads(row["report"])
            skew = max(before - report.pop("now"), report.pop("then") - after, 0.0)
            known[report["where"]] = ExecutorReport(**report, skew=skew)
        if set(known) == seen:
            break
    return [known[name] for name in sorted(known)]


def check_executor(report: ExecutorReport, archive: worker_archive.WorkerArchive) -> Iterator[PreflightResult]:
    """Yield one result per requirement of an executor, with a remedy for each failure."""
    at = f"on {report.where}"
    expected = ".".join(archive.python.split(".")[:2])
    ok = report.python.startswith(f"{expected}.")
    remedy = f"give it Python {expected}: unset PYSPARK_PYTHON, so that the archive is sent"
    yield PreflightResult(f"Python {at}", ok, report.python, None if ok else remedy)
    wrong = [
        f"{name} is {report.packages.get(name, 'missing')}, expected {version}"
        for name, version in archive.packages.items()
        if report.packages.get(name) != version
    ]
    remedy = f"unset PYSPARK_PYTHON, so that the archive is sent, or install there what is in {archive.path}"
    yield PreflightResult(
        f"packages {at}", not wrong, "; ".join(wrong) or f"{len(archive.packages)} as here", remedy if wrong else None
    )
    remedy = "open the session by the platform (CDC_PLATFORM_SPARK_MASTER or SPARK_REMOTE), which sends it"
    yield PreflightResult(
        f"program {at}", not report.program, report.program or "as here", remedy if report.program else None
    )
    remedy = (
        "the home must be in a store (home copy), and the worker needs the store's address and credentials in its "
        "environment, or a role"
    )
    yield PreflightResult(f"lake {at}", not report.read, report.read or "is reached", remedy if report.read else None)
    ok = report.skew <= MAX_SKEW_SECONDS
    detail = f"off by {report.skew:.0f} s at least" if not ok else f"within {MAX_SKEW_SECONDS} s"
    yield PreflightResult(f"clock {at}", ok, detail, None if ok else "set it by NTP, as the driver's")


def _make_probe_task(sample_path: str, packages: Sequence[str]) -> Callable[[int], str]:
    """Return the task of a probe; it imports only the standard library, so that missing packages are findings."""
    seconds = _PROBE_TASK_SECONDS

    def report(_row: int, reports: list[str] = []) -> str:  # noqa: B006 shared on purpose: one report a task
        import importlib
        import json
        import platform
        import socket
        import time
        from importlib import metadata
        from pathlib import Path

        if reports:
            return ""
        reports.append("")

        def version(name: str) -> str | None:
            try:
                return metadata.version(name)
            except metadata.PackageNotFoundError:
                return None

        # Each executor has its own working folder, with a subfolder per session that is named by a UUID.
        own = [part for part in Path.cwd().parts if part.count("-") != 4]
        then, program, read = time.time(), "", ""
        try:
            storage = importlib.import_module("cdc_platform.storage")
        except Exception as error:  # noqa: BLE001 the report carries any error
            program = read = f"{type(error).__name__}: {error}"[:300]
        else:
            try:
                storage.parse_path(sample_path).read()
            except Exception as error:  # noqa: BLE001 as above
                read = f"{type(error).__name__}: {error}"[:300]
        time.sleep(seconds)
        return json.dumps(
            {
                "where": f"{socket.gethostname()} ({'/'.join(own[-2:])})",
                "python": platform.python_version(),
                "packages": {name: release for name in packages if (release := version(name))},
                "program": program,
                "read": read,
                "then": then,
                "now": time.time(),
            }
        )

    return report
