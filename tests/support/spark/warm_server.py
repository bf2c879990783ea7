"""Start the one Connect server of the tests, with pandera's validation disabled in its and its tasks' environment."""

from __future__ import annotations

import pytest

from cdc_platform.spark import ConnectServer

VALIDATION_OFF = {"PANDERA_VALIDATION_ENABLED": "False", "PANDERA_VALIDATION_DEPTH": "SCHEMA_ONLY"}
"""Variables that would disable pandera's validation for a whole process; the platform validates all the same."""


def warm(server: ConnectServer) -> ConnectServer:
    """Return the server, started if it does not run."""
    if server.pid is None:
        with pytest.MonkeyPatch.context() as patched:
            for name, value in VALIDATION_OFF.items():
                patched.setenv(name, value)
            server.start()
    return server
