"""Select tables of a cluster by patterns on `keyspace.table`, given as arguments or in a TOML file.

`*` stands for any characters, `?` for one, `[ab]` for one of several. Names are as the schema has them, without quotes,
and case counts.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from cdc_platform.cql import split_full_name
from cdc_platform.errors import InputError
from cdc_platform.storage import read_user_bytes

_MAX_FILE_BYTES = 1 << 20
_WILDCARDS = frozenset("*?[")
TableName = tuple[str, str]
"""Keyspace and name of a table."""


@dataclass(frozen=True)
class TableSelection:
    """The tables that match a pattern of `include` and none of `exclude`."""

    include: tuple[str, ...] = ("*",)
    exclude: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise InputError if a pattern can match no table."""
        for pattern in (*self.include, *self.exclude):
            if pattern != "*" and ("." not in pattern or not pattern.isprintable() or '"' in pattern):
                raise InputError(
                    f"{pattern!r} is no pattern for keyspace.table; write patterns such as shop.orders, shop.* or "
                    "*.orders, without quotes"
                )

    def matches(self, name: TableName) -> bool:
        """Return True if a table is selected."""
        text = ".".join(name)
        return _matches_any(text, self.include) and not _matches_any(text, self.exclude)

    def select(self, names: Iterable[TableName]) -> list[TableName]:
        """Return the selected tables, sorted."""
        return sorted(name for name in names if self.matches(name))

    def unmatched(self, names: Iterable[TableName]) -> list[str]:
        """Return the entries of `include` that match none of these tables."""
        texts = [".".join(name) for name in names]
        return [pattern for pattern in self.include if not any(fnmatchcase(text, pattern) for text in texts)]


def named_table(pattern: str) -> TableName | None:
    """Return the table that a pattern without wildcards names; None for other patterns."""
    return None if _WILDCARDS & set(pattern) else split_full_name(pattern)


class _SelectionFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    include: list[str] = ["*"]
    exclude: list[str] = []


def read_table_selection(path: Path) -> TableSelection:
    """Read a TOML file with the lists `include` (default: all tables) and `exclude`.

    Raises:
        NotFound: there is no such file.
        InputError: it cannot be read, is no TOML, has other keys or values, or has a malformed pattern.
    """
    content = read_user_bytes(path, _MAX_FILE_BYTES, f"table list {path}")
    try:
        chosen = _SelectionFile.model_validate(tomllib.loads(content.decode()))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError, ValidationError):
        raise InputError(
            f"table list {path} is invalid; it is TOML with include = [...] and exclude = [...], lists of patterns "
            'such as "shop.*"'
        ) from None
    try:
        return TableSelection(tuple(chosen.include), tuple(chosen.exclude))
    except InputError as error:
        raise InputError(f"table list {path}: {error}") from None


def _matches_any(text: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(text, pattern) for pattern in patterns)
