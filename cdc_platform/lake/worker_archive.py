"""What the workers of a cluster need to run tasks: an interpreter with the packages that tasks import, and the program.

The interpreter is an archive that Spark unpacks beside each executor, the program a ZIP that goes with each session.
Both are made once for what they hold and kept in the cache. Which settings hand them out is `executors`'.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import marshal
import os
import platform
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from cdc_platform import drafts
from cdc_platform.errors import EnvironmentProblem
from cdc_platform.lake.jars import CACHE_VARIABLE, cache_folder

PACKAGE = Path(__file__).parents[1]
INSIDE = "environment"
"""The folder beside an executor into which the archive is unpacked."""
TASKS = (
    "cdc_platform.ingest.replica.replica",
    "cdc_platform.ingest.replica.snapshot",
    "cdc_platform.ingest.requests",
    "cdc_platform.log.reading.retyped",
    "cdc_platform.invariants.fingerprints",
    "cdc_platform.invariants.models",
    "cdc_platform.invariants.one_pass",
    "cdc_platform.invariants.sharing",
    "cdc_platform.lake.committed",
    "cdc_platform.lake.frames",
    "cdc_platform.lake.packing",
    "cdc_platform.lake.slices",
    "cdc_platform.lake.stored_frames",
    "cdc_platform.lake.volume",
    "cdc_platform.lifecycle.join.description_rows",
    "cdc_platform.lifecycle.join.publish",
    "cdc_platform.lifecycle.join.refill",
    "cdc_platform.log.audit.one_pass",
    "cdc_platform.log.imaged_volume",
    "cdc_platform.log.reading.aside",
    "cdc_platform.log.replay.on_spark",
    "cdc_platform.log.state.kept",
    "cdc_platform.log.state.slices",
    "cdc_platform.log.volume",
    "cdc_platform.query.spark",
    "cdc_platform.timeline.base_writes",
)
"""The modules of which functions travel to executors."""
# What they import as they run: places in a store.
_LATER = ("obstore.store", "obstore.exceptions")
# Spark brings the first two itself, in the version that its JVM speaks with; the program goes with each session.
# pandera takes the last two where they are, for tests.
_NOT_IN_IT = frozenset({"pyspark", "py4j", "cdc-platform", "setuptools", "hypothesis", "sortedcontainers"})
# Of what is in it: another one of these makes another archive.
_FORM = 4
_NOT_OF_THE_LIBRARY = frozenset(
    ("test", "idlelib", "tkinter", "ensurepip", "lib2to3", "site-packages", "dist-packages", "__pycache__")
)
_NOT_OF_PACKAGES = frozenset({"tests", "include", "__pycache__"})
_NOT_THESE = ("libarrow_flight", "libarrow_python_flight", "_flight.")
_NOT_THESE_ENDINGS = (".pyx", ".pxd", ".pxi", ".h", ".hpp", ".cc", ".a")
# Relative to where it is unpacked, on a machine that has no such Python: nothing of that machine's own is looked at.
_START = f"""#!/bin/sh
here=$(cd "$(dirname "$0")/.." && pwd -P) || exit 127
export PYTHONHOME="$here" LD_LIBRARY_PATH="$here/lib${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"
export PYTHONPATH="$here/packages${{PYTHONPATH:+:$PYTHONPATH}}" PYTHONNOUSERSITE=1
exec "$here/bin/python{sys.version_info.major}.{sys.version_info.minor}" "$@"
"""
PYTHON = f"./{INSIDE}/bin/python"
"""The interpreter as an executor starts it, from its own folder; for a session on a Connect server from one in that."""
PYTHON_OF_SERVER = f"../{INSIDE}/bin/python"
SENT = (PYTHON, PYTHON_OF_SERVER)


@dataclass(frozen=True)
class WorkerArchive:
    """The interpreter: its file, its bytes, the versions of Python and of the packages in it."""

    path: Path
    size: int
    python: str
    packages: dict[str, str]

    def __str__(self) -> str:
        return f"{self.size >> 20} MiB, Python {self.python} and {len(self.packages)} packages, {self.path}"


def worker_archive() -> WorkerArchive:
    """The archive of this interpreter and the packages that tasks import; made if the cache has none.

    Raises:
        EnvironmentProblem: it cannot be made: the cache cannot be written, or a package has no list of its files.
    """
    packages = _packages()
    said = json.dumps([_FORM, sys.version, platform.machine(), packages, _START], sort_keys=True)
    path = _kept(f"workers-{hashlib.sha256(said.encode()).hexdigest()[:16]}.tar.gz")
    if not path.exists():
        _draft(path, lambda file: _write_archive(file, packages))
    return WorkerArchive(path, path.stat().st_size, platform.python_version(), packages)


@cache
def program_file() -> Path:
    """The ZIP of the program, named by what is in it; made if the cache has none."""
    contents = {path.relative_to(PACKAGE.parent).as_posix(): path.read_bytes() for path in _program()}
    said = hashlib.sha256(f"{_FORM} {sys.version}".encode())
    for name, content in contents.items():
        said.update(f"{name} {len(content)} ".encode() + content)
    path = _kept(f"cdc_platform-{said.hexdigest()[:16]}.zip")
    if not path.exists():
        _draft(path, lambda file: _write_program(file, contents))
    return path


def _write_program(path: Path, contents: Mapping[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in contents.items():
            file.writestr(name, content)
            if name.endswith(".py"):
                # From a ZIP each process of each worker would compile all that it imports.
                code = compile(content, name, "exec", dont_inherit=True)
                header = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + importlib.util.source_hash(content)
                file.writestr(f"{name}c", header + marshal.dumps(code))


def _program() -> list[Path]:
    """What of the program tasks can come to import: not its commands, pages and examples."""
    apart = {PACKAGE / name for name in ("commands", "data", "serving", "report", "pictures")}
    found = (path for path in PACKAGE.rglob("*") if path.suffix in (".py", ".lark"))
    return sorted(path for path in found if not apart.intersection(path.parents))


@cache
def _packages() -> dict[str, str]:
    """The packages that `TASKS` import, and their versions; what was found of this program and installation is kept.

    To find them takes more than a second, each time that a driver of a cluster starts.
    """
    # By the names of their folders, which have the versions: to read 140 of them takes a tenth of a second.
    installed = sorted({found.name for entry in sys.path for found in Path(entry).glob("*-info")})
    # The program is named by what is in it, this file as well, and by the version of Python.
    said = json.dumps([program_file().name, installed])
    path = _kept(f"packages-{hashlib.sha256(said.encode()).hexdigest()[:16]}.json")
    with suppress(OSError, ValueError):  # none is there, or one that is damaged
        return json.loads(path.read_text(encoding="utf-8"))
    found = _imported()
    _draft(path, lambda file: file.write_text(json.dumps(found), encoding="utf-8"))
    return found


def _imported() -> dict[str, str]:
    """Those packages, found by importing `TASKS` in a process that has nothing else."""
    asked = (
        "import sys, importlib, json\n"
        f"for name in {TASKS!r}: importlib.import_module(name)\n"
        "importlib.import_module('cdc_platform.invariants.models').load()\n"
        f"for name in {_LATER!r}: importlib.import_module(name)\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")])}
    ran = subprocess.run([sys.executable, "-c", asked], env=environment, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise EnvironmentProblem(f"what tasks import cannot be imported here ({ran.stderr.strip().splitlines()[-1]})")
    known = metadata.packages_distributions()
    names = {each for top in json.loads(ran.stdout) for each in known.get(top, ())} - _NOT_IN_IT
    return {name: metadata.version(name) for name in sorted(names)}


def _write_archive(path: Path, packages: dict[str, str]) -> None:
    with tarfile.open(path, "w:gz", compresslevel=1) as file:
        start = tarfile.TarInfo("bin/python")
        start.size, start.mode = len(_START), 0o755
        file.addfile(start, io.BytesIO(_START.encode()))
        for source, inside in [*_interpreter(), *(each for name in packages for each in _of_package(name))]:
            file.add(source.resolve(), inside, recursive=False)
            compiled = Path(importlib.util.cache_from_source(str(source)))
            if source.suffix == ".py" and compiled.is_file():
                file.add(compiled, str(Path(inside).parent / "__pycache__" / compiled.name), recursive=False)


def _interpreter() -> Iterator[tuple[Path, str]]:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    yield Path(sys.executable).resolve(), f"bin/{version}"
    shared = Path(sysconfig.get_config_var("LIBDIR") or "", sysconfig.get_config_var("INSTSONAME") or "")
    if sysconfig.get_config_var("Py_ENABLE_SHARED") and shared.is_file():
        yield shared, f"lib/{shared.name}"
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.rglob("*")):
        parts = path.relative_to(library).parts
        if path.is_file() and not _NOT_OF_THE_LIBRARY.intersection(parts) and not parts[0].startswith("config-"):
            yield path, f"lib/{version}/{'/'.join(parts)}"


def _of_package(name: str) -> Iterator[tuple[Path, str]]:
    files = metadata.files(name)
    if files is None:
        raise EnvironmentProblem(f"package {name} has no list of its files; install it with pip or uv")
    for each in files:
        path = Path(str(each.locate()))
        unneeded = ".." in each.parts or _NOT_OF_PACKAGES.intersection(each.parts)
        unneeded = unneeded or path.name.startswith(_NOT_THESE) or path.name.endswith(_NOT_THESE_ENDINGS)
        if not unneeded and path.is_file():
            yield path, f"packages/{each}"


def _kept(name: str) -> Path:
    return cache_folder() / "workers" / name


def _draft(path: Path, write: Callable[[Path], object]) -> None:
    draft: Path | None = None
    try:
        draft = drafts.make_folder(path.parent, path.name, mode=0o700)
        write(draft / path.name)
        (draft / path.name).replace(path)
    except OSError as error:
        raise EnvironmentProblem(
            f"{path}, which Spark's workers are given, cannot be made: {error.strerror}; choose another cache with "
            f"{CACHE_VARIABLE}"
        ) from None
    finally:
        if draft is not None:
            drafts.discard(draft)
