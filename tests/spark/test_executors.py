"""What workers of a cluster are given, what is set for them, and how it is told what one of them lacks."""

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
def test_what_a_worker_lacks_is_one_line_with_its_mend(lacks: dict[str, Any], check: str, found: str) -> None:
    """All else is told as it should be."""
    assert [trial.check for trial in check_executor(FIT, ARCHIVE) if not trial.ok] == []
    (bad,) = [trial for trial in check_executor(replace(FIT, **lacks), ARCHIVE) if not trial.ok]
    assert bad.check == f"{check} on host (app-1/0)"
    assert bad.message.startswith(found)
    assert bad.remedy


def test_settings_of_one_machine_stay_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sockets, its daemon, its measure of partitions; a cluster has speculation, and as many executors always."""
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")  # the workers' own: no archive is made here
    alone = get_driver_conf("local[*]", tmp_path, heavy=True)
    many = get_driver_conf(MASTER, tmp_path, heavy=True)
    apart = ("python.unix.domain", "python.daemon", "shuffle.partitions", "snapshotPartitions", "extraClassPath")
    for part in apart:
        assert [name for name in alone if part in name]
        assert not [name for name in many if part in name]
    assert (many["spark.speculation"], many["spark.dynamicAllocation.enabled"]) == ("true", "false")
    assert many["spark.excludeOnFailure.taskAndStage.enabled"] == "true"
    assert many["spark.driver.host"] == "127.0.0.1"
    assert "spark.archives" not in many
    assert get_worker_environment(MASTER)["PYSPARK_PYTHON"] == "/opt/python"
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert get_worker_environment(MASTER)["PYSPARK_PYTHON"] == worker_archive.ARCHIVE_PYTHON
    assert get_worker_environment(MASTER, server=True)["PYSPARK_PYTHON"] == f".{worker_archive.ARCHIVE_PYTHON}"
    assert get_worker_environment("local[*]")["PYSPARK_PYTHON"] == sys.executable


def test_a_file_of_settings_outdoes_what_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that is no setting is named."""
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    file = tmp_path / "spark.conf"
    monkeypatch.setenv(SPARK_CONF_VARIABLE, str(file))
    with pytest.raises(InputError, match="no such file"):
        get_cluster_conf(MASTER, tmp_path)
    file.write_text("# ours\n\nspark.speculation false\nspark.executor.memory  2g\n", encoding="utf-8")
    found = get_cluster_conf(MASTER, tmp_path)
    assert (found["spark.speculation"], found["spark.executor.memory"]) == ("false", "2g")
    file.write_text("spark.speculation\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"line 1 of .* is no setting"):
        executors.read_conf_file()


def test_all_modules_whose_functions_travel_are_known() -> None:
    """What they import is what the workers' archive has; a new one belongs into `TASK_MODULES`."""
    travels = re.compile(r"\bTaskRows\(|\.mapInArrow\(|\.through\(|\bTaskRows\b.*import|import.*\bTaskRows\b")
    found = {
        ".".join(path.relative_to(PACKAGE_FOLDER.parent).with_suffix("").parts)
        for path in PACKAGE_FOLDER.rglob("*.py")
        if travels.search(path.read_text(encoding="utf-8"))
    }
    assert found - set(TASK_MODULES) <= {"cdc_platform.spark.worker_archive"}


def test_the_archive_runs_alone() -> None:
    """What it has starts without this environment, imports what tasks import, and holds nothing that they do not."""
    archive = worker_archive.get_worker_archive()
    assert archive.path.stat().st_size == archive.size < 250e6
    assert not {"dagster", "duckdb", "matplotlib", "pyspark", "uvicorn", "pytest"} & archive.packages.keys()
    with tarfile.open(archive.path) as file:
        first = file.next()
        assert first is not None
        assert (first.name, first.mode) == ("bin/python", 0o755)


def test_what_tasks_import_is_found_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of one program and installation: of others, and where what was kept is damaged, it is found anew."""
    worker_archive.get_program_file()  # where it is kept for the other tests
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    times: list[dict[str, str]] = []

    def imported() -> dict[str, str]:
        times.append({"numpy": f"2.{len(times)}"})
        return times[-1]

    monkeypatch.setattr(worker_archive, "_find_imported_packages", imported)
    find = worker_archive._get_packages.__wrapped__
    assert [find(), find()] == [{"numpy": "2.0"}] * 2
    (kept,) = (tmp_path / "workers").glob("packages-*.json")
    kept.write_text("{", encoding="utf-8")
    assert [find(), find()] == [{"numpy": "2.1"}] * 2
    (tmp_path / "other-1.0.dist-info").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert [find(), find()] == [{"numpy": "2.2"}] * 2
    monkeypatch.setattr(worker_archive, "get_program_file", lambda: tmp_path / "cdc_platform-another.zip")
    assert find() == {"numpy": "2.3"}


def test_the_program_runs_from_its_zip(tmp_path: Path) -> None:
    """Compiled, with the grammar that it reads; without commands and examples."""
    program = worker_archive.get_program_file()
    with zipfile.ZipFile(program) as file:
        names = set(file.namelist())
    assert {"cdc_platform/cql/grammar.lark", "cdc_platform/delta/task_writer.pyc"} <= names
    assert not [name for name in names if name.startswith(("cdc_platform/cli/", "cdc_platform/data/"))]
    asked = f"import sys; sys.path.insert(0, {str(program)!r}); import cdc_platform.cql.parser as p; print(p.__file__)"
    ran = subprocess.run(
        [sys.executable, "-c", asked], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.stdout.strip() == f"{program}/cdc_platform/cql/parser.pyc", ran.stderr
