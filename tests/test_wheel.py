"""A wheel, installed into an environment of its own, does from any folder what a clone does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
OURS = ("cdc_platform", "cdc-platform", "__editable__", "assets", "resources", "_virtualenv")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project as a wheel, built without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "uv", "build", "--wheel", "--no-build-isolation", "--offline", "--out-dir", folder]
    done = subprocess.run([*build, str(ROOT)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def program(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The installed program: in its environment are the dependencies, and of the project the wheel alone."""
    environment = tmp_path_factory.mktemp("installed") / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    others = environment / "others"
    others.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith(OURS) and entry.suffix != ".pth":
            (others / entry.name).symlink_to(entry)
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "others.pth").write_text(f"{others}\n", encoding="utf-8")
    python = environment / "bin" / "python"
    install = [sys.executable, "-m", "uv", "pip", "install", "--offline", "--no-deps", "--python", str(python)]
    done = subprocess.run([*install, str(wheel)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return environment / "bin" / "cdc-platform"


def run(program: Path, folder: Path, *words: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """The installed program, or its Python, in a folder that is no clone."""
    bare = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(
        [str(program), *words], cwd=folder, env=bare, capture_output=True, text=True, check=False, timeout=timeout
    )


def test_everything_that_is_read_at_run_time_comes_along(wheel: Path) -> None:
    """The files of Dagster, the real ring, the grammar, Spark's settings: each as it is in the clone."""
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
        for name in ("dagster.yaml", "workspace.yaml"):
            assert packed.read(f"cdc_platform/data/dagster/{name}") == (ROOT / name).read_bytes()
    for pattern in ("data/real_ring/*.json", "cql/*.lark", "lake/*.properties", "lake/*.xml"):
        held = {str(path.relative_to(ROOT)) for path in (ROOT / "cdc_platform").glob(pattern)}
        assert held <= names, pattern
    python = {str(path.relative_to(ROOT)) for part in OURS[:1] for path in (ROOT / part).rglob("*.py")}
    assert python <= names


def test_it_is_the_wheel_that_runs(program: Path, tmp_path: Path) -> None:
    """All three packages come from the environment; the home of Dagster is made; the code location loads."""
    code = (
        "import json, sys, cdc_platform, assets, resources\n"
        "from cdc_platform.dagster_home import PACKAGES, dagster_home\n"
        "from cdc_platform.home import open_home\n"
        "from cdc_platform.definitions import defs\n"
        "folder = dagster_home(open_home('home'))\n"
        "jobs = len(defs.get_repository_def().get_all_jobs())\n"
        "files = [each.__file__ for each in (cdc_platform, assets, resources)]\n"
        "print(json.dumps([files, str(PACKAGES), (folder / 'dagster.yaml').is_file(), jobs]))"
    )
    done = run(program.with_name("python"), tmp_path, "-c", code)
    assert done.returncode == 0, done.stderr
    files, packages, has_settings, jobs = json.loads(done.stdout.splitlines()[-1])
    assert all(Path(file).is_relative_to(program.parent.parent) for file in [*files, packages])
    assert has_settings
    assert jobs > 5


def test_looking_works_from_any_folder(program: Path, tmp_path: Path) -> None:
    """A ring is taken in and told, and status says how to go on."""
    node = {"host_id": "55555555-5555-4555-8555-555555555555", "address": "a", "datacenter": "d", "rack": "r"}
    node |= {"num_tokens": 4, "shard_count": 2, "ignore_msb": 12}
    (tmp_path / "node.json").write_text(json.dumps(node), encoding="utf-8")
    assert run(program, tmp_path, "bootstrap", "node.json").returncode == 0
    told = json.loads(run(program, tmp_path, "status", "--json").stdout)
    assert [each["code"] for each in told["next"]] == ["join-waiting", "never-checked"]


@pytest.mark.spark
def test_the_main_job_runs(program: Path, tmp_path: Path) -> None:
    """`demo`, with the real ring that came along, to its end."""
    done = run(program, tmp_path, "--home", "home", "demo", timeout=900)
    assert done.returncode == 0, done.stderr
    listed = json.loads(run(program, tmp_path, "--home", "home", "generations", "--json").stdout)
    assert [each["state"] for each in listed] == ["published"] * 3
