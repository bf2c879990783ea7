"""Columns that a cluster's home leaves out or stores as hashes, applied before anything decodes or stores a value.

Two places apply the rules. The definition of a table, as the platform knows it, lacks columns that are left out and
has hashed ones as blobs (`schema`), so that logs, table states, copies, exports and checks follow from it. Pages of
rows are changed as they arrive (`session`).

In homes that decode the attributes of Alternator tables, their column `:attrs` is a map of texts: each value as
DynamoDB's JSON. Rules may name single attributes there.
"""

from __future__ import annotations

import hmac
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from cdc_platform.cql import (
    ATTRIBUTES,
    DECODED_ATTRIBUTES_TYPE,
    LOG_SUFFIX,
    is_alternator_keyspace,
    is_alternator_table,
    is_attributes_column,
    parse_attribute_type,
    parse_table_name,
    quote_name,
)
from cdc_platform.errors import EnvironmentProblem, InputError
from cdc_platform.scylla.attributes import AttributeRules, decode_attribute_cells, drop_attribute_names
from cdc_platform.storage import read_user_bytes

if TYPE_CHECKING:
    from cdc_platform.scylla.raw_pages import RawPage

LEAST_KEY_BYTES, _MAX_KEY_BYTES = 16, 4096
_KEY_KINDS = ("partition_key", "clustering")
_TableName = tuple[str, str]


@dataclass(frozen=True)
class ColumnRules:
    """The columns of one table that are left out, and those that are hashed.

    With `decode_attributes` an Alternator table has its attributes as JSON, and the rules may name attributes.
    `attribute_types` are those of attributes that views show as columns.
    """

    left_out: frozenset[str] = frozenset()
    hashed: frozenset[str] = frozenset()
    decode_attributes: bool = False
    attribute_types: tuple[tuple[str, str], ...] = ()

    def has_attributes(self, name: _TableName, columns: Sequence[dict[str, Any]]) -> bool:
        """Return True if the table is one of Alternator's whose attributes are decoded."""
        return self.decode_attributes and any(
            is_attributes_column(name[0], column["column_name"], column["type"]) for column in columns
        )

    def define(self, name: _TableName, columns: Sequence[dict[str, Any]], *, dropped: bool) -> list[dict[str, Any]]:
        """Return the columns of a table (rows of `system_schema.columns`) as the platform defines them.

        `dropped`: columns of the table were dropped, so that a rule may be about one of them.

        Raises:
            InputError: a rule is about a column that does not exist, or that it cannot apply to.
        """
        table = f"{quote_name(name[0])}.{quote_name(name[1])}"
        known = {column["column_name"]: column for column in columns}
        unknown = sorted((self.left_out | self.hashed) - known.keys())
        has_attributes = self.has_attributes(name, columns)
        if self.attribute_types and not has_attributes:
            raise InputError(
                f"{table} has no attributes: it is no table of Alternator, or the home stores them undecoded; leave "
                f"out --attribute {table}.{quote_name(self.attribute_types[0][0])}"
            )
        shown = next((attribute for attribute, _ in self.attribute_types if attribute in known), None)
        if shown is not None:
            raise InputError(f"{quote_name(shown)} is a column of {table} already; leave out --attribute for it")
        if unknown and not dropped and not has_attributes:
            raise InputError(
                f"{table} has no column {quote_name(unknown[0])} to leave out or hash; it has "
                f"{', '.join(quote_name(column) for column in known)}"
            )
        for column in sorted((self.left_out | self.hashed) & known.keys()):
            if known[column]["kind"] in _KEY_KINDS:
                raise InputError(
                    f"column {quote_name(column)} is part of the key of {table}, which identifies and orders rows; it "
                    "cannot be left out or hashed"
                )
            kind = known[column]["type"]
            if column in self.hashed and (_is_several_cells(kind) or kind == "counter"):
                raise InputError(
                    f"column {quote_name(column)} of {table} is a {kind}, whose elements are written one by one; only "
                    "columns with one value are hashed: leave it out, or freeze it"
                )
        return [
            self._define_column(name[0], column) for column in columns if column["column_name"] not in self.left_out
        ]

    def _define_column(self, keyspace: str, column: dict[str, Any]) -> dict[str, Any]:
        if column["column_name"] in self.hashed:
            return column | {"type": "blob"}
        if self.decode_attributes and is_attributes_column(keyspace, column["column_name"], column["type"]):
            return column | {"type": DECODED_ATTRIBUTES_TYPE}
        return column

    def apply(self, page: RawPage, key: bytes | None) -> RawPage:
        """Return a page of the table or of its log without the left-out columns, and with hashed ones as hashes."""
        columns = {
            name: cells if name not in self.hashed else hash_cells(cells, key)
            for name, cells in zip(page.names, page.columns, strict=True)
            if not self._is_left_out(name)
        }
        undecoded = page.undecoded
        if self.decode_attributes and ATTRIBUTES in columns and ATTRIBUTES not in self.hashed:
            decoded = decode_attribute_cells(columns[ATTRIBUTES], AttributeRules(self.left_out, self.hashed, key))
            columns[ATTRIBUTES], undecoded = decoded.cells, decoded.undecoded
            removed = f"cdc$deleted_elements_{ATTRIBUTES}"
            if self.left_out and removed in columns:
                columns[removed] = drop_attribute_names(columns[removed], self.left_out)
        return replace(page, names=tuple(columns), columns=list(columns.values()), undecoded=undecoded)

    def _is_left_out(self, name: str) -> bool:
        prefixes = ("cdc$deleted_elements_", "cdc$deleted_", "")
        return any(name.startswith(prefix) and name.removeprefix(prefix) in self.left_out for prefix in prefixes)


def hash_cells(cells: pa.BinaryArray, key: bytes | None) -> pa.BinaryArray:
    """Return the HMAC-SHA-256 (32 bytes) of each cell's bytes; null stays null."""
    assert key is not None
    encoded = cells.dictionary_encode()
    digests = [hmac.digest(key, value, "sha256") for value in encoded.dictionary.to_pylist()]
    hashed = pa.array(digests, pa.binary())
    if not len(hashed):
        return pa.nulls(len(cells), pa.binary())
    valid = np.asarray(encoded.indices.is_valid())
    indices = np.where(valid, encoded.indices.fill_null(0).to_numpy(), 0)
    return hashed.take(pa.array(indices, mask=~valid))


def parse_column(text: str) -> tuple[str, str, str]:
    """Return keyspace, table and column of `keyspace.table.column`; unquoted names become lower case.

    Columns and attributes of Alternator tables keep their case: nothing would show that an attribute is misspelt.

    Raises:
        InputError: it names no column.
    """
    table, separator, column = text.rpartition(".")
    if text.endswith('"') and '."' in text:
        table, separator, column = text[:-1].rpartition('."')
        column = column.replace('""', '"')
        is_quoted = True
    else:
        is_quoted = False
    if not separator or not column:
        raise InputError(f"{text!r} names no column; write it as keyspace.table.column")
    name = parse_table_name(table)
    return (*name, column if is_quoted or is_alternator_table(*name) else column.lower())


@dataclass(frozen=True)
class TableRules:
    """The rules of all tables of a cluster, and the file with the key of its hashes."""

    by_table: Mapping[_TableName, ColumnRules]
    key_file: str | None
    key_check: str | None = None
    decode_attributes: bool = False
    _by_statement_name: Mapping[str, ColumnRules] = field(init=False)

    def __post_init__(self) -> None:
        names = {}
        for (keyspace, table), rules in self.by_table.items():
            for name in (table, table + LOG_SUFFIX):
                names[f"{quote_name(keyspace)}.{quote_name(name)}"] = rules
        object.__setattr__(self, "_by_statement_name", names)

    def get(self, name: _TableName) -> ColumnRules | None:
        """Return the rules of a table; None if nothing is changed in it."""
        rules = self.by_table.get(name)
        return self._alternator_rules if rules is None and is_alternator_keyspace(name[0]) else rules

    @property
    def _alternator_rules(self) -> ColumnRules | None:
        """Return the rules of an Alternator table without rules of its own."""
        return ColumnRules(decode_attributes=True) if self.decode_attributes else None

    def apply(self, table: str, page: RawPage) -> RawPage:
        """Return a page of a table (its name in CQL) by the rules of the table that it, or its log, belongs to.

        Raises:
            EnvironmentProblem: the key's file is missing, readable by others, too short, or has another key now.
        """
        rules = self._by_statement_name.get(table)
        if rules is None and is_alternator_keyspace(table.removeprefix('"')):
            rules = self._alternator_rules
        if rules is None:
            return page
        if not rules.hashed or self.key_file is None:
            return rules.apply(page, None)
        key = read_hash_key(self.key_file)
        if self.key_check is not None and compute_key_check(key) != self.key_check:
            raise EnvironmentProblem(
                f"key file {self.key_file} has another key than when the cluster was registered, so that equal values "
                "would have other hashes; restore the file"
            )
        return rules.apply(page, key)


@lru_cache(maxsize=16)
def parse_rules(
    left_out: tuple[str, ...],
    hashed: tuple[str, ...],
    key_file: str | None,
    key_check: str | None = None,
    *,
    decode_attributes: bool = False,
    attribute_types: tuple[str, ...] = (),
) -> TableRules:
    """Return the rules of columns given as `keyspace.table.column`, and of attributes as `keyspace.table.name=TYPE`.

    Raises:
        InputError: a text names no column, a column is named twice, a type is unknown, or the key's file and hashed
            columns are not given together.
    """
    if bool(hashed) != (key_file is not None):
        raise InputError("--hash and --hash-key-file go together: the columns to hash, and the file with the key")
    by_table: dict[_TableName, dict[str, set[str]]] = {}
    for kind, texts in (("left_out", left_out), ("hashed", hashed)):
        for text in texts:
            keyspace, table, column = parse_column(text)
            rules = by_table.setdefault((keyspace, table), {"left_out": set(), "hashed": set()})
            if any(column in columns for columns in rules.values()):
                raise InputError(f"column {text} is named twice; leave it out or hash it, once")
            rules[kind].add(column)
    types: dict[_TableName, dict[str, str]] = {}
    for text in attribute_types:
        named, separator, kind = text.rpartition("=")
        if not separator:
            raise InputError(f"{text!r} declares no attribute; write it as keyspace.table.attribute=TYPE")
        keyspace, table, attribute = parse_column(named)
        rules = by_table.setdefault((keyspace, table), {"left_out": set(), "hashed": set()})
        declared = types.setdefault((keyspace, table), {})
        if attribute in declared or any(attribute in columns for columns in rules.values()):
            raise InputError(f"attribute {named} is named twice; declare it, leave it out or hash it, once")
        declared[attribute] = parse_attribute_type(kind)
    return TableRules(
        {
            name: ColumnRules(
                frozenset(rules["left_out"]),
                frozenset(rules["hashed"]),
                decode_attributes and is_alternator_keyspace(name[0]),
                tuple(sorted(types.get(name, {}).items())),
            )
            for name, rules in by_table.items()
        },
        key_file,
        key_check,
        decode_attributes,
    )


@lru_cache(maxsize=4)
def read_hash_key(path: str) -> bytes:
    """Return the key of hashes: the bytes of a file without a newline at its end. It is read once per process.

    Raises:
        EnvironmentProblem: the file is missing, readable by others, or has fewer than 16 bytes.
    """
    file = Path(path)
    try:
        mode = stat.S_IMODE(file.stat().st_mode)
        if mode & 0o077:
            raise EnvironmentProblem(f"{path} has mode {mode:04o} and others can read it; run: chmod 0600 {path}")
        key = read_user_bytes(file, _MAX_KEY_BYTES, f"key file {path}").rstrip(b"\r\n")
    except OSError as error:
        raise EnvironmentProblem(f"key file {path}: {error.strerror}; create it with mode 0600") from None
    if len(key) < LEAST_KEY_BYTES:
        raise EnvironmentProblem(
            f"key file {path} has {len(key)} bytes; a key of hashes has at least {LEAST_KEY_BYTES}"
        )
    return key


def compute_key_check(key: bytes) -> str:
    """Return a text by which another key is recognized. The key does not follow from it."""
    return hmac.digest(key, b"cdc-platform: key of hashed columns", "sha256").hex()[:16]


def _is_several_cells(kind: str) -> bool:
    """Return True if a column of this CQL type is a collection or user type that is not frozen."""
    plain = kind.strip().lower()
    return not plain.startswith(("frozen<", "tuple<", "vector<")) and (
        plain.startswith(("map<", "set<", "list<")) or plain not in _SCALAR_NAMES
    )


_SCALAR_NAMES = frozenset(
    {
        "ascii", "bigint", "blob", "boolean", "counter", "date", "decimal", "double", "duration", "float", "inet",
        "int", "smallint", "text", "time", "timestamp", "timeuuid", "tinyint", "uuid", "varchar", "varint",
    }
)  # fmt: skip
