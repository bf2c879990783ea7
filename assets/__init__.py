"""Dagster's side of a generation's life: one module a table, with its asset, its checks and its sensor."""
