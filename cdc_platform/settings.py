"""What can be set about a platform: delays, leeway, acceptance policy.

One file, `<home>/settings.toml`; every key is optional, and the defaults are the design documents' values.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cdc_platform.errors import InputError

Policy = Literal["strict", "recent-past"]


class Settings(BaseModel):
    """Settings of one home; times in milliseconds."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    ring_delay_ms: int = Field(default=30_000, ge=0, le=3_600_000)
    """How long gossip is given to reach every node."""
    generation_leeway_ms: int = Field(default=5_000, ge=0, le=3_600_000)
    """How far into the future a write's timestamp may lie, and the last part of a generation's delay."""
    first_generation_delay: bool = True
    """Whether the first generation waits like the others (the documents) or operates at once (later versions)."""
    policy: Policy = "strict"
    """Which writes are accepted: `strict` is [T, C + leeway) of the documents, `recent-past` the rule of 2024."""


def load_settings(path: Path) -> Settings:
    """Read `settings.toml`; a missing file means the defaults.

    Raises:
        InputError: the file is no TOML, has an unknown key or a value out of bounds.
    """
    try:
        return Settings.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return Settings()
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid TOML: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{path}: {key}: {first['msg']}; remove the key for its default") from None
