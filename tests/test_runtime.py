"""How the platform's processes go about their work: when they look for garbage, and with which threads."""

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
def test_a_command_has_no_threads_that_multiply_matrices(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str | None, due: str
) -> None:
    """It is said before numpy is loaded; who has said something else is heard."""
    monkeypatch.delenv(BLAS_THREADS_VARIABLE, raising=False)
    if said is not None:
        monkeypatch.setenv(BLAS_THREADS_VARIABLE, said)
    command = [sys.executable, "-c", _TELLS, "--home", str(tmp_path), "status"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == f"OpenBLAS has threads: {due}\n"


@pytest.mark.skipif(sys.platform != "linux", reason="by /proc")
def test_openblas_hears_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the name that the setting has, a process that loads numpy has the one thread."""
    counts = "import os, numpy; print(len(os.listdir('/proc/self/task')))"
    command = [
        sys.executable,
        "-c",
        f"from cdc_platform.runtime import tune_short_process; tune_short_process(); {counts}",
    ]
    monkeypatch.delenv(BLAS_THREADS_VARIABLE, raising=False)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"


def test_what_is_imported_is_not_looked_at() -> None:
    """In the block nothing is looked for; behind it what is there is left alone, and new garbage is found again."""
    done = subprocess.run([sys.executable, "-c", _SEEN], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "True"]


def test_a_block_in_another_one_does_not_end_it() -> None:
    """Who serves imports the code location, which is such a block itself."""
    done = subprocess.run([sys.executable, "-c", _WITHIN], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_a_block_that_fails_leaves_it_on() -> None:
    """Code that does not load is for Dagster to tell, in a process that goes on."""
    done = subprocess.run([sys.executable, "-c", _FAILS], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"]
