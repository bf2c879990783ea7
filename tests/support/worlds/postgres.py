"""A Postgres server on loopback, in a temporary folder, for Dagster's storage."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from pathlib import Path

import pytest
from support.ports import free_ports

from cdc_platform.dagster_home import POSTGRES_VARIABLES
from cdc_platform.server import LOOPBACK

USER, PASSWORD = "dagster", "a-password-of-a-test"
_UNPRIVILEGED = ("postgres", "nobody")


def find_program(name: str) -> Path | None:
    """Return a program of Postgres: from PATH, or from the newest version of Debian's packages."""
    if (program := shutil.which(name)) is not None:
        return Path(program)
    versions = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3]))
    return versions[-1] if versions else None


def _as_user() -> list[str]:
    """Return the command that runs a program as an ordinary user. Postgres refuses to run as root."""
    if os.geteuid() != 0:
        return []
    users = {entry.pw_name: entry for entry in pwd.getpwall()}
    entry = next(users[name] for name in _UNPRIVILEGED if name in users)
    return ["setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups"]


class Postgres:
    """One server. It can be stopped and started again with its data, at the same port."""

    def __init__(self, folder: Path) -> None:
        programs = {name: find_program(name) for name in ("initdb", "pg_ctl", "psql")}
        if missing := [name for name, path in programs.items() if path is None]:
            pytest.skip(f"no Postgres server: {', '.join(missing)} not found; Debian: apt-get install postgresql")
        self._programs = {name: str(path) for name, path in programs.items()}
        self._data, self._folder = folder / "data", folder
        (self.port,) = free_ports(1)
        folder.chmod(0o755)
        self._data.mkdir(mode=0o700)
        password = folder / "password"
        password.write_text(PASSWORD, encoding="utf-8")
        if prefix := _as_user():
            user, group = (int(word.partition("=")[2]) for word in prefix[1:3])
            for path in (self._data, password):
                os.chown(path, user, group)
        options = ["-U", USER, "--auth=scram-sha-256", f"--pwfile={password}", "--no-sync", "-E", "UTF8"]
        self._run("initdb", "-D", self._data, *options)
        password.unlink()
        settings = {
            "listen_addresses": f"'{LOOPBACK}'",
            "port": self.port,
            "unix_socket_directories": "''",
            "fsync": "off",
            "max_connections": 200,
        }
        with (self._data / "postgresql.conf").open("a", encoding="utf-8") as file:
            file.writelines(f"{name} = {value}\n" for name, value in settings.items())

    def _run(self, program: str, *arguments: str | Path) -> None:
        subprocess.run(
            [*_as_user(), self._programs[program], *map(str, arguments)],
            cwd="/",
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            timeout=120,
        )

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        self._run("pg_ctl", "-D", self._data, "-w", "-t", "60", "-l", self._data / "log", "start")

    def stop(self) -> None:
        """End the server and all connections at once, as a crash of its machine does."""
        self._run("pg_ctl", "-D", self._data, "-w", "-t", "60", "-m", "immediate", "stop")

    def create_database(self, name: str) -> dict[str, str]:
        """Create a database and return the environment variables with its address."""
        options = ["-h", LOOPBACK, "-p", str(self.port), "-U", USER, "-d", "postgres", "-q"]
        subprocess.run(
            [self._programs["psql"], *options, "-c", f"CREATE DATABASE {name}"],
            check=True,
            env=os.environ | {"PGPASSWORD": PASSWORD},
            stdin=subprocess.DEVNULL,
            timeout=60,
        )
        values = (LOOPBACK, str(self.port), USER, PASSWORD, name)
        return dict(zip(POSTGRES_VARIABLES, values, strict=True))
