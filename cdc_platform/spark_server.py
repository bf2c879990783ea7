"""The file with the address and token of the Connect server of `cdc-platform up`, and the request to wake it.

Its lines are shell variables. While the server sleeps, the file names only its own path. A command then requests the
server and waits until the file is complete.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cdc_platform.storage import atomic

REMOTE_VARIABLE = "SPARK_REMOTE"
TOKEN_VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"
"""Spark's own names for the address of a Connect server and for the token that it requires."""
SERVER_VARIABLE = "CDC_PLATFORM_SPARK_SERVER"
"""The path of such a file. `cdc-platform up` restarts a server that has died, and wakes a sleeping one."""


def list_variables_to_unset() -> str:
    """Return, in words, the variables that direct this process to a server. Without them it creates its own session."""
    return " and ".join(name for name in (REMOTE_VARIABLE, SERVER_VARIABLE) if os.environ.get(name)) or REMOTE_VARIABLE


@dataclass(frozen=True)
class ServerFile:
    """The file at `path`, which only its owner can read."""

    path: Path

    def publish(self, environment: Mapping[str, str]) -> None:
        """Publish the running server's address: the environment variables of a client."""
        self._write({**environment, SERVER_VARIABLE: str(self.path)})

    def withdraw(self) -> None:
        """Publish that no server is available now."""
        self._write({SERVER_VARIABLE: str(self.path)})

    def read(self) -> dict[str, str]:
        """Return the environment variables that a client needs.

        Raises:
            FileNotFoundError: no `up` has written the file yet.
            ConnectionRefusedError: the server sleeps or is starting.
        """
        lines = self.path.read_text(encoding="utf-8").splitlines()
        variables = dict(line.split("=", 1) for line in lines if "=" in line)
        if REMOTE_VARIABLE not in variables:
            raise ConnectionRefusedError(f"no server answers by {self.path} now")
        return variables

    def request(self) -> None:
        """Request the server before looking it up, so that it does not fall asleep, or wakes.

        Raises:
            FileNotFoundError: there is no `up` that could run the server.
        """
        if not self.path.exists():
            raise FileNotFoundError(f"no cdc-platform up has written {self.path}")
        self._request_file.touch(mode=atomic.OWNER_ONLY_MODE)

    def last_request(self) -> int:
        """Return the time of the last request, as a number that grows with each one; 0 without one."""
        try:
            return self._request_file.stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    @property
    def _request_file(self) -> Path:
        return self.path.with_name("spark.wanted")

    def _write(self, variables: Mapping[str, str]) -> None:
        text = "".join(f"{name}={value}\n" for name, value in variables.items())
        atomic.write_text_atomically(self.path, text, mode=atomic.OWNER_ONLY_MODE)
