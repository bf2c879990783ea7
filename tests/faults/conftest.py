"""Fixtures of tests on live clusters: the cluster, the CDC log and the table."""

from support.standin.fixtures import cluster, log, table

__all__ = ["cluster", "log", "table"]
