"""Run scripts of CQL statements in the process, and commit their tables and log rows to the lake."""
