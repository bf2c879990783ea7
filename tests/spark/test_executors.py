"""The archive and settings for a cluster's workers, and the messages about a worker with missing parts."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdc_platform.errors import InputError
from cdc_platform.spark import CACHE_VARIABLE, check_executor, executors, worker_archive
from cdc_platform.spark.executors import MAX_SKEW_SECONDS, SPARK_CONF_VARIABLE, ExecutorReport, get_cluster_conf
from cdc_platform.spark.session import get_driver_conf, get_worker_environment
from cdc_platform.spark.worker_archive import PACKAGE_FOLDER, TASK_MODULES, WorkerArchive

MASTER = "spark://127.0.0.1:7077"
ARCHIVE = WorkerArchive(Path("/cache/workers.tar.gz"), 1, "3.11.7", {"numpy": "2.4.0", "pyarrow": "24.0.0"})
FIT = ExecutorReport("host (app-1/0)", "3.11.2", {"numpy": "2.4.0", "pyarrow": "24.0.0"}, "", "", 0.0)


@pytest.mark.parametrize(
    ("lacks", "check", "found"),
    [
        ({"python": "3.12.1"}, "Python", "3.12.1"),
        ({"packages": {"numpy": "1.26.0"}}, "packages", "numpy is 1.26.0, expected 2.4.0; pyarrow is missing"),
        ({"program": "ModuleNotFoundError: no"}, "program", "ModuleNotFoundError: no"),
        ({"read": "Unavailable: no"}, "lake", "Unavailable: no"),
        ({"skew": MAX_SKEW_SECONDS + 3600.0}, "clock", "off by 3605 s at least"),
    ],
)
def test_missing_part_of_a_worker_is_one_line_with_a_remedy(lacks: dict[str, Any], check: str, found: str) -> None:
    """All other checks pass."""
    assert [trial.check for trial in check_executor(FIT, ARCHIVE) if not trial.ok] == []
    (failed,) = [trial for trial in check_executor(replace(FIT, **lacks), ARCHIVE) if not trial.ok]
    assert failed.check == f"{check} on host (app-1/0)"
    assert failed.message.startswith(found)
    assert failed.remedy


def test_settings_of_one_machine_stay_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only one machine has sockets, the daemon and its partition size; only a cluster has speculation."""
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")  # the workers' own Python, so no archive is built here
    local = get_driver_conf("local[*]", tmp_path, heavy=True)
    cluster = get_driver_conf(MASTER, tmp_path, heavy=True)
    local_settings = (
        "python.unix.domain",
        "python.daemon",
        "shuffle.partitions",
        "snapshotPartitions",
        "extraClassPath",
    )
    for part in local_settings:
        assert [name for name in local if part in name]
        assert not [name for name in cluster if part in name]
    assert (cluster["spark.speculation"], cluster["spark.dynamicAllocation.enabled"]) == ("true", "false")
    assert cluster["spark.excludeOnFailure.taskAndStage.enabled"] == "true"
    assert cluster["spark.driver.host"] == "127.0.0.1"
    assert "spark.archives" not in cluster
    assert get_worker_environment(MASTER)["PYSPARK_PYTHON"] == "/opt/python"
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert get_worker_environment(MASTER)["PYSPARK_PYTHON"] == worker_archive.ARCHIVE_PYTHON
    assert get_worker_environment(MASTER, server=True)["PYSPARK_PYTHON"] == f".{worker_archive.ARCHIVE_PYTHON}"
    assert get_worker_environment("local[*]")["PYSPARK_PYTHON"] == sys.executable


def test_settings_file_overrides_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An invalid line of the file is named."""
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    file = tmp_path / "spark.conf"
    monkeypatch.setenv(SPARK_CONF_VARIABLE, str(file))
    with pytest.raises(InputError, match="no such file"):
        get_cluster_conf(MASTER, tmp_path)
    file.write_text("# ours\n\nspark.speculation false\nspark.executor.memory  2g\n", encoding="utf-8")
    conf = get_cluster_conf(MASTER, tmp_path)
    assert (conf["spark.speculation"], conf["spark.executor.memory"]) == ("false", "2g")
    file.write_text("spark.speculation\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"line 1 of .* is no setting"):
        executors.read_conf_file()


def test_modules_with_functions_for_workers_are_listed() -> None:
    """The workers' archive has what they import; a new module belongs into `TASK_MODULES`."""
    for_workers = re.compile(r"\bTaskRows\(|\.mapInArrow\(|\.through\(|\bTaskRows\b.*import|import.*\bTaskRows\b")
    modules = {
        ".".join(path.relative_to(PACKAGE_FOLDER.parent).with_suffix("").parts)
        for path in PACKAGE_FOLDER.rglob("*.py")
        if for_workers.search(path.read_text(encoding="utf-8"))
    }
    assert modules - set(TASK_MODULES) <= {"cdc_platform.spark.worker_archive"}


def test_archive_runs_alone() -> None:
    """It starts without this environment, has all that tasks import, and nothing that they do not."""
    archive = worker_archive.get_worker_archive()
    assert archive.path.stat().st_size == archive.size < 250e6
    assert not {"dagster", "duckdb", "matplotlib", "pyspark", "uvicorn", "pytest"} & archive.packages.keys()
    with tarfile.open(archive.path) as file:
        first = file.next()
        assert first is not None
        assert (first.name, first.mode) == ("bin/python", 0o755)


def test_imports_of_tasks_are_found_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The result is cached per program and installation; another one, or a damaged cache, is searched again."""
    worker_archive.get_program_file()  # where it is cached for the other tests
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    searches: list[dict[str, str]] = []

    def count_search() -> dict[str, str]:
        searches.append({"numpy": f"2.{len(searches)}"})
        return searches[-1]

    monkeypatch.setattr(worker_archive, "_find_imported_packages", count_search)
    find = worker_archive._get_packages.__wrapped__
    assert [find(), find()] == [{"numpy": "2.0"}] * 2
    (cached,) = (tmp_path / "workers").glob("packages-*.json")
    cached.write_text("{", encoding="utf-8")
    assert [find(), find()] == [{"numpy": "2.1"}] * 2
    (tmp_path / "other-1.0.dist-info").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert [find(), find()] == [{"numpy": "2.2"}] * 2
    monkeypatch.setattr(worker_archive, "get_program_file", lambda: tmp_path / "cdc_platform-another.zip")
    assert find() == {"numpy": "2.3"}


def test_program_runs_from_its_zip(tmp_path: Path) -> None:
    """It is compiled, with the grammar, and without commands and examples."""
    program = worker_archive.get_program_file()
    with zipfile.ZipFile(program) as file:
        names = set(file.namelist())
    assert {"cdc_platform/cql/grammar.lark", "cdc_platform/delta/task_writer.pyc"} <= names
    assert not [name for name in names if name.startswith(("cdc_platform/cli/", "cdc_platform/data/"))]
    code = f"import sys; sys.path.insert(0, {str(program)!r}); import cdc_platform.cql.parser as p; print(p.__file__)"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert result.stdout.strip() == f"{program}/cdc_platform/cql/parser.pyc", result.stderr
