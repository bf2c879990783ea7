"""Synchronize Dagster's catalog with the tables: report writes made outside of Dagster, remove stale partitions."""
