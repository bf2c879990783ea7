"""Which Java there is. Spark 4 needs 17 or 21.

Whoever starts a JVM asks here first, so that its absence is one clear line.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cdc_platform.errors import NoJava

OLDEST = 17
_MEND = (
    "install OpenJDK 17 or 21 (Debian and Ubuntu: apt-get install openjdk-17-jre-headless; macOS: "
    "brew install openjdk@17) and let JAVA_HOME or PATH name it"
)


@dataclass(frozen=True)
class Java:
    """A Java runtime: `executable` is its launcher, `major` 17 or more, `version` the full text it gives of itself."""

    executable: str
    major: int
    version: str


def find_java() -> Java:
    """The Java that Spark will take: `$JAVA_HOME/bin/java`, else `java` on PATH.

    Raises:
        NoJava: there is none, it does not run, or it is older than 17.
    """
    return _ask(os.environ.get("JAVA_HOME", ""), os.environ.get("PATH", ""))


def java_version() -> str:
    """The version of `find_java()`, as `17.0.15`."""
    match = re.search(r'version "([^"]+)"', find_java().version)
    return match[1] if match else "unknown"


@cache
def _ask(home: str, path: str) -> Java:
    executable = str(Path(home, "bin", "java")) if home else shutil.which("java", path=path)
    if executable is None:
        raise NoJava(f"no Java found, Spark needs {OLDEST} or newer; {_MEND}")
    try:
        answer = subprocess.run([executable, "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise NoJava(f"Java at {executable} does not run ({error}); {_MEND}") from None
    version = answer.stderr + answer.stdout
    match = re.search(r'version "(?:1\.)?(\d+)', version)
    major = int(match[1]) if match else 0
    if major < OLDEST:
        raise NoJava(f"Java at {executable} is version {major or 'unknown'}, Spark needs {OLDEST} or newer; {_MEND}")
    return Java(executable, major, version)
