"""In small homes, with work for one task, no command starts a JVM, from any entry point."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.nodes import node_text

from cdc_platform.delta import IN_PROCESS_VARIABLE


@pytest.fixture
def without_java(tmp_path: Path) -> dict[str, str]:
    """An environment in which no Java can be found."""
    (tmp_path / "empty").mkdir()
    names = ("JAVA_HOME", "SPARK_REMOTE", IN_PROCESS_VARIABLE)
    inherited = {name: value for name, value in os.environ.items() if name not in names}
    return inherited | {"PATH": str(tmp_path / "empty"), "JAVA_HOME": str(tmp_path / "empty")}


def command(home: Path, environment: dict[str, str], *args: str) -> subprocess.CompletedProcess[str]:
    """Run the program in a separate process."""
    words = [sys.executable, "-m", "cdc_platform", "--home", str(home), *args]
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.long("whole processes of the command line")
def test_a_small_join_and_its_check_need_no_java(tmp_path: Path, without_java: dict[str, str]) -> None:
    """Join, repair and check exit with 0 without Java; if Spark is requested, they name what is missing."""
    home, node = tmp_path / "home", tmp_path / "node.json"
    node.write_text(node_text(1), encoding="utf-8")
    for args in (("bootstrap", str(node), "--run"), ("repair", "--run", "--strict"), ("check",)):
        result = command(home, without_java, *args)
        assert (result.returncode, result.stderr) == (0, ""), args
    without_spark = command(home, without_java | {IN_PROCESS_VARIABLE: "0"}, "check")
    assert without_spark.returncode == 2
    assert "Java" in without_spark.stderr
