"""The project as a wheel, installed into its own environment, which must work in any folder as a clone does."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
DEMO_CLOCK = "2026-01-31T12:00:00Z"
"""The time of the demo that the tests judge."""


def build(folder: Path) -> Path:
    """Build the project's wheel without a network."""
    command = [sys.executable, "-m", "uv", "build", "--wheel", "--no-build-isolation", "--offline", "--out-dir", folder]
    done = subprocess.run([*command, str(ROOT)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(wheel: Path, environment: Path) -> Path:
    """Install the program; its environment has the dependencies' folder and, of the project, the wheel alone."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    (site,) = environment.glob("lib/python*/site-packages")
    # Python ignores .pth files in a folder that a .pth file names, so this project's own is ignored.
    (site / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    python = environment / "bin" / "python"
    command = [sys.executable, "-m", "uv", "pip", "install", "--offline", "--no-deps", "--python", str(python)]
    done = subprocess.run([*command, str(wheel)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return environment / "bin" / "cdc-platform"


def run(
    program: Path, folder: Path, *words: str, timeout: float = 120, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the installed program, or its Python, in a folder that is no clone."""
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
