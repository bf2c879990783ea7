"""The alert channel: people learn of each problem once, with the command that helps, and learn when it is over.

Callers raise and resolve alerts by a key. `<home>/alerts.json` holds the open ones and what each destination has
received, so a kill loses none. A kill between sending and storing repeats that one message, which has the same `id`.
"""

from __future__ import annotations

from cdc_platform.exports import lazy_exports

__getattr__ = lazy_exports(
    __name__,
    {
        "channel": (
            "Alert",
            "deliver_alerts",
            "raise_alert",
            "read_open_alerts",
            "resolve_alert",
            "sync_alerts",
        ),
        "destinations": ("read_addresses",),
        "hooks": (
            "AlertQueue",
            "Hook",
            "forget_alerts",
            "send_alerts",
        ),
    },
)
