"""`doctor`: what the machine must have, each with a tick or the mend. Starts no JVM but for `java -version`."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

import click

from cdc_platform.commands.output import json_option, write_json, write_trials
from cdc_platform.commands.session import Session, pass_session
from cdc_platform.errors import EnvironmentProblem, PlatformError
from cdc_platform.trial import Trial

GIB = 1 << 30
MIN_FREE_DISK = 2 * GIB
"""The JARs, a class-data archive of 170 MB and a few generations of a large cluster."""
MIN_MEMORY = 4 * GIB
"""A Spark driver, its Python workers and Dagster."""


@click.command()
@click.option(
    "--cluster", is_flag=True, help="Run a task on every executor of the Spark cluster, and say what it lacks."
)
@json_option
@pass_session
@click.pass_context
def doctor(ctx: click.Context, session: Session, cluster: bool, as_json: bool) -> None:
    """Look whether this machine is fit: Java, versions, JARs, home, disk, memory; each with a tick or the mend.

    With --cluster the executors of the Spark session are looked at instead, by a task on each: Python, packages, the
    program, whether it reads the home, its clock. Nothing is written. The exit code is 1 when something has to be
    mended.

    \b
    Example:
      cdc-platform doctor
      cdc-platform --home /srv/cdc doctor --json
      cdc-platform --home s3://bucket/prefix doctor --cluster
    """
    findings = examine_cluster(session.home) if cluster else examine(session.home)
    if as_json:
        write_json([asdict(finding) for finding in findings])
    else:
        write_trials(findings)
    if not all(finding.ok for finding in findings):
        ctx.exit(1)


def examine(home: str | Path | None) -> list[Trial]:
    """Look at everything the platform needs on this machine, for a home at `home`. Writes nothing."""
    looks: list[Callable[[], Iterator[Trial]]] = [
        _python,
        _packages,
        _java,
        _jars,
        lambda: _home(home),
        lambda: _disk(home),
        _memory,
    ]
    return [finding for look in looks for finding in look()]


def examine_cluster(home: str | Path | None) -> list[Trial]:
    """Look at every executor of this process's Spark, which is started where there is none. Writes nothing.

    Raises:
        EnvironmentProblem: there is no home, whose file the executors are to read, or no session.
    """
    from cdc_platform.home import MARKER, location, open_home
    from cdc_platform.lake.executors import ask_executors, judged
    from cdc_platform.lake.session import spark_session
    from cdc_platform.lake.worker_archive import worker_archive

    open_home(home, create=False)
    archive = worker_archive()
    findings = [Trial("archive", True, str(archive))]
    session = spark_session("cdc-platform doctor")
    try:
        found = ask_executors(session, str(location(home) / MARKER))
    except PlatformError as error:
        return [*findings, Trial("executors", False, "no task can run", str(error))]
    master = session.conf.get("spark.master")
    findings.append(Trial("executors", True, f"{len(found)} of {master}"))
    return findings + [trial for told in found for trial in judged(told, archive)]


def _python() -> Iterator[Trial]:
    from packaging.specifiers import SpecifierSet

    wanted = metadata.metadata("cdc-platform")["Requires-Python"]
    version = platform.python_version()
    ok = SpecifierSet(wanted).contains(version, prereleases=True)
    yield Trial("Python", ok, f"{version} at {sys.executable}", None if ok else f"install one that is {wanted}")


def _packages() -> Iterator[Trial]:
    """Each package that the project pins or bounds, against what is installed."""
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
    found = "; ".join(wrong) or f"{right} as expected"
    yield Trial("packages", not wrong, found, "install what is locked: make .venv" if wrong else None)


def _java() -> Iterator[Trial]:
    from cdc_platform.lake.java import find_java, java_version

    try:
        yield Trial("Java", True, f"{java_version()} at {find_java().executable}")
    except PlatformError as error:
        yield Trial("Java", False, "missing or too old", str(error))


def _jars() -> Iterator[Trial]:
    """JARs that are missing are no fault: the first start of Spark fetches them. The cache must take them, though."""
    from cdc_platform.lake.jars import CACHE_VARIABLE, JARS, cache_folder, missing

    names = ", ".join(jar.file_name for jar in JARS)
    absent = missing()
    if not absent:
        yield Trial("JARs", True, f"{names} in {cache_folder()}, verified")
        return
    above = _existing(cache_folder())
    ok = os.access(above, os.W_OK | os.X_OK)
    found = f"{len(absent)} of {len(JARS)} to be fetched into {cache_folder()} by the first start of Spark (network)"
    yield Trial("JARs", ok, found, None if ok else f"{above} is not writable; choose another with {CACHE_VARIABLE}")


def _home(home: str | Path | None) -> Iterator[Trial]:
    from cdc_platform.home import VARIABLE, is_there, location, open_home
    from cdc_platform.lake import contract
    from cdc_platform.places import Stored

    try:
        place, found = location(home), is_there(home)
        if isinstance(place, Stored):
            contract.assert_not_known_broken(place / "lake", "writing")
            if not found and not place.has_bucket():
                raise EnvironmentProblem(f"the bucket {place.root} does not exist")
    except PlatformError as error:
        yield Trial("home", False, str(home), str(error))
        return
    if not found and place.here is None:
        yield Trial("home", True, f"{place} is made by the first command", None)
        return
    if not found and place.here is not None:
        above = _existing(place.here)
        ok = os.access(above, os.W_OK | os.X_OK)
        mend = None if ok else f"choose another with --home or {VARIABLE}"
        yield Trial("home", ok, f"{place} is made by the first command" if ok else f"{above} is not writable", mend)
        return
    try:
        settings = open_home(home, create=False).settings
    except PlatformError as error:
        yield Trial("home", False, str(place), str(error))
        return
    yield Trial("home", True, f"{place}, acceptance policy {settings.policy}")


def _disk(home: str | Path | None) -> Iterator[Trial]:
    """Of a home in a store: where this machine has its own part of it."""
    from cdc_platform.home import location, state_folder

    free = shutil.disk_usage(_existing(state_folder(location(home)))).free
    yield _at_least("free disk", free, MIN_FREE_DISK, "free some, or choose a home on another disk with --home")


def _memory() -> Iterator[Trial]:
    from cdc_platform.sources.sizes import memory_bytes

    total = memory_bytes()
    if total is None:
        yield Trial("memory", True, "this system does not say")
    else:
        yield _at_least("memory", total, MIN_MEMORY, "Spark needs more: use a larger machine, or SPARK_REMOTE")


def _at_least(check: str, found: int, needed: int, mend: str) -> Trial:
    ok = found >= needed
    shown = f"{found / GIB:.1f} GiB" if ok else f"{found / GIB:.1f} GiB where {needed / GIB:.0f} GiB are needed"
    return Trial(check, ok, shown, None if ok else mend)


def _existing(path: Path) -> Path:
    """`path` or the nearest folder above it that exists."""
    return next(place for place in [path, *path.parents] if place.exists())
