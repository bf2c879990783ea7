"""The runtime settings of the platform's processes: garbage collection and threads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cdc_platform.runtime import BLAS_THREADS_VARIABLE

_SEEN = """
import gc, sys
from cdc_platform.runtime import gc_paused_for_imports
with gc_paused_for_imports():
    within, kept = gc.isenabled(), [[] for _ in range(1000)]
print(within, gc.isenabled(), gc.get_freeze_count() > 1000)
"""
_WITHIN = """
import gc
from cdc_platform.runtime import gc_paused_for_imports
with gc_paused_for_imports():
    with gc_paused_for_imports():
        pass
    print(gc.isenabled())
print(gc.isenabled())
"""
_FAILS = """
import gc
from cdc_platform.runtime import gc_paused_for_imports
try:
    with gc_paused_for_imports():
        import nothing_of_the_kind
except ImportError:
    print(gc.isenabled())
"""
_TELLS = """
import os, sys

class Tells:
    def find_spec(self, name, *_):
        if name == "numpy":
            print("OpenBLAS has threads:", os.environ.get("OPENBLAS_NUM_THREADS"), file=sys.stderr)

sys.meta_path.insert(0, Tells())
from cdc_platform.__main__ import main
main()
"""


@pytest.mark.parametrize(("said", "due"), [(None, "1"), ("3", "3")])
def test_command_limits_threads_of_openblas(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str | None, due: str
) -> None:
    """The thread setting is in the environment before numpy loads, and a user's own value wins."""
    monkeypatch.delenv(BLAS_THREADS_VARIABLE, raising=False)
    if said is not None:
        monkeypatch.setenv(BLAS_THREADS_VARIABLE, said)
    command = [sys.executable, "-c", _TELLS, "--home", str(tmp_path), "status"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == f"OpenBLAS has threads: {due}\n"


@pytest.mark.skipif(sys.platform != "linux", reason="by /proc")
def test_openblas_uses_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the setting under this name a process that loads numpy has one thread."""
    counts = "import os, numpy; print(len(os.listdir('/proc/self/task')))"
    command = [
        sys.executable,
        "-c",
        f"from cdc_platform.runtime import tune_short_process; tune_short_process(); {counts}",
    ]
    monkeypatch.delenv(BLAS_THREADS_VARIABLE, raising=False)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"


def test_imported_objects_are_not_collected() -> None:
    """No garbage collection runs in the block; afterwards existing objects are frozen and new garbage is collected."""
    done = subprocess.run([sys.executable, "-c", _SEEN], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "True"]


def test_nested_block_does_not_end_the_outer_one() -> None:
    """A nested block does not end the outer one, as when a server imports the code location."""
    done = subprocess.run([sys.executable, "-c", _WITHIN], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_failed_block_restores_garbage_collection() -> None:
    """After a failed import garbage collection is on again, since the process continues."""
    done = subprocess.run([sys.executable, "-c", _FAILS], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"]
