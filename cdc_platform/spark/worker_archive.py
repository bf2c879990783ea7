"""The interpreter archive and the program ZIP for a cluster's workers.

Spark unpacks the archive beside each executor; the ZIP goes with each session. Both are named by their content and
kept in the cache.
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

from cdc_platform.errors import EnvironmentProblem
from cdc_platform.spark.jars import CACHE_VARIABLE, get_cache_folder
from cdc_platform.storage import atomic

PACKAGE_FOLDER = Path(__file__).parents[1]
ARCHIVE_FOLDER = "environment"
"""The folder beside an executor into which the archive is unpacked."""
TASK_MODULES = (
    "cdc_platform.ingest.replica.replica",
    "cdc_platform.ingest.replica.snapshot",
    "cdc_platform.ingest.requests",
    "cdc_platform.cdclog.consumer.retyped",
    "cdc_platform.checks.uniqueness",
    "cdc_platform.checks.judge",
    "cdc_platform.checks.scan",
    "cdc_platform.checks.uniqueness",
    "cdc_platform.delta.verification",
    "cdc_platform.spark.frames",
    "cdc_platform.spark.shuffle",
    "cdc_platform.delta.task_writer",
    "cdc_platform.spark.frames",
    "cdc_platform.delta.tasks",
    "cdc_platform.lifecycle.join.bootstrap",
    "cdc_platform.lifecycle.join.publish",
    "cdc_platform.lifecycle.join.restore",
    "cdc_platform.cdclog.audit.logs",
    "cdc_platform.cdclog.image_encoder",
    "cdc_platform.cdclog.consumer.retyped",
    "cdc_platform.cdclog.replay",
    "cdc_platform.cdclog.state.store",
    "cdc_platform.cdclog.state.store",
    "cdc_platform.cdclog.dataframe",
    "cdc_platform.query.spark",
    "cdc_platform.timeline.dataframe",
)
"""The modules of which functions travel to executors."""
# What they import as they run: places in a store.
_LAZY_IMPORTS = ("obstore.store", "obstore.exceptions")
# Spark brings the first two itself, in the version that its JVM speaks with; the program goes with each session.
# pandera takes the last two where they are, for tests.
_EXCLUDED_PACKAGES = frozenset({"pyspark", "py4j", "cdc-platform", "setuptools", "hypothesis", "sortedcontainers"})
# Of what is in it: another one of these makes another archive.
_FORMAT = 4
_EXCLUDED_LIBRARY_FOLDERS = frozenset(
    ("test", "idlelib", "tkinter", "ensurepip", "lib2to3", "site-packages", "dist-packages", "__pycache__")
)
_EXCLUDED_PACKAGE_FOLDERS = frozenset({"tests", "include", "__pycache__"})
_EXCLUDED_PREFIXES = ("libarrow_flight", "libarrow_python_flight", "_flight.")
_EXCLUDED_SUFFIXES = (".pyx", ".pxd", ".pxi", ".h", ".hpp", ".cc", ".a")
# Relative to where it is unpacked, on a machine that has no such Python: nothing of that machine's own is looked at.
_PYTHON_WRAPPER = f"""#!/bin/sh
here=$(cd "$(dirname "$0")/.." && pwd -P) || exit 127
export PYTHONHOME="$here" LD_LIBRARY_PATH="$here/lib${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"
export PYTHONPATH="$here/packages${{PYTHONPATH:+:$PYTHONPATH}}" PYTHONNOUSERSITE=1
exec "$here/bin/python{sys.version_info.major}.{sys.version_info.minor}" "$@"
"""
ARCHIVE_PYTHON = f"./{ARCHIVE_FOLDER}/bin/python"
"""The interpreter as an executor starts it, from its own folder; for a session on a Connect server from one in that."""
SERVER_ARCHIVE_PYTHON = f"../{ARCHIVE_FOLDER}/bin/python"
ARCHIVE_PYTHONS = (ARCHIVE_PYTHON, SERVER_ARCHIVE_PYTHON)


@dataclass(frozen=True)
class WorkerArchive:
    """The interpreter: its file, its bytes, the versions of Python and of the packages in it."""

    path: Path
    size: int
    python: str
    packages: dict[str, str]

    def __str__(self) -> str:
        return f"{self.size >> 20} MiB, Python {self.python} and {len(self.packages)} packages, {self.path}"


def get_worker_archive() -> WorkerArchive:
    """The archive of this interpreter and the packages that tasks import; made if the cache has none.

    Raises:
        EnvironmentProblem: it cannot be made: the cache cannot be written, or a package has no list of its files.
    """
    packages = _get_packages()
    said = json.dumps([_FORMAT, sys.version, platform.machine(), packages, _PYTHON_WRAPPER], sort_keys=True)
    path = _get_cache_path(f"workers-{hashlib.sha256(said.encode()).hexdigest()[:16]}.tar.gz")
    if not path.exists():
        _write_atomically(path, lambda file: _write_archive(file, packages))
    return WorkerArchive(path, path.stat().st_size, platform.python_version(), packages)


@cache
def get_program_file() -> Path:
    """The ZIP of the program, named by what is in it; made if the cache has none."""
    contents = {path.relative_to(PACKAGE_FOLDER.parent).as_posix(): path.read_bytes() for path in _list_program_files()}
    said = hashlib.sha256(f"{_FORMAT} {sys.version}".encode())
    for name, content in contents.items():
        said.update(f"{name} {len(content)} ".encode() + content)
    path = _get_cache_path(f"cdc_platform-{said.hexdigest()[:16]}.zip")
    if not path.exists():
        _write_atomically(path, lambda file: _write_program(file, contents))
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


def _list_program_files() -> list[Path]:
    """What of the program tasks can come to import: not its commands, pages and examples."""
    apart = {PACKAGE_FOLDER / name for name in ("cli", "data", "server", "reporting", "plots")}
    found = (path for path in PACKAGE_FOLDER.rglob("*") if path.suffix in (".py", ".lark"))
    return sorted(path for path in found if not apart.intersection(path.parents))


@cache
def _get_packages() -> dict[str, str]:
    """The packages that `TASK_MODULES` import, and their versions; what was found of this program and installation is
    kept.

    To find them takes more than a second, each time that a driver of a cluster starts.
    """
    # By the names of their folders, which have the versions: to read 140 of them takes a tenth of a second.
    installed = sorted({found.name for entry in sys.path for found in Path(entry).glob("*-info")})
    # The program is named by what is in it, this file as well, and by the version of Python.
    said = json.dumps([get_program_file().name, installed])
    path = _get_cache_path(f"packages-{hashlib.sha256(said.encode()).hexdigest()[:16]}.json")
    with suppress(OSError, ValueError):  # none is there, or one that is damaged
        return json.loads(path.read_text(encoding="utf-8"))
    found = _find_imported_packages()
    _write_atomically(path, lambda file: file.write_text(json.dumps(found), encoding="utf-8"))
    return found


def _find_imported_packages() -> dict[str, str]:
    """Those packages, found by importing `TASK_MODULES` in a process that has nothing else."""
    asked = (
        "import sys, importlib, json\n"
        f"for name in {TASK_MODULES!r}: importlib.import_module(name)\n"
        "importlib.import_module('cdc_platform.checks.judge').preload_models()\n"
        f"for name in {_LAZY_IMPORTS!r}: importlib.import_module(name)\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(PACKAGE_FOLDER.parent), os.environ.get("PYTHONPATH", "")]),
    }
    ran = subprocess.run([sys.executable, "-c", asked], env=environment, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise EnvironmentProblem(f"what tasks import cannot be imported here ({ran.stderr.strip().splitlines()[-1]})")
    known = metadata.packages_distributions()
    names = {each for top in json.loads(ran.stdout) for each in known.get(top, ())} - _EXCLUDED_PACKAGES
    return {name: metadata.version(name) for name in sorted(names)}


def _write_archive(path: Path, packages: dict[str, str]) -> None:
    with tarfile.open(path, "w:gz", compresslevel=1) as file:
        start = tarfile.TarInfo("bin/python")
        start.size, start.mode = len(_PYTHON_WRAPPER), 0o755
        file.addfile(start, io.BytesIO(_PYTHON_WRAPPER.encode()))
        for source, inside in [
            *_iter_interpreter_files(),
            *(each for name in packages for each in _iter_package_files(name)),
        ]:
            file.add(source.resolve(), inside, recursive=False)
            compiled = Path(importlib.util.cache_from_source(str(source)))
            if source.suffix == ".py" and compiled.is_file():
                file.add(compiled, str(Path(inside).parent / "__pycache__" / compiled.name), recursive=False)


def _iter_interpreter_files() -> Iterator[tuple[Path, str]]:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    yield Path(sys.executable).resolve(), f"bin/{version}"
    shared = Path(sysconfig.get_config_var("LIBDIR") or "", sysconfig.get_config_var("INSTSONAME") or "")
    if sysconfig.get_config_var("Py_ENABLE_SHARED") and shared.is_file():
        yield shared, f"lib/{shared.name}"
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.rglob("*")):
        parts = path.relative_to(library).parts
        if path.is_file() and not _EXCLUDED_LIBRARY_FOLDERS.intersection(parts) and not parts[0].startswith("config-"):
            yield path, f"lib/{version}/{'/'.join(parts)}"


def _iter_package_files(name: str) -> Iterator[tuple[Path, str]]:
    files = metadata.files(name)
    if files is None:
        raise EnvironmentProblem(f"package {name} has no list of its files; install it with pip or uv")
    for each in files:
        path = Path(str(each.locate()))
        unneeded = ".." in each.parts or _EXCLUDED_PACKAGE_FOLDERS.intersection(each.parts)
        unneeded = unneeded or path.name.startswith(_EXCLUDED_PREFIXES) or path.name.endswith(_EXCLUDED_SUFFIXES)
        if not unneeded and path.is_file():
            yield path, f"packages/{each}"


def _get_cache_path(name: str) -> Path:
    return get_cache_folder() / "workers" / name


def _write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    draft: Path | None = None
    try:
        draft = atomic.make_draft_folder(path.parent, path.name, mode=0o700)
        write(draft / path.name)
        (draft / path.name).replace(path)
    except OSError as error:
        raise EnvironmentProblem(
            f"{path}, which Spark's workers are given, cannot be made: {error.strerror}; choose another cache with "
            f"{CACHE_VARIABLE}"
        ) from None
    finally:
        if draft is not None:
            atomic.discard_draft(draft)
