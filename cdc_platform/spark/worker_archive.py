"""The interpreter archive and the program ZIP for a cluster's workers.

Spark unpacks the archive beside each executor and sends the ZIP with each session. Both are named by their content and
stored in the cache.
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
"""The folder beside an executor into which Spark unpacks the archive."""
TASK_MODULES = (
    "cdc_platform.cdclog.audit.logs",
    "cdc_platform.cdclog.consumer.retyped",
    "cdc_platform.cdclog.dataframe",
    "cdc_platform.cdclog.image_encoder",
    "cdc_platform.cdclog.items",
    "cdc_platform.cdclog.rebuild",
    "cdc_platform.cdclog.replay",
    "cdc_platform.cdclog.state.store",
    "cdc_platform.cdclog.write_batches",
    "cdc_platform.checks.judge",
    "cdc_platform.checks.scan",
    "cdc_platform.checks.uniqueness",
    "cdc_platform.delta.task_writer",
    "cdc_platform.delta.tasks",
    "cdc_platform.delta.user_tables",
    "cdc_platform.delta.verification",
    "cdc_platform.ingest.replica.replica",
    "cdc_platform.ingest.replica.snapshot",
    "cdc_platform.ingest.requests",
    "cdc_platform.lifecycle.join.bootstrap",
    "cdc_platform.lifecycle.join.publish",
    "cdc_platform.lifecycle.join.restore",
    "cdc_platform.query.spark",
    "cdc_platform.spark.frames",
    "cdc_platform.spark.shuffle",
    "cdc_platform.timeline.dataframe",
)
"""The modules whose functions are sent to executors."""
# Modules that tasks import while they run, for paths in an object store.
_LAZY_IMPORTS = ("obstore.store", "obstore.exceptions")
# Spark brings the first two itself, in the version that its JVM requires; each session sends the program. pandera
# imports the last two if they are installed, for tests.
_EXCLUDED_PACKAGES = frozenset({"pyspark", "py4j", "cdc-platform", "setuptools", "hypothesis", "sortedcontainers"})
# The version of the archive's layout, which is part of its name.
_FORMAT = 4
_EXCLUDED_LIBRARY_FOLDERS = frozenset(
    ("test", "idlelib", "tkinter", "ensurepip", "lib2to3", "site-packages", "dist-packages", "__pycache__")
)
_EXCLUDED_PACKAGE_FOLDERS = frozenset({"tests", "include", "__pycache__"})
_EXCLUDED_PREFIXES = ("libarrow_flight", "libarrow_python_flight", "_flight.")
_EXCLUDED_SUFFIXES = (".pyx", ".pxd", ".pxi", ".h", ".hpp", ".cc", ".a")
# All paths are relative to the unpacked archive, so nothing of the machine's own Python is used.
_PYTHON_WRAPPER = f"""#!/bin/sh
here=$(cd "$(dirname "$0")/.." && pwd -P) || exit 127
export PYTHONHOME="$here" LD_LIBRARY_PATH="$here/lib${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"
export PYTHONPATH="$here/packages${{PYTHONPATH:+:$PYTHONPATH}}" PYTHONNOUSERSITE=1
exec "$here/bin/python{sys.version_info.major}.{sys.version_info.minor}" "$@"
"""
ARCHIVE_PYTHON = f"./{ARCHIVE_FOLDER}/bin/python"
"""The interpreter relative to an executor's folder; a session on a Connect server runs in a subfolder of it."""
SERVER_ARCHIVE_PYTHON = f"../{ARCHIVE_FOLDER}/bin/python"
ARCHIVE_PYTHONS = (ARCHIVE_PYTHON, SERVER_ARCHIVE_PYTHON)


@dataclass(frozen=True)
class WorkerArchive:
    """The interpreter archive: its file, its size in bytes, the versions of Python and of its packages."""

    path: Path
    size: int
    python: str
    packages: dict[str, str]

    def __str__(self) -> str:
        return f"{self.size >> 20} MiB, Python {self.python} and {len(self.packages)} packages, {self.path}"


def get_worker_archive() -> WorkerArchive:
    """Return the archive of this interpreter and the packages that tasks import; make it if the cache has none.

    Raises:
        EnvironmentProblem: the cache cannot be written, or a package has no list of its files.
    """
    packages = _get_packages()
    key = json.dumps([_FORMAT, sys.version, platform.machine(), packages, _PYTHON_WRAPPER], sort_keys=True)
    path = _get_cache_path(f"workers-{hashlib.sha256(key.encode()).hexdigest()[:16]}.tar.gz")
    if not path.exists():
        _write_atomically(path, lambda file: _write_archive(file, packages))
    return WorkerArchive(path, path.stat().st_size, platform.python_version(), packages)


@cache
def get_program_file() -> Path:
    """Return the ZIP of the program, named by its content; make it if the cache has none."""
    contents = {path.relative_to(PACKAGE_FOLDER.parent).as_posix(): path.read_bytes() for path in _list_program_files()}
    digest = hashlib.sha256(f"{_FORMAT} {sys.version}".encode())
    for name, content in contents.items():
        digest.update(f"{name} {len(content)} ".encode() + content)
    path = _get_cache_path(f"cdc_platform-{digest.hexdigest()[:16]}.zip")
    if not path.exists():
        _write_atomically(path, lambda file: _write_program(file, contents))
    return path


def _write_program(path: Path, contents: Mapping[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in contents.items():
            file.writestr(name, content)
            if name.endswith(".py"):
                # Python stores no compiled code beside a ZIP, so every worker process would compile its imports.
                code = compile(content, name, "exec", dont_inherit=True)
                header = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + importlib.util.source_hash(content)
                file.writestr(f"{name}c", header + marshal.dumps(code))


def _list_program_files() -> list[Path]:
    """Return the program's files that tasks may import: without commands, pages and examples."""
    excluded = {PACKAGE_FOLDER / name for name in ("cli", "data", "server", "reporting", "plots")}
    files = (path for path in PACKAGE_FOLDER.rglob("*") if path.suffix in (".py", ".lark"))
    return sorted(path for path in files if not excluded.intersection(path.parents))


@cache
def _get_packages() -> dict[str, str]:
    """Return the packages that `TASK_MODULES` import, with their versions; cache them per program and installation.

    Finding them takes more than a second, at every start of a cluster's driver.
    """
    # Folder names contain the versions: to read the metadata of 140 packages takes a tenth of a second.
    installed = sorted({info.name for entry in sys.path for info in Path(entry).glob("*-info")})
    # The program file's name covers its content, which includes this file, and the version of Python.
    key = json.dumps([get_program_file().name, installed])
    path = _get_cache_path(f"packages-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json")
    with suppress(OSError, ValueError):  # it does not exist, or it is damaged
        return json.loads(path.read_text(encoding="utf-8"))
    packages = _find_imported_packages()
    _write_atomically(path, lambda file: file.write_text(json.dumps(packages), encoding="utf-8"))
    return packages


def _find_imported_packages() -> dict[str, str]:
    """Find the packages by importing `TASK_MODULES` in a new process."""
    code = (
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
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise EnvironmentProblem(f"what tasks import cannot be imported here ({ran.stderr.strip().splitlines()[-1]})")
    known = metadata.packages_distributions()
    names = {package for top in json.loads(ran.stdout) for package in known.get(top, ())} - _EXCLUDED_PACKAGES
    return {name: metadata.version(name) for name in sorted(names)}


def _write_archive(path: Path, packages: dict[str, str]) -> None:
    with tarfile.open(path, "w:gz", compresslevel=1) as file:
        start = tarfile.TarInfo("bin/python")
        start.size, start.mode = len(_PYTHON_WRAPPER), 0o755
        file.addfile(start, io.BytesIO(_PYTHON_WRAPPER.encode()))
        for source, inside in [
            *_iter_interpreter_files(),
            *(entry for name in packages for entry in _iter_package_files(name)),
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
    for entry in files:
        path = Path(str(entry.locate()))
        unneeded = ".." in entry.parts or _EXCLUDED_PACKAGE_FOLDERS.intersection(entry.parts)
        unneeded = unneeded or path.name.startswith(_EXCLUDED_PREFIXES) or path.name.endswith(_EXCLUDED_SUFFIXES)
        if not unneeded and path.is_file():
            yield path, f"packages/{entry}"


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
            f"{path}, which is sent to Spark's workers, cannot be created: {error.strerror}; choose another cache with "
            f"{CACHE_VARIABLE}"
        ) from None
    finally:
        if draft is not None:
            atomic.discard_draft(draft)
