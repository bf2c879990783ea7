"""What Dagster's parts look at while nothing happens, less often than by themselves: a third of what an idle `up` took.

`up` ends all of them with the first that ends, so that none has to find out within a second that another one is new.
"""

from __future__ import annotations

WATCH_SECONDS = 5
FRESHNESS = {"FRESHNESS_DAEMON_INTERVAL_SECONDS": "300"}
"""Dagster's variable and how often it asks its database of each asset whether it is fresh: none here has a policy."""


def watch_seldom() -> None:
    """Look every five seconds, in this process, whether the code server is another one; Dagster looks every second."""
    from dagster._grpc import server_watcher

    server_watcher.WATCH_INTERVAL = WATCH_SECONDS  # pyrefly: ignore[bad-assignment]
