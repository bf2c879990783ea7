"""The project as a wheel, installed into an environment of its own, which does from any folder what a clone does."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
DEMO_CLOCK = "2026-01-31T12:00:00Z"
"""When the demo runs that the tests judge."""


def build(folder: Path) -> Path:
    """The project as a wheel, built without a network."""
    made = [sys.executable, "-m", "uv", "build", "--wheel", "--no-build-isolation", "--offline", "--out-dir", folder]
    done = subprocess.run([*made, str(ROOT)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (found,) = folder.glob("*.whl")
    return found


def install(wheel: Path, environment: Path) -> Path:
    """The installed program: in its environment are the dependencies' folder, and of the project the wheel alone."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    (site,) = environment.glob("lib/python*/site-packages")
    # No .pth of a folder that is named in one is looked at, so this project's own is not.
    (site / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    python = environment / "bin" / "python"
    made = [sys.executable, "-m", "uv", "pip", "install", "--offline", "--no-deps", "--python", str(python)]
    done = subprocess.run([*made, str(wheel)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return environment / "bin" / "cdc-platform"


def run(
    program: Path, folder: Path, *words: str, timeout: float = 120, **environment: str
) -> subprocess.CompletedProcess[str]:
    """The installed program, or its Python, in a folder that is no clone."""
    bare = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(
        [str(program), *words],
        cwd=folder,
        env=bare | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )
