"""A join in Dagster: the inbox, and an asset with its checks for each of its steps, a partition a generation."""
