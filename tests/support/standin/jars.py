"""The JARs of Apache Cassandra, fetched once from Maven by the resolver inside pyspark; `python -m` this fetches them.

They go into the platform's cache folder, beside Delta's own, and are held against one checksum of all their contents.
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
"""Of the lines `name sha256` of all JARs, in the order of their names."""
_FETCH_SECONDS = 1800
_WITHOUT_POMS = """<ivysettings><settings defaultResolver="central"/><resolvers>
<ibiblio name="central" m2compatible="true" usepoms="false"/></resolvers></ivysettings>"""


def cassandra_jars() -> Path:
    """The folder that holds them; fetched first where they are not there."""
    return fetched(f"cassandra-{VERSION}", _fetch)


def fetched(name: str, fetch: Callable[[Path], None]) -> Path:
    """A folder of the cache with JARs; where it is not there, `fetch` has to make it as `jars` in a new folder.

    Others wait meanwhile, be they threads or processes.
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
    found = _checksum(draft / "jars")
    if found != SHA256:
        raise RuntimeError(f"the JARs of Apache Cassandra came with checksum {found} instead of {SHA256}")


def retrieve(draft: Path, wanted: Sequence[tuple[str, str, str]], *, alone: bool = False) -> None:
    """Let the resolver put JARs into the folder `jars` of a new folder: with what they need, or `alone`, without POMs.

    `wanted`: each by its organisation, name and revision.
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
