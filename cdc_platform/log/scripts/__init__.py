"""Scripts of CQL statements: run in the process, and kept in the lake with the rows of their logs."""
