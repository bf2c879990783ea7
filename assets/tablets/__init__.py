"""Tablet-based tables in Dagster: their stream sets with their checks, and what keeps them in order by itself."""
