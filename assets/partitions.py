"""Partitions of the generation's assets: one a generation, its key the generation's UUID.

The UUID is known before the timestamp, so a generation is a column of the UI from the moment it waits.
"""

from __future__ import annotations

from dagster import DynamicPartitionsDefinition

NAME = "generation"
GENERATIONS = DynamicPartitionsDefinition(name=NAME)

TABLES_NAME = "tablet_table"
TABLET_TABLES = DynamicPartitionsDefinition(name=TABLES_NAME)
"""The tablet-based tables: one partition a table, its key `keyspace.table`."""

LOGS_NAME = "cdc_log"
CDC_LOGS = DynamicPartitionsDefinition(name=LOGS_NAME)
"""The tables that have a CDC log: one partition a table, its key `keyspace.table`."""
