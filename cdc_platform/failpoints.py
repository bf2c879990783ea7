"""Named points at which tests kill the process to prove that a restart reaches the same result.

`CDC_PLATFORM_KILL_AT=<name>` kills the process at that point by SIGKILL. If it is unset, a point costs one dictionary
lookup.
"""

from __future__ import annotations

import os
import signal

KILL_AT_VARIABLE = "CDC_PLATFORM_KILL_AT"

AFTER_DESCRIPTION = "after-description"
AFTER_V2_INSERT = "after-v2-insert"
AFTER_TIMESTAMP = "after-timestamp"
AFTER_STREAMS = "after-streams"
AFTER_PUBLISHED = "after-published"
JOIN_POINTS = (AFTER_DESCRIPTION, AFTER_V2_INSERT, AFTER_TIMESTAMP, AFTER_STREAMS, AFTER_PUBLISHED)
AFTER_V1_TIMESTAMP = "after-v1-timestamp"
AFTER_V1_INSERT = "after-v1-insert"
V1_JOIN_POINTS = (AFTER_V1_TIMESTAMP, AFTER_V1_INSERT)
AFTER_REWRITTEN_STREAMS = "after-rewritten-streams"
AFTER_REWRITTEN_TIMESTAMP = "after-rewritten-timestamp"
BEFORE_MARKER = "before-marker"
REWRITE_POINTS = (AFTER_REWRITTEN_STREAMS, AFTER_REWRITTEN_TIMESTAMP, BEFORE_MARKER)
AFTER_TABLE_CHANGE = "after-table-change"
AFTER_EXPIRED_MARK = "after-expired-mark"
AFTER_REMOVAL_NOTE = "after-removal-note"
AFTER_TIMESTAMP_REMOVAL = "after-timestamp-removal"
AFTER_STREAMS_REMOVAL = "after-streams-removal"
AFTER_DESCRIPTIONS_REMOVAL = "after-descriptions-removal"
EXPIRY_POINTS = (
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
TABLET_POINTS = (
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
SWITCH_POINTS = (
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
SCRIPT_POINTS = (AFTER_SCRIPT_NOTED, AFTER_SCRIPT_TABLES, AFTER_SCRIPT_ROWS, AFTER_SCRIPT_STATE)
BEFORE_SINK = "before-sink"
AFTER_SINK = "after-sink"
AFTER_PART = "after-part"
CONSUME_POINTS = (BEFORE_SINK, AFTER_SINK)
AFTER_HOUR_NOTED = "after-hour-noted"
AFTER_COPY = "after-copy"
AFTER_CURRENT_STATE = "after-current-state"
BEFORE_CURRENT_MARK = "before-current-mark"
CURRENT_TABLE_POINTS = (AFTER_COPY, AFTER_CURRENT_STATE, BEFORE_CURRENT_MARK)
HOURLY_POINTS = (*CONSUME_POINTS, AFTER_HOUR_NOTED)
AFTER_STORE_TRIED = "after-store-tried"
AFTER_ALERT_STORED = "after-alert-stored"
AFTER_ALERT_SENT = "after-alert-sent"
ALERT_POINTS = (AFTER_ALERT_STORED, AFTER_ALERT_SENT)
BEFORE_FILES_REPLACED = "before-files-replaced"
AFTER_FILES_REPLACED = "after-files-replaced"
AFTER_CHECKPOINT = "after-checkpoint"
MAINTENANCE_POINTS = (BEFORE_FILES_REPLACED, AFTER_FILES_REPLACED, AFTER_CHECKPOINT)
ALL_POINTS = (
    *JOIN_POINTS,
    *V1_JOIN_POINTS,
    *REWRITE_POINTS,
    AFTER_TABLE_CHANGE,
    *EXPIRY_POINTS,
    *TABLET_POINTS,
    *SWITCH_POINTS,
    *SCRIPT_POINTS,
    *CONSUME_POINTS,
    AFTER_PART,
    AFTER_HOUR_NOTED,
    *CURRENT_TABLE_POINTS,
    AFTER_STORE_TRIED,
    *ALERT_POINTS,
    *MAINTENANCE_POINTS,
)


def kill_if_selected(name: str) -> None:
    """Kill this process if the environment names this point."""
    if os.environ.get(KILL_AT_VARIABLE) == name:
        os.kill(os.getpid(), signal.SIGKILL)
