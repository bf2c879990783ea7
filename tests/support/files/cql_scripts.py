"""The time at which tests of scripts run, and the types of their fixtures."""

from __future__ import annotations

from collections.abc import Callable

from cdc_platform.cdclog import ScriptResult, StatementOutcome
from cdc_platform.clock import parse_time_us

SINCE = "2020-01-01T00:00:00Z"
NOW = "2020-11-26T12:00:00Z"
NOW_US = parse_time_us(NOW)

Rehearse = Callable[..., ScriptResult]
Accepted = Callable[..., list[StatementOutcome]]
