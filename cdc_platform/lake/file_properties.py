"""How data files are written: compression, dictionaries, and what is noted of the least and greatest of columns."""

from __future__ import annotations

import pyarrow as pa
from deltalake import ColumnProperties, WriterProperties

from cdc_platform.lake.tables import Table

# To set zstd up for each column takes a sixth of a commit of a few rows, and two fifths of reading them.
_FEW = WriterProperties(compression="UNCOMPRESSED")
_FEW_BYTES = 1 << 17
# A column of which nearly all values differ soon goes on without a dictionary: with one of all of them its file is up
# to twice as large, and takes a third more time.
_DICTIONARY_BYTES = 1 << 16
_IDS = ColumnProperties(dictionary_enabled=False, statistics_enabled="NONE")
"""How stream IDs are written. No two are the same, so that a dictionary is made for nothing; to know the least and the
greatest of them helps nobody and takes a fifth of a write. deltalake finds no column inside another by its name (its
setting is dropped in silence), so this is what holds for all columns that are not named.
"""
_NOT_IDS = ColumnProperties(dictionary_enabled=True, statistics_enabled="PAGE")


def of_rows(table: Table, rows: pa.Table) -> WriterProperties:
    """How one file of these rows of a table is written: where they are few, as they are."""
    return _FEW if rows.nbytes <= _FEW_BYTES else of_many(table)


def of_many(table: Table) -> WriterProperties:
    """How files of many rows of a table are written."""
    others = [name for name in table.schema.names if name != "streams"]
    if table.generation_column is None or len(others) == len(table.schema.names):
        return _properties()
    return _properties(_IDS, dict.fromkeys(others, _NOT_IDS))


def _properties(
    default: ColumnProperties | None = None, columns: dict[str, ColumnProperties] | None = None
) -> WriterProperties:
    # Stream IDs are half random, but those of one range share their first bytes: of 1,638,400 of them zstd leaves 60 %
    # of the bytes for a fifth more time than no compression takes, snappy 72 %. Spark writes the same
    # (session.sql_conf).
    return WriterProperties(
        compression="ZSTD",
        compression_level=1,
        dictionary_page_size_limit=_DICTIONARY_BYTES,
        default_column_properties=default,
        column_properties=columns,
    )
