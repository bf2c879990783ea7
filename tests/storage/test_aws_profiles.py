"""All code that connects to the store uses an AWS profile's key, region and endpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import run
from support.nodes import node_text
from support.store.profiles import INSTEAD_OF, PASSWORD, by_profile
from support.store.s3 import S3, SECRET


@pytest.fixture
def profiles(s3: S3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A user's folder with a profile `team`, whose endpoint requires its key; no other variable leads there."""
    environment = by_profile(s3, tmp_path / "user")
    for name in INSTEAD_OF:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return tmp_path / "user" / ".aws"


def test_home_works_with_a_profile(s3: S3, profiles: Path, tmp_path: Path) -> None:
    """Join, read-only commands, a table, a deep check and a copy take all missing settings from the profile."""
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


@pytest.mark.parametrize(
    ("profile", "due"),
    [
        ("nobody", "AWS_PROFILE is nobody, which cannot be used: The config profile (nobody) could not be found; "),
        ("half", "AWS_PROFILE is half, which cannot be used: Partial credentials found in shared-credentials-file"),
        ("bare", "AWS_PROFILE is bare, which has no credentials; "),
        ("halting", "AWS_PROFILE is halting, which cannot be used: Error when retrieving credentials from custom-p"),
        ("open", "the endpoint_url of AWS_PROFILE open contains a user, a password or a query"),
    ],
)
def test_unusable_profile_is_one_line(
    s3: S3, profiles: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, profile: str, due: str
) -> None:
    """The line has the profile, its fault and a remedy, and no secret."""
    monkeypatch.setenv("AWS_PROFILE", profile)
    (tmp_path / "node1.json").write_text(node_text(1, 4, 2), encoding="utf-8")
    for words in (("generations",), ("bootstrap", tmp_path / "node1.json", "--run")):
        done = run("--home", f"{s3.bucket()}/h", *words)
        assert (done.exit_code, done.stderr.count("\n"), due in done.stderr) == (2, 1, True), done
        assert (SECRET in done.stderr, PASSWORD in done.stderr) == (False, False)
    assert profiles.is_dir()


def test_profile_with_a_refused_key_is_one_line(s3: S3, profiles: Path) -> None:
    """As a control, the endpoint refuses another key."""
    (profiles / "credentials").write_text("[team]\naws_access_key_id = other\naws_secret_access_key = x\n")
    done = run("--home", f"{s3.bucket()}/h", "generations")
    assert (done.exit_code, done.stderr.count("\n"), "(403 Forbidden)" in done.stderr) == (2, 1, True), done
