"""Check that a DuckDB statement is a query, on the tree of DuckDB's own parser.

The check refuses anything that is not known to be free of side effects: other statements, writes inside a query, and
functions that access anything outside.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from cdc_platform.errors import InputError
from cdc_platform.query.names import TableReference

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_ALLOWED = "only queries, SHOW, DESCRIBE, SUMMARIZE, PIVOT and EXPLAIN of those are run here"
_QUERY_NODES = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"})
_CATALOGS = ("information_schema", "pg_catalog")
_ENGINE_CATALOGS = ("system", "temp")
_ENGINE_PREFIXES = ("duckdb_", "sqlite_", "pg_", "pragma_")
_TABLE_FUNCTIONS = frozenset(
    {
        "duckdb_columns", "duckdb_functions", "duckdb_keywords", "duckdb_schemas", "duckdb_tables", "duckdb_types",
        "duckdb_views", "generate_series", "histogram", "histogram_values", "json_each", "json_tree",
        "pg_timezone_names", "range", "regexp_split_to_table", "repeat", "repeat_row", "summary", "unnest",
    }
)  # fmt: skip
"""Functions allowed after FROM; the engine has some 150 others for files, memory, settings and SQL text."""
_FORBIDDEN_FUNCTIONS = frozenset(
    {
        "checkpoint", "currval", "current_query", "current_setting", "force_checkpoint", "getenv", "getvariable",
        "nextval", "pg_sleep", "query", "query_table", "set_config", "setseed", "setval", "sleep_ms", "which_secret",
        "write_log",
    }
)  # fmt: skip
"""Scalar functions that expose the process or act on it, in this or other builds of the engine."""
_EXPLAIN = re.compile(r"\s*explain\s+(?:analy[sz]e\s+)?(?:\(\s*(?:format|analy[sz]e)\b[^()]*\)\s*)?", re.IGNORECASE)
_TABLE_FUNCTION_QUERY = (
    "SELECT lower(function_name) FROM duckdb_functions() WHERE function_type IN ('table', 'table_macro', 'pragma') "
    "EXCEPT SELECT lower(function_name) FROM duckdb_functions() WHERE function_type IN ('scalar', 'aggregate', 'macro')"
)
_PIVOT_KEYWORDS = frozenset({"pivot", "pivot_wider", "select", "with", "from", "describe", "summarize", "explain"})
_VERBS = frozenset({"alter", "attach", "call", "copy", "create", "delete", "drop", "execute", "export", "import"}) | {
    "insert", "install", "load", "merge", "pragma", "prepare", "set", "truncate", "update", "vacuum",
}  # fmt: skip


@dataclass(frozen=True)
class CheckedQuery:
    """A statement that was checked to change nothing.

    `tables` are the tables that it names, and `perhaps` names that may be of tables or of something else. `hidden` are
    names of tables that it also gives to its own parts. `everything` is True if it asks which tables exist. `in_order`
    is True if it selects rows of one table without an order.
    """

    statement: Any
    tables: tuple[TableReference, ...]
    perhaps: tuple[TableReference, ...] = ()
    hidden: tuple[TableReference, ...] = ()
    everything: bool = False
    in_order: bool = False


def check_duckdb_query(engine: DuckDBPyConnection, text: str) -> CheckedQuery:
    """Return the single statement of a text if it changes nothing; the engine only parses it.

    Raises:
        InputError: the text is not SQL, has no statement or several, or would change something.
    """
    statement, kind = _only_statement(engine, text)
    read = statement.query
    if kind == "MULTI":
        return _pivot(engine, statement)
    if kind == "EXPLAIN":
        read = _EXPLAIN.sub("", read, count=1)
    elif kind != "SELECT":
        raise InputError(f"{_first_word(read)} is refused: {_ALLOWED}")
    tree = _parse_tree(engine, read)
    if tree is None:
        raise InputError(f"{_first_word(statement.query)} of what is no query is refused: {_ALLOWED}")
    walk = _TreeWalk()
    walk.walk(tree)
    named = {reference for reference in walk.tables if reference.keyspace or reference.name.lower() not in walk.parts}
    in_order = kind == "SELECT" and _is_plain_select(engine, tree["node"])
    return CheckedQuery(statement, _sorted(named), (), _sorted(walk.tables - named), walk.everything, in_order)


def _is_plain_select(engine: DuckDBPyConnection, node: dict[str, Any]) -> bool:
    """Return True for SELECT ... FROM one table, with WHERE and LIMIT at most, and without aggregates."""
    if node["type"] != "SELECT_NODE" or node["from_table"]["type"] != "BASE_TABLE" or node["cte_map"]["map"]:
        return False
    if any(node[part] for part in ("group_expressions", "having", "qualify", "sample")):
        return False
    if any(modifier["type"] != "LIMIT_MODIFIER" for modifier in node["modifiers"]):
        return False
    classes, functions = set[str](), set[str]()
    _collect(node["select_list"], classes, functions)
    if classes & {"WINDOW", "SUBQUERY"}:
        return False
    aggregates = "SELECT count(*) FROM duckdb_functions() WHERE function_type = 'aggregate' AND function_name IN ?"
    counted = engine.execute(aggregates, [sorted(functions)]).fetchone() if functions else (0,)
    return counted == (0,)


def _collect(tree: Any, classes: set[str], functions: set[str]) -> None:
    """Add the classes of all expressions in a tree, and the names of all functions that it calls."""
    if isinstance(tree, list):
        for child in tree:
            _collect(child, classes, functions)
    elif isinstance(tree, dict):
        classes.add(str(tree.get("class")))
        if tree.get("class") == "FUNCTION":
            functions.add(tree["function_name"].lower())
        for child in tree.values():
            _collect(child, classes, functions)


def qualify_system_names(text: str, catalog: str, tables: Container[tuple[str, str]]) -> str:
    """Qualify tables of keyspaces that share a name with an engine catalog, so that they mean the platform's tables.

    `tables` are pairs of keyspace and name in lower case. For example, `system.cdc_local` may be a table of the
    keyspace `system`, or one of the engine's catalog `system`.
    """
    starts = [
        word.place
        for word in _words(text)
        if not word.before and word.text.lower() in _ENGINE_CATALOGS and (word.text.lower(), word.behind) in tables
    ]
    for start in reversed(starts):
        text = f"{text[:start]}{catalog}.{text[start:]}"
    return text


def engine_message(error: Exception) -> str:
    """Return the engine's message on one line, without its class name and the lines that point into the query."""
    text = re.split(r"\n\s*(?:LINE \d+:|Possible solutions:)", str(error), maxsplit=1)[0]
    return " ".join(re.sub(r"^[A-Z][\w -]* Error: ", "", text).split())


def _only_statement(engine: DuckDBPyConnection, text: str) -> tuple[Any, str]:
    """Return the single statement of a text, and its kind."""
    import duckdb

    try:
        statements = [(statement, statement.type.name) for statement in engine.extract_statements(text)]
    except duckdb.Error as error:
        raise InputError(f"the query: {engine_message(error)}") from None
    except ValueError:  # the engine's Python API lacks some statement kinds of its parser
        raise InputError(f"{_first_word(text)} is refused: {_ALLOWED}") from None
    if not statements:
        raise InputError("the query is empty; write one as in: SELECT time FROM cdc_generation_timestamps")
    if len(statements) > 1:
        raise InputError(f"the query has {len(statements)} statements; one at a time is run")
    return statements[0]


def _parse_tree(engine: DuckDBPyConnection, text: str) -> Any:
    """Return the engine's parse tree of a text; None if the text is not one query."""
    answer = engine.execute("SELECT json_serialize_sql(?::VARCHAR)", [text]).fetchone()
    tree: Any = json.loads(answer[0]) if answer else {"error": True}
    return None if tree["error"] or len(tree["statements"]) != 1 else tree["statements"][0]


class _TreeWalk:
    """The names in a tree: tables, the query's own parts (lower case), and whether it lists what exists."""

    def __init__(self) -> None:
        self.tables: set[TableReference] = set()
        self.parts: set[str] = set()
        self.everything = False

    def walk(self, tree: Any) -> None:
        """Collect the names in a tree.

        Raises:
            InputError: a part of the tree is not known to be free of side effects.
        """
        if isinstance(tree, list):
            for child in tree:
                self.walk(child)
        elif isinstance(tree, dict):
            self._node(tree)
            for child in tree.values():
                self.walk(child)

    def _node(self, tree: dict[str, Any]) -> None:
        kind = tree.get("type")
        if isinstance(kind, str) and kind.endswith("_NODE") and kind not in _QUERY_NODES:
            raise InputError(f"{kind.split('_')[0]} inside a query is refused: {_ALLOWED}")
        if kind == "TABLE_FUNCTION":
            name = tree["function"]["function_name"]
            _refuse_function(name, known=_TABLE_FUNCTIONS)
            self.everything |= name.lower().startswith("duckdb_")
        elif kind == "BASE_TABLE":
            self._table(tree)
        elif kind == "SHOW_REF" and tree.get("query") is None:
            self.everything = True
        if tree.get("class") == "FUNCTION":
            _refuse_function(tree["function_name"])
        if "cte_map" in tree:
            self.parts.update(entry["key"].lower() for entry in tree["cte_map"]["map"])

    def _table(self, tree: dict[str, Any]) -> None:
        if tree.get("at_clause") is not None:
            raise InputError("the past of a table is read with --at VERSION or --at TIME, not with AT in the query")
        keyspace, name = tree["schema_name"], tree["table_name"]
        if keyspace.lower() in _CATALOGS or (not keyspace and name.lower().startswith(_ENGINE_PREFIXES)):
            self.everything = True
        else:
            self.tables.add(TableReference(keyspace, name))


def _refuse_function(name: str, known: frozenset[str] | None = None) -> None:
    lower = name.lower()
    if lower in _FORBIDDEN_FUNCTIONS or (known is not None and lower not in known):
        raise InputError(f"function {name} is refused: queries can read only the tables of the home")


def _pivot(engine: DuckDBPyConnection, statement: Any) -> CheckedQuery:
    """Check a PIVOT whose columns depend on the data: the engine splits it into several statements and shows no tree.

    The check examines every word outside strings and comments. No word may be the verb of another statement, or a
    function that is not known to be free of side effects.
    """
    words = list(_words(statement.query))
    if not words or words[0].text.lower() not in _PIVOT_KEYWORDS:
        raise InputError(f"{_first_word(statement.query)} is refused: {_ALLOWED}")
    of_tables = {name for (name,) in engine.execute(_TABLE_FUNCTION_QUERY).fetchall()}
    for word in words:
        if word.text.lower() in _VERBS and not word.quoted:
            raise InputError(f"{word.text.upper()} inside a query is refused: {_ALLOWED}; quote it if it is a name")
        if word.called:
            _refuse_function(word.text, known=_TABLE_FUNCTIONS if word.text.lower() in of_tables else None)
    return CheckedQuery(statement, (), _sorted({TableReference(word.before, word.text) for word in words}))


@dataclass(frozen=True)
class _Word:
    """A name or keyword that starts at `place`.

    `before` is the name before its dot, `behind` the name after its dot in lower case. `called` is True if a bracket
    follows.
    """

    place: int
    text: str
    quoted: bool
    before: str
    behind: str
    called: bool


def _words(query: str) -> Iterator[_Word]:
    tokens = list(_tokens(query))
    for number, (start, text, is_name) in enumerate(tokens):
        if is_name:
            before = tokens[number - 2][1] if number > 1 and tokens[number - 1][1] == "." else ""
            follows = [text for _, text, _ in tokens[number + 1 : number + 3]]
            behind = _unquoted(follows[1]).lower() if len(follows) == 2 and follows[0] == "." else ""
            yield _Word(start, _unquoted(text), text.startswith('"'), _unquoted(before), behind, follows[:1] == ["("])


def _tokens(query: str) -> Iterator[tuple[int, str, bool]]:
    """Yield each token's start and text, and True for a name or a keyword; skip comments."""
    import duckdb

    names = (duckdb.token_type.identifier, duckdb.token_type.keyword)
    encoded = query.encode()
    for (start, kind), (end, _) in pairwise([*duckdb.tokenize(query), (len(encoded), None)]):
        if kind != duckdb.token_type.comment:
            index = len(encoded[:start].decode(errors="replace"))
            yield index, encoded[start:end].decode(errors="replace").strip(), kind in names


def _unquoted(name: str) -> str:
    """Return a name without its quotes."""
    return name[1:-1].replace('""', '"') if name.startswith('"') and name.endswith('"') else name


def _sorted(references: set[TableReference]) -> tuple[TableReference, ...]:
    return tuple(sorted(references, key=str))


def _first_word(text: str) -> str:
    match = re.search(r"\w+", text)
    return match[0].upper() if match else "this"
