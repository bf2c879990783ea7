"""Named points at which tests kill the process, to prove that a second start ends where the first would have.

Set `CDC_PLATFORM_KILL_AT=<name>` and the process dies there by SIGKILL, with no clean-up, as in a power cut. Unset,
a point costs one dictionary look-up.
"""

from __future__ import annotations

import os
import signal

VARIABLE = "CDC_PLATFORM_KILL_AT"

AFTER_DESCRIPTION = "after-description"
AFTER_V2_INSERT = "after-v2-insert"
AFTER_TIMESTAMP = "after-timestamp"
AFTER_STREAMS = "after-streams"
AFTER_PUBLISHED = "after-published"
JOIN = (AFTER_DESCRIPTION, AFTER_V2_INSERT, AFTER_TIMESTAMP, AFTER_STREAMS, AFTER_PUBLISHED)
AFTER_V1_TIMESTAMP = "after-v1-timestamp"
AFTER_V1_INSERT = "after-v1-insert"
V1_JOIN = (AFTER_V1_TIMESTAMP, AFTER_V1_INSERT)
AFTER_REWRITTEN_STREAMS = "after-rewritten-streams"
AFTER_REWRITTEN_TIMESTAMP = "after-rewritten-timestamp"
BEFORE_MARKER = "before-marker"
REWRITE = (AFTER_REWRITTEN_STREAMS, AFTER_REWRITTEN_TIMESTAMP, BEFORE_MARKER)
AFTER_TABLE_CHANGE = "after-table-change"
AFTER_EXPIRED_MARK = "after-expired-mark"
AFTER_REMOVAL_NOTE = "after-removal-note"
AFTER_TIMESTAMP_REMOVAL = "after-timestamp-removal"
AFTER_STREAMS_REMOVAL = "after-streams-removal"
AFTER_DESCRIPTIONS_REMOVAL = "after-descriptions-removal"
EXPIRY = (
    AFTER_EXPIRED_MARK,
    AFTER_REMOVAL_NOTE,
    AFTER_TIMESTAMP_REMOVAL,
    AFTER_STREAMS_REMOVAL,
    AFTER_DESCRIPTIONS_REMOVAL,
)
AFTER_TABLET_DECISION = "after-tablet-decision"
AFTER_TABLET_STREAMS = "after-tablet-streams"
AFTER_TABLET_DROP = "after-tablet-drop"
AFTER_TABLET_TIMESTAMPS_REMOVED = "after-tablet-timestamps-removed"
AFTER_TABLET_STREAMS_REMOVED = "after-tablet-streams-removed"
TABLETS = (
    AFTER_TABLET_DECISION,
    AFTER_TABLET_STREAMS,
    AFTER_TABLET_DROP,
    AFTER_TABLET_TIMESTAMPS_REMOVED,
    AFTER_TABLET_STREAMS_REMOVED,
)
AFTER_SWITCH_PREPARED = "after-switch-prepared"
AFTER_SWITCH_PROMISE = "after-switch-promise"
AFTER_SWITCH_ACKNOWLEDGED = "after-switch-acknowledged"
AFTER_SWITCH_DECISION = "after-switch-decision"
AFTER_SWITCH_LEDGER = "after-switch-ledger"
SWITCH = (
    AFTER_SWITCH_PREPARED,
    AFTER_SWITCH_PROMISE,
    AFTER_SWITCH_ACKNOWLEDGED,
    AFTER_SWITCH_DECISION,
    AFTER_SWITCH_LEDGER,
)
AFTER_SCRIPT_NOTED = "after-script-noted"
AFTER_SCRIPT_TABLES = "after-script-tables"
AFTER_SCRIPT_ROWS = "after-script-rows"
AFTER_SCRIPT_STATE = "after-script-state"
SCRIPT = (AFTER_SCRIPT_NOTED, AFTER_SCRIPT_TABLES, AFTER_SCRIPT_ROWS, AFTER_SCRIPT_STATE)
BEFORE_SINK = "before-sink"
AFTER_SINK = "after-sink"
AFTER_PART = "after-part"
CONSUME = (BEFORE_SINK, AFTER_SINK)
AFTER_HOUR_NOTED = "after-hour-noted"
AFTER_COPY = "after-copy"
AFTER_CURRENT_STATE = "after-current-state"
BEFORE_CURRENT_MARK = "before-current-mark"
CURRENT = (AFTER_COPY, AFTER_CURRENT_STATE, BEFORE_CURRENT_MARK)
HOURS = (*CONSUME, AFTER_HOUR_NOTED)
AFTER_STORE_TRIED = "after-store-tried"
NAMES = (
    *JOIN,
    *V1_JOIN,
    *REWRITE,
    AFTER_TABLE_CHANGE,
    *EXPIRY,
    *TABLETS,
    *SWITCH,
    *SCRIPT,
    *CONSUME,
    AFTER_PART,
    AFTER_HOUR_NOTED,
    *CURRENT,
    AFTER_STORE_TRIED,
)


def reached(name: str) -> None:
    """Kill this process if the environment names this point."""
    if os.environ.get(VARIABLE) == name:
        os.kill(os.getpid(), signal.SIGKILL)
