"""Reading commands in separate processes import no module that takes longer to load than to answer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.files.export_files import ID

from cdc_platform.server.code_server import PRELOADED

HEAVY = ("pandas", "pandera", "pyspark", "py4j", "dagster", "duckdb", "scipy", "matplotlib", "cassandra")
_PROGRAM = """
import json, sys
from cdc_platform.__main__ import main
try:
    main()
finally:
    print(json.dumps(sorted(name for name in %r if name in sys.modules)), file=sys.stderr)
"""


@pytest.mark.parametrize(
    "command",
    [
        ("status",),
        ("generations",),
        ("streams", ID),
        ("ring",),
        ("diff", ID, ID),
        ("explain", "--token", "42"),
        ("expire", "--dry-run"),
        ("tables",),
        ("switch", "show"),
        ("consumers",),
        ("bootstrap", "--help"),
        ("repair", "--dry-run"),
    ],
    ids=" ".join,
)
def test_read_commands_import_no_heavy_modules(seeded_home: Path, command: tuple[str, ...]) -> None:
    """pyarrow looks for pandas at its first array; the program makes it find none."""
    program = [sys.executable, "-c", _PROGRAM % (HEAVY,), "--home", str(seeded_home), *command]
    ran = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode in (0, 1), ran.stderr
    assert json.loads(ran.stderr.splitlines()[-1]) == []


def test_pandas_can_be_imported_explicitly(seeded_home: Path) -> None:
    """`check` uses pandera with pandas frames in a process whose pyarrow does without pandas."""
    program = [sys.executable, "-c", _PROGRAM % (HEAVY,), "--home", str(seeded_home), "check"]
    ran = subprocess.run(program, capture_output=True, text=True, timeout=240, check=False)
    assert "Traceback" not in ran.stderr
    assert "pandas" in json.loads(ran.stderr.splitlines()[-1])


def test_the_long_running_process_is_light() -> None:
    """The process of `up`, which starts and watches others and has no rows itself, imports no Arrow either."""
    modules = "cdc_platform.cli.up, cdc_platform.spark.session, cdc_platform.server.services, cdc_platform.storage"
    heavy = (*HEAVY, "numpy", "pyarrow", "deltalake", "obstore")
    program = f"import sys, json, {modules}; print(json.dumps([name for name in {heavy!r} if name in sys.modules]))"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(ran.stdout) == []


@pytest.mark.long("a process that imports all that a run does")
def test_runs_find_check_and_plot_modules_preloaded() -> None:
    """The single-threaded parent process has them; it lacks Spark's client, which few runs need."""
    names = ("pandera", "matplotlib", "pyspark.sql.connect.session")
    program = (
        f"import sys, json, threading, {PRELOADED}\n"
        f"print(json.dumps([threading.active_count(), *(name for name in {names!r} if name in sys.modules)]))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(ran.stdout.splitlines()[-1]) == [1, "pandera", "matplotlib"]
