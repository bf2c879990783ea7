"""Tablet-based tables in Dagster: stream sets with checks, and sensors that finish and collect them."""
