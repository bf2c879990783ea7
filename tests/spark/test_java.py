"""The installed Java is found, or one line names the required version and how to install it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc_platform.errors import EnvironmentProblem
from cdc_platform.spark import find_java, get_java_version
from cdc_platform.spark.jars import OLDEST_JAVA


def fake_java(home: Path, script: str) -> str:
    """Create a JAVA_HOME whose java is a shell script."""
    launcher = home / "bin" / "java"
    launcher.parent.mkdir(parents=True)
    launcher.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    launcher.chmod(0o755)
    return str(home)


def test_java_of_this_machine_is_found() -> None:
    """The tests need one; its version is the one that it prints."""
    java = find_java()
    assert java.major >= OLDEST_JAVA
    assert get_java_version().split(".")[0] == str(java.major)


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo 'openjdk version \"11.0.2\" 2019-01-15' >&2", "is version 11, Spark needs 17 or newer"),
        ("echo 'java version \"1.8.0_312\"' >&2", "is version 8"),
        ("echo hello", "is version unknown"),
        ("exit 3", "does not run"),
    ],
)
def test_unsuitable_java_is_named_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, told: str
) -> None:
    """An old, unknown or broken Java is named, and the message says what to install."""
    monkeypatch.setenv("JAVA_HOME", fake_java(tmp_path / "jdk", script))
    with pytest.raises(EnvironmentProblem, match=f"{told}.*install OpenJDK 17"):
        find_java()


def test_missing_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither JAVA_HOME nor PATH has one."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentProblem, match=r"no Java found.*install OpenJDK 17"):
        find_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(EnvironmentProblem, match="does not run"):
        find_java()
