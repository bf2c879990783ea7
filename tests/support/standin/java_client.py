"""ScyllaDB's own Java library, fetched once from Maven Central, as a process that reads the log of a table.

Its POMs name a parent that is in no repository, so that no resolver takes them: the JARs are fetched one by one, each
held against its checksum.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn
from uuid import UUID

import pytest
from support.standin.server import java17

from cdc_platform.clock import Milliseconds
from cdc_platform.lake.jars import cache_folder, spark_home

_CENTRAL = os.environ["MAVEN_CENTRAL"]
_JARS = {
    "com/scylladb/scylla-cdc-lib/1.3.9/scylla-cdc-lib-1.3.9.jar": (
        "8f82a303ef2721d83d677a29480358854c70a29addf83c7af181a5c3f24109cc"
    ),
    "com/scylladb/scylla-cdc-base/1.3.9/scylla-cdc-base-1.3.9.jar": (
        "14de061409de8d339f7911ae9c19036f50592c7ab8a22d52081a2386d451df80"
    ),
    "com/scylladb/scylla-cdc-driver3/1.3.9/scylla-cdc-driver3-1.3.9.jar": (
        "40d702780a35b808a9ed29814999d82aafcfefea4cd8abb26838089aa6c4ac8f"
    ),
    "com/google/flogger/flogger/0.9/flogger-0.9.jar": (
        "b524636155975d0fbcbe6fe3977c23b35404f48b1458c68779004abba15fc765"
    ),
    "com/google/flogger/flogger-system-backend/0.9/flogger-system-backend-0.9.jar": (
        "1658db89e5d9e6c6e63565d80ad041466cb330b8686ba972d843686c62852fac"
    ),
}
_FROM_SPARK = ("guava-*.jar", "failureaccess-*.jar", "slf4j-api-*.jar")
_SECONDS = 180


@dataclass(frozen=True)
class ReadChange:
    """A change as the library gave it: of which generation it read it, and the key of the log's row."""

    generation_ms: Milliseconds
    stream: bytes
    time: UUID
    batch_seq_no: int


def read_log(host: str, port: int, user: tuple[str, str], table: str, expected: int) -> list[ReadChange]:
    """The changes of a table's log in the order in which the library gives them; waits for as many, and for more."""
    launcher = java17()
    if not Path(launcher).resolve().with_name("javac").exists() and _has_no_compiler(launcher):
        _cannot("the Java client needs a JDK of Java 17, which compiles it (Debian: openjdk-17-jdk-headless)")
    spark = [next(spark_home().joinpath("jars").glob(pattern)) for pattern in _FROM_SPARK]
    path = os.pathsep.join(map(str, [*_client_jars(), *spark]))
    source = Path(__file__).with_name("ReadLogs.java")
    words = [host, str(port), *user, str(expected), table]
    command = [launcher, "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", path, str(source), *words]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    assert ran.stdout.endswith("end\n"), ran.stdout[-500:] + ran.stderr[-3000:]
    found = [line.split()[1:] for line in ran.stdout.splitlines() if line.startswith("change ")]
    changes = [ReadChange(Milliseconds(int(ms)), bytes.fromhex(s), UUID(at), int(n)) for ms, s, at, n in found]
    assert len(changes) >= expected, f"{len(changes)} of {expected}: {ran.stderr[-3000:]}"
    return changes


def _has_no_compiler(launcher: str) -> bool:
    listed = subprocess.run([launcher, "--list-modules"], capture_output=True, text=True, timeout=60, check=False)
    return "jdk.compiler" not in listed.stdout


def _client_jars() -> list[Path]:
    folder = cache_folder() / "scylla-cdc-java-1.3.9"
    folder.mkdir(parents=True, exist_ok=True)
    return [_client_jar(folder, place, checksum) for place, checksum in _JARS.items()]


def _client_jar(folder: Path, place: str, checksum: str) -> Path:
    jar = folder / place.rpartition("/")[2]
    if not jar.exists():
        try:
            with urllib.request.urlopen(f"{_CENTRAL}/{place}", timeout=60) as answer:
                content = answer.read()
        except OSError as error:
            _cannot(f"{jar.name} could not be fetched from {_CENTRAL}: {error}")
        found = hashlib.sha256(content).hexdigest()
        if found != checksum:
            raise RuntimeError(f"{jar.name} came with sha256 {found} instead of {checksum}")
        draft = jar.with_suffix(f".{os.getpid()}")
        draft.write_bytes(content)
        draft.replace(jar)
    return jar


def _cannot(why: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)
