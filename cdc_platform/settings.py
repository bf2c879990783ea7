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
DagsterStorage = Literal["sqlite", "postgres"]

# Settings of earlier versions, which existing homes may still contain.
_REMOVED_SETTINGS = ("generation_retry_ms",)

_log = logging.getLogger(__name__)


def _bounded_field(default: Any, **bounds: Any) -> Any:
    """Return a setting whose value in a file must be within bounds, given as constraints of pydantic's fields."""
    return field(default=default, metadata=bounds)


AlertThreshold = Literal["error", "warning", "notice"]


@dataclass(frozen=True)
class AlertSettings:
    """The table `[alerts]`: who learns of problems. Addresses are secrets, so settings only name where they are."""

    command: str = _bounded_field("", max_length=4096)
    """The program that gets each alert as a JSON line on its standard input; empty: none."""
    webhook_env: str = _bounded_field("", pattern=r"^[A-Za-z0-9_]{0,200}$")
    """The environment variable with the URL to which each alert is POSTed as JSON; empty: none."""
    webhook_file: str = _bounded_field("", max_length=4096)
    """A file with that URL, readable by its owner alone; empty: none."""
    apprise_env: str = _bounded_field("", pattern=r"^[A-Za-z0-9_]{0,200}$")
    """The environment variable with Apprise's address of a service, such as slack:// or pagerduty://; empty: none."""
    apprise_file: str = _bounded_field("", max_length=4096)
    """A file with such addresses, one a line, readable by its owner alone; empty: none."""
    timeout_ms: Milliseconds = _bounded_field(SECOND_MS * 10, ge=100, le=MINUTE_MS)
    """How long a destination may take for one message."""
    level: AlertThreshold = "warning"
    """The least serious level that is sent: error, warning or notice."""


@dataclass(frozen=True)
class Settings:
    """Settings of one home; times in milliseconds. `load_settings` validates the values of a file."""

    ring_delay_ms: Milliseconds = _bounded_field(DEFAULT_RING_DELAY_MS, ge=0, le=HOUR_MS)
    """How long gossip may take to reach every node."""
    generation_leeway_ms: Milliseconds = _bounded_field(DEFAULT_LEEWAY_MS, ge=0, le=HOUR_MS)
    """How far into the future a write's timestamp may lie, and the last part of a generation's delay."""
    first_generation_delay: bool = True
    """Whether the first generation waits like the others (the documents) or operates at once (later versions)."""
    policy: Policy = "strict"
    """Which writes are accepted: `strict` is [T, C + leeway) of the documents, `recent-past` the rule of 2024."""
    use_creation_time: bool = False
    """Whether the rewrite also skips V1 generations that were superseded before the oldest log was created."""
    clock_margin_ms: Milliseconds = _bounded_field(Milliseconds(0), ge=0, le=HOUR_MS)
    """How far other clocks may be off when the rewrite skips V1 generations. Servers with this setting use 10 s."""
    dont_rewrite_streams: bool = False
    """Disables the rewrite of V1 tables. An administrator must then handle them."""
    rewrite_attempts: int = _bounded_field(5, ge=1, le=1000)
    """How often the rewrite tries a failing read before it leaves the node unmarked and the rest to the next run."""
    rewrite_retry_ms: Milliseconds = _bounded_field(SECOND_MS * 2, ge=0, le=HOUR_MS)
    """How long the rewrite waits before it repeats a read."""
    repair_strict: bool = False
    """Whether a repair also fixes mere warnings: sharding that differs from the owners', and misplaced streams."""
    repair_automatically: bool = False
    """Whether Dagster's sensor `needed_repairs` queues a repair that is needed, or only says so."""
    expiry_grace_ms: Milliseconds = _bounded_field(HOUR_MS, ge=0, le=DAY_MS * 30)
    """How long an expired generation stays for readers that are in the middle of it: at least their longest window."""
    expiry_skew_margin_ms: Milliseconds = _bounded_field(SECOND_MS * 10, ge=0, le=HOUR_MS)
    """The assumed clock skew of nodes when the time of a generation's last row is computed."""
    two_phase_switch: bool = False
    """Whether a generation switch takes two phases, or (the documents) relies on gossip and an early timestamp."""
    switch_lease_ms: Milliseconds = _bounded_field(MINUTE_MS, ge=SECOND_MS, le=HOUR_MS)
    """How long, beyond the leeway, a participant of a switch continues without knowing the decision."""
    switch_deadline_ms: Milliseconds = _bounded_field(SECOND_MS * 30, ge=SECOND_MS, le=HOUR_MS)
    """How long participants of a switch may take to answer. Below the lease, or an abort would reach some too late."""
    switch_margin_ms: Milliseconds = _bounded_field(SECOND_MS * 5, ge=0, le=HOUR_MS)
    """The assumed clock skew: a generation starts this long after the last lease. Below the lease."""
    spark_sleep_ms: Milliseconds = _bounded_field(MINUTE_MS * 15, ge=0, le=DAY_MS * 30)
    """How long Spark in `up` runs without a client before it is stopped until the next one; 0: it never sleeps."""
    cluster_hook: str = _bounded_field("", max_length=4096)
    """The program that Dagster's sensor of live clusters runs for each change, see docs/cluster.md; empty: none."""
    cluster_hook_ms: Milliseconds = _bounded_field(SECOND_MS * 10, ge=100, le=MINUTE_MS * 5)
    """How long the hook may run for one change before it is killed."""
    user_header: str = _bounded_field("", pattern=r"^[A-Za-z0-9-]{0,100}$")
    """The header in which the proxy before the UI (`up --public-url`) names the user; empty: users are unknown."""
    owners: tuple[str, ...] = _bounded_field(
        ("team:cdc",),
        min_length=1,
        max_length=20,
        item_pattern=r"^(team:[A-Za-z0-9_.-]{1,100}|[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,})$",
    )
    """The owners of all assets in Dagster: email addresses, or teams as `team:NAME`. Read when Dagster starts."""
    dagster_storage: DagsterStorage = "sqlite"
    """Where Dagster stores runs and events: files of the home, or Postgres. Read when Dagster starts."""
    inbox_warn_ms: Milliseconds = _bounded_field(MINUTE_MS * 15, ge=SECOND_MS, le=DAY_MS * 30)
    """How long the first node of the inbox may wait before its check warns."""
    inbox_error_ms: Milliseconds = _bounded_field(HOUR_MS, ge=SECOND_MS, le=DAY_MS * 30)
    """How long the first node of the inbox may wait before its check fails."""
    log_retention_ms: Milliseconds = _bounded_field(DAY_MS * 30, ge=DAY_MS, le=DAY_MS * 3660)
    """How long maintenance keeps the captured output of Dagster's runs."""
    log_max_bytes: int = _bounded_field(1 << 30, ge=1 << 20, le=1 << 40)
    """The most bytes of that output together, and of each log of a service of `up`."""
    dagster_retention_ms: Milliseconds = _bounded_field(DAY_MS * 90, ge=DAY_MS * 7, le=DAY_MS * 3660)
    """How long maintenance keeps ended runs of Dagster that no newest materialization or check result belongs to."""
    alerts: AlertSettings = AlertSettings()
    """The destinations of alerts, see docs/operating.md."""


def redacted_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings in a form fit for others. For a free text it shows only whether there is one."""
    return _redacted(settings)


def _redacted(settings: Settings | AlertSettings) -> dict[str, Any]:
    hints = get_type_hints(type(settings))
    shown: dict[str, Any] = {}
    for setting in fields(settings):
        value = getattr(settings, setting.name)
        if isinstance(value, AlertSettings):
            shown[setting.name] = _redacted(value)
        else:
            is_text = hints[setting.name] in (str, tuple[str, ...])
            shown[setting.name] = (REDACTED if value else "") if is_text else value
    return shown


def remove_old_settings(text: bytes) -> bytes:
    """Return the content of a settings file without the settings of earlier versions; equal bytes if it has none.

    Raises:
        InputError: the file is not TOML, or such a setting takes more than one line.
    """
    import tomllib

    try:
        before = tomllib.loads(text.decode())
        outdated = [name for name in _REMOVED_SETTINGS if name in before]
        lines = text.decode().splitlines(keepends=True)
        kept = [line for line in lines if line.partition("=")[0].strip() not in outdated]
        after = tomllib.loads("".join(kept))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"settings.toml is not valid TOML: {error}") from None
    if after != {name: value for name, value in before.items() if name not in outdated}:
        raise InputError(f"remove {', '.join(outdated)} from settings.toml, and run the command again")
    return "".join(kept).encode()


def load_settings(path: StoragePath) -> Settings:
    """Read `settings.toml`; a missing file means the defaults. Ignore removed settings with a warning.

    Raises:
        InputError: the file is not TOML, has an unknown key or a value out of bounds.
    """
    try:
        text = path.read()
    except FileNotFoundError:
        return Settings()
    # Imported only if there is a file: importing pydantic's models and building one takes as long as a look-up.
    import tomllib

    from pydantic import ValidationError

    try:
        read = tomllib.loads(text.decode())
        for name in _REMOVED_SETTINGS:
            if read.pop(name, None) is not None:
                _log.warning("%s: %s is no longer a setting and changes nothing; remove it", path, name)
        values: dict[str, Any] = _settings_model(Settings).model_validate(read).model_dump()
        alerts = AlertSettings(**values.pop("alerts"))
        return Settings(**values, alerts=alerts)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid TOML: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{path}: {key}: {first['msg']}; remove the key for its default") from None


@cache
def _settings_model(declaring: type[Settings | AlertSettings]) -> type[BaseModel]:
    """Return a class of settings as a pydantic model, which validates their types and bounds."""
    from typing import Annotated

    from pydantic import ConfigDict, Field, create_model

    hints = get_type_hints(declaring)
    declared: dict[str, Any] = {}
    for setting in fields(declaring):
        if hints[setting.name] is AlertSettings:
            model = _settings_model(AlertSettings)
            declared[setting.name] = (model, Field(default_factory=model))
        elif (pattern := setting.metadata.get("item_pattern")) is not None:
            # TOML has lists, which a strict model does not accept as tuples.
            bounds = {name: bound for name, bound in setting.metadata.items() if name != "item_pattern"}
            items = tuple[Annotated[str, Field(pattern=pattern)], ...]
            declared[setting.name] = (items, Field(default=setting.default, strict=False, **bounds))
        else:
            declared[setting.name] = (hints[setting.name], Field(default=setting.default, **setting.metadata))
    return create_model(declaring.__name__, __config__=ConfigDict(extra="forbid", strict=True), **declared)
