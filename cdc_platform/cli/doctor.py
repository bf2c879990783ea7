"""`cdc-platform doctor`: check the prerequisites of this machine or of the Spark executors.

Checking this machine starts no JVM except for `java -version`.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import click

from cdc_platform.cli.output import json_option
from cdc_platform.cli.render import write_preflight_results
from cdc_platform.cli.session import CliSession, pass_session
from cdc_platform.errors import EnvironmentProblem, PlatformError
from cdc_platform.preflight import PreflightResult

GIB = 1 << 30
MIN_FREE_DISK = 2 * GIB
"""Bytes for the JARs, a class-data archive of 170 MB and a few generations of a large cluster."""
MIN_MEMORY = 4 * GIB
"""Bytes for a Spark driver, its Python workers and Dagster."""


@click.command()
@click.option("--cluster", is_flag=True, help="Check every executor of the Spark cluster.")
@json_option
@pass_session
@click.pass_context
def doctor(ctx: click.Context, session: CliSession, cluster: bool, as_json: bool) -> None:
    """Check the prerequisites of this machine: Java, versions, JARs, home, disk, memory. Failures name a remedy.

    With --cluster a task checks each executor of the Spark session instead: Python, packages, the program, access to
    the home, its clock. Nothing is written. The exit code is 1 if a check fails.

    \b
    Example:
      cdc-platform doctor
      cdc-platform --home /srv/cdc doctor --json
      cdc-platform --home s3://bucket/prefix doctor --cluster
    """
    findings = check_executors(session.home) if cluster else check_machine(session.home)
    write_preflight_results(findings, as_json=as_json)
    if not all(finding.ok for finding in findings):
        ctx.exit(1)


def check_machine(home: str | Path | None) -> list[PreflightResult]:
    """Check everything that the platform needs on this machine, for a home at `home`. Writes nothing."""
    looks: list[Callable[[], Iterator[PreflightResult]]] = [
        _check_python,
        _check_packages,
        _check_java,
        _check_jars,
        lambda: _check_home(home),
        lambda: _check_disk(home),
        _check_memory,
    ]
    return [finding for look in looks for finding in look()]


def check_executors(home: str | Path | None) -> list[PreflightResult]:
    """Check every executor of this process's Spark session, which is started if there is none. Writes nothing.

    Raises:
        EnvironmentProblem: there is no session, or no home with a file for the executors to read.
    """
    from cdc_platform.home_location import MARKER_FILE, locate_home, open_home_location
    from cdc_platform.spark import check_executor, get_spark_session, get_worker_archive, probe_executors

    open_home_location(home, create=False)
    archive = get_worker_archive()
    findings = [PreflightResult("archive", True, str(archive))]
    session = get_spark_session("cdc-platform doctor")
    try:
        reports = probe_executors(session, str(locate_home(home) / MARKER_FILE))
    except PlatformError as error:
        return [*findings, PreflightResult("executors", False, "no task can run", str(error))]
    master = session.conf.get("spark.master")
    findings.append(PreflightResult("executors", True, f"{len(reports)} of {master}"))
    return findings + [trial for report in reports for trial in check_executor(report, archive)]


def _check_python() -> Iterator[PreflightResult]:
    from packaging.specifiers import SpecifierSet

    wanted = metadata.metadata("cdc-platform")["Requires-Python"]
    version = platform.python_version()
    ok = SpecifierSet(wanted).contains(version, prereleases=True)
    yield PreflightResult(
        "Python", ok, f"{version} at {sys.executable}", None if ok else f"install one that is {wanted}"
    )


def _check_packages() -> Iterator[PreflightResult]:
    """Check each package that the project pins or bounds against the installed version."""
    from packaging.requirements import Requirement

    wrong, right = [], 0
    for text in metadata.requires("cdc-platform") or []:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            version = "missing"
        if version == "missing" or not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"{requirement.name} is {version}, expected {requirement.specifier}")
        else:
            right += 1
    summary = "; ".join(wrong) or f"{right} as expected"
    yield PreflightResult("packages", not wrong, summary, "install what is locked: make .venv" if wrong else None)


def _check_java() -> Iterator[PreflightResult]:
    from cdc_platform.spark import find_java, get_java_version

    try:
        yield PreflightResult("Java", True, f"{get_java_version()} at {find_java().executable}")
    except PlatformError as error:
        yield PreflightResult("Java", False, "missing or too old", str(error))


def _check_jars() -> Iterator[PreflightResult]:
    """Accept missing JARs if the cache folder is writable, since the first start of Spark fetches them."""
    from cdc_platform.spark import CACHE_VARIABLE, DELTA_JARS, get_cache_folder, list_missing_jars

    names = ", ".join(jar.file_name for jar in DELTA_JARS)
    absent = list_missing_jars()
    if not absent:
        yield PreflightResult("JARs", True, f"{names} in {get_cache_folder()}, verified")
        return
    above = _nearest_existing(get_cache_folder())
    ok = os.access(above, os.W_OK | os.X_OK)
    message = (
        f"{len(absent)} of {len(DELTA_JARS)} to be fetched into {get_cache_folder()} by the first start of Spark "
        "(network)"
    )
    yield PreflightResult(
        "JARs", ok, message, None if ok else f"{above} is not writable; choose another with {CACHE_VARIABLE}"
    )


def _check_home(home: str | Path | None) -> Iterator[PreflightResult]:
    from cdc_platform.home_location import HOME_VARIABLE, home_exists, locate_home, open_home_location
    from cdc_platform.storage import ObjectStorePath, write_check

    try:
        path, exists = locate_home(home), home_exists(home)
        if isinstance(path, ObjectStorePath):
            write_check.assert_not_known_unsafe(path / "lake", "writing")
            if not exists and not path.has_bucket():
                raise EnvironmentProblem(f"the bucket {path.root} does not exist")
    except PlatformError as error:
        yield PreflightResult("home", False, str(home), str(error))
        return
    if not exists and path.local_path is None:
        yield PreflightResult("home", True, f"{path} is made by the first command", None)
        return
    if not exists and path.local_path is not None:
        above = _nearest_existing(path.local_path)
        ok = os.access(above, os.W_OK | os.X_OK)
        remedy = None if ok else f"choose another with --home or {HOME_VARIABLE}"
        yield PreflightResult(
            "home", ok, f"{path} is made by the first command" if ok else f"{above} is not writable", remedy
        )
        return
    try:
        settings = open_home_location(home, create=False).settings
    except PlatformError as error:
        yield PreflightResult("home", False, str(path), str(error))
        return
    yield PreflightResult("home", True, f"{path}, acceptance policy {settings.policy}")


def _check_disk(home: str | Path | None) -> Iterator[PreflightResult]:
    """Check the free disk of the home; for a home in a store, of this machine's own part of it."""
    from cdc_platform.home_location import local_state_folder, locate_home

    free = shutil.disk_usage(_nearest_existing(local_state_folder(locate_home(home)))).free
    yield _check_minimum("free disk", free, MIN_FREE_DISK, "free some, or choose a home on another disk with --home")


def _check_memory() -> Iterator[PreflightResult]:
    from cdc_platform.importing import get_memory_bytes

    total = get_memory_bytes()
    if total is None:
        yield PreflightResult("memory", True, "this system does not say")
    else:
        yield _check_minimum("memory", total, MIN_MEMORY, "Spark needs more: use a larger machine, or SPARK_REMOTE")


def _check_minimum(check: str, found: int, needed: int, remedy: str) -> PreflightResult:
    ok = found >= needed
    message = f"{found / GIB:.1f} GiB" if ok else f"{found / GIB:.1f} GiB where {needed / GIB:.0f} GiB are needed"
    return PreflightResult(check, ok, message, None if ok else remedy)


def _nearest_existing(path: Path) -> Path:
    """Return `path`, or its nearest parent folder that exists."""
    return next(candidate for candidate in [path, *path.parents] if candidate.exists())
