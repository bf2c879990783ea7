"""Settings of a home: what is read, what earlier versions had, what is refused."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from cdc_platform.clock import Milliseconds
from cdc_platform.errors import InputError
from cdc_platform.settings import Settings, load_settings
from cdc_platform.storage import parse_path


def test_a_home_of_an_earlier_version_still_opens(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A setting that is gone changes nothing and is named in a warning; the others of the file hold."""
    path = tmp_path / "settings.toml"
    path.write_text("generation_retry_ms = 5000\nring_delay_ms = 7\n", encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        assert load_settings(parse_path(path)) == Settings(ring_delay_ms=Milliseconds(7))
    assert caplog.messages == [f"{path}: generation_retry_ms is no longer a setting and changes nothing; remove it"]


def test_a_setting_that_never_was_is_refused(tmp_path: Path) -> None:
    """A misspelt setting would otherwise silently be the default."""
    path = tmp_path / "settings.toml"
    path.write_text("ring_delay = 7\n", encoding="utf-8")
    with pytest.raises(InputError, match="ring_delay: Extra inputs are not permitted; remove the key"):
        load_settings(parse_path(path))
