"""A wheel, installed into its own environment, does in any folder what a clone does."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
from support.worlds.installed import ROOT, run

PACKAGES = {"cdc_platform": "cdc_platform", "assets": "cdc_platform_assets", "resources": "cdc_platform_resources"}
"""The folders of the packages in a clone, and their names in a wheel."""


def test_wheel_contains_all_run_time_data(wheel: Path) -> None:
    """The wheel contains every module and other file of the packages, and Dagster's files as they are in the clone."""
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
        for name in ("dagster.yaml", "workspace.yaml"):
            assert packed.read(f"cdc_platform/data/dagster/{name}") == (ROOT / name).read_bytes()
    for folder, package in PACKAGES.items():
        files = [path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        assert files
        missing = {f"{package}/{path.relative_to(ROOT / folder)}" for path in files} - names
        assert missing <= {"cdc_platform/data/real_ring/README.md"}


def test_installed_packages_are_used(program: Path, tmp_path: Path) -> None:
    """All three packages come from the environment, Dagster's home is created, and the code location loads."""
    code = (
        "import json, sys, cdc_platform, cdc_platform_assets, cdc_platform_resources\n"
        "from cdc_platform.dagster_home import PACKAGES_FOLDER, prepare_dagster_home\n"
        "from cdc_platform.home_location import open_home_location\n"
        "from cdc_platform.definitions import defs\n"
        "folder = prepare_dagster_home(open_home_location('home'))\n"
        "jobs = len(defs.get_repository_def().get_all_jobs())\n"
        "files = [each.__file__ for each in (cdc_platform, cdc_platform_assets, cdc_platform_resources)]\n"
        "print(json.dumps([files, str(PACKAGES_FOLDER), (folder / 'dagster.yaml').is_file(), jobs]))"
    )
    done = run(program.with_name("python"), tmp_path, "-c", code)
    assert done.returncode == 0, done.stderr
    files, packages, has_settings, jobs = json.loads(done.stdout.splitlines()[-1])
    assert all(Path(file).is_relative_to(program.parent.parent) for file in [*files, packages])
    assert has_settings
    assert jobs > 5


def test_read_commands_work_in_any_folder(program: Path, tmp_path: Path) -> None:
    """A ring is imported and shown, and `status` names the next step."""
    node = {"host_id": "55555555-5555-4555-8555-555555555555", "address": "a", "datacenter": "d", "rack": "r"}
    node |= {"num_tokens": 4, "shard_count": 2, "ignore_msb": 12}
    (tmp_path / "node.json").write_text(json.dumps(node), encoding="utf-8")
    assert run(program, tmp_path, "bootstrap", "node.json").returncode == 0
    status = json.loads(run(program, tmp_path, "status", "--json").stdout)
    assert [alert["code"] for alert in status["alerts"]] == ["join-waiting"]


@pytest.mark.spark
@pytest.mark.long("the demo as a newcomer runs it, a JVM's start included; the demo's tests judge it")
def test_the_main_job_runs(program: Path, demonstrated: Path) -> None:
    """`demo` with the packaged real ring runs to its end."""
    listed = json.loads(run(program, demonstrated.parent, "--home", "home", "generations", "--json").stdout)
    assert [generation["state"] for generation in listed["generations"]] == ["published"] * 3
