"""Run ScyllaDB's own Java library, fetched once from Maven Central, as a process that reads the log of a table.

Its POMs name a parent that is in no repository. The resolver therefore ignores POMs and fetches each JAR that is named
here, which must match its checksum.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn
from uuid import UUID

import pytest
from support.standin.jars import fetched, retrieve
from support.standin.server import java17

from cdc_platform.clock import Milliseconds
from cdc_platform.spark.jars import get_spark_home

_LIBRARY = ("com.scylladb", "1.3.9")
_JARS = {
    (_LIBRARY[0], "scylla-cdc-lib", _LIBRARY[1]): "8f82a303ef2721d83d677a29480358854c70a29addf83c7af181a5c3f24109cc",
    (_LIBRARY[0], "scylla-cdc-base", _LIBRARY[1]): "14de061409de8d339f7911ae9c19036f50592c7ab8a22d52081a2386d451df80",
    (
        _LIBRARY[0],
        "scylla-cdc-driver3",
        _LIBRARY[1],
    ): "40d702780a35b808a9ed29814999d82aafcfefea4cd8abb26838089aa6c4ac8f",
    ("com.google.flogger", "flogger", "0.9"): "b524636155975d0fbcbe6fe3977c23b35404f48b1458c68779004abba15fc765",
    ("com.google.flogger", "flogger-system-backend", "0.9"): (
        "1658db89e5d9e6c6e63565d80ad041466cb330b8686ba972d843686c62852fac"
    ),
}
"""Each JAR's checksum, by organisation, name and revision."""
_FROM_SPARK = ("guava-*.jar", "failureaccess-*.jar", "slf4j-api-*.jar")
_SECONDS = 180


@dataclass(frozen=True)
class ReadChange:
    """A change from the library: the generation in which it read it, and the key of the log's row."""

    generation_ms: Milliseconds
    stream: bytes
    time: UUID
    batch_seq_no: int


def read_log(host: str, port: int, user: tuple[str, str], table: str, expected: int) -> list[ReadChange]:
    """Return the changes of a table's log in the library's order, after waiting for the expected number or more."""
    launcher = java17()
    if not Path(launcher).resolve().with_name("javac").exists() and _has_no_compiler(launcher):
        _cannot("the Java client needs a JDK of Java 17, which compiles it (Debian: openjdk-17-jdk-headless)")
    spark = [next(get_spark_home().joinpath("jars").glob(pattern)) for pattern in _FROM_SPARK]
    path = os.pathsep.join(map(str, [*_client_jars(), *spark]))
    source = Path(__file__).with_name("ReadLogs.java")
    words = [host, str(port), *user, str(expected), table]
    command = [launcher, "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", path, str(source), *words]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    assert ran.stdout.endswith("end\n"), ran.stdout[-500:] + ran.stderr[-3000:]
    lines = [line.split()[1:] for line in ran.stdout.splitlines() if line.startswith("change ")]
    changes = [ReadChange(Milliseconds(int(ms)), bytes.fromhex(s), UUID(at), int(n)) for ms, s, at, n in lines]
    assert len(changes) >= expected, f"{len(changes)} of {expected}: {ran.stderr[-3000:]}"
    return changes


def _has_no_compiler(launcher: str) -> bool:
    listed = subprocess.run([launcher, "--list-modules"], capture_output=True, text=True, timeout=60, check=False)
    return "jdk.compiler" not in listed.stdout


def _client_jars() -> list[Path]:
    try:
        folder = fetched(f"scylla-cdc-java-{_LIBRARY[1]}", lambda draft: retrieve(draft, list(_JARS), alone=True))
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        _cannot(f"ScyllaDB's Java library could not be fetched: {error}")
    return [_held(folder / f"{name}-{revision}.jar", checksum) for (_, name, revision), checksum in _JARS.items()]


def _held(jar: Path, checksum: str) -> Path:
    digest = hashlib.sha256(jar.read_bytes()).hexdigest()
    if digest != checksum:
        raise RuntimeError(f"{jar.name} came with sha256 {digest} instead of {checksum}")
    return jar


def _cannot(why: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)
