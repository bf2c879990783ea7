"""Scripts of CQL statements: run them in the process, and commit their tables and log rows to the lake."""
