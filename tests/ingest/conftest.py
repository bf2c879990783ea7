"""The cluster, the log and the table that tests of live clusters share."""

from support.standin.fixtures import cluster, log, table

__all__ = ["cluster", "log", "table"]
