"""Settings of a home: valid ones, settings of earlier versions, and refused ones."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from cdc_platform.clock import Milliseconds
from cdc_platform.errors import InputError
from cdc_platform.settings import Settings, load_settings
from cdc_platform.storage import parse_path


def test_a_home_of_an_earlier_version_still_opens(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A removed setting changes nothing and causes a warning; the file's other settings apply."""
    path = tmp_path / "settings.toml"
    path.write_text("generation_retry_ms = 5000\nring_delay_ms = 7\n", encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        assert load_settings(parse_path(path)) == Settings(ring_delay_ms=Milliseconds(7))
    assert caplog.messages == [f"{path}: generation_retry_ms is no longer a setting and changes nothing; remove it"]


def test_unknown_setting_is_refused(tmp_path: Path) -> None:
    """An unknown key is refused, since a misspelt setting would otherwise silently be the default."""
    path = tmp_path / "settings.toml"
    path.write_text("ring_delay = 7\n", encoding="utf-8")
    with pytest.raises(InputError, match="ring_delay: Extra inputs are not permitted; remove the key"):
        load_settings(parse_path(path))


def test_owners_are_teams_and_addresses(tmp_path: Path) -> None:
    """A list of teams and addresses is read; anything else, also an empty list, is refused by position and key."""
    path = tmp_path / "settings.toml"
    path.write_text('owners = ["team:data-platform", "ada@example.com"]\n', encoding="utf-8")
    assert load_settings(parse_path(path)).owners == ("team:data-platform", "ada@example.com")
    for wrong, says in (
        ('["ada"]', "owners.0: String should match pattern"),
        ('["team:a", "team:"]', "owners.1: String should match pattern"),
        ("[]", "owners: Tuple should have at least 1 item"),
        ('"team:a"', "owners: Input should be a valid tuple"),
        ("[1]", "owners.0: Input should be a valid string"),
    ):
        path.write_text(f"owners = {wrong}\n", encoding="utf-8")
        with pytest.raises(InputError, match=re.escape(f"{path}: {says}")):
            load_settings(parse_path(path))
