"""Names in CQL: validation, parsing, quoting and reserved words."""

from __future__ import annotations

import re

from cdc_platform.cql.alternator import KEYSPACE_PREFIX
from cdc_platform.errors import InputError

MAX_NAME_LENGTH = 192
"""The longest name of a keyspace, type or table, as in ScyllaDB since 2026 (48 before)."""
LOG_SUFFIX = "_scylla_cdc_log"
"""The suffix of the name of a CDC log, after its base table's name."""
_NAME_PATTERN = re.compile(r"\w+", re.ASCII)
_QUALIFIED_NAME_PATTERN = re.compile(
    r'("[\w.-]{1,218}"|[a-z]\w{0,217})\.("[\w.-]{1,207}"|[a-z]\w{0,206})', re.IGNORECASE | re.ASCII
)
_ALTERNATOR_NAME_PATTERN = re.compile(r"[\w.-]{3,207}", re.ASCII)
"""Names of Alternator tables. ScyllaDB allowed 222 characters and allows 192; the name of a log, with its suffix, has
at most 222.
"""
_DERIVED_NAME_PATTERN = re.compile(r"([_$]\w+|\.cells)?", re.ASCII)
"""How a name ends that is made from that of a table: of logs and their copies, of rebuilt tables, and of views."""


def is_valid_name(text: str, most: int = MAX_NAME_LENGTH) -> bool:
    """Return True if a keyspace or a table can have this name: letters, digits and underscores, at least one."""
    return len(text) <= most and _NAME_PATTERN.fullmatch(text) is not None


def is_alternator_table(keyspace: str, table: str) -> bool:
    """Return True if these are the names of an Alternator table: `alternator_NAME` and `NAME`.

    NAME may have capitals, hyphens and dots, by `alternator/executor_util.cc` of ScyllaDB.
    """
    return keyspace == f"{KEYSPACE_PREFIX}{table}" and _ALTERNATOR_NAME_PATTERN.fullmatch(table) is not None


def split_full_name(name: str) -> tuple[str, str]:
    """Return the keyspace and the table of `keyspace.table` without quotes; both are empty without a dot.

    Names of Alternator's tables may have dots themselves. The keyspace is then the one that belongs to the table, or to
    the log, copy or view whose name begins with that of the table.
    """
    keyspace, dot, table = name.partition(".")
    if not dot:
        return "", ""
    if name.startswith(KEYSPACE_PREFIX):
        found = [
            (not derived, len(base), name[:index], name[index + 1 :])
            for index, letter in enumerate(name)
            if letter == "."
            # The cells of a replica are in a hidden table, `.TABLE.cells`.
            and (rest := name[index + 1 :].removeprefix(".")).startswith(base := name[len(KEYSPACE_PREFIX) : index])
            and _DERIVED_NAME_PATTERN.fullmatch(derived := rest[len(base) :])
        ]
        if found:
            return max(found)[2:]
    return keyspace, table


def _is_alternator_keyspace_name(name: str) -> bool:
    return name.startswith(KEYSPACE_PREFIX) and is_alternator_table(name, name.removeprefix(KEYSPACE_PREFIX))


def check_name(name: str, what: str, most: int = MAX_NAME_LENGTH) -> None:
    """Refuse a name that a new keyspace, type, table or column (`what`) cannot have.

    `most` is the maximum length of a column's name.

    Raises:
        InputError: it is too long, or not valid for its kind.
    """
    if what == "column":
        if len(name) > most:
            raise InputError(f"a column name of {len(name)} characters; names have at most {most}")
    elif not is_valid_name(name) and not (what == "keyspace" and _is_alternator_keyspace_name(name)):
        raise InputError(f"{name[:60]!r} names no {what}: a name has 1 to {most} letters, digits and underscores")


def check_table_name(keyspace: str, table: str) -> None:
    """Refuse a name that a base table cannot have.

    Raises:
        InputError: the name is invalid.
    """
    for name in () if is_alternator_table(keyspace, table) else (keyspace, table):
        if not is_valid_name(name):
            raise InputError(
                f"{name!r} names no keyspace or table: a name has 1 to {MAX_NAME_LENGTH} letters, digits and "
                "underscores"
            )
    if table.endswith(LOG_SUFFIX):
        raise InputError(f"{keyspace}.{table} is a CDC log, and logs have none themselves; name its base table")


def parse_table_name(text: str) -> tuple[str, str]:
    """Return the keyspace and the table of `keyspace.table`; as in CQL, unquoted names become lower case.

    Raises:
        InputError: it names no table.
    """
    names = _split_written_name(text)
    if names is None or not (all(map(is_valid_name, names)) or is_alternator_table(*names)):
        raise InputError(
            f"{text[:400]!r} is no table; write it as keyspace.table, each of 1 to {MAX_NAME_LENGTH} "
            "letters, digits and "
            "underscores, in double quotes where capitals count"
        )
    return names


def _split_written_name(text: str) -> tuple[str, str] | None:
    """Return the names in `keyspace.table` as written in CQL; None if it is no such text.

    An Alternator table in lower case needs no quotes, although CQL wants them around hyphens and dots.
    """
    if '"' not in text and text.lower().startswith(KEYSPACE_PREFIX) and text.isascii():
        names = split_full_name(text.lower())
        if is_alternator_table(*names):
            return names if text == text.lower() or all(map(is_valid_name, names)) else None
    parts = _QUALIFIED_NAME_PATTERN.fullmatch(text)
    if parts is None:
        return None
    keyspace, table = parts.groups()
    return _unquote(keyspace), _unquote(table)


def _unquote(part: str) -> str:
    return part[1:-1] if part.startswith('"') else part.lower()


def format_table_name(keyspace: str, table: str) -> str:
    """Format a table's name as `parse_table_name` reads it, without quotes where none are needed."""
    return f"{quote_name(keyspace)}.{quote_name(table)}"


def quote_name(name: str) -> str:
    """Quote a name as CQL needs it: unless it is lower case, digits and underscores, and not reserved."""
    plain = name.isascii() and name.replace("_", "a").isalnum() and name == name.lower() and not name[0].isdigit()
    # A name that begins with an underscore needs quotes, too.
    free = plain and name[0] != "_" and name not in RESERVED_WORDS
    return name if free else '"' + name.replace('"', '""') + '"'


RESERVED_WORDS = frozenset(
    (
        "add",
        "allow",
        "alter",
        "and",
        "apply",
        "asc",
        "authorize",
        "batch",
        "begin",
        "by",
        "columnfamily",
        "create",
        "delete",
        "desc",
        "describe",
        "drop",
        "entries",
        "execute",
        "from",
        "full",
        "grant",
        "if",
        "in",
        "index",
        "infinity",
        "insert",
        "into",
        "is",
        "keyspace",
        "limit",
        "materialized",
        "modify",
        "nan",
        "norecursive",
        "not",
        "null",
        "of",
        "on",
        "or",
        "order",
        "primary",
        "rename",
        "replace",
        "revoke",
        "schema",
        "select",
        "set",
        "table",
        "to",
        "token",
        "truncate",
        "unlogged",
        "update",
        "use",
        "using",
        "view",
        "where",
        "with",
    )
)
"""The words that are names only in double quotes."""
