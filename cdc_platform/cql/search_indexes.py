"""Classes of CREATE INDEX ... USING, and the CDC options that a search index requires.

ScyllaDB builds search indexes outside the database from the table's CDC log. The rules are those of its `index/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from cdc_platform.clock import DAY_SECONDS
from cdc_platform.cql.schema import CdcOptions, SearchIndex, TableSchema
from cdc_platform.errors import InputError

SEARCH_INDEX_CLASSES: Mapping[str, bool] = MappingProxyType(
    {"vector_index": True, "fulltext_index": True, "substring_index": False, "pattern_index": False}
)
"""The classes of search indexes, and whether an index of each enables CDC by itself."""
CASSANDRA_INDEX_CLASSES = frozenset(
    {
        "org.apache.cassandra.index.sasi.sasiindex",
        "sasiindex",
        "org.apache.cassandra.index.sai.storageattachedindex",
        "storageattachedindex",
        "sai",
    }
)
"""Cassandra's classes, in lower case: they change nothing in a table, and ScyllaDB refuses them."""
_MIN_LOG_TTL = DAY_SECONDS
"""The shortest TTL (s) of a log that a search index is built from."""


def is_known_index_class(class_name: str) -> bool:
    """Return True if the effect of an index of this class on its table is known."""
    return class_name.lower() in SEARCH_INDEX_CLASSES or class_name.lower() in CASSANDRA_INDEX_CLASSES


def check_index_class(class_name: str) -> None:
    """Refuse an index of an unknown class; raises InputError."""
    if not is_known_index_class(class_name):
        raise InputError(
            f"index class {class_name[:60]!r} is not known, so it is unclear whether it enables CDC; the known ones "
            f"are {', '.join(SEARCH_INDEX_CLASSES)} and those of Cassandra"
        )


def index_enables_cdc(class_name: str) -> bool:
    """Return True if an index of this class enables CDC by itself.

    Raises:
        InputError: the class is unknown.
    """
    check_index_class(class_name)
    return SEARCH_INDEX_CLASSES.get(class_name.lower(), False)


def add_search_index(schema: TableSchema, index: SearchIndex, *, tablets: bool) -> TableSchema:
    """Return the table with another search index, which may enable its CDC.

    Raises:
        InputError: the keyspace has no tablets, CDC was disabled, or its options do not meet the index's requirements.
    """
    if not tablets:
        raise InputError(
            f"index {index.name} of class {index.class_name} needs a keyspace with tablets, and {schema.keyspace} has "
            "none; ScyllaDB refuses it too"
        )
    if schema.cdc_turned_off:
        raise InputError(
            f"CDC of {schema.full_name} is turned off, and {index.class_name} needs it: leave enabled out of its cdc "
            "options, or turn it on"
        )
    turns_on = index_enables_cdc(index.class_name) and not schema.cdc.enabled
    altered = replace(
        schema,
        search_indexes=(*schema.search_indexes, index),
        cdc=replace(schema.cdc, enabled=schema.cdc.enabled or turns_on),
        cdc_by_index=schema.cdc_by_index or turns_on,
    )
    _check_options_fit(altered)
    return altered


def remove_search_index(schema: TableSchema, name: str) -> TableSchema:
    """Return the table without an index; CDC enabled only by indexes ends with the last of them."""
    remaining = tuple(index for index in schema.search_indexes if index.name != name)
    stays = any(index_enables_cdc(index.class_name) for index in remaining)
    if schema.cdc_by_index and not stays:
        return replace(schema, search_indexes=remaining, cdc=replace(schema.cdc, enabled=False), cdc_by_index=False)
    return replace(schema, search_indexes=remaining)


def set_cdc_options(schema: TableSchema, cdc: CdcOptions, *, says_enabled: bool) -> TableSchema:
    """Return the table with other CDC options; `says_enabled` is True if the statement names `enabled`.

    Raises:
        InputError: a search index of the table needs other options.
    """
    turned_off = says_enabled and not cdc.enabled
    by_index = not cdc.enabled and any(
        index_enables_cdc(search_index.class_name) for search_index in schema.search_indexes
    )
    if schema.search_indexes and (turned_off or (schema.cdc.enabled and not cdc.enabled and not by_index)):
        index = schema.search_indexes[0]
        raise InputError(
            f"CDC of {schema.full_name} cannot be turned off: {index.class_name} {index.name} is built from its log; "
            "drop the index first"
        )
    altered = replace(
        schema, cdc=replace(cdc, enabled=cdc.enabled or by_index), cdc_by_index=by_index, cdc_turned_off=turned_off
    )
    _check_options_fit(altered)
    return altered


def _check_options_fit(schema: TableSchema) -> None:
    """Refuse CDC options of a table that do not meet its search indexes' requirements; raises InputError."""
    if not schema.search_indexes or not schema.cdc.enabled:
        return
    index, cdc = schema.search_indexes[-1], schema.cdc
    why = None
    if 0 < cdc.ttl < _MIN_LOG_TTL:
        why = f"a CDC TTL of at least {_MIN_LOG_TTL} seconds, or 0, and it is {cdc.ttl}"
    elif cdc.delta != "full" and not cdc.postimage:
        why = f"delta 'full' or post-images, and delta is {cdc.delta!r}"
    if why is not None:
        raise InputError(f"{index.class_name} {index.name} of {schema.full_name} needs {why}")
