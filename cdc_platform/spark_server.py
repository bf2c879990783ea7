"""The file with the address and token of the Connect server of `cdc-platform up`, and the request to wake it.

Its lines are shell variables. A sleeping server leaves a file that names only itself; a command then requests the
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
"""Spark's own names of where a Connect server is and of the token that it wants."""
SERVER_VARIABLE = "CDC_PLATFORM_SPARK_SERVER"
"""The path of such a file: `cdc-platform up` starts a server anew if it has died, and wakes one that sleeps."""


def list_variables_to_unset() -> str:
    """The variables by which this process goes to a server, in words; without them it has a session of its own."""
    return " and ".join(name for name in (REMOTE_VARIABLE, SERVER_VARIABLE) if os.environ.get(name)) or REMOTE_VARIABLE


@dataclass(frozen=True)
class ServerFile:
    """The file at `path`, which is its owner's alone."""

    path: Path

    def tell(self, environment: Mapping[str, str]) -> None:
        """Tell where the server is that answers now: what a client has in its environment."""
        self._write({**environment, SERVER_VARIABLE: str(self.path)})

    def withdraw(self) -> None:
        """Tell that no server answers now."""
        self._write({SERVER_VARIABLE: str(self.path)})

    def read(self) -> dict[str, str]:
        """What a client needs in its environment.

        Raises:
            FileNotFoundError: nobody has written there yet.
            ConnectionRefusedError: the server sleeps, or is being started.
        """
        lines = self.path.read_text(encoding="utf-8").splitlines()
        told = dict(line.split("=", 1) for line in lines if "=" in line)
        if REMOTE_VARIABLE not in told:
            raise ConnectionRefusedError(f"no server answers by {self.path} now")
        return told

    def want(self) -> None:
        """Say that the server is wanted, before it is looked for: it does not fall asleep then, or wakes.

        Raises:
            FileNotFoundError: there is no `up` whose server it could be.
        """
        if not self.path.exists():
            raise FileNotFoundError(f"no cdc-platform up has written {self.path}")
        self._wish.touch(mode=atomic.OWNER_ONLY_MODE)

    def wanted(self) -> int:
        """When it was last wanted: a number that grows with each wish; 0 without one."""
        try:
            return self._wish.stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    @property
    def _wish(self) -> Path:
        return self.path.with_name("spark.wanted")

    def _write(self, variables: Mapping[str, str]) -> None:
        text = "".join(f"{name}={value}\n" for name, value in variables.items())
        atomic.write_text_atomically(self.path, text, mode=atomic.OWNER_ONLY_MODE)
