"""How the one Connect server of the tests is started: validation is switched off in its environment, and its tasks'."""

from __future__ import annotations

import pytest

from cdc_platform.spark import ConnectServer

VALIDATION_OFF = {"PANDERA_VALIDATION_ENABLED": "False", "PANDERA_VALIDATION_DEPTH": "SCHEMA_ONLY"}
"""What would switch pandera's validation off for a whole process; the platform judges all the same."""


def warm(server: ConnectServer) -> ConnectServer:
    """The server, started where it does not run."""
    if server.pid is None:
        with pytest.MonkeyPatch.context() as patched:
            for name, value in VALIDATION_OFF.items():
                patched.setenv(name, value)
            server.start()
    return server
