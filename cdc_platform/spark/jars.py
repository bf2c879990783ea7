"""Find Java, and fetch Delta's two JARs with Ivy, verify and cache them.

Spark 4 needs Java 17 or 21. Delta's Python package would resolve 33 artifacts at every start of Spark; two are
enough, and later starts are offline.
"""

from __future__ import annotations

import fcntl
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

OLDEST_JAVA = 17
_JAVA_REMEDY = (
    "install OpenJDK 17 or 21 (Debian and Ubuntu: apt-get install openjdk-17-jre-headless; macOS: "
    "brew install openjdk@17) and let JAVA_HOME or PATH name it"
)


@dataclass(frozen=True)
class JavaRuntime:
    """A Java runtime: `executable` is its launcher, `major` 17 or more, `version` the full text it gives of itself."""

    executable: str
    major: int
    version: str


def find_java() -> JavaRuntime:
    """The Java that Spark will take: `$JAVA_HOME/bin/java`, else `java` on PATH.

    Raises:
        NoJava: there is none, it does not run, or it is older than 17.
    """
    return _run_java(os.environ.get("JAVA_HOME", ""), os.environ.get("PATH", ""))


def get_java_version() -> str:
    """The version of `find_java()`, as `17.0.15`."""
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
"""An Ivy settings file, for whoever gets artifacts from a mirror; unset, Ivy's own default is Maven Central."""

_FETCH_SECONDS = 600


@dataclass(frozen=True)
class MavenJar:
    """A Maven artifact and the only content of it that is accepted."""

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
    """Where what can be fetched or made again is kept.

    `$CDC_PLATFORM_CACHE`, else `$XDG_CACHE_HOME/cdc-platform`, else `~/.cache/cdc-platform`.
    """
    own = os.environ.get(CACHE_VARIABLE)
    if own:
        return Path(own).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "cdc-platform"


def get_jars() -> list[Path]:
    """The JARs in the cache, each with the right content; those that are missing or damaged are fetched first.

    Any number of processes may ask at once; one fetches.

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
    """The JARs that the cache lacks, or has with other content: what the next `get_jars()` will fetch. Fetches
    nothing.
    """
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
    """Hold the folder's lock; the system lets go of it when the process ends, however it ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise EnvironmentProblem(
            f"the cache {folder} cannot be used: {error.strerror or error}; choose another with {CACHE_VARIABLE}"
        ) from None


def _fetch_jars(folder: Path, wanted: list[MavenJar]) -> None:
    """Let Ivy bring the JARs to a draft folder, and move those with the right content in place."""
    draft = Path(tempfile.mkdtemp(prefix=".fetch-", dir=folder))
    try:
        output = _run_ivy(draft, wanted)
        for jar in wanted:
            brought = draft / jar.file_name
            found = _sha256(brought)
            if found is None:
                raise EnvironmentProblem(
                    f"{jar.file_name} could not be fetched ({_extract_ivy_reason(output)}); the first start "
                    "of Spark needs the "
                    f"network, or the file in {folder}, or an Ivy settings file of a mirror in {IVY_SETTINGS_VARIABLE}"
                )
            if found != jar.sha256:
                raise EnvironmentProblem(
                    f"{jar.file_name} came with sha256 {found} instead of {jar.sha256}; it was not kept: check what is "
                    "between this machine and Maven Central"
                )
            brought.replace(folder / jar.file_name)
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
    """The resolver's JAR inside pyspark."""
    return next(get_spark_home().joinpath("jars").glob("ivy-*.jar"))


def get_spark_home() -> Path:
    """The Spark that is inside the installed pyspark."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise EnvironmentProblem("pyspark is not installed; run make .venv")
    return Path(found.origin).parent


def _extract_ivy_reason(output: str) -> str:
    """What Ivy says went wrong, in one line."""
    lines = [line.strip() for line in output.splitlines() if "error" in line.lower() or "exception" in line.lower()]
    telling = [line for line in lines if line.strip(": ") not in ("ERRORS", "")]
    return (telling or ["no reason given"])[0][:300]
