"""The processes that `cdc-platform up` starts: Dagster's code server, its daemon and its UI.

Each entry point binds its lifetime to that `up` (`instance_lock`).
"""

from __future__ import annotations

from cdc_platform.exports import lazy_exports

__getattr__ = lazy_exports(
    __name__,
    {
        "addresses": (
            "LOOPBACK",
            "PublicUrl",
            "UiAddresses",
            "listen_on_loopback",
            "parse_public_url",
        ),
        "services": (
            "CODE_LOCATION",
            "UpServices",
            "generate_token",
        ),
    },
)
