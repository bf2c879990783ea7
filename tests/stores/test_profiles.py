"""A store by a profile of AWS's: its key, region and endpoint are taken by all that speaks to the store."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.command_line import run
from support.nodes import node_text
from support.store.s3 import KEY, S3, SECRET

from cdc_platform.lake.jars import CACHE_VARIABLE, cache_folder
from cdc_platform.lake.volume import IN_PROCESS_VARIABLE

_VARIABLES = ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION")
PASSWORD = "sekret"


@pytest.fixture
def profiles(s3: S3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A user's folder with a profile `team` that leads to a door which asks for its key; no other variable does."""
    folder = tmp_path / "user" / ".aws"
    folder.mkdir(parents=True)
    endpoint = s3.environment("keyed")["AWS_ENDPOINT_URL"]
    (folder / "config").write_text(
        f"[profile team]\nregion = us-east-1\nendpoint_url = {endpoint}\n\n[profile bare]\nregion = us-east-1\n\n"
        f"[profile open]\nendpoint_url = http://user:{PASSWORD}@127.0.0.1:1\n\n"
        "[profile halting]\ncredential_process = false\n",
        encoding="utf-8",
    )
    key, secret = f"aws_access_key_id = {KEY}\n", f"aws_secret_access_key = {SECRET}\n"
    (folder / "credentials").write_text(
        f"[team]\n{key}{secret}\n[half]\n{key}\n[open]\n{key}{secret}", encoding="utf-8"
    )
    for name in _VARIABLES:
        monkeypatch.delenv(name)
    monkeypatch.setenv(CACHE_VARIABLE, str(cache_folder()))  # else all that is kept would be made anew in that folder
    monkeypatch.setenv("HOME", str(folder.parent))
    monkeypatch.setenv("AWS_PROFILE", "team")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return folder


def test_a_home_lives_by_a_profile(s3: S3, profiles: Path, tmp_path: Path) -> None:
    """A join, look-ups, a table, every byte of it, and a copy: what is named by no variable is taken of the profile."""
    address = f"{s3.bucket()}/h"
    (tmp_path / "node1.json").write_text(node_text(1, 4, 2), encoding="utf-8")
    for words in (
        ("bootstrap", tmp_path / "node1.json", "--run"),
        ("generations",),
        ("sql", "SELECT count(*) FROM cdc_generation_timestamps"),
        ("tables", "add", "ks.t", "--ttl", "0"),
        ("check", "--deep"),
    ):
        done = run("--home", address, *words)
        assert (done.exit_code, done.stderr) == (0, ""), (words, done)
    assert run("home", "copy", address, str(tmp_path / "copy")).exit_code == 0
    assert profiles.is_dir()


@pytest.mark.spark
def test_tasks_of_spark_write_by_a_profile(s3: S3, profiles: Path, tmp_path: Path) -> None:
    """Spark's workers on this machine look the credentials up themselves."""
    address = f"{s3.bucket()}/h"
    (tmp_path / "node1.json").write_text(node_text(1, 4, 2), encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_REMOTE"}
    done = subprocess.run(
        [sys.executable, "-m", "cdc_platform", "--home", address, "bootstrap", tmp_path / "node1.json", "--run"],
        env=environment | {IN_PROCESS_VARIABLE: "0"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert run("--home", address, "check", "--deep").exit_code == 0
    assert profiles.is_dir()


@pytest.mark.parametrize(
    ("profile", "due"),
    [
        ("nobody", "AWS_PROFILE is nobody, which cannot be used: The config profile (nobody) could not be found; "),
        ("half", "AWS_PROFILE is half, which cannot be used: Partial credentials found in shared-credentials-file"),
        ("bare", "AWS_PROFILE is bare, which has no credentials; "),
        ("halting", "AWS_PROFILE is halting, which cannot be used: Error when retrieving credentials from custom-p"),
        ("open", "the endpoint_url of AWS_PROFILE open has a user, a password or a query in it"),
    ],
)
def test_a_profile_that_does_not_do_is_one_line(
    s3: S3, profiles: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, profile: str, due: str
) -> None:
    """Which one, what is wrong with it and what to do; no secret is told."""
    monkeypatch.setenv("AWS_PROFILE", profile)
    (tmp_path / "node1.json").write_text(node_text(1, 4, 2), encoding="utf-8")
    for words in (("generations",), ("bootstrap", tmp_path / "node1.json", "--run")):
        done = run("--home", f"{s3.bucket()}/h", *words)
        assert (done.exit_code, done.stderr.count("\n"), due in done.stderr) == (2, 1, True), done
        assert (SECRET in done.stderr, PASSWORD in done.stderr) == (False, False)
    assert profiles.is_dir()


def test_a_profile_whose_key_is_refused_is_one_line(s3: S3, profiles: Path) -> None:
    """The control of the door: by another key nothing goes."""
    (profiles / "credentials").write_text("[team]\naws_access_key_id = other\naws_secret_access_key = x\n")
    done = run("--home", f"{s3.bucket()}/h", "generations")
    assert (done.exit_code, done.stderr.count("\n"), "(403 Forbidden)" in done.stderr) == (2, 1, True), done
