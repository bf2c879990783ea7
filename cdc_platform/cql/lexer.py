"""Split a script into statements, and classify each by its first words, without parsing.

Semicolons in texts, quoted names, comments and batches end no statement; cqlsh's own commands end with their line.
Splitting takes linear time. Statements that cannot change a table with CDC are ignored, each with a reason. Statements
that could, and are not supported, are refused with the consequence of leaving them out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from cdc_platform.cql.search_indexes import CASSANDRA_INDEX_CLASSES, SEARCH_INDEX_CLASSES

StatementHandling = Literal["done", "passed over", "refused"]

INDEX_REASON = "an index is derived from its table and changes nothing in it"
_VIEW_REASON = "a materialized view is derived from its base table and changes nothing in it"
_ROLE_REASON = "rights and roles change no table"
_FUNCTION_REASON = "a function changes no table until a statement calls it, which is then refused"
_SERVICE_LEVEL_REASON = "a service level affects how fast statements run, not what they do"
_CQLSH_REASON = "it affects how cqlsh runs or shows statements, not what they do"

IGNORED_STATEMENTS: Mapping[str, str] = {
    "CREATE INDEX": INDEX_REASON,
    "CREATE CUSTOM INDEX": INDEX_REASON,
    "CREATE MATERIALIZED VIEW": _VIEW_REASON,
    "ALTER MATERIALIZED VIEW": _VIEW_REASON,
    "DROP MATERIALIZED VIEW": _VIEW_REASON,
    "PRUNE MATERIALIZED VIEW": _VIEW_REASON,
    "CREATE ROLE": _ROLE_REASON,
    "ALTER ROLE": _ROLE_REASON,
    "DROP ROLE": _ROLE_REASON,
    "CREATE USER": _ROLE_REASON,
    "ALTER USER": _ROLE_REASON,
    "DROP USER": _ROLE_REASON,
    "GRANT": _ROLE_REASON,
    "REVOKE": _ROLE_REASON,
    "LIST": _ROLE_REASON,
    "CREATE FUNCTION": _FUNCTION_REASON,
    "CREATE OR REPLACE FUNCTION": _FUNCTION_REASON,
    "DROP FUNCTION": _FUNCTION_REASON,
    "CREATE AGGREGATE": _FUNCTION_REASON,
    "CREATE OR REPLACE AGGREGATE": _FUNCTION_REASON,
    "DROP AGGREGATE": _FUNCTION_REASON,
    "CREATE SERVICE LEVEL": _SERVICE_LEVEL_REASON,
    "CREATE SERVICE_LEVEL": _SERVICE_LEVEL_REASON,
    "ALTER SERVICE LEVEL": _SERVICE_LEVEL_REASON,
    "ALTER SERVICE_LEVEL": _SERVICE_LEVEL_REASON,
    "DROP SERVICE LEVEL": _SERVICE_LEVEL_REASON,
    "DROP SERVICE_LEVEL": _SERVICE_LEVEL_REASON,
    "ATTACH SERVICE LEVEL": _SERVICE_LEVEL_REASON,
    "ATTACH SERVICE_LEVEL": _SERVICE_LEVEL_REASON,
    "DETACH SERVICE LEVEL": _SERVICE_LEVEL_REASON,
    "DETACH SERVICE_LEVEL": _SERVICE_LEVEL_REASON,
    "ALTER KEYSPACE": "how a keyspace is replicated changes no row of its tables",
    "COPY TO": "it writes a file and reads the table",
    "CONSISTENCY": _CQLSH_REASON,
    "SERIAL CONSISTENCY": _CQLSH_REASON,
    "TRACING": _CQLSH_REASON,
    "PAGING": _CQLSH_REASON,
    "EXPAND": _CQLSH_REASON,
    "ELAPSED": _CQLSH_REASON,
    "UNICODE": _CQLSH_REASON,
    "SHOW": _CQLSH_REASON,
    "CAPTURE": _CQLSH_REASON,
    "CLEAR": _CQLSH_REASON,
    "CLS": _CQLSH_REASON,
    "LOGIN": _CQLSH_REASON,
    "HELP": _CQLSH_REASON,
    "EXIT": _CQLSH_REASON,
    "QUIT": _CQLSH_REASON,
}
"""Skipped statements by their first words, with the reason why nothing is missing from a log without them."""

REFUSED_STATEMENTS: Mapping[str, str] = {
    "COPY FROM": "it writes the rows of a file to a table, which would be missing here and in the log; write them as"
    " INSERT statements, one with bind markers and --values for all of them",
    "SOURCE": "it runs the statements of another file, which would be missing here; put them in its place",
    "CREATE TRIGGER": "a trigger writes to tables by itself, and those writes would be missing here; leave it out",
    "CREATE INDEX OF UNKNOWN CLASS": "its class {class_name!r} is not known, so it is unclear whether it enables CDC;"
    f" the known ones are {', '.join(SEARCH_INDEX_CLASSES)} and those of Cassandra",
    "ALTER KEYSPACE WITH TABLETS": "the tablets of a keyspace determine how many streams its later tables have;"
    " give them when the keyspace is created",
}
"""Unsupported statements that could change a table with CDC, by first words, with the consequence of skipping them."""

CQLSH_COMMANDS = frozenset(
    (
        *("CONSISTENCY", "SERIAL", "TRACING", "PAGING", "EXPAND", "ELAPSED", "UNICODE", "SHOW", "CAPTURE", "CLEAR"),
        *("CLS", "LOGIN", "HELP", "EXIT", "QUIT", "COPY", "SOURCE", "DESCRIBE", "DESC"),
    )
)
"""The first words of cqlsh's own commands, which end with their line unless a semicolon ends them."""

_OBJECT_VERBS = ("CREATE", "ALTER", "DROP")
_IGNORED_WORDS = ("OR", "REPLACE", "CUSTOM")
_FIRST_WORD = re.compile(r"--[^\n\r]*|//[^\n\r]*|/\*.*?\*/|(\w+)|\S", re.DOTALL)
_COMMENT = re.compile(r"--[^\n\r]*|//[^\n\r]*|/\*.*?\*/", re.DOTALL)
_INDEX_CLASS = re.compile(r"\bUSING\s+'([^']*)'", re.IGNORECASE)
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|\$\$.*?\$\$", re.DOTALL)
_MAX_WORDS = 4
_MAX_NAME_CHARACTERS = 40


class StatementKind(NamedTuple):
    """A kind of statement: its usual name, how it is handled, and why if it is not executed."""

    name: str
    handling: StatementHandling = "done"
    why: str = ""


def classify_statement(text: str) -> StatementKind:
    """Return the kind of a statement, from its text."""
    words = _first_words(text)
    key = next((key for key in _prefixes(words) if key in IGNORED_STATEMENTS or key in REFUSED_STATEMENTS), None)
    if words[:1] == ["COPY"]:
        key = "COPY TO" if re.search(r"\bTO\b", _QUOTED.sub(" ", text), re.IGNORECASE) else "COPY FROM"
    elif key in ("CREATE INDEX", "CREATE CUSTOM INDEX"):
        return _classify_index(key, text)
    elif key == "ALTER KEYSPACE" and re.search(r"\btablets\b", _QUOTED.sub(" ", text), re.IGNORECASE):
        key = "ALTER KEYSPACE WITH TABLETS"
    if key is None:
        return StatementKind(_display_name(words)[:_MAX_NAME_CHARACTERS])
    if key in REFUSED_STATEMENTS:
        return StatementKind(key, "refused", REFUSED_STATEMENTS[key])
    name = key if key in ("COPY TO", "SERIAL CONSISTENCY") else _display_name(words)
    return StatementKind(name, "passed over", IGNORED_STATEMENTS[key])


def _classify_index(key: str, text: str) -> StatementKind:
    """Return the kind of a CREATE INDEX, by its class: a search index is executed, a plain one skipped."""
    match = _INDEX_CLASS.search(_COMMENT.sub(" ", text))
    class_name = "" if match is None else match[1]
    if class_name.lower() in SEARCH_INDEX_CLASSES:
        return StatementKind("CREATE INDEX")
    if class_name and class_name.lower() not in CASSANDRA_INDEX_CLASSES:
        why = REFUSED_STATEMENTS["CREATE INDEX OF UNKNOWN CLASS"].format(class_name=class_name[:60])
        return StatementKind("CREATE INDEX", "refused", why)
    return StatementKind("CREATE INDEX", "passed over", IGNORED_STATEMENTS[key])


def _first_words(text: str) -> list[str]:
    words: list[str] = []
    for match in _FIRST_WORD.finditer(text):
        if match[1]:
            words.append(match[1].upper())
        elif match[0][:2] not in ("--", "//", "/*"):
            break
        if len(words) == _MAX_WORDS:
            break
    return words


def _prefixes(words: Sequence[str]) -> list[str]:
    """Return the prefixes of the words, the longest first."""
    return [" ".join(words[:count]) for count in range(len(words), 0, -1)]


def _display_name(words: Sequence[str]) -> str:
    """Return the usual name of a statement that begins with these words."""
    plain = [word for word in words if word not in _IGNORED_WORDS]
    if not plain:
        return "statement"
    if plain[0] == "BEGIN":
        return "BATCH"
    if plain[0] not in (*_OBJECT_VERBS, "ATTACH", "DETACH", "PRUNE"):
        return {"DESC": "DESCRIBE"}.get(plain[0], plain[0])
    what = plain[1:3] if plain[1:2] in (["MATERIALIZED"], ["SERVICE"]) else plain[1:2]
    renamed = {"COLUMNFAMILY": "TABLE", "SCHEMA": "KEYSPACE"}
    return " ".join([plain[0], *(renamed.get(word, word) for word in what)])


_TOKEN = re.compile(
    r"""(?P<blank>\s+|--[^\n\r]*|//[^\n\r]*|/\*.*?\*/)
       |(?P<open>/\*.*)
       |(?P<quoted>'[^']*'?|"[^"]*"?|\$\$(?:.*?\$\$|.*\Z))
       |(?P<end>;)
       |(?P<word>\w+)
       |(?P<other>[^\s\w;'"$/-]+|.)""",
    re.VERBOSE | re.DOTALL,
)
_PLAIN_WRITE = re.compile(
    r"""\s*+(?P<statement>(?:INSERT|UPDATE|DELETE)\b
        (?>[^;'"$/-]++|'[^']*+'|"[^"]*+"|-(?!-)|/(?![/*])|\$(?!\$))*+;)""",
    re.VERBOSE | re.IGNORECASE,
)
"""A write without comments; one match finds it, and most statements of most scripts are of this kind."""
_REST_OF_LINE = re.compile(r"""(?:'[^'\n\r]*+'|"[^"\n\r]*+"|[^;\n\r])*+;?""")


class StatementText(NamedTuple):
    """One statement of a script: its start, and its text, including the semicolon if it has one.

    `line` and `column`, from 1, are those of its first character.
    """

    start: int
    text: str
    line: int
    column: int


def split_statements(text: str) -> Iterator[StatementText]:
    """Yield the statements of a script in order, without empty ones and what is between them."""
    line, line_start, counted = 1, 0, 0
    for start, end in _find_spans(text):
        line += text.count("\n", counted, start)
        line_start = max(line_start, text.rfind("\n", counted, start) + 1)
        counted = start
        yield StatementText(start, text[start:end], line, start - line_start + 1)


def _find_spans(text: str) -> Iterator[tuple[int, int]]:
    at, start = 0, None
    words: list[str] = []
    while at < len(text):
        simple = _PLAIN_WRITE.match(text, at) if start is None else None
        if simple is not None:
            at = simple.end()
            yield simple.span("statement")
            continue
        match = _TOKEN.match(text, at)
        assert match is not None
        kind, at = match.lastgroup, match.end()
        if kind == "blank":
            continue
        if start is None:
            if kind == "end":
                continue
            start, words = match.start(), []
        if kind == "word":
            word = match[0].upper()
            if not words and word in CQLSH_COMMANDS:
                rest = _REST_OF_LINE.match(text, at)
                assert rest is not None
                at = rest.end()
                yield start, at
                start = None
                continue
            _track_batch(words, word)
        elif kind == "end" and words[-1:] != ["..."]:
            yield start, at
            start = None
    if start is not None:
        yield start, len(text)


def _track_batch(words: list[str], word: str) -> None:
    """Record the words of a statement that show whether it is inside of a batch; the last one is then `...`."""
    if words[-1:] == ["..."]:
        if word == "BATCH" and words[-2] == "APPLY":
            words[:] = ["APPLIED"]
        else:
            words[-2] = word
    elif word == "BATCH" and words[:1] == ["BEGIN"] and len(words) < 3:
        words[:] = ["BEGIN", "BATCH", "..."]
    elif len(words) < 3:
        words.append(word)
