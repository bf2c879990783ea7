"""Find Java; fetch Delta's two JARs with Ivy, verify them and cache them.

Spark 4 needs Java 17 or 21. Delta's Python package would resolve 33 artifacts at every start of Spark. Two are enough,
and later starts are offline.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cdc_platform.errors import EnvironmentProblem, NoJava
from cdc_platform.storage import FileLock

OLDEST_JAVA = 17
_JAVA_REMEDY = (
    "install OpenJDK 17 or 21 (Debian and Ubuntu: apt-get install openjdk-17-jre-headless; macOS: "
    "brew install openjdk@17) and let JAVA_HOME or PATH name it"
)


@dataclass(frozen=True)
class JavaRuntime:
    """A Java runtime: the path of its launcher, its major version (17 or more), and its full version text."""

    executable: str
    major: int
    version: str


def find_java() -> JavaRuntime:
    """Return the Java that Spark will use: `$JAVA_HOME/bin/java`, else `java` on PATH.

    Raises:
        NoJava: there is none, it does not run, or it is older than 17.
    """
    return _run_java(os.environ.get("JAVA_HOME", ""), os.environ.get("PATH", ""))


def get_java_version() -> str:
    """Return the version of `find_java()`, such as `17.0.15`."""
    match = re.search(r'version "([^"]+)"', find_java().version)
    return match[1] if match else "unknown"


@cache
def _run_java(home: str, path: str) -> JavaRuntime:
    executable = str(Path(home, "bin", "java")) if home else shutil.which("java", path=path)
    if executable is None:
        raise NoJava(f"no Java found, Spark needs {OLDEST_JAVA} or newer; {_JAVA_REMEDY}")
    try:
        answer = subprocess.run([executable, "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise NoJava(f"Java at {executable} does not run ({error}); {_JAVA_REMEDY}") from None
    version = answer.stderr + answer.stdout
    match = re.search(r'version "(?:1\.)?(\d+)', version)
    major = int(match[1]) if match else 0
    if major < OLDEST_JAVA:
        raise NoJava(
            f"Java at {executable} is version {major or 'unknown'}, Spark needs {OLDEST_JAVA} or newer; {_JAVA_REMEDY}"
        )
    return JavaRuntime(executable, major, version)


CACHE_VARIABLE = "CDC_PLATFORM_CACHE"
IVY_SETTINGS_VARIABLE = "CDC_PLATFORM_IVY_SETTINGS"
"""The path of an Ivy settings file, for artifacts from a mirror; unset, Ivy uses Maven Central."""

_FETCH_SECONDS = 600


@dataclass(frozen=True)
class MavenJar:
    """A Maven artifact and the digest of its only accepted content."""

    organisation: str
    module: str
    revision: str
    sha256: str

    @property
    def file_name(self) -> str:
        """Name of the file in the cache."""
        return f"{self.module}-{self.revision}.jar"


DELTA_JARS = (
    MavenJar(
        "io.delta",
        "delta-spark_4.2_2.13",
        "4.4.0",
        "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead",
    ),
    MavenJar("io.delta", "delta-storage", "4.4.0", "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc"),
)


def get_cache_folder() -> Path:
    """Return the folder of files that can be fetched or made again.

    It is `$CDC_PLATFORM_CACHE`, else `$XDG_CACHE_HOME/cdc-platform`, else `~/.cache/cdc-platform`.
    """
    own = os.environ.get(CACHE_VARIABLE)
    if own:
        return Path(own).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "cdc-platform"


def get_jars() -> list[Path]:
    """Return the JARs in the cache with verified content; fetch missing and damaged ones first.

    Any number of processes may call this at once; one fetches.

    Raises:
        EnvironmentProblem: the cache cannot be written, or the JARs cannot be fetched (no network on the first run).
    """
    folder = get_cache_folder() / "jars"
    paths = [folder / jar.file_name for jar in DELTA_JARS]
    if _list_invalid_jars(folder):
        with _lock_folder(folder):
            bad = _list_invalid_jars(folder)
            if bad:
                _fetch_jars(folder, bad)
    return paths


def list_missing_jars() -> list[MavenJar]:
    """Return the JARs that the cache lacks or has damaged, which the next `get_jars()` would fetch."""
    return _list_invalid_jars(get_cache_folder() / "jars")


def _list_invalid_jars(folder: Path) -> list[MavenJar]:
    return [jar for jar in DELTA_JARS if _sha256(folder / jar.file_name) != jar.sha256]


def _sha256(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Lock the folder for the block; the system releases the lock when the process ends, however it ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / "lock")
        lock.acquire()
        try:
            yield
        finally:
            lock.release()
    except OSError as error:
        raise EnvironmentProblem(
            f"the cache {folder} cannot be used: {error.strerror or error}; choose another with {CACHE_VARIABLE}"
        ) from None


def _fetch_jars(folder: Path, wanted: list[MavenJar]) -> None:
    """Fetch the JARs into a draft folder with Ivy, and move those with the right content into the cache."""
    draft = Path(tempfile.mkdtemp(prefix=".fetch-", dir=folder))
    try:
        output = _run_ivy(draft, wanted)
        for jar in wanted:
            fetched = draft / jar.file_name
            sha = _sha256(fetched)
            if sha is None:
                raise EnvironmentProblem(
                    f"{jar.file_name} could not be fetched ({_extract_ivy_reason(output)}); the first start "
                    "of Spark needs the "
                    f"network, or the file in {folder}, or an Ivy settings file of a mirror in {IVY_SETTINGS_VARIABLE}"
                )
            if sha != jar.sha256:
                raise EnvironmentProblem(
                    f"{jar.file_name} came with sha256 {sha} instead of {jar.sha256}; it was discarded: check what is "
                    f"between this machine and Maven Central"
                )
            fetched.replace(folder / jar.file_name)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _run_ivy(draft: Path, wanted: list[MavenJar]) -> str:
    dependencies = "".join(
        f'<dependency org="{jar.organisation}" name="{jar.module}" rev="{jar.revision}" '
        'transitive="false" conf="*->default"/>'
        for jar in wanted
    )
    module = draft / "ivy.xml"
    module.write_text(
        '<ivy-module version="2.0"><info organisation="cdc-platform" module="jars"/>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>",
        encoding="utf-8",
    )
    command = [find_java().executable, "-cp", str(_get_ivy_jar()), "org.apache.ivy.Main"]
    settings = os.environ.get(IVY_SETTINGS_VARIABLE)
    if settings:
        command += ["-settings", settings]
    command += ["-ivy", str(module), "-cache", str(draft / "ivy-cache")]
    command += ["-retrieve", str(draft / "[artifact]-[revision].[ext]")]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer within {_FETCH_SECONDS} s"
    return ran.stdout + ran.stderr


def _get_ivy_jar() -> Path:
    """Return the Ivy JAR inside pyspark."""
    return next(get_spark_home().joinpath("jars").glob("ivy-*.jar"))


def get_spark_home() -> Path:
    """Return the folder of the Spark inside the installed pyspark.

    Raises:
        EnvironmentProblem: pyspark is not installed.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise EnvironmentProblem("pyspark is not installed; run make .venv")
    return Path(spec.origin).parent


def _extract_ivy_reason(output: str) -> str:
    """Return the reason for a failure in Ivy's output, in one line."""
    lines = [line.strip() for line in output.splitlines() if "error" in line.lower() or "exception" in line.lower()]
    telling = [line for line in lines if line.strip(": ") not in ("ERRORS", "")]
    return (telling or ["no reason given"])[0][:300]
