"""The output of `doctor` on a sound machine, and on one with a simulated deficiency."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cdc_platform.cli import doctor as module
from cdc_platform.cli import program
from cdc_platform.cli.doctor import check_machine
from cdc_platform.home_location import open_home_location
from cdc_platform.preflight import PreflightResult

CHECKS = ["Python", "packages", "Java", "JARs", "home", "free disk", "memory"]


def run(home: Path, *arguments: str) -> Result:
    """Run `cdc-platform doctor` on a home."""
    return CliRunner().invoke(program, ["--home", str(home), "doctor", *arguments])


def find_results(home: Path) -> dict[str, PreflightResult]:
    """Return the results by name."""
    return {finding.check: finding for finding in check_machine(home)}


def test_a_sound_machine_passes_every_check(tmp_path: Path) -> None:
    """The machine that runs these tests passes every check, and the exit code is 0."""
    answer = run(tmp_path / "home")
    assert answer.exit_code == 0, answer.output
    assert [line.split()[0] for line in answer.stdout.splitlines()] == ["✓"] * len(CHECKS)


def test_json_has_every_check_once(tmp_path: Path) -> None:
    """The JSON has the results as one document."""
    document = json.loads(run(tmp_path / "home", "--json").stdout)["checks"]
    assert [entry["check"] for entry in document] == CHECKS
    assert all(entry["ok"] and entry["remedy"] is None and entry["message"] for entry in document)


def test_doctor_creates_no_home(tmp_path: Path) -> None:
    """Doctor only reads."""
    run(tmp_path / "home")
    assert list(tmp_path.iterdir()) == []


def test_an_existing_home_is_opened(tmp_path: Path) -> None:
    """The message for an existing home names its acceptance policy."""
    open_home_location(tmp_path).path.joinpath("settings.toml").write_text('policy = "recent-past"\n', encoding="utf-8")
    assert find_results(tmp_path)["home"].message.endswith("acceptance policy recent-past")


def test_missing_java_is_reported_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Java one line has the remedy, and the exit code is 1."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    answer = run(tmp_path / "home")
    assert answer.exit_code == 1
    lines = answer.stdout.splitlines()
    (wrong,) = [number for number, line in enumerate(lines) if line.startswith("✗")]
    assert "Java" in lines[wrong]
    assert "remedy:" in lines[wrong + 1]
    assert "openjdk-17" in lines[wrong + 1]


def test_old_java_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark 4 does not run on Java 11, and doctor reports it before Spark does."""
    java_program = tmp_path / "bin" / "java"
    java_program.parent.mkdir()
    java_program.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n", encoding="utf-8")
    java_program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    finding = find_results(tmp_path / "home")["Java"]
    assert not finding.ok
    assert "version 11" in (finding.remedy or "")


def test_other_package_versions_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the installed version of a package and the expected one."""
    installed_version = module.metadata.version
    monkeypatch.setattr(
        module.metadata, "version", lambda name: "9.9.9" if name == "deltalake" else installed_version(name)
    )
    finding = find_results(tmp_path)["packages"]
    assert not finding.ok
    assert finding.message == "deltalake is 9.9.9, expected ==1.6.6"
    assert finding.remedy is not None
    assert "make .venv" in finding.remedy


def test_jars_to_be_fetched_are_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a new machine the first start of Spark fetches the JARs, and doctor says so."""
    monkeypatch.setenv("CDC_PLATFORM_CACHE", str(tmp_path / "cache"))
    finding = find_results(tmp_path)["JARs"]
    assert finding.ok
    assert "2 of 2 to be fetched" in finding.message
    assert not (tmp_path / "cache").exists()


def test_a_damaged_jar_counts_as_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A JAR whose content differs from the pinned one counts as missing."""
    from cdc_platform.spark import DELTA_JARS

    monkeypatch.setenv("CDC_PLATFORM_CACHE", str(tmp_path))
    (tmp_path / "jars").mkdir()
    for jar in DELTA_JARS:
        (tmp_path / "jars" / jar.file_name).write_bytes(b"cut off")
    assert "2 of 2 to be fetched" in find_results(tmp_path)["JARs"].message


@pytest.mark.parametrize(
    ("marker", "told"),
    [('{"layout": 999}', "written by a newer version"), ("{", "damaged")],
    ids=["newer", "damaged"],
)
def test_an_unusable_home_is_reported_with_a_remedy(tmp_path: Path, marker: str, told: str) -> None:
    """A home of a newer version, or a damaged one, is refused with a remedy."""
    (tmp_path / "platform.json").write_text(marker, encoding="utf-8")
    finding = find_results(tmp_path)["home"]
    assert not finding.ok
    assert told in (finding.remedy or "")
    assert "--home" in (finding.remedy or "")


def test_invalid_settings_are_named(tmp_path: Path) -> None:
    """Doctor finds settings that every command would refuse."""
    open_home_location(tmp_path).path.joinpath("settings.toml").write_text("ring_delay_ms = -1\n", encoding="utf-8")
    finding = find_results(tmp_path)["home"]
    assert not finding.ok
    assert "ring_delay_ms" in (finding.remedy or "")


def test_too_little_disk_and_memory_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the available and the required amount."""
    monkeypatch.setattr(module, "MIN_FREE_DISK", 1 << 60)
    monkeypatch.setattr(module, "MIN_MEMORY", 1 << 60)
    findings = find_results(tmp_path)
    for check in ("free disk", "memory"):
        assert not findings[check].ok
        assert "are needed" in findings[check].message
