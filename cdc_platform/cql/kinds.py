"""Which kinds of statements there are, by their first words, and what becomes of those that the grammar does not have.

The one list of what is passed over: statements that cannot change a table with CDC, each with the reason. What could
change one, and is not done here, is refused with what follows from that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from cdc_platform.cql.search_indexes import PLAIN_CLASSES, SEARCH_CLASSES

Handling = Literal["done", "passed over", "refused"]

INDEX = "an index is made of what a table has and changes nothing in it"
_VIEW = "a materialized view is made of its base table and changes nothing in it"
_RIGHTS = "rights and roles change no table"
_FUNCTION = "a function changes no table until a statement calls it, which is then refused"
_LEVEL = "a service level says how fast statements run, not what they do"
_SHELL = "it tells cqlsh how to run or show statements, not what they do"

PASSED_OVER: Mapping[str, str] = {
    "CREATE INDEX": INDEX,
    "CREATE CUSTOM INDEX": INDEX,
    "CREATE MATERIALIZED VIEW": _VIEW,
    "ALTER MATERIALIZED VIEW": _VIEW,
    "DROP MATERIALIZED VIEW": _VIEW,
    "PRUNE MATERIALIZED VIEW": _VIEW,
    "CREATE ROLE": _RIGHTS,
    "ALTER ROLE": _RIGHTS,
    "DROP ROLE": _RIGHTS,
    "CREATE USER": _RIGHTS,
    "ALTER USER": _RIGHTS,
    "DROP USER": _RIGHTS,
    "GRANT": _RIGHTS,
    "REVOKE": _RIGHTS,
    "LIST": _RIGHTS,
    "CREATE FUNCTION": _FUNCTION,
    "CREATE OR REPLACE FUNCTION": _FUNCTION,
    "DROP FUNCTION": _FUNCTION,
    "CREATE AGGREGATE": _FUNCTION,
    "CREATE OR REPLACE AGGREGATE": _FUNCTION,
    "DROP AGGREGATE": _FUNCTION,
    "CREATE SERVICE LEVEL": _LEVEL,
    "CREATE SERVICE_LEVEL": _LEVEL,
    "ALTER SERVICE LEVEL": _LEVEL,
    "ALTER SERVICE_LEVEL": _LEVEL,
    "DROP SERVICE LEVEL": _LEVEL,
    "DROP SERVICE_LEVEL": _LEVEL,
    "ATTACH SERVICE LEVEL": _LEVEL,
    "ATTACH SERVICE_LEVEL": _LEVEL,
    "DETACH SERVICE LEVEL": _LEVEL,
    "DETACH SERVICE_LEVEL": _LEVEL,
    "ALTER KEYSPACE": "how a keyspace is replicated changes no row of its tables",
    "COPY TO": "it writes a file and reads the table",
    "CONSISTENCY": _SHELL,
    "SERIAL CONSISTENCY": _SHELL,
    "TRACING": _SHELL,
    "PAGING": _SHELL,
    "EXPAND": _SHELL,
    "ELAPSED": _SHELL,
    "UNICODE": _SHELL,
    "SHOW": _SHELL,
    "CAPTURE": _SHELL,
    "CLEAR": _SHELL,
    "CLS": _SHELL,
    "LOGIN": _SHELL,
    "HELP": _SHELL,
    "EXIT": _SHELL,
    "QUIT": _SHELL,
}
"""What is passed over, by the words with which it begins, and why nothing of a log is missing without it."""

REFUSED: Mapping[str, str] = {
    "COPY FROM": "it writes the rows of a file to a table, which would be missing here and in the log; write them as"
    " INSERT statements, one with bind markers and --values for all of them",
    "SOURCE": "it runs the statements of another file, which would be missing here; put them in its place",
    "CREATE TRIGGER": "a trigger writes to tables by itself, and those writes would be missing here; leave it out",
    "CREATE INDEX OF UNKNOWN CLASS": "its class {class_name!r} is not known, so whether it turns CDC on cannot be told;"
    f" the known ones are {', '.join(SEARCH_CLASSES)} and those of Cassandra",
    "ALTER KEYSPACE WITH TABLETS": "the tablets of a keyspace say how many streams its later tables have; give them"
    " when the keyspace is created",
}
"""What could change a table with CDC and is not done, by its first words, and what would follow from leaving it out."""

LINES = frozenset(
    (
        *("CONSISTENCY", "SERIAL", "TRACING", "PAGING", "EXPAND", "ELAPSED", "UNICODE", "SHOW", "CAPTURE", "CLEAR"),
        *("CLS", "LOGIN", "HELP", "EXIT", "QUIT", "COPY", "SOURCE", "DESCRIBE", "DESC"),
    )
)
"""The first words of cqlsh's own commands, which end with their line where no semicolon ends them."""

_OBJECTS = ("CREATE", "ALTER", "DROP")
_NOISE = ("OR", "REPLACE", "CUSTOM")
_FIRST = re.compile(r"--[^\n\r]*|//[^\n\r]*|/\*.*?\*/|(\w+)|\S", re.DOTALL)
_COMMENT = re.compile(r"--[^\n\r]*|//[^\n\r]*|/\*.*?\*/", re.DOTALL)
_CLASS = re.compile(r"\bUSING\s+'([^']*)'", re.IGNORECASE)
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|\$\$.*?\$\$", re.DOTALL)
_MOST_WORDS = 4
_LONGEST_NAME = 40


class Kind(NamedTuple):
    """A kind of statement as people name it, what becomes of it, and why where it is not done."""

    name: str
    handling: Handling = "done"
    why: str = ""


def kind_of(text: str) -> Kind:
    """The kind of a statement, from its text."""
    words = _first_words(text)
    key = next((key for key in _prefixes(words) if key in PASSED_OVER or key in REFUSED), None)
    if words[:1] == ["COPY"]:
        key = "COPY TO" if re.search(r"\bTO\b", _QUOTED.sub(" ", text), re.IGNORECASE) else "COPY FROM"
    elif key in ("CREATE INDEX", "CREATE CUSTOM INDEX"):
        return _index_kind(key, text)
    elif key == "ALTER KEYSPACE" and re.search(r"\btablets\b", _QUOTED.sub(" ", text), re.IGNORECASE):
        key = "ALTER KEYSPACE WITH TABLETS"
    if key is None:
        return Kind(_named(words)[:_LONGEST_NAME])
    if key in REFUSED:
        return Kind(key, "refused", REFUSED[key])
    name = key if key in ("COPY TO", "SERIAL CONSISTENCY") else _named(words)
    return Kind(name, "passed over", PASSED_OVER[key])


def _index_kind(key: str, text: str) -> Kind:
    """The kind of a CREATE INDEX, which its class tells: a search index is done, a plain one passed over."""
    found = _CLASS.search(_COMMENT.sub(" ", text))
    class_name = "" if found is None else found[1]
    if class_name.lower() in SEARCH_CLASSES:
        return Kind("CREATE INDEX")
    if class_name and class_name.lower() not in PLAIN_CLASSES:
        why = REFUSED["CREATE INDEX OF UNKNOWN CLASS"].format(class_name=class_name[:60])
        return Kind("CREATE INDEX", "refused", why)
    return Kind("CREATE INDEX", "passed over", PASSED_OVER[key])


def _first_words(text: str) -> list[str]:
    words: list[str] = []
    for match in _FIRST.finditer(text):
        if match[1]:
            words.append(match[1].upper())
        elif match[0][:2] not in ("--", "//", "/*"):
            break
        if len(words) == _MOST_WORDS:
            break
    return words


def _prefixes(words: Sequence[str]) -> list[str]:
    """The first words, the longest beginning first."""
    return [" ".join(words[:count]) for count in range(len(words), 0, -1)]


def _named(words: Sequence[str]) -> str:
    """What people call a statement that begins with these words."""
    plain = [word for word in words if word not in _NOISE]
    if not plain:
        return "statement"
    if plain[0] == "BEGIN":
        return "BATCH"
    if plain[0] not in (*_OBJECTS, "ATTACH", "DETACH", "PRUNE"):
        return {"DESC": "DESCRIBE"}.get(plain[0], plain[0])
    what = plain[1:3] if plain[1:2] in (["MATERIALIZED"], ["SERVICE"]) else plain[1:2]
    renamed = {"COLUMNFAMILY": "TABLE", "SCHEMA": "KEYSPACE"}
    return " ".join([plain[0], *(renamed.get(word, word) for word in what)])
