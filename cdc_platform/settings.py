"""Settings of a home: delays, leeway, acceptance policy.

One file, `<home>/settings.toml`. Every key is optional; the defaults are the design documents' values.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, fields
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, get_type_hints

from cdc_platform.clock import (
    DAY_MS,
    DEFAULT_LEEWAY_MS,
    DEFAULT_RING_DELAY_MS,
    HOUR_MS,
    MINUTE_MS,
    SECOND_MS,
    Milliseconds,
)
from cdc_platform.errors import InputError
from cdc_platform.redaction import REDACTED
from cdc_platform.storage import StoragePath

if TYPE_CHECKING:
    from pydantic import BaseModel

Policy = Literal["strict", "recent-past"]

# Settings of earlier versions that homes may still name.
_REMOVED_SETTINGS = ("generation_retry_ms",)

_log = logging.getLogger(__name__)


def _bounded_field(default: Any, **bounds: Any) -> Any:
    """A setting whose value in a file is held to bounds, which are those of pydantic's fields."""
    return field(default=default, metadata=bounds)


@dataclass(frozen=True)
class Settings:
    """Settings of one home; times in milliseconds. What a file says is judged by `load_settings`."""

    ring_delay_ms: Milliseconds = _bounded_field(DEFAULT_RING_DELAY_MS, ge=0, le=HOUR_MS)
    """How long gossip is given to reach every node."""
    generation_leeway_ms: Milliseconds = _bounded_field(DEFAULT_LEEWAY_MS, ge=0, le=HOUR_MS)
    """How far into the future a write's timestamp may lie, and the last part of a generation's delay."""
    first_generation_delay: bool = True
    """Whether the first generation waits like the others (the documents) or operates at once (later versions)."""
    policy: Policy = "strict"
    """Which writes are accepted: `strict` is [T, C + leeway) of the documents, `recent-past` the rule of 2024."""
    use_creation_time: bool = False
    """Whether the rewrite also leaves V1 generations out that were superseded before the oldest log was created."""
    clock_margin_ms: Milliseconds = _bounded_field(Milliseconds(0), ge=0, le=HOUR_MS)
    """How far other clocks may be off when the rewrite leaves V1 generations out; servers that have it take 10 s."""
    dont_rewrite_streams: bool = False
    """Keeps the rewrite of V1 tables from doing anything; an administrator has to see to them."""
    rewrite_attempts: int = _bounded_field(5, ge=1, le=1000)
    """How often the rewrite tries a read that fails before it leaves the node unmarked and the rest to the next run."""
    rewrite_retry_ms: Milliseconds = _bounded_field(SECOND_MS * 2, ge=0, le=HOUR_MS)
    """How long the rewrite waits before it tries a read again."""
    repair_strict: bool = False
    """Whether a repair also mends what is only a warning: sharding that is not the owners', misplaced streams."""
    expiry_grace_ms: Milliseconds = _bounded_field(HOUR_MS, ge=0, le=DAY_MS * 30)
    """How long an expired generation is kept for readers in the middle of it: their longest window at least."""
    expiry_skew_margin_ms: Milliseconds = _bounded_field(SECOND_MS * 10, ge=0, le=HOUR_MS)
    """How far the clocks of nodes may be off where it is told when the last row of a generation was written."""
    two_phase_switch: bool = False
    """Whether a generation is switched to in two phases, or (the documents) by gossip and a timestamp in good time."""
    switch_lease_ms: Milliseconds = _bounded_field(MINUTE_MS, ge=SECOND_MS, le=HOUR_MS)
    """How long, beyond the leeway, a participant of a switch goes on without knowing the decision."""
    switch_deadline_ms: Milliseconds = _bounded_field(SECOND_MS * 30, ge=SECOND_MS, le=HOUR_MS)
    """How long participants of a switch may take to answer; below the lease, or an abort comes too late for some."""
    switch_margin_ms: Milliseconds = _bounded_field(SECOND_MS * 5, ge=0, le=HOUR_MS)
    """How far clocks may be apart: a generation starts that much after the last lease. Below the lease."""
    spark_sleep_ms: Milliseconds = _bounded_field(MINUTE_MS * 15, ge=0, le=DAY_MS * 30)
    """How long Spark in `up` waits for a client before it is ended, until one comes; 0: it never sleeps."""
    cluster_hook: str = _bounded_field("", max_length=4096)
    """The program that Dagster's sensor of live clusters tells of changes, see docs/cluster.md; empty: none."""
    cluster_hook_ms: Milliseconds = _bounded_field(SECOND_MS * 10, ge=100, le=MINUTE_MS * 5)
    """How long a hook may take for one change before it is ended."""
    user_header: str = _bounded_field("", pattern=r"^[A-Za-z0-9-]{0,100}$")
    """The header in which the proxy before the UI (`up --public-url`) names the user; empty: clicks are nobody's."""


def redacted_settings(settings: Settings) -> dict[str, Any]:
    """The settings as others may see them: of a text that anybody could have written, only whether there is one."""
    hints = get_type_hints(Settings)
    values = {each.name: getattr(settings, each.name) for each in fields(settings)}
    return {name: (REDACTED if value else "") if hints[name] is str else value for name, value in values.items()}


def load_settings(path: StoragePath) -> Settings:
    """Read `settings.toml`; a missing file means the defaults. A setting that is no longer one is left out, and said.

    Raises:
        InputError: the file is no TOML, has an unknown key or a value out of bounds.
    """
    try:
        text = path.read()
    except FileNotFoundError:
        return Settings()
    # Not before there is a file: to import pydantic's models and make one takes as long as a look-up.
    import tomllib

    from pydantic import ValidationError

    try:
        read = tomllib.loads(text.decode())
        for name in _REMOVED_SETTINGS:
            if read.pop(name, None) is not None:
                _log.warning("%s: %s is no longer a setting and changes nothing; remove it", path, name)
        return Settings(**_settings_model().model_validate(read).model_dump())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid TOML: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{path}: {key}: {first['msg']}; remove the key for its default") from None


@cache
def _settings_model() -> type[BaseModel]:
    """The settings as a model of pydantic, which judges their types and bounds."""
    from pydantic import ConfigDict, Field, create_model

    hints = get_type_hints(Settings)
    declared: dict[str, Any] = {
        each.name: (hints[each.name], Field(default=each.default, **each.metadata)) for each in fields(Settings)
    }
    return create_model("Settings", __config__=ConfigDict(extra="forbid", strict=True), **declared)
