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
"""The key in a commit's `commitInfo` for the platform's CommitInfo, as JSON."""
UNKNOWN_USER = "unknown"
"""The user if an entry point has a request from somebody whose name it does not know."""


@dataclass(frozen=True)
class CommitAuthor:
    """The author of commits: `entry_point` (command line, Dagster), `command`, Dagster's `run`; empty if not set.

    `user` is the user of the entry point if it differs from the machine's user, or UNKNOWN_USER.
    """

    entry_point: str = ""
    command: str = ""
    run: str = ""
    user: str = ""


@dataclass(frozen=True, eq=False)
class CommitInfo:
    """The CommitInfo of a commit: its random `id`, author, numbers of consumers, and digests of the changed partitions.

    `user` is the author's or the machine's, `program` the platform's version; `digests` are those after the commit.
    `accepts` gives the reason for accepting each foreign commit, by version. `files` are the digests of the files, by
    path, of a commit that rewrites files without changing a row.
    """

    id: str
    author: CommitAuthor
    user: str
    program: str
    numbers: Mapping[str, int] = field(default_factory=dict)
    digests: Mapping[str, int] = field(default_factory=dict)
    accepts: Mapping[int, str] = field(default_factory=dict)
    files: Mapping[str, int] = field(default_factory=dict)

    def metadata(self) -> dict[str, str]:
        """Return the entries for the commit's metadata."""
        fields: dict[str, Any] = {
            "id": self.id,
            "door": self.author.entry_point,
            "command": self.author.command,
            "run": self.author.run,
            "user": self.user,
            "program": self.program,
            "numbers": dict(self.numbers),
            "digests": {name: f"{digest:032x}" for name, digest in self.digests.items()},
            "accepts": {str(version): because for version, because in self.accepts.items()},
            "files": {path: f"{digest:032x}" for path, digest in self.files.items()},
        }
        return {COMMIT_INFO_KEY: json.dumps({name: value for name, value in fields.items() if value})}


_block_author: ContextVar[CommitAuthor | None] = ContextVar("commit author", default=None)


def commit_as(author: CommitAuthor) -> AbstractContextManager[None]:
    """Set the author of a block's commits, in its thread."""
    return set_for_block(_block_author, author)


def new_commit_info(
    digests: Mapping[str, int] | None = None,
    numbers: Mapping[str, int] | None = None,
    accepts: Mapping[int, str] | None = None,
    files: Mapping[str, int] | None = None,
) -> CommitInfo:
    """Return a CommitInfo with a new ID for the next commit."""
    author = _block_author.get() or CommitAuthor()
    return CommitInfo(
        str(uuid.uuid4()),
        author,
        author.user or get_machine_user(),
        __version__,
        numbers or {},
        digests or {},
        accepts or {},
        files or {},
    )


def parse_commit_info(commit_info: Mapping[str, Any]) -> CommitInfo | None:
    """Return the CommitInfo in a commit's `commitInfo`; None if there is none that can be parsed."""
    try:
        fields = json.loads(commit_info[COMMIT_INFO_KEY])
        return CommitInfo(
            str(fields["id"]),
            CommitAuthor(*(str(fields.get(name, "")) for name in ("door", "command", "run"))),
            str(fields.get("user", "")),
            str(fields.get("program", "")),
            {str(name): int(number) for name, number in fields.get("numbers", {}).items()},
            {str(name): int(digest, 16) for name, digest in fields.get("digests", {}).items()},
            {int(version): str(because) for version, because in fields.get("accepts", {}).items()},
            {str(path): int(digest, 16) for path, digest in fields.get("files", {}).items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return None


@cache
def get_machine_user() -> str:
    """Return the name of the user that runs this process, or its number if it has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a number without a name, as in many containers
        return str(os.getuid())
