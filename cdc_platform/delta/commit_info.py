"""The platform's `CommitInfo` in every commit: its ID, author, program version, and digests of the changed partitions.

The entry point of a process names the author once, with `commit_as` for a block. No proof is required: the author is
a statement. Delta stores it in the commit's `commitInfo`. The module imports nothing heavy.
"""

from __future__ import annotations

import getpass
import json
import os
import uuid
from collections.abc import Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from cdc_platform import __version__
from cdc_platform.storage import set_for_block

COMMIT_INFO_KEY = "cdc_platform"
"""The name under which a commit's `commitInfo` has its envelope, as JSON."""
UNKNOWN_USER = "unknown"
"""The user where a door knows that somebody asked, and not who."""


@dataclass(frozen=True)
class CommitAuthor:
    """Who commits: a `door` (command line, Dagster), the `command` in it, Dagster's `run`; empty where nobody said.

    `user` is who asked the door, where that is another one than the user of the machine, or UNKNOWN.
    """

    door: str = ""
    command: str = ""
    run: str = ""
    user: str = ""


@dataclass(frozen=True, eq=False)
class CommitInfo:
    """One commit's: its random `id`, who made it, the numbers of consumers, and the digest of each slice it changed.

    `user` is the speaker's or the machine's, `program` the platform's version; `digests` are those after the commit,
    see `digests`. `accepts` says of foreign commits, by version, why they are taken as they are.
    """

    id: str
    speaker: CommitAuthor
    user: str
    program: str
    numbers: Mapping[str, int] = field(default_factory=dict)
    digests: Mapping[str, int] = field(default_factory=dict)
    accepts: Mapping[int, str] = field(default_factory=dict)

    def metadata(self) -> dict[str, str]:
        """What goes into the commit."""
        said: dict[str, Any] = {
            "id": self.id,
            "door": self.speaker.door,
            "command": self.speaker.command,
            "run": self.speaker.run,
            "user": self.user,
            "program": self.program,
            "numbers": dict(self.numbers),
            "digests": {name: f"{digest:032x}" for name, digest in self.digests.items()},
            "accepts": {str(version): because for version, because in self.accepts.items()},
        }
        return {COMMIT_INFO_KEY: json.dumps({name: value for name, value in said.items() if value})}


_process_author = CommitAuthor()
_block_author: ContextVar[CommitAuthor | None] = ContextVar("speaker", default=None)


def set_process_author(speaker: CommitAuthor) -> None:
    """Say for whom this process commits, wherever no block says something else."""
    global _process_author
    _process_author = speaker


def commit_as(speaker: CommitAuthor) -> AbstractContextManager[None]:
    """Say for whom a block commits, in its thread."""
    return set_for_block(_block_author, speaker)


def new_commit_info(
    digests: Mapping[str, int] | None = None,
    numbers: Mapping[str, int] | None = None,
    accepts: Mapping[int, str] | None = None,
) -> CommitInfo:
    """The envelope of the next commit: one that no other commit has."""
    speaker = _block_author.get() or _process_author
    return CommitInfo(
        str(uuid.uuid4()),
        speaker,
        speaker.user or _get_machine_user(),
        __version__,
        numbers or {},
        digests or {},
        accepts or {},
    )


def parse_commit_info(commit_info: Mapping[str, Any]) -> CommitInfo | None:
    """The envelope in a commit's `commitInfo`; None where it has none that can be read."""
    try:
        said = json.loads(commit_info[COMMIT_INFO_KEY])
        return CommitInfo(
            str(said["id"]),
            CommitAuthor(*(str(said.get(name, "")) for name in ("door", "command", "run"))),
            str(said.get("user", "")),
            str(said.get("program", "")),
            {str(name): int(number) for name, number in said.get("numbers", {}).items()},
            {str(name): int(digest, 16) for name, digest in said.get("digests", {}).items()},
            {int(version): str(because) for version, because in said.get("accepts", {}).items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return None


@cache
def _get_machine_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a number without a name, as in many containers
        return str(os.getuid())
