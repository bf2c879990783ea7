"""Fetch the JARs of Apache Cassandra once from Maven by pyspark's resolver; `python -m` this module fetches them.

They go into the platform's cache folder, beside Delta's own, and must match one checksum of all their contents.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from cdc_platform.spark import find_java, get_cache_folder
from cdc_platform.spark.jars import IVY_SETTINGS_VARIABLE, get_spark_home

VERSION = "5.0.5"
SHA256 = "c0da9ba8a06c891c949679fc64ac23978fb0fbac5c01e28dc47e2cb18aa68af3"
"""Checksum of the lines `name sha256` of all JARs, in name order."""
_FETCH_SECONDS = 1800
_WITHOUT_POMS = """<ivysettings><settings defaultResolver="central"/><resolvers>
<ibiblio name="central" m2compatible="true" usepoms="false"/></resolvers></ivysettings>"""


def cassandra_jars() -> Path:
    """Return the folder with the JARs, after fetching them if they are missing."""
    return fetched(f"cassandra-{VERSION}", _fetch)


def fetched(name: str, fetch: Callable[[Path], None]) -> Path:
    """Return a cache folder with JARs; if it is missing, `fetch` must create it as `jars` in a new folder.

    Other threads and processes wait in the meantime.
    """
    folder = get_cache_folder() / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "cassandra.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            draft = folder.with_name(f".{folder.name}.{os.getpid()}")
            try:
                fetch(draft)
                (draft / "jars").replace(folder)
            finally:
                shutil.rmtree(draft, ignore_errors=True)
    return folder


def _fetch(draft: Path) -> None:
    retrieve(draft, [("org.apache.cassandra", "cassandra-all", VERSION)])
    checksum = _checksum(draft / "jars")
    if checksum != SHA256:
        raise RuntimeError(f"the JARs of Apache Cassandra came with checksum {checksum} instead of {SHA256}")


def retrieve(draft: Path, wanted: Sequence[tuple[str, str, str]], *, alone: bool = False) -> None:
    """Let the resolver put JARs into `jars` in a new folder: with their dependencies, or `alone`, without POMs.

    `wanted`: the organisation, name and revision of each.
    """
    draft.mkdir()
    module = draft / "ivy.xml"
    module.write_text(
        '<ivy-module version="2.0"><info organisation="cdc-platform" module="tests"/><dependencies>'
        + "".join(f'<dependency org="{org}" name="{name}" rev="{rev}" conf="*->default"/>' for org, name, rev in wanted)
        + "</dependencies></ivy-module>",
        encoding="utf-8",
    )
    resolver = next(get_spark_home().joinpath("jars").glob("ivy-*.jar"))
    command = [find_java().executable, "-cp", str(resolver), "org.apache.ivy.Main"]
    settings = os.environ.get(IVY_SETTINGS_VARIABLE)
    if alone and not settings:
        settings = str(draft / "settings.xml")
        Path(settings).write_text(_WITHOUT_POMS, encoding="utf-8")
    command += ["-settings", settings] if settings else []
    command += ["-ivy", str(module), "-cache", str(draft / "ivy")]
    command += ["-retrieve", str(draft / "jars" / "[artifact]-[revision](-[classifier]).[ext]")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_SECONDS, check=False)
    if ran.returncode != 0:
        raise RuntimeError(f"{wanted[0][1]} could not be fetched: {(ran.stdout + ran.stderr)[-2000:]}")


def _checksum(folder: Path) -> str:
    lines = [f"{jar.name} {hashlib.sha256(jar.read_bytes()).hexdigest()}\n" for jar in sorted(folder.iterdir())]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


if __name__ == "__main__":
    cassandra_jars()
