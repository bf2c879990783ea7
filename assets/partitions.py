"""Partitions of the generation's assets: one a generation, its key the generation's UUID.

The UUID is known before the timestamp, so a generation is a column of the UI from the moment it waits.
"""

from __future__ import annotations

from dagster import DynamicPartitionsDefinition

from cdc_platform.errors import NotFound

NAME = "generation"
GENERATIONS = DynamicPartitionsDefinition(name=NAME)

TABLES_NAME = "tablet_table"
TABLET_TABLES = DynamicPartitionsDefinition(name=TABLES_NAME)
"""The tablet-based tables: one partition a table, its key `keyspace.table`."""

LOGS_NAME = "cdc_log"
CDC_LOGS = DynamicPartitionsDefinition(name=LOGS_NAME)
"""The tables that have a CDC log: one partition a table, its key `keyspace.table`."""


def table_name(partition: str) -> tuple[str, str]:
    """The table of a partition.

    Raises:
        NotFound: the partition names none.
    """
    keyspace, dot, table = partition.partition(".")
    if not (keyspace and dot and table):
        raise NotFound(f"partition {partition!r} names no table; tables are keyspace.table")
    return keyspace, table
